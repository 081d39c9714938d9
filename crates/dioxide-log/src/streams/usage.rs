//! The bytes of frames in each segment, and those that streams still need. The rule when to collect
//! the oldest segment. A value.

use crate::index::Location;
use std::collections::BTreeMap;
use std::ops::Range;

/// A full log with records to append collects if this part of its bytes, or more, is not needed.
/// Below that, it would copy too much for too little space.
const GARBAGE_PARTS: u64 = 8;

/// The frames of a segment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bytes {
    written: u64,
    needed: u64,
}

/// The frames of each segment.
#[derive(Debug, Default)]
pub struct Usage {
    segments: BTreeMap<u64, Bytes>,
}

/// The reason why segments are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The log is to stay small.
    Size,
    /// The log is full, and there are records to append.
    Records,
    /// The log is full, and there are bounds to write, which free other space.
    Bounds,
}

impl Usage {
    /// A frame was written.
    pub fn write(&mut self, location: Location) {
        self.segments.entry(location.segment).or_default().written += u64::from(location.bytes);
    }

    /// A stream needs a frame that was written.
    pub fn need(&mut self, location: Location) {
        let segment = self.segments.get_mut(&location.segment).expect("the frame was written");
        segment.needed += u64::from(location.bytes);
    }

    /// A stream does not need these bytes of a segment any more.
    pub fn free(&mut self, segment: u64, bytes: u64) {
        let segment = self.segments.get_mut(&segment).expect("its frames were written");
        segment.needed -= bytes;
    }

    /// Forgets the segments before this one.
    pub fn forget_before(&mut self, oldest: u64) {
        self.segments = self.segments.split_off(&oldest);
    }

    /// Whether a stream needs something in a segment.
    pub fn needs(&self, segment: u64) -> bool {
        self.segments.get(&segment).is_some_and(|bytes| bytes.needed > 0)
    }

    fn sum(&self, segments: Range<u64>) -> Bytes {
        self.segments.range(segments).fold(Bytes::default(), |sum, (_, bytes)| Bytes {
            written: sum.written + bytes.written,
            needed: sum.needed + bytes.needed,
        })
    }

    /// The bytes that streams need.
    pub fn needed(&self) -> u64 {
        self.segments.values().map(|bytes| bytes.needed).sum()
    }

    /// Whether the oldest of the segments in use is to be collected: the frames that streams need
    /// are copied, and it is free. `segment_bytes` is the size of a segment.
    ///
    /// A segment that no stream needs is free at once. Otherwise most of the bytes must be garbage,
    /// so a copy of all segments at most halves the log. It leaves no garbage, so this ends.
    pub fn must_collect(&self, in_use: Range<u64>, segment_bytes: u64, need: Need) -> bool {
        // The last one is being written.
        let complete = in_use.start..in_use.end - 1;
        if complete.is_empty() {
            return false;
        }
        let counted = if need == Need::Size { complete } else { in_use.clone() };
        let Bytes { written, needed } = self.sum(counted);
        let garbage = written - needed;
        // A segment without its header and its end, and also if the last frame did not fit.
        let space = segment_bytes / 4 * 3;
        let is_worth_it = match need {
            Need::Size => garbage > needed,
            Need::Records => garbage >= space && garbage * GARBAGE_PARTS >= written,
            Need::Bounds => garbage >= space,
        };
        is_worth_it || !self.needs(in_use.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(segment: u64, bytes: u32) -> Location {
        Location { segment, offset: 0, bytes }
    }

    #[test]
    fn the_oldest_segment_is_collected_when_it_is_worth_it() {
        let mut usage = Usage::default();
        let must = |usage: &Usage, end, need| usage.must_collect(5..end, 1000, need);
        assert!(!must(&usage, 6, Need::Bounds), "the last one is being written");
        assert!(must(&usage, 7, Need::Size), "nothing is needed of it");
        for segment in 5..15 {
            usage.write(location(segment, 900));
            usage.need(location(segment, 900));
        }
        for need in [Need::Size, Need::Records, Need::Bounds] {
            assert!(!must(&usage, 15, need), "nothing is garbage");
        }
        usage.free(6, 900);
        usage.free(7, 100);
        assert!(must(&usage, 15, Need::Bounds), "a segment of garbage");
        assert!(!must(&usage, 15, Need::Records), "too little for records");
        usage.free(8, 500);
        assert!(must(&usage, 15, Need::Records), "an eighth is garbage");
        assert!(!must(&usage, 15, Need::Size));
        for segment in [9, 10, 11] {
            usage.free(segment, 900);
        }
        assert!(must(&usage, 15, Need::Size), "4200 of 8100 bytes are garbage");
        usage.free(14, 900);
        usage.write(location(14, 50));
        assert!(must(&usage, 15, Need::Size));
        assert_eq!((usage.needed(), usage.needs(5), usage.needs(6)), (9000 - 5100, true, false));
        usage.forget_before(8);
        assert_eq!(usage.needed(), 400 + 2 * 900);
    }
}
