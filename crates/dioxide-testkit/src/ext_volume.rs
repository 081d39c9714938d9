//! ext2 and ext3 volumes as image files or on devices, made and checked by e2fsprogs and mounted by
//! the kernel. Tests compare what dioxide does inside a volume with these two.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Output;

use rustix::fs::SeekFrom;

use crate::command::{self, TOOL_LIMIT};
use crate::loop_device::{Io, LoopDevice};
use crate::mount::{Mount, await_end, is_in_use};
use crate::site::Site;

/// Old content, so that a test can tell stale data from zeros.
const FILL: u8 = 0xA5;

/// ext2 or ext3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtKind {
    /// No journal.
    Ext2,
    /// With a journal.
    Ext3,
}

impl ExtKind {
    /// The name for mke2fs and mount.
    pub fn name(self) -> &'static str {
        match self {
            ExtKind::Ext2 => "ext2",
            ExtKind::Ext3 => "ext3",
        }
    }
}

/// The parameters of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// ext2 or ext3.
    pub kind: ExtKind,
    /// Block size in bytes.
    pub block: u64,
    /// Inode size in bytes.
    pub inode: u64,
    /// Volume size in bytes.
    pub size: u64,
    /// Features for `mke2fs -O`, added or (`^`) removed; may be empty.
    pub features: &'static str,
    /// Percentage of blocks reserved for root.
    pub reserved_percent: u64,
    /// Blocks per group, a multiple of 8; 0 leaves the choice to mke2fs.
    pub group_blocks: u64,
}

impl Shape {
    /// The default features and no reserved blocks.
    pub const fn new(kind: ExtKind, block: u64, inode: u64, size: u64) -> Shape {
        Shape { kind, block, inode, size, features: "", reserved_percent: 0, group_blocks: 0 }
    }

    /// Every combination of kind, block size and inode size, for volumes of `size` bytes.
    pub fn all(size: u64) -> Vec<Shape> {
        let kinds = [ExtKind::Ext2, ExtKind::Ext3].into_iter();
        let blocks = kinds.flat_map(|kind| [1024, 2048, 4096].map(|block| (kind, block)));
        blocks
            .flat_map(|(kind, block)| [128, 256].map(|inode| Shape::new(kind, block, inode, size)))
            .collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}k-i{}", self.kind.name(), self.block >> 10, self.inode)?;
        if self.group_blocks > 0 { write!(f, "-g{}", self.group_blocks) } else { Ok(()) }
    }
}

/// A volume. Paths inside it are absolute from its root.
#[derive(Clone, Debug)]
pub struct ExtVolume {
    path: PathBuf,
    kind: ExtKind,
}

impl ExtVolume {
    /// Makes an image file at `path` with the content of directory `tree`. Its free blocks hold old
    /// content.
    pub fn make(path: &Path, shape: &Shape, tree: &Path) -> io::Result<ExtVolume> {
        let file = File::create_new(path)?;
        let piece = vec![FILL; 1 << 20];
        for at in (0..shape.size).step_by(piece.len()) {
            file.write_all_at(&piece[..piece.len().min((shape.size - at) as usize)], at)?;
        }
        ExtVolume::format(path, shape, tree)
    }

    /// Like [`ExtVolume::make`], in an existing file or device of at least this size.
    pub fn format(path: &Path, shape: &Shape, tree: &Path) -> io::Result<ExtVolume> {
        let (block, inode) = (shape.block.to_string(), shape.inode.to_string());
        let (reserved, size) =
            (shape.reserved_percent.to_string(), format!("{}k", shape.size >> 10));
        let mut args: Vec<OsString> =
            ["-q", "-F", "-t", shape.kind.name(), "-b", &block, "-I", &inode]
                .into_iter()
                .chain([
                    "-m",
                    &reserved,
                    "-E",
                    "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
                    "-d",
                ])
                .map(OsString::from)
                .collect();
        args.push(tree.into());
        if !shape.features.is_empty() {
            args.extend(["-O".into(), shape.features.into()]);
        }
        if shape.group_blocks > 0 {
            args.extend(["-g".into(), shape.group_blocks.to_string().into()]);
        }
        args.extend([path.into(), size.into()]);
        await_end(path)?;
        command::run(TOOL_LIMIT, "mke2fs", args)?;
        Ok(ExtVolume { path: path.to_owned(), kind: shape.kind })
    }

    /// An existing volume.
    pub fn at(path: &Path, kind: ExtKind) -> ExtVolume {
        ExtVolume { path: path.to_owned(), kind }
    }

    /// The image file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a full e2fsck. An error if it finds anything.
    pub fn check(&self) -> io::Result<()> {
        self.e2fsck("-fn").map(drop)
    }

    /// Repairs it with `e2fsck -p`, as at boot, and returns the output. An error if e2fsck needs an
    /// answer.
    pub fn preen(&self) -> io::Result<String> {
        self.mend("-p")
    }

    /// Repairs everything with e2fsck, then checks again. Returns the output of the first run.
    pub fn repair(&self) -> io::Result<String> {
        self.mend("-fy")
    }

    /// Adds an index to directories of more than one block.
    pub fn index_directories(&self) -> io::Result<()> {
        self.mend("-fyD").map(drop)
    }

    /// e2fsck exits with 1 if it repaired something.
    fn mend(&self, how: &str) -> io::Result<String> {
        await_end(&self.path)?;
        let output = self.run("e2fsck", &[how])?;
        let said = printed(&output);
        if !matches!(output.status.code(), Some(0 | 1)) {
            return Err(io::Error::other(format!("e2fsck {how}: {}: {said}", output.status)));
        }
        self.check()?;
        Ok(said)
    }

    fn e2fsck(&self, how: &str) -> io::Result<String> {
        let output = self.run("e2fsck", &[how])?;
        if output.status.success() {
            return Ok(printed(&output));
        }
        Err(io::Error::other(format!("e2fsck {how}: {}: {}", output.status, printed(&output))))
    }

    /// Changes the volume with tune2fs.
    pub fn tune(&self, args: &[&str]) -> io::Result<()> {
        let output = self.run("tune2fs", args)?;
        if output.status.success() { Ok(()) } else { Err(io::Error::other(printed(&output))) }
    }

    fn run(&self, tool: &str, args: &[&str]) -> io::Result<Output> {
        let args = args.iter().map(Path::new).chain([self.path.as_path()]);
        command::output(TOOL_LIMIT, tool, args)
    }

    /// Runs one debugfs request. An error if debugfs complains.
    pub fn ask(&self, request: &str) -> io::Result<String> {
        self.debugfs(&["-R", request])
    }

    /// Runs one debugfs request that changes the volume.
    pub fn change(&self, request: &str) -> io::Result<String> {
        self.debugfs(&["-w", "-R", request])
    }

    /// debugfs always exits with 0. Its errors are all output after its name and version.
    fn debugfs(&self, args: &[&str]) -> io::Result<String> {
        let output = self.run("debugfs", args)?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        let complaints: Vec<_> =
            complaints.lines().filter(|line| !line.starts_with("debugfs ")).collect();
        if complaints.is_empty() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(io::Error::other(format!("debugfs {args:?}: {}", complaints.join("; "))))
    }

    /// The content of a file as debugfs reads it, with holes as zeros.
    pub fn dump(&self, file: &str) -> io::Result<Vec<u8>> {
        let site = Site::new()?;
        let copy = site.path("dump");
        self.ask(&format!("dump {file} {}", copy.display()))?;
        fs::read(copy)
    }

    /// All blocks of a file in mapping order, each pointer block before the blocks it points to.
    pub fn blocks(&self, file: &str) -> io::Result<Vec<u64>> {
        let numbers = self.ask(&format!("blocks {file}"))?;
        numbers.split_whitespace().map(|number| number.parse().map_err(io::Error::other)).collect()
    }

    /// The block at index `place` of a file's data; 0 is a hole.
    pub fn block_at(&self, file: &str, place: u64) -> io::Result<u64> {
        self.ask(&format!("bmap {file} {place}"))?.trim().parse().map_err(io::Error::other)
    }

    /// The inode number of a file.
    pub fn inode_of(&self, file: &str) -> io::Result<u64> {
        let said = self.ask(&format!("stat {file}"))?;
        let number = said.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        number.ok_or_else(|| io::Error::other(format!("no inode in {said:?}")))
    }

    /// The byte offset of an inode on the volume.
    pub fn inode_place(&self, number: u64, block: u64) -> io::Result<u64> {
        // "Inode 12 is part of block group 0\n\tlocated at block 5, offset 0x0580"
        let said = self.ask(&format!("imap <{number}>"))?;
        let word = |before: &str| {
            let rest = &said[said.find(before)? + before.len()..];
            rest.split([',', '\n']).next().map(str::trim)
        };
        let table = word("located at block").and_then(|word| word.parse::<u64>().ok());
        let offset = word("offset 0x").and_then(|word| u64::from_str_radix(word, 16).ok());
        match (table, offset) {
            (Some(table), Some(offset)) => Ok(table * block + offset),
            _ => Err(io::Error::other(format!("no place in {said:?}"))),
        }
    }

    /// A superblock value, by its name in `stats -h` (as dumpe2fs shows it).
    pub fn header(&self, name: &str) -> io::Result<String> {
        let said = self.ask("show_super_stats -h")?;
        let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.map(|value| value.trim().to_owned());
        value.ok_or_else(|| io::Error::other(format!("no {name} in {said}")))
    }

    /// A superblock value as a number, see [`ExtVolume::header`].
    pub fn number(&self, name: &str) -> io::Result<u64> {
        self.header(name)?.parse().map_err(io::Error::other)
    }

    /// Mounts it. An image file gets a loop device.
    pub fn mount(&self, options: &str) -> io::Result<MountedExt> {
        let site = Site::new()?;
        let is_device = fs::metadata(&self.path)?.file_type().is_block_device();
        let attach = || LoopDevice::attach(&self.path, &site.path("disk.loop"), Io::Cached);
        let device = if is_device { None } else { Some(attach()?) };
        let source = device.as_ref().map_or(self.path.as_path(), LoopDevice::path);
        let mount = Mount::new(self.kind.name(), source, &site.path("mnt"), options)?;
        Ok(MountedExt { mount, _device: device, _site: site })
    }

    /// Whether the kernel mounts it now, if it is a device. [`ExtVolume::mount`] waits until a
    /// device is free.
    pub fn can_be_mounted(&self) -> io::Result<bool> {
        let site = Site::new()?;
        match Mount::at_once(self.kind.name(), &self.path, &site.path("mnt"), "ro") {
            Ok(_) => Ok(true),
            Err(error) if is_in_use(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All of its entries, as the kernel sees them.
    pub fn tree(&self) -> io::Result<Tree> {
        Tree::of(&self.mount("ro")?)
    }
}

fn printed(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// A volume mounted by the kernel until dropped. Derefs to the mount point.
pub struct MountedExt {
    // In drop order.
    mount: Mount,
    _device: Option<LoopDevice>,
    _site: Site,
}

impl MountedExt {
    /// The loop device, if it has one of its own.
    pub fn loop_device(&self) -> Option<&Path> {
        self._device.as_ref().map(LoopDevice::path)
    }
}

impl Deref for MountedExt {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.mount.dir()
    }
}

/// The content of a file: its length, and its data that are not holes, by offset.
#[derive(Clone, PartialEq, Eq)]
pub struct Pieces {
    /// File length in bytes.
    pub len: u64,
    /// Disjoint, in ascending order.
    pub pieces: Vec<(u64, Vec<u8>)>,
}

impl Pieces {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> io::Result<Pieces> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut pieces = Vec::new();
        let mut end = 0;
        while end < len {
            let start = match rustix::fs::seek(&file, SeekFrom::Data(end)) {
                Err(rustix::io::Errno::NXIO) => break,
                start => start?,
            };
            end = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
            let mut piece = vec![0; (end - start) as usize];
            file.read_exact_at(&mut piece, start)?;
            pieces.push((start, piece));
        }
        Ok(Pieces { len, pieces })
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<_> = self.pieces.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        write!(f, "{} bytes, data at {places:?}", self.len)
    }
}

/// A directory tree: everything about each entry except its times.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tree(pub BTreeMap<PathBuf, TreeEntry>);

/// One entry of a [`Tree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// Inode number, mode with type, link count and owner.
    pub identity: [u64; 5],
    /// The target of a symlink.
    pub target: Option<PathBuf>,
    /// The content of a regular file.
    pub content: Option<Pieces>,
}

impl Tree {
    /// Reads an existing directory.
    pub fn of(root: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        tree.add(root, Path::new("/"))?;
        Ok(tree)
    }

    fn add(&mut self, dir: &Path, name: &Path) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let (path, name) = (entry.path(), name.join(entry.file_name()));
            let meta = fs::symlink_metadata(&path)?;
            if meta.is_dir() {
                self.add(&path, &name)?;
            }
            let target = meta.is_symlink().then(|| fs::read_link(&path)).transpose()?;
            let content = meta.is_file().then(|| Pieces::read(&path)).transpose()?;
            let identity = [
                meta.ino(),
                meta.mode().into(),
                meta.nlink(),
                meta.uid().into(),
                meta.gid().into(),
            ];
            self.0.insert(name, TreeEntry { identity, target, content });
        }
        Ok(())
    }

    /// The names of entries that differ or exist in only one of the two.
    pub fn differences(&self, other: &Tree) -> Vec<PathBuf> {
        let names: std::collections::BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        names.into_iter().filter(|name| self.0.get(*name) != other.0.get(*name)).cloned().collect()
    }
}
