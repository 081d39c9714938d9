//! The lab that `scripts/lab up` makes, found through the environment: `DIOXIDE_LAB` is a directory
//! with `ext4` and `xfs` mounted in it, `DIOXIDE_LAB_DISK` a bare loop device.

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
#[allow(missing_docs)]
pub enum Fs {
    Ext4,
    Xfs,
}

impl Fs {
    /// All of them, for tests that run on each.
    pub const ALL: [Fs; 2] = [Fs::Ext4, Fs::Xfs];

    /// The name that mount(8) knows.
    pub fn name(self) -> &'static str {
        match self {
            Fs::Ext4 => "ext4",
            Fs::Xfs => "xfs",
        }
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
        return Err(io::Error::other(format!("{}: no file system is mounted there", root.display())));
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = root.join(format!("{}-{}-{number}", test.replace([':', '/'], "-"), process::id()));
    fs::create_dir(&path)?;
    Ok(TestDir { path })
}

/// The path of the lab's bare disk; to use it, take [`disk`].
pub fn disk_path() -> io::Result<PathBuf> {
    variable("DIOXIDE_LAB_DISK")
}

/// The lab's bare disk; waits until no other test has it.
pub fn disk() -> io::Result<Disk> {
    let path = disk_path()?;
    let turn = File::create(dir()?.join(".disk-turn"))?;
    rustix::fs::flock(&turn, FlockOperation::LockExclusive)?;
    Ok(Disk { path, _turn: turn })
}

fn variable(name: &str) -> io::Result<PathBuf> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| io::Error::other(format!("{name} is not set")))
}

fn is_mount_point(dir: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata(dir)?.dev() != fs::metadata(dir.join(".."))?.dev())
}

/// A directory of one test, removed on drop. Derefs to its path.
#[derive(Debug)]
pub struct TestDir {
    path: PathBuf,
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

/// The bare disk, this test's alone until dropped. Derefs to the path of the device.
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
