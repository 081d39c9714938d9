//! The timed parts of a run with other work between them, and their resources.

use super::disk::Disk;
use super::{Counters, Meter, Usage};
use std::time::{Duration, Instant};

/// The parts so far.
pub struct Parts<'a> {
    meter: Meter<'a>,
    /// The counters at the start, and the increase of them in each part.
    counters: Counters,
    elapsed: Duration,
}

impl<'a> Parts<'a> {
    pub fn start(disk: Option<&'a Disk>) -> Self {
        let meter = Meter::start(disk);
        Self { counters: meter.start, meter, elapsed: Duration::ZERO }
    }

    /// Performs a part.
    pub fn time<T>(&mut self, part: impl FnOnce() -> T) -> T {
        let before = Counters::read(self.meter.disk);
        let begun = Instant::now();
        let outcome = part();
        self.elapsed += begun.elapsed();
        self.counters.add(&before, &Counters::read_behind(self.meter.disk));
        outcome
    }

    /// The time of all parts.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// The consumption of all parts, without figures of samples.
    pub fn stop(self) -> Usage {
        self.meter.usage(self.counters)
    }
}

impl Counters {
    /// Adds the increase between two readings.
    fn add(&mut self, before: &Self, after: &Self) {
        self.cpu.user += after.cpu.user - before.cpu.user;
        self.cpu.system += after.cpu.system - before.cpu.system;
        let counts = after.disk.zip(before.disk).map(|(after, before)| after.since(before));
        self.disk = self.disk.zip(counts).map(|(sum, counts)| sum.and(counts));
        let machine = self.machine.zip(before.machine).zip(after.machine);
        self.machine = machine.map(|((sum, before), after)| sum.plus(&before, &after));
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk::Counts;
    use super::super::vmstat;
    use super::*;
    use crate::sys::{CpuTime, cpu_time};

    const SECOND: Duration = Duration::from_secs(1);

    fn counters(n: u32) -> Counters {
        let (count, ticks) = (u64::from(n), 100 * n);
        let disk = Counts {
            reads: count,
            writes: count,
            flushes: count,
            has_flushes: true,
            busy_ms: count,
            in_flight_ms: count,
        };
        let stat = format!("cpu  {ticks} 0 {ticks} 0 0 0 0 0\nprocs_blocked 0\n");
        Counters {
            disk: Some(disk),
            machine: vmstat::parse(&stat),
            cpu: CpuTime { user: SECOND * n, system: SECOND * n },
        }
    }

    #[test]
    fn counters_between_the_parts_do_not_count() {
        let mut sum = counters(10);
        sum.add(&counters(20), &counters(21));
        sum.add(&counters(50), &counters(53));
        let (sum, expected) = (format!("{sum:?}"), format!("{:?}", counters(14)));
        assert_eq!(sum, expected);
    }

    /// The defect: one sample after the end, of an idle moment, was that of the run.
    #[test]
    fn a_sample_after_the_parts_was_of_them() {
        let mut parts = Parts::start(None);
        parts.time(|| ());
        let usage = parts.stop();
        assert!(usage.machine_cpu.is_some());
        assert!(usage.blocked.is_none() && usage.memory.is_none(), "{usage:?}");
        assert!(Meter::start(None).stop().memory.is_some());
    }

    #[test]
    fn only_the_parts_are_timed() {
        // Other tests use the CPU as well: a run in which they use little is enough.
        let is_free = |_| {
            let mut parts = Parts::start(None);
            parts.time(|| ());
            let before = cpu_time();
            while cpu_time().user - before.user < SECOND / 10 {}
            parts.time(|| ());
            assert!(parts.elapsed() < SECOND);
            parts.stop().cpu.user < SECOND / 10
        };
        assert!((0..20).any(is_free));
    }
}
