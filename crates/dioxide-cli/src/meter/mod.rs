//! The resources of a run: CPU time, requests and flushes of the device, and the activity of the
//! machine.

pub mod filesystem;
pub mod machine;
pub mod memory;
pub mod parts;
pub mod vmstat;

pub use dioxide_diagnose::host::{disk, mount};

use crate::sys::{CpuTime, cpu_time};
use disk::{Counts, Disk};
use memory::Memory;
use std::time::Duration;
use vmstat::{Reading, Shares};

/// A reading of all counters when the clock starts.
pub struct Meter<'a> {
    disk: Option<&'a Disk>,
    start: Counters,
    samples: u32,
    /// The sum of all samples.
    blocked: u64,
    /// The sum of all samples, and the peak of the process.
    memory: Memory,
}

/// The counters at one time.
#[derive(Clone, Copy, Debug)]
struct Counters {
    disk: Option<Counts>,
    machine: Option<Reading>,
    cpu: CpuTime,
}

impl Counters {
    fn read(disk: Option<&Disk>) -> Self {
        Self { disk: disk.and_then(Disk::read), machine: vmstat::read(), cpu: cpu_time() }
    }

    /// The same behind the work. The CPU time comes first: it has none of the other readings.
    fn read_behind(disk: Option<&Disk>) -> Self {
        Self { cpu: cpu_time(), disk: disk.and_then(Disk::read), machine: vmstat::read() }
    }
}

/// The consumption between two readings.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub cpu: CpuTime,
    /// Of the whole device, by all processes. None if the kernel does not count it.
    pub disk: Option<Counts>,
    /// Of the whole machine.
    pub machine: Option<Shares>,
    /// CPU time of the whole machine, by all processes.
    pub machine_cpu: Option<Duration>,
    /// The mean number of tasks of the whole machine that waited for I/O. None if the kernel does
    /// not report it, or without samples, as the next.
    pub blocked: Option<f64>,
    /// The mean of the machine, and the peak of the process.
    pub memory: Option<Memory>,
}

impl<'a> Meter<'a> {
    pub fn start(disk: Option<&'a Disk>) -> Self {
        let memory = Memory { used_percent: 0.0, rss_bytes: 0 };
        Self { disk, start: Counters::read(disk), samples: 0, blocked: 0, memory }
    }

    /// Called repeatedly during the run, for values without counters.
    pub fn sample(&mut self) {
        let Some((Reading { blocked, .. }, memory)) = vmstat::read().zip(memory::read()) else {
            return;
        };
        self.samples += 1;
        self.blocked += blocked;
        self.memory.used_percent += memory.used_percent;
        self.memory.rss_bytes = self.memory.rss_bytes.max(memory.rss_bytes);
    }

    pub fn stop(mut self) -> Usage {
        let end = Counters::read(self.disk);
        if self.samples == 0 {
            self.sample();
        }
        self.usage(end)
    }

    fn usage(self, end: Counters) -> Usage {
        let start = self.start;
        let counts = end.disk.zip(start.disk).map(|(end, start)| end.since(start));
        let machine = end.machine.zip(start.machine);
        let machine_cpu = machine.map(|(end, start)| end.busy_since(&start));
        let machine = machine.and_then(|(end, start)| end.shares_since(&start));
        let cpu = CpuTime {
            user: end.cpu.user - start.cpu.user,
            system: end.cpu.system - start.cpu.system,
        };
        let is_sampled = self.samples > 0;
        let mean = |sum: f64| sum / f64::from(self.samples);
        let blocked = is_sampled.then(|| mean(self.blocked as f64));
        let used_percent = mean(self.memory.used_percent);
        let memory = is_sampled.then_some(Memory { used_percent, ..self.memory });
        Usage { cpu, disk: counts, machine, machine_cpu, blocked, memory }
    }
}

/// Percent of one CPU over `elapsed`: two busy threads give 200.
pub fn percent(time: Duration, elapsed: Duration) -> f64 {
    100.0 * time.as_secs_f64() / elapsed.as_secs_f64()
}
