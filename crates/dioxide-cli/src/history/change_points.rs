//! Change points: where the level of a series of runs changed beyond chance. Pure, with fixed
//! seeds, so that tests can measure its error rates.
//!
//! - A run counts as one value. Its rounds share one placement of the file and one neighbourhood,
//!   so they are not independent of each other.
//! - Runs are taken as independent: without a change, every order of them is as probable. A machine
//!   with phases of many runs breaks this, and its phases show as change points.
//! - A segment is split where the ranks of its sides differ most: the maximally selected rank
//!   statistic (Pettitt, Applied Statistics 28, 1979). A change that was taken back hides from a
//!   single split. So a second statistic takes the best inner part, as circular binary segmentation
//!   does (Olshen et al., Biostatistics 5, 2004).
//! - The best of many splits looks significant by chance. So the probability is the share of random
//!   orders of the same values with a split as good. The draws end early where the share is large
//!   (Besag and Clifford, Biometrika 78, 1991).
//! - The parts of a split are tested again, until none splits (binary segmentation). So does
//!   E-divisive (Matteson and James, JASA 109, 2014), which MongoDB and Hunter use on benchmarks.
//!   It measures Euclidean distances, which give an outlier more weight than ranks do.
//! - When a change point was found, other changes were still in its segment. And ranks prefer sides
//!   of equal length. So it moves to the place between its neighbours with the least distances of
//!   all values from the medians of their sides. No distance counts more than the size of the
//!   change, so outliers do not attract it.
//! - All segments of a generation are corrected together (Benjamini and Hochberg). Without a
//!   change, only the first generation exists, so a finding in any series has the probability
//!   [`CHANCE_MAX`].
//!
//! A slow drift has no change point, and the tests report one or several all the same.

use super::splits::{Ranks, SEGMENT_MIN};
use crate::bench::ratio::median;
use crate::compare::judge::{CHANCE_MAX, adjusted};
use crate::compare::mann_whitney::p_value_min;
use crate::interrupt::Interrupted;
use fastrand::Rng;
use std::ops::Range;

/// The runs that a segment needs to be split beyond chance, if it is the only one.
pub const RUNS_MIN: usize = 10;

/// Random orders at most.
const DRAWS_MAX: u32 = 9999;
/// The draws end when so many were as good.
const HITS_MAX: u32 = 20;
/// No p is smaller.
const P_DRAWN_MIN: f64 = 1.0 / (DRAWS_MAX + 1) as f64 / WEIGHT_SPLIT;
/// The parts of the permitted error for a single split, and for an inner part.
const WEIGHT_SPLIT: f64 = 0.8;
const WEIGHT_INNER: f64 = 0.2;
/// A split with less is certain, and needs no comparison with an inner part.
const P_CERTAIN: f64 = 1e-3;
const SEED: u64 = 0x0c4a_79e5;

/// The first run of a new level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChangePoint {
    pub at: usize,
    /// The expected share of chance results among the change points of its generation.
    pub p_adjusted: f64,
}

/// The change points of each series, in order. `check` may end the search.
pub fn find(
    series: &[Vec<f64>],
    check: impl Fn() -> Result<(), Interrupted>,
) -> Result<Vec<Vec<ChangePoint>>, Interrupted> {
    let mut found: Vec<Vec<ChangePoint>> = vec![Vec::new(); series.len()];
    let mut open: Vec<(usize, Range<usize>)> =
        series.iter().enumerate().map(|(nth, values)| (nth, 0..values.len())).collect();
    loop {
        open.retain(|(_, segment)| segment.len() >= RUNS_MIN);
        if open.is_empty() {
            break;
        }
        let splits = open.iter().map(|(nth, segment)| {
            check()?;
            Ok(split(&series[*nth][segment.clone()]))
        });
        let splits: Vec<Split> = splits.collect::<Result<_, _>>()?;
        let p: Vec<f64> = splits.iter().map(|split| split.p).collect();
        let mut next = Vec::new();
        for (((nth, segment), split), p_adjusted) in open.iter().zip(splits).zip(adjusted(&p)) {
            if p_adjusted >= CHANCE_MAX {
                continue;
            }
            let mut from = segment.start;
            for at in split.at {
                let at = segment.start + at;
                found[*nth].push(ChangePoint { at, p_adjusted });
                next.push((*nth, from..at));
                from = at;
            }
            next.push((*nth, from..segment.end));
        }
        open = next;
    }
    for (points, values) in found.iter_mut().zip(series) {
        points.sort_by_key(|point| point.at);
        refine(points, values);
    }
    Ok(found)
}

/// The runs that each of so many series needs, for a change in one of them. None if no number
/// suffices: too few random orders are drawn for so many series.
pub fn runs_needed(series: usize) -> Option<usize> {
    let is_enough = |p: f64| p * (series.max(1) as f64) < CHANCE_MAX;
    if !is_enough(P_DRAWN_MIN) {
        return None;
    }
    (2 * SEGMENT_MIN..).find(|runs| is_enough(p_min(*runs)))
}

/// The smallest possible p of so many runs: all values of one half are above the other. With an odd
/// number, two splits are as good.
fn p_min(runs: usize) -> f64 {
    let splits = 1 + runs % 2;
    let exact = splits as f64 * p_value_min(runs / 2, runs - runs / 2) / WEIGHT_SPLIT;
    exact.max(P_DRAWN_MIN)
}

/// The best split of a segment, with one or two change points.
struct Split {
    at: Vec<usize>,
    p: f64,
}

fn split(values: &[f64]) -> Split {
    let ranks = Ranks::of(values);
    let (beginning, inner) = (ranks.beginning(), ranks.inner());
    let single = Split {
        at: vec![beginning.to],
        p: p_value(values, beginning.deviation, |ranks| ranks.beginning().deviation) / WEIGHT_SPLIT,
    };
    if single.p <= P_CERTAIN {
        return single;
    }
    let double = Split {
        at: vec![inner.from, inner.to],
        p: p_value(values, inner.deviation, |ranks| ranks.inner().deviation) / WEIGHT_INNER,
    };
    if double.p < single.p { double } else { single }
}

/// The probability that a random order of the values deviates as much.
fn p_value(values: &[f64], seen: f64, deviation: impl Fn(&Ranks) -> f64) -> f64 {
    let (mut ranks, mut rng) = (Ranks::of(values), Rng::with_seed(SEED));
    let mut hits = 0;
    for draw in 1..=DRAWS_MAX {
        ranks.shuffle(&mut rng);
        // Equal sums may differ by their rounding.
        if deviation(&ranks) >= seen - 1e-9 {
            hits += 1;
        }
        if hits == HITS_MAX {
            return f64::from(hits) / f64::from(draw);
        }
    }
    f64::from(hits + 1) / f64::from(DRAWS_MAX + 1)
}

/// Moves each change point to the best place between its neighbours.
fn refine(points: &mut [ChangePoint], values: &[f64]) {
    for nth in 0..points.len() {
        let from = nth.checked_sub(1).map_or(0, |before| points[before].at);
        let to = points.get(nth + 1).map_or(values.len(), |next| next.at);
        let size = middle(&values[from..points[nth].at]) - middle(&values[points[nth].at..to]);
        let places = from + SEGMENT_MIN..=to.saturating_sub(SEGMENT_MIN);
        let distance = |side: &[f64]| distance(side, size.abs());
        let cost = |at: &usize| distance(&values[from..*at]) + distance(&values[*at..to]);
        let best = places.min_by(|one, other| cost(one).total_cmp(&cost(other)));
        points[nth].at = best.unwrap_or(points[nth].at);
    }
}

fn middle(values: &[f64]) -> f64 {
    median(values.to_vec()).unwrap_or_default()
}

/// The sum of distances from the median, each at most `most`.
fn distance(values: &[f64], most: f64) -> f64 {
    let middle = middle(values);
    values.iter().map(|value| (value - middle).abs().min(most)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// About normal, with this standard deviation, around each level.
    fn noisy(rng: &mut Rng, levels: &[(f64, usize)], deviation: f64) -> Vec<f64> {
        let values = levels.iter().flat_map(|(level, runs)| vec![*level; *runs]);
        let normal = |rng: &mut Rng| (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
        values.map(|level| level * (deviation * normal(rng)).exp()).collect()
    }

    fn at(points: &[ChangePoint]) -> Vec<usize> {
        points.iter().map(|point| point.at).collect()
    }

    fn found(series: &[Vec<f64>]) -> Vec<Vec<ChangePoint>> {
        find(series, || Ok(())).unwrap()
    }

    fn of_one(values: Vec<f64>) -> Vec<usize> {
        at(&found(&[values])[0])
    }

    /// Levels with their lengths, and their change points.
    type Known = (&'static [(f64, usize)], &'static [usize]);

    /// A change point too many remains as rare as chance permits.
    #[test]
    fn known_change_points_are_found() {
        let known: [Known; 5] = [
            (&[(5.0, 20)], &[]),
            (&[(5.0, 10), (4.0, 10)], &[10]),
            (&[(5.0, 15), (6.0, 5)], &[15]),
            (&[(5.0, 12), (4.0, 14), (3.0, 16)], &[12, 26]),
            // Taken back.
            (&[(5.0, 10), (4.0, 6), (5.0, 12)], &[10, 16]),
        ];
        for (levels, expected) in known {
            let is_exact =
                |seed: &u64| of_one(noisy(&mut Rng::with_seed(*seed), levels, 0.03)) == expected;
            let exact = (0..12).filter(is_exact).count();
            assert!(exact >= 10, "{exact} of 12 for {levels:?}");
        }
    }

    /// Among eight series, one changes by three standard deviations of the noise.
    #[test]
    fn most_changes_are_found_and_near_their_place() {
        let mut hits = 0;
        for seed in 0..25 {
            let mut rng = Rng::with_seed(seed);
            let mut series: Vec<_> = (0..7).map(|_| noisy(&mut rng, &[(5.0, 24)], 0.05)).collect();
            series.push(noisy(&mut rng, &[(5.0, 14), (4.3, 10)], 0.05));
            let points = found(&series).pop().unwrap();
            hits += usize::from(points.iter().any(|point| point.at.abs_diff(14) <= 1));
        }
        assert!(hits >= 22, "{hits} of 25");
    }

    /// Any change point in any of six series is a false alarm.
    #[test]
    fn noise_alone_has_a_change_point_as_rarely_as_said() {
        let alarms = (0..300).filter(|seed| {
            let mut rng = Rng::with_seed(1000 + seed);
            let series: Vec<_> = (0..6).map(|_| noisy(&mut rng, &[(5.0, 20)], 0.1)).collect();
            found(&series).iter().any(|points| !points.is_empty())
        });
        // At most 9 are expected, and 5 were found. 18 or more have a probability of 0.5 %.
        let alarms = alarms.count();
        assert!(alarms < 18, "{alarms} of 300");
    }

    #[test]
    fn an_outlier_is_no_change_point() {
        for place in [0, 1, 10, 18, 19] {
            for factor in [0.1, 10.0] {
                let mut values = noisy(&mut Rng::with_seed(3), &[(5.0, 20)], 0.03);
                values[place] *= factor;
                assert_eq!(of_one(values), [0; 0], "at {place}");
            }
        }
    }

    #[test]
    fn outliers_do_not_move_a_change_point() {
        let first = [vec![5.0; 10], vec![4.75; 8], vec![0.6, 0.5]].concat();
        assert_eq!(of_one(first), [10]);
        let second = [vec![5.0; 12], vec![4.75; 6], vec![0.55, 0.6, 0.5]].concat();
        assert_eq!(of_one(second), [12]);
    }

    /// The drawn p has a floor, so more runs do not help.
    #[test]
    fn too_many_series_cannot_be_judged() {
        let most = (1..10_000).take_while(|series| runs_needed(*series).is_some()).last().unwrap();
        assert!((200..300).contains(&most), "{most}");
    }

    #[test]
    fn a_search_can_be_ended() {
        let ended = find(&[vec![5.0; 20]], || Err(Interrupted { signal: 2 }));
        assert_eq!(ended.unwrap_err().signal, 2);
    }

    #[test]
    fn equal_values_have_none() {
        assert_eq!(of_one(vec![5.0; 40]), [0; 0]);
    }

    #[test]
    fn so_many_runs_are_needed() {
        assert_eq!([1, 2, 8, 40].map(runs_needed), [RUNS_MIN, 10, 12, 14].map(Some));
        let step = |runs: usize| {
            (0..runs).map(|nth| if nth < runs / 2 { 5.0 } else { 4.0 } + nth as f64 / 1e3).collect()
        };
        assert_eq!(of_one(step(RUNS_MIN)), [RUNS_MIN / 2]);
        assert_eq!(of_one(step(RUNS_MIN - 1)), [0; 0]);
        let flat = |nth: usize| (0..12).map(|run| ((run * 7 + nth) % 12) as f64).collect();
        let mut series: Vec<Vec<f64>> = (1..8).map(flat).collect();
        series.push(step(12));
        assert_eq!(at(&found(&series)[7]), [6], "of eight series");
    }
}
