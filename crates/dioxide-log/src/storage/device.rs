//! A log on a block device or a striped volume of devices: the segments lie one behind the other,
//! and their number is fixed.

use super::file::{FileSegment, Files, Writers};
use super::{Segment, Storage};
use crate::error::{Error, Result};
use crate::format::header::{CHECKSUM_AT, Found, Header, may_be_header};
use crate::format::{BLOCK_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::locked::locked;
use crate::per_process::PerProcess;
use dioxide::text::shown;
use dioxide::{Buffer, ErrorKind, File, OpenOptions, Owner};
use std::collections::BTreeSet;
use std::iter;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard};

/// The start of a device that must be zeros for a new log. File systems, volume managers and
/// partition tables have their marks there.
const ZEROS_BYTES: u64 = 1 << 20;

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
    /// Whether there is a log.
    is_used: AtomicBool,
    /// Only for the one writer.
    claim: Mutex<Option<Claim>>,
}

/// A device that this process writes a log to. The kernel refuses other processes, and not another
/// [`File`] of this one.
#[derive(Debug)]
struct Claim {
    number: u64,
    owner: Owner,
}

static CLAIMED: PerProcess<Mutex<BTreeSet<u64>>> = PerProcess::new();

fn claimed() -> MutexGuard<'static, BTreeSet<u64>> {
    locked(CLAIMED.get())
}

impl Claim {
    fn new(path: &Path) -> Result<Self> {
        let metadata = path.metadata().map_err(|error| Error::system("open", path, error))?;
        let number = metadata.rdev();
        match claimed().insert(number) {
            true => Ok(Self { number, owner: Owner::current() }),
            false => Err(Error::Locked { path: path.into() }),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.owner.is_current() {
            claimed().remove(&self.number);
        }
    }
}

impl Device {
    /// Opens a device for the one writer.
    pub(crate) fn open(path: &Path, segment_bytes: u64) -> Result<Self> {
        let claim = Claim::new(path)?;
        let file = OpenOptions::new().write(true).open(path);
        let file = file.map_err(|error| match error.kind() {
            ErrorKind::Busy(_) => Error::Locked { path: path.into() },
            _ => error.into(),
        })?;
        let device = Self::new(file, path, segment_bytes)?;
        Ok(Self { claim: Mutex::new(Some(claim)), ..device })
    }

    /// Takes an open device or volume. A log that is there decides the size of segments. Otherwise
    /// the first MiB must be zeros, and `segment_bytes` decides. It is for the caller to write only
    /// one log. The file stays open as long as the log or a reader of it is in use.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the device has other content, [`Error::Options`] if it is too small,
    /// or the error of a read.
    pub fn new(file: File, path: &Path, segment_bytes: u64) -> Result<Self> {
        let length = file.len()?;
        if length < 2 * SEGMENT_BYTES_MIN {
            let reason = format!("a log needs two segments, and the device has {length} bytes");
            return Err(Error::Options(format!("{}: {reason}", shown(path))));
        }
        let mut first = Buffer::zeroed(ZEROS_BYTES.min(length) as usize);
        file.read_at(&mut first, 0)?;
        let content = first.iter().position(|byte| *byte != 0);
        let found = match may_be_header(&first) {
            true => found_bytes(&file, length)?,
            // An older log may have headers behind.
            false => None,
        };
        let content = content.filter(|_| !is_torn_creation(&first));
        if let (Some(at), None) = (content, found) {
            let reason = "neither a log nor zeros (clear the first MiB to make a new log)";
            return Err(Error::corrupt(path, at as u64, reason));
        }
        let segment_bytes = found.unwrap_or(segment_bytes);
        let count = length / segment_bytes;
        if count < 2 {
            let reason = format!("a log needs two segments of {segment_bytes} bytes");
            return Err(Error::Options(format!("{}: {reason}", shown(path))));
        }
        let files = Arc::new(Files::new(&file, path)?);
        let (is_used, claim) = (AtomicBool::new(found.is_some()), Mutex::default());
        Ok(Self { path: path.into(), files, segment_bytes, count, is_used, claim })
    }

    fn segment(&self, number: u64) -> Arc<dyn Segment> {
        let path = format!("{}#{number}", self.path.display()).into();
        let (start, bytes) = (number * self.segment_bytes, self.segment_bytes);
        Arc::new(FileSegment::part(self.files.clone(), path, start, bytes))
    }

    /// Overwrites the headers that an older log may have left.
    fn erase_headers(&self) -> Result<()> {
        let zeros = Buffer::zeroed(BLOCK_BYTES as usize);
        let mut block = zeros.clone();
        let starts = (0..self.count).map(|number| number * self.segment_bytes);
        self.files.write(|Writers { stable, other }| {
            for offset in starts.chain(header_offsets(self.count * self.segment_bytes)) {
                other.read_at(&mut block, offset)?;
                if Header::parse(&block) != Found::Blank {
                    other.write_at(&zeros, offset)?;
                }
            }
            Ok(stable.sync_data()?)
        })
    }
}

/// Whether the creation of a log was interrupted: only a part of its first header is there.
fn is_torn_creation(first: &[u8]) -> bool {
    let (block, behind) = first.split_at(BLOCK_BYTES as usize);
    if let Found::Version(_) = Header::parse(block) {
        return false;
    }
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    is_zero(behind) && (may_be_header(block) || is_zero(&block[..CHECKSUM_AT]))
}

/// The offsets of the first two segments, for every size of segments.
fn header_offsets(length: u64) -> impl Iterator<Item = u64> {
    let sizes = iter::successors(Some(SEGMENT_BYTES_MIN), |size| Some(2 * size));
    let sizes = sizes.take_while(|size| *size <= SEGMENT_BYTES_MAX);
    iter::once(0).chain(sizes).take_while(move |offset| offset + BLOCK_BYTES <= length)
}

/// The size of segments that a header on the device names.
fn found_bytes(file: &File, length: u64) -> Result<Option<u64>> {
    let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
    // The first segment is the first to be used, so its header is there, or was torn. The second
    // was used before the first was used again.
    for offset in header_offsets(length) {
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
        let count = if self.is_used.load(Acquire) { self.count } else { 0 };
        Ok((0..count).map(|number| self.segment(number)).collect())
    }

    fn segment_bytes(&self, _bytes: u64) -> u64 {
        self.segment_bytes
    }

    fn create(&self, _bytes: u64) -> Result<Arc<dyn Segment>> {
        if self.is_used.load(Acquire) {
            return Err(Error::DeviceFull(self.count as usize));
        }
        self.erase_headers()?;
        self.is_used.store(true, Release);
        Ok(self.segment(0))
    }

    fn fixed_count(&self) -> Option<usize> {
        Some(self.count as usize)
    }

    fn remove(&self, _segment: &dyn Segment) -> Result<()> {
        Ok(())
    }

    fn release(&self) {
        let claim = locked(&self.claim).take();
        // Without a claim it may be a volume, which readers cannot open by the path.
        if let Some(claim) = claim {
            self.files.rest();
            drop(claim);
        }
    }
}
