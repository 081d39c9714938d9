//! For `dioxide-preload` only: flushes of the kernel's own calls, in the ledger of the engine's.
//!
//! A program under the preload library syncs some files by the engine and others by the kernel. Both lie on the
//! same disks, so a flush that fails in one loses what the other wrote.

use crate::engine::os_kind;
use crate::engine::process::{self, FileSystems, Process, may_be_a_failed_flush};
use crate::error::{Error, Operation};
use crate::sys;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

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

    /// Performs a call that flushes. EIO if it succeeds and a flush beside it failed, or one before it. A failure
    /// of its own wedges the file system; `name` names the file then.
    pub fn flushing(
        &self,
        name: impl FnOnce() -> PathBuf,
        perform: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.0.flushing(perform, |error| blamed(name, error))
    }

    /// A call that flushes has failed, and was not performed by [`flushing`](Self::flushing).
    pub fn blame(&self, name: impl FnOnce() -> PathBuf, error: &io::Error) {
        if let Some(cause) = blamed(name, error) {
            self.0.wedge(cause);
        }
    }
}

impl PartialEq for FileSystem {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// Whether a file system was ever wedged in this process, or in its parent before the fork. One load.
pub fn any_was_wedged() -> bool {
    process::any_was_wedged()
}

fn blamed(name: impl FnOnce() -> PathBuf, error: &io::Error) -> Option<Arc<Error>> {
    may_be_a_failed_flush(error)
        .then(|| Arc::new(Error::new(Operation::Flush, &name().into(), None, os_kind(error))))
}
