//! A local write-ahead log for [SlateDB](https://slatedb.io) on `dioxide-log`.
//!
//! A write is durable after one write to a local disk, instead of a PUT to the object store.
//!
//! ```no_run
//! # use dioxide_slatedb::LocalWal;
//! # use slatedb::object_store::{ObjectStore, memory::InMemory};
//! # use slatedb::{Db, GarbageCollectorBuilder};
//! # use std::sync::Arc;
//! # async fn example() -> Result<(), slatedb::Error> {
//! # let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
//! let wal = LocalWal::new("/var/lib/app/wal"); // a directory for each database
//! let collector = GarbageCollectorBuilder::new("db", store.clone());
//! let db = Db::builder("db", store)
//!     .with_wal_writer(Box::new(wal.clone()))
//!     .with_gc_builder(collector.with_wal_gc(Arc::new(wal))) // frees space of the log
//!     .build()
//!     .await?;
//! db.put(b"key", b"value").await?.await_durable().await?;
//! # db.close().await
//! # }
//! ```
//!
//! # After a crash
//!
//! Opening the database replays each batch whose `await_durable` returned, and possibly whole
//! batches behind it. It never replays a part of a batch.
//!
//! # Two writers
//!
//! A new writer asks the old one on this host to end, by an epoch in a file. The old one then gets
//! `Fenced`, and acknowledges no more. The new one waits for the lock of the log, so it replays all
//! that the old one acknowledged. Between hosts, the epoch of the manifest fences, and the rows of
//! the other host's log are missing: see [`LocalWal::accept_loss`].

#![forbid(unsafe_code)]

mod admin;
mod epoch;
mod error;
mod reader;
mod rows;
mod status;
mod writer;

pub use admin::LocalWalAdmin;

use async_trait::async_trait;
use dioxide_log::storage::Storage;
use dioxide_log::{Error, Log, LogOptions, LogReader, Lsn};
use epoch::EpochFile;
use error::{blocking, data, of_log};
use reader::{Rows, Source};
use slatedb::wal::{
    WalError, WalFileRange, WalGc, WalIterator, WalReader, WriterInit, WriterInitResult,
    WriterManifest,
};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use writer::Writer;

/// The pause between two attempts to get the lock of the log.
const PAUSE: Duration = Duration::from_millis(10);

/// A log that begins anew begins with this number times the epoch of its writer.
const RECORDS_OF_EPOCH: u64 = 1 << 36;

/// The write-ahead log of one database, in a local directory.
///
/// It is the `WriterInit`, `WalReader` and `WalGc` of SlateDB. A reader works in any process of the
/// host. The log is open while its database is. Clones share it.
#[derive(Clone, Debug)]
pub struct LocalWal {
    medium: Medium,
    options: LogOptions,
    accept_loss: bool,
    patience: Duration,
    shared: Arc<Shared>,
}

#[derive(Clone, Debug)]
enum Medium {
    Dir(PathBuf),
    Storage(Arc<dyn Storage>),
}

#[derive(Debug, Default)]
struct Shared {
    /// The log while a writer has it open.
    log: Mutex<Weak<Log>>,
    reader: Mutex<Option<Arc<Mutex<LogReader>>>>,
    /// Since when the records below are not needed, from the oldest time on.
    unneeded: Mutex<VecDeque<(Instant, Lsn)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalWal {
    /// A log in this directory. The first writer creates it.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self::of(Medium::Dir(dir.into()))
    }

    /// A log on any medium. No file asks an old writer of it to end, so the caller ends that first.
    pub fn on_storage(storage: Arc<dyn Storage>) -> Self {
        Self::of(Medium::Storage(storage))
    }

    fn of(medium: Medium) -> Self {
        let (options, patience) = (LogOptions::new(), Duration::from_secs(30));
        Self { medium, options, accept_loss: false, patience, shared: Arc::default() }
    }

    /// Sets the options of the log. With durability for each append, the default, `await_durable`
    /// means that a row is stable. Retention by size or age would remove rows that are needed.
    pub fn log_options(mut self, options: LogOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets whether a database is opened although rows of it may be missing here. False by default.
    ///
    /// Rows may be missing if another writer opened the database since with another log, or tried
    /// to. That is the log of another host, of a lost disk, or SlateDB's own. Or the log or
    /// the object store is an older copy. Rows that are only in the other log are then lost. The
    /// rows of this log stay if the manifest permits it. So use it with the log of the same
    /// database only.
    pub fn accept_loss(mut self, accept: bool) -> Self {
        self.accept_loss = accept;
        self
    }

    /// Sets how long a new writer waits until the old one has closed the log. 30 seconds by
    /// default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens the log once no other writer has it. Asks the old one to end.
    async fn open(&self, manifest: &mut WriterManifest) -> Result<Opened, WalError> {
        let (epoch, begun) = (manifest.epoch(), Instant::now());
        loop {
            let wal = self.clone();
            let (log, asked) = blocking(move || wal.try_open(epoch)).await?;
            if let Some(asked) = asked.as_ref().filter(|asked| asked.highest > epoch) {
                manifest.refresh().await?;
                return Err(data(format!(
                    "the log is of epoch {}, and the database of epoch {epoch}: the object store \
                     is older than the log; restore it",
                    asked.highest
                )));
            }
            match log {
                // SlateDB gives each writer the next epoch, also after a crash.
                Ok(log) if epoch == 1 && log.next_lsn() > Lsn::FIRST => {
                    manifest.refresh().await?;
                    return blocking(move || refuse_other(&log, asked)).await;
                }
                Ok(log) => return Ok(Opened { log, asked }),
                Err(Error::Locked { .. }) if begun.elapsed() < self.patience => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(of_log(error)),
            }
        }
    }

    /// Asks for the log, and tries to open it. Asks first: recovery may take long or fail, and the
    /// next writer must know of this one.
    fn try_open(&self, epoch: u64) -> Result<(Result<Log, Error>, Option<Asked>), WalError> {
        let asked = match &self.medium {
            Medium::Dir(dir) => Some(ask(dir, epoch).map_err(unavailable)?),
            Medium::Storage(_) => None,
        };
        Ok((self.open_log(&self.options), asked))
    }

    fn open_log(&self, options: &LogOptions) -> Result<Log, Error> {
        match &self.medium {
            Medium::Dir(dir) => options.open(dir),
            Medium::Storage(storage) => options.open_storage(storage.clone()),
        }
    }

    /// The reader of all iterators. None if there is no log.
    fn reader(&self) -> Result<Option<Arc<Mutex<LogReader>>>, WalError> {
        let mut reader = lock(&self.shared.reader);
        // Another process may have deleted the log, and made a new one.
        if reader.as_ref().is_some_and(|reader| is_gone(&mut lock(reader))) {
            *reader = None;
        }
        if reader.is_none() {
            let opened = match &self.medium {
                Medium::Dir(dir) => LogReader::open(dir),
                Medium::Storage(storage) => LogReader::of(storage.clone()),
            };
            match opened {
                Ok(opened) => *reader = Some(Arc::new(Mutex::new(opened))),
                Err(Error::Missing { .. }) => return Ok(None),
                Err(error) => return Err(of_log(error)),
            }
        }
        Ok(reader.clone())
    }

    /// The last record that readers see; 0 without one, and without a log. None while the writer
    /// has not shown which records are stable, as after a power cut.
    fn last_shown(&self) -> Result<Option<Lsn>, WalError> {
        let Some(reader) = self.reader()? else { return Ok(Some(Lsn(0))) };
        let mut reader = lock(&reader);
        look(&mut reader).map_err(of_log)?;
        Ok(reader.knows_stable().then(|| Lsn(reader.stable_lsn().0.saturating_sub(1))))
    }

    /// Removes the records below, from the open log or from a closed one.
    fn truncate_front(&self, lsn: Lsn) -> Result<(), WalError> {
        let truncate = |log: &Log| match lsn.min(log.next_lsn()) {
            lsn if lsn > log.first_lsn() => log.truncate_front(lsn),
            _ => Ok(()),
        };
        let log = lock(&self.shared.log).upgrade();
        match log.map(|log| truncate(&log)) {
            None | Some(Err(Error::Closed)) => {}
            Some(result) => return result.map_err(of_log),
        }
        match self.open_log(&self.options.clone().create(false)) {
            Err(Error::Missing { .. }) => Ok(()),
            log => log.and_then(|log| truncate(&log).and(log.close())).map_err(of_log),
        }
    }
}

fn unavailable(error: io::Error) -> WalError {
    WalError::Unavailable(Arc::new(error))
}

/// The directory that has the name of this one.
fn parent_of(dir: &Path) -> &Path {
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Asks for the log in this directory, and creates the directory for it.
fn ask(dir: &Path, epoch: u64) -> io::Result<Asked> {
    create_stable(dir)?;
    let file = EpochFile::open(dir)?;
    let (highest, is_known) = file.ask(epoch)?;
    Ok(Asked { file, highest, is_known })
}

/// Makes a directory and those above it that are missing. Each name is stable before the next one
/// is made. So only that of the lowest directory that is there may not be.
fn create_stable(dir: &Path) -> io::Result<()> {
    let mut missing: Vec<_> = dir.ancestors().take_while(|dir| is_missing(dir)).collect();
    if let Some(lowest) = missing.last() {
        match sync_name(parent_of(lowest)) {
            // Another user made it.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    while let Some(dir) = missing.pop() {
        match fs::create_dir(dir) {
            Err(error) if !dir.is_dir() => return Err(error),
            _ => sync_name(dir)?,
        }
    }
    Ok(())
}

fn sync_name(dir: &Path) -> io::Result<()> {
    File::open(parent_of(dir))?.sync_all()
}

fn is_missing(dir: &Path) -> bool {
    !dir.as_os_str().is_empty() && !dir.exists()
}

/// Looks what is new: a reader does behind the end.
fn look(reader: &mut LogReader) -> Result<(), Error> {
    reader.seek(Lsn(u64::MAX));
    reader::read_next(reader, |_| ())
}

fn is_gone(reader: &mut LogReader) -> bool {
    matches!(look(reader), Err(Error::Missing { .. }))
}

/// The database is new, and the log is not. The next writers of the database are refused as well,
/// because nothing distinguishes them from those of the database of the log.
fn refuse_other(log: &Log, asked: Option<Asked>) -> Result<Opened, WalError> {
    if let Some(asked) = asked {
        asked.file.forget().map_err(unavailable)?;
    }
    Err(data(format!(
        "the database is new, and the log has {} records of another; use an empty directory",
        log.next_lsn().0 - 1
    )))
}

struct Opened {
    log: Log,
    /// None on a medium without the file of epochs.
    asked: Option<Asked>,
}

struct Asked {
    file: EpochFile,
    highest: u64,
    /// Each writer before has asked for this log.
    is_known: bool,
}

/// What the manifest says about the log.
#[derive(Clone, Copy)]
struct Facts {
    epoch: u64,
    /// The first record that the database needs.
    needed: u64,
    /// All records below were durable.
    seen: u64,
}

impl Opened {
    /// Adds the record with which a writer begins, and returns its number. Checks before that the
    /// log has all records that the database needs.
    fn begin(&self, facts: Facts, accept_loss: bool) -> Result<Lsn, WalError> {
        let (log, Facts { epoch, needed, seen }) = (&self.log, facts);
        let (first, next) = (log.first_lsn().0, log.next_lsn().0);
        let begins_late = first > needed && {
            let record = log.read(Lsn(first)).map_err(of_log)?;
            !record.is_some_and(|record| rows::is_anew(&record))
        };
        let is_known = self.asked.as_ref().is_none_or(|asked| asked.is_known);
        let reason = if next < seen {
            format!("the log ends before record {next}, and record {} was durable", seen - 1)
        } else if begins_late {
            format!("the log begins with record {first}, and the database needs {needed}")
        } else if !is_known {
            "another writer opened the database since, with another log".into()
        } else {
            return log.append(&rows::epoch(epoch, false)).map_err(of_log);
        };
        if !accept_loss {
            return Err(data(format!(
                "{reason}; use the log of its last writer, or call accept_loss if no row is missed"
            )));
        }
        log::warn!("{reason}; the loss of rows was accepted");
        let is_anew = next < seen || begins_late || next == 1;
        if is_anew {
            // Numbers that no other log of the database has used.
            let anew = next.max(seen).max(epoch.saturating_mul(RECORDS_OF_EPOCH));
            log.truncate_front(Lsn(anew)).map_err(of_log)?;
        }
        let last = log.append(&rows::epoch(epoch, is_anew)).map_err(of_log)?;
        if let Some(asked) = &self.asked {
            asked.file.accept(epoch).map_err(unavailable)?;
        }
        Ok(last)
    }
}

#[async_trait]
impl WriterInit for LocalWal {
    async fn fence_and_init(
        &self,
        manifest: &mut WriterManifest,
    ) -> Result<WriterInitResult, WalError> {
        let opened = self.open(manifest).await?;
        let (epoch, needed) = (manifest.epoch(), manifest.replay_after_wal_id() + 1);
        let seen = manifest.manifest().next_wal_sst_id().max(needed);
        let (facts, accept_loss) = (Facts { epoch, needed, seen }, self.accept_loss);
        let (Opened { log, asked }, last) = blocking(move || {
            let last = opened.begin(facts, accept_loss)?;
            Ok((opened, last))
        })
        .await?;
        let first = Lsn(needed).max(log.first_lsn());
        let rows = Rows::new(Source::Log(Box::new(log.iter_from(first))), first, Some(last.next()));
        let log = Arc::new(log);
        *lock(&self.shared.log) = Arc::downgrade(&log);
        let wal_writer = Box::new(Writer::start(log, last, epoch, asked.map(|asked| asked.file)));
        Ok(WriterInitResult { replay_iterator: Box::new(rows), wal_writer })
    }
}

#[async_trait]
impl WalReader for LocalWal {
    async fn iterator(&self, range: WalFileRange) -> Result<Box<dyn WalIterator>, WalError> {
        let end = match range.1 {
            Bound::Included(end) => Some(Lsn(end.saturating_add(1))),
            Bound::Excluded(end) => Some(Lsn(end)),
            Bound::Unbounded => None,
        };
        let wal = self.clone();
        let reader = blocking(move || wal.reader()).await?;
        let reader = reader.ok_or_else(|| data("there is no log to be read".into()))?;
        Ok(Box::new(Rows::new(Source::Reader(reader), Lsn(first_of(&range)), end)))
    }

    async fn last_wal_file_id(&self, replay_after_wal_id: u64) -> Result<u64, WalError> {
        let deadline = Instant::now() + reader::PATIENCE;
        loop {
            let wal = self.clone();
            if let Some(last) = blocking(move || wal.last_shown()).await? {
                return Ok(last.0.max(replay_after_wal_id));
            }
            if Instant::now() >= deadline {
                return Err(reader::not_shown(Lsn(replay_after_wal_id + 1)));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The first record of a range.
fn first_of(range: &WalFileRange) -> u64 {
    match range.0 {
        Bound::Included(first) => first.max(1),
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 1,
    }
}

/// Whether a range has no record.
fn is_empty(range: &WalFileRange) -> bool {
    match range.1 {
        Bound::Included(last) => last < first_of(range),
        Bound::Excluded(end) => end <= first_of(range),
        Bound::Unbounded => false,
    }
}

#[async_trait]
impl WalGc for LocalWal {
    /// Removes the records in front of all that are referenced, once they have not been for
    /// `min_age`. In the process of the writer, or while there is none.
    ///
    /// The time counts from the first collection of this `LocalWal`, or of a clone of it, that does
    /// not need the records. A process that collects once removes nothing unless `min_age` is 0.
    async fn collect(
        &self,
        referenced_ranges: Vec<WalFileRange>,
        min_age: Duration,
        dry_run: bool,
    ) -> Result<(), WalError> {
        let needed = referenced_ranges.iter().filter(|range| !is_empty(range)).map(first_of).min();
        let Some(needed) = needed.filter(|_| !dry_run) else { return Ok(()) };
        let now = Instant::now();
        let due = {
            let mut unneeded = lock(&self.shared.unneeded);
            unneeded.push_back((now, Lsn(needed)));
            let mut due = None;
            while unneeded.front().is_some_and(|(since, _)| now - *since >= min_age) {
                due = unneeded.pop_front().map(|(_, lsn)| lsn);
            }
            // A checkpoint may need records again that no manifest referenced for a while.
            due.map(|due| due.min(Lsn(needed)))
        };
        let Some(due) = due else { return Ok(()) };
        let wal = self.clone();
        blocking(move || wal.truncate_front(due)).await
    }
}
