//! Medians, and ratios with their range over the rounds. Arithmetic only.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A ratio of two rates over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    pub min: f64,
    pub median: f64,
    pub max: f64,
    #[serde(skip)]
    pub rounds: usize,
}

/// With fewer rounds, agreement of all of them is too likely by chance.
const ROUNDS_CERTAIN_MIN: usize = 5;

impl Ratio {
    /// None without a round, or for a rate of zero.
    pub fn of(ratios: Vec<f64>) -> Option<Self> {
        if !ratios.iter().all(|ratio| ratio.is_finite()) {
            return None;
        }
        let min = ratios.iter().copied().reduce(f64::min)?;
        let max = ratios.iter().copied().reduce(f64::max)?;
        Some(Self { min, max, rounds: ratios.len(), median: median(ratios)? })
    }
}

/// The median, and the range over the rounds.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, median, max, .. } = self;
        write!(f, "{median:.2} ({min:.2}..{max:.2})")
    }
}

/// Whether agreement of this number of rounds may be stated as a fact.
pub fn is_certain(rounds: usize) -> bool {
    rounds >= ROUNDS_CERTAIN_MIN
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
