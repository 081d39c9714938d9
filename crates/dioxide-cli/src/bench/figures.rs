//! Figures of one run, medians over rounds, ratios between routes. Arithmetic only.

use super::growing::Growing;
use super::latency::Timings;
use super::ratio::{Ratio, median};
use super::work::{Asked, Point, Route};
use crate::meter::memory::Memory;
use crate::meter::vmstat::Shares;
use crate::meter::{Usage, percent};
use dioxide::Stats;
use dioxide_diagnose::evidence::Evidence;
use std::time::{Duration, Instant};

/// One run of one route.
pub struct RouteRun {
    pub figures: Figures,
    /// Reads and writes together.
    pub timings: Timings,
    pub reads: Timings,
    pub writes: Timings,
    /// Of observed threads.
    pub evidence: Option<Evidence>,
    /// When the clock started.
    pub began: Instant,
}

/// The numbers of a run whose medians are reported.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub ops: u64,
    pub iops: f64,
    pub read_iops: f64,
    pub write_iops: f64,
    pub bw_bytes: f64,
    /// Of the latencies that a user would see.
    pub p99_ns: u64,
    pub elapsed: Duration,
    /// The file was full before the time was over.
    pub is_cut_short: bool,
    /// Percent of one CPU, all threads together.
    pub usr_cpu: f64,
    pub sys_cpu: f64,
    /// CPU time of the process per operation, in microseconds.
    pub cpu_us_per_op: f64,
    pub requests: Option<f64>,
    pub flushes: Option<f64>,
    pub extents: Option<f64>,
    /// The mean number of requests in flight on the device.
    pub inflight: Option<f64>,
    /// The mean number of tasks of the machine that waited for I/O.
    pub blocked: Option<f64>,
    /// CPU of the machine.
    pub machine: Option<Shares>,
    /// CPU time of the process per MiB written or read, in microseconds.
    pub cpu_us_per_mib: f64,
    /// CPU time of the whole machine per MiB, all processes, in microseconds.
    pub machine_cpu_us_per_mib: Option<f64>,
    pub memory: Option<Memory>,
    /// None without preallocation.
    pub growing: Option<Growing>,
    /// dioxide's counters before it closed its file. None on other paths.
    pub stats: Option<Stats>,
}

impl RouteRun {
    pub fn new(
        elapsed: Duration,
        reads: Timings,
        writes: Timings,
        bytes: u64,
        usage: Usage,
    ) -> Self {
        let mut timings = reads.clone();
        timings.add(&writes);
        let ops = timings.clat.len();
        let seconds = elapsed.as_secs_f64();
        let rate = |timings: &Timings| timings.clat.len() as f64 / seconds;
        let cpu = usage.cpu.user + usage.cpu.system;
        let per_mib =
            |time: Duration| time.as_secs_f64() * 1e6 / (bytes.max(1) as f64 / f64::from(1 << 20));
        let figures = Figures {
            ops,
            iops: rate(&timings),
            read_iops: rate(&reads),
            write_iops: rate(&writes),
            bw_bytes: bytes as f64 / seconds,
            p99_ns: timings.p99_ns(),
            elapsed,
            is_cut_short: false,
            usr_cpu: percent(usage.cpu.user, elapsed),
            sys_cpu: percent(usage.cpu.system, elapsed),
            cpu_us_per_op: cpu.as_secs_f64() * 1e6 / ops.max(1) as f64,
            requests: usage.disk.map(|counts| counts.writes as f64),
            flushes: usage.disk.and_then(|counts| Some(counts.counted_flushes()? as f64)),
            extents: None,
            inflight: usage.disk.map(|counts| counts.in_flight_ms as f64 / 1e3 / seconds),
            blocked: usage.blocked,
            machine: usage.machine,
            cpu_us_per_mib: per_mib(cpu),
            machine_cpu_us_per_mib: usage.machine_cpu.map(per_mib),
            memory: usage.memory,
            growing: None,
            stats: None,
        };
        let began = Instant::now() - elapsed;
        Self { figures, timings, reads, writes, evidence: None, began }
    }
}

/// All runs of one route at one point: a row of the results.
pub struct Row {
    pub point: Point,
    pub route: Route,
    pub asked: Asked,
    /// By round.
    pub runs: Vec<Figures>,
    /// Of all rounds together, reads and writes.
    pub timings: Timings,
    pub reads: Timings,
    pub writes: Timings,
}

impl Row {
    pub fn new(point: Point, route: Route) -> Self {
        let none = || Timings::new(point.rate_iops.is_some());
        Self {
            point,
            route,
            asked: Asked::default(),
            runs: Vec::new(),
            timings: none(),
            reads: none(),
            writes: none(),
        }
    }

    pub fn add(&mut self, run: RouteRun) {
        self.runs.push(run.figures);
        self.timings.add(&run.timings);
        self.reads.add(&run.reads);
        self.writes.add(&run.writes);
    }

    /// The median over the rounds of a figure that every run has.
    pub fn median(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        median(self.runs.iter().map(figure).collect()).unwrap_or(0.0)
    }

    /// The median over the rounds of a figure that some runs may lack. None if all lack it.
    pub fn median_known(&self, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        median(self.runs.iter().filter_map(figure).collect())
    }

    /// The median over the rounds of a count per operation.
    pub fn median_per_op(&self, count: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        self.median_known(|run| Some(count(run)? / run.ops.max(1) as f64))
    }

    pub fn iops(&self) -> f64 {
        self.median(|run| run.iops)
    }

    /// The number of growths in a run.
    pub fn growths(&self) -> Option<f64> {
        self.median_known(|run| Some(run.growing?.growths as f64))
    }

    /// The longest append of all rounds that met a growth of its file.
    pub fn growing_clat_max_ns(&self) -> Option<f64> {
        let longest = self.runs.iter().filter_map(|run| Some(run.growing?.clat_max)).max();
        longest.map(|clat| clat.as_nanos() as f64)
    }

    /// CPU shares of the machine; each share is a median of its own.
    pub fn machine(&self) -> Option<Shares> {
        let share = |of: fn(&Shares) -> f64| self.median_known(|run| run.machine.as_ref().map(of));
        Some(Shares {
            usr: share(|cpu| cpu.usr)?,
            sys: share(|cpu| cpu.sys)?,
            idle: share(|cpu| cpu.idle)?,
            wait: share(|cpu| cpu.wait)?,
            steal: share(|cpu| cpu.steal)?,
        })
    }

    pub fn bw_bytes(&self) -> f64 {
        self.median(|run| run.bw_bytes)
    }

    /// The ratio of rates to `other`, round by round: both saw the same state of a shared machine.
    pub fn ratio_to(&self, other: &Row) -> Option<Ratio> {
        self.ratio_of(other, |run| Some(run.iops))
    }

    /// The ratio of rates to `other` in each round.
    pub fn ratios_to(&self, other: &Row) -> Option<Vec<f64>> {
        self.ratios_of(other, |run| Some(run.iops))
    }

    fn ratios_of(&self, other: &Row, figure: impl Fn(&Figures) -> Option<f64>) -> Option<Vec<f64>> {
        let pairs = self.runs.iter().zip(&other.runs);
        pairs.map(|(own, other)| Some(figure(own)? / figure(other)?)).collect()
    }

    /// The ratio of a figure to that of `other`, round by round.
    pub fn ratio_of(&self, other: &Row, figure: impl Fn(&Figures) -> Option<f64>) -> Option<Ratio> {
        Ratio::of(self.ratios_of(other, figure)?)
    }
}

/// Rows for tests of the reports.
#[cfg(test)]
pub mod examples {
    use super::super::work::{Backend, Scenario, Space};
    use super::*;
    use crate::sizes::Sizes;
    use dioxide::{Durability, Growth};

    pub fn append_point(numjobs: usize) -> Point {
        Point {
            scenario: Scenario::Append,
            backend: Backend::System,
            sizes: Sizes::one(4096),
            numjobs,
            durability: Durability::OnSync,
            growth: Some(Growth::Unwritten),
            tail: None,
            rwmixread: None,
            rate_iops: None,
            files: None,
            space: None,
        }
    }

    pub fn sync_point() -> Point {
        Point {
            scenario: Scenario::Sync,
            sizes: Sizes::one(65536),
            durability: Durability::EveryWrite,
            growth: None,
            ..append_point(64)
        }
    }

    pub fn mixed_point(numjobs: usize) -> Point {
        Point {
            scenario: Scenario::Mixed,
            growth: None,
            rwmixread: Some(70),
            ..append_point(numjobs)
        }
    }

    pub fn indirect_point() -> Point {
        Point {
            scenario: Scenario::Indirect,
            sizes: Sizes::one(4 << 20),
            growth: None,
            ..append_point(1)
        }
    }

    pub fn files_point(files: usize, numjobs: usize) -> Point {
        Point {
            scenario: Scenario::Files,
            durability: Durability::EveryWrite,
            growth: None,
            files: Some(files),
            space: Some(Space::Written),
            ..append_point(numjobs)
        }
    }

    pub fn checkpoint_point(files: usize) -> Point {
        let durability = Durability::OnSync;
        Point { scenario: Scenario::Checkpoint, durability, ..files_point(files, 64) }
    }

    pub fn log_point(numjobs: usize) -> Point {
        Point {
            scenario: Scenario::Log,
            sizes: Sizes::one(100),
            durability: Durability::EveryWrite,
            growth: None,
            space: Some(Space::Unwritten),
            ..append_point(numjobs)
        }
    }

    /// One run per round, each a second long, with these rates. Latencies are 1 us to 1 ms, those
    /// of reads half of it.
    pub fn row(point: Point, route: Route, rates: &[u64]) -> Row {
        let mut row = Row::new(point, route);
        for rate in rates {
            row.add(run(*rate, &point));
        }
        row
    }

    fn run(ops: u64, point: &Point) -> RouteRun {
        let read_iops = ops as f64 * f64::from(point.rwmixread.unwrap_or(0)) / 100.0;
        let figures = Figures {
            ops,
            iops: ops as f64,
            read_iops,
            write_iops: ops as f64 - read_iops,
            bw_bytes: ops as f64 * point.sizes.max_bytes as f64,
            p99_ns: 990_000,
            elapsed: Duration::from_secs(1),
            is_cut_short: ops > 100_000,
            usr_cpu: 10.0,
            sys_cpu: 50.0,
            cpu_us_per_op: 600_000.0 / ops as f64,
            requests: Some(2.0 * ops as f64),
            flushes: Some(7.0),
            extents: None,
            inflight: Some(1.5),
            blocked: None,
            machine: Some(Shares { usr: 5.0, sys: 25.0, idle: 50.0, wait: 20.0, steal: 0.0 }),
            cpu_us_per_mib: 150e6 / ops as f64,
            machine_cpu_us_per_mib: Some(300e6 / ops as f64),
            memory: Some(Memory { used_percent: 21.5, rss_bytes: 9 << 20 }),
            growing: None,
            stats: None,
        };
        let up_to = |microseconds| {
            let mut timings = Timings::new(point.rate_iops.is_some());
            for latencies in [Some(&mut timings.clat), timings.lat.as_mut()].into_iter().flatten() {
                (1..=microseconds)
                    .for_each(|microsecond| latencies.saturating_record(microsecond * 1000));
            }
            timings
        };
        RouteRun {
            figures,
            timings: up_to(1000),
            reads: up_to(500),
            writes: up_to(1000),
            evidence: None,
            began: Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{append_point, row};
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine was twice as fast in the second round, which leaves the ratio unchanged.
        let kernel = row(append_point(1), Route::Kernel, &[100, 200, 100]);
        let dioxide = row(append_point(1), Route::Dioxide, &[300, 600, 200]);
        let ratio = dioxide.ratio_to(&kernel).unwrap();
        assert_eq!(ratio, Ratio { min: 2.0, median: 3.0, max: 3.0, rounds: 3 });
    }

    #[test]
    fn no_ratio_without_rounds_or_progress() {
        let point = append_point(1);
        let nothing = row(point, Route::Kernel, &[]);
        assert_eq!(row(point, Route::Dioxide, &[5]).ratio_to(&nothing), None);
        let stuck = row(point, Route::Kernel, &[0]);
        assert_eq!(row(point, Route::Dioxide, &[5]).ratio_to(&stuck), None);
    }

    #[test]
    fn counts_per_operation() {
        let row = row(append_point(1), Route::Kernel, &[100, 300]);
        assert_eq!(row.median_per_op(|run| run.requests), Some(2.0));
        assert_eq!(row.median_known(|run| run.requests), Some(400.0));
        assert_eq!(row.median_known(|run| run.extents), None);
    }
}
