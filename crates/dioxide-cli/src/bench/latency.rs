//! Latencies of operations, as histograms.

use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// In nanoseconds. 32-bit counts suffice for one run.
pub type Latencies = Histogram<u32>;

/// The latencies of one or several runs.
#[derive(Clone)]
pub struct Timings {
    /// From the call to its return.
    pub clat: Latencies,
    /// From the time when the operation was due: only with an offered load.
    pub lat: Option<Latencies>,
}

impl Timings {
    /// No operation yet.
    pub fn new(is_load_given: bool) -> Self {
        Self { clat: empty(), lat: is_load_given.then(empty) }
    }

    /// Records an operation that ended just now.
    pub fn record(&mut self, due: Instant, submitted: Instant) {
        let now = Instant::now();
        record(&mut self.clat, now - submitted);
        if let Some(lat) = &mut self.lat {
            record(lat, now - due);
        }
    }

    /// Records an operation that was due but never begun, because earlier ones lasted until the
    /// end. Its latency would have been at least its lateness.
    pub fn miss(&mut self, late: Duration) {
        if let Some(lat) = &mut self.lat {
            record(lat, late);
        }
    }

    pub fn add(&mut self, other: &Self) {
        let same = "all histograms have the same range";
        self.clat.add(&other.clat).expect(same);
        if let Some((lat, other)) = self.lat.as_mut().zip(other.lat.as_ref()) {
            lat.add(other).expect(same);
        }
    }

    /// The latency for a user of the program: from the time when it was due, if there was one.
    pub fn seen(&self) -> &Latencies {
        self.lat.as_ref().unwrap_or(&self.clat)
    }

    pub fn p99_ns(&self) -> u64 {
        self.seen().value_at_percentile(99.0)
    }
}

/// From 1 ns to 10000 s, longer than any run, with three digits.
fn empty() -> Latencies {
    Histogram::new_with_bounds(1, 10_000_000_000_000, 3).expect("valid bounds")
}

fn record(latencies: &mut Latencies, time: Duration) {
    latencies.saturating_record(time.as_nanos() as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_counts_where_the_load_is_given() {
        let submitted = Instant::now();
        let due = submitted - Duration::from_secs(1);
        let (mut given, mut free) = (Timings::new(true), Timings::new(false));
        given.record(due, submitted);
        free.record(submitted, submitted);
        assert!(given.seen().max() >= 1_000_000_000 && given.clat.max() < 1_000_000_000);
        assert!(free.lat.is_none() && free.seen().len() == 1);
    }

    #[test]
    fn a_run_of_an_hour_has_room() {
        let mut timings = Timings::new(true);
        timings.miss(Duration::from_secs(3600));
        assert!(timings.seen().max() >= 3_600_000_000_000);
    }

    #[test]
    fn sums() {
        let now = Instant::now();
        let mut sum = Timings::new(true);
        sum.record(now, now);
        sum.add(&sum.clone());
        assert_eq!((sum.clat.len(), sum.seen().len()), (2, 2));
    }
}
