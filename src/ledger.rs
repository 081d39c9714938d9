//! For `dioxide-preload` only: flushes of the kernel's own calls, in the ledger of the engine's.
//!
//! A program under the preload library syncs some files by the engine and others by the kernel.
//! Both lie on the same disks, so a flush that fails in one loses what the other wrote.

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
pub enum Call {
    /// fsync, fdatasync, syncfs.
    Sync,
    /// msync.
    SyncMapping,
    /// A durable write.
    Write,
}

impl Call {
    /// The error, which says whether a flush may have failed. A program makes wrong calls as well,
    /// and may be interrupted.
    fn judged(self, error: io::Error) -> io::Error {
        let refused =
            |errnos: &[i32]| error.raw_os_error().is_some_and(|errno| errnos.contains(&errno));
        match self {
            _ if refused(&[libc::EINTR]) => error,
            // Memory that is not mapped, locked or not aligned.
            Self::SyncMapping if refused(&[libc::ENOMEM, libc::EBUSY, libc::EINVAL]) => error,
            Self::Sync | Self::SyncMapping => os_error::of_flush(error),
            // The program's write is made once: most often it is the allocation that found no
            // space.
            Self::Write => match os_error::of_durable_write(error) {
                OfWrite::Judged(error) | OfWrite::Unclear(error) => error,
            },
        }
    }
}

/// The file system of an open file or directory; or the device that it is.
#[derive(Clone, Debug)]
pub struct FileSystem(FileSystems);

impl FileSystem {
    /// Of a regular file, a directory or a block device.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let (dev, through) = sys::probe::place_of(fd)?;
        Ok(Self(Process::current().file_system_as_it_is(dev, through).into()))
    }

    /// Whether a flush failed here, and it was not mounted anew since.
    pub fn is_wedged(&self) -> bool {
        self.0.wedged().is_some()
    }

    /// Performs a call that flushes. EIO if it succeeds and a flush beside it failed, or one before
    /// it. A failure of its own wedges the file system; `name` names the file then.
    pub fn flushing(
        &self,
        call: Call,
        name: impl FnOnce() -> PathBuf,
        perform: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.0
            .flushing(|| perform().map_err(|error| call.judged(error)), |error| cause(name, error))
    }

    /// A call that flushes has failed, and was not performed by [`flushing`](Self::flushing), so
    /// nothing is known of the file. `again` makes the call once more, where the answer depends on
    /// that.
    pub fn blame(
        &self,
        call: Call,
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

/// Whether a file system was ever wedged in this process, or in its parent before the fork. One
/// load.
pub fn any_was_wedged() -> bool {
    process::any_was_wedged()
}

fn cause(name: impl FnOnce() -> PathBuf, error: &io::Error) -> Arc<Error> {
    Arc::new(Error::new(Operation::Flush, &name().into(), None, os_error::kind(error)))
}
