//! What the engine asks of the system below it. Backends are dumb: they do one thing at a time and say what
//! came of it. Retries, short transfers and what an error means live in the engine.

#[cfg(any(test, feature = "sim"))]
pub(crate) mod null;
pub(crate) mod ring;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod sim;
pub(crate) mod syscall;
#[allow(unsafe_code)]
pub(crate) mod uring;

use crate::buffer::Segment;
use crate::recovery::Extent;
use crate::sync::JoinHandle;
use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

/// Work for another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Requests that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// What callers wrote.
    pub data: u64,
    /// What it takes to find that again.
    pub metadata: u64,
}

/// One open file or device. All methods may be called from several threads at once.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Writes segments one behind the other, with O_DSYNC semantics if `dsync`. May be short.
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64>;
    /// Reads into `into`. May be short.
    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<u64>;
    /// Makes the data written before stable (fdatasync).
    fn flush(&self) -> io::Result<()>;
    /// Makes data, size and attributes stable (fsync).
    fn sync_all(&self) -> io::Result<()>;
    /// The size that other processes see.
    fn physical_size(&self) -> io::Result<u64>;
    /// Allocates space that reads as zeros, and moves the size if it ends beyond.
    fn allocate(&self, start: u64, end: u64) -> io::Result<()>;
    /// Fills allocated space with zeros as written data without transferring them, if the device can.
    fn write_zeroes(&self, start: u64, end: u64) -> io::Result<()>;
    /// Sets the size.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// The allocated extents of the whole file, in order.
    fn extents(&self) -> io::Result<Vec<Extent>>;
    /// The marker, if there is one.
    fn read_marker(&self) -> io::Result<Option<Vec<u8>>>;
    /// Sets the marker.
    fn write_marker(&self, bytes: &[u8]) -> io::Result<()>;
    /// Removes the marker.
    fn remove_marker(&self) -> io::Result<()>;
    /// Free bytes on the file system, for this user.
    fn free_bytes(&self) -> io::Result<u64>;
    /// The largest size this process may give a file.
    fn size_max(&self) -> u64;
    /// Runs a job beside the caller, or before it returns. The thread, if there is one, can be waited for.
    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>>;
    /// Brings what holds the file into order, durably, and gives it up: the file is stable, and not used any more.
    fn put_away(&self) -> io::Result<()> {
        Ok(())
    }
    /// Lets other processes write.
    fn unlock(&self);
    /// To inspect the file with.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// The same, if requests may as well go by a ring of the kernel, and gain by it.
    fn for_ring(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The requests that went out for writes, where one write may be several.
    fn requests(&self) -> Option<Requests> {
        None
    }
    /// The simulated file that this is, if it is one, for rings that work on such.
    #[cfg(any(test, feature = "sim"))]
    fn simulated(&self) -> Option<&sim::Sim> {
        None
    }
}
