//! Sums over time, in intervals. With more time, intervals double, so that their number is bounded.

/// The first length of an interval, in nanoseconds: the period of the trace.
const INTERVAL_NS: u64 = 250_000_000;

/// The maximum number of intervals: as many as a line of a terminal shows beside its figures.
pub const BINS_MAX: usize = 40;

/// Sums by the interval that they belong to, since a begin.
#[derive(Clone, Debug)]
pub struct Bins {
    interval_ns: u64,
    sums: Vec<f64>,
}

impl Default for Bins {
    fn default() -> Self {
        Self { interval_ns: INTERVAL_NS, sums: Vec::new() }
    }
}

impl Bins {
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Adds an amount at a moment.
    pub fn add(&mut self, at_ns: u64, amount: f64) {
        while at_ns / self.interval_ns >= BINS_MAX as u64 {
            self.double();
        }
        let index = (at_ns / self.interval_ns) as usize;
        if index >= self.sums.len() {
            self.sums.resize(index + 1, 0.0);
        }
        self.sums[index] += amount;
    }

    /// Spreads an amount evenly over a time.
    pub fn spread(&mut self, from_ns: u64, to_ns: u64, amount: f64) {
        if from_ns >= to_ns {
            return self.add(to_ns, amount);
        }
        // Makes room first: the interval may change.
        self.add(to_ns - 1, 0.0);
        let length_ns = (to_ns - from_ns) as f64;
        let mut at_ns = from_ns;
        while at_ns < to_ns {
            let end_ns = ((at_ns / self.interval_ns + 1) * self.interval_ns).min(to_ns);
            self.add(at_ns, amount * (end_ns - at_ns) as f64 / length_ns);
            at_ns = end_ns;
        }
    }

    /// Adds the sums of another.
    pub fn merge(&mut self, mut other: Self) {
        self.widen(other.interval_ns);
        other.widen(self.interval_ns);
        for (index, sum) in other.sums.into_iter().enumerate() {
            self.add(index as u64 * self.interval_ns, sum);
        }
    }

    /// The sums in intervals of this length, which is at least its own.
    pub fn in_intervals_of(mut self, interval_ns: u64) -> Vec<f64> {
        self.widen(interval_ns);
        self.sums
    }

    fn widen(&mut self, interval_ns: u64) {
        while self.interval_ns < interval_ns {
            self.double();
        }
    }

    fn double(&mut self) {
        self.interval_ns *= 2;
        self.sums = self.sums.chunks(2).map(|pair| pair.iter().sum()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: u64 = INTERVAL_NS;

    #[test]
    fn amounts_go_to_their_intervals() {
        let mut bins = Bins::default();
        bins.add(0, 1.0);
        bins.add(N - 1, 2.0);
        bins.add(3 * N, 4.0);
        assert_eq!(bins.in_intervals_of(N), [3.0, 0.0, 0.0, 4.0]);
    }

    #[test]
    fn amounts_over_a_time_are_divided() {
        let mut bins = Bins::default();
        bins.spread(N / 2, 2 * N + N / 2, 8.0);
        assert_eq!(bins.clone().in_intervals_of(N), [2.0, 4.0, 2.0]);
        bins.spread(N, N, 1.0);
        assert_eq!(bins.in_intervals_of(N), [2.0, 5.0, 2.0]);
    }

    #[test]
    fn sums_of_two_are_added() {
        let (mut one, mut other) = (Bins::default(), Bins::default());
        one.add(0, 1.0);
        other.add(N, 2.0);
        other.add(BINS_MAX as u64 * N, 4.0);
        one.merge(other);
        assert_eq!(one.clone().in_intervals_of(2 * N)[..2], [3.0, 0.0]);
        assert_eq!(one.in_intervals_of(2 * N)[BINS_MAX / 2], 4.0);
    }

    #[test]
    fn intervals_double_and_nothing_is_lost() {
        let mut bins = Bins::default();
        for second in 0..1000 {
            bins.spread(second * 4 * N, (second + 1) * 4 * N, 1.0);
        }
        assert!(bins.sums.len() <= BINS_MAX && bins.sums.len() > BINS_MAX / 2);
        assert!((bins.sums.iter().sum::<f64>() - 1000.0).abs() < 1e-6);
        let (interval_ns, last) = (bins.interval_ns(), bins.sums.len());
        assert_eq!(bins.in_intervals_of(interval_ns * 2).len(), last.div_ceil(2));
    }
}
