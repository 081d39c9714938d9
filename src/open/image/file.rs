//! The backend of one file of a volume.

use super::volumes::HeldVolume;
use super::{Data, Volume, VolumeFile};
use crate::backend::{Backend, Job, RequestCounts};
use crate::buffer::Segment;
use crate::engine::process::Process;
use crate::os_error;
use crate::rules::merge::Refusals;
use crate::rules::recovery::Extent;
use crate::stats::count;
use crate::sync::{self, JoinHandle, Mutex};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A file of a volume, as an engine uses it.
#[derive(Debug)]
pub(crate) struct InVolume {
    file: Arc<dyn VolumeFile>,
    /// Holds the volume until the file is closed.
    held: Mutex<Option<HeldVolume>>,
    volume: Arc<dyn Volume>,
    writes: AtomicU64,
    data_requests: AtomicU64,
    metadata_requests: AtomicU64,
    block_bytes: u64,
    process: &'static Process,
}

impl InVolume {
    pub fn new(file: Arc<dyn VolumeFile>, held: HeldVolume) -> Self {
        Self {
            file,
            volume: held.volume.clone(),
            block_bytes: held.volume.block_bytes(),
            process: held.process,
            held: Mutex::new(Some(held)),
            writes: AtomicU64::new(0),
            data_requests: AtomicU64::new(0),
            metadata_requests: AtomicU64::new(0),
        }
    }

    /// Checks that the bytes are whole blocks.
    fn check_blocks(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let are_whole = [offset, bytes].iter().all(|bytes| bytes.is_multiple_of(self.block_bytes));
        if are_whole { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
    }

    /// Checks that a write ends within the largest size of a file.
    fn check_end(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.size_max());
        if fits { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFBIG)) }
    }

    fn read_part(&self, into: &mut [u8], offset: u64) -> io::Result<u64> {
        // Another program may have made a file larger than a write can.
        let end = self.file.size().next_multiple_of(self.block_bytes);
        let bytes = end.saturating_sub(offset).min(into.len() as u64);
        self.check_blocks(offset, bytes)?;
        self.file.read(&mut into[..bytes as usize], offset)?;
        Ok(bytes)
    }

    /// Refuses the child of a fork: a thread that it does not have may hold the locks for ever.
    fn check_process(&self) -> io::Result<()> {
        match self.process.is_current() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }
}

impl Backend for InVolume {
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64> {
        let bytes = segments.iter().map(Segment::len).sum();
        self.check_blocks(offset, bytes)?;
        self.check_end(offset, bytes)?;
        // Never durable by itself: the flush of the image is a step of its own.
        let written = self.file.write(&Data::lent(segments), offset, &self.data_requests);
        written.map_err(os_error::of_step)?;
        count(&self.writes, 1);
        if dsync {
            self.flush()?;
        }
        Ok(bytes)
    }

    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64> {
        self.check_process()?;
        let mut done = 0;
        for segment in into {
            let read = segment.fill(|bytes| self.read_part(bytes, offset + done))?;
            done += read;
            if read < segment.len() {
                break;
            }
        }
        Ok(done)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync(false, &self.metadata_requests).map_err(os_error::of_step)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync(true, &self.metadata_requests).map_err(os_error::of_step)
    }

    fn physical_size(&self) -> io::Result<u64> {
        self.check_process()?;
        Ok(self.file.size())
    }

    fn allocate(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn write_zeroes(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn extents(&self, _from: u64) -> io::Result<Vec<Extent>> {
        let extent =
            |range: Range<u64>| Extent { start: range.start, end: range.end, written: true };
        Ok(self.file.allocated()?.into_iter().map(extent).collect())
    }

    fn read_marker(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn write_marker(&self, _bytes: &[u8]) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn remove_marker(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.volume.free_bytes()
    }

    fn size_max(&self) -> u64 {
        self.volume.file_bytes_max()
    }

    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>> {
        sync::spawn("dioxide-grow", job).map(Some)
    }

    fn needs_close(&self) -> bool {
        true
    }

    fn close(&self) -> io::Result<()> {
        match self.held.lock().take() {
            Some(held) => held.put_away(&self.metadata_requests),
            None => Ok(()),
        }
    }

    fn unlock(&self) {
        // A file that was not closed leaves the volume in doubt.
        if let Some(held) = self.held.lock().take() {
            self.volume.give_up(format!("inode {} could not be closed", self.file.number()));
            drop(held);
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.volume.image().backend().descriptor()
    }

    fn request_counts(&self) -> RequestCounts {
        let requests = self.data_requests.load(Relaxed);
        // A write becomes another request where the next block does not follow on the volume.
        let gap = requests.saturating_sub(self.writes.load(Relaxed));
        RequestCounts {
            requests: Some(requests),
            more_requests: 0,
            metadata_requests: self.metadata_requests.load(Relaxed),
            refused: Refusals { gap, ..Refusals::default() },
        }
    }
}
