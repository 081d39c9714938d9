//! What the engine asks of the system below it. Backends are dumb: they do one thing at a time and
//! say what came of it. Retries, short transfers and what an error means live in the engine.

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
use crate::rules::merge::Refusals;
use crate::rules::recovery::Extent;
use crate::sync::JoinHandle;
use crate::sys::lease::Lease;
use ring::{Division, Io, RingFile};
use smallvec::{SmallVec, smallvec};
use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

/// Work for another thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// The requests of a file whose calls become several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
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
    /// No other program has the file open, and an open of it waits. There are no leases where only
    /// this process can reach it.
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
    /// Fills allocated space with zeros as written data without transferring them, if the device
    /// can.
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
    /// Runs a job beside the caller, or before it returns. The thread, if there is one, can be
    /// waited for.
    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>>;
    /// Whether [`close`](Self::close) has something to do.
    fn needs_close(&self) -> bool {
        false
    }
    /// The file was put in order, and is not used any more: brings what holds it into order,
    /// durably, and gives it up.
    fn close(&self) -> io::Result<()> {
        Ok(())
    }
    /// Lets other processes write.
    fn unlock(&self);
    /// To inspect the file with.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// The descriptors of the files that hold the data, in their order.
    fn members(&self) -> SmallVec<[BorrowedFd<'_>; 1]> {
        smallvec![self.descriptor()]
    }
    /// The chunk, in bytes, if chunks lie on the members in turn.
    fn chunk_bytes(&self) -> Option<u64> {
        None
    }
    /// The files on which requests by a ring gain something over calls; none if calls are better.
    fn ring_files(&self) -> SmallVec<[RingFile<'_>; 1]> {
        SmallVec::new()
    }
    /// The requests to its ring files that a call becomes.
    fn divide(&self, io: Io) -> Division {
        Division::Whole(io)
    }
    /// Its requests, where they are more than the calls, or counted here.
    fn request_counts(&self) -> RequestCounts {
        RequestCounts::default()
    }
}
