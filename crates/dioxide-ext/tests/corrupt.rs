//! Volumes of ext2 and ext3 that contradict themselves. Hostile values replace every number in the
//! superblock, the group descriptors, the inode, the map and the directory. Then the test performs
//! all operations on a file. Each succeeds or fails, in bounded time. Writes touch only the file's
//! own blocks and inode, free space, and the metadata that counts it.
//!
//! Only a scan of every inode can detect a pointer into another file's data. Such a block is
//! written as the file's own. e2fsck finds it.

#[path = "../../../tests/common/mod.rs"]
mod common;
mod within;

use common::*;
use dioxide::{Buffer, File, OpenOptions};
use dioxide_ext::OpenInImage;
use dioxide_testkit::ext_volume::{ExtKind, ExtVolume, Shape};
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Failed, Trial, TrialResult, lab_trial};
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use within::*;

/// The timeout of a case, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

const TARGET: &str = "/target";

/// The number of hostile values tried for each number, unless DIOXIDE_EXT_SHAPES=all.
const VALUES_AT_A_TIME: usize = 2;

// --- a volume and its layout ---------------------------------------------------------------------

/// A small volume in memory, and its layout.
struct Specimen {
    image: Vec<u8>,
    shape: Shape,
    /// Blocks of the target: those with pointers, and those with data.
    pointers: Vec<u64>,
    own: BTreeSet<u64>,
    victims: BTreeSet<u64>,
    /// The offset of the target's inode, in bytes.
    inode: usize,
    other_inodes: Vec<usize>,
    groups: Vec<Group>,
    directory: u64,
    journal: Option<u64>,
}

struct Group {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
}

impl Specimen {
    fn new(dir: &Path, shape: Shape) -> Result<Specimen, Failed> {
        let tree = dir.join("tree");
        fs::create_dir(&tree)?;
        fs::write(tree.join("victim"), bytes(1, 40 * shape.block))?;
        plant_target(&tree.join("target"), shape.block)?;
        symlink("target", tree.join("link"))?;
        symlink(format!("{}target", "./".repeat(50)), tree.join("long-link"))?;
        fs::write(tree.join("second-victim"), bytes(2, 20 * shape.block))?;
        let volume = ExtVolume::make(&dir.join("specimen.img"), &shape, &tree)?;
        let place =
            |name| volume.inode_place(volume.inode_of(name)?, shape.block).map(|at| at as usize);
        let inode = place(TARGET)?;
        let other_inodes = vec![place("/victim")?, place("/second-victim")?];
        let own: BTreeSet<_> = volume.blocks(TARGET)?.into_iter().collect();
        let image = fs::read(volume.path())?;
        let victims = ["/victim", "/second-victim"].map(|name| volume.blocks(name));
        let victims =
            victims.into_iter().collect::<Result<Vec<_>, _>>()?.concat().into_iter().collect();
        let journal = match shape.kind {
            ExtKind::Ext2 => None,
            ExtKind::Ext3 => Some(volume.block_at("<8>", 0)?),
        };
        let mut specimen = Specimen {
            image,
            shape,
            pointers: Vec::new(),
            own,
            victims,
            inode,
            other_inodes,
            groups: Vec::new(),
            directory: volume.block_at("/", 0)?,
            journal,
        };
        specimen.groups = specimen.read_groups();
        specimen.pointers = specimen.find_pointers();
        assert_eq!(
            specimen.pointers.len(),
            7,
            "single, double and triple indirect ones, and those below"
        );
        Ok(specimen)
    }

    fn word(&self, at: usize) -> u64 {
        u32::from_le_bytes(self.image[at..at + 4].try_into().expect("four bytes")).into()
    }

    fn block_count(&self) -> u64 {
        self.word(1024 + 4)
    }

    fn first_block(&self) -> u64 {
        self.word(1024 + 20)
    }

    fn descriptors(&self) -> usize {
        ((self.first_block() + 1) * self.shape.block) as usize
    }

    fn read_groups(&self) -> Vec<Group> {
        let per_group = self.word(1024 + 32);
        let count = (self.block_count() - self.first_block()).div_ceil(per_group) as usize;
        let group = |n: usize| {
            let at = self.descriptors() + 32 * n;
            Group {
                block_bitmap: self.word(at),
                inode_bitmap: self.word(at + 4),
                inode_table: self.word(at + 8),
            }
        };
        (0..count).map(group).collect()
    }

    /// Finds the target's blocks of pointers, from the inode down.
    fn find_pointers(&self) -> Vec<u64> {
        let mut found = Vec::new();
        for depth in 1..=3 {
            self.add_pointers(self.word(self.inode + 40 + 4 * (11 + depth)), depth, &mut found);
        }
        found
    }

    fn add_pointers(&self, block: u64, depth: usize, found: &mut Vec<u64>) {
        found.push(block);
        let start = (block * self.shape.block) as usize;
        for at in (start..start + self.shape.block as usize).step_by(4) {
            if depth > 1 && self.word(at) != 0 {
                self.add_pointers(self.word(at), depth - 1, found);
            }
        }
    }

    fn is_free(&self, block: u64) -> bool {
        let per_group = self.word(1024 + 32);
        let (group, bit) =
            ((block - self.first_block()) / per_group, (block - self.first_block()) % per_group);
        let byte = self.groups[group as usize].block_bitmap * self.shape.block + bit / 8;
        self.image[byte as usize] & 1 << (bit % 8) == 0
    }

    /// The metadata blocks of the volume, to which no map and no other descriptor may point.
    fn metadata(&self) -> Vec<u64> {
        let first = &self.groups[0];
        let last = &self.groups[self.groups.len() - 1];
        let mut blocks = vec![
            self.first_block(),
            self.first_block() + 1,
            first.block_bitmap,
            first.inode_bitmap,
            first.inode_table,
            self.inode as u64 / self.shape.block,
            last.block_bitmap,
            last.inode_table + 1,
        ];
        blocks.extend(self.journal);
        blocks
    }

    /// The values that replace the number at this offset.
    fn hostile_values(&self, at: usize) -> Vec<u32> {
        let old = self.word(at) as u32;
        let count = self.block_count() as u32;
        let mut values =
            vec![0, 1, u32::MAX, 1 << 31, i32::MAX as u32, count, count - 1, count + 1];
        values.extend([
            old ^ 1,
            old.wrapping_add(1),
            old.wrapping_sub(1),
            old << 1,
            old >> 1,
            old ^ 1 << 31,
        ]);
        values.extend([
            old & 0xFFFF,
            old & 0xFFFF_0000,
            old | 0xFFFF,
            old | 0xFFFF_0000,
            old.swap_bytes(),
        ]);
        values.extend((0..4).map(|n| old ^ 0x10 << (8 * n)));
        values.extend([2, 8, 11, 255, 0x1_0001, 0x8000_8000]);
        values.extend(self.metadata().into_iter().map(|block| block as u32));
        values.extend(self.pointers.iter().map(|block| *block as u32));
        values.retain(|value| *value != old);
        values.dedup();
        values
    }
}

/// Data at the beginning, and on both sides of each border of the map.
fn plant_target(path: &Path, block: u64) -> std::io::Result<()> {
    let per_block = block / 4;
    let double = 12 + per_block;
    let triple = double + per_block * per_block;
    let file = fs::File::create_new(path)?;
    for place in [0, 3, 10, double - 2, triple - 2] {
        file.write_all_at(&bytes(100 + place, 4 * block), place * block)?;
    }
    file.set_len((triple + 2) * block + 100)
}

// --- one case ------------------------------------------------------------------------------------

/// One number with a wrong value.
#[derive(Clone, Copy)]
struct Case {
    at: usize,
    value: u32,
    claims: Claims,
}

/// The blocks that a file claims, so that writes to them are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claims {
    Nothing,
    Block(u64),
    /// All blocks of another file.
    OtherFiles,
}

/// Performs all operations on the file, on a volume at `path`. Any may fail.
fn use_it(path: &Path, block: u64) -> bool {
    for name in ["/", "link", "long-link", "victim/x", "missing"] {
        let _ = OpenOptions::new().open_in_image(path, name).map(|file| read_ends(&file));
    }
    let Ok(file) = writing().open_in_image(path, TARGET) else { return false };
    let _ = file.len();
    read_ends(&file);
    let data = Buffer::from(&bytes(7, 3 * block)[..]);
    let unit = file.alignment().offset as usize;
    let whole = &data[..data.len() / unit * unit];
    let per_block = block / 4;
    for place in
        [0, 2, 11, 12 + per_block - 1, 12 + per_block + per_block * per_block - 1, 40, 3_000]
    {
        let _ = file.write_at(whole, place * block);
    }
    let _ = file.append(&data[..100]);
    let _ = file.append(&data);
    let _ = file.sync_data();
    let len = file.len().unwrap_or(0);
    let triple = 12 + per_block + per_block * per_block;
    for len in [
        len.saturating_sub(block),
        (triple + 1) * block,
        (14 + per_block) * block + 9,
        13 * block,
        5 * block,
        0,
    ] {
        let _ = file.set_len(len);
    }
    let _ = file.append(&data);
    let _ = file.set_len((triple + 5) * block);
    let _ = file.append(&data[..block as usize]);
    let _ = file.close();
    true
}

fn read_ends(file: &File) {
    let mut into = vec![0; 100_000];
    let len = file.len().unwrap_or(0);
    for at in [0, len.saturating_sub(50_000), len / 2, 300 << 10, 64 << 20, 1 << 40] {
        let _ = file.read_at(&mut into, at);
    }
}

/// Returns whether to try every value.
fn everything() -> bool {
    std::env::var_os("DIOXIDE_EXT_SHAPES").is_some_and(|which| which == "all")
}

/// An image on which cases run one after the other.
struct Bench<'a> {
    specimen: &'a Specimen,
    path: PathBuf,
    tried: usize,
    opened: usize,
}

impl<'a> Bench<'a> {
    fn new(specimen: &'a Specimen, dir: &Path) -> std::io::Result<Bench<'a>> {
        let path = dir.join("case.img");
        fs::write(&path, &specimen.image)?;
        Ok(Bench { specimen, path, tried: 0, opened: 0 })
    }

    fn try_case(&mut self, name: &str, case: Case) -> TrialResult {
        let image = fs::File::options().read(true).write(true).open(&self.path)?;
        image.write_all_at(&case.value.to_le_bytes(), case.at as u64)?;
        let name = format!(
            "{name}, {:#x} at {:#x} instead of {:#x}",
            case.value,
            case.at,
            self.specimen.word(case.at)
        );
        self.opened += usize::from(self.run(&name)?);
        self.tried += 1;
        let after = fs::read(&self.path)?;
        let wrong = self.wrong_writes(&after, case);
        // Restores the image for the next case.
        for (n, (old, new)) in self.pieces(&after).enumerate() {
            if old != new {
                image.write_all_at(old, n as u64 * self.specimen.shape.block)?;
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(format!("{name}: written: {wrong:?}").into()) }
    }

    /// Runs a case in its own thread, named for the panic message. Returns whether the file was
    /// opened for writing.
    fn run(&self, name: &str) -> Result<bool, Failed> {
        let (sender, receiver) = mpsc::channel();
        let (path, block) = (self.path.clone(), self.specimen.shape.block);
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || sender.send(use_it(&path, block)))?;
        match receiver.recv_timeout(LIMIT) {
            Ok(opened) => {
                let _ = thread.join();
                Ok(opened)
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(format!("{name}: a panic").into()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(format!("{name}: not done after {LIMIT:?}").into())
            }
        }
    }

    fn pieces<'b>(
        &self,
        after: &'b [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'b [u8])> + use<'a, 'b> {
        let block = self.specimen.shape.block as usize;
        self.specimen.image.chunks(block).zip(after.chunks(block))
    }

    /// Describes writes outside of the file's own blocks.
    fn wrong_writes(&self, after: &[u8], case: Case) -> Vec<String> {
        let specimen = self.specimen;
        let size = specimen.shape.block as usize;
        let mut wrong = Vec::new();
        if after.len() != specimen.image.len() {
            wrong.push(format!("{} bytes instead of {}", after.len(), specimen.image.len()));
        }
        for (number, (old, new)) in self.pieces(after).enumerate() {
            let block = number as u64;
            let start = number * size;
            let mut old = old.to_vec();
            if (start..start + size).contains(&case.at) {
                old[case.at - start..][..4].copy_from_slice(&case.value.to_le_bytes());
            }
            let other = case.claims == Claims::OtherFiles;
            let claimed =
                case.claims == Claims::Block(block) || other && specimen.victims.contains(&block);
            if old == new || self.may_be_written(block) || claimed {
                continue;
            }
            let others = specimen.other_inodes.iter().filter(|_| other);
            for inode in
                others.chain([&specimen.inode]).filter(|at| (start..start + size).contains(at))
            {
                let range = inode - start..inode - start + specimen.shape.inode as usize;
                old[range.clone()].copy_from_slice(&new[range]);
            }
            // The superblock may change, but not the rest of its block.
            if start == 0 || start == 1024 {
                let range = 1024 - start..2048 - start;
                old[range.clone()].copy_from_slice(&new[range]);
            }
            if let Some(at) = old.iter().zip(new).position(|(old, new)| old != new) {
                wrong.push(format!("block {block} at {at}: {}", self.what_is(block)));
            }
        }
        wrong
    }

    fn may_be_written(&self, block: u64) -> bool {
        let specimen = self.specimen;
        let descriptors = specimen.descriptors() as u64 / specimen.shape.block;
        specimen.own.contains(&block)
            || block == descriptors
            || specimen.groups.iter().any(|group| group.block_bitmap == block)
            || (block >= specimen.first_block() && specimen.is_free(block))
    }

    fn what_is(&self, block: u64) -> &'static str {
        let specimen = self.specimen;
        match () {
            _ if specimen.victims.contains(&block) => "another file",
            _ if specimen.groups.iter().any(|group| group.inode_bitmap == block) => {
                "a bitmap of inodes"
            }
            _ if specimen.directory == block => "the directory",
            _ => "something else",
        }
    }

    /// Tries some hostile values for every number of a range, different ones for each.
    fn sweep(&mut self, name: &str, range: Range<usize>, claims: Claims) -> TrialResult {
        for (n, at) in range.step_by(4).enumerate() {
            let values = self.specimen.hostile_values(at);
            let some = if everything() { values.len() } else { VALUES_AT_A_TIME };
            // The stride has no common factor with any number of values.
            let chosen = (0..some).map(|i| values[(n * 7 + i * 11) % values.len()]);
            for value in chosen.collect::<Vec<_>>() {
                self.try_case(name, Case { at, value, claims })?;
            }
        }
        Ok(())
    }
}

// --- the tests -----------------------------------------------------------------------------------

fn nothing_is_corrupt(bench: &mut Bench) -> TrialResult {
    // Control: an unchanged volume passes all operations, and is written.
    let word = bench.specimen.word(0) as u32;
    bench.try_case("as it was made", Case { at: 0, value: word, claims: Claims::Nothing })?;
    assert_eq!(bench.opened, 1, "even the sound volume is refused");
    Ok(())
}

fn any_number_of_the_superblock(bench: &mut Bench) -> TrialResult {
    bench.sweep("the superblock", 1024..2048, Claims::Nothing)?;
    assert!(
        bench.opened > 100,
        "names and times do not matter: {} of {}",
        bench.opened,
        bench.tried
    );
    assert!(bench.opened < bench.tried - 10, "{} of {} were opened", bench.opened, bench.tried);
    Ok(())
}

fn any_number_of_the_groups(bench: &mut Bench) -> TrialResult {
    let start = bench.specimen.descriptors();
    bench.sweep("the groups", start..start + 32 * bench.specimen.groups.len(), Claims::Nothing)
}

fn any_number_of_the_inode(bench: &mut Bench) -> TrialResult {
    let start = bench.specimen.inode;
    bench.sweep("the inode", start..start + bench.specimen.shape.inode as usize, Claims::Nothing)
}

fn any_number_of_the_inodes_before(bench: &mut Bench) -> TrialResult {
    // The inodes of the root and of the journal.
    let table = (bench.specimen.groups[0].inode_table * bench.specimen.shape.block) as usize;
    let size = bench.specimen.shape.inode as usize;
    bench.sweep("the root's inode", table + size..table + size + 100, Claims::Nothing)?;
    bench.sweep("the journal's inode", table + 7 * size..table + 7 * size + 100, Claims::Nothing)
}

fn any_number_of_the_directory(bench: &mut Bench) -> TrialResult {
    let start = (bench.specimen.directory * bench.specimen.shape.block) as usize;
    // A name that leads to another file makes that file the target.
    bench.sweep("the directory", start..start + 140, Claims::OtherFiles)
}

/// Names lead to files only, never to reserved inodes.
fn a_name_of_a_reserved_inode(bench: &mut Bench) -> TrialResult {
    let specimen = bench.specimen;
    let start = (specimen.directory * specimen.shape.block) as usize;
    let entry = specimen.image[start..].windows(6).position(|bytes| bytes == b"target");
    // The inode number, two lengths and the type precede the name.
    let at = start + entry.expect("it has a name") - 8;
    let count = specimen.word(1024) as u32;
    let numbers = (0..11).chain([count + 1, count + 2, u32::MAX]);
    for value in numbers.filter(|number| *number != 2) {
        bench.try_case("a name", Case { at, value, claims: Claims::Nothing })?;
        assert_eq!(bench.opened, 0, "inode {value} was opened");
    }
    Ok(())
}

/// First, last and used pointers of each block of pointers, and those of the inode.
fn any_pointer_of_the_map(bench: &mut Bench) -> TrialResult {
    let specimen = bench.specimen;
    let size = specimen.shape.block as usize;
    let mut places: Vec<usize> = (0..15).map(|n| specimen.inode + 40 + 4 * n).collect();
    for block in &specimen.pointers {
        let start = *block as usize * size;
        let used = (start..start + size).step_by(4).filter(|at| specimen.word(*at) != 0);
        places.extend(used.chain([start, start + 40, start + size - 4]));
    }
    places.sort_unstable();
    places.dedup();
    let step = if everything() { 1 } else { 4 };
    for (n, at) in places.into_iter().enumerate() {
        let values = specimen.metadata().into_iter().chain(specimen.pointers.iter().copied());
        let beyond = [specimen.block_count(), specimen.block_count() + 1, 1 << 31, u32::MAX.into()];
        let values = values.chain(beyond).chain([1, specimen.own.first().copied().unwrap_or(0)]);
        for value in values.skip(n % step).step_by(step) {
            bench
                .try_case("a pointer", Case { at, value: value as u32, claims: Claims::Nothing })?;
        }
        // The engine cannot know that the block belongs to another file.
        for victim in [specimen.victims.first(), specimen.victims.last()] {
            let victim = *victim.expect("there are some");
            bench.try_case(
                "a claim",
                Case { at, value: victim as u32, claims: Claims::Block(victim) },
            )?;
        }
    }
    Ok(())
}

/// Bitmaps that mark metadata blocks as free.
fn bitmaps_that_free_metadata(bench: &mut Bench) -> TrialResult {
    let specimen = bench.specimen;
    for group in &specimen.groups {
        let start = (group.block_bitmap * specimen.shape.block) as usize;
        for at in [start, start + 4] {
            let covers_others = |bit: u64| {
                let per_group = specimen.word(1024 + 32);
                let number = (group.block_bitmap - specimen.first_block()) / per_group;
                let block =
                    specimen.first_block() + number * per_group + (at - start) as u64 * 8 + bit;
                specimen.victims.contains(&block) || specimen.directory == block
            };
            if (0..32).any(covers_others) {
                continue;
            }
            for value in [0, 0xFFFF_FFFE, 0xFFFF_0000, 0x5555_5555] {
                bench.try_case("a bitmap", Case { at, value, claims: Claims::Nothing })?;
            }
        }
    }
    Ok(())
}

/// A test with its name.
type CorruptTest = (&'static str, fn(&mut Bench) -> TrialResult);

fn run(dir: &TestDir, shape: Shape, test: fn(&mut Bench) -> TrialResult) -> TrialResult {
    let specimen = Specimen::new(dir, shape)?;
    test(&mut Bench::new(&specimen, dir)?)
}

fn shapes() -> [Shape; 3] {
    [
        Shape { group_blocks: 512, ..Shape::new(ExtKind::Ext2, 1024, 128, 2 << 20) },
        Shape { group_blocks: 1024, ..Shape::new(ExtKind::Ext3, 1024, 256, 4 << 20) },
        Shape::new(ExtKind::Ext2, 4096, 256, 4 << 20),
    ]
}

fn trials() -> Vec<Trial> {
    let tests: &[CorruptTest] = named![
        nothing_is_corrupt,
        any_number_of_the_superblock,
        any_number_of_the_groups,
        any_number_of_the_inode,
        any_number_of_the_inodes_before,
        any_number_of_the_directory,
        a_name_of_a_reserved_inode,
        any_pointer_of_the_map,
        bitmaps_that_free_metadata,
    ];
    let each = |shape: Shape| {
        tests.iter().map(move |&(name, test)| {
            lab_trial(&format!("{shape}::{name}"), Fs::Tmpfs, move |dir| run(&dir, shape, test))
        })
    };
    shapes().into_iter().flat_map(each).collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
