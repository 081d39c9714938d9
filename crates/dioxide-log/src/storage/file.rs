//! A segment in an open file: all of it, or a part of a device.

use super::Segment;
use crate::error::{Error, Result};
use crate::locked::locked;
use dioxide::{Buffer, Durability, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

const FILL_BYTES: usize = 1 << 20;

/// A segment in a file that stays open.
#[derive(Debug)]
pub struct FileSegment {
    files: Arc<Files>,
    path: PathBuf,
    start: u64,
    bytes: u64,
}

/// A file: first with the handles of the writer, then for readers only.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    writers: RwLock<Option<Writers>>,
    reader: Mutex<Option<Arc<File>>>,
}

/// Two handles of one file. Writes through the first are stable on return.
#[derive(Debug)]
pub(super) struct Writers {
    pub stable: File,
    pub other: File,
}

impl Files {
    /// `path` is only for reads after [`rest`](Self::rest).
    pub fn new(file: &File, path: &Path) -> Result<Self> {
        let stable = file.try_clone_as(Durability::EveryWrite)?;
        let writers = Writers { stable, other: file.try_clone_as(Durability::OnSync)? };
        let (writers, reader) = (RwLock::new(Some(writers)), Mutex::default());
        Ok(Self { path: path.into(), writers, reader })
    }

    /// Calls `with` with the handles of the writer. Fails after [`rest`](Self::rest).
    pub fn write<R>(&self, with: impl FnOnce(&Writers) -> Result<R>) -> Result<R> {
        let writers = self.writers.read().unwrap_or_else(PoisonError::into_inner);
        with(writers.as_ref().ok_or(Error::Closed)?)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let writers = self.writers.read().unwrap_or_else(PoisonError::into_inner);
        match &*writers {
            Some(writers) => Ok(writers.stable.read_at(into, offset)?),
            None => Ok(self.reader()?.read_at(into, offset)?),
        }
    }

    fn reader(&self) -> Result<Arc<File>> {
        let mut reader = locked(&self.reader);
        if reader.is_none() {
            *reader = Some(Arc::new(File::open(&self.path)?));
        }
        Ok(reader.as_ref().expect("it was opened").clone())
    }

    /// Closes the handles of the writer. A read opens the file again.
    pub fn rest(&self) {
        drop(self.writers.write().unwrap_or_else(PoisonError::into_inner).take());
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
        Ok(Self::part(Arc::new(Files::new(file, path)?), path.into(), 0, bytes))
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
        self.files.write(|writers| {
            let file = if durable { &writers.stable } else { &writers.other };
            Ok(file.write_at(data, self.start + offset)?)
        })
    }

    fn sync(&self) -> Result<()> {
        self.files.write(|writers| Ok(writers.stable.sync_data()?))
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let at = self.start + offset;
        match self.files.read_at(into, at)? == into.len() {
            true => Ok(()),
            false => Err(Error::corrupt(&self.path, offset, "the file ends there")),
        }
    }
}
