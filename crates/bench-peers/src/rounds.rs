//! Runs all cases once per round, so that changes of the machine affect all of them.

use crate::bench::order::order;
use crate::bench::ratio::{Ratio, median};
use crate::case::Case;
use crate::interrupt;
use crate::plan::Plan;
use crate::run::Figures;
use anyhow::Result;

/// The number of cases by which the order rotates per round. A step of one would hardly move cases
/// in few rounds.
const STRIDE: usize = 7;

/// The results of a case.
pub struct Row {
    pub case: Case,
    /// By round.
    pub runs: Vec<Figures>,
}

/// Runs everything; the rows are in the order of the cases.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> =
        plan.cases.iter().map(|&case| Row { case, runs: Vec::new() }).collect();
    for round in 0..plan.rounds as usize {
        // A whole cycle further each time, so that rounds alternate between forwards and backwards.
        for turn in order(round * (rows.len() + STRIDE), rows.len()) {
            interrupt::check()?;
            let figures = plan.course.run(rows[turn].case)?;
            rows[turn].runs.push(figures);
        }
    }
    Ok(rows)
}

impl Row {
    pub fn median(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        median(self.runs.iter().map(figure).collect()).unwrap_or(0.0)
    }

    /// The median of a figure that some runs may lack.
    pub fn median_known(&self, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        median(self.runs.iter().filter_map(figure).collect())
    }

    pub fn iops(&self) -> f64 {
        self.median(|run| run.iops)
    }

    /// The ratio of rates to `other`, round by round.
    pub fn ratio_to(&self, other: &Row) -> Option<Ratio> {
        let pairs = self.runs.iter().zip(&other.runs);
        Ratio::of(pairs.map(|(own, other)| own.iops / other.iops).collect())
    }
}
