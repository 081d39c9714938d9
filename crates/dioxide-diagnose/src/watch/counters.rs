//! The counters of `/proc/PID/io`, over all watched processes.

use super::bins::Bins;
use super::process::Process;
use crate::activity::IoCounters;
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Sums since the begin of the observation.
#[derive(Debug)]
pub struct Counters {
    begun: Instant,
    /// The same moment as the kernel has the start of processes.
    begun_ticks: u64,
    read_at: Instant,
    /// The last reading of each process.
    processes: BTreeMap<u32, ProcessReading>,
    total: IoCounters,
    /// Whether a file was readable.
    is_known: bool,
    pub calls: Bins,
    pub bytes: Bins,
}

/// The counters of a process. They contain those of its children that it has waited for.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessReading {
    io: IoCounters,
    parent: u32,
    /// Whether it started before the observation.
    is_old: bool,
}

impl Default for Counters {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            begun_ticks: ticks(),
            read_at: now,
            processes: BTreeMap::new(),
            total: IoCounters::default(),
            is_known: false,
            calls: Bins::default(),
            bytes: Bins::default(),
        }
    }
}

impl Counters {
    /// Reads them for the first time. Processes that start later count from zero.
    pub fn begin<'a>(&mut self, processes: impl Iterator<Item = &'a Process>) {
        self.read(processes);
        *self = Self {
            processes: std::mem::take(&mut self.processes),
            is_known: self.is_known,
            ..Self::default()
        };
    }

    /// Reads them again, and adds the difference.
    pub fn read<'a>(&mut self, processes: impl Iterator<Item = &'a Process>) {
        // Before the parents are read, which may still wait for a child.
        let is_gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
        let gone = self.processes.keys().copied().filter(is_gone).collect();
        let reading = |process: &Process| Some((process.pid, self.reading(process)?));
        let readings = processes.filter_map(reading).collect();
        let sum = self.pass(gone, readings);
        let from_ns = (self.read_at - self.begun).as_nanos() as u64;
        self.read_at = Instant::now();
        let to_ns = (self.read_at - self.begun).as_nanos() as u64;
        self.calls.spread(from_ns, to_ns, sum.calls() as f64);
        self.bytes.spread(from_ns, to_ns, sum.bytes() as f64);
        self.total = added(self.total, sum);
    }

    fn reading(&self, process: &Process) -> Option<ProcessReading> {
        let io = parse(&process.read("io")?)?;
        let (parent, started) = process.read("stat").as_deref().and_then(parse_stat)?;
        Some(ProcessReading { io, parent, is_old: started < self.begun_ticks })
    }

    /// What was done since the pass before. The counters of a parent now contain those of its
    /// children that are gone, which were counted already.
    fn pass(&mut self, gone: Vec<u32>, readings: Vec<(u32, ProcessReading)>) -> IoCounters {
        let gone: BTreeMap<u32, ProcessReading> =
            gone.into_iter().filter_map(|pid| self.processes.remove_entry(&pid)).collect();
        let mut inherited: BTreeMap<u32, IoCounters> = BTreeMap::new();
        for child in gone.values() {
            let mut heir = child.parent;
            for _ in 0..gone.len() {
                heir = gone.get(&heir).map_or(heir, |parent| parent.parent);
            }
            let its = inherited.entry(heir).or_default();
            *its = added(*its, child.io);
        }
        let mut sum = IoCounters::default();
        for (pid, now) in readings {
            self.is_known = true;
            let before = match self.processes.insert(pid, now) {
                Some(before) => before.io,
                None if now.is_old => now.io,
                None => IoCounters::default(),
            };
            let its = inherited.get(&pid).copied().unwrap_or_default();
            sum = added(sum, since(since(now.io, before), its));
        }
        sum
    }

    /// The totals. None if they were not readable.
    pub fn total(&self) -> Option<IoCounters> {
        self.is_known.then_some(self.total)
    }
}

/// The time since the start of the machine.
fn ticks() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let per_second = clock_ticks_per_second();
    time.tv_sec as u64 * per_second + time.tv_nsec as u64 * per_second / 1_000_000_000
}

/// The parent and the start of a process, by its `stat`.
pub(super) fn parse_stat(text: &str) -> Option<(u32, u64)> {
    let mut fields = text.rsplit_once(") ")?.1.split(' ').skip(1);
    Some((fields.next()?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

fn parse(text: &str) -> Option<IoCounters> {
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(IoCounters {
        read_calls: field("syscr:")?,
        write_calls: field("syscw:")?,
        // Not on kernels without CONFIG_TASK_IO_ACCOUNTING.
        read_bytes: field("read_bytes:").unwrap_or(0),
        write_bytes: field("write_bytes:").unwrap_or(0),
    })
}

fn added(one: IoCounters, other: IoCounters) -> IoCounters {
    IoCounters {
        read_calls: one.read_calls.saturating_add(other.read_calls),
        write_calls: one.write_calls.saturating_add(other.write_calls),
        read_bytes: one.read_bytes.saturating_add(other.read_bytes),
        write_bytes: one.write_bytes.saturating_add(other.write_bytes),
    }
}

fn since(now: IoCounters, before: IoCounters) -> IoCounters {
    IoCounters {
        read_calls: now.read_calls.saturating_sub(before.read_calls),
        write_calls: now.write_calls.saturating_sub(before.write_calls),
        read_bytes: now.read_bytes.saturating_sub(before.read_bytes),
        write_bytes: now.write_bytes.saturating_sub(before.write_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "rchar: 10\nwchar: 20\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\n\
                        write_bytes: 8192\ncancelled_write_bytes: 512\n";

    #[test]
    fn the_file_of_the_kernel() {
        let expected =
            IoCounters { read_calls: 3, write_calls: 4, read_bytes: 4096, write_bytes: 8192 };
        assert_eq!(parse(TEXT), Some(expected));
        assert_eq!((expected.calls(), expected.bytes()), (7, 12288));
        assert_eq!(parse("rchar: 10\n"), None);
    }

    fn at(write_bytes: u64, parent: u32) -> ProcessReading {
        let io = IoCounters { write_bytes, ..IoCounters::default() };
        ProcessReading { io, parent, is_old: false }
    }

    #[test]
    fn a_reaped_child_is_not_counted_again_with_its_parent() {
        let mut counters = Counters::default();
        let mut pass = |gone, readings| counters.pass(gone, readings).write_bytes;
        assert_eq!(pass(vec![], vec![(1, at(10, 0)), (2, at(100, 1)), (3, at(7, 2))]), 117);
        // The last 5 of process 2 are known from its parent only.
        assert_eq!(pass(vec![2, 3], vec![(1, at(10 + 105 + 7 + 1, 0))]), 6);
        assert_eq!(pass(vec![], vec![(1, at(124, 0))]), 1, "once");
        // A parent that ignores its children does not get their counters.
        assert_eq!(pass(vec![], vec![(1, at(124, 0)), (4, at(50, 1))]), 50);
        assert_eq!(pass(vec![4], vec![(1, at(125, 0))]), 0);
        assert_eq!(pass(vec![], vec![(1, at(127, 0))]), 2);
    }

    #[test]
    fn the_past_of_a_process_that_joins_later_does_not_count() {
        let mut counters = Counters::default();
        let old = |bytes| ProcessReading { is_old: true, ..at(bytes, 0) };
        assert_eq!(counters.pass(vec![], vec![(1, old(1000))]).write_bytes, 0);
        assert_eq!(counters.pass(vec![], vec![(1, old(1003))]).write_bytes, 3);
    }

    #[test]
    fn the_parent_and_the_start_of_a_process() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1000 5 6\n";
        assert_eq!(parse_stat(stat), Some((3, 12345)));
        let own = Process::find(std::process::id()).unwrap();
        let (parent, started) = parse_stat(&own.read("stat").unwrap()).unwrap();
        assert_eq!(parent, std::os::unix::process::parent_id());
        assert!(started <= ticks());
    }

    #[test]
    fn only_what_was_done_since_the_begin_counts() {
        let own = Process::find(std::process::id()).unwrap();
        let mut counters = Counters::default();
        counters.begin([&own].into_iter());
        if counters.total().is_none() {
            return;
        }
        assert_eq!(counters.total(), Some(IoCounters::default()));
        for _ in 0..50 {
            std::fs::read("/proc/self/stat").unwrap();
        }
        counters.read([&own].into_iter());
        let done = counters.total().unwrap();
        assert!(done.read_calls >= 50, "{done:?}");
        let interval_ns = counters.calls.interval_ns();
        let sum: f64 = counters.calls.in_intervals_of(interval_ns).iter().sum();
        assert!((sum - done.calls() as f64).abs() < 1e-6);
    }
}
