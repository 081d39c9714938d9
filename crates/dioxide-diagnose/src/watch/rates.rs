//! Traced calls, by name and file, with their rates over time.

use super::bins::Bins;
use super::latencies::Latencies;
use super::trace::pairs::{Batch, Begun, TracedCall};
use crate::activity::{CallStats, Coverage};
use crate::channels;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Sums over the slices of the trace.
#[derive(Debug, Default)]
pub struct Rates {
    /// By number and file.
    calls: HashMap<(usize, Option<usize>), CallSums>,
    pub over_time: Bins,
    pub syncs_over_time: Bins,
    traced_ns: u64,
    lost_events: u64,
    ended_calls: f64,
}

#[derive(Debug, Default)]
struct CallSums {
    name: &'static str,
    count: f64,
    bytes: f64,
    errors: f64,
    latencies: Latencies,
}

/// The file of a call, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Index of the file.
    File(usize),
    /// A pipe, a socket or the like.
    NoFile,
    Unknown,
    /// Unknown, because the process ended too soon.
    Ended,
}

impl Rates {
    /// Adds a slice, as far as it is before `ended_ns`. `begun_ns` and `ended_ns` are the begin and
    /// the end of the observation by the clock of the trace.
    pub fn add(
        &mut self,
        batch: Batch,
        (begun_ns, ended_ns): (u64, u64),
        mut target: impl FnMut(Begun) -> Target,
    ) {
        let Batch { from_ns, to_ns, traced_ns, lost_events, calls } = batch;
        if from_ns >= ended_ns {
            return;
        }
        let length_ns = to_ns.saturating_sub(from_ns).max(1);
        let to_ns = to_ns.min(ended_ns);
        let part = to_ns.saturating_sub(from_ns).max(1) as f64 / length_ns as f64;
        self.traced_ns += (traced_ns as f64 * part) as u64;
        self.lost_events = self.lost_events.saturating_add(lost_events);
        let mut known: HashMap<Begun, Target> = HashMap::new();
        let mut by_call: HashMap<(usize, Option<usize>), Vec<TracedCall>> = HashMap::new();
        for mut call in calls {
            call.weight *= part;
            let [first, second] = call.begun.descriptors().map(|one| one.unwrap_or(-1) as u64);
            let of_call = Begun { arguments: [first, second, 0], ..call.begun };
            let target = *known.entry(of_call).or_insert_with(|| target(call.begun));
            if let Some(file) = counted(call.begun.name(), target) {
                by_call.entry((call.begun.number, file)).or_default().push(call);
            } else if target == Target::Ended {
                self.ended_calls += call.weight;
            }
        }
        let (from_ns, to_ns) = (from_ns.saturating_sub(begun_ns), to_ns.saturating_sub(begun_ns));
        for (key, calls) in by_call {
            let sums = self.calls.entry(key).or_default();
            sums.name = calls[0].begun.name();
            let count: f64 = calls.iter().map(|call| call.weight).sum();
            sums.add(&calls, count);
            self.over_time.spread(from_ns, to_ns, count);
            if channels::syncs(sums.name) {
                self.syncs_over_time.spread(from_ns, to_ns, count);
            }
        }
    }

    /// All calls, the most frequent first, and their coverage of this time.
    pub fn finish(self, watched_ns: u64) -> (Vec<CallStats>, Coverage) {
        let share = (self.traced_ns as f64 / watched_ns.max(1) as f64).min(1.0);
        let ended_calls = self.ended_calls.round() as u64;
        let coverage = Coverage { share, lost_events: self.lost_events, ended_calls };
        let stats = |((_, file), sums): ((usize, Option<usize>), CallSums)| {
            let quantile = |share| sums.latencies.quantile(share);
            Some(CallStats {
                name: sums.name.to_owned(),
                file,
                count: sums.count.round() as u64,
                bytes: sums.bytes.round() as u64,
                errors: sums.errors.round() as u64,
                p50: quantile(0.5)?,
                p99: quantile(0.99)?,
                max: sums.latencies.max()?,
                traced: sums.latencies.count(),
            })
        };
        let mut calls: Vec<_> = self.calls.into_iter().filter_map(stats).collect();
        calls.sort_by(|one, other| {
            let by = |call: &CallStats| (Reverse(call.count), call.name.clone(), call.file);
            by(one).cmp(&by(other))
        });
        (calls, coverage)
    }
}

impl CallSums {
    fn add(&mut self, calls: &[TracedCall], count: f64) {
        self.count += count;
        let (mut ended, mut bytes, mut wanted) = (0.0, 0.0, 0.0);
        for TracedCall { begun, latency, result, weight } in calls {
            self.latencies.add(*latency, *weight);
            wanted += weight * begun.wanted_bytes().unwrap_or(0) as f64;
            let Some(result) = result else { continue };
            ended += weight;
            if *result < 0 {
                self.errors += weight;
            } else if moves_bytes(begun.name()) {
                bytes += weight * *result as f64;
            }
        }
        // Calls whose end is not traced are like the others.
        self.bytes += if ended > 0.0 { bytes * count / ended } else { wanted };
    }
}

/// Whether the result of a call is a number of bytes.
fn moves_bytes(name: &str) -> bool {
    use channels::Does::{Reads, Writes};
    matches!(channels::does(name), Some(Reads | Writes))
}

/// Whether a call counts, and its file. A read or write of an unknown descriptor may be one of a
/// pipe.
fn counted(name: &str, target: Target) -> Option<Option<usize>> {
    let is_asynchronous =
        matches!(name, "io_submit" | "io_getevents" | "io_pgetevents" | "io_uring_enter");
    match target {
        Target::File(file) => Some(Some(file)),
        _ if is_asynchronous => Some(None),
        Target::NoFile => None,
        Target::Unknown | Target::Ended => channels::is_for_files(name).then_some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::Latency;
    use syscalls::Sysno;

    const SECOND: u64 = 1_000_000_000;

    fn call(number: Sysno, ns: u64, result: Option<i64>, weight: f64) -> TracedCall {
        let begun = Begun { tid: 1, number: number.id() as usize, arguments: [3, 0, 4096] };
        TracedCall { begun, latency: Latency { ns, is_at_least: result.is_none() }, result, weight }
    }

    fn batch(calls: Vec<TracedCall>) -> Batch {
        Batch {
            from_ns: 5 * SECOND,
            to_ns: 6 * SECOND,
            traced_ns: SECOND / 2,
            lost_events: 7,
            calls,
        }
    }

    fn rates(calls: Vec<TracedCall>, target: Target) -> Rates {
        let mut rates = Rates::default();
        rates.add(batch(calls), (5 * SECOND, u64::MAX), |_| target);
        rates
    }

    #[test]
    fn calls_are_counted_by_name_and_file() {
        let calls = vec![
            call(Sysno::pwrite64, 1000, Some(4096), 2.0),
            call(Sysno::pwrite64, 3000, Some(4096), 2.0),
            call(Sysno::pwrite64, 3000, Some(-5), 2.0),
            call(Sysno::fdatasync, 9_000_000, Some(0), 2.0),
        ];
        let rates = rates(calls, Target::File(4));
        let syncs = rates.syncs_over_time.clone().in_intervals_of(SECOND);
        assert_eq!(syncs, [2.0]);
        let (calls, coverage) = rates.finish(SECOND);
        assert_eq!(coverage, Coverage { share: 0.5, lost_events: 7, ended_calls: 0 });
        let [writes, sync] = &calls[..] else { panic!("{calls:?}") };
        assert_eq!((&*writes.name, writes.file, writes.count), ("pwrite64", Some(4), 6));
        assert_eq!((writes.bytes, writes.errors, writes.traced), (16384, 2, 3));
        assert_eq!((writes.max.ns, writes.max.is_at_least), (3000, false));
        assert_eq!((&*sync.name, sync.bytes, sync.count), ("fdatasync", 0, 2));
    }

    /// They went into a last interval, which was too short for them.
    #[test]
    fn calls_after_the_end_of_the_observation_do_not_count() {
        let counts = |ended_ns| {
            let mut rates = Rates::default();
            let calls = vec![call(Sysno::pwrite64, 1000, Some(4096), 100.0)];
            rates.add(batch(calls), (5 * SECOND, ended_ns), |_| Target::File(0));
            let over_time = rates.over_time.clone().in_intervals_of(SECOND / 4);
            let (calls, coverage) = rates.finish(SECOND / 4);
            (over_time, calls.first().map(|call| call.count), coverage.share)
        };
        assert_eq!(counts(5 * SECOND + SECOND / 4), (vec![25.0], Some(25), 0.5));
        assert_eq!(counts(5 * SECOND), (vec![], None, 0.0));
    }

    #[test]
    fn bytes_of_calls_without_an_end_are_those_of_the_others() {
        let open = call(Sysno::pwrite64, 1000, None, 1.0);
        let ended = call(Sysno::pwrite64, 1000, Some(512), 1.0);
        let bytes = |calls| rates(calls, Target::File(0)).finish(SECOND).0[0].bytes;
        assert_eq!(bytes(vec![open, open, ended]), 3 * 512);
        assert_eq!(bytes(vec![open, open]), 2 * 4096, "then what they ask for");
    }

    #[test]
    fn pipes_are_no_files() {
        let names = |target| {
            let calls = [Sysno::write, Sysno::pwrite64, Sysno::io_uring_enter];
            let calls = calls.map(|number| call(number, 1000, Some(1), 1.0)).into();
            let (calls, _) = rates(calls, target).finish(SECOND);
            calls.into_iter().map(|call| call.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Target::NoFile), ["io_uring_enter"]);
        assert_eq!(names(Target::Unknown), ["io_uring_enter", "pwrite64"]);
        assert_eq!(names(Target::File(0)), ["io_uring_enter", "pwrite64", "write"]);
    }

    /// A shell that starts a `dd` for each write showed 70 of 180 writes a second.
    #[test]
    fn calls_of_processes_that_ended_too_soon_are_counted() {
        let calls =
            [Sysno::write, Sysno::pwrite64].map(|number| call(number, 1000, Some(1), 3.0)).into();
        let (calls, coverage) = rates(calls, Target::Ended).finish(SECOND);
        assert_eq!((calls.len(), calls[0].count, coverage.ended_calls), (1, 3, 3));
    }
}
