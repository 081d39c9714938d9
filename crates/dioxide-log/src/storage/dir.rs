//! A log in a directory. Each segment is a file of fixed size, filled with zeros before its first
//! use. A file keeps its name for ever, so no use of it changes the directory.

use super::{Mark, Segment, Storage, file};
use crate::error::{Error, Result};
use dioxide::{Durability, File, OpenOptions};
use rustix::fs::FlockOperation;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

const SEGMENT_PREFIX: &str = "segment-";
/// A segment that is being filled with zeros.
const UNFINISHED: &str = "unfinished";
/// The lock of the writer.
const LOCK: &str = "lock";
/// How far the log is stable.
const MARK: &str = "mark";

/// A directory with the segments of a log.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    /// Open and locked, for a writer.
    lock: Mutex<Option<fs::File>>,
    /// The process that has the lock. A child has the open file as well.
    process: u32,
    /// The number in the next new name.
    next_name: AtomicU64,
    /// The file of the mark. Open once it was used.
    mark: Mutex<Option<fs::File>>,
    has_warned: AtomicBool,
}

impl Dir {
    /// Opens a directory for the one writer, and creates it if `create` is set.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if there is another writer, [`Error::Missing`] if there is no directory,
    /// or the kernel's error.
    pub fn open(path: &Path, create: bool) -> Result<Self> {
        let missing = !path.exists();
        if missing && !create {
            return Err(Error::Missing { path: path.into() });
        }
        if missing {
            create_dirs(path)?;
        }
        let lock = open_lock(&path.join(LOCK))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            match error {
                rustix::io::Errno::WOULDBLOCK => Error::Locked { path: path.into() },
                error => Error::system("lock", path, error),
            }
        })?;
        remove_if_there(&path.join(UNFINISHED))?;
        let dir = Self::new(path, Some(lock));
        let next = dir.names()?.into_iter().map(|(number, _)| number + 1).max();
        dir.next_name.store(next.unwrap_or(0), Relaxed);
        Ok(dir)
    }

    /// Opens a directory for a reader, which may run beside the writer.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] if there is no directory, or the kernel's error.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Err(Error::Missing { path: path.into() });
        }
        Ok(Self::new(path, None))
    }

    fn new(path: &Path, lock: Option<fs::File>) -> Self {
        let (lock, process) = (Mutex::new(lock), std::process::id());
        let (next_name, mark, has_warned) = Default::default();
        Self { path: path.into(), lock, process, next_name, mark, has_warned }
    }

    /// Uses the file of the mark, and opens it if that was not done.
    fn with_mark<R>(
        &self,
        options: &fs::OpenOptions,
        with: impl FnOnce(&fs::File) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        if mark.is_none() {
            *mark = Some(options.open(self.path.join(MARK))?);
        }
        with(mark.as_ref().expect("it was opened"))
    }

    /// The numbers and paths of the segments.
    fn names(&self) -> Result<Vec<(u64, PathBuf)>> {
        let failed = |error| Error::system("list", &self.path, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(SEGMENT_PREFIX));
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                names.push((number, self.path.join(name)));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Makes a file of zeros under a name that no reader looks at.
    fn fill(&self, path: &Path, bytes: u64) -> Result<()> {
        remove_if_there(path)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).capacity(bytes);
        let file = options.open(path)?;
        file::fill(&file, bytes)?;
        Ok(file.close()?)
    }
}

impl Storage for Dir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        let mut segments = Vec::<Arc<dyn Segment>>::new();
        for (_, path) in self.names()? {
            let metadata = match fs::metadata(&path) {
                // Removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata.map_err(|error| Error::system("open", &path, error))?,
            };
            segments.push(Arc::new(SegmentFile::new(path, metadata.len())));
        }
        Ok(segments)
    }

    fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>> {
        let unfinished = self.path.join(UNFINISHED);
        let number = self.next_name.fetch_add(1, Relaxed);
        let path = self.path.join(format!("{SEGMENT_PREFIX}{number:06}"));
        let made = self.fill(&unfinished, bytes).and_then(|()| {
            fs::rename(&unfinished, &path)
                .map_err(|error| Error::system("rename", &unfinished, error))?;
            sync_dir(&self.path)
        });
        if let Err(error) = made {
            // Its space is needed. The error of the first failure counts.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        Ok(Arc::new(SegmentFile::new(path, bytes)))
    }

    fn remove(&self, segment: &dyn Segment) -> Result<()> {
        segment.rest()?;
        remove_if_there(segment.path())
    }

    fn publish(&self, mark: Mark) {
        let write = |file: &fs::File| file.write_all_at(&mark.encode(), 0);
        let mut options = fs::OpenOptions::new();
        if let Err(error) = self.with_mark(options.read(true).write(true).create(true), write)
            && !self.has_warned.swap(true, Relaxed)
        {
            log::warn!("{}: the readers of other processes wait: {error}", self.path.display());
        }
    }

    fn mark(&self) -> Result<Option<Mark>> {
        let mut bytes = [0; Mark::BYTES];
        let read = |file: &fs::File| file.read_exact_at(&mut bytes, 0);
        match self.with_mark(fs::OpenOptions::new().read(true), read) {
            Ok(()) => Ok(Mark::decode(&bytes)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => Ok(None),
                _ => Err(Error::system("read", &self.path.join(MARK), error)),
            },
        }
    }

    fn release(&self) {
        if self.process != std::process::id() {
            return;
        }
        if let Some(lock) = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Closing it would do, unless a child has it.
            let _ = rustix::fs::flock(&lock, FlockOperation::Unlock);
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        self.release();
    }
}

/// A file, and the handles that were needed so far.
#[derive(Debug)]
struct SegmentFile {
    path: PathBuf,
    bytes: u64,
    handles: Mutex<Handles>,
}

#[derive(Debug, Default)]
struct Handles {
    /// Its writes are stable on return, and through the other they are not.
    writers: Option<(Arc<File>, Arc<File>)>,
    reader: Option<Arc<File>>,
}

impl SegmentFile {
    fn new(path: PathBuf, bytes: u64) -> Self {
        Self { path, bytes, handles: Mutex::default() }
    }

    fn with_handles<R>(&self, with: impl FnOnce(&mut Handles) -> R) -> R {
        with(&mut self.handles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn writer(&self, durable: bool) -> Result<Arc<File>> {
        self.with_handles(|handles| {
            if handles.writers.is_none() {
                let mut options = OpenOptions::new();
                options.write(true).durability(Durability::EveryWrite);
                // Its size does not change.
                options.growth(dioxide::Growth::None);
                let stable = options.open(&self.path)?;
                let other = stable.try_clone_as(Durability::OnSync)?;
                handles.writers = Some((Arc::new(stable), Arc::new(other)));
            }
            let (stable, other) = handles.writers.as_ref().expect("they were opened");
            Ok(if durable { stable.clone() } else { other.clone() })
        })
    }

    fn reader(&self) -> Result<Arc<File>> {
        self.with_handles(|handles| {
            if let Some((writer, _)) = &handles.writers {
                return Ok(writer.clone());
            }
            if handles.reader.is_none() {
                handles.reader = Some(Arc::new(File::open(&self.path)?));
            }
            Ok(handles.reader.as_ref().expect("it was opened").clone())
        })
    }
}

impl Segment for SegmentFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        Ok(self.writer(durable)?.write_at(data, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.writer(true)?.sync_data()?)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let read = self.reader()?.read_at(into, offset)?;
        match read == into.len() {
            true => Ok(()),
            false => {
                let reason = format!("the file is shorter than its {} bytes", self.bytes);
                Err(Error::corrupt(&self.path, offset + read as u64, reason))
            }
        }
    }

    fn was_read(&self) {
        drop(self.with_handles(|handles| handles.reader.take()));
    }

    fn rest(&self) -> Result<()> {
        let Handles { writers, reader: _ } = self.with_handles(std::mem::take);
        if let Some((stable, other)) = writers {
            drop(other);
            // A read that still runs closes it otherwise.
            if let Ok(file) = Arc::try_unwrap(stable) {
                file.close()?;
            }
        }
        Ok(())
    }
}

fn open_lock(path: &Path) -> Result<fs::File> {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| Error::system("open", path, error))
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::system("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Makes a directory and those above it that are missing. Their names are stable on return.
fn create_dirs(path: &Path) -> Result<()> {
    let missing = path.ancestors().take_while(|dir| *dir != Path::new("") && !dir.exists());
    let missing: Vec<_> = missing.collect();
    fs::create_dir_all(path).map_err(|error| Error::system("create", path, error))?;
    missing.into_iter().rev().try_for_each(|dir| {
        let above = dir.parent().filter(|dir| *dir != Path::new(""));
        sync_dir(above.unwrap_or(Path::new(".")))
    })
}

/// Makes the names of a directory stable.
fn sync_dir(path: &Path) -> Result<()> {
    fs::File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::system("sync", path, error))
}
