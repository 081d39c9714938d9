//! The model of the file's content: every write, when it ended, and whether it is durable.

use crate::records::{BLOCK_BYTES, Number, SECTOR_BYTES, Sector, sectors};
use std::collections::BTreeMap;

/// A write, as its caller knows it.
#[derive(Clone, Debug)]
pub struct Write {
    pub blocks: u64,
    /// In blocks. Appends get it with their result.
    pub place: Option<u64>,
    pub begun: u64,
    /// When it ended, with any result.
    pub ended: Option<u64>,
    pub acknowledged: bool,
    pub durable: bool,
    pub appended: bool,
    /// It was dropped before it began.
    pub never: bool,
}

/// A change of the length while others write.
#[derive(Clone, Debug)]
struct Cut {
    /// The new length in blocks.
    to: u64,
    /// It may have extended the file.
    extends: bool,
    begun: u64,
    /// When it ended, with any result.
    ended: Option<u64>,
    done: bool,
}

/// The model.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    pub writes: BTreeMap<Number, Write>,
    clock: u64,
    /// The durable content when the file last had no writer.
    base: Vec<u8>,
    /// The last write before that.
    before: Number,
    /// Writes beyond EOF may have left a hole.
    pub holes: bool,
    /// The target length, in bytes, of a truncate or extension in progress.
    pub becoming: Option<u64>,
    cuts: Vec<Cut>,
}

impl Oracle {
    /// Sets the whole content, all durable. Numbers of writes go on.
    pub fn settle(&mut self, content: Vec<u8>) {
        self.before = self.last();
        self.base = content;
        self.writes.clear();
        self.holes = false;
        self.becoming = None;
        self.cuts.clear();
    }

    fn last(&self) -> Number {
        self.writes.keys().next_back().copied().unwrap_or(self.before)
    }

    /// The rest of the settled content, in bytes.
    pub fn base_len(&self) -> u64 {
        let cut = self.cuts.iter().map(|cut| cut.to * BLOCK_BYTES).chain(self.becoming).min();
        (self.base.len() as u64).min(cut.unwrap_or(u64::MAX))
    }

    /// Returns whether a write began after the last `settle`.
    pub fn is_recent(&self, write: Number) -> bool {
        write > self.before
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn begin(&mut self, blocks: u64, place: Option<u64>) -> Number {
        let number = self.last() + 1;
        let begun = self.tick();
        let appended = place.is_none();
        let write = Write {
            blocks,
            place,
            begun,
            ended: None,
            acknowledged: false,
            durable: false,
            appended,
            never: false,
        };
        self.writes.insert(number, write);
        number
    }

    /// Ends a write. A durable append makes all appends below its end durable.
    pub fn end(&mut self, number: Number, result: Result<Option<u64>, ()>, durable: bool) {
        let ended = self.tick();
        let write = self.writes.get_mut(&number).expect("it was begun");
        write.ended = Some(ended);
        if let Ok(offset) = result {
            write.place = offset.map(|offset| offset / BLOCK_BYTES).or(write.place);
            write.acknowledged = true;
            write.durable = durable;
            // After a truncate, appends below may belong to the time before it.
            let is_of_now = !self.cuts.iter().any(|cut| cut.is_after(write.begun));
            if write.appended && durable && is_of_now {
                let end = write.end().expect("it has a place");
                let below =
                    |other: &&mut Write| other.appended && other.end().is_some_and(|it| it <= end);
                self.writes.values_mut().filter(below).for_each(|write| write.durable = true);
            }
        }
    }

    /// Records that a write was never submitted.
    pub fn never_was(&mut self, number: Number) {
        self.writes.get_mut(&number).expect("it was begun").never = true;
    }

    /// Begins a change of the length, in blocks, while others write. One at a time.
    pub fn begin_truncate(&mut self, to: u64, extends: bool) {
        let begun = self.tick();
        self.cuts.push(Cut { to, extends, begun, ended: None, done: false });
    }

    pub fn end_truncate(&mut self, done: bool) {
        let ended = self.tick();
        let cut = self.cuts.last_mut().expect("it was begun");
        (cut.ended, cut.done) = (Some(ended), done);
    }

    /// The writes that a flush makes durable if it begins now and succeeds.
    pub fn acknowledged(&self) -> Vec<Number> {
        self.writes
            .iter()
            .filter(|(_, write)| write.acknowledged)
            .map(|(number, _)| *number)
            .collect()
    }

    pub fn promise(&mut self, numbers: &[Number]) {
        numbers
            .iter()
            .for_each(|number| self.writes.get_mut(number).expect("known").durable = true);
    }

    // --- checks ----------------------------------------------------------------------------------

    /// Appends never overlap.
    pub fn check_appends(&self, at: &str) {
        let mut taken: Vec<_> = self
            .writes
            .values()
            .filter(|write| write.appended)
            .filter_map(|w| Some((w.place?, w.end()?, w.begun)))
            .collect();
        taken.sort_unstable();
        for pair in taken.windows(2) {
            let [(_, end, begun), (place, _, other_begun)] = *pair else { unreachable!("two") };
            let between = |cut: &Cut| cut.to < end && cut.is_after(begun.min(other_begun));
            let apart = end <= place || self.cuts.iter().any(between);
            assert!(apart, "{at}: appends overlap: {pair:?}");
        }
    }

    /// The smallest possible length in bytes.
    pub fn least(&self) -> u64 {
        let durable = self.writes.values().filter(|write| write.durable);
        let written = durable.filter_map(|write| Some(self.left_of(write.end()?, write.begun)));
        let given =
            self.cuts.iter().filter(|cut| cut.done).map(|cut| self.left_of(cut.to, cut.begun));
        let base = self.left_of(self.base.len() as u64 / BLOCK_BYTES, 0);
        let least = written.chain(given).max().unwrap_or(0).max(base) * BLOCK_BYTES;
        least.min(self.becoming.unwrap_or(u64::MAX))
    }

    /// The part of a length in blocks that later truncates left. An operation that began at `begun`
    /// reached it.
    fn left_of(&self, end: u64, begun: u64) -> u64 {
        let cuts = self.cuts.iter().filter(|cut| cut.begun != begun && cut.is_after(begun));
        cuts.map(|cut| cut.to).min().unwrap_or(end).min(end)
    }

    /// The largest possible length in bytes.
    pub fn most(&self) -> u64 {
        let placed = self.writes.values().filter(|write| !write.appended).filter_map(Write::end);
        let given = self.cuts.iter().map(|cut| cut.to);
        let start =
            placed.chain(given).max().unwrap_or(0).max(self.base.len() as u64 / BLOCK_BYTES);
        let appended: u64 =
            self.writes.values().filter(|write| write.appended).map(|write| write.blocks).sum();
        ((start + appended) * BLOCK_BYTES).max(self.becoming.unwrap_or(0))
    }

    /// Checks the content after a crash and recovery.
    pub fn check_after_crash(&self, content: &[u8], may_have_zeros: bool, at: &str) {
        let len = content.len() as u64;
        assert!(len >= self.least(), "{at}: {} bytes, but {} was durable", len, self.least());
        assert!(len <= self.most(), "{at}: {} bytes, but only {} were written", len, self.most());
        self.check(content, may_have_zeros, |write| write.durable, "was durable", at);
    }

    /// Checks the content while no thread writes.
    pub fn check_live(&self, content: &[u8], may_have_zeros: bool, at: &str) {
        self.check(content, may_have_zeros, |write| write.acknowledged, "was acknowledged", at);
    }

    /// Checks that each sector holds data of a write there. That write must not have ended before a
    /// later write that `counts` began.
    fn check(
        &self,
        content: &[u8],
        may_have_zeros: bool,
        counts: impl Fn(&Write) -> bool,
        because: &str,
        at: &str,
    ) {
        let mut found_at: BTreeMap<Number, u64> = BTreeMap::new();
        let placed: Vec<_> = self.writes.values().filter(|write| write.place.is_some()).collect();
        for (n, (block, sector)) in sectors(content).enumerate() {
            let bytes =
                &content[n * SECTOR_BYTES..][..SECTOR_BYTES.min(content.len() - n * SECTOR_BYTES)];
            let base = self.base.get(n * SECTOR_BYTES..n * SECTOR_BYTES + bytes.len());
            let cuts = || self.cuts.iter().filter(|cut| cut.to <= block);
            let is_cut = |when: u64| cuts().any(|cut| cut.done && when < cut.begun);
            // When the write of this sector ended.
            let over = match sector {
                Sector::Of { write, block: of } if self.is_recent(write) => {
                    let place = block.checked_sub(of);
                    let known =
                        self.writes.get(&write).unwrap_or_else(|| panic!("{at}: {sector:?}?"));
                    assert!(
                        of < known.blocks && place.is_some(),
                        "{at}: block {block} holds {sector:?}"
                    );
                    let first = *found_at.entry(write).or_insert(place.unwrap());
                    assert_eq!(Some(first), place, "{at}: write {write} stands at two places");
                    assert!(
                        known.place.is_none_or(|it| it == first),
                        "{at}: {write} is not where it should be"
                    );
                    assert!(!known.never, "{at}: {write} was never submitted");
                    let gone = known.ended.is_some_and(is_cut);
                    assert!(!gone, "{at}: block {block} holds {sector:?}, which was cut");
                    known.ended
                }
                _ if base == Some(bytes) && !is_cut(0) => Some(0),
                Sector::Zero => {
                    let given =
                        self.cuts.iter().filter(|cut| cut.extends).map(|cut| cut.to * BLOCK_BYTES);
                    let extended = given.chain(self.becoming).any(|to| block < to / BLOCK_BYTES);
                    let over_base = base.is_some() && cuts().next().is_none();
                    let may_be = (may_have_zeros || self.holes || extended) && !over_base;
                    assert!(
                        may_be,
                        "{at}: block {block} of {} shows zeros",
                        content.len() as u64 / BLOCK_BYTES
                    );
                    Some(0)
                }
                _ => panic!("{at}: block {block} holds {sector:?}"),
            };
            let Some(over) = over else { continue };
            let covers = |write: &&&Write| {
                write.place.is_some_and(|it| it <= block) && write.end() > Some(block)
            };
            let stays = |write: &Write| !cuts().any(|cut| cut.is_after(write.begun));
            let newer = placed
                .iter()
                .filter(covers)
                .find(|write| counts(write) && stays(write) && write.begun > over);
            assert!(
                newer.is_none(),
                "{at}: block {block} holds {sector:?}, but {newer:?} {because}"
            );
        }
    }
}

impl Cut {
    /// Returns whether it may have truncated a write that began then.
    fn is_after(&self, begun: u64) -> bool {
        self.ended.is_none_or(|ended| begun < ended)
    }
}

impl Write {
    fn end(&self) -> Option<u64> {
        self.place.map(|place| place + self.blocks)
    }
}
