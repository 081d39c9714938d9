//! Tickets for appends: no path exceeds the size cap, and records have the same lengths on every
//! path. Shared by all threads.

use super::ledger::Ledger;
use super::target::Target;
use super::task::Task;
use crate::sizes::Sizes;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One for each record below the size cap.
pub struct Tickets<'a> {
    taken: AtomicU64,
    /// Bytes of the tickets taken, if records differ in length.
    allotted: AtomicU64,
    sizes: Sizes,
    size_bytes: u64,
    ledger: &'a Ledger,
    /// Maximum padding of the tickets in use, of this file alone.
    padding_max_bytes: u64,
}

impl<'a> Tickets<'a> {
    pub fn new(task: &Task<'_>, ledger: &'a Ledger) -> Self {
        Self {
            taken: AtomicU64::new(0),
            allotted: AtomicU64::new(0),
            sizes: task.point.sizes,
            size_bytes: task.size_bytes,
            ledger,
            padding_max_bytes: task.padding_max_bytes(),
        }
    }

    /// The next record. None once the file is full.
    pub fn take(&self) -> Option<Target> {
        let number = self.taken.fetch_add(1, Relaxed) + 1;
        let bytes = self.sizes.of(number);
        let offset = match self.sizes.fixed() {
            Some(bytes) => (number - 1) * bytes,
            None => self.allotted.fetch_add(bytes, Relaxed),
        };
        let has_room = offset + bytes <= self.size_bytes && self.has_room_for_padding();
        has_room.then_some(Target::append(number, offset, bytes))
    }

    fn has_room_for_padding(&self) -> bool {
        match self.ledger {
            Ledger::Records(records) => {
                records.padded_bytes() + self.padding_max_bytes <= self.size_bytes
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::{Gaps, Records};
    use super::super::stamp::Stamp;
    use super::*;

    fn tickets(sizes: Sizes, ledger: &Ledger) -> Tickets<'_> {
        let (taken, allotted) = Default::default();
        Tickets { taken, allotted, sizes, size_bytes: 10_000, ledger, padding_max_bytes: 0 }
    }

    #[test]
    fn tickets_end_at_the_cap() {
        let tickets = tickets(Sizes::one(4096), &Ledger::Nothing);
        let taken = [tickets.take(), tickets.take(), tickets.take()];
        assert_eq!(
            taken,
            [Some(Target::append(1, 0, 4096)), Some(Target::append(2, 4096, 4096)), None]
        );
        assert_eq!(tickets.take(), None);
    }

    #[test]
    fn lengths_differ_and_their_sum_is_capped() {
        let sizes = Sizes { min_bytes: 1, max_bytes: 100 };
        let tickets = tickets(sizes, &Ledger::Nothing);
        let mut end = 0;
        for (number, target) in (1..).zip(std::iter::from_fn(|| tickets.take())) {
            assert_eq!(target, Target::append(number, end, sizes.of(number)));
            end += target.bytes;
        }
        assert!((9_900..=10_000).contains(&end), "{end}");
    }

    #[test]
    fn padding_takes_room() {
        let sizes = Sizes::one(100);
        let ledger =
            Ledger::Records(Records::new(1, sizes, 100, Gaps::Padding { unit_bytes: 4096 }));
        let tickets = Tickets { padding_max_bytes: 4096, ..tickets(sizes, &ledger) };
        assert!(tickets.take().is_some());
        ledger.acknowledge(Stamp { job: 0, sequence: 1 }, 4096).unwrap();
        assert!(tickets.take().is_some(), "4196 and 4096 are less than 10000");
        ledger.acknowledge(Stamp { job: 0, sequence: 2 }, 8192).unwrap();
        assert_eq!(tickets.take(), None);
    }
}
