//! A modified ext2 volume, and the operations of a program on a file in it.
//!
//! An unmodified volume must match a model. On any other one, each operation succeeds or fails.
//! Writes touch only the blocks that the map of the file claims, free space, and the metadata that
//! counts it.
#![no_main]

use dioxide::{Buffer, Error, ErrorKind, File, OpenOptions};
use dioxide_ext::OpenInImage;
use dioxide_testkit::ext_volume::{ExtKind, ExtVolume, Shape};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs, process};

const BLOCK: usize = 1024;
const SHAPE: Shape =
    Shape { group_blocks: 512, ..Shape::new(ExtKind::Ext2, BLOCK as u64, 128, 1 << 20) };
const TARGET: &str = "target";
/// The length of the target, in bytes; no multiple of a block.
const LEN: usize = 300 * BLOCK + 77;
const OPERATIONS_MAX: usize = 24;
/// The farthest offset, in blocks: a little beyond the first triple indirect block.
const END_MAX: u64 = 12 + 256 + 256 * 256 + 300;
/// The same in an unmodified volume, whose bytes are all compared.
const MODEL_END_MAX: u64 = 12 + 256 + 600;

#[derive(Debug, Arbitrary)]
struct Program {
    tampering: Vec<Tampering>,
    operations: Vec<Operation>,
}

/// A modified number.
#[derive(Clone, Copy, Debug, Arbitrary)]
struct Tampering {
    area: u8,
    place: u16,
    value: Value,
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Value {
    /// Any value.
    Any(u32),
    /// The number of a block of the volume.
    Block(u16),
    /// The old value with one bit flipped.
    Flipped(u8),
    /// A little above or below the old value.
    Near(i8),
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Operation {
    Append { bytes: u16 },
    Write { at: u16, blocks: u8 },
    WriteFar { at: u32, blocks: u8 },
    Read { at: u32, bytes: u16 },
    SetLen { blocks: u16, odd: u8 },
    SetLenFar { blocks: u32 },
    Sync,
    CloseAndOpen,
}

/// The unmodified volume, and its layout.
struct Sound {
    image: Vec<u8>,
    inode: usize,
    descriptors: usize,
    bitmaps: Vec<usize>,
    directory: usize,
    pointers: Vec<usize>,
    content: Vec<u8>,
    path: PathBuf,
}

fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| Sound::make().expect("mke2fs makes a volume"))
}

fn word(image: &[u8], at: usize) -> u32 {
    image
        .get(at..at + 4)
        .map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

impl Sound {
    fn make() -> std::io::Result<Sound> {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        let dir = dir.join(format!("dioxide-fuzz-{}", process::id()));
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        let content: Vec<u8> = (0..LEN).map(|n| (n / 7 % 251) as u8 + 1).collect();
        fs::write(tree.join(TARGET), &content)?;
        fs::write(tree.join("victim"), &content[..50_000])?;
        let volume = ExtVolume::make(&dir.join("volume.img"), &SHAPE, &tree)?;
        let image = fs::read(volume.path())?;
        let block_place = |block: u64| block as usize * BLOCK;
        let inode = volume.inode_place(volume.inode_of("/target")?, BLOCK as u64)? as usize;
        let descriptors = 2 * BLOCK;
        let groups = (SHAPE.size as usize / BLOCK - 1).div_ceil(SHAPE.group_blocks as usize);
        let bitmaps =
            (0..groups).map(|n| word(&image, descriptors + 32 * n) as usize * BLOCK).collect();
        let pointers = [12, 13].map(|n| word(&image, inode + 40 + 4 * n) as usize * BLOCK);
        let sound = Sound {
            inode,
            descriptors,
            bitmaps,
            directory: block_place(volume.block_at("/", 0)?),
            pointers: pointers.to_vec(),
            content,
            path: volume.path().to_owned(),
            image,
        };
        Ok(sound)
    }

    fn areas(&self) -> Vec<(usize, usize)> {
        let mut areas = vec![
            (1024, 264),
            (self.descriptors, 32 * self.bitmaps.len()),
            (self.inode, 128),
            (self.directory, 100),
        ];
        areas.extend(self.bitmaps.iter().map(|start| (*start, 64)));
        areas.extend(self.pointers.iter().map(|start| (*start, BLOCK)));
        areas
    }

    /// The modified image, and whether the superblock, the groups or the directory changed.
    fn tampered(&self, tampering: &[Tampering]) -> (Vec<u8>, bool) {
        let mut image = self.image.clone();
        let areas = self.areas();
        let mut moved = false;
        for Tampering { area, place, value } in tampering {
            let area = usize::from(*area) % areas.len();
            let (start, len) = areas[area];
            let at = start + usize::from(*place) % (len / 4) * 4;
            let old = word(&image, at);
            let value = match *value {
                Value::Any(value) => value,
                Value::Block(block) => u32::from(block) % (SHAPE.size / BLOCK as u64) as u32,
                Value::Flipped(bit) => old ^ 1 << (bit % 32),
                Value::Near(by) => old.wrapping_add_signed(by.into()),
            };
            image[at..at + 4].copy_from_slice(&value.to_le_bytes());
            // With these changed, another file may become the target.
            moved |= matches!(area, 0 | 1 | 3) && value != old;
        }
        (image, moved)
    }

    /// The blocks that may be written: those that the target's map claims, free ones, and counters.
    /// A map cannot claim metadata of the volume.
    fn may_be_written(&self, image: &[u8]) -> BTreeSet<usize> {
        let blocks = image.len() / BLOCK;
        let mut claimed = BTreeSet::new();
        for n in 0..15 {
            let depth = if n < 12 { 0 } else { n - 11 };
            claim(image, word(image, self.inode + 40 + 4 * n) as usize, depth, &mut claimed);
        }
        let is_free = |block: &usize| {
            let bit = (block - 1) % SHAPE.group_blocks as usize;
            let byte = self.bitmaps[(block - 1) / SHAPE.group_blocks as usize] + bit / 8;
            image[byte] & 1 << (bit % 8) == 0
        };
        claimed.extend((1..blocks).filter(is_free));
        claimed.retain(|block| !self.is_metadata(*block));
        claimed.extend(self.bitmaps.iter().map(|start| start / BLOCK));
        claimed.extend([1, self.descriptors / BLOCK]);
        claimed
    }

    fn is_metadata(&self, block: usize) -> bool {
        let tables = word(&self.image, 1024 + 40) as usize * 128 / BLOCK;
        let group = |n: usize| {
            let at = self.descriptors + 32 * n;
            let [blocks, inodes, table] =
                [0, 4, 8].map(|field| word(&self.image, at + field) as usize);
            block == blocks || block == inodes || (table..table + tables).contains(&block)
        };
        block < 3 || (0..self.bitmaps.len()).any(group)
    }
}

fn claim(image: &[u8], block: usize, depth: usize, claimed: &mut BTreeSet<usize>) {
    if block == 0 || block >= image.len() / BLOCK || !claimed.insert(block) {
        return;
    }
    if depth > 0 {
        (0..BLOCK / 4).for_each(|n| {
            claim(image, word(image, block * BLOCK + 4 * n) as usize, depth - 1, claimed)
        });
    }
}

fuzz_target!(|program: Program| {
    let sound = sound();
    let (image, moved) = sound.tampered(&program.tampering);
    restore(&sound.path, &image);
    let operations = program.operations.into_iter().take(OPERATIONS_MAX);
    if image == sound.image {
        return Model::open(sound).run(operations);
    }
    use_it(&sound.path, operations);
    let after = fs::read(&sound.path).expect("it is there");
    assert_eq!(after.len(), image.len(), "the volume is as long as it was");
    if !moved {
        let may = sound.may_be_written(&image);
        let pieces = image.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate();
        for (block, (old, new)) in pieces {
            let inode = sound.inode - sound.inode / BLOCK * BLOCK;
            let same = if block == sound.inode / BLOCK {
                old[..inode] == new[..inode] && old[inode + 128..] == new[inode + 128..]
            } else {
                old == new
            };
            assert!(same || may.contains(&block), "block {block} was written");
        }
    }
});

/// Writes the blocks that differ.
fn restore(path: &Path, image: &[u8]) {
    let found = fs::read(path).expect("it is there");
    let file = fs::File::options().write(true).open(path).expect("it is there");
    file.set_len(image.len() as u64).expect("its length can be set");
    for (n, (old, new)) in found.chunks(BLOCK).zip(image.chunks(BLOCK)).enumerate() {
        if old != new {
            file.write_all_at(new, (n * BLOCK) as u64).expect("it can be written");
        }
    }
}

fn open(path: &Path) -> dioxide::Result<File> {
    OpenOptions::new().write(true).open_in_image(path, TARGET)
}

/// Performs operations, of which any may fail.
fn use_it(path: &Path, operations: impl Iterator<Item = Operation>) {
    let Ok(mut file) = open(path) else { return };
    for operation in operations {
        let _ = match operation {
            Operation::Append { bytes } => file.append(&data(bytes.into())).map(drop),
            Operation::Write { at, blocks } => write(&file, at.into(), blocks),
            Operation::WriteFar { at, blocks } => write(&file, at.into(), blocks),
            Operation::Read { at, bytes } => {
                file.read_at(&mut vec![0; bytes.into()], at.into()).map(drop)
            }
            Operation::SetLen { blocks, odd } => file.set_len(length(blocks.into(), odd)),
            Operation::SetLenFar { blocks } => file.set_len(length(blocks.into(), 0)),
            Operation::Sync => file.sync_data(),
            Operation::CloseAndOpen => {
                let _ = file.close();
                match open(path) {
                    Ok(opened) => file = opened,
                    Err(_) => return,
                }
                Ok(())
            }
        };
    }
    let _ = file.close();
}

fn data(len: usize) -> Buffer {
    let mut data = Buffer::zeroed(len);
    data.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n % 253) as u8 + 1);
    data
}

fn write(file: &File, at: u64, blocks: u8) -> dioxide::Result<()> {
    file.write_at(&data(BLOCK * (1 + usize::from(blocks))), at % END_MAX * BLOCK as u64)
}

fn length(blocks: u64, odd: u8) -> u64 {
    blocks % END_MAX * BLOCK as u64 + u64::from(odd)
}

/// The expected content of an unmodified file: bytes up to some offset, then zeros.
struct Model<'a> {
    sound: &'a Sound,
    file: File,
    content: Vec<u8>,
}

impl<'a> Model<'a> {
    fn open(sound: &'a Sound) -> Self {
        let file = open(&sound.path).expect("it is sound");
        Self { sound, file, content: sound.content.clone() }
    }

    fn run(mut self, operations: impl Iterator<Item = Operation>) {
        for operation in operations {
            self.perform(operation);
            assert_eq!(self.file.len(), Ok(self.content.len() as u64), "after {operation:?}");
        }
        self = self.reopened();
        self.file.set_len(0).expect("it is sound");
        self.file.close().expect("it is sound");
    }

    fn perform(&mut self, operation: Operation) {
        let len = self.content.len();
        match operation {
            Operation::Append { bytes } => {
                let data = data(bytes.into());
                match self.file.append(&data) {
                    Ok(at) => {
                        assert_eq!(at as usize, len);
                        self.content.extend_from_slice(&data);
                    }
                    Err(error) => is_for_space(&error),
                }
            }
            Operation::Write { at, blocks } => self.write(u64::from(at) % MODEL_END_MAX, blocks),
            Operation::WriteFar { at, blocks } => self.write(u64::from(at) % MODEL_END_MAX, blocks),
            Operation::Read { at, bytes } => self.look(at as usize % (len + BLOCK), bytes.into()),
            Operation::SetLen { blocks, odd } => {
                self.set_len(length(u64::from(blocks) % MODEL_END_MAX, odd));
            }
            Operation::SetLenFar { blocks } => {
                self.set_len(length(u64::from(blocks) % MODEL_END_MAX, 0))
            }
            Operation::Sync => self.file.sync_data().expect("it is sound"),
            Operation::CloseAndOpen => {
                let file =
                    std::mem::replace(&mut self.file, open(&self.sound.path).expect("it is open"));
                file.close().expect("it is sound");
            }
        }
    }

    fn write(&mut self, at: u64, blocks: u8) {
        let outcome = write(&self.file, at, blocks);
        let (at, data) = ((at % END_MAX) as usize * BLOCK, data(BLOCK * (1 + usize::from(blocks))));
        match outcome {
            Ok(()) => {
                self.content.resize(self.content.len().max(at + data.len()), 0);
                self.content[at..at + data.len()].copy_from_slice(&data);
            }
            Err(error) => {
                is_for_space(&error);
                self.take_part(at, &data);
            }
        }
    }

    /// After a write that failed, each sector below the end has its old or its new bytes.
    fn take_part(&mut self, at: usize, data: &[u8]) {
        const SECTOR: usize = 512;
        let end = self.content.len().min(at + data.len());
        if at >= end {
            return;
        }
        let mut found = vec![0; end - at];
        let read = self.file.read_at(&mut found, at as u64).expect("it is sound");
        assert_eq!(read, found.len());
        let old = self.content[at..end].chunks(SECTOR);
        for ((old, new), found) in old.zip(data.chunks(SECTOR)).zip(found.chunks(SECTOR)) {
            assert!(found == old || *found == new[..found.len()], "a mixture behind {at}");
        }
        self.content[at..end].copy_from_slice(&found);
    }

    fn set_len(&mut self, len: u64) {
        self.file.set_len(len).expect("it is sound");
        self.content.resize(len as usize, 0);
    }

    fn look(&self, at: usize, len: usize) {
        let mut into = vec![0; len];
        let read = self.file.read_at(&mut into, at as u64).expect("it is sound");
        let end = self.content.len().min(at + len);
        assert!(into[..read] == self.content[at.min(end)..end], "something else at {at}");
    }

    fn reopened(self) -> Self {
        self.look(0, self.content.len() + 1);
        self.file.close().expect("it is sound");
        let file = open(&self.sound.path).expect("it is closed in order");
        let reopened = Self { file, ..self };
        reopened.look(0, reopened.content.len() + 1);
        reopened
    }
}

fn is_for_space(error: &Error) {
    assert!(matches!(error.kind(), ErrorKind::NoSpace(_)), "{error}");
}
