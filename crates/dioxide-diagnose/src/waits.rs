//! The wait table: the objects of the threads' waits, each with its share of I/O time.
//!
//! # Time in I/O
//!
//! Shares are of the time that threads spend in I/O, not of the time of all threads. A server's
//! threads sleep in `epoll_wait` most of the time. A thousand of them must not hide the one that
//! logs and waits for a lock. Nor must they look like a bottleneck. A sample is in I/O
//!
//! - if the thread waited in a function of a file system, of the page cache or of the block layer.
//!   That includes the workers of io_uring, which have no system call of their own;
//! - if it was in a call that reads, writes, syncs or resizes a file, and did not wait in a known
//!   function. It was then running or runnable, which is processor time in I/O. The call of a
//!   running thread is seldom visible;
//! - if it waited for a lock of the program, a futex or of a file, that is held during I/O
//!   ([`Kind::ProgramLock`]): see `Futexes`.
//! - if it waited for another thread of the program that writes or syncs
//!   ([`Kind::ProgramQueue`]): see `is_queue`.
//! - if it waited for completions (`io_uring_enter`, `io_getevents`) and the device has requests in
//!   flight for it. There must be at least one per such thread, in addition to those of blocked
//!   threads. Otherwise workers do the work, and are sampled themselves, or it is not I/O. Counting
//!   the ring would only dilute their waits.
//!
//! Threads that sleep or wait for the network, for work, or for a condition of the program are not
//! in I/O.

use crate::channels::{self, Does, Kind, Surroundings};
use crate::evidence::{Call, Evidence, SeenDevice, SeenFile, Sighting};
use crate::followers::is_queue;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A row of the wait table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// The object of the wait.
    pub kind: Kind,
    /// The innermost kernel function. None if the threads did not wait, or it was not visible.
    pub function: Option<String>,
    /// The system call. None if there was none, or it was not visible.
    pub call: Option<String>,
    /// The threads' name without numbers.
    pub task: String,
    /// The path of the file.
    pub file: Option<String>,
    /// The share of I/O time, from 0 to 1. None outside I/O.
    pub share: Option<f64>,
    /// The mean number of threads in this state.
    pub threads: f64,
    /// Number of samples in this state, over all threads.
    pub samples: u64,
}

impl Wait {
    /// The object of the wait, in words.
    pub fn object(&self) -> &'static str {
        let is_sync = self.call.as_deref().is_some_and(channels::syncs);
        match self.kind {
            Kind::PageCache if is_sync => "writeback of dirty pages",
            kind => kind.name(),
        }
    }
}

/// The rows of the table: time in I/O first, by its share, then the rest by the number of threads.
pub fn table(evidence: &Evidence) -> Vec<Wait> {
    let seen = seen(evidence);
    let in_io = total(seen.iter().filter(|seen| seen.is_io));
    let mut rows: BTreeMap<_, (bool, u64)> = BTreeMap::new();
    for seen in &seen {
        let call = seen.sighting.call.as_ref().map(|call| call.name.as_str());
        let file = seen.file.map(|file| file.path.as_str());
        let key = (seen.kind, seen.function, call, seen.sighting.task.as_str(), file, seen.is_io);
        let row = rows.entry(key).or_insert((seen.is_io, 0));
        row.1 = row.1.saturating_add(seen.sighting.count);
    }
    let mut table: Vec<Wait> = rows
        .into_iter()
        .map(|((kind, function, call, task, file, _), (is_io, samples))| Wait {
            kind,
            function: function.map(str::to_owned),
            call: call.map(str::to_owned),
            task: task.to_owned(),
            file: file.map(str::to_owned),
            share: is_io.then(|| part(samples, in_io)),
            threads: per_look(samples, evidence),
            samples,
        })
        .collect();
    table.sort_by_key(by_samples);
    table
}

/// The table with one row for waits that differ only in their file. Its `file` is then the number
/// of files: `16 files`.
pub fn over_files(table: &[Wait]) -> Vec<Wait> {
    let mut rows: Vec<(Wait, BTreeSet<&str>)> = Vec::new();
    for wait in table {
        let is_same = |(row, _): &&mut (Wait, BTreeSet<&str>)| {
            (row.kind, &row.function, &row.call, &row.task, row.share.is_some())
                == (wait.kind, &wait.function, &wait.call, &wait.task, wait.share.is_some())
                && row.file.is_some() == wait.file.is_some()
        };
        match rows.iter_mut().find(is_same) {
            Some((row, files)) => {
                row.share = row.share.zip(wait.share).map(|(one, other)| (one + other).min(1.0));
                row.threads += wait.threads;
                row.samples = row.samples.saturating_add(wait.samples);
                files.extend(wait.file.as_deref());
            }
            None => rows.push((wait.clone(), wait.file.as_deref().into_iter().collect())),
        }
    }
    let mut merged: Vec<Wait> = rows
        .into_iter()
        .map(|(row, files)| match files.len() {
            0 | 1 => row,
            count => Wait { file: Some(format!("{count} files")), ..row },
        })
        .collect();
    merged.sort_by_key(by_samples);
    merged
}

fn by_samples(wait: &Wait) -> (bool, Reverse<u64>) {
    (wait.share.is_none(), Reverse(wait.samples))
}

/// A sighting with its classification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub sighting: &'a Sighting,
    pub kind: Kind,
    pub function: Option<&'a str>,
    pub file: Option<&'a SeenFile>,
    pub is_io: bool,
}

/// The classified sightings.
pub(crate) fn seen(evidence: &Evidence) -> Vec<Seen<'_>> {
    let futexes = Futexes::of(evidence);
    let mut seen: Vec<_> =
        evidence.sightings.iter().map(|sighting| sort(sighting, evidence, &futexes)).collect();
    if device_works_for_rings(&seen, evidence) {
        seen.iter_mut().for_each(|seen| seen.is_io |= seen.kind == Kind::Completions);
    }
    seen
}

/// Whether threads that wait for completions wait for the device.
fn device_works_for_rings(seen: &[Seen<'_>], evidence: &Evidence) -> bool {
    use Kind::*;
    let threads = |which: &[Kind]| {
        per_look(total(seen.iter().filter(|seen| which.contains(&seen.kind))), evidence)
    };
    let in_flight = busiest(seen, evidence).map_or(0.0, |device| device.inflight);
    let rings = threads(&[Completions]);
    rings > 0.0 && in_flight - threads(&[Device, Flush, JournalCommit, PageCache]) >= rings
}

/// The total of samples.
pub(crate) fn total<'a>(seen: impl Iterator<Item = &'a Seen<'a>>) -> u64 {
    seen.fold(0, |sum, seen| sum.saturating_add(seen.sighting.count))
}

/// `count` as a share of `whole`, from 0 to 1.
pub(crate) fn part(count: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (count as f64 / whole as f64).min(1.0) }
}

/// The mean number of threads from a number of samples.
pub(crate) fn per_look(count: u64, evidence: &Evidence) -> f64 {
    if evidence.looks == 0 { 0.0 } else { count as f64 / evidence.looks as f64 }
}

/// The device with most samples in I/O on its files. If they are equal, the one with most samples
/// on its files, then with most requests in flight. A device may work for other programs.
pub(crate) fn busiest<'a>(seen: &[Seen<'_>], evidence: &'a Evidence) -> Option<&'a SeenDevice> {
    let samples = |device: &SeenDevice| {
        let is_its = |seen: &&Seen<'_>| seen.file.is_some_and(|file| file.device == device.number);
        // Whether rings wait for the device may not be decided yet.
        let is_io = |seen: &&Seen<'_>| seen.is_io || seen.kind == Kind::Completions;
        let its = || seen.iter().filter(is_its);
        (total(its().filter(is_io)), total(its()))
    };
    let devices = evidence.devices.iter().filter(|device| device.inflight.is_finite());
    devices.max_by(|one, other| {
        let by_requests = one.inflight.total_cmp(&other.inflight);
        samples(one).cmp(&samples(other)).then(by_requests)
    })
}

fn sort<'a>(sighting: &'a Sighting, evidence: &'a Evidence, futexes: &Futexes) -> Seen<'a> {
    let call = sighting.call.as_ref();
    let file = call.and_then(|call| call.file).and_then(|file| evidence.files.get(file));
    let waited_in = channels::waited_in(sighting);
    let kind = match waited_in {
        _ if matches!(sighting.state, 'T' | 't') => Kind::Stopped,
        None if sighting.state == 'R' => Kind::Processor,
        None => Kind::Unknown,
        Some(_) if futex(sighting).is_some_and(|futex| futexes.is_held_over_io(futex)) => {
            Kind::ProgramLock
        }
        Some(_) if futexes.is_queue(sighting.queue) => Kind::ProgramQueue,
        Some((function, outer)) => {
            let entry = channels::entry(function, Surroundings { outer, call, file });
            match entry.map_or(Kind::Unknown, |entry| entry.kind) {
                // Waits for the end of another process, for example. Without calls, no holder is
                // seen.
                Kind::ProgramLock if call.is_some() && !futexes.is_file_held(call) => Kind::Idle,
                kind => kind,
            }
        }
    };
    let is_unsorted = matches!(kind, Kind::Processor | Kind::Unknown);
    let is_io = kind.is_io()
        || is_unsorted && (call.is_some_and(is_of_file) || channels::is_in_io(&sighting.stack));
    Seen { sighting, kind, function: waited_in.map(|(function, _)| function), file, is_io }
}

/// Whether a call does I/O on a file, not on a pipe or a socket.
fn is_of_file(call: &Call) -> bool {
    channels::does(&call.name).is_some()
        && (call.file.is_some() || channels::is_for_files(&call.name))
}

/// A futex: its process, unless processes share it, and its address.
pub(crate) type Futex = (Option<u32>, u64);

/// The futex that a sampled thread is in a call on.
pub(crate) fn futex(sighting: &Sighting) -> Option<Futex> {
    let call = sighting.call.as_ref()?;
    Some(((!call.is_shared).then_some(sighting.process), call.futex?))
}

/// The futexes that are locks held during I/O, and the files with such locks.
///
/// A thread that waits for a lock and one that waits for work look the same: both sleep in `futex`.
/// A futex is a lock held during I/O if
///
/// - two threads or more waited for this one. The followers of a leader sleep on a futex each, and
///   those of a group commit on a semaphore each. They are idle, not blocked by a lock;
/// - its waits look like those of a lock ([`Call::is_lock`]), or that is not visible;
/// - threads of the same name write or sync, hardly ever more than one at a time, as a lock
///   enforces. They are of the same process, unless processes share the futex;
/// - and many of them do, in turn. A pool of workers with one thread beside it that logs is no
///   lock.
#[derive(Debug)]
struct Futexes {
    held_over_io: BTreeSet<Futex>,
    /// The files whose locks (flock, fcntl) are held during I/O, in the same sense.
    files_held: BTreeSet<Option<usize>>,
    /// Whether the waiters of each queue wait for a thread in a flush or write.
    queues: Vec<bool>,
}

/// With more threads that write or sync than this on average, nothing excludes them.
const WRITERS_MAX: f64 = 1.5;

/// With fewer waiters than this on average, there is no contention.
pub(crate) const WAITERS_MIN: f64 = 0.5;

/// The minimum share of time in which a thread writes or syncs under the lock.
const HELD_MIN: f64 = 0.3;

/// The threads that wait for a futex or a lock of a file.
#[derive(Debug, Default)]
struct Waiters<'a> {
    count: u64,
    threads: Threads,
    /// Samples in which it was used as a lock, and in which it was not.
    locked: u64,
    not_locked: u64,
    task: &'a str,
}

impl<'a> Waiters<'a> {
    fn add(&mut self, sighting: &'a Sighting) {
        self.count = self.count.saturating_add(sighting.count);
        self.threads.add(sighting);
        self.task = self.task.max(&sighting.task);
    }
}

/// Whether a thread waits for the lock of a file (flock, fcntl).
fn waits_for_file(sighting: &Sighting) -> bool {
    let Some((function, outer)) = channels::waited_in(sighting) else { return false };
    let around = Surroundings { outer, call: None, file: None };
    channels::entry(function, around).is_some_and(|entry| entry.kind == Kind::ProgramLock)
}

/// The number of threads in sightings. In a process it is the maximum, because a thread may be in
/// several.
#[derive(Debug, Default)]
struct Threads(BTreeMap<u32, u64>);

impl Threads {
    fn add(&mut self, sighting: &Sighting) {
        let threads = self.0.entry(sighting.process).or_default();
        *threads = sighting.threads.max(*threads);
    }

    fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, threads| sum.saturating_add(*threads))
    }
}

impl Futexes {
    fn of(evidence: &Evidence) -> Self {
        let mut futexes: BTreeMap<Futex, Waiters<'_>> = BTreeMap::new();
        for sighting in evidence.sightings.iter().filter(|sighting| sighting.state != 'R') {
            let Some((call, futex)) = sighting.call.as_ref().zip(futex(sighting)) else { continue };
            let waiters = futexes.entry(futex).or_default();
            waiters.add(sighting);
            match call.is_lock {
                Some(true) => waiters.locked = waiters.locked.saturating_add(sighting.count),
                Some(false) => {
                    waiters.not_locked = waiters.not_locked.saturating_add(sighting.count);
                }
                None => {}
            }
        }
        let is_held = |process: Option<u32>, waiters: &Waiters<'_>| {
            let (writing, writers) = writers(evidence, waiters.task, process);
            let threads = waiters.threads.count();
            let is_lock = match (waiters.locked, waiters.not_locked) {
                (0, 0) => writers.saturating_mul(2) >= threads,
                // A counter may pass through the value of a lock.
                (locked, not_locked) => locked > not_locked,
            };
            let held = per_look(writing, evidence);
            is_lock
                && threads >= 2
                && per_look(waiters.count, evidence) >= WAITERS_MIN
                && (HELD_MIN..=WRITERS_MAX).contains(&held)
                && writers >= 2
        };
        let mut files: BTreeMap<Option<usize>, Waiters<'_>> = BTreeMap::new();
        for sighting in evidence.sightings.iter().filter(|sighting| waits_for_file(sighting)) {
            let file = sighting.call.as_ref().and_then(|call| call.file);
            files.entry(file).or_default().add(sighting);
        }
        let files = files.into_iter().filter(|(_, waiters)| is_held(None, waiters));
        let futexes = futexes.into_iter().filter(|((process, _), it)| is_held(*process, it));
        let queues = evidence.queues.iter().map(|queue| is_queue(queue, evidence)).collect();
        Self {
            held_over_io: futexes.map(|(futex, _)| futex).collect(),
            files_held: files.map(|(file, _)| file).collect(),
            queues,
        }
    }

    fn is_queue(&self, queue: Option<usize>) -> bool {
        queue.is_some_and(|queue| self.queues.get(queue) == Some(&true))
    }

    fn is_file_held(&self, call: Option<&Call>) -> bool {
        self.files_held.contains(&call.and_then(|call| call.file))
    }

    fn is_held_over_io(&self, futex: Futex) -> bool {
        self.held_over_io.contains(&futex)
    }
}

/// How often threads with a name were sampled in calls that write or sync files, and how many such
/// threads there were. Only those of `process`, if it is given.
fn writers(evidence: &Evidence, task: &str, process: Option<u32>) -> (u64, u64) {
    let writes = |call: &Call| {
        is_of_file(call) && matches!(channels::does(&call.name), Some(Does::Writes | Does::Syncs))
    };
    let is_such = |sighting: &&Sighting| {
        sighting.task == task
            && process.is_none_or(|process| sighting.process == process)
            && sighting.call.as_ref().is_some_and(writes)
    };
    let (mut count, mut threads) = (0_u64, Threads::default());
    for sighting in evidence.sightings.iter().filter(is_such) {
        count = count.saturating_add(sighting.count);
        threads.add(sighting);
    }
    (count, threads.count())
}
