//! The records of a log: which there are, and where each lies. A value, the same for recovery and
//! for the writer: both apply frames in the order of the log.

use crate::format::frame::Kind;
use crate::lsn::Lsn;
use std::collections::VecDeque;

/// The distance between two samples of a run. A search reads at most this much in vain.
const SAMPLE_BYTES: u64 = 64 << 10;

/// The place of a record: the number of its segment, and its offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub segment: u64,
    pub offset: u64,
    /// The record whose frame begins there.
    pub lsn: Lsn,
    /// The records that follow each other there.
    pub run: (Lsn, Lsn),
}

/// The frame of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The number of the segment.
    pub segment: u64,
    /// The offset in the segment.
    pub offset: u32,
    /// The size of the frame.
    pub bytes: u32,
}

impl Location {
    pub fn new(segment: u64, offset: u64, bytes: u64) -> Self {
        // A segment has at most 1 GiB.
        Self { segment, offset: offset as u32, bytes: bytes as u32 }
    }
}

/// Records of consecutive LSNs, one behind the other in one segment. Frames without payload may
/// lie between them.
#[derive(Clone, Debug)]
struct Run {
    segment: u64,
    first: Lsn,
    /// The LSN behind the last record.
    end: Lsn,
    /// Records behind the end were removed, so none can follow there.
    complete: bool,
    /// Some of the records, about one for [`SAMPLE_BYTES`]: always the first.
    samples: Vec<(Lsn, u64)>,
}

/// The records of a log, or of a part of it.
#[derive(Clone, Debug)]
pub struct Index {
    runs: VecDeque<Run>,
    front: Lsn,
    next: Lsn,
    /// The lowest LSN that was ever next: that of the earliest record that this part may replace.
    lowest: Lsn,
}

impl Index {
    /// An empty log whose next record has this LSN.
    pub fn new(front: Lsn, next: Lsn) -> Self {
        Self { runs: VecDeque::new(), front, next, lowest: next }
    }

    /// The lowest LSN that the log has, or will have if it is empty.
    pub fn front(&self) -> Lsn {
        self.front
    }

    /// The LSN of the next record.
    pub fn next(&self) -> Lsn {
        self.next
    }

    /// The lowest LSN that was ever next. Records before this part have lower LSNs, or are removed.
    pub fn lowest(&self) -> Lsn {
        self.lowest
    }

    /// Whether a frame of this kind and LSN may follow.
    pub fn may_follow(&self, kind: Kind, lsn: Lsn) -> bool {
        match kind {
            Kind::Record | Kind::End | Kind::Closed => lsn == self.next,
            Kind::Front => (self.front..=Lsn::MAX).contains(&lsn),
            Kind::Back => (self.front..=self.next).contains(&lsn),
            Kind::Flushed => true,
        }
    }

    /// Applies a frame that lies at `offset` of a segment.
    pub fn apply(&mut self, kind: Kind, lsn: Lsn, segment: u64, offset: u64) {
        match kind {
            Kind::Record => self.push(segment, offset),
            Kind::Front => self.truncate_front(lsn),
            Kind::Back => self.truncate_back(lsn),
            Kind::End | Kind::Closed | Kind::Flushed => {}
        }
    }

    fn push(&mut self, segment: u64, offset: u64) {
        let lsn = self.next;
        self.next = lsn.next();
        match self.runs.back_mut() {
            Some(run) if run.segment == segment && run.end == lsn && !run.complete => {
                run.end = self.next;
                let sampled = run.samples.last().expect("the first record is sampled").1;
                if offset - sampled >= SAMPLE_BYTES {
                    run.samples.push((lsn, offset));
                }
            }
            _ => {
                let samples = vec![(lsn, offset)];
                let (first, end) = (lsn, self.next);
                self.runs.push_back(Run { segment, first, end, complete: false, samples });
            }
        }
    }

    fn truncate_front(&mut self, lsn: Lsn) {
        self.front = self.front.max(lsn);
        self.next = self.next.max(lsn);
        while self.runs.front().is_some_and(|run| run.end <= self.front) {
            self.runs.pop_front();
        }
    }

    fn truncate_back(&mut self, lsn: Lsn) {
        self.next = lsn;
        self.lowest = self.lowest.min(lsn);
        while self.runs.back().is_some_and(|run| run.first >= lsn) {
            self.runs.pop_back();
        }
        if let Some(run) = self.runs.back_mut() {
            run.end = run.end.min(lsn);
            run.complete = true;
            run.samples.retain(|(sampled, _)| *sampled < lsn);
        }
    }

    /// Appends the index of the next segment, which began when this one had reached its end.
    pub fn append(&mut self, later: Self) {
        self.truncate_back(later.lowest.min(self.next));
        self.runs.extend(later.runs);
        self.next = later.next;
        self.truncate_front(later.front);
    }

    /// The segment of the lowest record. None if there is no record.
    pub fn first_segment(&self) -> Option<u64> {
        Some(self.runs.front()?.segment)
    }

    /// The lowest record that lies in this segment or in a later one. The next record if there is
    /// none.
    pub fn first_from(&self, segment: u64) -> Lsn {
        let run = self.runs.partition_point(|run| run.segment < segment);
        self.runs.get(run).map_or(self.next, |run| run.first.max(self.front))
    }

    /// Returns the last known place at or before a record. None if the log does not have it.
    pub fn find(&self, lsn: Lsn) -> Option<Place> {
        if lsn < self.front || lsn >= self.next {
            return None;
        }
        let run = self.runs.partition_point(|run| run.end <= lsn);
        let run = self.runs.get(run).filter(|run| run.first <= lsn)?;
        let after = run.samples.partition_point(|(sampled, _)| *sampled <= lsn);
        let (sampled, offset) = run.samples[after - 1];
        Some(Place { segment: run.segment, offset, lsn: sampled, run: (run.first, run.end) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame to apply, by numbers that are reduced to what may follow.
    #[derive(Clone, Debug)]
    enum Change {
        Records(u64),
        Front(u64),
        Back(u64),
        NextSegment,
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            4 => (1..40u64).prop_map(Change::Records),
            1 => any::<u64>().prop_map(Change::Front),
            1 => any::<u64>().prop_map(Change::Back),
            1 => Just(Change::NextSegment),
        ];
        prop::collection::vec(change, 1..60)
    }

    /// The places of all records that a list has after the same changes.
    #[derive(Default)]
    struct List {
        records: Vec<(u64, (u64, u64))>,
        /// Also those that were truncated. Their frames still lie there.
        ever: Vec<(u64, (u64, u64))>,
        front: u64,
        next: u64,
    }

    proptest! {
        #[test]
        fn an_index_and_the_sum_of_its_parts_equal_a_list(changes in changes()) {
            let mut list = List { front: 1, next: 1, ..List::default() };
            let mut whole = Index::new(Lsn(1), Lsn(1));
            let mut sum = whole.clone();
            let mut part = whole.clone();
            let (mut segment, mut offset) = (1, 4096);
            let apply = |index: &mut Index, part: &mut Index, kind, lsn, segment, offset| {
                assert!(index.may_follow(kind, Lsn(lsn)) && part.may_follow(kind, Lsn(lsn)));
                index.apply(kind, Lsn(lsn), segment, offset);
                part.apply(kind, Lsn(lsn), segment, offset);
            };
            for change in changes {
                match change {
                    Change::Records(count) => for _ in 0..count {
                        apply(&mut whole, &mut part, Kind::Record, list.next, segment, offset);
                        list.records.push((list.next, (segment, offset)));
                        list.ever.push((list.next, (segment, offset)));
                        list.next += 1;
                        offset += 8000;
                    },
                    Change::Front(draw) => {
                        let front = list.front + draw % (list.next + 5 - list.front);
                        apply(&mut whole, &mut part, Kind::Front, front, segment, offset);
                        list.front = front;
                        list.next = list.next.max(front);
                        list.records.retain(|record| record.0 >= front);
                    }
                    Change::Back(draw) => {
                        let next = list.front + draw % (list.next + 1 - list.front);
                        apply(&mut whole, &mut part, Kind::Back, next, segment, offset);
                        list.next = next;
                        list.records.retain(|record| record.0 < next);
                    }
                    Change::NextSegment => {
                        let next = Index::new(part.front(), part.next());
                        sum.append(std::mem::replace(&mut part, next));
                        segment += 1;
                        offset = 4096;
                    }
                }
            }
            sum.append(part);
            for index in [&whole, &sum] {
                prop_assert_eq!((index.front().0, index.next().0), (list.front, list.next));
                prop_assert_eq!(index.find(Lsn(list.next)), None);
                prop_assert_eq!(index.find(Lsn(list.front.saturating_sub(1))), None);
                for (lsn, (segment, offset)) in &list.records {
                    let place = index.find(Lsn(*lsn)).expect("it is there");
                    prop_assert_eq!(place.segment, *segment);
                    prop_assert!(place.lsn.0 <= *lsn && place.offset <= *offset);
                    prop_assert!(offset - place.offset < SAMPLE_BYTES + 8000);
                    // The frames from the sample on lead to the record.
                    let sampled = (place.lsn.0, (place.segment, place.offset));
                    let at = |wanted| list.ever.iter().position(|record| *record == wanted);
                    let steps = at((*lsn, (*segment, *offset))).zip(at(sampled));
                    let steps = steps.map(|(to, from)| (to - from) as u64);
                    prop_assert_eq!(steps, Some(lsn - place.lsn.0));
                }
            }
        }
    }
}
