//! The Mann-Whitney test: the probability that two samples differ as much by chance. It uses the
//! order of the values only, and assumes no shape of the noise. Arithmetic only.

use std::iter;

/// For at most this number of values in both samples together, every partition is counted.
const EXACT_MAX: usize = 40;

/// Two-sided. 1 if all values are equal, or there are none.
pub fn p_value(one: &[f64], other: &[f64]) -> f64 {
    let ranks = PooledRanks::of(one, other);
    if ranks.doubled.len() <= EXACT_MAX { ranks.exact() } else { ranks.normal() }
}

/// The smallest possible p for these sample sizes: all values of one sample are above the other.
pub fn p_value_min(one: usize, other: usize) -> f64 {
    let divisions = (1..=one).fold(1.0, |product, nth| product * (other + nth) as f64 / nth as f64);
    (2.0 / divisions).min(1.0)
}

/// Ranks over both samples. Equal values share the mean of their ranks, so ranks are doubled to
/// remain integers.
struct PooledRanks {
    doubled: Vec<usize>,
    /// The size of the first sample.
    chosen: usize,
    /// The sum of its doubled ranks.
    sum: usize,
    /// The number of equal values, for each value that occurs more than once.
    ties: Vec<usize>,
}

impl PooledRanks {
    fn of(one: &[f64], other: &[f64]) -> Self {
        let marked = |values: &[f64], is_first| {
            values.iter().map(|value| (*value, is_first)).collect::<Vec<(f64, bool)>>()
        };
        let mut all = [marked(one, true), marked(other, false)].concat();
        all.sort_by(|one, next| one.0.total_cmp(&next.0));
        let mut ranks = Self { doubled: Vec::new(), chosen: one.len(), sum: 0, ties: Vec::new() };
        for same in all.chunk_by(|one, next| one.0 == next.0) {
            let doubled = 2 * ranks.doubled.len() + same.len() + 1;
            ranks.sum += doubled * same.iter().filter(|(_, is_first)| *is_first).count();
            ranks.doubled.extend(iter::repeat_n(doubled, same.len()));
            ranks.ties.push(same.len());
        }
        ranks.ties.retain(|count| *count > 1);
        ranks
    }

    /// The expected sum under chance.
    fn sum_expected(&self) -> usize {
        self.chosen * (self.doubled.len() + 1)
    }

    /// The share of all choices of the first sample whose sum deviates at least as much from the
    /// expectation.
    fn exact(&self) -> f64 {
        let sum_max = self.doubled.iter().sum::<usize>();
        // The number of choices by size and sum. Below 2^53, so exact.
        let mut ways = vec![vec![0.0; sum_max + 1]; self.chosen + 1];
        ways[0][0] = 1.0;
        for rank in &self.doubled {
            for chosen in (1..=self.chosen).rev() {
                for sum in *rank..=sum_max {
                    let without = ways[chosen - 1][sum - rank];
                    ways[chosen][sum] += without;
                }
            }
        }
        let distance = |sum: usize| sum.abs_diff(self.sum_expected());
        let all = ways[self.chosen].iter().sum::<f64>();
        let as_far = ways[self.chosen].iter().enumerate();
        as_far
            .filter(|(sum, _)| distance(*sum) >= distance(self.sum))
            .map(|(_, ways)| ways)
            .sum::<f64>()
            / all
    }

    /// With many values the sum is nearly normally distributed; corrected for ties and for
    /// continuity.
    fn normal(&self) -> f64 {
        let (chosen, count) = (self.chosen as f64, self.doubled.len() as f64);
        let ties = self.ties.iter().map(|ties| (ties.pow(3) - ties) as f64).sum::<f64>();
        let variance =
            chosen * (count - chosen) / 12.0 * (count + 1.0 - ties / (count * (count - 1.0)));
        let distance = self.sum.abs_diff(self.sum_expected()) as f64 / 2.0;
        if variance <= 0.0 {
            return 1.0;
        }
        let deviations = (distance - 0.5).max(0.0) / variance.sqrt();
        complementary_error(deviations / 2.0_f64.sqrt())
    }
}

/// The complementary error function for non-negative x, to seven digits: Abramowitz and Stegun,
/// 7.1.26.
fn complementary_error(x: f64) -> f64 {
    const FACTORS: [f64; 5] = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429];
    let t = 1.0 / (1.0 + 0.3275911 * x);
    FACTORS.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t) * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(value: f64, expected: f64, error_max: f64) {
        assert!((value - expected).abs() <= error_max, "{value} instead of {expected}");
    }

    /// Values from `scipy.stats.mannwhitneyu(method="exact")` of SciPy 1.17.
    #[test]
    fn as_scipy_without_ties() {
        let old = [102.0, 98.0, 110.0, 95.0, 105.0, 99.0, 101.0, 97.0, 103.0];
        let new = [88.0, 91.0, 100.0, 85.0, 94.0, 90.0, 96.0, 87.0, 92.0];
        is_near(p_value(&old, &new), 0.0007815713698066638, 1e-12);
        is_near(p_value(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]), 0.02857142857142857, 1e-12);
        is_near(
            p_value(&[1.1, 2.2, 3.3, 9.9], &[4.4, 5.5, 6.6, 7.7, 8.8]),
            0.2857142857142857,
            1e-12,
        );
        is_near(p_value(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 0.1, 1e-12);
    }

    /// Counts every partition of the values one by one, by the definition.
    #[test]
    fn as_counted_with_ties() {
        let p = p_value(&[1.0, 2.0, 2.0, 3.0, 5.0], &[2.0, 4.0, 4.0, 5.0, 6.0]);
        is_near(p, 0.18253968253968253, 1e-12);
        let p = p_value(&[10.0, 10.0, 11.0, 12.0], &[11.0, 12.0, 12.0, 13.0, 13.0]);
        is_near(p, 0.07936507936507936, 1e-12);
        assert_eq!(p_value(&[1.0; 4], &[1.0; 4]), 1.0);
        assert_eq!(p_value(&[1.0; 40], &[1.0; 40]), 1.0);
    }

    /// Values from `scipy.stats.mannwhitneyu(method="asymptotic")` of SciPy 1.17, with ties.
    #[test]
    fn as_scipy_with_many_values() {
        let old: Vec<f64> = (0..30).map(|nth| f64::from(100 + nth * 37 % 41)).collect();
        let new: Vec<f64> = (0..25).map(|nth| f64::from(110 + nth * 29 % 43)).collect();
        is_near(p_value(&old, &new), 0.028560337459644532, 1e-6);
    }

    /// `count` ranks out of twice as many, with this U: ranks are moved up, the last one first.
    fn with_u(count: usize, mut u: usize) -> (Vec<f64>, Vec<f64>) {
        let mut chosen: Vec<usize> = (1..=count).collect();
        for rank in chosen.iter_mut().rev() {
            let step = u.min(count);
            (*rank, u) = (*rank + step, u - step);
        }
        let others =
            (1..=2 * count).filter(|rank| !chosen.contains(rank)).map(|rank| rank as f64).collect();
        (chosen.iter().map(|rank| *rank as f64).collect(), others)
    }

    /// The table of textbooks, two-sided at 5 %: the largest significant U.
    #[test]
    fn as_the_table_of_critical_values() {
        for (count, critical) in
            [(4, 0), (5, 2), (6, 5), (7, 8), (8, 13), (9, 17), (10, 23), (20, 127)]
        {
            let p = |u| {
                let (one, other) = with_u(count, u);
                p_value(&one, &other)
            };
            assert!(p(critical) <= 0.05, "{count}: {}", p(critical));
            assert!(p(critical + 1) > 0.05, "{count}: {}", p(critical + 1));
        }
    }

    #[test]
    fn the_smallest_value_of_so_many_rounds() {
        is_near(p_value_min(3, 3), 0.1, 1e-12);
        is_near(p_value_min(4, 4), 0.02857142857142857, 1e-12);
        is_near(p_value_min(9, 9), 2.0 / 48620.0, 1e-12);
        assert_eq!(p_value_min(0, 5), 1.0);
    }

    #[test]
    fn both_ways_say_about_the_same() {
        for shift in [0.0, 3.0, 8.0, 12.0] {
            let one: Vec<f64> = (0..20).map(f64::from).collect();
            let other: Vec<f64> = (0..20).map(|nth| f64::from(nth) + shift + 0.5).collect();
            let ranks = PooledRanks::of(&one, &other);
            is_near(ranks.normal(), ranks.exact(), 0.01);
        }
    }
}
