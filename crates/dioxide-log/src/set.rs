//! Logs that share free segments and a thread.

use crate::error::{Error, Result};
use crate::log::Log;
use crate::options::LogOptions;
use crate::pool::PoolThread;
use crate::stats::SetStats;
use crate::storage::set_dir::{SetDir, check_name};
use crate::storage::steps::{FileSystem, Steps};
use crate::threads;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Many logs in one directory. They share their free segments and the thread that makes them, so
/// 256 logs do not need 256 free segments and 256 threads. Threads share a set by reference. Clones
/// are the same set.
///
/// Each log is a directory with the name of the log. Programs that read a log read it there.
///
/// ```no_run
/// use dioxide_log::LogSet;
///
/// let set = LogSet::open("partitions")?; // a directory
/// let log = set.log("a")?; // created if it is missing
/// log.append(b"a record")?;
/// set.close()?; // closes its logs
/// # Ok::<(), dioxide_log::Error>(())
/// ```
///
/// A log stays open until it or the set is closed. Dropping its last clone does not close it. A
/// segment that one log does not need any more goes to the pool, and then to any other log.
///
/// [`close`](Self::close) reports whether closing succeeded. Dropping the last clone of the set
/// closes all logs as well, and logs an error.
#[derive(Clone)]
pub struct LogSet(Arc<Open>);

struct Open {
    set: Arc<Set>,
    /// The process that opened the set. A child has its memory, but not its thread.
    process: u32,
}

struct Set {
    options: LogOptions,
    dir: SetDir,
    /// None once the set is closed.
    pool: Mutex<Option<Arc<PoolThread>>>,
    logs: Mutex<BTreeMap<String, Arc<Place>>>,
    /// The result of the close.
    closed: Mutex<Option<Result<()>>>,
}

/// A log, if it was opened. Locked while it is being opened, closed with the set, or removed.
type Place = Mutex<Option<Log>>;

impl LogOptions {
    /// Opens the set of logs in a directory. All its logs have these options.
    ///
    /// # Errors
    ///
    /// - [`Error::Locked`]: another process, or another [`LogSet`], has the set open.
    /// - [`Error::Missing`]: there is no directory, and [`create`](Self::create) is not set.
    /// - [`Error::Options`]: the directory is that of a log.
    ///
    /// Or the error of a system call.
    pub fn open_set(&self, path: impl AsRef<Path>) -> Result<LogSet> {
        self.open_set_by(path.as_ref(), Arc::new(FileSystem))
    }

    fn open_set_by(&self, path: &Path, steps: Arc<dyn Steps>) -> Result<LogSet> {
        self.check()?;
        let dir = SetDir::open(path, self.create, self.spare_segments, steps)?;
        let pool = Mutex::new(Some(Arc::new(PoolThread::start(path, self.retain_age)?)));
        // The pool of the set keeps the spare segments.
        let options = self.clone().spare_segments(0);
        let (logs, closed) = Default::default();
        let set = Arc::new(Set { options, dir, pool, logs, closed });
        Ok(LogSet(Arc::new(Open { set, process: std::process::id() })))
    }
}

impl fmt::Debug for LogSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSet").field("path", &self.set().dir.path()).finish_non_exhaustive()
    }
}

impl LogSet {
    fn set(&self) -> &Arc<Set> {
        &self.0.set
    }

    /// Opens the set of logs in a directory, and creates it if it is missing, with the default
    /// [options](LogOptions).
    ///
    /// # Errors
    ///
    /// As [`LogOptions::open_set`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        LogOptions::new().open_set(path)
    }

    /// Returns a log of the set, and opens it if it is not open. Creates it if it is missing, unless
    /// [`create`](LogOptions::create) is not set.
    ///
    /// # Errors
    ///
    /// - [`Error::Options`]: the name is not allowed. It has 1 to 255 bytes without `/` and zero
    ///   bytes, does not begin with a dot, and is not `lost+found`.
    /// - [`Error::Locked`]: [`Log::open`] has the log open.
    /// - [`Error::Closed`]: the set was closed.
    ///
    /// Or as [`LogOptions::open`].
    pub fn log(&self, name: &str) -> Result<Log> {
        check_name(name)?;
        let place = self.set().place(name);
        let mut place = locked(&place);
        if let Some(log) = &*place
            && !log.is_closed()
        {
            return Ok(log.clone());
        }
        let pool = self.set().pool()?;
        let dir = self.set().dir.log(name, self.set().options.create)?;
        let log = self.set().options.open_with(Arc::new(dir), pool)?;
        *place = Some(log.clone());
        Ok(log)
    }

    /// The names of all logs in the directory, open or not, in order.
    ///
    /// # Errors
    ///
    /// The error of a system call.
    pub fn names(&self) -> Result<Vec<String>> {
        self.set().dir.names()
    }

    /// Removes a log with all its records, durably. The log was closed. The pool takes its segments,
    /// as far as it has room.
    ///
    /// # Errors
    ///
    /// - [`Error::Locked`]: the log is open.
    /// - [`Error::Missing`]: there is no log of this name.
    /// - [`Error::Closed`]: the set was closed.
    ///
    /// Or the error of a system call.
    pub fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let place = self.set().place(name);
        let mut place = locked(&place);
        let _pool = self.set().pool()?;
        if place.as_ref().is_some_and(|log| !log.is_closed()) {
            return Err(Error::Locked { path: self.set().dir.path().join(name) });
        }
        *place = None;
        self.set().dir.remove(name)
    }

    /// The counters of the segments that the logs share.
    pub fn stats(&self) -> SetStats {
        let pool = self.set().dir.pool();
        SetStats { free_segments: pool.len() as u64, ..pool.counters().stats() }
    }

    /// Closes all logs that are open, and the set for all clones. A later call on another clone
    /// returns the same.
    ///
    /// # Errors
    ///
    /// The first error of a [close](Log::close). All logs are closed nevertheless.
    pub fn close(self) -> Result<()> {
        self.set().close()
    }
}

impl Set {
    fn pool(&self) -> Result<Arc<PoolThread>> {
        locked(&self.pool).clone().ok_or(Error::Closed)
    }

    /// The place of a log. Those of logs that were closed are forgotten.
    fn place(&self, name: &str) -> Arc<Place> {
        let mut logs = locked(&self.logs);
        if let Some(place) = logs.get(name) {
            return place.clone();
        }
        logs.retain(|_, place| Arc::strong_count(place) > 1 || !is_idle(place));
        logs.entry(name.into()).or_default().clone()
    }

    fn close(&self) -> Result<()> {
        let mut closed = locked(&self.closed);
        if let Some(result) = &*closed {
            return result.clone();
        }
        // From now on no log is opened, but for those whose place is locked.
        let pool = locked(&self.pool).take();
        let places: Vec<_> = locked(&self.logs).values().cloned().collect();
        let logs = places.iter().filter_map(|place| locked(place).take());
        let result = logs.map(Log::close).fold(Ok(()), Result::and);
        drop(pool);
        self.dir.release();
        *closed = Some(result.clone());
        result
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // The logs are those of its parent.
            return;
        }
        let set = self.set.clone();
        let close = move || {
            if let Err(error) = set.close() {
                log::error!("closing a set of logs: {error}");
            }
        };
        threads::run_where_it_may_wait(self.set.dir.path(), close);
    }
}

fn is_idle(place: &Place) -> bool {
    place.try_lock().is_ok_and(|log| log.as_ref().is_none_or(Log::is_closed))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
