//! The counters of `/proc/PID/io`, over all watched processes.

use super::bins::Bins;
use super::process::Process;
use crate::activity::IoCounters;
use std::collections::BTreeMap;
use std::time::Instant;

/// Sums since the begin of the observation.
#[derive(Debug)]
pub struct Counters {
    begun: Instant,
    read_at: Instant,
    /// By process ID: the last reading.
    processes: BTreeMap<u32, IoCounters>,
    total: IoCounters,
    /// Whether a file was readable.
    is_known: bool,
    pub calls: Bins,
    pub bytes: Bins,
}

impl Default for Counters {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
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
    /// Reads them for the first time. Later processes count from zero.
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
        let mut sum = IoCounters::default();
        for process in processes {
            let Some(now) = process.read("io").as_deref().and_then(parse) else { continue };
            self.is_known = true;
            let before = self.processes.insert(process.pid, now).unwrap_or_default();
            sum = added(sum, since(now, before));
        }
        let from_ns = (self.read_at - self.begun).as_nanos() as u64;
        self.read_at = Instant::now();
        let to_ns = (self.read_at - self.begun).as_nanos() as u64;
        self.calls.spread(from_ns, to_ns, sum.calls() as f64);
        self.bytes.spread(from_ns, to_ns, sum.bytes() as f64);
        self.total = added(self.total, sum);
    }

    /// The totals. None if they were not readable.
    pub fn total(&self) -> Option<IoCounters> {
        self.is_known.then_some(self.total)
    }
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
