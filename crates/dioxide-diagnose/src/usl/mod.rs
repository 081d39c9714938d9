//! The Universal Scalability Law, fitted to a curve: X(N) = lambda N / (1 + sigma (N-1) + kappa N
//! (N-1)), with sigma and kappa at least zero.
//!
//! *The fit* minimises relative errors: the sum of (x/X(N) - 1)^2 over all rounds of all steps.
//! Rates scatter in proportion to themselves, and small ones must count as well. N/X(N) is linear
//! in 1/lambda, sigma/lambda and kappa/lambda. The fit is therefore a linear least squares problem,
//! solved directly and without a first guess.
//!
//! *Intervals* are of 95 %, by a bootstrap with a fixed seed. Each resample scatters the fitted
//! curve as the points scatter around it, and is fitted again. The usual way, by the covariance at
//! the optimum, fails where sigma or kappa is zero, as in good curves.
//!
//! Where the law does not fit, all rounds of a step are off together. One deviation is therefore
//! drawn per step, and one per round. Few steps say little about the error of the law: intervals
//! are widened by Student's t.

mod least_squares;
mod sentences;

use crate::evidence::Step;
use fastrand::Rng;
use least_squares::{Law, Point};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// With fewer different numbers of threads, three parameters fit noise.
pub const STEPS_MIN: usize = 6;

/// The numbers of threads of the predictions.
pub const PREDICTED: [usize; 3] = [16, 64, 128];

/// An estimate with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// The best value.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

/// The prediction for a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Threads.
    pub numjobs: usize,
    /// Operations per second. The interval is that of the curve, not of a single measurement.
    pub iops: Estimate,
    /// Whether it is beyond the measured steps.
    pub is_beyond: bool,
}

/// The fitted law.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fit {
    /// Operations per second of a single thread without contention.
    pub lambda: Estimate,
    /// Contention: the serial part of each operation.
    pub sigma: Estimate,
    /// Coherency: the cost of each pair of threads to each other, as a part of an operation.
    pub kappa: Estimate,
    /// The part of the variation of all rounds that the law explains, 1 at best. Also near zero for
    /// a flat curve, which only scatters.
    pub r_squared: f64,
    /// The mean relative error of the steps: 0.1 is ten percent.
    pub error: f64,
    /// Whether the law describes this curve badly: figures and predictions then mean little.
    pub is_poor: bool,
    /// The largest measured number of threads.
    pub numjobs_max: usize,
    /// The number of threads with the highest throughput. None if it never falls.
    pub peak: Option<f64>,
    /// For 16, 64 and 128 threads.
    pub predictions: Vec<Prediction>,
    /// The law with its interval, for a plot: at the measured steps, and at 1, 2, 4, ... 128
    /// threads.
    pub band: Vec<Prediction>,
    /// The meaning, a sentence each, warnings included.
    pub sentences: Vec<String>,
}

impl Fit {
    /// Operations per second at this number of threads, by the law.
    pub fn at(&self, numjobs: f64) -> f64 {
        let law =
            Law { lambda: self.lambda.value, sigma: self.sigma.value, kappa: self.kappa.value };
        law.at(numjobs)
    }
}

/// Why nothing was fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// With fewer points, three parameters fit noise.
    #[error("{distinct} different numbers of threads were measured, and a fit needs six")]
    TooFew {
        /// Different numbers of threads that were measured.
        distinct: usize,
    },
    /// No threads, no rounds, or rates that are not finite, not positive or implausibly large.
    #[error("there is a step without threads, or a round without a rate above zero")]
    Useless,
}

/// A fit is poor if the mean error of the steps exceeds this, ...
const ERROR_MAX: f64 = 0.1;

/// ... and it explains less than this of the variation.
const R_SQUARED_MIN: f64 = 0.9;

/// Above this error a fit is poor in any case.
const ERROR_FAR: f64 = 0.2;

/// No machine reaches more per second, and its square is still finite.
const IOPS_MAX: f64 = 1e15;

const RESAMPLES: usize = 1000;
const SEED: u64 = 1993;

/// Fits the law to a curve.
pub fn fit(steps: &[Step]) -> Result<Fit, Refusal> {
    let rounds = rounds(steps)?;
    if rounds.len() < STEPS_MIN {
        return Err(Refusal::TooFew { distinct: rounds.len() });
    }
    let points = points(&rounds);
    let law = Law::through(&points);
    let scatter = Scatter::of(&rounds, law);
    let mut rng = Rng::with_seed(SEED);
    let laws: Vec<Law> =
        (0..RESAMPLES).map(|_| Law::through(&scatter.again(law, &mut rng))).collect();
    let estimate = |of: &dyn Fn(&Law) -> f64| Estimate::of(of(&law), laws.iter().map(of).collect());
    let numjobs_max = rounds.keys().copied().max().unwrap_or_default();
    let error = scatter.error();
    let r_squared = r_squared(&points, law);
    let predict = |numjobs: usize| Prediction {
        numjobs,
        iops: estimate(&|law| law.at(numjobs as f64)),
        is_beyond: numjobs > numjobs_max,
    };
    let drawn: BTreeSet<usize> =
        rounds.keys().copied().chain((0..8).map(|doublings| 1 << doublings)).collect();
    let mut fit = Fit {
        lambda: estimate(&|law| law.lambda),
        sigma: estimate(&|law| law.sigma),
        kappa: estimate(&|law| law.kappa),
        r_squared,
        error,
        is_poor: error > ERROR_FAR || error > ERROR_MAX && r_squared < R_SQUARED_MIN,
        numjobs_max,
        peak: law.peak(),
        predictions: PREDICTED.map(predict).into(),
        band: drawn.into_iter().map(predict).collect(),
        sentences: Vec::new(),
    };
    fit.sentences = sentences::of(&fit);
    Ok(fit)
}

/// The rates of each number of threads.
fn rounds(steps: &[Step]) -> Result<BTreeMap<usize, Vec<f64>>, Refusal> {
    let mut rounds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for step in steps {
        let is_useful = |iops: &f64| *iops > 0.0 && *iops <= IOPS_MAX;
        if step.numjobs == 0 || step.iops.is_empty() || !step.iops.iter().all(is_useful) {
            return Err(Refusal::Useless);
        }
        rounds.entry(step.numjobs).or_default().extend(&step.iops);
    }
    Ok(rounds)
}

fn points(rounds: &BTreeMap<usize, Vec<f64>>) -> Vec<Point> {
    let of_step = |(numjobs, iops): (&usize, &Vec<f64>)| {
        let numjobs = *numjobs as f64;
        iops.iter().map(|iops| Point { numjobs, iops: *iops }).collect::<Vec<_>>()
    };
    rounds.iter().flat_map(of_step).collect()
}

/// The scatter of points around a law, relative to it.
struct Scatter {
    /// Threads and rounds of each step.
    steps: Vec<(f64, usize)>,
    /// The error of each step, as the mean of its rounds. Widened for few steps.
    of_steps: Vec<f64>,
    /// The errors of rounds from the mean of their step.
    of_rounds: Vec<f64>,
}

impl Scatter {
    fn of(rounds: &BTreeMap<usize, Vec<f64>>, law: Law) -> Self {
        let mut scatter = Self { steps: Vec::new(), of_steps: Vec::new(), of_rounds: Vec::new() };
        for (numjobs, iops) in rounds {
            let numjobs = *numjobs as f64;
            let off: Vec<f64> = iops.iter().map(|iops| iops / law.at(numjobs) - 1.0).collect();
            let mean = off.iter().sum::<f64>() / off.len() as f64;
            scatter.steps.push((numjobs, iops.len()));
            scatter.of_steps.push(mean);
            scatter.of_rounds.extend(off.iter().map(|off| off - mean));
        }
        scatter
    }

    /// A resampled curve around the law.
    fn again(&self, law: Law, rng: &mut Rng) -> Vec<Point> {
        let widened = widening(self.steps.len());
        let mut points = Vec::new();
        for (numjobs, rounds) in &self.steps {
            let of_step = self.of_steps[rng.usize(..self.of_steps.len())] * widened;
            for _ in 0..*rounds {
                let of_round = self.of_rounds[rng.usize(..self.of_rounds.len())];
                // Keeps the rate above zero.
                let factor = (1.0 + of_step + of_round).max(0.01);
                points.push(Point { numjobs: *numjobs, iops: law.at(*numjobs) * factor });
            }
        }
        points
    }

    /// The root of the mean square.
    fn error(&self) -> f64 {
        (self.of_steps.iter().map(|off| off * off).sum::<f64>() / self.of_steps.len() as f64).sqrt()
    }
}

/// The factor by which true errors of steps may exceed the observed ones. The fit has approached
/// the steps with three parameters. Student's t has longer tails than the normal distribution, the
/// more so with few steps.
fn widening(steps: usize) -> f64 {
    /// The 97.5th percentile of Student's t with 3, 4, ... degrees of freedom.
    const T: [f64; 8] = [3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    let free = steps.saturating_sub(3).max(1);
    let t = T.get(free.saturating_sub(3)).copied().unwrap_or(2.1);
    (steps as f64 / free as f64).sqrt() * t / 1.96
}

impl Estimate {
    /// The interval contains the best value, even if few of the resamples do.
    fn of(value: f64, mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |part: f64| samples[(part * (samples.len() - 1) as f64).round() as usize];
        Self { value, low: at(0.025).min(value), high: at(0.975).max(value) }
    }
}

fn r_squared(points: &[Point], law: Law) -> f64 {
    let mean = points.iter().map(|point| point.iops).sum::<f64>() / points.len() as f64;
    let squares = |of: &dyn Fn(&Point) -> f64| {
        points.iter().map(|point| (point.iops - of(point)).powi(2)).sum::<f64>()
    };
    match squares(&|_| mean) {
        all if all > 0.0 => 1.0 - squares(&|point| law.at(point.numjobs)) / all,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests;
