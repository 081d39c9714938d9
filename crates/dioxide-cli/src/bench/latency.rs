//! Latencies of operations, as histograms.

use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Nanoseconds. 32-bit counts: a run has fewer operations of one latency than that.
pub type Latencies = Histogram<u32>;

/// What the operations of a run, or of several, took.
#[derive(Clone)]
pub struct Timings {
    /// From the call to its return.
    pub clat: Latencies,
    /// From the time when the operation was due: only where the load is given.
    pub lat: Option<Latencies>,
}

impl Timings {
    /// No operation yet.
    pub fn new(is_load_given: bool) -> Self {
        Self { clat: empty(), lat: is_load_given.then(empty) }
    }

    /// An operation that ended just now.
    pub fn record(&mut self, due: Instant, submitted: Instant) {
        let now = Instant::now();
        record(&mut self.clat, now - submitted);
        if let Some(lat) = &mut self.lat {
            record(lat, now - due);
        }
    }

    /// An operation that was due and is not begun any more, since earlier ones took until the end: it would have
    /// taken as long as it is late at least.
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

    /// What a user of the program would see: from the time when it was due, if there was one.
    pub fn seen(&self) -> &Latencies {
        self.lat.as_ref().unwrap_or(&self.clat)
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
