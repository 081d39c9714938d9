//! A log on a block device or a striped volume of devices: the segments lie one behind the other,
//! and their number is fixed.

use super::{Segment, Storage};
use crate::error::{Error, Result};
use crate::format::header::{Found, Header};
use crate::format::{BLOCK_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use dioxide::{Buffer, Durability, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether a path names a block device.
pub(crate) fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// A device with the segments of a log.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    files: Arc<Files>,
    segment_bytes: u64,
    count: u64,
}

/// Handles of one device. Writes through the first are stable on return.
#[derive(Debug)]
struct Files {
    stable: File,
    other: File,
}

impl Device {
    /// Takes an open device or volume. A log that is there decides the size of segments. Otherwise
    /// the first block must be zeros, and `segment_bytes` decides.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the device has other content, [`Error::Options`] if it is too small,
    /// or the error of a read.
    pub fn new(file: File, path: &Path, segment_bytes: u64) -> Result<Self> {
        let stable = file.try_clone_as(Durability::EveryWrite)?;
        let other = file.try_clone_as(Durability::OnSync)?;
        let length = file.len()?;
        let found = found_bytes(&file, length)?;
        let mut first = Buffer::zeroed(BLOCK_BYTES as usize);
        file.read_at(&mut first, 0)?;
        if found.is_none() && Header::parse(&first) != Found::Blank {
            let reason = "neither a log nor zeros";
            return Err(Error::corrupt(path, 0, reason));
        }
        let segment_bytes = found.unwrap_or(segment_bytes);
        let count = length / segment_bytes;
        if count < 2 {
            let reason = format!("a log needs two segments of {segment_bytes} bytes");
            return Err(Error::Options(format!("{}: {reason}", path.display())));
        }
        let files = Arc::new(Files { stable, other });
        Ok(Self { path: path.into(), files, segment_bytes, count })
    }
}

/// The size of segments that a header on the device names. Each size puts its headers elsewhere.
fn found_bytes(file: &File, length: u64) -> Result<Option<u64>> {
    let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
    // The first segment is the first to be used, so its header is there, or was torn.
    let mut offsets = vec![0];
    let mut size = SEGMENT_BYTES_MIN;
    while size <= SEGMENT_BYTES_MAX && size + BLOCK_BYTES <= length {
        offsets.push(size);
        size *= 2;
    }
    for offset in offsets {
        file.read_at(&mut block, offset)?;
        if let Found::Header(header) = Header::parse(&block)
            && offset.is_multiple_of(header.segment_bytes)
        {
            return Ok(Some(header.segment_bytes));
        }
    }
    Ok(None)
}

impl Storage for Device {
    fn path(&self) -> &Path {
        &self.path
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        let part = |number| Part {
            files: self.files.clone(),
            path: format!("{}#{number}", self.path.display()).into(),
            start: number * self.segment_bytes,
            bytes: self.segment_bytes,
        };
        Ok((0..self.count).map(|number| Arc::new(part(number)) as Arc<dyn Segment>).collect())
    }

    fn create(&self, _bytes: u64) -> Result<Arc<dyn Segment>> {
        Err(Error::DeviceFull(self.count as usize))
    }

    fn is_fixed(&self) -> bool {
        true
    }

    fn remove(&self, _segment: &dyn Segment) -> Result<()> {
        Ok(())
    }
}

/// A part of the device.
#[derive(Debug)]
struct Part {
    files: Arc<Files>,
    path: PathBuf,
    start: u64,
    bytes: u64,
}

impl Segment for Part {
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
            false => Err(Error::corrupt(&self.path, offset, "the device ends there")),
        }
    }
}
