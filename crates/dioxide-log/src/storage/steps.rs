//! The steps by which segments and logs move between the directories of a set. The process may end
//! between any two, and the power may fail: a name that was not synced may be the old one again.

use super::Segment;
use super::dir::{SegmentFile, make_dir, remove_if_there, sync_dir};
use crate::error::{Error, Result};
use std::fmt::Debug;
use std::fs;
use std::path::Path;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageStep<'a> {
    /// Overwrites the first block of a segment. It is stable then.
    Head { path: &'a Path, block: &'a [u8] },
    /// Makes a directory, unless it is there.
    Create(&'a Path),
    /// Gives a file or directory another name.
    Rename { from: &'a Path, to: &'a Path },
    /// Makes the names of a directory stable.
    Sync(&'a Path),
    /// Removes a file.
    Remove(&'a Path),
    /// Removes a directory with its files.
    RemoveAll(&'a Path),
}

/// What takes steps: the file system, or a test that stops before one.
pub trait Steps: Debug + Send + Sync {
    fn take(&self, step: StorageStep<'_>) -> Result<()>;

    fn take_all(&self, steps: &[StorageStep<'_>]) -> Result<()> {
        steps.iter().try_for_each(|step| self.take(*step))
    }
}

/// The file system.
#[derive(Debug)]
pub struct FileSystem;

impl Steps for FileSystem {
    fn take(&self, step: StorageStep<'_>) -> Result<()> {
        match step {
            StorageStep::Head { path, block } => {
                let segment = SegmentFile::new(path.into(), block.len() as u64);
                segment.write(block, 0, true)?;
                segment.rest()
            }
            StorageStep::Create(dir) => make_dir(dir),
            StorageStep::Rename { from, to } => {
                fs::rename(from, to).map_err(|error| Error::system("rename", from, error))
            }
            StorageStep::Sync(dir) => sync_dir(dir),
            StorageStep::Remove(path) => remove_if_there(path),
            StorageStep::RemoveAll(path) => {
                fs::remove_dir_all(path).map_err(|error| Error::system("remove", path, error))
            }
        }
    }
}
