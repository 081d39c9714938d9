//! Logs that share free segments and a thread.

use crate::error::{Error, Result};
use crate::locked::locked;
use crate::log::Log;
use crate::options::LogOptions;
use crate::pool::PoolThread;
use crate::stats::SetStats;
use crate::storage::set_dir::{SetDir, check_name};
use crate::storage::steps::{FileSystem, Steps};
use crate::threads;
use dioxide::Owner;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

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
pub struct LogSet(Arc<OpenSet>);

struct OpenSet {
    set: Arc<Set>,
    /// The process that opened the set. A child has its memory, but not its thread.
    owner: Owner,
}

struct Set {
    options: LogOptions,
    dir: SetDir,
    /// None once the set is closed.
    pool: Mutex<Option<Arc<PoolThread>>>,
    logs: Mutex<BTreeMap<String, Arc<LogSlot>>>,
    /// The result of the close.
    closed: Mutex<Option<Result<()>>>,
}

/// A log, if it was opened. Locked while it is being opened, closed with the set, or removed.
type LogSlot = Mutex<Option<Log>>;

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
        Ok(LogSet(Arc::new(OpenSet { set, owner: Owner::current() })))
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

    /// Returns a log of the set, and opens it if it is not open. Creates it if it is missing and
    /// [`create`](LogOptions::create) is set.
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
        let slot = self.set().slot(name);
        let mut slot = locked(&slot);
        if let Some(log) = &*slot
            && !log.is_closed()
        {
            return Ok(log.clone());
        }
        let pool = self.set().pool()?;
        let dir = self.set().dir.log(name, self.set().options.create)?;
        let log = self.set().options.open_with(Arc::new(dir), pool)?;
        *slot = Some(log.clone());
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

    /// Removes a log with all its records, durably. The log was closed. The pool takes its
    /// segments, as far as it has room.
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
        let slot = self.set().slot(name);
        let mut slot = locked(&slot);
        let _pool = self.set().pool()?;
        if slot.as_ref().is_some_and(|log| !log.is_closed()) {
            return Err(Error::Locked { path: self.set().dir.path().join(name) });
        }
        *slot = None;
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

    /// The slot of a log. Those of logs that were closed are forgotten.
    fn slot(&self, name: &str) -> Arc<LogSlot> {
        let mut logs = locked(&self.logs);
        if let Some(slot) = logs.get(name) {
            return slot.clone();
        }
        logs.retain(|_, slot| Arc::strong_count(slot) > 1 || !is_idle(slot));
        logs.entry(name.into()).or_default().clone()
    }

    fn close(&self) -> Result<()> {
        let mut closed = locked(&self.closed);
        if let Some(result) = &*closed {
            return result.clone();
        }
        // From now on no log is opened, but for those whose slot is locked.
        let pool = locked(&self.pool).take();
        let slots: Vec<_> = locked(&self.logs).values().cloned().collect();
        let logs = slots.iter().filter_map(|slot| locked(slot).take());
        let open = logs.filter(|log| !log.is_closed());
        let result = open.map(Log::close).fold(Ok(()), Result::and);
        drop(pool);
        self.dir.release();
        *closed = Some(result.clone());
        result
    }
}

impl Drop for OpenSet {
    fn drop(&mut self) {
        if !self.owner.is_current() {
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

fn is_idle(slot: &LogSlot) -> bool {
    // Without a wait for a close that is running: other names wait for the caller.
    slot.try_lock().is_ok_and(|log| log.as_ref().is_none_or(Log::has_closed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::storage::dir::{segment_name, segment_names};
    use crate::storage::set_dir::POOL;
    use crate::storage::steps::StorageStep;
    use std::fs;
    use std::io;
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    const SEEDS: u64 = 100;
    const LIVES: u64 = 4;
    const SPARE: usize = 2;
    const NAMES: [&str; 3] = ["a", "b", "c"];

    /// A file system whose power fails before a step.
    #[derive(Debug)]
    struct PowerCut {
        state: Mutex<Taken>,
        /// The kinds of steps that it only seems to take.
        skips: fn(&StorageStep<'_>) -> bool,
    }

    #[derive(Debug)]
    struct Taken {
        /// Steps until the power fails.
        left: u64,
        has_failed: bool,
        /// Steps until one fails, once.
        fails: Option<u64>,
        unstable: Unstable,
    }

    /// The names that are not stable.
    #[derive(Clone, Debug, Default)]
    struct Unstable {
        renamed: Vec<Renamed>,
        /// Directories.
        created: Vec<PathBuf>,
    }

    /// The old name and the new one, and which of the two directories were synced.
    type Renamed = (PathBuf, PathBuf, [bool; 2]);

    impl PowerCut {
        fn new(left: u64, unstable: Unstable, skips: fn(&StorageStep<'_>) -> bool) -> Arc<Self> {
            let taken = Taken { left, has_failed: false, fails: None, unstable };
            Arc::new(Self { state: Mutex::new(taken), skips })
        }

        fn has_failed(&self) -> bool {
            locked(&self.state).has_failed
        }

        /// Copies a set as a kill leaves it, and returns the names that are not stable yet. With
        /// `loses` as a power cut leaves it: those are the old ones.
        fn copy(&self, from: &Path, to: &Path, loses: bool) -> Unstable {
            let state = locked(&self.state);
            copy_all(from, to);
            let at = |path: &Path| to.join(path.strip_prefix(from).expect("a path in the set"));
            let renamed = |(old, new, synced): &Renamed| (at(old), at(new), *synced);
            let unstable = Unstable {
                renamed: state.unstable.renamed.iter().map(renamed).collect(),
                created: state.unstable.created.iter().map(|dir| at(dir)).collect(),
            };
            if !loses {
                return unstable;
            }
            for (old, new, _) in unstable.renamed.iter().rev() {
                // Without the directory of a log that was removed meanwhile.
                if new.exists() && old.parent().is_some_and(Path::exists) {
                    fs::rename(new, old).expect("it is renamed");
                }
            }
            for dir in unstable.created.iter().filter(|dir| dir.exists()) {
                fs::remove_dir_all(dir).expect("it is removed");
            }
            Unstable::default()
        }
    }

    impl Steps for PowerCut {
        fn take(&self, step: StorageStep<'_>) -> Result<()> {
            let mut state = locked(&self.state);
            let Some(left) = state.left.checked_sub(1) else {
                state.has_failed = true;
                let error = io::Error::other("the power has failed");
                return Err(Error::system("change", Path::new("set"), error));
            };
            state.left = left;
            if let Some(fails) = state.fails {
                state.fails = fails.checked_sub(1);
                if fails == 0 {
                    let error = io::Error::other("a fault");
                    return Err(Error::system("change", Path::new("set"), error));
                }
            }
            let is_new = matches!(step, StorageStep::Create(dir) if !dir.exists());
            if (self.skips)(&step) {
                return Ok(());
            }
            FileSystem.take(step)?;
            match step {
                StorageStep::Rename { from, to } => {
                    state.unstable.renamed.push((from.into(), to.into(), [false; 2]));
                }
                StorageStep::Create(dir) if is_new => state.unstable.created.push(dir.into()),
                StorageStep::Sync(dir) => {
                    let Unstable { renamed, created } = &mut state.unstable;
                    for (from, to, synced) in renamed.iter_mut() {
                        synced[0] |= from.parent() == Some(dir);
                        synced[1] |= to.parent() == Some(dir);
                    }
                    renamed.retain(|(_, _, synced)| *synced != [true; 2]);
                    created.retain(|made| made.parent() != Some(dir));
                }
                _ => {}
            }
            Ok(())
        }
    }

    fn copy_all(from: &Path, to: &Path) {
        fs::create_dir(to).expect("a new directory");
        for entry in fs::read_dir(from).expect("a directory").flatten() {
            let (path, copy) = (entry.path(), to.join(entry.file_name()));
            match path.is_dir() {
                true => copy_all(&path, &copy),
                // The thread of the set may finish a segment meanwhile.
                false => drop(fs::copy(path, copy)),
            }
        }
    }

    /// The records of each log: the number of the first, and their markers.
    type Model = BTreeMap<&'static str, (u64, Vec<u64>)>;

    fn found(set: &LogSet) -> Result<Model> {
        let mut model = Model::new();
        for name in set.names()? {
            let log = set.log(&name)?;
            let mut markers = Vec::new();
            for record in log.iter_from(log.first_lsn()) {
                let (_, record) = record?;
                markers.push(u64::from_le_bytes(record[..8].try_into().expect("a marker")));
            }
            let name = NAMES.into_iter().find(|known| *known == name).expect("a known name");
            model.insert(name, (log.first_lsn().0, markers));
        }
        Ok(model)
    }

    fn options() -> LogOptions {
        LogOptions::new().segment_bytes(64 << 10).spare_segments(SPARE)
    }

    /// Changes one of the logs, and the model if that succeeds. Returns the model if the change is
    /// there.
    fn change(
        set: &LogSet,
        rng: &mut fastrand::Rng,
        model: &Model,
        marker: &mut u64,
    ) -> (Model, Result<()>) {
        let name = NAMES[rng.usize(..NAMES.len())];
        let mut changed = model.clone();
        let log = match set.log(name) {
            Ok(log) => log,
            // A log without a record is as good as none.
            Err(error) => return (changed, Err(error)),
        };
        let (first, markers) = changed.entry(name).or_insert((1, Vec::new()));
        let outcome = match rng.u32(..24) {
            0 => {
                changed.remove(name);
                log.close().and_then(|()| set.remove(name))
            }
            1 => log.close(),
            2..8 => {
                let removed = rng.usize(..=markers.len());
                markers.drain(..removed);
                *first += removed as u64;
                log.truncate_front(Lsn(*first))
            }
            _ => {
                *marker += 1;
                markers.push(*marker);
                let mut record = marker.to_le_bytes().to_vec();
                record.resize(rng.usize(8..50_000), *marker as u8);
                log.append(&record).map(drop)
            }
        };
        (changed, outcome)
    }

    /// Logs that are not empty.
    fn filled(model: &Model) -> Model {
        let filled = model.iter().filter(|(_, (first, markers))| *first > 1 || !markers.is_empty());
        filled.map(|(name, log)| (*name, log.clone())).collect()
    }

    /// Checks that each file of a set is one of a log, or a free segment.
    fn check_files(path: &Path) -> Result<(), String> {
        let files = |dir: &Path| {
            let entries = fs::read_dir(dir).expect("a directory").flatten();
            entries.map(|entry| entry.file_name().into_string().expect("text")).collect::<Vec<_>>()
        };
        for name in files(path) {
            let known = NAMES.contains(&&*name) || [".lock", ".pool"].contains(&&*name);
            if !known {
                return Err(format!("{name} is left"));
            }
        }
        match files(&path.join(".pool")).len() {
            0..=SPARE => Ok(()),
            count => Err(format!("{count} free segments")),
        }
    }

    /// A program over several lives, each of which ends before some step. Fails with a description.
    fn play(seed: u64, skips: fn(&StorageStep<'_>) -> bool) -> Result<(), String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        // In memory: the steps say what is stable.
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = |life: u64| root.path().join(format!("set {life}"));
        fs::create_dir(path(0)).expect("a directory");
        let (mut states, mut unstable, mut marker) = (vec![Model::new()], Unstable::default(), 0);
        for life in 0..LIVES {
            let steps = PowerCut::new(rng.u64(..80), unstable, skips);
            let set = options().open_set_by(&path(life), steps.clone());
            let opened = set.as_ref().map_err(Error::clone).and_then(found);
            match (&set, opened) {
                (Ok(set), Ok(opened)) => {
                    check_files(&path(life))?;
                    let mut model = filled(&opened);
                    if !states.contains(&model) {
                        return Err(format!("life {life} opened {model:?} instead of {states:?}"));
                    }
                    states = vec![model.clone()];
                    for _ in 0..rng.u64(..150) {
                        let (changed, outcome) = change(set, &mut rng, &model, &mut marker);
                        if outcome.is_err() {
                            states.push(filled(&changed));
                            break;
                        }
                        model = changed;
                        states = vec![filled(&model)];
                    }
                }
                // The power failed before a step of the open.
                _ if steps.has_failed() => {}
                (_, opened) => {
                    opened.map_err(|error| format!("life {life}: {error}"))?;
                }
            }
            // Before the set is closed, which a crash does not wait for.
            unstable = steps.copy(&path(life), &path(life + 1), rng.bool());
        }
        let set = options().open_set(path(LIVES)).map_err(|error| error.to_string())?;
        check_files(&path(LIVES))?;
        let last = filled(&found(&set).map_err(|error| format!("the last life: {error}"))?);
        match states.contains(&last) {
            true => Ok(()),
            false => Err(format!("the last life has {last:?} instead of {states:?}")),
        }
    }

    #[test]
    fn a_crash_between_any_two_steps_loses_no_log_and_no_space() {
        for seed in 0..SEEDS {
            if let Err(reason) = play(seed, |_| false) {
                panic!("seed {seed}: {reason}");
            }
        }
    }

    /// The control: a segment with the header of another log is found.
    #[test]
    fn a_segment_that_keeps_its_header_is_corrupt_in_another_log() {
        let errors = (0..SEEDS).filter_map(|seed| {
            play(seed, |step| matches!(step, StorageStep::Head { block, .. } if block[0] == 0))
                .err()
        });
        let foreign = |error: &String| error.contains("a segment of log");
        assert!(errors.filter(foreign).count() > SEEDS as usize / 4);
    }

    /// The control: names that are not synced lose records.
    #[test]
    fn names_that_are_not_synced_lose_logs() {
        let lost = |seed: &u64| play(*seed, |step| matches!(step, StorageStep::Sync(_))).is_err();
        assert!((0..SEEDS).filter(lost).count() > SEEDS as usize / 4);
    }

    /// A file system where steps fail or wait.
    #[derive(Debug, Default)]
    struct Faulty(Mutex<Fault>);

    #[derive(Debug, Default)]
    struct Fault {
        /// Which steps fail. The flag says whether there was a renaming before.
        fails: Option<fn(&StorageStep<'_>, bool) -> bool>,
        is_renamed: bool,
        /// Only the first fails.
        once: bool,
        waits: Option<fn(&StorageStep<'_>) -> bool>,
    }

    impl Faulty {
        fn set(&self, fails: fn(&StorageStep<'_>, bool) -> bool, once: bool) {
            *locked(&self.0) = Fault { fails: Some(fails), once, ..Fault::default() };
        }

        fn has_failed(&self) -> bool {
            locked(&self.0).fails.is_none()
        }
    }

    impl Steps for Faulty {
        fn take(&self, step: StorageStep<'_>) -> Result<()> {
            while locked(&self.0).waits.is_some_and(|waits| waits(&step)) {
                thread::yield_now();
            }
            let mut fault = locked(&self.0);
            if fault.fails.is_some_and(|fails| fails(&step, fault.is_renamed)) {
                if fault.once {
                    fault.fails = None;
                }
                return Err(Error::system("change", Path::new("set"), io::Error::other("a fault")));
            }
            fault.is_renamed |= matches!(step, StorageStep::Rename { .. });
            drop(fault);
            FileSystem.take(step)
        }
    }

    fn until(what: &str, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            thread::yield_now();
        }
    }

    fn segments(dir: &Path) -> u64 {
        segment_names(dir).expect("a directory").len() as u64
    }

    fn fill(log: &Log) {
        for number in 0..6 {
            log.append(&[number; 50_000]).expect("it is appended");
        }
    }

    /// They were left in a directory where no log found them until the next open.
    #[test]
    fn a_step_that_fails_leaves_no_segment_behind() {
        let kinds: [fn(&StorageStep<'_>, bool) -> bool; 4] = [
            |step, _| matches!(step, StorageStep::Head { .. }),
            |step, _| matches!(step, StorageStep::Rename { .. }),
            |step, is_renamed| {
                is_renamed && matches!(step, StorageStep::Sync(dir) if dir.ends_with(POOL))
            },
            |step, is_renamed| {
                is_renamed && matches!(step, StorageStep::Sync(dir) if !dir.ends_with(POOL))
            },
        ];
        for (kind, fails) in kinds.into_iter().enumerate() {
            let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let steps = Arc::new(Faulty::default());
            let set = options().open_set_by(root.path(), steps.clone()).expect("it opens");
            let all_are_known = |names: &[&str]| {
                let known = |name: &&str| {
                    let stats = set.log(name).expect("it is open").stats();
                    segments(&root.path().join(name)) == stats.segments + stats.free_segments
                };
                names.iter().all(known)
                    && segments(&root.path().join(POOL)) == set.stats().free_segments
            };
            let log = set.log("a").expect("a new log");
            fill(&log);
            steps.set(fails, true);
            log.truncate_front(log.next_lsn()).expect("it is truncated");
            until("a segment is given", || steps.has_failed());
            until(&format!("a segment was not given: {kind}"), || {
                // It keeps one, so no other one is on its way.
                let is_quiet = log.stats().free_segments == 1;
                is_quiet && all_are_known(&["a"]) && set.stats().free_segments == SPARE as u64
            });
            steps.set(fails, true);
            set.log("b").expect_err("a segment is not taken");
            assert!(steps.has_failed());
            set.log("b").expect("a new log").append(b"a record").expect("it is appended");
            until(&format!("a segment was not taken: {kind}"), || all_are_known(&["a", "b"]));
        }
    }

    /// A log that could not be removed, and a free segment that could not be erased, kept the whole
    /// set closed.
    #[test]
    fn a_segment_that_cannot_be_written_keeps_no_set_closed() {
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = root.path();
        let steps = Arc::new(Faulty::default());
        let set = options().open_set_by(path, steps.clone()).expect("it opens");
        for name in ["a", "b"] {
            fill(&set.log(name).expect("a new log"));
            set.log(name).and_then(Log::close).expect("it closes");
        }
        steps.set(|step, _| matches!(step, StorageStep::Head { .. }), false);
        set.remove("a").expect("it is removed");
        assert_eq!(set.names().expect("names"), ["b"]);
        set.close().expect("it closes");
        fs::rename(path.join("b"), path.join(".removed")).expect("it is renamed");
        let taken = path.join(".removed").join(segment_name(0));
        fs::rename(taken, path.join(POOL).join(segment_name(7))).expect("it is renamed");
        let set = options().open_set_by(path, steps).expect("it opens");
        assert_eq!((segments(&path.join(POOL)), set.stats().free_segments), (0, 0));
        assert!(!path.join(".removed").exists());
    }

    /// The close of one log waits for the thread of the set. All other names waited for that close.
    #[test]
    fn a_log_that_closes_slowly_holds_up_no_other() {
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let steps = Arc::new(Faulty::default());
        let set = options().open_set_by(root.path(), steps.clone()).expect("it opens");
        fill(&set.log("x").expect("a new log"));
        set.log("x").and_then(Log::close).and_then(|()| set.remove("x")).expect("it is removed");
        let log = set.log("a").expect("a new log");
        locked(&steps.0).waits = Some(|step| match step {
            StorageStep::Rename { to, .. } => to.to_string_lossy().contains("/a/"),
            _ => false,
        });
        // The thread of the set takes a segment ahead, which does not end.
        log.append(&[1; 50_000]).expect("it is appended");
        let closing = thread::spawn({
            let log = log.clone();
            move || log.close()
        });
        until("it closes", || matches!(log.append(b"x"), Err(Error::Closed)));
        let (sender, receiver) = mpsc::channel();
        let opening = thread::spawn({
            let set = set.clone();
            move || {
                set.log("b").expect("a new log");
                sender.send(()).expect("it is awaited");
            }
        });
        let opened = receiver.recv_timeout(Duration::from_secs(120));
        locked(&steps.0).waits = None;
        closing.join().expect("no panic").expect("it closes");
        opening.join().expect("no panic");
        opened.expect("another log opens meanwhile");
    }

    /// A log that another thread removed meanwhile was an error.
    #[test]
    fn names_are_listed_while_logs_are_removed() {
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let set = options().open_set(root.path()).expect("it opens");
        set.log("stays").expect("a new log");
        let removing = thread::spawn({
            let set = set.clone();
            move || {
                for _ in 0..200 {
                    set.log("a").and_then(Log::close).expect("a new log");
                    set.remove("a").expect("it is removed");
                }
            }
        });
        while !removing.is_finished() {
            let names = set.names().expect("they are listed");
            assert!(names == ["stays"] || names == ["a", "stays"], "{names:?}");
        }
        removing.join().expect("no panic");
    }

    /// A set in memory whose steps fail as the test says.
    fn with_power(root: &Path) -> (Arc<PowerCut>, LogSet) {
        let path = root.join("set");
        fs::create_dir(&path).expect("a new directory");
        let steps = PowerCut::new(u64::MAX, Unstable::default(), |_| false);
        let set = options().open_set_by(&path, steps.clone()).expect("it opens");
        (steps, set)
    }

    /// The logs of a set after a power cut now.
    fn after_power_cut(root: &Path, steps: &PowerCut) -> Model {
        steps.copy(&root.join("set"), &root.join("copy"), true);
        let set = options().open_set(root.join("copy")).expect("it opens");
        filled(&found(&set).expect("all records are read"))
    }

    /// The sync of its directory had failed. The next removal gave its segments, while a power cut
    /// could bring the log back.
    #[test]
    fn a_removal_is_stable_before_the_segments_are_given() {
        for (fails, left) in (0..5).flat_map(|fails| (0..30).map(move |left| (fails, left))) {
            let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let (steps, set) = with_power(root.path());
            for name in ["a", "b"] {
                let log = set.log(name).expect("a new log");
                for marker in 1..4 {
                    log.append(&[marker; 50_000]).expect("it is appended");
                }
            }
            let full = found(&set).expect("all records are read");
            for name in ["a", "b"] {
                set.log(name).and_then(Log::close).expect("it closes");
            }
            let mut state = locked(&steps.state);
            (state.fails, state.left) = (Some(fails), left);
            drop(state);
            let removed = ["a", "b"].map(|name| set.remove(name).is_ok());
            let there = after_power_cut(root.path(), &steps);
            for (name, removed) in ["a", "b"].into_iter().zip(removed) {
                let log = there.get(name);
                assert!(log.is_none() || log == full.get(name), "{fails} {left}: {name} {log:?}");
                assert!(log.is_none() || !removed, "{fails} {left}: {name} is removed");
            }
        }
    }

    /// A call had made the directory of the log and failed. The next one took the name for stable.
    #[test]
    fn a_log_whose_creation_failed_first_is_stable() {
        for fails in 0..8 {
            let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
            let (steps, set) = with_power(root.path());
            locked(&steps.state).fails = Some(fails);
            let log = set.log("a").or_else(|_| set.log("a")).expect("a new log");
            log.append(&7u64.to_le_bytes()).expect("it is appended");
            let expected = Model::from([("a", (1, vec![7]))]);
            assert_eq!(after_power_cut(root.path(), &steps), expected, "{fails}");
        }
    }
}
