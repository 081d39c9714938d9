//! A storage backend for [redb](https://docs.rs/redb) 4 on dioxide: O_DIRECT, without the page
//! cache, and the pages of a commit in one batch.
//!
//! ```no_run
//! use dioxide_redb::DioxideBackend;
//! use redb::Database;
//!
//! let database = Database::builder().create_with_backend(DioxideBackend::open("data.redb")?)?;
//! # Ok::<(), redb::DatabaseError>(())
//! ```
//!
//! The file is an ordinary file of redb at any time, also after a crash: redb's own backend opens
//! it, and the other way round.
//!
//! redb writes a page at a time. The pages wait in memory, and a commit writes them with many
//! requests in flight: see [`dioxide_write_behind`]. A kill of the program loses pages of
//! transactions that are not committed.

#![forbid(unsafe_code)]

use dioxide::{ErrorKind, File, Growth, OpenOptions};
use dioxide_write_behind::WriteBehind;
use redb::{BackendError, DatabaseError, StorageBackend, StorageError};
use std::fs::TryLockError;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

/// A file of redb on dioxide.
#[derive(Debug)]
pub struct DioxideBackend(RwLock<Option<Open>>);

/// The file, and the lock that redb's own backend takes.
#[derive(Debug)]
struct Open {
    // First: the lock is released after the file is closed.
    file: WriteBehind,
    lock: Option<std::fs::File>,
}

impl DioxideBackend {
    /// Opens the file, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// [`DatabaseError::DatabaseAlreadyOpen`] if this process or another one has it open, with this
    /// backend or redb's own. Or the error of dioxide.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DatabaseError> {
        let path = path.as_ref();
        // Handles of dioxide in one process share a file, so its own lock does not keep out a
        // second database of this process.
        let lock = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(storage)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DatabaseError::DatabaseAlreadyOpen),
            Err(TryLockError::Error(error)) => return Err(storage(error)),
        }
        // redb sets the length itself, and never writes beyond it.
        let opened = OpenOptions::new().write(true).create(true).growth(Growth::None).open(path);
        let file = opened.and_then(WriteBehind::try_from).map_err(|error| match error.kind() {
            ErrorKind::Locked => DatabaseError::DatabaseAlreadyOpen,
            _ => storage(error.into()),
        })?;
        Ok(Self::of(Open { file, lock: Some(lock) }))
    }

    fn of(open: Open) -> Self {
        Self(RwLock::new(Some(open)))
    }

    fn with<T>(&self, call: impl FnOnce(&WriteBehind) -> io::Result<T>) -> io::Result<T> {
        let open = self.0.read().unwrap_or_else(PoisonError::into_inner);
        call(&open.as_ref().ok_or_else(|| io::Error::other("the database was closed"))?.file)
    }
}

/// For files that another part of the program opened, such as those of `dioxide::sim`. No lock
/// keeps out a second database of this process.
impl TryFrom<File> for DioxideBackend {
    type Error = dioxide::Error;

    fn try_from(file: File) -> dioxide::Result<Self> {
        Ok(Self::of(Open { file: file.try_into()?, lock: None }))
    }
}

fn storage(error: io::Error) -> DatabaseError {
    DatabaseError::Storage(StorageError::Io(error))
}

impl StorageBackend for DioxideBackend {
    fn len(&self) -> io::Result<u64> {
        self.with(WriteBehind::len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.with(|file| file.read_at(out, offset))? < out.len() {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(()),
        }
    }

    /// Durable on return.
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|file| file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(WriteBehind::sync_data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|file| file.write_at(data, offset))
    }

    fn close(&self) -> io::Result<()> {
        let open = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        open.map_or(Ok(()), |Open { file, lock }| {
            let closed = file.close();
            drop(lock);
            closed
        })
    }

    // The whole file is locked from open to close, so redb takes the mode of one process.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        whole(start, end).map(|()| true)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        whole(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        whole(start, end).map(|()| true)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        whole(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        whole(start, end)
    }
}

fn whole(start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
    match (start, end) {
        (Bound::Unbounded | Bound::Included(0), Bound::Unbounded) => Ok(()),
        _ => Err(BackendError::Unsupported),
    }
}
