//! Pairs the begin and the end of system calls.

use super::text::{Event, EventKind};
use crate::activity::Latency;
use std::collections::HashMap;
use syscalls::Sysno;

/// The traced calls.
pub const TRACED: [Sysno; 26] = [
    Sysno::read,
    Sysno::readv,
    Sysno::pread64,
    Sysno::preadv,
    Sysno::preadv2,
    Sysno::write,
    Sysno::writev,
    Sysno::pwrite64,
    Sysno::pwritev,
    Sysno::pwritev2,
    Sysno::copy_file_range,
    Sysno::sendfile,
    Sysno::splice,
    Sysno::fsync,
    Sysno::fdatasync,
    Sysno::sync_file_range,
    Sysno::syncfs,
    Sysno::sync,
    Sysno::msync,
    Sysno::fallocate,
    Sysno::ftruncate,
    Sysno::truncate,
    Sysno::io_submit,
    Sysno::io_getevents,
    Sysno::io_pgetevents,
    Sysno::io_uring_enter,
];

/// The filter of the events: the numbers of these calls.
pub fn filter() -> String {
    let numbers: Vec<String> = TRACED.iter().map(|call| format!("id == {}", call.id())).collect();
    numbers.join(" || ")
}

/// A call at its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Begun {
    pub tid: u32,
    pub number: usize,
    /// The first three.
    pub arguments: [u64; 3],
}

impl Begun {
    pub fn name(self) -> &'static str {
        Sysno::new(self.number).map_or("unknown", |call| call.name())
    }

    /// The descriptors of which one is of the file. None for calls on a context of asynchronous
    /// I/O, on memory, on a path or on all files.
    pub fn descriptors(self) -> [Option<i32>; 2] {
        use Sysno::{
            copy_file_range, io_getevents, io_pgetevents, io_submit, io_uring_enter, msync,
            sendfile, splice, sync, truncate,
        };
        let [first, second, third] = self.arguments.map(|argument| Some(argument as i32));
        match Sysno::new(self.number) {
            Some(io_submit | io_getevents | io_pgetevents | io_uring_enter) => [None; 2],
            None | Some(msync | sync | truncate) => [None; 2],
            Some(copy_file_range) => [third, None],
            // Into the first, which is a socket mostly.
            Some(sendfile) => [first, second],
            Some(splice) => [first, third],
            Some(_) => [first, None],
        }
    }

    /// The bytes that a read or write asks for, if an argument has them.
    pub fn wanted_bytes(self) -> Option<u64> {
        let has_length = [Sysno::read, Sysno::write, Sysno::pread64, Sysno::pwrite64];
        has_length.contains(&Sysno::new(self.number)?).then_some(self.arguments[2])
    }
}

/// A call whose begin was traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracedCall {
    pub begun: Begun,
    pub latency: Latency,
    /// None if its end was not traced.
    pub result: Option<i64>,
    /// The number of calls that it stands for.
    pub weight: f64,
}

/// The calls of a slice, which stand for the time since the slice before.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub from_ns: u64,
    pub to_ns: u64,
    /// Of this time, the traced part.
    pub traced_ns: u64,
    pub lost_events: u64,
    /// The calls that began in it, as far as it is known how they ended, with those of former
    /// slices that ended in it.
    pub calls: Vec<TracedCall>,
}

/// The calls that have not returned.
#[derive(Debug, Default)]
pub struct OpenCalls(HashMap<u32, (Begun, u64, f64)>);

impl OpenCalls {
    /// Adds the events of a slice.
    pub fn add(&mut self, events: &[Event], weight: f64) -> Vec<TracedCall> {
        let mut calls = Vec::new();
        for event in events {
            match event.what {
                EventKind::CallBegin { number, arguments } => {
                    let begun = Begun { tid: event.tid, number, arguments };
                    // The end of the former one is missing.
                    self.0.insert(event.tid, (begun, event.at_ns, weight));
                }
                EventKind::CallEnd { number, result } => {
                    let Some((begun, since_ns, weight)) = self.0.remove(&event.tid) else {
                        continue;
                    };
                    if begun.number == number {
                        let ns = event.at_ns.saturating_sub(since_ns);
                        let latency = Latency { ns, is_at_least: false };
                        calls.push(TracedCall { begun, latency, result: Some(result), weight });
                    }
                }
                _ => {}
            }
        }
        calls
    }

    /// The trace has a gap from this moment on, so the ends of these calls will not be known.
    pub fn interrupt(&mut self, at_ns: u64) -> Vec<TracedCall> {
        let open = |(_, (begun, since_ns, weight)): (u32, (Begun, u64, f64))| {
            let latency = Latency { ns: at_ns.saturating_sub(since_ns), is_at_least: true };
            TracedCall { begun, latency, result: None, weight }
        };
        self.0.drain().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels;

    const WRITE: usize = Sysno::pwrite64 as usize;
    const SYNC: usize = Sysno::fdatasync as usize;

    fn begin(tid: u32, at_us: u64, number: usize) -> Event {
        let what = EventKind::CallBegin { number, arguments: [3, 0, 4096] };
        Event { tid, at_ns: at_us * 1000, what }
    }

    fn end(tid: u32, at_us: u64, number: usize) -> Event {
        Event { tid, at_ns: at_us * 1000, what: EventKind::CallEnd { number, result: 4096 } }
    }

    fn lengths(calls: &[TracedCall]) -> Vec<(u32, u64, bool)> {
        let mut lengths: Vec<_> = calls
            .iter()
            .map(|call| (call.begun.tid, call.latency.ns / 1000, call.latency.is_at_least))
            .collect();
        lengths.sort_unstable();
        lengths
    }

    #[test]
    fn each_end_belongs_to_the_begin_of_its_thread() {
        let mut pairs = OpenCalls::default();
        let events = [
            begin(1, 10, WRITE),
            begin(2, 11, SYNC),
            end(1, 15, WRITE),
            begin(1, 16, WRITE),
            end(2, 40, SYNC),
        ];
        assert_eq!(lengths(&pairs.add(&events, 1.0)), [(1, 5, false), (2, 29, false)]);
        assert_eq!(lengths(&pairs.interrupt(20_000)), [(1, 4, true)]);
        assert!(pairs.interrupt(30_000).is_empty());
    }

    #[test]
    fn calls_are_followed_into_the_next_slice() {
        let mut pairs = OpenCalls::default();
        assert!(pairs.add(&[begin(1, 10, SYNC)], 3.0).is_empty());
        let calls = pairs.add(&[end(1, 400, SYNC)], 1.0);
        assert_eq!((lengths(&calls), calls[0].weight), (vec![(1, 390, false)], 3.0));
    }

    #[test]
    fn an_end_without_its_begin_is_no_call() {
        let mut pairs = OpenCalls::default();
        assert!(pairs.add(&[end(1, 10, WRITE)], 1.0).is_empty());
        assert!(pairs.add(&[begin(1, 20, WRITE), end(1, 30, SYNC)], 1.0).is_empty());
    }

    #[test]
    fn descriptors_and_lengths() {
        let begun = |number: Sysno| Begun { tid: 1, number: number as usize, arguments: [3, 5, 9] };
        assert_eq!(begun(Sysno::pread64).descriptors(), [Some(3), None]);
        assert_eq!(begun(Sysno::copy_file_range).descriptors(), [Some(9), None]);
        assert_eq!(begun(Sysno::sendfile).descriptors(), [Some(3), Some(5)]);
        assert_eq!(begun(Sysno::splice).descriptors(), [Some(3), Some(9)]);
        for number in [Sysno::io_uring_enter, Sysno::io_pgetevents, Sysno::sync, Sysno::msync] {
            assert_eq!(begun(number).descriptors(), [None; 2]);
        }
        assert_eq!(begun(Sysno::pread64).wanted_bytes(), Some(9));
        assert_eq!(begun(Sysno::fdatasync).wanted_bytes(), None);
        assert_eq!(begun(Sysno::pread64).name(), "pread64");
    }

    /// msync, sync, truncate, sendfile and splice were missing.
    #[test]
    fn each_call_on_files_is_traced() {
        let is_on_files = |call: &Sysno| channels::does(call.name()).is_some();
        let missing: Vec<_> =
            Sysno::iter().filter(is_on_files).filter(|call| !TRACED.contains(call)).collect();
        assert_eq!(missing, []);
    }

    #[test]
    fn the_filter_has_each_call() {
        assert_eq!(filter().matches("id == ").count(), TRACED.len());
        assert!(filter().contains(&format!("id == {} ||", Sysno::pwrite64.id())));
    }
}
