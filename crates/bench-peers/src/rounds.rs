//! Runs all cases once per round, so that changes of the machine affect all of them.

use crate::bench::order::order;
use crate::bench::ratio::{Ratio, median};
use crate::interrupt;
use anyhow::Result;

/// The number of cases by which the order rotates per round. A step of one would hardly move cases
/// in few rounds.
const STRIDE: usize = 7;

/// The results of a case.
pub struct Row<C, F> {
    pub case: C,
    /// By round.
    pub runs: Vec<F>,
}

/// The results of a run.
pub trait Rated {
    /// The value by which rows are compared.
    fn rate(&self) -> f64;
}

/// Runs everything; the rows are in the order of the cases.
pub fn run<C: Copy, F>(
    cases: &[C],
    rounds: u32,
    run: impl Fn(C) -> Result<F>,
) -> Result<Vec<Row<C, F>>> {
    let mut rows: Vec<_> = cases.iter().map(|&case| Row { case, runs: Vec::new() }).collect();
    for round in 0..rounds as usize {
        // A whole cycle further each time, so that rounds alternate between forwards and backwards.
        for turn in order(round * (rows.len() + STRIDE), rows.len()) {
            interrupt::check()?;
            let figures = run(rows[turn].case)?;
            rows[turn].runs.push(figures);
        }
    }
    Ok(rows)
}

impl<C, F: Rated> Row<C, F> {
    pub fn median(&self, figure: impl Fn(&F) -> f64) -> f64 {
        median(self.runs.iter().map(figure).collect()).unwrap_or(0.0)
    }

    /// The median of a figure that some runs may lack.
    pub fn median_known(&self, figure: impl Fn(&F) -> Option<f64>) -> Option<f64> {
        median(self.runs.iter().filter_map(figure).collect())
    }

    pub fn rate(&self) -> f64 {
        self.median(F::rate)
    }

    /// The ratio of rates to `other`, round by round.
    fn ratio_to(&self, other: &Self) -> Option<Ratio> {
        let pairs = self.runs.iter().zip(&other.runs);
        Ratio::of(pairs.map(|(own, other)| own.rate() / other.rate()).collect())
    }

    /// The ratio to the rival with the highest median.
    pub fn ratio_to_best<'a>(&self, rivals: impl Iterator<Item = &'a Self>) -> Option<Ratio>
    where
        Self: 'a,
    {
        let best = rivals.max_by(|one, other| one.rate().total_cmp(&other.rate()));
        best.and_then(|best| self.ratio_to(best))
    }
}
