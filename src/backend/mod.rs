//! The system operations of one file, as the engine uses them. A backend performs one call and
//! returns its result. The engine retries, resumes short transfers and judges errors.

pub(crate) mod journal;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod null;
pub(crate) mod ring;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod sim;
pub(crate) mod striped;
pub(crate) mod syscall;
mod thread_pool;
#[allow(unsafe_code)]
pub(crate) mod uring;

use crate::buffer::Segment;
use crate::rules::committed::MappedExtent;
use crate::rules::merge::Refusals;
use crate::rules::recovery::Extent;
use crate::sync::JoinHandle;
use crate::sys::lease::Lease;
use ring::{Division, Io, RingFile};
use smallvec::{SmallVec, smallvec};
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// A job for another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// Request counts of a file whose calls become several requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// All requests that wrote data, if the backend counts them.
    pub requests: Option<u64>,
    /// Without `requests`: those beyond one for each operation.
    pub more_requests: u64,
    /// Requests that wrote metadata needed to find the data.
    pub metadata_requests: u64,
    /// Why requests could not be merged.
    pub refused: Refusals,
}

/// Whether other programs can open or change a file, while this value lives.
#[derive(Debug)]
pub enum Exclusion<'a> {
    /// No other program has the file open, and an open of it waits. Empty where only this process
    /// can reach the file.
    Held(SmallVec<[Lease<'a>; 1]>),
    /// Another process has it open for writing: the name of that process.
    Refused(String),
    /// No lease is available, or the other opener is no writer in another process.
    Unknown,
}

impl Exclusion<'_> {
    /// Returns whether still no other program can change the file.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Held(leases) if leases.iter().all(Lease::is_whole))
    }
}

/// Attributes that a change by another program moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub size: u64,
    /// Modification time in seconds and nanoseconds.
    pub modified: (i64, u64),
    pub changed: (i64, u64),
}

/// The most extents of one look at the places of a file.
pub const EXTENTS_PER_LOOK: usize = 16;

/// The result of one look at the places of a file.
#[derive(Debug)]
pub struct Places {
    /// The end of the range that was looked at.
    pub end: u64,
    /// Where the file has written blocks of its own, in order.
    pub found: SmallVec<[MappedExtent; 1]>,
}

/// The stamps of each file that holds the data.
pub type Stamps = SmallVec<[Stamp; 1]>;

/// One open file or device. All methods may be called from several threads at once.
pub trait Backend: Debug + Send + Sync + 'static {
    /// Writes segments in order, with O_DSYNC semantics if `dsync`. May be short.
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64>;
    /// Returns whether each write flushes in any case (an O_DSYNC description).
    fn flushes_each_write(&self) -> bool {
        false
    }
    /// Reads into segments made by [`Segment::of_mut`], in order. May be short.
    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64>;
    /// Makes earlier writes durable (fdatasync).
    fn flush(&self) -> io::Result<()>;
    /// Makes data, size and attributes durable (fsync).
    fn sync_all(&self) -> io::Result<()>;
    /// Writes back what direct writes left in the page cache, as the kernel may do without an error
    /// (XFS: unaligned writes into shared extents). Flushes nothing.
    fn write_back(&self) -> io::Result<()> {
        Ok(())
    }
    /// The size that other processes see.
    fn physical_size(&self) -> io::Result<u64>;
    /// Allocates space that reads as zeros, and extends the file to `end` if it is shorter.
    fn allocate(&self, start: u64, end: u64) -> io::Result<()>;
    /// Converts allocated space to written zeros without a transfer, if the device supports that.
    fn write_zeroes(&self, start: u64, end: u64) -> io::Result<()>;
    /// Returns whether [`lower_floor`](Self::lower_floor) must come before a truncate to `len`.
    fn needs_lower_floor(&self, _len: u64) -> bool {
        false
    }
    /// Durably records that the file may be as short as `len`. It flushes, so the ledger must count
    /// it.
    fn lower_floor(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Sets the size.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Returns the allocated extents that end above `from`, in order. May include extents below.
    fn extents(&self, from: u64) -> io::Result<Vec<Extent>>;
    /// Writes back as [`write_back`](Self::write_back). Then looks at the first
    /// [`EXTENTS_PER_LOOK`] extents of the range.
    fn places(&self, _range: Range<u64>) -> io::Result<Places> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
    /// Deallocates the range, which then reads as zeros. The size stays.
    fn punch_hole(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
    /// Keeps other programs from opening the file, where leases are available.
    fn exclude_others(&self) -> io::Result<Exclusion<'_>> {
        Ok(Exclusion::Held(SmallVec::new()))
    }
    /// Returns the stamp of each file that holds the data.
    fn stamps(&self) -> io::Result<Stamps> {
        Ok(SmallVec::new())
    }
    /// Returns the marker, if there is one.
    fn read_marker(&self) -> io::Result<Option<Vec<u8>>>;
    /// Sets the marker.
    fn write_marker(&self, bytes: &[u8]) -> io::Result<()>;
    /// Removes the marker.
    fn remove_marker(&self) -> io::Result<()>;
    /// Free bytes on the file system, for this user.
    fn free_bytes(&self) -> io::Result<u64>;
    /// The largest size this process may give a file.
    fn size_max(&self) -> u64;
    /// Runs a job on another thread, or before it returns. The caller can join the thread, if there
    /// is one.
    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>>;
    /// Returns whether [`close`](Self::close) does anything.
    fn needs_close(&self) -> bool {
        false
    }
    /// Durably closes the members or the volume that hold the file, after its last use. The file
    /// itself is already truncated to its length.
    fn close(&self) -> io::Result<()> {
        Ok(())
    }
    /// Releases the write lock.
    fn unlock(&self);
    /// The descriptor for inspecting the file.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// The descriptors of the files that hold the data, in member order.
    fn members(&self) -> SmallVec<[BorrowedFd<'_>; 1]> {
        smallvec![self.descriptor()]
    }
    /// The chunk size of a striped volume, in bytes.
    fn chunk_bytes(&self) -> Option<u64> {
        None
    }
    /// The files on which a ring is faster than calls; empty if calls are faster.
    fn ring_files(&self) -> SmallVec<[RingFile<'_>; 1]> {
        SmallVec::new()
    }
    /// Divides a call into requests to its ring files.
    fn divide(&self, io: Io) -> Division {
        Division::Whole(io)
    }
    /// Returns the request counts, where they exceed the calls or are counted here.
    fn request_counts(&self) -> RequestCounts {
        RequestCounts::default()
    }
}
