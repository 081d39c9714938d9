//! A file system for [raft-engine](https://docs.rs/raft-engine) 0.4 on dioxide.
//!
//! ```no_run
//! use dioxide_raft_engine::DioxideFileSystem;
//! use raft_engine::{Config, Engine};
//! use std::sync::Arc;
//!
//! let config = Config { dir: "raft".into(), ..Config::default() };
//! let engine = Engine::open_with_file_system(config, Arc::new(DioxideFileSystem::default()))?;
//! # Ok::<(), raft_engine::Error>(())
//! ```
//!
//! Batches are appends into space that dioxide zeroed ahead, or into the space of a file that
//! raft-engine reuses. A flush then needs no journal commit. raft-engine's own allocation does
//! nothing.
//!
//! raft-engine panics if a flush fails, but handles a full disk in a write. So a write waits in
//! memory for its flush only if the space ahead has room for it. See [`dioxide_write_behind`].

#![forbid(unsafe_code)]

use dioxide::{ErrorKind, File, Growth, OpenOptions};
use dioxide_write_behind::WriteBehind;
use raft_engine::env::{FileSystem, Handle, Permission, WriteExt};
use rustix::fs::fstat;
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Opens the files of raft-engine with dioxide. Give each engine one of its own: a new file of one
/// engine frees the space ahead of the others.
#[derive(Debug, Default)]
pub struct DioxideFileSystem {
    /// Files that raft-engine reuses, until it opens them: closing would free their space.
    reused: Mutex<HashMap<PathBuf, LogFile>>,
    /// Open files that may have space ahead.
    written: Mutex<Vec<(PathBuf, Weak<WriteBehind>)>>,
}

/// A file of raft-engine.
#[derive(Debug)]
pub struct LogFile(Arc<WriteBehind>);

/// A position in a [`LogFile`], to read or write at.
#[derive(Debug)]
pub struct Cursor {
    file: Arc<LogFile>,
    offset: u64,
}

/// For writing, with space that is zeroed ahead. raft-engine finds the end of its records itself.
fn writable() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).growth(Growth::Zeroed);
    options
}

impl DioxideFileSystem {
    fn take_reused(&self, path: &Path) -> Option<LogFile> {
        lock(&self.reused).remove(path)
    }

    fn track(&self, path: &Path, file: File) -> io::Result<LogFile> {
        let file = Arc::new(WriteBehind::try_from(file)?);
        lock(&self.written).push((path.to_owned(), Arc::downgrade(&file)));
        Ok(LogFile(file))
    }

    /// Gives the earlier files of a queue their exact length, before the next file of the queue is
    /// made. raft-engine accepts a broken tail in the last file only, and a crash leaves zeros in
    /// the space ahead. The name of a queue is the extension.
    ///
    /// A queue may have a second directory. A file there may also be of another engine, which still
    /// writes it.
    fn finish_before(&self, next: &Path) -> io::Result<()> {
        let is_of_queue = |path: &Path| path.extension() == next.extension();
        let earlier = self.tracked(is_of_queue);
        earlier.iter().try_for_each(|file| file.trim())?;
        // Only now: a trim that failed is repeated before the next file.
        let is_trimmed = |file| earlier.iter().any(|trimmed| Arc::as_ptr(trimmed) == file);
        lock(&self.written).retain(|(path, file)| {
            let is_done = path.parent() == next.parent() && is_trimmed(file.as_ptr());
            !is_done && file.strong_count() > 0
        });
        Ok(())
    }

    /// The open files whose path is such.
    fn tracked(&self, is_such: impl Fn(&Path) -> bool) -> Vec<Arc<WriteBehind>> {
        let written = lock(&self.written);
        let files = written.iter().filter(|(path, _)| is_such(path));
        files.filter_map(|(_, file)| file.upgrade()).collect()
    }
}

impl FileSystem for DioxideFileSystem {
    type Handle = LogFile;
    type Reader = Cursor;
    type Writer = Cursor;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<LogFile> {
        let path = path.as_ref();
        self.finish_before(path)?;
        self.track(path, writable().create(true).open(path)?)
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<LogFile> {
        let path = path.as_ref();
        if let Some(file) = self.take_reused(path) {
            return Ok(file);
        }
        match permission {
            Permission::ReadWrite => self.track(path, writable().open(path)?),
            Permission::ReadOnly => Ok(LogFile(Arc::new(File::open(path)?.try_into()?))),
        }
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        drop(self.take_reused(path.as_ref()));
        fs::remove_file(path)
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Renames, and resets the length to 0. Where the file system overwrites in place, the space
    /// stays, with its content: a record of raft-engine names the life of the file.
    fn reuse<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.finish_before(to)?;
        // The zeros of a prefilled file may wait. A drop of its handle would write them later.
        self.tracked(|path| path == from).iter().try_for_each(|file| file.write_waiting())?;
        fs::rename(from, to)?;
        let file = writable().open(to)?;
        match file.recycle() {
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported(_)) => file.set_len(0)?,
            other => other?,
        }
        let file = self.track(to, file)?;
        lock(&self.reused).insert(to.to_owned(), file);
        Ok(())
    }

    fn new_reader(&self, file: Arc<LogFile>) -> io::Result<Cursor> {
        Ok(Cursor { file, offset: 0 })
    }

    fn new_writer(&self, file: Arc<LogFile>) -> io::Result<Cursor> {
        Ok(Cursor { file, offset: 0 })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error of a write. raft-engine knows a full disk by the word "nospace" in its message.
fn of_write(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::StorageFull => io::Error::new(kind, format!("nospace: {error}")),
        _ => error,
    }
}

impl Handle for LogFile {
    /// Durable on return.
    fn truncate(&self, offset: usize) -> io::Result<()> {
        self.0.set_len(offset as u64)
    }

    fn file_size(&self) -> io::Result<usize> {
        Ok(self.0.len()? as usize)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

impl Read for Cursor {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.0.read_at(into, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Write for Cursor {
    /// A file of raft-engine has one writer, so its end stays where it is meanwhile.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let file = &self.file.0;
        let end = self.offset + data.len() as u64;
        // Other programs see the length with the space ahead.
        let written = match end <= fstat(file.file())?.st_size as u64 {
            true => file.write_at(data, self.offset),
            false => file.write_through(data, self.offset),
        };
        written.map_err(of_write)?;
        self.offset = end;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let offset = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.offset.checked_add_signed(by),
            SeekFrom::End(by) => self.file.0.len()?.checked_add_signed(by),
        };
        self.offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}

impl WriteExt for Cursor {
    fn truncate(&mut self, offset: usize) -> io::Result<()> {
        self.file.truncate(offset)?;
        self.offset = offset as u64;
        Ok(())
    }

    fn allocate(&mut self, _offset: usize, _size: usize) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide::sim::{Call, Disk, Settings};

    #[test]
    fn raft_engine_recognizes_a_full_disk() {
        let mut settings = Settings::default();
        settings.capacity_bytes = 64 << 10;
        let disk = Disk::with(1, settings);
        let file = disk.open(writable().create(true), "file").unwrap();
        let mut cursor =
            Cursor { file: Arc::new(LogFile(Arc::new(file.try_into().unwrap()))), offset: 0 };
        cursor.write_all(&[1; 5000]).unwrap();
        let error = cursor.write_all(&[2; 100_000]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("nospace"), "{error}");
        cursor.write_all(&[3; 1000]).unwrap();
        cursor.rewind().unwrap();
        let mut read = Vec::new();
        cursor.read_to_end(&mut read).unwrap();
        assert!(read == [[1; 5000].as_slice(), &[3; 1000]].concat());
    }

    /// The defect: a trim that failed was not repeated. A crash then left zeros behind the records
    /// of a file that was not the last one, which raft-engine refuses.
    #[test]
    fn a_trim_that_failed_is_repeated() {
        let (disk, system) = (Disk::new(1), DioxideFileSystem::default());
        let opened = disk.open(writable().create(true), "file").unwrap();
        let file = system.track(Path::new("1.raftlog"), opened).unwrap();
        file.0.write_at(&[1; 5000], 0).unwrap();
        file.sync().unwrap();
        let bytes = || disk.content("file").unwrap().len();
        assert!(bytes() > 5000, "it has space ahead");
        let next = Path::new("2.raftlog");
        disk.fail(Call::Allocate, 0, 5);
        system.finish_before(next).unwrap_err();
        assert!(bytes() > 5000, "the trim failed");
        system.finish_before(next).unwrap();
        assert_eq!(bytes(), 5000);
        assert!(lock(&system.written).is_empty());
    }
}
