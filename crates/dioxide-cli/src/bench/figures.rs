//! What runs amount to: figures of one run, medians over rounds, ratios between routes. Arithmetic only.

use super::work::{Point, Route};
use crate::meter::{Usage, percent};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Completion latencies in nanoseconds. 32-bit counts: a run has fewer operations of one latency than that.
pub type Clat = Histogram<u32>;

/// Latencies from 1 ns to 100 s with three digits.
pub fn new_clat() -> Clat {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("valid bounds")
}

/// One run of one route.
pub struct Run {
    pub figures: Figures,
    pub clat: Clat,
}

/// The numbers of a run of which the report shows the median.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub ops: u64,
    pub iops: f64,
    pub elapsed: Duration,
    /// The file was full before the time was over.
    pub is_cut_short: bool,
    /// Percent of one CPU, all threads together.
    pub usr_cpu: f64,
    pub sys_cpu: f64,
    pub requests: Option<u64>,
    pub flushes: Option<u64>,
    pub extents: Option<u64>,
}

impl Run {
    pub fn new(ops: u64, elapsed: Duration, clat: Clat, usage: Usage) -> Self {
        let figures = Figures {
            ops,
            iops: ops as f64 / elapsed.as_secs_f64(),
            elapsed,
            is_cut_short: false,
            usr_cpu: percent(usage.cpu.user, elapsed),
            sys_cpu: percent(usage.cpu.system, elapsed),
            requests: usage.disk.map(|counts| counts.writes),
            flushes: usage.disk.map(|counts| counts.flushes),
            extents: None,
        };
        Self { figures, clat }
    }
}

/// All runs of one route at one point: a row of the results.
pub struct Row {
    pub point: Point,
    pub route: Route,
    /// By round.
    pub runs: Vec<Figures>,
    /// Of all rounds together.
    pub clat: Clat,
}

impl Row {
    pub fn new(point: Point, route: Route) -> Self {
        Self { point, route, runs: Vec::new(), clat: new_clat() }
    }

    pub fn add(&mut self, run: Run) {
        self.runs.push(run.figures);
        self.clat.add(&run.clat).expect("all histograms have the same range");
    }

    /// The median over the rounds of a figure that every run has.
    pub fn median(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        median(self.runs.iter().map(figure).collect()).unwrap_or(0.0)
    }

    /// The median over the rounds of a figure that some runs may not have. None if none has.
    pub fn median_known(&self, figure: impl Fn(&Figures) -> Option<u64>) -> Option<f64> {
        median(self.runs.iter().filter_map(figure).map(|count| count as f64).collect())
    }

    /// The median over the rounds of a count for each operation.
    pub fn median_per_op(&self, count: impl Fn(&Figures) -> Option<u64>) -> Option<f64> {
        let per_op = |run: &Figures| Some(count(run)? as f64 / run.ops.max(1) as f64);
        median(self.runs.iter().filter_map(per_op).collect())
    }

    pub fn iops(&self) -> f64 {
        self.median(|run| run.iops)
    }

    pub fn bw_bytes(&self) -> f64 {
        self.iops() * self.point.bs_bytes as f64
    }

    /// How many times as fast as `other`, round by round: both saw the same state of a shared machine.
    pub fn ratio_to(&self, other: &Row) -> Option<Ratio> {
        let pairs = self.runs.iter().zip(&other.runs);
        Ratio::of(pairs.map(|(own, other)| own.iops / other.iops).collect())
    }
}

/// A ratio of two rates over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Ratio {
    /// None without a round, or when something did not move at all.
    fn of(ratios: Vec<f64>) -> Option<Self> {
        if !ratios.iter().all(|ratio| ratio.is_finite()) {
            return None;
        }
        let min = ratios.iter().copied().reduce(f64::min)?;
        let max = ratios.iter().copied().reduce(f64::max)?;
        Some(Self { min, median: median(ratios)?, max })
    }
}

/// The middle value, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

/// Rows as tests of the reports need them.
#[cfg(test)]
pub mod examples {
    use super::super::work::Scenario;
    use super::*;
    use dioxide::{Durability, Growth};

    pub fn append_point(numjobs: usize) -> Point {
        Point {
            scenario: Scenario::Append,
            bs_bytes: 4096,
            numjobs,
            durability: Durability::OnSync,
            growth: Some(Growth::Unwritten),
        }
    }

    pub fn sync_point() -> Point {
        Point {
            scenario: Scenario::Sync,
            bs_bytes: 65536,
            numjobs: 64,
            durability: Durability::EveryWrite,
            growth: None,
        }
    }

    /// One run a round, each a second long, with these rates.
    pub fn row(point: Point, route: Route, rates: &[u64]) -> Row {
        let mut row = Row::new(point, route);
        for rate in rates {
            row.add(run(*rate));
        }
        row
    }

    fn run(ops: u64) -> Run {
        let figures = Figures {
            ops,
            iops: ops as f64,
            elapsed: Duration::from_secs(1),
            is_cut_short: ops > 100_000,
            usr_cpu: 10.0,
            sys_cpu: 50.0,
            requests: Some(2 * ops),
            flushes: Some(7),
            extents: None,
        };
        let mut clat = new_clat();
        (1..=1000).for_each(|microseconds| clat.saturating_record(microseconds * 1000));
        Run { figures, clat }
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{append_point, row};
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine was twice as fast in the second round: the ratio does not care.
        let kernel = row(append_point(1), Route::Kernel, &[100, 200, 100]);
        let dioxide = row(append_point(1), Route::Dioxide, &[300, 600, 200]);
        let ratio = dioxide.ratio_to(&kernel).unwrap();
        assert_eq!(ratio, Ratio { min: 2.0, median: 3.0, max: 3.0 });
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
