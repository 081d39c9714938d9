//! The classified evidence, and the figures that verdicts use.

use crate::channels::{Does, Kind, does};
use crate::evidence::{DirectIo, Evidence, SeenDevice, SeenFile, Subject, Workload};
use crate::waits::{self, Seen};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub struct Case<'a> {
    pub evidence: &'a Evidence,
    pub seen: Vec<Seen<'a>>,
    /// Samples in I/O.
    pub in_io: u64,
}

impl<'a> Case<'a> {
    pub fn of(evidence: &'a Evidence) -> Self {
        let seen = waits::seen(evidence);
        let in_io = waits::total(seen.iter().filter(|seen| seen.is_io));
        Self { evidence, seen, in_io }
    }

    pub fn count(&self, which: impl Fn(&Seen<'_>) -> bool) -> u64 {
        waits::total(self.seen.iter().filter(|seen| which(seen)))
    }

    /// The share of I/O time, from 0 to 1.
    pub fn share(&self, which: impl Fn(&Seen<'_>) -> bool) -> f64 {
        waits::part(self.count(|seen| seen.is_io && which(seen)), self.in_io)
    }

    pub fn share_of(&self, kind: Kind) -> f64 {
        self.share(|seen| seen.kind == kind)
    }

    /// Samples in I/O, and runnable samples of threads that also do I/O. A running thread's system
    /// call is seldom visible.
    pub fn active(&self) -> u64 {
        let tasks: BTreeSet<&str> = self
            .seen
            .iter()
            .filter(|seen| seen.is_io)
            .map(|seen| seen.sighting.task.as_str())
            .collect();
        self.count(|seen| {
            seen.is_io
                || seen.kind == Kind::Processor && tasks.contains(seen.sighting.task.as_str())
        })
    }

    /// The mean number of threads.
    pub fn threads(&self, which: impl Fn(&Seen<'_>) -> bool) -> f64 {
        waits::per_look(self.count(which), self.evidence)
    }

    pub fn threads_in(&self, kind: Kind) -> f64 {
        self.threads(|seen| seen.kind == kind)
    }

    /// Events per second, from a count over the observation.
    pub fn per_second(&self, count: u64) -> f64 {
        match self.evidence.watched_ns {
            0 => 0.0,
            watched_ns => count as f64 * 1e9 / watched_ns as f64,
        }
    }

    pub fn workload(&self) -> Option<&'a Workload> {
        match &self.evidence.subject {
            Subject::Workload(workload) => Some(workload),
            Subject::Program { .. } => None,
        }
    }

    /// Traced direct writes of a file.
    pub fn direct_writes(&self, file: &SeenFile) -> impl Iterator<Item = &'a DirectIo> {
        let files = &self.evidence.files;
        let place = files.iter().position(|other| std::ptr::eq(other, file));
        let direct = self.evidence.direct.iter().flatten();
        direct
            .filter(move |direct| direct.is_write && direct.file.is_some() && direct.file == place)
    }

    /// The busiest device of the threads.
    pub fn busiest(&self) -> Option<&'a SeenDevice> {
        waits::busiest(&self.seen, self.evidence)
    }

    /// The functions of the waits, the most frequent first, each with its share of I/O time.
    pub fn functions(&self, which: impl Fn(&Seen<'_>) -> bool) -> Vec<(&'a str, f64)> {
        self.by(|seen| which(seen).then_some(seen.function?))
    }

    /// The system calls, in the same way.
    pub fn calls(&self, which: impl Fn(&Seen<'_>) -> bool) -> Vec<(&'a str, f64)> {
        self.by(|seen| which(seen).then_some(seen.sighting.call.as_ref()?.name.as_str()))
    }

    /// The files, in the same way.
    pub fn files(&self, which: impl Fn(&Seen<'_>) -> bool) -> Vec<(&'a str, f64)> {
        self.by(|seen| which(seen).then_some(seen.file?.path.as_str()))
    }

    fn by(&self, name: impl Fn(&Seen<'a>) -> Option<&'a str>) -> Vec<(&'a str, f64)> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for seen in self.seen.iter().filter(|seen| seen.is_io) {
            if let Some(name) = name(seen) {
                let count = counts.entry(name).or_default();
                *count = count.saturating_add(seen.sighting.count);
            }
        }
        let mut shares: Vec<_> = counts
            .into_iter()
            .map(|(name, count)| (name, waits::part(count, self.in_io)))
            .collect();
        shares.sort_by(|one, other| other.1.total_cmp(&one.1));
        shares
    }
}

/// The file, if all sightings are of one.
pub fn only<'a>(files: &[(&'a str, f64)]) -> Option<&'a str> {
    match files {
        [(file, _)] => Some(file),
        _ => None,
    }
}

/// Whether `dioxide run` may help: it leaves files alone that are open without O_DIRECT.
pub fn may_run<'a>(files: impl IntoIterator<Item = &'a SeenFile>) -> bool {
    let mut files = files.into_iter().peekable();
    files.peek().is_none() || files.any(|file| file.is_direct)
}

/// The effect of a sighting's system call on files.
pub fn doing(seen: &Seen<'_>) -> Option<Does> {
    seen.sighting.call.as_ref().and_then(|call| does(&call.name))
}

/// Whether a sighting is of a worker of io_uring.
pub fn is_worker(seen: &Seen<'_>) -> bool {
    seen.sighting.task.starts_with("iou-wrk")
}
