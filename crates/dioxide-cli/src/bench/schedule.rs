//! The start times of an offered load. Arithmetic only.

use std::time::Duration;

const SECOND_NS: u128 = 1_000_000_000;

/// `rate_iops` operations per second, evenly spaced; the threads take turns.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    rate_iops: u64,
    numjobs: usize,
}

impl Schedule {
    pub fn new(rate_iops: u64, numjobs: usize) -> Self {
        Self { rate_iops, numjobs }
    }

    /// When a thread's operation is due, since the start. Sequence numbers start at 1.
    pub fn due(&self, job: usize, sequence: u64) -> Duration {
        let earlier = u128::from(sequence - 1) * self.numjobs as u128 + job as u128;
        Duration::from_nanos((earlier * SECOND_NS / u128::from(self.rate_iops)) as u64)
    }

    /// When the operations of a thread from `next` on are due, before `end`.
    pub fn missed(self, job: usize, next: u64, end: Duration) -> impl Iterator<Item = Duration> {
        (next..).map(move |sequence| self.due(job, sequence)).take_while(move |due| *due < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let schedule = Schedule::new(1000, 2);
        let due = |job, sequence| schedule.due(job, sequence).as_micros();
        assert_eq!([due(0, 1), due(1, 1), due(0, 2), due(1, 2)], [0, 1000, 2000, 3000]);
    }

    #[test]
    fn nothing_is_lost_by_rounding() {
        assert_eq!(Schedule::new(3, 1).due(0, 3 * 3600 + 1), Duration::from_secs(3600));
    }
}
