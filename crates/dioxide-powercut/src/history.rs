//! The history of a file up to a power cut: the records that must, may and must not be found in it.

use crate::BLOCK;
use crate::mark::{Act, Name};
use std::collections::HashMap;

/// The history of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its length in bytes.
    pub bytes: u64,
    /// Its offset in bytes, if known. The offset of a frame is known if the frame is ever
    /// acknowledged.
    pub offset: Option<u64>,
    /// Whether it must survive.
    pub fate: Fate,
    /// The life of the file in which it was written.
    pub life: u64,
}

/// Whether a record survives the power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was durable.
    Kept,
    /// It was being written, truncated or overwritten.
    Open,
    /// It had been truncated away.
    Gone,
}

/// The history of one file.
#[derive(Debug, Default)]
pub struct History {
    /// All records that were begun.
    pub records: HashMap<Name, Written>,
    /// Lower bound of the end of the file, in bytes.
    pub floor: u64,
    /// Upper bound of the end of the file, in bytes.
    pub ceiling: u64,
    /// The life of the file that began last.
    pub life: u64,
    /// Whether it was only appended to: then there is no gap below the floor.
    pub is_gapless: bool,
    /// Whether its records are frames.
    pub is_framed: bool,
}

impl History {
    /// The history from the marks before the power cut.
    pub fn of(acts: impl IntoIterator<Item = Act>) -> History {
        let mut history = History { is_gapless: true, ..History::default() };
        acts.into_iter().for_each(|act| history.add(act));
        history
    }

    /// Like [`History::of`], with the offsets of frames that were acknowledged after the power cut.
    pub fn foreseeing(
        before: impl IntoIterator<Item = Act>,
        after: impl IntoIterator<Item = Act>,
    ) -> History {
        let mut history = History::of(before);
        for act in after {
            if let Act::Durable(name, offset) = act
                && history.is_framed
                && let Some(record) = history.records.get_mut(&name)
            {
                record.offset = Some(offset);
            }
        }
        history
    }

    /// The number of records that must survive.
    pub fn kept(&self) -> usize {
        self.records.values().filter(|record| record.fate == Fate::Kept).count()
    }

    fn add(&mut self, act: Act) {
        match act {
            Act::Append(name, bytes) => {
                self.begin(name, bytes, None);
                self.ceiling += bytes;
            }
            Act::AppendFrame(name, bytes) => {
                self.begin(name, bytes, None);
                self.is_framed = true;
                // Each may begin at the next block, and the file ends at a block.
                self.ceiling += bytes.next_multiple_of(BLOCK as u64);
            }
            Act::WriteAt(name, bytes, offset) => {
                self.is_gapless = false;
                self.begin(name, bytes, Some(offset));
                self.ceiling = self.ceiling.max(offset + bytes);
            }
            Act::Durable(name, offset) => {
                let record = self.records.get_mut(&name).expect("durable after it was begun");
                (record.offset, record.fate) = (Some(offset), Fate::Kept);
                self.floor = self.floor.max(offset + record.bytes);
            }
            Act::Cut(len) => {
                self.cut_off(len, Fate::Open);
                self.floor = len;
            }
            Act::WasCut(len) => {
                self.cut_off(len, Fate::Gone);
                self.ceiling = len;
            }
            // Before the recycle completes the old life may still be there, whole.
            Act::Recycle(_) => self.floor = 0,
            Act::Begin { .. } | Act::Stable { .. } => unreachable!("of the files of a log"),
            Act::LogAppend { .. } | Act::Logged { .. } | Act::Shown(..) | Act::Retained(_) => {
                unreachable!("of a log in segments")
            }
            Act::Front(_) | Act::WasFront(_) | Act::Back(_) | Act::WasBack(_) => {
                unreachable!("of a log in segments")
            }
            Act::BeginPart { .. } | Act::StablePart { .. } => unreachable!("of no log"),
            Act::WasRecycled(life) => {
                self.life = life;
                self.ceiling = 0;
                self.records.values_mut().for_each(|record| record.fate = Fate::Open);
            }
        }
    }

    fn begin(&mut self, name: Name, bytes: u64, offset: Option<u64>) {
        let record = Written { bytes, offset, fate: Fate::Open, life: self.life };
        let other = self.records.insert(name, record);
        assert_eq!(other, None, "two records of one name");
    }

    fn cut_off(&mut self, len: u64, fate: Fate) {
        for record in self.records.values_mut() {
            if record.offset.is_some_and(|offset| offset >= len) {
                record.fate = fate;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Name {
        Name { writer: 0, number }
    }

    fn fates(history: &History) -> Vec<Fate> {
        (0..history.records.len() as u64)
            .map(|number| history.records[&name(number)].fate)
            .collect()
    }

    #[test]
    fn an_append_is_kept_once_it_is_durable() {
        let mut acts = vec![Act::Append(name(0), 4096), Act::Append(name(1), 8192)];
        let begun = History::of(acts.clone());
        assert_eq!((begun.floor, begun.ceiling, begun.kept()), (0, 12288, 0));
        acts.push(Act::Durable(name(1), 4096));
        let durable = History::of(acts);
        assert_eq!((durable.floor, durable.ceiling, durable.kept()), (12288, 12288, 1));
        assert_eq!(fates(&durable), [Fate::Open, Fate::Kept]);
    }

    #[test]
    fn a_write_may_leave_gaps() {
        let written =
            History::of([Act::WriteAt(name(0), 4096, 1 << 20), Act::Durable(name(0), 1 << 20)]);
        assert_eq!(
            (written.floor, written.ceiling, written.is_gapless),
            ((1 << 20) + 4096, (1 << 20) + 4096, false)
        );
    }

    #[test]
    fn what_is_cut_off_may_be_there_until_the_cut_is_done() {
        let mut acts = vec![
            Act::Append(name(0), 4096),
            Act::Durable(name(0), 0),
            Act::Append(name(1), 4096),
            Act::Durable(name(1), 4096),
            Act::Cut(4096),
        ];
        let cutting = History::of(acts.clone());
        assert_eq!((cutting.floor, cutting.ceiling), (4096, 8192));
        assert_eq!(fates(&cutting), [Fate::Kept, Fate::Open]);
        acts.push(Act::WasCut(4096));
        let cut = History::of(acts);
        assert_eq!((cut.floor, cut.ceiling), (4096, 4096));
        assert_eq!(fates(&cut), [Fate::Kept, Fate::Gone]);
    }

    #[test]
    fn the_old_life_is_whole_until_the_file_is_recycled() {
        let mut acts = vec![Act::Append(name(0), 4096), Act::Durable(name(0), 0), Act::Recycle(1)];
        let recycling = History::of(acts.clone());
        assert_eq!(
            (recycling.floor, recycling.ceiling, fates(&recycling)),
            (0, 4096, vec![Fate::Kept])
        );
        acts.push(Act::WasRecycled(1));
        let recycled = History::of(acts);
        assert_eq!((recycled.floor, recycled.ceiling, fates(&recycled)), (0, 0, vec![Fate::Open]));
    }

    #[test]
    fn frames_end_with_a_block_and_what_is_acknowledged_later_has_a_place() {
        let acts = [
            Act::AppendFrame(name(0), 90),
            Act::Durable(name(0), 0),
            Act::AppendFrame(name(1), 5000),
        ];
        let history = History::foreseeing(acts, [Act::Durable(name(1), 90)]);
        assert_eq!((history.floor, history.ceiling, history.is_framed), (90, 12288, true));
        assert_eq!(fates(&history), [Fate::Kept, Fate::Open]);
        assert_eq!(history.records[&name(1)].offset, Some(90));
    }
}
