//! The journal of a file system, for the shared flush of its files.

use super::ring::RingFile;
use crate::rules::flush::Reach;
use crate::sys::journal::JournalFile;
use std::fmt::Debug;
use std::io;
use std::os::fd::AsFd;

/// The journal of a file system. A file of its own takes part in it, so the times and the locks of
/// the caller's files stay as they are.
pub(crate) trait Journal: Debug + Send + Sync {
    /// Adds a change to the journal.
    fn join(&self) -> io::Result<()>;
    /// Flushes the device. If a change has joined, commits it before, and all changes of all files
    /// that came before it.
    fn commit(&self) -> io::Result<()>;
    /// Returns whether each commit until now was one of all files.
    fn commits_all(&self) -> io::Result<bool>;
    /// The least reach of a shared flush whose failure the kernel reports.
    fn least_reach(&self) -> Reach {
        Reach::Device
    }
    /// The file whose fsync commits, for a ring.
    fn ring_file(&self) -> RingFile<'_>;
}

impl Journal for JournalFile {
    fn join(&self) -> io::Result<()> {
        self.touch()
    }

    fn commit(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self)?)
    }

    fn commits_all(&self) -> io::Result<bool> {
        self.commits_fast().map(|fast| !fast)
    }

    fn least_reach(&self) -> Reach {
        if self.reports_flushes() { Reach::Device } else { Reach::FileSystem }
    }

    fn ring_file(&self) -> RingFile<'_> {
        RingFile::Descriptor(self.as_fd())
    }
}
