//! The wait table: what the threads were seen waiting for, and how much of the time spent in I/O that is.
//!
//! # Time in I/O
//!
//! Shares are of the time that threads spend in I/O, which is not the time of all threads: a server's threads sleep in
//! `epoll_wait` most of the time, and a thousand of them must neither hide that the one which logs waits for a lock, nor make a
//! wall out of it. A sighting is time in I/O
//!
//! - if the thread waited in a function of a file system, of the page cache or of the block layer. That includes the workers of
//!   io_uring, which are in no system call of their own;
//! - if it was in a call that reads, writes, syncs or shapes a file, and waited in a function that is not known, or did not
//!   wait: then it ran, or could have, and that is processor time in I/O. It is counted as far as the call could be seen, which
//!   for a thread that runs is seldom;
//! - if it waited for a lock of the program that is held over I/O ([`Kind::ProgramLock`]): see [`Futexes`].
//!
//! - if it waited for completions (`io_uring_enter`, `io_getevents`) and the device has requests in flight for it: at least one
//!   for each thread that waits so, beside those that other threads wait for themselves. Else the work is done by workers, which
//!   are seen themselves, or it is no I/O, and a ring that waits would only dilute their waits.
//!
//! Threads that sleep or wait for the network, for work, or for a condition of the program are not in I/O.

use crate::channels::{self, Does, Kind, Surroundings};
use crate::evidence::{Call, Evidence, SeenDevice, SeenFile, Sighting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A row of the wait table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// What was waited for.
    pub kind: Kind,
    /// The kernel function that was waited in. None if the threads did not wait, or it could not be seen.
    pub function: Option<String>,
    /// The system call. None if there was none, or it could not be seen.
    pub call: Option<String>,
    /// The threads' name, with numbers taken out.
    pub task: String,
    /// The path of the file.
    pub file: Option<String>,
    /// The part of the time in I/O, from 0 to 1. None for what is no I/O.
    pub share: Option<f64>,
    /// The mean number of threads that were here.
    pub threads: f64,
    /// Looks at which a thread was here, all threads together.
    pub samples: u64,
}

/// What threads were seen waiting for: time in I/O first, by its share, then the rest by the number of threads.
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
    table.sort_by_key(|wait| (wait.share.is_none(), std::cmp::Reverse(wait.samples)));
    table
}

/// A sighting, and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub sighting: &'a Sighting,
    pub kind: Kind,
    pub function: Option<&'a str>,
    pub file: Option<&'a SeenFile>,
    pub is_io: bool,
}

/// The sightings, sorted by what they are.
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
    let threads =
        |which: &[Kind]| per_look(total(seen.iter().filter(|seen| which.contains(&seen.kind))), evidence);
    let in_flight = busiest(seen, evidence).map_or(0.0, |device| device.inflight);
    let rings = threads(&[Completions]);
    rings > 0.0 && in_flight - threads(&[Device, Flush, JournalCommit, PageCache]) >= rings
}

/// Sightings, all together.
pub(crate) fn total<'a>(seen: impl Iterator<Item = &'a Seen<'a>>) -> u64 {
    seen.fold(0, |sum, seen| sum.saturating_add(seen.sighting.count))
}

/// `count` of `whole`, from 0 to 1.
pub(crate) fn part(count: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (count as f64 / whole as f64).min(1.0) }
}

/// The mean number of threads that so many sightings are.
pub(crate) fn per_look(count: u64, evidence: &Evidence) -> f64 {
    if evidence.looks == 0 { 0.0 } else { count as f64 / evidence.looks as f64 }
}

/// The device with most requests in flight: one of those that files of the threads lie on, where these are known. Others may lie
/// below them, count the same requests, and work for other programs.
pub(crate) fn busiest<'a>(seen: &[Seen<'_>], evidence: &'a Evidence) -> Option<&'a SeenDevice> {
    let devices = || evidence.devices.iter().filter(|device| device.inflight.is_finite());
    let is_its = |device: &&SeenDevice| {
        seen.iter().any(|seen| seen.file.is_some_and(|file| file.device == device.number))
    };
    let by_requests = |one: &&SeenDevice, other: &&SeenDevice| one.inflight.total_cmp(&other.inflight);
    devices().filter(is_its).max_by(by_requests).or_else(|| devices().max_by(by_requests))
}

fn sort<'a>(sighting: &'a Sighting, evidence: &'a Evidence, futexes: &Futexes) -> Seen<'a> {
    let call = sighting.call.as_ref();
    let file = call.and_then(|call| call.file).and_then(|file| evidence.files.get(file));
    let waited_in = channels::waited_in(sighting);
    let kind = match waited_in {
        None if sighting.state == 'R' => Kind::Processor,
        None => Kind::Unknown,
        Some(_) if call.and_then(|call| call.futex).is_some_and(|futex| futexes.is_held_over_io(futex)) => {
            Kind::ProgramLock
        }
        Some((function, outer)) => channels::entry(function, Surroundings { outer, call, file })
            .map_or(Kind::Unknown, |entry| entry.kind),
    };
    let is_unsorted = matches!(kind, Kind::Processor | Kind::Unknown);
    let is_io =
        kind.is_io() || is_unsorted && (call.is_some_and(is_of_file) || channels::is_in_io(&sighting.stack));
    Seen { sighting, kind, function: waited_in.map(|(function, _)| function), file, is_io }
}

/// Whether a call does I/O with a file, and not with a pipe or a socket.
fn is_of_file(call: &Call) -> bool {
    channels::does(&call.name).is_some() && (call.file.is_some() || channels::is_for_files(&call.name))
}

/// The futexes that are locks held over I/O.
///
/// A thread that waits for a lock and one that waits for work look the same: both sleep in `futex`. A futex is a lock held
/// over I/O if
///
/// - two threads or more waited for this one. The followers of a leader sleep on a futex each, and those of a group commit on
///   a semaphore each: that is no lock, they have nothing to do meanwhile;
/// - it is waited for as locks are ([`Call::is_lock`]), or that cannot be seen;
/// - threads of the same name write or sync, hardly ever more than one at a time, as it is when a lock lets only one do so;
/// - and many of them do, in turn. A pool of workers with one thread beside it that logs is no lock.
#[derive(Debug)]
struct Futexes {
    held_over_io: Vec<u64>,
}

/// More threads than this write or sync at a time, on average: nothing lets in only one of them.
const WRITERS_MAX: f64 = 1.5;

/// Fewer wait, on average: it is no crowd.
const WAITERS_MIN: f64 = 0.5;

/// So much of the time somebody must write or sync, for the lock to be held over that.
const HELD_MIN: f64 = 0.3;

/// The threads that wait for a futex.
#[derive(Debug, Default)]
struct Waiters<'a> {
    count: u64,
    /// The most that any one sighting had: a thread may be in several of them.
    threads: u64,
    is_lock: Option<bool>,
    task: &'a str,
}

impl Futexes {
    fn of(evidence: &Evidence) -> Self {
        let mut futexes: BTreeMap<u64, Waiters<'_>> = BTreeMap::new();
        for sighting in evidence.sightings.iter().filter(|sighting| sighting.state != 'R') {
            let Some(call) = &sighting.call else { continue };
            let Some(futex) = call.futex else { continue };
            let waiters = futexes.entry(futex).or_default();
            waiters.count = waiters.count.saturating_add(sighting.count);
            waiters.threads = waiters.threads.max(sighting.threads);
            waiters.is_lock = waiters.is_lock.max(call.is_lock);
            waiters.task = waiters.task.max(&sighting.task);
        }
        let is_held = |waiters: &Waiters<'_>| {
            let (writing, writers) = writers(evidence, waiters.task);
            let is_lock = waiters.is_lock.unwrap_or(writers.saturating_mul(2) >= waiters.threads);
            let held = per_look(writing, evidence);
            is_lock
                && waiters.threads >= 2
                && per_look(waiters.count, evidence) >= WAITERS_MIN
                && (HELD_MIN..=WRITERS_MAX).contains(&held)
                && writers >= 2
        };
        let held_over_io =
            futexes.into_iter().filter(|(_, waiters)| is_held(waiters)).map(|(futex, _)| futex);
        Self { held_over_io: held_over_io.collect() }
    }

    fn is_held_over_io(&self, futex: u64) -> bool {
        self.held_over_io.contains(&futex)
    }
}

/// How often threads of a name were seen in calls that write or sync files, and how many of them.
fn writers(evidence: &Evidence, task: &str) -> (u64, u64) {
    let writes = |call: &Call| {
        is_of_file(call) && matches!(channels::does(&call.name), Some(Does::Writes | Does::Syncs))
    };
    evidence
        .sightings
        .iter()
        .filter(|sighting| sighting.task == task && sighting.call.as_ref().is_some_and(writes))
        .fold((0, 0), |(count, threads), sighting| {
            (sighting.count.saturating_add(count), threads.max(sighting.threads))
        })
}
