//! Records the activity of a program: its calls, its counters, and both over time.

use super::bins::Bins;
use super::counters::Counters;
use super::files::Files;
use super::process::Process;
use super::rates::{Rates, Target};
use super::trace::pairs::{Batch, Begun};
use super::trace::{Tracer, now_ns};
use crate::activity::{Activity, CallsFrom, Interval, Timeline};
use crate::channels::Kind;
use crate::evidence::Evidence;
use crate::waits;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Interval of reading the counters.
const COUNTERS_INTERVAL: Duration = Duration::from_millis(250);

/// The activity so far.
#[derive(Debug)]
pub struct Recorder {
    begun: Instant,
    /// The same moment by the clock of the trace.
    begun_ns: u64,
    /// The end of the observation by that clock. Later calls do not count.
    ended_ns: u64,
    counted: Instant,
    rates: Rates,
    counters: Counters,
    looks: Bins,
    /// The process of each thread, also of ended ones.
    owners: HashMap<u32, u32>,
}

impl Default for Recorder {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            begun_ns: now_ns(),
            ended_ns: u64::MAX,
            counted: now,
            rates: Rates::default(),
            counters: Counters::default(),
            looks: Bins::default(),
            owners: HashMap::new(),
        }
    }
}

impl Recorder {
    /// The observation begins now.
    pub fn begin(&mut self, processes: &BTreeMap<u32, Process>) {
        self.counters.begin(processes.values());
        let (owners, counters) =
            (std::mem::take(&mut self.owners), std::mem::take(&mut self.counters));
        *self = Self { owners, counters, ..Self::default() };
    }

    /// Learns the processes of threads.
    pub fn find_owners(&mut self, processes: &BTreeMap<u32, Process>) {
        let of = |process: &Process| {
            let pid = process.pid;
            process.threads.keys().map(move |tid| (*tid, pid)).collect::<Vec<_>>()
        };
        self.owners.extend(processes.values().flat_map(of));
    }

    /// The time since the begin, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// A sampling pass: takes the traced calls and, from time to time, the counters.
    pub fn look(
        &mut self,
        tracer: Option<&Tracer>,
        processes: &BTreeMap<u32, Process>,
        files: &mut Files,
    ) {
        self.looks.add(self.now_ns(), 1.0);
        self.take(tracer.map(Tracer::batches).unwrap_or_default(), processes, files);
        if self.counted.elapsed() >= COUNTERS_INTERVAL {
            self.counted = Instant::now();
            self.counters.read(processes.values());
        }
    }

    /// Adds traced calls.
    pub fn take(
        &mut self,
        batches: Vec<Batch>,
        processes: &BTreeMap<u32, Process>,
        files: &mut Files,
    ) {
        for batch in batches {
            // Threads were added after the begin of the first slice.
            if batch.to_ns <= self.begun_ns {
                continue;
            }
            let owners = &self.owners;
            let watched = (self.begun_ns, self.ended_ns);
            self.rates.add(batch, watched, |call| target(call, owners, processes, files));
        }
    }

    /// Reads the counters for the last time: the observation ends now.
    pub fn end(&mut self, processes: &BTreeMap<u32, Process>) {
        self.counters.read(processes.values());
        self.ended_ns = now_ns();
    }

    /// The activity, with the samples of each sighting of `evidence` over time.
    pub fn finish(self, evidence: &Evidence, has_calls: bool, sampled: &[Bins]) -> Activity {
        let counters = self.counters.total();
        let calls_from = match (has_calls, counters) {
            (true, _) => CallsFrom::Trace,
            (false, Some(_)) => CallsFrom::Counters,
            (false, None) => CallsFrom::Nothing,
        };
        let calls = match calls_from {
            CallsFrom::Trace => self.rates.over_time.clone(),
            CallsFrom::Counters => self.counters.calls.clone(),
            CallsFrom::Nothing => Bins::default(),
        };
        let sums = TimelineSums {
            calls,
            syncs: has_calls.then(|| self.rates.syncs_over_time.clone()),
            bytes: counters.map(|_| self.counters.bytes.clone()),
            looks: self.looks.clone(),
            sampled,
        };
        let timeline = timeline(evidence, calls_from, sums);
        let (calls, coverage) = has_calls
            .then(|| self.rates.finish(evidence.watched_ns))
            .map_or((None, None), |(calls, coverage)| (Some(calls), Some(coverage)));
        Activity { calls, coverage, counters, timeline: Some(timeline) }
    }
}

/// The file of a traced call: the one behind its descriptor now, or when that was last read.
fn target(
    call: Begun,
    owners: &HashMap<u32, u32>,
    processes: &BTreeMap<u32, Process>,
    files: &mut Files,
) -> Target {
    let mut descriptors = call.descriptors().into_iter().flatten().peekable();
    if descriptors.peek().is_none() {
        return Target::Unknown;
    }
    let Some(pid) = owners.get(&call.tid).copied() else { return Target::Ended };
    let process = processes.get(&pid);
    let mut target = |descriptor| behind(pid, descriptor, process, files);
    let targets: Vec<Target> = descriptors.map(&mut target).collect();
    let file = targets.iter().find(|target| matches!(target, Target::File(_)));
    file.copied().unwrap_or(targets[0])
}

fn behind(pid: u32, descriptor: i32, process: Option<&Process>, files: &mut Files) -> Target {
    if let Some(open) = process.and_then(|process| files.open(process, descriptor)) {
        return Target::File(open.file);
    }
    match files.last_known(pid, descriptor) {
        Some(Some(file)) => Target::File(file),
        Some(None) => Target::NoFile,
        None if process.is_none() => Target::Ended,
        None => Target::Unknown,
    }
}

/// The sums of a timeline.
struct TimelineSums<'a> {
    calls: Bins,
    syncs: Option<Bins>,
    bytes: Option<Bins>,
    looks: Bins,
    /// For each sighting.
    sampled: &'a [Bins],
}

fn timeline(evidence: &Evidence, calls_from: CallsFrom, sums: TimelineSums<'_>) -> Timeline {
    let all = [Some(&sums.calls), sums.syncs.as_ref(), sums.bytes.as_ref(), Some(&sums.looks)];
    let all = all.into_iter().flatten().chain(sums.sampled);
    let interval_ns = all.map(Bins::interval_ns).max().expect("at least the looks");
    let lengths = lengths(evidence.watched_ns, interval_ns);
    let count = lengths.len();
    let even = |bins: &Bins| {
        let mut sums = bins.clone().in_intervals_of(interval_ns);
        // A short last interval is part of the one before.
        let late: f64 = sums.drain(count.min(sums.len())..).sum();
        sums.resize(count, 0.0);
        sums[count - 1] += late;
        sums
    };
    let (calls, looks) = (even(&sums.calls), even(&sums.looks));
    let (syncs, bytes) = (sums.syncs.as_ref().map(even), sums.bytes.as_ref().map(even));
    let (mut in_io, mut waiting) = (vec![0.0; count], vec![0.0; count]);
    for (seen, bins) in waits::seen(evidence).iter().zip(sums.sampled) {
        for (index, samples) in even(bins).into_iter().enumerate().filter(|_| seen.is_io) {
            in_io[index] += samples;
            waiting[index] += if seen.kind == Kind::Processor { 0.0 } else { samples };
        }
    }
    let interval = |index: usize| Interval {
        length_ns: lengths[index],
        calls: calls[index],
        syncs: syncs.as_ref().map(|syncs| syncs[index]),
        bytes: bytes.as_ref().map(|bytes| bytes[index]),
        looks: looks[index] as u64,
        in_io: in_io[index] as u64,
        waiting: waiting[index] as u64,
    };
    Timeline { interval_ns, calls_from, intervals: (0..count).map(interval).collect() }
}

/// The lengths of the intervals. The last one has at least half of an interval, unless it is the
/// only one: the rate of a short one would be chance.
fn lengths(watched_ns: u64, interval_ns: u64) -> Vec<u64> {
    let rest_ns = watched_ns % interval_ns;
    let count = (watched_ns / interval_ns + u64::from(rest_ns * 2 >= interval_ns)).max(1);
    let mut lengths = vec![interval_ns; count as usize];
    lengths[count as usize - 1] = watched_ns - (count - 1) * interval_ns;
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_last_interval_is_part_of_the_one_before() {
        assert_eq!(lengths(1000, 250), [250; 4]);
        assert_eq!(lengths(1001, 250), [250, 250, 250, 251]);
        assert_eq!(lengths(1124, 250), [250, 250, 250, 374]);
        assert_eq!(lengths(1125, 250), [250, 250, 250, 250, 125]);
        assert_eq!((lengths(3, 250), lengths(0, 250)), (vec![3], vec![0]));
    }
}
