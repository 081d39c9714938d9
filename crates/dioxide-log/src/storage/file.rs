//! A segment in an open file: all of it, or a part of a device.

use super::Segment;
use crate::error::{Error, Result};
use dioxide::{Buffer, Durability, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILL_BYTES: usize = 1 << 20;

/// A segment in a file that stays open.
#[derive(Debug)]
pub struct FileSegment {
    files: Arc<Files>,
    path: PathBuf,
    start: u64,
    bytes: u64,
}

/// Two handles of one file. Writes through the first are stable on return.
#[derive(Debug)]
pub(super) struct Files {
    pub stable: File,
    pub other: File,
}

impl Files {
    pub fn new(file: &File) -> Result<Self> {
        let stable = file.try_clone_as(Durability::EveryWrite)?;
        Ok(Self { stable, other: file.try_clone_as(Durability::OnSync)? })
    }
}

impl FileSegment {
    /// Fills an empty file with zeros, as a segment of this size. `path` is for messages. The file
    /// is stable on return, its name is not.
    ///
    /// # Errors
    ///
    /// The error of a write.
    pub fn fill(file: &File, path: &Path, bytes: u64) -> Result<Self> {
        fill(file, bytes)?;
        file.sync_data()?;
        Ok(Self::part(Arc::new(Files::new(file)?), path.into(), 0, bytes))
    }

    pub(super) fn part(files: Arc<Files>, path: PathBuf, start: u64, bytes: u64) -> Self {
        Self { files, path, start, bytes }
    }
}

/// Appends zeros to an empty file.
pub(super) fn fill(file: &File, bytes: u64) -> Result<()> {
    let zeros = Buffer::zeroed(FILL_BYTES);
    let mut left = bytes;
    while left > 0 {
        let size = left.min(FILL_BYTES as u64);
        file.append(&zeros[..size as usize])?;
        left -= size;
    }
    Ok(())
}

impl Segment for FileSegment {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        let file = if durable { &self.files.stable } else { &self.files.other };
        Ok(file.write_at(data, self.start + offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.files.stable.sync_data()?)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let at = self.start + offset;
        match self.files.stable.read_at(into, at)? == into.len() {
            true => Ok(()),
            false => Err(Error::corrupt(&self.path, offset, "the file ends there")),
        }
    }
}
