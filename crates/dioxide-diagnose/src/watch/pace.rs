//! The rate of sampling, and of the work beside it: as high as is cheap.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// The maximum cost of sampling, as a share of one processor.
const COST_MAX: f64 = 0.03;
/// The same of the first samples, without which a short observation would show little.
const FIRST_COST_MAX: f64 = 0.15;
const FIRST: u64 = 150;
const INTERVAL_MIN: Duration = Duration::from_millis(5);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The maximum cost of one errand, unless it would run less often than this.
const ERRAND_COST_MAX: f64 = 0.01;
const ERRAND_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// The fractional parts of its multiples are evenly distributed, without order.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// The intervals between samples: long enough for the cost of a sample, and irregular. A program
/// with the same rhythm would otherwise always be sampled at the same point of it.
#[derive(Default)]
pub struct Pace {
    /// CPU time of a sample in seconds: a moving average.
    cost: f64,
    looks: u64,
}

impl Pace {
    /// The time until the next sample, after one that took this much CPU time.
    pub fn next(&mut self, cost: Duration) -> Duration {
        let weight = if self.looks == 0 { 1.0 } else { 0.1 };
        self.cost += weight * (cost.as_secs_f64() - self.cost);
        self.looks += 1;
        let spread = 0.5 + (self.looks as f64 * GOLDEN).fract();
        let cost_max = if self.looks <= FIRST { FIRST_COST_MAX } else { COST_MAX };
        let mean = Duration::from_secs_f64(self.cost / cost_max).clamp(INTERVAL_MIN, INTERVAL_MAX);
        mean.mul_f64(spread)
    }
}

/// Work beside the samples, whose cost does not count as theirs: one run may cost much more.
#[derive(Debug)]
pub struct Errand {
    interval_min: Duration,
    due: Instant,
    /// CPU time since the last [`Self::take_cost`].
    cost: Duration,
}

impl Errand {
    /// Due at once.
    pub fn new(interval_min: Duration) -> Self {
        Self { interval_min, due: Instant::now(), cost: Duration::ZERO }
    }

    pub fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// It ran, and took this much CPU time.
    pub fn ran(&mut self, cost: Duration) {
        let pause = cost.div_f64(ERRAND_COST_MAX).min(ERRAND_INTERVAL_MAX).max(self.interval_min);
        self.due = Instant::now() + pause;
        self.cost += cost;
    }

    /// It continues after the shortest interval.
    pub fn continue_soon(&mut self) {
        self.due = Instant::now() + self.interval_min;
    }

    pub fn take_cost(&mut self) -> Duration {
        std::mem::take(&mut self.cost)
    }
}

/// CPU time of the calling thread.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_interval(cost: Duration) -> Duration {
        let mut pace = Pace { cost: cost.as_secs_f64(), looks: FIRST };
        (0..1000).map(|_| pace.next(cost)).sum::<Duration>() / 1000
    }

    #[test]
    fn costs_no_more_than_it_may() {
        for micros in [200, 1000, 10_000] {
            let cost = Duration::from_micros(micros);
            let share = cost.as_secs_f64() / mean_interval(cost).as_secs_f64();
            assert!((0.029..0.031).contains(&share), "{share} at {cost:?}");
        }
    }

    /// Short observations missed queues: two seconds were 14 samples.
    #[test]
    fn the_first_samples_may_cost_more() {
        let (mut pace, cost) = (Pace::default(), Duration::from_millis(4));
        let first: Duration = (0..FIRST).map(|_| pace.next(cost)).sum();
        assert!(first < Duration::from_secs(5), "{first:?}");
        assert!(pace.next(cost) > Duration::from_millis(60));
    }

    #[test]
    fn neither_too_often_nor_too_seldom() {
        let within = |interval: Duration, about: Duration| interval.abs_diff(about) < about / 50;
        assert!(within(mean_interval(Duration::from_micros(1)), INTERVAL_MIN));
        assert!(within(mean_interval(Duration::from_secs(1)), INTERVAL_MAX));
    }

    /// Reading many descriptors each second slowed the samples down to one a second.
    #[test]
    fn errands_do_not_slow_samples_down() {
        let minute = Duration::from_secs(60);
        let mut errand = Errand::new(Duration::from_secs(1));
        assert!(errand.is_due());
        errand.ran(minute);
        assert!(!errand.is_due() && errand.due <= Instant::now() + ERRAND_INTERVAL_MAX);
        assert_eq!((errand.take_cost(), errand.take_cost()), (minute, Duration::ZERO));
        errand.ran(Duration::ZERO);
        assert!(errand.due < Instant::now() + minute);
    }

    #[test]
    fn has_no_rhythm() {
        let mut pace = Pace::default();
        let intervals: std::collections::HashSet<_> =
            (0..100).map(|_| pace.next(Duration::from_millis(1))).collect();
        assert_eq!(intervals.len(), 100);
    }
}
