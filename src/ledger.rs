//! For `dioxide-preload` only: enters flushes of the program's own system calls in the engine's
//! ledger.
//!
//! Under the preload library, a program syncs some files through the engine and others through the
//! kernel. Both lie on the same disks, so a failed flush of one may lose data of the other.

use crate::engine::process::{self, FileSystems, Process};
use crate::error::{Error, Operation};
use crate::os_error::{self, OfWrite};
use crate::sys;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// A call of the program that flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFlush {
    /// fsync, fdatasync, syncfs.
    Sync,
    /// msync.
    SyncMapping,
    /// A durable write.
    Write,
}

impl ProgramFlush {
    /// Marks the error if a flush may have failed. The program's calls can also be invalid, or be
    /// interrupted.
    fn judged(self, error: io::Error) -> io::Error {
        let refused =
            |errnos: &[i32]| error.raw_os_error().is_some_and(|errno| errnos.contains(&errno));
        match self {
            _ if refused(&[libc::EINTR]) => error,
            // Memory that is not mapped, locked or not aligned.
            Self::SyncMapping if refused(&[libc::ENOMEM, libc::EBUSY, libc::EINVAL]) => error,
            Self::Sync | Self::SyncMapping => os_error::of_flush(error),
            // The program's write is made only once: most often the allocation found no space.
            Self::Write => match os_error::of_durable_write(error) {
                OfWrite::Judged(error) | OfWrite::Unclear(error) => error,
            },
        }
    }
}

/// The file system of an open file or directory, or an open block device.
#[derive(Clone, Debug)]
pub struct FileSystem(FileSystems);

impl FileSystem {
    /// Finds the file system of a regular file, a directory or a block device.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let (dev, through) = sys::probe::place_of(fd)?;
        Ok(Self(Process::current().file_system_as_it_is(dev, through).into()))
    }

    /// Returns whether a flush failed here, without a new mount since.
    pub fn is_wedged(&self) -> bool {
        self.0.wedged().is_some()
    }

    /// Performs a call that flushes. Returns EIO if the call succeeds, but a flush before or beside
    /// it failed. A failure of its own wedges the file system, with the `name` of the file as the
    /// cause.
    pub fn flushing(
        &self,
        call: ProgramFlush,
        name: impl FnOnce() -> PathBuf,
        perform: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.0
            .flushing(|| perform().map_err(|error| call.judged(error)), |error| cause(name, error))
    }

    /// Records a failed flush of a call that [`flushing`](Self::flushing) did not perform, on an
    /// unknown file. `again` repeats the call, where the decision depends on it.
    pub fn blame(
        &self,
        call: ProgramFlush,
        name: impl FnOnce() -> PathBuf,
        error: io::Error,
        again: impl FnOnce() -> io::Result<()>,
    ) {
        if os_error::is_no_flush(&error, again) {
            return;
        }
        let error = call.judged(error);
        if os_error::is_failed_flush(&error) {
            self.0.wedge(cause(name, &error));
        }
    }
}

impl PartialEq for FileSystem {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// Returns whether a file system was ever wedged in this process, or in its parent before the fork.
/// Costs one load.
pub fn any_was_wedged() -> bool {
    process::any_was_wedged()
}

fn cause(name: impl FnOnce() -> PathBuf, error: &io::Error) -> Arc<Error> {
    Arc::new(Error::new(Operation::Flush, &name().into(), None, os_error::kind(error)))
}
