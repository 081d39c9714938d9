//! Volumes of ext2 and ext3 with files in them. Tests keep the expected content in memory. In the
//! end they compare it with the content that dioxide, debugfs and the kernel read.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::common::Random;
use dioxide::{Buffer, File, OpenOptions, Result};
use dioxide_ext::OpenInImage;
use dioxide_testkit::ext_volume::{ExtKind, ExtVolume, Pieces, Shape, Tree, TreeEntry};
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::records::Frame;
use dioxide_testkit::trials::{Failed, Trial, TrialResult, in_turn, lab_trial};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

pub type ShapeTest = (&'static str, fn(TestDir, Shape) -> TrialResult);

pub const KIB: u64 = 1 << 10;
/// The size of most volumes: enough for the files of a test, and fast to check.
pub const VOLUME_BYTES: u64 = 32 << 20;

/// The largest file that is read as a whole, with holes.
const WHOLE_MAX: u64 = 8 << 20;

/// The shapes of volumes for a test; all with DIOXIDE_EXT_SHAPES=all. Every test has each block
/// size, both kinds, and small groups. `make test` tries one shape of each test.
fn shapes_for(test: usize) -> Vec<Shape> {
    let all = Shape::all(VOLUME_BYTES);
    if env::var_os("DIOXIDE_EXT_SHAPES").is_some_and(|which| which == "all") {
        return all;
    }
    let kinds = [ExtKind::Ext2, ExtKind::Ext3];
    let chosen = |(n, block): (usize, u64)| {
        let inode = [128, 256][(n + test / 2) % 2];
        let group_blocks = [0, 1000, 2048][(n + test / 3) % 3];
        Shape { group_blocks, ..Shape::new(kinds[(n + test) % 2], block, inode, VOLUME_BYTES) }
    };
    [1024, 2048, 4096].into_iter().enumerate().map(chosen).collect()
}

/// The tests on volumes of several shapes, in image files on several file systems. The host of the
/// shape that `make test` tries is ext4 or XFS, in turn.
pub fn within_trials(tests: &[ShapeTest]) -> Vec<Trial> {
    const HOSTS: [[Fs; 3]; 2] = [[Fs::Ext4, Fs::Tmpfs, Fs::Xfs], [Fs::Xfs, Fs::Tmpfs, Fs::Ext4]];
    let trials = |(n, &(name, test)): (usize, &ShapeTest)| {
        let shapes = shapes_for(n).into_iter().enumerate();
        let trial = move |(at, shape): (usize, Shape)| {
            // For the n-th shape of the n-th test, the first of its hosts.
            let host = HOSTS[n % 2][(at + 2 * n) % 3];
            lab_trial(&format!("{shape}::{name}"), host, move |dir| test(dir, shape))
        };
        shapes.map(trial).collect::<Vec<_>>()
    };
    in_turn(tests.iter().enumerate().map(trials))
}

/// The bytes with this number, of this length.
pub fn bytes(number: u64, len: u64) -> Vec<u8> {
    Frame { writer: 0x5EED, number, len }.bytes()
}

/// The content of a sparse file: blocks of [`Model::BLOCK`] that are not all zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    len: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

const ZEROS: [u8; Model::BLOCK as usize] = [0; Model::BLOCK as usize];

impl Model {
    const BLOCK: u64 = 1024;

    pub fn of(pieces: &Pieces) -> Model {
        let mut model = Model::default();
        pieces.pieces.iter().for_each(|(at, piece)| model.write(*at, piece));
        model.set_len(pieces.len);
        model
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn write(&mut self, at: u64, mut bytes: &[u8]) {
        self.len = self.len.max(at + bytes.len() as u64);
        let mut at = at;
        while !bytes.is_empty() {
            let within = (at % Self::BLOCK) as usize;
            let (now, rest) = bytes.split_at(bytes.len().min(Self::BLOCK as usize - within));
            let block = self
                .blocks
                .entry(at / Self::BLOCK)
                .or_insert_with(|| vec![0; Self::BLOCK as usize]);
            block[within..within + now.len()].copy_from_slice(now);
            if block[..] == ZEROS {
                self.blocks.remove(&(at / Self::BLOCK));
            }
            (at, bytes) = (at + now.len() as u64, rest);
        }
    }

    pub fn set_len(&mut self, len: u64) {
        if len < self.len && !len.is_multiple_of(Self::BLOCK) {
            let rest = len.next_multiple_of(Self::BLOCK) - len;
            self.write(len, &vec![0; rest as usize]);
        }
        self.blocks.split_off(&len.div_ceil(Self::BLOCK));
        self.len = len;
    }

    /// Reads up to `len` bytes, until EOF.
    pub fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let end = (at + len).min(self.len);
        if at >= end {
            return Vec::new();
        }
        let mut read = vec![0; (end - at) as usize];
        for (number, block) in self.blocks.range(at / Self::BLOCK..end.div_ceil(Self::BLOCK)) {
            let start = number * Self::BLOCK;
            let (from, to) = (at.max(start), end.min(start + Self::BLOCK));
            let bytes = &block[(from - start) as usize..(to - start) as usize];
            read[(from - at) as usize..(to - at) as usize].copy_from_slice(bytes);
        }
        read
    }

    /// Runs of bytes that may not all be zeros.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for number in self.blocks.keys() {
            match runs.last_mut() {
                Some((start, len)) if *start + *len == number * Self::BLOCK => *len += Self::BLOCK,
                _ => runs.push((number * Self::BLOCK, Self::BLOCK)),
            }
        }
        runs
    }

    /// The first difference between two models, in words.
    fn difference(&self, found: &Model) -> Option<String> {
        if self.len != found.len {
            return Some(format!("{} bytes instead of {}", found.len, self.len));
        }
        let numbers = self.blocks.keys().chain(found.blocks.keys());
        let wrong =
            numbers.filter(|number| self.blocks.get(number) != found.blocks.get(number)).min()?;
        let at = wrong * Self::BLOCK;
        let (wanted, found) = (self.read(at, Self::BLOCK), found.read(at, Self::BLOCK));
        let byte = wanted.iter().zip(&found).position(|(wanted, found)| wanted != found)?;
        Some(format!(
            "{:02x?} instead of {:02x?} at {}",
            &found[byte..][..1],
            &wanted[byte..][..1],
            at + byte as u64
        ))
    }
}

/// The volume of one test.
pub struct Bed {
    pub volume: ExtVolume,
    pub shape: Shape,
    /// The files of the volume when it was made.
    tree: Tree,
    /// The expected content of the files that the test has opened.
    models: BTreeMap<String, Model>,
    pub dir: PathBuf,
    random: Random,
}

/// An open file of a [`Bed`], and its expected content.
pub struct Inside {
    pub name: String,
    pub file: File,
    pub model: Model,
}

/// Options that write, without creating.
pub fn writing() -> OpenOptions {
    OpenOptions::new().write(true).clone()
}

impl Bed {
    /// A volume with the files of [`plant`].
    pub fn new(dir: &Path, shape: Shape) -> Result<Bed, Failed> {
        let tree = dir.join("tree");
        fs::create_dir(&tree)?;
        plant(&tree, shape.block)?;
        Bed::of(dir, shape, &tree)
    }

    /// A volume with the content of the directory `tree`.
    pub fn of(dir: &Path, shape: Shape, tree: &Path) -> Result<Bed, Failed> {
        let volume = ExtVolume::make(&dir.join("volume.img"), &shape, tree)?;
        Bed::around(dir, shape, volume)
    }

    /// Wraps an existing volume.
    pub fn around(dir: &Path, shape: Shape, volume: ExtVolume) -> Result<Bed, Failed> {
        volume.check()?;
        let tree = volume.tree()?;
        let random = Random::new(shape.block + shape.inode);
        Ok(Bed { volume, shape, tree, models: BTreeMap::new(), dir: dir.to_owned(), random })
    }

    pub fn block(&self) -> u64 {
        self.shape.block
    }

    /// The first blocks of a file that need single, double and triple indirect blocks.
    pub fn borders(&self) -> [u64; 3] {
        let pointers = self.block() / 4;
        [12, 12 + pointers, 12 + pointers + pointers * pointers]
    }

    /// The expected content of a file.
    pub fn model(&self, name: &str) -> Model {
        let planted = || match self.tree.0.get(Path::new(name)) {
            Some(TreeEntry { content: Some(content), .. }) => Model::of(content),
            _ => panic!("no file {name} was planted"),
        };
        self.models.get(name).cloned().unwrap_or_else(planted)
    }

    pub fn planted(&self) -> &Tree {
        &self.tree
    }

    pub fn open(&self, name: &str) -> Result<Inside> {
        self.open_with(&writing(), name)
    }

    pub fn open_with(&self, options: &OpenOptions, name: &str) -> Result<Inside> {
        let file = options.open_in_image(self.volume.path(), name)?;
        let model = self.model(name);
        assert_eq!(file.len()?, model.len(), "of {name}");
        Ok(Inside { name: name.to_owned(), file, model })
    }

    /// Sets the expected content of a file.
    pub fn expect(&mut self, name: &str, model: Model) {
        self.models.insert(name.to_owned(), model);
    }

    /// Compares the content of the open file with the expected one, and closes it.
    pub fn close(&mut self, inside: Inside) -> TrialResult {
        inside.look()?;
        self.close_unseen(inside)
    }

    pub fn close_unseen(&mut self, inside: Inside) -> TrialResult {
        inside.file.close()?;
        self.expect(&inside.name, inside.model);
        Ok(())
    }

    /// With no file open: e2fsck finds nothing. debugfs and the kernel read the expected content.
    /// Everything else is as planted.
    pub fn verify(&self) -> TrialResult {
        self.check()?;
        self.by_the_kernel()
    }

    /// As `verify`, without the kernel, which takes the longest.
    pub fn check(&self) -> TrialResult {
        self.volume.check()?;
        if !self.is_clean()? {
            return Err("the volume is not left clean".into());
        }
        self.models.iter().try_for_each(|(name, model)| self.by_debugfs(name, model))
    }

    pub fn is_clean(&self) -> std::io::Result<bool> {
        let mut state = [0; 2];
        fs::File::open(self.volume.path())?.read_exact_at(&mut state, 1024 + 58)?;
        Ok(u16::from_le_bytes(state) == 1)
    }

    fn by_the_kernel(&self) -> TrialResult {
        let mut tree = self.volume.tree()?;
        for (name, model) in &self.models {
            let path = Path::new(name);
            let (Some(found), Some(planted)) = (tree.0.get_mut(path), self.tree.0.get(path)) else {
                return Err(format!("{name} is gone").into());
            };
            let content = found.content.clone().ok_or("it is no file any more")?;
            if let Some(difference) = model.difference(&Model::of(&content)) {
                return Err(format!("{name}, by the kernel: {difference}").into());
            }
            found.content = planted.content.clone();
        }
        match &tree.differences(&self.tree)[..] {
            [] => Ok(()),
            others => Err(format!("these were changed as well: {others:?}").into()),
        }
    }

    fn by_debugfs(&self, name: &str, model: &Model) -> TrialResult {
        if model.len() > WHOLE_MAX {
            return Ok(());
        }
        let found = self.volume.dump(name)?;
        let mut other = Model::default();
        other.write(0, &found);
        match model.difference(&other) {
            None => Ok(()),
            Some(difference) => Err(format!("{name}, by debugfs: {difference}").into()),
        }
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }
}

impl Inside {
    pub fn append(&mut self, data: &[u8]) -> Result<u64> {
        let offset = self.file.append(data)?;
        assert_eq!(offset, self.model.len(), "an append is not at the end");
        self.model.write(offset, data);
        Ok(offset)
    }

    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        self.file.write_at(&Buffer::from(data), at)?;
        self.model.write(at, data);
        Ok(())
    }

    pub fn set_len(&mut self, len: u64) -> Result<()> {
        self.file.set_len(len)?;
        self.model.set_len(len);
        assert_eq!(self.file.len()?, len);
        Ok(())
    }

    /// Compares a range.
    pub fn read(&self, at: u64, len: u64) -> TrialResult {
        let mut into = vec![0xEE; len as usize];
        let read = self.file.read_at(&mut into, at)?;
        let wanted = self.model.read(at, len);
        if read != wanted.len() {
            return Err(
                format!("{} at {at}: {read} bytes instead of {}", self.name, wanted.len()).into()
            );
        }
        if into[..read] == wanted {
            return Ok(());
        }
        let wrong = wanted.iter().zip(&into).take_while(|(wanted, found)| wanted == found).count();
        Err(format!("{}: {:#x} at {}", self.name, into[wrong], at + wrong as u64).into())
    }

    /// Compares the length, all nonzero data, and the zeros around it.
    pub fn look(&self) -> TrialResult {
        assert_eq!(self.file.len()?, self.model.len());
        if self.model.len() <= WHOLE_MAX {
            return self.read(0, self.model.len() + 10);
        }
        for (at, len) in self.model.runs() {
            let start = at.saturating_sub(8 * KIB);
            self.read(start, at + len + 8 * KIB - start)?;
        }
        Ok(())
    }
}

/// A tree with an empty file `log`, a file of 48 KiB, a sparse one, and others that must not
/// change.
pub fn plant(tree: &Path, block: u64) -> std::io::Result<()> {
    fs::write(tree.join("log"), b"")?;
    fs::write(tree.join("second"), b"")?;
    fs::write(tree.join("48k"), bytes(1, 48 * KIB))?;
    fs::write(tree.join("odd"), bytes(2, 30 * KIB + 77))?;
    fs::create_dir_all(tree.join("others/deeper"))?;
    for n in 0..10 {
        fs::write(tree.join(format!("others/{n}")), bytes(10 + n, n * n * 3_333))?;
    }
    fs::write(tree.join("others/deeper/large"), bytes(30, 300 * KIB))?;
    symlink("../log", tree.join("others/to-log"))?;
    symlink("/others/deeper", tree.join("absolute"))?;
    symlink("n".repeat(100), tree.join("dangling"))?;
    plant_sparse(&tree.join("sparse"), block)
}

/// A sparse file with scattered blocks, direct and indirect.
fn plant_sparse(path: &Path, block: u64) -> std::io::Result<()> {
    let file = fs::File::create_new(path)?;
    for place in [1, 2, 5, 11, 12, 13, 40, 200, 12 + block / 4 - 1, 12 + block / 4, 3000] {
        file.write_all_at(&bytes(100 + place, block), place * block)?;
    }
    file.set_len(3100 * block + 33)
}
