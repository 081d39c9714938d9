//! A log in a directory. Each segment is a file of fixed size, filled with zeros before its first
//! use. A file keeps its name for ever, so no use of it changes the directory. In a set it may move
//! to another log, see `pool_dir.rs`.

use super::pool_dir::PoolDir;
use super::steps::{FileSystem, Steps, StorageStep};
use super::{Mark, Segment, Storage, file, set_dir};
use crate::error::{Error, Result};
use crate::locked::locked;
use crate::per_process::PerProcess;
use dioxide::text::shown;
use dioxide::{Durability, File, OpenOptions, Owner};
use rustix::fs::FlockOperation;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

const SEGMENT_PREFIX: &str = "segment-";
/// A segment that is being filled with zeros.
const UNFINISHED: &str = "unfinished";
/// The lock of the writer.
const LOCK: &str = "lock";
/// How far the log is stable.
const MARK: &str = "mark";
/// How often the mark is read beside a writer, and the pause between.
const MARK_READS_MAX: u32 = 10;
const MARK_PAUSE: Duration = Duration::from_micros(100);
/// The number of segments of the process that stay open after reads of single records.
const READERS_MAX: usize = 64;

/// The segments that were opened for reading, the last one at the back.
static READERS: PerProcess<Mutex<VecDeque<Weak<Mutex<Handles>>>>> = PerProcess::new();

/// A directory with the segments of a log.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    /// For a writer.
    lock: Option<Lock>,
    /// Where free segments come from and go to, for a log of a set.
    pool: Option<Arc<PoolDir>>,
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
        Self::open_in(path, create, None)
    }

    /// Opens a directory whose free segments come from this pool, and go there.
    pub(crate) fn open_in(path: &Path, create: bool, pool: Option<Arc<PoolDir>>) -> Result<Self> {
        let missing = !path.exists();
        if missing && !create {
            return Err(Error::Missing { path: path.into() });
        }
        refuse_set(path)?;
        // A log with segments was opened before.
        if missing || segment_names(path)?.is_empty() {
            match &pool {
                Some(pool) => pool
                    .steps()
                    .take_all(&[StorageStep::Create(path), StorageStep::Sync(above(path))])?,
                None => create_dirs(path, &FileSystem)?,
            }
        }
        let lock = Lock::take(path, LOCK)?;
        remove_if_there(&path.join(UNFINISHED))?;
        // A process that was killed may not have synced its last names.
        match &pool {
            Some(pool) => pool.steps().take(StorageStep::Sync(path))?,
            None => sync_dir(path)?,
        }
        let next = segment_names(path)?.into_iter().map(|(number, _)| number + 1).max();
        let dir = Self { lock: Some(lock), pool, ..Self::new(path) };
        dir.next_name.store(next.unwrap_or(0), Relaxed);
        Ok(dir)
    }

    /// Opens a directory for a reader, which may run beside the writer.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] if there is no directory, or the kernel's error.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        match fs::metadata(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::system("open", path, error));
            }
            Ok(found) if found.is_dir() => {}
            _ => return Err(Error::Missing { path: path.into() }),
        }
        refuse_set(path)?;
        Ok(Self::new(path))
    }

    fn new(path: &Path) -> Self {
        let (lock, pool, next_name, mark, has_warned) = Default::default();
        Self { path: path.into(), lock, pool, next_name, mark, has_warned }
    }

    /// Uses the file of the mark, and opens it if that was not done.
    fn with_mark<R>(
        &self,
        options: &fs::OpenOptions,
        with: impl FnOnce(&fs::File) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut mark = locked(&self.mark);
        if mark.is_none() {
            *mark = Some(options.open(self.path.join(MARK))?);
        }
        with(mark.as_ref().expect("it was opened"))
    }

    /// Closes the file of the mark. False if it was not open.
    fn close_mark(&self) -> bool {
        locked(&self.mark).take().is_some()
    }

    /// Makes a segment with this first block, of zeros otherwise, unless the pool has one.
    fn make(&self, bytes: u64, head: Option<&[u8]>) -> Result<Arc<dyn Segment>> {
        let path = self.path.join(segment_name(self.next_name.fetch_add(1, Relaxed)));
        let taken = match &self.pool {
            Some(pool) => pool.take(bytes, head, &self.path, &path)?,
            None => false,
        };
        if !taken {
            self.fill(&path, bytes, head)?;
        }
        Ok(Arc::new(SegmentFile::new(path, bytes)))
    }

    /// Makes a file of zeros, first under a name that no reader looks at.
    fn fill(&self, path: &Path, bytes: u64, head: Option<&[u8]>) -> Result<()> {
        let unfinished = self.path.join(UNFINISHED);
        let made = fill(&unfinished, bytes, head).and_then(|()| {
            fs::rename(&unfinished, path)
                .map_err(|error| Error::system("rename", &unfinished, error))?;
            sync_dir(&self.path)
        });
        if made.is_err() {
            // Its space is needed. The error of the first failure counts.
            let _ = fs::remove_file(&unfinished);
            let _ = fs::remove_file(path);
        }
        made
    }
}

impl Storage for Dir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        let mut segments = Vec::<Arc<dyn Segment>>::new();
        for (_, path) in segment_names(&self.path)? {
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
        self.make(bytes, None)
    }

    fn begin(&self, bytes: u64, header: &[u8]) -> Result<Arc<dyn Segment>> {
        self.make(bytes, Some(header))
    }

    fn remove(&self, segment: &dyn Segment) -> Result<()> {
        segment.rest()?;
        match &self.pool {
            Some(pool) => pool.give(segment.path(), segment.bytes(), &self.path),
            None => remove_if_there(segment.path()),
        }
    }

    fn publish(&self, mark: Mark) {
        let write = |file: &fs::File| write_mark(file, mark);
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        let Err(error) = self.with_mark(options, write) else { return };
        if locked(&self.mark).is_none() {
            // It could not be opened, and a reader would believe the one of an earlier writer. A
            // removal needs no descriptor.
            let _ = remove_if_there(&self.path.join(MARK));
        }
        if !self.has_warned.swap(true, Relaxed) {
            log::warn!("{}: the readers of other processes wait: {error}", shown(&self.path));
        }
    }

    fn mark(&self) -> Result<Option<Mark>> {
        for _ in 0..MARK_READS_MAX {
            let mut bytes = [0; Mark::BYTES];
            let read = |file: &fs::File| match file.metadata()?.nlink() {
                0 => Err(io::ErrorKind::NotFound.into()),
                _ => file.read_exact_at(&mut bytes, 0),
            };
            match self.with_mark(fs::OpenOptions::new().read(true), read) {
                Ok(()) => {
                    if let Some(mark) = Mark::decode(&bytes) {
                        return Ok(Some(mark));
                    }
                }
                Err(error) => match error.kind() {
                    // The log was removed. There may be another one.
                    io::ErrorKind::NotFound if self.close_mark() => continue,
                    io::ErrorKind::NotFound if !self.path.exists() => {
                        return Err(Error::Missing { path: self.path.clone() });
                    }
                    io::ErrorKind::NotFound => return Ok(None),
                    io::ErrorKind::UnexpectedEof => {}
                    _ => return Err(Error::system("read", &self.path.join(MARK), error)),
                },
            }
            // It met a write.
            thread::sleep(MARK_PAUSE);
        }
        Ok(None)
    }

    fn release(&self) {
        if let Some(lock) = &self.lock {
            lock.release();
        }
    }
}

/// The lock of a directory. Dropping it unlocks.
#[derive(Debug)]
pub(super) struct Lock {
    file: Mutex<Option<fs::File>>,
    /// The process that has the lock. A child has the open file as well.
    owner: Owner,
}

impl Lock {
    /// Locks a file of this name, which it makes if it is missing.
    pub fn take(dir: &Path, name: &str) -> Result<Self> {
        Self::of(open_lock(&dir.join(name))?, dir, name)
    }

    fn of(file: fs::File, dir: &Path, name: &str) -> Result<Self> {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            match error {
                rustix::io::Errno::WOULDBLOCK => Error::Locked { path: dir.into() },
                error => Error::system("lock", dir, error),
            }
        })?;
        // A set may have removed the log meanwhile, and may have made another one of the name.
        let failed = |error| Error::system("lock", dir, error);
        let locked = file.metadata().map_err(failed)?;
        let there = fs::metadata(dir.join(name));
        if !there.is_ok_and(|it| (it.dev(), it.ino()) == (locked.dev(), locked.ino())) {
            return Err(Error::Locked { path: dir.into() });
        }
        Ok(Self { file: Mutex::new(Some(file)), owner: Owner::current() })
    }

    pub fn release(&self) {
        if !self.owner.is_current() {
            return;
        }
        if let Some(file) = locked(&self.file).take() {
            // Closing it would do, unless a child has it.
            let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.release();
    }
}

/// A file, and the handles that were needed so far.
#[derive(Debug)]
pub(super) struct SegmentFile {
    path: PathBuf,
    bytes: u64,
    handles: Arc<Mutex<Handles>>,
}

#[derive(Debug, Default)]
struct Handles {
    /// Its writes are stable on return, and through the other they are not.
    writers: Option<(Arc<File>, Arc<File>)>,
    reader: Option<Arc<File>>,
}

impl SegmentFile {
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        Self { path, bytes, handles: Arc::default() }
    }

    fn with_handles<R>(&self, with: impl FnOnce(&mut Handles) -> R) -> R {
        with(&mut locked(&self.handles))
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
        let mut is_new = false;
        let reader = self.with_handles(|handles| {
            if let Some((writer, _)) = &handles.writers {
                return Ok(writer.clone());
            }
            if handles.reader.is_none() {
                handles.reader = Some(Arc::new(File::open(&self.path)?));
                is_new = true;
            }
            Ok(handles.reader.as_ref().expect("it was opened").clone())
        });
        if is_new {
            close_oldest_reader(&self.handles);
        }
        reader
    }
}

/// Closes the segment that was opened first, if this one is one too many.
fn close_oldest_reader(opened: &Arc<Mutex<Handles>>) {
    let opened = Arc::downgrade(opened);
    let mut readers = locked(READERS.get());
    readers.retain(|reader| reader.strong_count() > 0 && !reader.ptr_eq(&opened));
    readers.push_back(opened);
    let oldest = if readers.len() > READERS_MAX { readers.pop_front() } else { None };
    drop(readers);
    if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
        drop(locked(&oldest).reader.take());
    }
}

impl Segment for SegmentFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn prepare(&self) -> Result<()> {
        self.writer(true).map(drop)
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

/// The name of a segment with this number.
pub(crate) fn segment_name(number: u64) -> String {
    format!("{SEGMENT_PREFIX}{number:06}")
}

/// The segments of a directory: the numbers in their names, and their paths.
pub(crate) fn segment_names(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let failed = |error| Error::system("list", dir, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(SEGMENT_PREFIX));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            names.push((number, dir.join(name)));
        }
    }
    names.sort();
    Ok(names)
}

/// Replaces the mark. After a failure there is none: records of the old one may be removed by now.
fn write_mark(file: &fs::File, mark: Mark) -> io::Result<()> {
    file.write_all_at(&mark.encode(), 0).inspect_err(|_| {
        if let Err(error) = file.set_len(0) {
            log::error!("readers of other processes may see removed records: {error}");
        }
    })
}

/// Makes a file of zeros but for this first block. It is stable on return, its name is not.
fn fill(path: &Path, bytes: u64, head: Option<&[u8]>) -> Result<()> {
    remove_if_there(path)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).capacity(bytes);
    let file = options.open(path)?;
    file::fill(&file, bytes)?;
    if let Some(block) = head {
        file.write_at(block, 0)?;
    }
    Ok(file.close()?)
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

pub(super) fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::system("remove", path, error))
        }
        _ => Ok(()),
    }
}

fn refuse_set(path: &Path) -> Result<()> {
    if !path.join(set_dir::POOL).exists() {
        return Ok(());
    }
    let reason = "a set of logs, not a log; open one of the logs in it";
    Err(Error::Options(format!("{}: {reason}", shown(path))))
}

/// Makes a directory and those above it that are missing. Their names are stable on return.
///
/// Each is stable before the next one is made. So only the lowest one that is there may not be: an
/// earlier call made it, and failed or was killed.
pub(super) fn create_dirs(path: &Path, steps: &dyn Steps) -> Result<()> {
    if path == Path::new("") {
        return Err(Error::Options("the path is empty".into()));
    }
    let missing = path.ancestors().take_while(|dir| *dir != Path::new("") && !dir.exists());
    let missing: Vec<_> = missing.collect();
    let there = path.ancestors().nth(missing.len()).filter(|dir| dir.parent().is_some());
    if let Some(there) = there
        && let Err(error) = steps.take(StorageStep::Sync(above(there)))
        && !UNSYNCED.iter().any(|kind| is(&error, *kind))
    {
        return Err(error);
    }
    let make =
        |dir: &Path| steps.take_all(&[StorageStep::Create(dir), StorageStep::Sync(above(dir))]);
    missing.into_iter().rev().try_for_each(make)
}

/// The errors of a directory that this process does not make names in, or cannot sync at all.
const UNSYNCED: [io::ErrorKind; 4] = [
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::ReadOnlyFilesystem,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::Unsupported,
];

/// The directory that has the name of this one.
fn above(dir: &Path) -> &Path {
    dir.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."))
}

/// Makes a directory, unless it is there.
pub(super) fn make_dir(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if !path.is_dir() => Err(Error::system("create", path, error)),
        _ => Ok(()),
    }
}

/// Whether a system call failed by this error.
pub(super) fn is(error: &Error, kind: io::ErrorKind) -> bool {
    matches!(error, Error::System { error, .. } if error.kind() == kind)
}

/// Makes the names of a directory stable.
pub(super) fn sync_dir(path: &Path) -> Result<()> {
    fs::File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::system("sync", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    /// A reader took it for the state of the log, although records were removed since.
    #[test]
    fn a_mark_that_could_not_be_replaced_stayed() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = fs::File::from(memfd_create("mark", flags).expect("a file"));
        let mark = Mark { epoch: 1, frames: 2, truncations: 0, next: Lsn(100) };
        write_mark(&file, mark).expect("it is written");
        fcntl_add_seals(&file, SealFlags::WRITE).expect("it is sealed");
        write_mark(&file, Mark { truncations: 1, next: Lsn(50), ..mark }).expect_err("sealed");
        assert_eq!(file.metadata().expect("it is open").len(), 0);
    }

    /// A process without descriptors could not replace it, and readers believed an earlier writer.
    #[test]
    fn a_mark_that_could_not_be_opened_stayed() {
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let dir = Dir::open(root.path(), true).expect("it opens");
        std::os::unix::fs::symlink(MARK, root.path().join(MARK)).expect("a link to itself");
        let mark = Mark { epoch: 1, frames: 2, truncations: 0, next: Lsn(100) };
        dir.publish(mark);
        assert!(root.path().join(MARK).symlink_metadata().is_err(), "it is still there");
        dir.publish(mark);
        assert_eq!(dir.mark().expect("it is read"), Some(mark));
    }

    /// Two writers had a log: one had opened the lock of a log of the name that was removed then.
    #[test]
    fn the_lock_of_a_removed_log_locks_no_other() {
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let dir = root.path().join("a");
        fs::create_dir(&dir).expect("a new directory");
        let early = open_lock(&dir.join(LOCK)).expect("it opens");
        fs::rename(&dir, root.path().join("removed")).expect("it is renamed");
        let late = open_lock(&root.path().join("removed").join(LOCK)).expect("it opens");
        assert!(matches!(Lock::of(late, &dir, LOCK), Err(Error::Locked { .. })));
        fs::create_dir(&dir).expect("a new directory");
        let lock = Lock::take(&dir, LOCK).expect("it is free");
        assert!(matches!(Lock::of(early, &dir, LOCK), Err(Error::Locked { .. })));
        drop(lock);
        Lock::take(&dir, LOCK).expect("it is free again");
    }
}
