//! The backend of one file of a volume.

use super::node::Node;
use super::volumes::Held;
use crate::backend::{Backend, Job, RequestCounts};
use crate::buffer::Segment;
use crate::os_error;
use crate::rules::merge::Refusals;
use crate::rules::recovery::Extent;
use crate::stats::count;
use crate::sync::Mutex;
use crate::sync::{self, JoinHandle};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module.
#[derive(Debug)]
pub(crate) struct Within {
    node: Arc<Node>,
    /// Until it is put away.
    held: Mutex<Option<Held>>,
    /// Those that came so far, and the requests that they became.
    writes: AtomicU64,
    data_requests: AtomicU64,
    metadata_requests: AtomicU64,
}

impl Within {
    pub fn new(node: Arc<Node>, held: Held) -> Self {
        Self {
            node,
            held: Mutex::new(Some(held)),
            writes: AtomicU64::new(0),
            data_requests: AtomicU64::new(0),
            metadata_requests: AtomicU64::new(0),
        }
    }

    /// The blocks of the file at these bytes, which are whole ones.
    fn blocks(&self, offset: u64, bytes: u64) -> io::Result<Range<u64>> {
        let block_bytes = self.node.volume.geometry.block_bytes;
        if !offset.is_multiple_of(block_bytes) || !bytes.is_multiple_of(block_bytes) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // A file of the largest size may end in a block that goes beyond.
        let max = self.size_max().next_multiple_of(block_bytes);
        let end = offset.checked_add(bytes).filter(|end| *end <= max);
        let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EFBIG))?;
        Ok(offset / block_bytes..end / block_bytes)
    }

    fn read_part(&self, into: &mut [u8], offset: u64) -> io::Result<u64> {
        let block_bytes = self.node.volume.geometry.block_bytes;
        let end = self.node.size().next_multiple_of(block_bytes);
        let bytes = end.saturating_sub(offset).min(into.len() as u64);
        let blocks = self.blocks(offset, bytes)?;
        self.node.read(&mut into[..bytes as usize], blocks.start)?;
        Ok(bytes)
    }

    /// In the child of a fork, a thread that is not there may hold the locks for ever.
    fn check_process(&self) -> io::Result<()> {
        match self.node.volume.process.is_current() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }
}

impl Backend for Within {
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64> {
        self.node.volume.check_usable()?;
        let bytes = segments.iter().map(Segment::len).sum();
        let blocks = self.blocks(offset, bytes)?;
        count(&self.writes, 1);
        // It carries no flush of the image: that is a step of its own.
        self.node.write(segments, blocks, &self.data_requests).map_err(os_error::of_step)?;
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
        self.node.sync(false, &self.metadata_requests).map_err(os_error::of_step)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.node.sync(true, &self.metadata_requests).map_err(os_error::of_step)
    }

    fn physical_size(&self) -> io::Result<u64> {
        self.check_process()?;
        Ok(self.node.size())
    }

    fn allocate(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn write_zeroes(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.node.volume.check_usable()?;
        self.node.truncate(len)
    }

    fn extents(&self, _from: u64) -> io::Result<Vec<Extent>> {
        let block_bytes = self.node.volume.geometry.block_bytes;
        let mut start = 0;
        let mut extents = Vec::new();
        for run in self.node.runs(0..self.node.size().div_ceil(block_bytes))? {
            let end = start + run.blocks * block_bytes;
            if run.at.is_some() {
                extents.push(Extent { start, end, written: true });
            }
            start = end;
        }
        Ok(extents)
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
        self.node.volume.free_bytes()
    }

    fn size_max(&self) -> u64 {
        self.node.volume.file_bytes_max()
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
        // Still there: it was not put away, so the volume cannot be, either.
        if let Some(held) = self.held.lock().take() {
            self.node.volume.give_up(format!("inode {} could not be closed", self.node.number));
            drop(held);
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.node.volume.image().descriptor()
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
