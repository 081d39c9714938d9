//! Tickets: the offsets of a run's operations, and its end. Shared by all writers, threads or
//! tasks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The order of offsets.
#[derive(Clone, Copy, Debug)]
pub enum Places {
    /// Ascending, until the file is full.
    Once { size_bytes: u64 },
    /// Ascending, and from the start again.
    Around { size_bytes: u64 },
    /// One per writer.
    Own,
}

/// Hands out the offsets of a run.
pub struct Tickets {
    places: Places,
    bs_bytes: u64,
    deadline: Instant,
    taken: AtomicU64,
}

impl Tickets {
    /// The time runs from here.
    pub fn new(places: Places, bs_bytes: u64, runtime: Duration) -> Self {
        Self { places, bs_bytes, deadline: Instant::now() + runtime, taken: AtomicU64::new(0) }
    }

    /// The next offset of this writer. None when the time is over, or the file is full. The caller
    /// must complete the operation.
    pub fn take(&self, job: usize) -> Option<u64> {
        if Instant::now() >= self.deadline {
            return None;
        }
        let offset = self.taken.fetch_add(1, Relaxed) * self.bs_bytes;
        match self.places {
            Places::Once { size_bytes } => (offset + self.bs_bytes <= size_bytes).then_some(offset),
            Places::Around { size_bytes } => Some(offset % size_bytes),
            Places::Own => Some(job as u64 * self.bs_bytes),
        }
    }

    /// The number of tickets taken.
    pub fn given(&self) -> u64 {
        let taken = self.taken.load(Relaxed);
        match self.places {
            Places::Once { size_bytes } => taken.min(size_bytes / self.bs_bytes),
            Places::Around { .. } | Places::Own => taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn a_file_is_filled_once() {
        let tickets = Tickets::new(Places::Once { size_bytes: 10_000 }, 4096, LONG);
        assert_eq!(
            [tickets.take(0), tickets.take(1), tickets.take(0)],
            [Some(0), Some(4096), None]
        );
        assert_eq!(tickets.given(), 2);
    }

    #[test]
    fn a_written_file_is_gone_around() {
        let tickets = Tickets::new(Places::Around { size_bytes: 8192 }, 4096, LONG);
        assert_eq!(
            [tickets.take(0), tickets.take(0), tickets.take(0)],
            [Some(0), Some(4096), Some(0)]
        );
        assert_eq!(tickets.given(), 3);
    }

    #[test]
    fn regions_are_ones_own() {
        let tickets = Tickets::new(Places::Own, 4096, LONG);
        assert_eq!(
            [tickets.take(3), tickets.take(3), tickets.take(1)],
            [Some(12288), Some(12288), Some(4096)]
        );
    }

    #[test]
    fn the_time_ends() {
        let tickets = Tickets::new(Places::Own, 4096, Duration::ZERO);
        assert_eq!((tickets.take(0), tickets.given()), (None, 0));
    }
}
