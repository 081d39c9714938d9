//! One run of one case: from prepared file to figures.

use crate::bench::place::{BenchTarget, O_DSYNC, RunFile};
use crate::case::{Case, Flush, Space};
use crate::meter::disk::Disk;
use crate::meter::{Meter, Usage};
use crate::paths;
use crate::rounds::{self, Rated};
use crate::tickets::{Places, Tickets};
use anyhow::{Context, Result, anyhow};
use dioxide::{Durability, OpenOptions};
use rustix::fs::OFlags;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The parameters of a run.
pub struct Task<'a> {
    pub case: Case,
    pub bs_bytes: u64,
    runtime: Duration,
    size_bytes: u64,
    ground: &'a RunFile,
    disk: Option<&'a Disk>,
}

/// The clock of a run, with the counters that it reads.
pub struct Clock<'a> {
    pub tickets: Arc<Tickets>,
    began: Instant,
    acked: Option<Duration>,
    meter: Meter<'a>,
}

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Operations per second, including the time until all of them are stable.
    pub iops: f64,
    /// Operations per second until the last one was acknowledged.
    pub acked_iops: f64,
    /// CPU time of the process per operation, in microseconds.
    pub cpu_us_per_op: f64,
    /// Device requests, of all processes. None if the device does not count them.
    pub requests_per_op: Option<f64>,
    pub flushes_per_op: Option<f64>,
}

/// A case with its results.
pub type Row = rounds::Row<Case, Figures>;

impl Rated for Figures {
    fn rate(&self) -> f64 {
        self.iops
    }
}

/// The target, and the common parts of its runs.
pub struct Course {
    pub place: BenchTarget,
    pub bs_bytes: u64,
    pub size_bytes: u64,
    pub runtime: Duration,
    /// The prewritten file, shared by all runs.
    written: Option<RunFile>,
}

impl Course {
    pub fn new(place: BenchTarget, bs_bytes: u64, size_bytes: u64, runtime: Duration) -> Self {
        Self { place, bs_bytes, size_bytes, runtime, written: None }
    }

    /// Prewrites the file.
    pub fn write_beforehand(&mut self) -> Result<()> {
        let ground = self.place.prepare()?;
        ground.fill(self.size_bytes).context("write the file to be overwritten")?;
        self.written = Some(ground);
        Ok(())
    }

    /// On a new thread, because rings and runtimes belong to threads.
    pub fn run(&self, case: Case) -> Result<Figures> {
        // Writes back dirty data of earlier runs, also for a run that uses another file.
        let fresh = self.place.prepare()?;
        let ground = match case.space {
            Space::Overwrite => self.written.as_ref().context("nothing to overwrite")?,
            _ => &fresh,
        };
        self.prepare(case, ground)?;
        let (runtime, size_bytes, bs_bytes) = (self.runtime, self.size_bytes, self.bs_bytes);
        let task =
            Task { case, bs_bytes, runtime, size_bytes, ground, disk: self.place.disk.as_ref() };
        let figures = std::thread::scope(|scope| scope.spawn(|| paths::run(&task)).join());
        figures
            .map_err(|_| anyhow!("panicked"))?
            .with_context(|| format!("{}, {}", case.path(), case.space))
    }

    fn prepare(&self, case: Case, ground: &RunFile) -> Result<()> {
        match case.space {
            Space::Falloc => ground.preallocate(self.size_bytes).context("allocate"),
            Space::Regions => {
                ground.fill(case.iodepth as u64 * self.bs_bytes).context("write the regions")
            }
            Space::Extend | Space::Overwrite | Space::Grown(_) => Ok(()),
        }
    }
}

impl<'a> Task<'a> {
    /// Opens the file for `threads` and the libraries.
    pub fn open(&self) -> Result<File> {
        match (self.case.durability, self.case.flush) {
            (Durability::EveryWrite, Flush::Flags) => self.ground.open(O_DSYNC),
            _ => self.ground.open(OFlags::empty()),
        }
    }

    /// Opens it with dioxide.
    pub fn open_with(&self, options: &OpenOptions) -> dioxide::Result<dioxide::File> {
        self.ground.open_with(options)
    }

    /// Starts the clock, after files are open and rings and memory are registered.
    pub fn start(&self) -> Clock<'a> {
        let size_bytes = self.size_bytes;
        let places = match self.case.space {
            Space::Extend | Space::Falloc | Space::Grown(_) => Places::Once { size_bytes },
            Space::Overwrite => Places::Around { size_bytes },
            Space::Regions => Places::Own,
        };
        let meter = Meter::start(self.disk);
        let tickets = Arc::new(Tickets::new(places, self.bs_bytes, self.runtime));
        Clock { tickets, began: Instant::now(), acked: None, meter }
    }
}

impl Clock<'_> {
    /// The last operation is acknowledged.
    pub fn acked(&mut self) {
        self.acked = Some(self.began.elapsed());
    }

    /// All operations are stable.
    pub fn stop(self) -> Figures {
        let elapsed = self.began.elapsed();
        let Usage { cpu, disk, .. } = self.meter.stop();
        let ops = self.tickets.given() as f64;
        Figures {
            iops: ops / elapsed.as_secs_f64(),
            acked_iops: ops / self.acked.unwrap_or(elapsed).as_secs_f64(),
            cpu_us_per_op: (cpu.user + cpu.system).as_secs_f64() * 1e6 / ops,
            requests_per_op: disk.map(|counts| counts.writes as f64 / ops),
            flushes_per_op: disk.and_then(|it| Some(it.counted_flushes()? as f64 / ops)),
        }
    }
}
