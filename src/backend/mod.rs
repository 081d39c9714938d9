//! What the engine asks of the system below it. Backends are dumb: they do one thing at a time and say what
//! came of it. Retries, short transfers and what an error means live in the engine.

mod hands;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod null;
pub(crate) mod ring;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod sim;
pub(crate) mod striped;
pub(crate) mod syscall;
#[allow(unsafe_code)]
pub(crate) mod uring;

use crate::buffer::Segment;
use crate::merge::Refusals;
use crate::recovery::Extent;
use crate::sync::JoinHandle;
use crate::sys::lease::Lease;
use smallvec::SmallVec;
use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

/// Work for another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// What became of the writes of a file that a map divides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// All requests that wrote data, if they are counted below.
    pub requests: Option<u64>,
    /// If not: those beyond one for each operation.
    pub more_requests: u64,
    /// Requests that wrote what it takes to find the data again.
    pub metadata_requests: u64,
    /// Why there are so many.
    pub refused: Refusals,
}

/// What is known of other openers of a file, as long as this value lives.
#[derive(Debug)]
pub enum Exclusion<'a> {
    /// No other program has the file open, and an open of it waits. There are no leases where only this process can reach it.
    Held(SmallVec<[Lease<'a>; 1]>),
    /// Another process has it open for writing: its name.
    Refused(String),
    /// Leases cannot be had, or another opener was found that is no writer elsewhere.
    Unknown,
}

impl Exclusion<'_> {
    /// Whether no other program can change the file now.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Held(leases) if leases.iter().all(Lease::is_whole))
    }
}

/// What a change by another program moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub size: u64,
    /// Seconds and nanoseconds.
    pub modified: (i64, u64),
    pub changed: (i64, u64),
}

/// The stamps of each file that holds the data.
pub type Stamps = SmallVec<[Stamp; 1]>;

/// One open file or device. All methods may be called from several threads at once.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Writes segments one behind the other, with O_DSYNC semantics if `dsync`. May be short.
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64>;
    /// Whether each write flushes, asked for or not (an O_DSYNC description).
    fn flushes_each_write(&self) -> bool {
        false
    }
    /// Reads into segments made by [`Segment::of_mut`], filling one after the other. May be short.
    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64>;
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
    /// The allocated extents that end above `from`, in order. Extents below may be among them.
    fn extents(&self, from: u64) -> io::Result<Vec<Extent>>;
    /// Gives back the space between, which then reads as zeros. The size stays.
    fn punch_hole(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
    /// Keeps other programs from opening the file, if that can be had.
    fn exclude_others(&self) -> io::Result<Exclusion<'_>> {
        Ok(Exclusion::Held(SmallVec::new()))
    }
    /// Of each file that holds the data: what a change by another program moves.
    fn stamps(&self) -> io::Result<Stamps> {
        Ok(SmallVec::new())
    }
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
    /// The file was put in order, and is not used any more: brings what holds it into order, durably, and gives it up.
    fn close(&self) -> io::Result<()> {
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
    /// The members that its calls become calls on, for rings that work on those.
    fn striped(&self) -> Option<&striped::Striped> {
        None
    }
    /// What became of its writes, if a map divides them.
    fn mapped(&self) -> Option<Mapped> {
        None
    }
    /// The simulated file that this is, if it is one, for rings that work on such.
    #[cfg(any(test, feature = "sim"))]
    fn simulated(&self) -> Option<&sim::Sim> {
        None
    }
}
