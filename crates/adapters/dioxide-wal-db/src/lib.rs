//! A store for [wal-db](https://docs.rs/wal-db) 1 on dioxide.
//!
//! ```no_run
//! use dioxide_wal_db::DioxideStore;
//! use wal_db::Wal;
//!
//! let wal = Wal::with_store(DioxideStore::open("records.wal")?)?;
//! wal.append(b"a record")?; // in memory
//! wal.sync()?; // all records that wait: one durable append
//! # Ok::<(), wal_db::WalError>(())
//! ```
//!
//! Space is allocated ahead, so a flush changes no size. See [`dioxide_write_behind`] for a kill of
//! the program. After a crash, open the log with this store: other programs see the space ahead, as
//! zeros.

#![forbid(unsafe_code)]

use dioxide::{File, OpenOptions};
use dioxide_write_behind::WriteBehind;
use std::io;
use std::path::Path;
use wal_db::{WalError, WalStore};

/// A file of wal-db on dioxide.
#[derive(Debug)]
pub struct DioxideStore(WriteBehind);

impl DioxideStore {
    /// Opens the file, and creates it if it is missing. Open a log once at a time.
    ///
    /// # Errors
    ///
    /// [`WalError::Io`] with the error of dioxide, for example if another process has it open.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WalError> {
        let file = OpenOptions::new().write(true).create(true).open(path);
        failed("opening the log file", file.and_then(Self::try_from).map_err(Into::into))
    }

    /// Writes what waits, and closes the file: then it is ordinary for other programs.
    ///
    /// # Errors
    ///
    /// [`WalError::Io`] with the error of dioxide. It is closed nevertheless.
    pub fn close(self) -> Result<(), WalError> {
        failed("closing the log file", self.0.close())
    }
}

/// For files that another part of the program opened, such as those of `dioxide::sim`.
impl TryFrom<File> for DioxideStore {
    type Error = dioxide::Error;

    fn try_from(file: File) -> dioxide::Result<Self> {
        file.try_into().map(Self)
    }
}

fn failed<T>(context: &'static str, result: io::Result<T>) -> Result<T, WalError> {
    result.map_err(|source| WalError::Io { context, source })
}

impl WalStore for DioxideStore {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), WalError> {
        failed("writing a record", self.0.write_at(bytes, offset))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, WalError> {
        failed("reading from the log", self.0.read_at(buf, offset))
    }

    /// Durable on return.
    fn truncate(&self, len: u64) -> Result<(), WalError> {
        failed("truncating the log", self.0.set_len(len))
    }

    fn sync(&self) -> Result<(), WalError> {
        failed("flushing to stable storage", self.0.sync_data())
    }

    fn len(&self) -> Result<u64, WalError> {
        failed("reading the length", self.0.len())
    }
}
