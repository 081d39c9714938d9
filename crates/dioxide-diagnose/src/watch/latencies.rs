//! The distribution of latencies, from calls of which some were not traced to their end.
//!
//! Percentiles are those of the Kaplan-Meier estimator. A call whose trace ended first counts as
//! long as it was traced. Without that rule, short slices of a trace would favour short calls.

use crate::activity::Latency;
use std::collections::BTreeMap;

/// Buckets per doubling: a value is within 1.6 % of the middle of its bucket.
const BUCKETS_PER_DOUBLING: u64 = 32;

/// Weights of calls by their length.
#[derive(Debug, Default)]
pub struct Latencies {
    /// Calls that ended, and calls that did not, by bucket.
    buckets: BTreeMap<u32, (f64, f64)>,
    max: Option<Latency>,
    count: u64,
}

impl Latencies {
    /// Adds a call that took so long, or at least so long.
    pub fn add(&mut self, latency: Latency, weight: f64) {
        let bucket = self.buckets.entry(bucket_of(latency.ns)).or_default();
        *(if latency.is_at_least { &mut bucket.1 } else { &mut bucket.0 }) += weight;
        self.count += 1;
        if self.max.is_none_or(|max| latency.ns > max.ns) {
            self.max = Some(latency);
        }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max(&self) -> Option<Latency> {
        self.max
    }

    /// The smallest length that this share of the calls does not exceed. None without calls.
    pub fn quantile(&self, share: f64) -> Option<Latency> {
        let max = self.max?;
        let mut at_risk: f64 = self.buckets.values().map(|(ended, open)| ended + open).sum();
        let mut survivors = 1.0;
        for (bucket, (ended, open)) in &self.buckets {
            if at_risk > 0.0 {
                survivors *= 1.0 - ended / at_risk;
            }
            // A margin for rounding errors.
            if 1.0 - survivors >= share - 1e-9 {
                return Some(Latency { ns: middle_of(*bucket).min(max.ns), is_at_least: false });
            }
            at_risk -= ended + open;
        }
        Some(Latency { ns: max.ns, is_at_least: true })
    }
}

fn bucket_of(ns: u64) -> u32 {
    if ns < BUCKETS_PER_DOUBLING {
        return ns as u32;
    }
    let doublings = ns.ilog2() - BUCKETS_PER_DOUBLING.ilog2();
    // From 32 to 63.
    let place = (ns >> doublings) as u32;
    doublings * BUCKETS_PER_DOUBLING as u32 + place
}

fn middle_of(bucket: u32) -> u64 {
    let buckets = BUCKETS_PER_DOUBLING as u32;
    if bucket < buckets {
        return u64::from(bucket);
    }
    let doublings = bucket / buckets - 1;
    let low = u64::from(bucket - doublings * buckets) << doublings;
    low + ((1_u64 << doublings) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn took(ns: u64) -> Latency {
        Latency { ns, is_at_least: false }
    }

    fn at_least(ns: u64) -> Latency {
        Latency { ns, is_at_least: true }
    }

    fn of(all: &[Latency]) -> Latencies {
        let mut latencies = Latencies::default();
        all.iter().for_each(|latency| latencies.add(*latency, 1.0));
        latencies
    }

    #[test]
    fn without_calls_there_is_nothing() {
        assert_eq!(of(&[]).quantile(0.5), None);
        assert_eq!(of(&[]).max(), None);
    }

    #[test]
    fn percentiles_of_whole_calls_are_those_of_the_list() {
        let all: Vec<_> = (1..=100).map(|n| took(n * 1000)).collect();
        let near = |share, expected: f64| {
            let found = of(&all).quantile(share).unwrap();
            assert!(!found.is_at_least, "{found:?}");
            assert!((found.ns as f64 / expected - 1.0).abs() < 0.016, "{found:?}, not {expected}");
        };
        near(0.5, 50_000.0);
        near(0.99, 99_000.0);
        assert_eq!(of(&all).max(), Some(took(100_000)));
    }

    /// Slices of 10 ms see none of the long calls end. Without them, p50 would be 1 us.
    #[test]
    fn calls_that_did_not_end_count_as_long() {
        let mut all = vec![took(1000); 40];
        all.extend(vec![at_least(10_000_000); 60]);
        assert_eq!(of(&all).quantile(0.5), Some(at_least(10_000_000)));
        assert!(!of(&all).quantile(0.4).unwrap().is_at_least);
    }

    /// Half of the calls take 4 ms. In slices of 4 ms, one begun at a random moment ends seldom.
    #[test]
    fn the_time_of_the_trace_left_does_not_bias() {
        let mut latencies = Latencies::default();
        for left in 1..=400_u64 {
            let left = left * 20_000;
            for length in [1_000_000, 4_000_000] {
                let latency = if left >= length { took(length) } else { at_least(left) };
                latencies.add(latency, 1.0);
            }
        }
        let near = |share, expected: f64| {
            let found = latencies.quantile(share).unwrap();
            assert!((found.ns as f64 / expected - 1.0).abs() < 0.02, "{found:?}");
        };
        near(0.45, 1e6);
        near(0.9, 4e6);
    }

    proptest! {
        #[test]
        fn buckets_are_narrow_and_in_order(ns in 0..u64::MAX / 4) {
            let middle = middle_of(bucket_of(ns));
            prop_assert!(middle.abs_diff(ns) as f64 <= ns as f64 / 60.0 + 0.5);
            prop_assert!(bucket_of(ns) <= bucket_of(ns + 1));
        }
    }
}
