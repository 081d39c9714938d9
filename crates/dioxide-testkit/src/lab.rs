//! The lab that `scripts/lab up` makes, found through the environment. `DIOXIDE_LAB` is a directory
//! with every [`Fs`] mounted in it. `DIOXIDE_LAB_DISK` is a bare loop device.

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FlockOperation;

/// A file system of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fs {
    /// With extents and a journal.
    Ext4,
    /// XFS.
    Xfs,
    /// With checksums, so direct writes go through the page cache.
    Btrfs,
    /// Files inherit `chattr +C`: no checksums, overwritten in place.
    BtrfsNocow,
    /// Mounted by the ext4 driver; indirect blocks map its files.
    Ext3,
    /// With extents and no journal: checked before it is mounted after a crash.
    Ext4NoJournal,
    /// In memory.
    Tmpfs,
}

/// The error is the reason why a test does not apply to a file system.
pub type Applies = Result<(), &'static str>;

impl Fs {
    /// All of them.
    pub const ALL: [Fs; 7] =
        [Fs::Ext4, Fs::Xfs, Fs::Btrfs, Fs::BtrfsNocow, Fs::Ext3, Fs::Ext4NoJournal, Fs::Tmpfs];

    /// The name of its directory in the lab.
    pub fn name(self) -> &'static str {
        match self {
            Fs::Ext4 => "ext4",
            Fs::Xfs => "xfs",
            Fs::Btrfs => "btrfs",
            Fs::BtrfsNocow => "btrfs-nocow",
            Fs::Ext3 => "ext3",
            Fs::Ext4NoJournal => "ext4-nojournal",
            Fs::Tmpfs => "tmpfs",
        }
    }

    /// The name for mount(8).
    pub fn mount_type(self) -> &'static str {
        match self {
            Fs::BtrfsNocow => "btrfs",
            Fs::Ext4NoJournal => "ext4",
            other => other.name(),
        }
    }

    /// Whether files are preallocated as unwritten space.
    pub fn grows_unwritten(self) -> Applies {
        match self {
            Fs::Ext4 | Fs::Xfs | Fs::Btrfs | Fs::BtrfsNocow => Ok(()),
            Fs::Ext3 => Err("indirect blocks cannot be allocated unwritten"),
            Fs::Ext4NoJournal => Err("no journal keeps what was written"),
            Fs::Tmpfs => Err("tmpfs gains nothing by growth"),
        }
    }

    /// Whether files are preallocated as zeros.
    pub fn grows_zeroed(self) -> Applies {
        match self {
            Fs::Ext4 | Fs::Xfs | Fs::BtrfsNocow | Fs::Ext3 | Fs::Ext4NoJournal => Ok(()),
            Fs::Btrfs => Err("btrfs would not write into the zeros"),
            Fs::Tmpfs => Err("tmpfs gains nothing by growth"),
        }
    }

    /// For tests that do not depend on the file system.
    pub fn on_ext4(self) -> Applies {
        if self == Fs::Ext4 { Ok(()) } else { Err("ext4 stands for all") }
    }

    /// Whether there is a disk below that can fail and lose power.
    pub fn has_disk(self) -> Applies {
        if self == Fs::Tmpfs { Err("tmpfs has no disk") } else { Ok(()) }
    }

    /// Whether a direct write goes to the disk itself. Elsewhere a write that the disk refuses
    /// fails the next flush as well.
    pub fn writes_directly(self) -> Applies {
        match self {
            Fs::Btrfs => Err("btrfs writes files with checksums through its cache"),
            other => other.has_disk(),
        }
    }

    /// Whether a direct write that the disk refuses fails alone. btrfs ends a write after it has
    /// reported it, and a flush that begins before that fails with the write's error.
    pub fn writes_fail_alone(self) -> Applies {
        match self {
            Fs::BtrfsNocow => Err("a flush may fail with the error of a write before it"),
            other => other.writes_directly(),
        }
    }

    /// Whether it can be shut down as in a crash, and then be mounted in that state.
    pub fn shuts_down(self) -> Applies {
        match self {
            Fs::Ext4 | Fs::Xfs | Fs::Ext3 => Ok(()),
            Fs::Btrfs | Fs::BtrfsNocow => Err("btrfs has no shutdown ioctl"),
            Fs::Ext4NoJournal => Err("a shutdown without a journal stops no write-back"),
            Fs::Tmpfs => Err("tmpfs has no shutdown ioctl"),
        }
    }

    /// Whether acknowledged data survive every power cut.
    ///
    /// Without a journal they do not, for any program. Of two concurrent syncs of one file, one
    /// returns before the metadata that the other writes are on the disk.
    pub fn survives_power_cuts(self) -> Applies {
        match self {
            Fs::Ext4NoJournal => Err("without a journal, a sync beside another promises too much"),
            other => other.has_disk(),
        }
    }

    /// Whether it is consistent after a crash as soon as it is mounted, and never exposes old
    /// content of the disk.
    pub fn recovers_itself(self) -> bool {
        self != Fs::Ext4NoJournal
    }
}

impl fmt::Display for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The lab's directory.
pub fn dir() -> io::Result<PathBuf> {
    variable("DIOXIDE_LAB")
}

/// A fresh directory on the lab's `fs`, for one test.
pub fn fresh_dir(fs: Fs, test: &str) -> io::Result<TestDir> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let root = dir()?.join(fs.name());
    if !is_mount_point(&root)? {
        return Err(io::Error::other(format!(
            "{}: no file system is mounted there",
            root.display()
        )));
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = root.join(format!("{}-{}-{number}", test.replace([':', '/'], "-"), process::id()));
    fs::create_dir(&path)?;
    Ok(TestDir { path, fs })
}

/// The path of the lab's bare disk. To use it, take [`disk`].
pub fn disk_path() -> io::Result<PathBuf> {
    variable("DIOXIDE_LAB_DISK")
}

/// The lab's bare disk. Waits until no other test has it.
pub fn disk() -> io::Result<Disk> {
    let path = disk_path()?;
    let turn = File::create(dir()?.join(".disk-turn"))?;
    rustix::fs::flock(&turn, FlockOperation::LockExclusive)?;
    Ok(Disk { path, _turn: turn })
}

fn variable(name: &str) -> io::Result<PathBuf> {
    env::var_os(name)
        .map(PathBuf::from)
        .ok_or_else(|| io::Error::other(format!("{name} is not set")))
}

fn is_mount_point(dir: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata(dir)?.dev() != fs::metadata(dir.join(".."))?.dev())
}

/// A directory of one test, removed on drop. Derefs to its path.
#[derive(Debug)]
pub struct TestDir {
    path: PathBuf,
    fs: Fs,
}

impl TestDir {
    /// Its file system.
    pub fn fs(&self) -> Fs {
        self.fs
    }
}

impl Deref for TestDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The bare disk, exclusive to this test until dropped. Derefs to the path of the device.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    _turn: File,
}

impl Deref for Disk {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}
