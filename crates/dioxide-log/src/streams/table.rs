//! The records of one stream, and where each lies in the log. Values.
//!
//! A [`Replay`] builds the [`Table`] of a stream from the frames of a log, and [`Replays`] those of
//! all streams. The oldest segments may be gone. The frames that the stream needed of them follow
//! later: copies of records, then bounds.

use super::entry::Entry;
use crate::index::Location;
use crate::lsn::Lsn;
use std::collections::{BTreeMap, VecDeque};

/// The records of a stream. Those of LSN `front` up to, not including, `next`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    front: Lsn,
    places: VecDeque<Location>,
    /// The latest bounds in the log. None if the stream is unused.
    anchor: Option<Location>,
}

impl Default for Table {
    fn default() -> Self {
        Self { front: Lsn::FIRST, places: VecDeque::new(), anchor: None }
    }
}

impl Table {
    pub fn front(&self) -> Lsn {
        self.front
    }

    pub fn next(&self) -> Lsn {
        Lsn(self.front.0 + self.places.len() as u64)
    }

    /// Whether the stream is as if it had never been used.
    pub fn is_unused(&self) -> bool {
        self.next() == Lsn::FIRST
    }

    pub fn anchor(&self) -> Option<Location> {
        self.anchor
    }

    fn at(&self, lsn: Lsn) -> Option<usize> {
        let at = lsn.0.checked_sub(self.front.0)? as usize;
        (at < self.places.len()).then_some(at)
    }

    /// The place of a record. None if the stream does not have it.
    pub fn get(&self, lsn: Lsn) -> Option<Location> {
        self.at(lsn).map(|at| self.places[at])
    }

    /// The places of the records from `lsn` on.
    pub fn from(&self, lsn: Lsn) -> impl Iterator<Item = Location> {
        self.places.range(self.at(lsn).unwrap_or(self.places.len())..).copied()
    }

    /// Adds the next record.
    pub fn push(&mut self, place: Location) {
        self.places.push_back(place);
    }

    /// Moves a record from one place to another. False if it does not lie there any more.
    pub fn relocate(&mut self, lsn: Lsn, from: Location, to: Location) -> bool {
        match self.at(lsn) {
            Some(at) if self.places[at] == from => {
                self.places[at] = to;
                true
            }
            _ => false,
        }
    }

    /// Begins an unused stream. Its bounds, which are empty, lie at `anchor`.
    pub fn begin(&mut self, anchor: Location) {
        debug_assert!(self.is_unused());
        self.anchor = Some(anchor);
    }

    /// Applies bounds that lie at `anchor`. Passes the places that the stream does not need any
    /// more to `freed`. An unused stream needs no bounds: what it had lies before them in the log.
    pub fn bound(&mut self, front: Lsn, next: Lsn, anchor: Location, freed: impl FnMut(Location)) {
        let below = front.0.saturating_sub(self.front.0).min(self.places.len() as u64) as usize;
        let above = next.0.saturating_sub(self.front.0).min(self.places.len() as u64) as usize;
        let above = self.places.split_off(above);
        let below = self.places.drain(..below.min(self.places.len()));
        let anchor = (next > Lsn::FIRST).then_some(anchor);
        let old = std::mem::replace(&mut self.anchor, anchor);
        below.chain(above).chain(old).for_each(freed);
        self.front = front;
        debug_assert!(self.next() == next, "bounds lie within the stream, or it is empty");
    }

    /// All places that the stream needs.
    pub fn locations(&self) -> impl Iterator<Item = Location> {
        self.places.iter().copied().chain(self.anchor)
    }
}

/// A stream while its log is read.
#[derive(Debug, Default)]
pub struct Replay {
    /// The front and the next LSN, once they are known.
    bounds: Option<(Lsn, Lsn)>,
    places: BTreeMap<Lsn, Location>,
    anchor: Option<Location>,
}

impl Replay {
    /// Applies a change of the stream. The error is a contradiction.
    pub fn apply(&mut self, entry: Entry<'_>, place: Location) -> Result<(), String> {
        match entry {
            Entry::Record { lsn, .. } => self.record(lsn, place),
            Entry::Copy { lsn, .. } => self.copy(lsn, place),
            Entry::Bounds { front, next, .. } => self.bound(front, next, place),
        }
    }

    /// Applies a record that was appended. The error is a contradiction.
    pub fn record(&mut self, lsn: Lsn, place: Location) -> Result<(), String> {
        if let Some((_, next)) = &mut self.bounds {
            if lsn != *next {
                return Err(format!("record {lsn} follows where {next} comes next"));
            }
            *next = lsn.next();
        }
        self.places.insert(lsn, place);
        Ok(())
    }

    /// Applies a copy of a record. The error is a contradiction.
    pub fn copy(&mut self, lsn: Lsn, place: Location) -> Result<(), String> {
        if let Some((front, next)) = self.bounds
            && !(front..next).contains(&lsn)
        {
            return Err(format!("a copy of record {lsn}, but there are only {front}..{next}"));
        }
        self.places.insert(lsn, place);
        Ok(())
    }

    /// Applies bounds. They lie within those before, or are empty. The error is a contradiction.
    pub fn bound(&mut self, front: Lsn, next: Lsn, anchor: Location) -> Result<(), String> {
        if let Some((first, end)) = self.bounds
            && front != next
            && (front < first || next > end)
        {
            return Err(format!("bounds {front}..{next}, but there are only {first}..{end}"));
        }
        self.places.split_off(&next);
        self.places = self.places.split_off(&front);
        self.bounds = Some((front, next));
        self.anchor = Some(anchor);
        Ok(())
    }

    /// The front and the next LSN. Those of an unused stream before they are known.
    pub fn range(&self) -> (Lsn, Lsn) {
        self.bounds.unwrap_or((Lsn::FIRST, Lsn::FIRST))
    }

    /// The places of the records from `lsn` on.
    pub fn from(&self, lsn: Lsn) -> impl Iterator<Item = Location> {
        self.places.range(lsn..).map(|(_, place)| *place)
    }

    /// Whether no frame was applied.
    pub fn is_empty(&self) -> bool {
        self.bounds.is_none() && self.places.is_empty()
    }

    /// Checks that the stream is complete, at the end of the log. The error is a contradiction.
    pub fn check(&self) -> Result<(), String> {
        let Some((front, next)) = self.bounds else {
            return Err("its bounds are missing".into());
        };
        let expected = (front.0..next.0).map(Lsn);
        if let Some(lost) = expected.zip(self.places.keys()).find(|(lsn, found)| lsn != *found) {
            return Err(format!("record {} is missing", lost.0));
        }
        if self.places.len() as u64 != next.0 - front.0 {
            return Err(format!("record {} is missing", front.0 + self.places.len() as u64));
        }
        Ok(())
    }

    /// The stream at the end of the log. The error is a contradiction.
    pub fn finish(self) -> Result<Table, String> {
        self.check()?;
        let (front, next) = self.range();
        let places = self.places.into_values().collect();
        let anchor = self.anchor.filter(|_| next > Lsn::FIRST);
        Ok(Table { front, places, anchor })
    }
}

/// The contradiction of a payload of another form.
pub const NO_ENTRY: &str = "no record of a stream";

/// All streams while their log is read.
#[derive(Debug, Default)]
pub struct Replays(BTreeMap<u64, Replay>);

impl Replays {
    /// Applies the payload of the next frame. The error is a contradiction.
    pub fn apply(&mut self, payload: &[u8], place: Location) -> Result<(), String> {
        match Entry::parse(payload) {
            Some(entry) => self.0.entry(entry.stream()).or_default().apply(entry, place),
            None => Err(NO_ENTRY.into()),
        }
    }

    /// The streams at the end of the log. The error is a contradiction.
    pub fn finish(self) -> Result<BTreeMap<u64, Table>, String> {
        let finish = |(id, replay): (u64, Replay)| match replay.finish() {
            Ok(table) => Ok((id, table)),
            Err(reason) => Err(format!("stream {id}: {reason}")),
        };
        self.0.into_iter().map(finish).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A change of a stream, by numbers that are reduced to what may follow.
    #[derive(Clone, Debug)]
    enum Change {
        Append(u8),
        Front(u64),
        Back(u64),
        Remove,
        /// Copies what the oldest segment has, with some appends between, and drops the segment.
        Collect(u8),
        Rotate,
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            6 => (1..6u8).prop_map(Change::Append),
            2 => any::<u64>().prop_map(Change::Front),
            1 => any::<u64>().prop_map(Change::Back),
            1 => Just(Change::Remove),
            3 => (0..3u8).prop_map(Change::Collect),
            4 => Just(Change::Rotate),
        ];
        prop::collection::vec(change, 1..80)
    }

    #[derive(Clone, Copy, Debug)]
    enum Frame {
        Record(Lsn),
        Copy(Lsn),
        Bounds(Lsn, Lsn),
    }

    /// A log with one stream, as a writer leaves it.
    #[derive(Default)]
    struct Model {
        frames: VecDeque<(Location, Frame)>,
        table: Table,
        segment: u64,
        offset: u32,
        /// The places in use, by the table's word.
        live: Vec<Location>,
    }

    impl Model {
        fn frame(&mut self, frame: Frame) -> Location {
            self.offset += 8;
            let place = Location { segment: self.segment, offset: self.offset, bytes: 8 };
            self.frames.push_back((place, frame));
            place
        }

        fn bound(&mut self, front: Lsn, next: Lsn) {
            let place = self.frame(Frame::Bounds(front, next));
            let live = &mut self.live;
            self.table.bound(front, next, place, |freed| {
                let at = live.iter().position(|place| *place == freed).expect("it was in use");
                live.swap_remove(at);
            });
            self.live.extend(self.table.anchor());
        }

        fn append(&mut self) {
            if self.table.is_unused() {
                let place = self.frame(Frame::Bounds(Lsn::FIRST, Lsn::FIRST));
                self.table.begin(place);
                self.live.push(place);
            }
            let place = self.frame(Frame::Record(self.table.next()));
            self.table.push(place);
            self.live.push(place);
        }

        fn collect(&mut self, appends: u8) {
            let Some(oldest) = self.frames.front().map(|(place, _)| place.segment) else { return };
            if oldest == self.segment {
                return;
            }
            let old: Vec<_> =
                self.frames.iter().filter(|(place, _)| place.segment == oldest).copied().collect();
            let mut anchored = false;
            let mut moved = Vec::new();
            for (place, frame) in old {
                match frame {
                    Frame::Record(lsn) | Frame::Copy(lsn) => {
                        if self.table.get(lsn) == Some(place) {
                            let copy = self.frame(Frame::Copy(lsn));
                            moved.push((lsn, place, copy));
                        }
                    }
                    Frame::Bounds(..) => anchored |= self.table.anchor() == Some(place),
                }
                if appends > 0 && !self.table.is_unused() {
                    self.append();
                }
            }
            if anchored {
                self.bound(self.table.front(), self.table.next());
            }
            for (lsn, from, to) in moved {
                assert!(self.table.relocate(lsn, from, to));
                let at = self.live.iter().position(|place| *place == from).expect("in use");
                self.live[at] = to;
            }
            self.frames.retain(|(place, _)| place.segment != oldest);
        }

        fn replayed(&self) -> Result<Table, String> {
            let mut replay = Replay::default();
            for (place, frame) in &self.frames {
                match *frame {
                    Frame::Record(lsn) => replay.record(lsn, *place)?,
                    Frame::Copy(lsn) => replay.copy(lsn, *place)?,
                    Frame::Bounds(front, next) => replay.bound(front, next, *place)?,
                }
            }
            replay.finish()
        }
    }

    proptest! {
        #[test]
        fn a_replay_finds_the_table_whatever_segments_were_collected(changes in changes()) {
            let mut model = Model { segment: 1, ..Model::default() };
            for change in changes {
                let (front, next) = (model.table.front(), model.table.next());
                match change {
                    Change::Append(count) => (0..count).for_each(|_| model.append()),
                    Change::Front(draw) => {
                        let front = Lsn(front.0 + draw % (next.0 + 5 - front.0));
                        model.bound(front, next.max(front));
                    }
                    Change::Back(draw) => {
                        model.bound(front, Lsn(front.0 + draw % (next.0 + 1 - front.0)));
                    }
                    Change::Remove => model.bound(Lsn::FIRST, Lsn::FIRST),
                    Change::Collect(appends) => model.collect(appends),
                    Change::Rotate => model.segment += 1,
                }
                let mut places: Vec<_> = model.table.locations().collect();
                let key = |place: &Location| (place.segment, place.offset);
                places.sort_by_key(key);
                model.live.sort_by_key(key);
                prop_assert_eq!(&places, &model.live);
                if !model.table.is_unused() {
                    prop_assert_eq!(model.replayed(), Ok(model.table.clone()));
                }
            }
        }
    }

    fn place(offset: u32) -> Location {
        Location { segment: 1, offset, bytes: 8 }
    }

    #[test]
    fn a_log_that_contradicts_itself_is_refused() {
        assert!(Replay::default().finish().is_err(), "no bounds");
        let bounded = |front, next| {
            let mut replay = Replay::default();
            replay.bound(Lsn(front), Lsn(next), place(0)).unwrap();
            replay
        };
        assert!(bounded(5, 7).bound(Lsn(5), Lsn(8), place(8)).is_err(), "a record from nowhere");
        assert!(
            bounded(5, 7).bound(Lsn(4), Lsn(7), place(8)).is_err(),
            "a record that was removed"
        );
        assert!(bounded(5, 7).bound(Lsn(9), Lsn(9), place(8)).is_ok(), "no record is left");
        assert!(bounded(1, 1).record(Lsn(2), place(8)).is_err(), "a record is skipped");
        assert!(bounded(5, 7).copy(Lsn(7), place(8)).is_err(), "a copy of no record");
        assert_eq!(bounded(5, 6).finish(), Err("record 5 is missing".into()));
        let mut gap = bounded(5, 8);
        gap.copy(Lsn(5), place(8)).unwrap();
        gap.copy(Lsn(7), place(16)).unwrap();
        assert_eq!(gap.finish(), Err("record 6 is missing".into()));
        assert!(bounded(1, u64::MAX / 2).finish().is_err(), "at once, without memory for it");
    }
}
