//! What a run costs besides time: CPU, and the requests and flushes that reach the device.

pub mod disk;
pub mod machine;
pub mod mount;

use crate::sys::{CpuTime, cpu_time};
use disk::{Counts, Disk};
use std::time::Duration;

/// A reading of all counters, taken when the clock starts.
pub struct Meter<'a> {
    disk: Option<&'a Disk>,
    counts: Option<Counts>,
    cpu: CpuTime,
}

/// What was consumed between two readings.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub cpu: CpuTime,
    /// Of the whole device, whoever caused them. None where the kernel does not tell.
    pub disk: Option<Counts>,
}

impl<'a> Meter<'a> {
    pub fn start(disk: Option<&'a Disk>) -> Self {
        Self { disk, counts: disk.and_then(Disk::read), cpu: cpu_time() }
    }

    pub fn stop(self) -> Usage {
        let cpu = cpu_time();
        let counts = self.disk.and_then(Disk::read).zip(self.counts).map(|(end, start)| end.since(start));
        let cpu = CpuTime { user: cpu.user - self.cpu.user, system: cpu.system - self.cpu.system };
        Usage { cpu, disk: counts }
    }
}

/// Percent of one CPU over `elapsed`: two busy threads give 200.
pub fn percent(time: Duration, elapsed: Duration) -> f64 {
    100.0 * time.as_secs_f64() / elapsed.as_secs_f64()
}
