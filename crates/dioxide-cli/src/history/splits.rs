//! The split of a series whose sides differ most, by ranks. Ranks assume no shape of the noise, and
//! limit the weight of an outlier. Arithmetic only.

use fastrand::Rng;

/// The fewest runs of a segment: one or two outliers are none.
pub const SEGMENT_MIN: usize = 3;

/// The ranks of a series, minus their mean. Equal values share the mean of their ranks.
pub struct Ranks {
    centred: Vec<f64>,
    squares: f64,
}

/// Part of a series, and the deviation of its mean rank from the rest, in standard deviations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    pub from: usize,
    pub to: usize,
    pub deviation: f64,
}

impl Ranks {
    pub fn of(values: &[f64]) -> Self {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|one, other| values[*one].total_cmp(&values[*other]));
        let mut centred = vec![0.0; values.len()];
        let mut below = 0;
        for same in order.chunk_by(|one, other| values[*one] == values[*other]) {
            let rank = below as f64 + (same.len() as f64 - values.len() as f64) / 2.0;
            same.iter().for_each(|index| centred[*index] = rank);
            below += same.len();
        }
        let squares = centred.iter().map(|rank| rank * rank).sum();
        Self { centred, squares }
    }

    pub fn shuffle(&mut self, rng: &mut Rng) {
        rng.shuffle(&mut self.centred);
    }

    /// The beginning of the series that differs most from its rest.
    pub fn beginning(&self) -> Part {
        let (mut best, mut sum) = (Part::default(), 0.0);
        for to in 1..self.centred.len() {
            sum += self.centred[to - 1];
            best = best.or(self.part(0, to, sum));
        }
        best
    }

    /// The inner part that differs most from the rest, as a change that was taken back does.
    pub fn inner(&self) -> Part {
        let mut best = Part::default();
        for from in SEGMENT_MIN..self.centred.len() {
            let mut sum = 0.0;
            for to in from + 1..=self.centred.len().saturating_sub(SEGMENT_MIN) {
                sum += self.centred[to - 1];
                best = best.or(self.part(from, to, sum));
            }
        }
        best
    }

    /// Deviates by 0 if a segment is too short, or all values are equal.
    fn part(&self, from: usize, to: usize, sum: f64) -> Part {
        let (count, length) = (self.centred.len(), to - from);
        if length.min(count - length) < SEGMENT_MIN || self.squares == 0.0 {
            return Part::default();
        }
        let [all, inside, outside] = [count, length, count - length].map(|count| count as f64);
        let variance = inside * outside / (all * (all - 1.0)) * self.squares;
        Part { from, to, deviation: sum.abs() / variance.sqrt() }
    }
}

impl Part {
    fn or(self, other: Self) -> Self {
        if other.deviation > self.deviation { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_their_mean() {
        let ranks = Ranks::of(&[5.0, 1.0, 5.0, 9.0]);
        assert_eq!((ranks.centred, ranks.squares), (vec![0.0, -1.5, 0.0, 1.5], 4.5));
    }

    #[test]
    fn a_step_is_the_best_beginning() {
        let part = Ranks::of(&[3.0, 1.0, 2.0, 4.0, 8.0, 6.0, 7.0, 5.0]).beginning();
        assert_eq!((part.from, part.to), (0, 4));
        // The normal deviate of the Mann-Whitney test: U = 0 of 4 and 4.
        assert!((part.deviation - 8.0 / 12.0_f64.sqrt()).abs() < 1e-12, "{part:?}");
    }

    #[test]
    fn a_step_and_its_return_are_an_inner_part() {
        let values = [8.0, 9.0, 8.5, 9.5, 1.0, 2.0, 1.5, 8.7, 9.1, 8.2];
        let part = Ranks::of(&values).inner();
        assert_eq!((part.from, part.to), (4, 7));
    }

    #[test]
    fn equal_values_and_short_series_deviate_by_nothing() {
        for values in [&[1.0; 20][..], &[1.0, 2.0, 3.0, 4.0, 5.0], &[]] {
            let ranks = Ranks::of(values);
            assert_eq!([ranks.beginning(), ranks.inner()], [Part::default(); 2]);
        }
    }
}
