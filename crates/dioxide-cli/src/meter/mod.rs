//! What a run costs besides time: CPU, the requests and flushes that reach the device, and what the machine
//! does meanwhile.

pub mod disk;
pub mod filesystem;
pub mod machine;
pub mod mount;
pub mod vmstat;

use crate::sys::{CpuTime, cpu_time};
use disk::{Counts, Disk};
use std::time::Duration;
use vmstat::{Reading, Shares};

/// A reading of all counters, taken when the clock starts.
pub struct Meter<'a> {
    disk: Option<&'a Disk>,
    counts: Option<Counts>,
    machine: Option<Reading>,
    cpu: CpuTime,
    /// The sum and the number of samples.
    blocked: (u64, u32),
}

/// What was consumed between two readings.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub cpu: CpuTime,
    /// Of the whole device, whoever caused them. None where the kernel does not tell.
    pub disk: Option<Counts>,
    /// Of the whole machine.
    pub machine: Option<Shares>,
    /// The mean number of tasks of the whole machine that waited for I/O. None if nobody looked.
    pub blocked: Option<f64>,
}

impl<'a> Meter<'a> {
    pub fn start(disk: Option<&'a Disk>) -> Self {
        let (counts, machine) = (disk.and_then(Disk::read), vmstat::read());
        Self { disk, counts, machine, cpu: cpu_time(), blocked: (0, 0) }
    }

    /// To be called now and then in between, for what only samples can tell.
    pub fn sample(&mut self) {
        if let Some(Reading { blocked, .. }) = vmstat::read() {
            let (sum, samples) = self.blocked;
            self.blocked = (sum + blocked, samples + 1);
        }
    }

    pub fn stop(self) -> Usage {
        let cpu = cpu_time();
        let counts = self.disk.and_then(Disk::read).zip(self.counts).map(|(end, start)| end.since(start));
        let machine = vmstat::read().zip(self.machine).and_then(|(end, start)| end.shares_since(&start));
        let cpu = CpuTime { user: cpu.user - self.cpu.user, system: cpu.system - self.cpu.system };
        let (sum, samples) = self.blocked;
        let blocked = (samples > 0).then(|| sum as f64 / f64::from(samples));
        Usage { cpu, disk: counts, machine, blocked }
    }
}

/// Percent of one CPU over `elapsed`: two busy threads give 200.
pub fn percent(time: Duration, elapsed: Duration) -> f64 {
    100.0 * time.as_secs_f64() / elapsed.as_secs_f64()
}
