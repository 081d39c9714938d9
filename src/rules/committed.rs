//! The extents of a file that the journal has committed. Values only.
//!
//! A write into such an extent changes no metadata that finds data, so a flush of the device makes
//! it durable. Any other write needs a commit of the journal.
//!
//! User space does not see commits. So an extent counts as committed once a commit of all files has
//! succeeded that began after the extent was seen. After a write, its blocks must still be where
//! they were: otherwise a copy-on-write or a defragmentation has moved them, and that needs a
//! commit.

use std::ops::Range;

/// Written blocks that belong to one file alone, adjacent on the device. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedExtent {
    /// The first byte in the file.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// The first byte on the device.
    pub physical: u64,
}

/// A moment between two changes of the extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

/// The known extents of a file.
#[derive(Debug, Default)]
pub struct Committed {
    known: Vec<Known>,
    /// Number of changes of the extents by this process.
    changes: u64,
    /// Number of looks in a row that found another place.
    misses: u32,
    /// Number of writes without a look, since.
    skipped: u32,
}

#[derive(Debug)]
struct Known {
    place: MappedExtent,
    /// The flush that covers it ([`Ledger::ticket`](super::flush::Ledger::ticket)).
    ticket: u64,
}

/// The number of extents to know. A file with more is fragmented.
const EXTENTS_MAX: usize = 64;

/// After so many misses in a row, most writes allocate or convert space.
const MISSES_MAX: u32 = 16;

/// Then one write of so many is worth a look.
const SKIPS_MAX: u32 = 64;

impl Committed {
    /// Returns whether to look up the extents of the next write, and counts the skipped writes.
    pub fn take_look(&mut self) -> bool {
        if self.misses < MISSES_MAX || self.skipped >= SKIPS_MAX {
            self.skipped = 0;
            return true;
        }
        self.skipped += 1;
        false
    }

    /// Returns whether a finished write went into committed extents, and counts the misses. `found`
    /// is where its blocks are now, and `committed_to` the last flush that committed.
    pub fn record_write(
        &mut self,
        range: &Range<u64>,
        found: &[MappedExtent],
        committed_to: u64,
    ) -> bool {
        let is_committed = |known: &Known| known.ticket <= committed_to;
        let holds = cover(found, range)
            && found.iter().all(|place| {
                self.known.iter().any(|known| is_committed(known) && known.place.contains(place))
            });
        self.misses = if holds { 0 } else { self.misses.saturating_add(1) };
        holds
    }

    /// The moment before a look at the extents.
    pub fn now(&self) -> Moment {
        Moment(self.changes)
    }

    /// Takes all places that a look found in a range. It began at `before`. The flush `ticket`, the
    /// next to begin after it, covers them if it commits.
    pub fn see(&mut self, range: Range<u64>, found: &[MappedExtent], before: Moment, ticket: u64) {
        if before != self.now() {
            return;
        }
        self.known.retain(|known| {
            let seen = known.place.part_in(&range);
            seen.is_none_or(|seen| found.iter().any(|place| place.contains(&seen)))
        });
        for place in found {
            if self.known.iter().any(|known| known.place.contains(place)) {
                continue;
            }
            self.known.retain(|known| !known.place.overlaps(place));
            if self.known.len() == EXTENTS_MAX {
                self.known.clear();
            }
            self.known.push(Known { place: *place, ticket });
        }
    }

    /// Records that this process changes the extents. Called before the change and after it: a look
    /// beside it counts for nothing.
    pub fn change(&mut self) {
        self.known.clear();
        self.changes += 1;
    }
}

impl MappedExtent {
    /// Whether the other place is part of this one.
    fn contains(&self, other: &Self) -> bool {
        let is_inside = self.start <= other.start && other.end <= self.end;
        is_inside && other.physical == self.physical.wrapping_add(other.start - self.start)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The part in a range.
    pub fn part_in(&self, range: &Range<u64>) -> Option<Self> {
        let (start, end) = (self.start.max(range.start), self.end.min(range.end));
        let physical = self.physical.wrapping_add(start.saturating_sub(self.start));
        (start < end).then_some(Self { start, end, physical })
    }
}

/// Whether the places, which are in order, cover the range.
fn cover(places: &[MappedExtent], range: &Range<u64>) -> bool {
    let reached = places.iter().fold(range.start, |reached, place| {
        if place.start <= reached { reached.max(place.end) } else { reached }
    });
    reached >= range.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(start: u64, end: u64, physical: u64) -> MappedExtent {
        MappedExtent { start, end, physical }
    }

    /// The places that were seen before a commit.
    fn committed(places: &[MappedExtent]) -> Committed {
        let mut committed = Committed::default();
        committed.see(0..100, places, committed.now(), 1);
        committed
    }

    #[test]
    fn a_write_into_committed_extents_is_in_place() {
        let mut committed = committed(&[place(0, 8, 100), place(8, 16, 200)]);
        assert!(committed.record_write(&(2..4), &[place(2, 4, 102)], 1));
        assert!(committed.record_write(&(6..10), &[place(6, 8, 106), place(8, 10, 200)], 1));
    }

    #[test]
    fn a_block_that_has_moved_or_is_missing_is_not_in_place() {
        let mut committed = committed(&[place(0, 8, 100)]);
        assert!(!committed.record_write(&(2..4), &[place(2, 4, 103)], 1), "moved");
        assert!(!committed.record_write(&(2..4), &[], 1), "not written, or shared");
        assert!(!committed.record_write(&(2..4), &[place(2, 3, 102)], 1), "partly written");
        assert!(!committed.record_write(&(6..10), &[place(6, 10, 106)], 1), "the extent has grown");
        assert!(
            !committed.record_write(&(2..4), &[place(3, 4, 103)], 1),
            "the beginning is missing"
        );
    }

    /// A write right after the first write of its block: the commit of that one may be to come.
    #[test]
    fn an_extent_counts_once_a_later_commit_has_succeeded() {
        let (mut committed, seen) = (Committed::default(), [place(0, 8, 100)]);
        committed.see(0..8, &seen, committed.now(), 5);
        assert!(!committed.record_write(&(0..8), &seen, 4), "that commit began before");
        assert!(committed.record_write(&(0..8), &seen, 5));
    }

    /// Another program punched a hole there. A later write may get the same block again.
    #[test]
    fn a_hole_in_a_known_extent_is_seen() {
        let mut committed = committed(&[place(0, 8, 100), place(20, 28, 200)]);
        let now = [place(0, 3, 100), place(5, 8, 105)];
        committed.see(0..10, &now, committed.now(), 2);
        assert!(!committed.record_write(&(3..5), &[place(3, 5, 103)], 1));
        assert!(
            committed.record_write(&(20..28), &[place(20, 28, 200)], 1),
            "it was not looked at"
        );
    }

    #[test]
    fn a_look_beside_a_change_counts_for_nothing() {
        let mut committed = Committed::default();
        let before = committed.now();
        committed.change();
        committed.see(0..8, &[place(0, 8, 100)], before, 1);
        assert!(!committed.record_write(&(0..8), &[place(0, 8, 100)], 1));
    }

    #[test]
    fn writes_that_allocate_are_seldom_looked_at() {
        let mut committed = Committed::default();
        let mut looks = 0;
        for _ in 0..1000 {
            if committed.take_look() {
                looks += 1;
                committed.record_write(&(0..8), &[], 1);
            }
        }
        assert!((MISSES_MAX..=MISSES_MAX + 1000 / SKIPS_MAX).contains(&looks), "{looks}");
        let mut committed = self::committed(&[place(0, 8, 100)]);
        assert!((0..1000).all(|_| {
            committed.take_look() && committed.record_write(&(0..8), &[place(0, 8, 100)], 1)
        }));
    }

    #[test]
    fn a_fragmented_file_takes_bounded_memory() {
        let mut committed = Committed::default();
        for nth in 0..1000 {
            let range = nth * 2..nth * 2 + 1;
            committed.see(range, &[place(nth * 2, nth * 2 + 1, nth)], committed.now(), nth);
        }
        assert!(committed.known.len() <= EXTENTS_MAX);
    }

    const BLOCKS: usize = 2;

    /// A file, its blocks on the device, and those that the journal has committed.
    #[derive(Default)]
    struct Model {
        committed: Committed,
        now: [Option<u64>; BLOCKS],
        begun: Option<[Option<u64>; BLOCKS]>,
        /// Numbers of the last commit that began, and of the last that succeeded.
        last: u64,
        committed_to: u64,
        on_disk: [Option<u64>; BLOCKS],
        /// Other blocks of the device for what another program moves.
        moved: u64,
        in_place: usize,
    }

    impl Model {
        fn places(&self) -> Vec<MappedExtent> {
            let blocks = self.now.iter().zip(0..);
            blocks.filter_map(|(at, n)| at.map(|physical| place(n, n + 1, physical))).collect()
        }

        /// Returns false if the event cannot happen now.
        fn happens(&mut self, event: u32) -> bool {
            match (event, self.begun) {
                (0 | 1, _) => self.write(event as usize),
                (2, _) => {
                    self.moved += 1;
                    self.now[0] = Some(100 + self.moved);
                }
                // A truncate. The next write gets the same block of the device again.
                (3, _) => {
                    self.committed.change();
                    self.now[0] = None;
                    self.committed.change();
                }
                (4, None) => {
                    self.last += 1;
                    self.begun = Some(self.now);
                }
                (5, Some(begun)) => {
                    self.on_disk = begun;
                    self.begun = None;
                    self.committed_to = self.last;
                }
                _ => return false,
            }
            true
        }

        fn write(&mut self, block: usize) {
            self.now[block].get_or_insert(block as u64);
            let found: Vec<_> =
                self.places().into_iter().filter(|it| it.start == block as u64).collect();
            let before = self.committed.now();
            let range = block as u64..block as u64 + 1;
            if self.committed.record_write(&range, &found, self.committed_to) {
                assert_eq!(self.on_disk[block], self.now[block], "{:?}", self.committed);
                self.in_place += 1;
            } else {
                self.committed.see(0..BLOCKS as u64, &self.places(), before, self.last + 1);
            }
        }
    }

    /// Every history of eight events. After a power cut, the data of a write in place is found.
    #[test]
    fn a_write_is_in_place_only_where_the_journal_has_committed_its_block() {
        let mut in_place = 0;
        for number in 0..6u32.pow(8) {
            let mut model = Model::default();
            for n in 0..8 {
                if !model.happens(number / 6u32.pow(n) % 6) {
                    break;
                }
            }
            in_place += model.in_place;
        }
        assert!(in_place > 1000, "{in_place}");
    }
}
