//! The bytes that streams need, by segment, and the rule when to collect the oldest segment. A
//! value.

use crate::index::{Location, Segments};
use std::collections::BTreeMap;

/// The needed bytes of each segment.
#[derive(Debug, Default)]
pub struct Usage {
    live: BTreeMap<u64, u64>,
    total: u64,
}

impl Usage {
    pub fn add(&mut self, place: Location) {
        *self.live.entry(place.segment).or_default() += u64::from(place.bytes);
        self.total += u64::from(place.bytes);
    }

    pub fn remove(&mut self, place: Location) {
        let live = self.live.get_mut(&place.segment).expect("it was added");
        *live -= u64::from(place.bytes);
        self.total -= u64::from(place.bytes);
        if *live == 0 {
            self.live.remove(&place.segment);
        }
    }

    /// Whether a stream needs something in a segment.
    pub fn needs(&self, segment: u64) -> bool {
        self.live.contains_key(&segment)
    }

    /// The needed bytes of all segments.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether the records that the oldest segment still has are to be copied, so that it is free.
    ///
    /// A segment that no stream needs is free at once. Otherwise a log has at most twice the bytes
    /// that its streams need, and so each byte is copied about once in its life. A full log gives
    /// up all space that it can.
    pub fn must_collect(&self, segments: Segments) -> bool {
        let Segments { oldest, count, bytes, is_full } = segments;
        // The last one is being written.
        if count < 2 {
            return false;
        }
        let complete = (count - 1) * bytes;
        !self.needs(oldest)
            || self.total * 2 < complete
            || (is_full && self.total + bytes < complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u64, bytes: u32) -> Location {
        Location { segment, offset: 0, bytes }
    }

    #[test]
    fn the_oldest_segment_is_collected_when_it_is_worth_it() {
        let mut usage = Usage::default();
        let segments = |count, is_full| Segments { oldest: 5, count, bytes: 1000, is_full };
        assert!(!usage.must_collect(segments(1, true)), "the last one is being written");
        assert!(usage.must_collect(segments(2, false)), "nothing is needed of it");
        usage.add(place(5, 400));
        usage.add(place(6, 800));
        assert!(!usage.must_collect(segments(3, false)), "1200 of 2000 bytes");
        assert!(usage.must_collect(segments(4, false)), "1200 of 3000 bytes");
        assert!(!usage.must_collect(segments(3, true)), "it would free nothing");
        usage.add(place(6, 100));
        usage.add(place(7, 600));
        assert!(!usage.must_collect(segments(4, false)), "1900 of 3000 bytes");
        assert!(usage.must_collect(segments(4, true)), "the log is full");
        usage.remove(place(5, 400));
        assert!(usage.must_collect(segments(4, false)), "nothing is needed of it");
        assert_eq!(usage.total(), 1500);
    }
}
