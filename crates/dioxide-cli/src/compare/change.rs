//! The change of a figure between two runs: the ratio of its medians over the rounds, its interval,
//! and its probability by chance. Arithmetic only; random draws have a fixed seed.

use super::mann_whitney::p_value;
use crate::bench::ratio::median;
use fastrand::Rng;
use serde::Serialize;

/// Each gives two ratios.
const RESAMPLES: usize = 1000;
/// The share of ratios below the interval, and above it: it is one of 95 %.
const TAIL: f64 = 0.025;
const SEEDS: [u64; 2] = [0x0ddb_a115, 0x5eed_0f02];

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The median over the rounds of the old run.
    pub old: f64,
    /// The median over the rounds of the new run.
    pub new: f64,
    /// The new median over the old one: below 1 is a loss.
    pub ratio: f64,
    /// The 95 % confidence interval of the ratio (bootstrap).
    pub low: f64,
    pub high: f64,
    /// The probability of such a difference by chance (Mann-Whitney, two-sided).
    pub p: f64,
}

impl Change {
    /// None for a run without rounds, or with a rate of zero, which has no ratio.
    pub fn of(old: &[f64], new: &[f64]) -> Option<Self> {
        let is_positive = |value: &f64| *value > 0.0 && value.is_finite();
        if !old.iter().chain(new).all(is_positive) {
            return None;
        }
        let p = p_value(old, new);
        let (low, high) = interval(old, new);
        let (old, new) = (median(old.to_vec())?, median(new.to_vec())?);
        Some(Self { old, new, ratio: new / old, low, high, p })
    }

    /// Whether the whole interval is a loss.
    pub fn is_loss(&self) -> bool {
        self.high < 1.0
    }

    pub fn is_gain(&self) -> bool {
        self.low > 1.0
    }

    /// Whether the whole interval is on one side of 1.
    pub fn has_direction(&self) -> bool {
        self.is_loss() || self.is_gain()
    }

    /// Whether both intervals are wholly on the same side of 1.
    pub fn agrees_with(&self, other: &Self) -> bool {
        (self.is_loss() && other.is_loss()) || (self.is_gain() && other.is_gain())
    }

    /// Whether the whole interval is below this loss.
    pub fn loses_more_than(&self, percent: f64) -> bool {
        self.is_loss() && self.high < 1.0 - percent / 100.0
    }
}

/// Resamples the rounds of each run with replacement. Both runs draw from both seeds and are
/// combined crosswise. Exchanging old and new then inverts the interval exactly.
fn interval(old: &[f64], new: &[f64]) -> (f64, f64) {
    let [mut one, mut other] = SEEDS.map(Rng::with_seed);
    let mut ratios = Vec::with_capacity(2 * RESAMPLES);
    for _ in 0..RESAMPLES {
        let [seed_one, seed_other] = [one.u64(..), other.u64(..)];
        let drawn = |values, seed| resampled_median(values, &mut Rng::with_seed(seed));
        ratios.push(drawn(new, seed_other) / drawn(old, seed_one));
        ratios.push(drawn(new, seed_one) / drawn(old, seed_other));
    }
    ratios.sort_by(f64::total_cmp);
    let below = (ratios.len() as f64 * TAIL) as usize;
    (ratios[below], ratios[ratios.len() - 1 - below])
}

/// For finite values, at least one.
fn resampled_median(values: &[f64], rng: &mut Rng) -> f64 {
    let drawn = values.iter().map(|_| values[rng.usize(..values.len())]).collect();
    median(drawn).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [f64; 9] = [102.0, 98.0, 110.0, 95.0, 105.0, 99.0, 101.0, 97.0, 103.0];
    const NEW: [f64; 9] = [71.0, 68.0, 77.0, 66.0, 73.0, 69.0, 70.0, 67.0, 72.0];

    #[test]
    fn a_loss_of_30_percent() {
        let change = Change::of(&OLD, &NEW).unwrap();
        assert_eq!((change.old, change.new), (101.0, 70.0));
        assert!((0.64..change.ratio).contains(&change.low), "{change:?}");
        assert!((change.ratio..0.75).contains(&change.high), "{change:?}");
        assert!(change.p < 1e-4 && change.loses_more_than(10.0) && !change.loses_more_than(31.0));
    }

    #[test]
    fn exchanged_it_is_turned_around() {
        let (there, back) =
            (Change::of(&OLD, &NEW[..6]).unwrap(), Change::of(&NEW[..6], &OLD).unwrap());
        let is_inverse =
            |one: f64, other: f64| assert!((one * other - 1.0).abs() < 1e-12, "{one} {other}");
        is_inverse(there.ratio, back.ratio);
        is_inverse(there.low, back.high);
        is_inverse(there.high, back.low);
        assert_eq!((there.p, there.is_loss()), (back.p, back.is_gain()));
    }

    #[test]
    fn nothing_is_no_ratio() {
        assert_eq!(Change::of(&[], &NEW), None);
        assert_eq!(Change::of(&OLD, &[]), None);
        assert_eq!(Change::of(&[0.0, 1.0], &NEW), None);
        assert_eq!(Change::of(&OLD, &[f64::NAN]), None);
    }

    #[test]
    fn the_interval_has_the_ratio_in_it_about_as_often_as_it_says() {
        let mut rng = Rng::with_seed(7);
        let mut sample =
            || (0..9).map(|_| 100.0 + 20.0 * rng.f64() + 20.0 * rng.f64()).collect::<Vec<f64>>();
        let hits = (0..400).filter(|_| {
            let change = Change::of(&sample(), &sample()).unwrap();
            !change.is_loss() && !change.is_gain()
        });
        assert!(hits.count() > 360, "nine of ten at the very least");
    }
}
