//! Logs of `dioxide-log`. Threads append, also atomic batches, and truncate the front. The records
//! that acknowledged appends left must be there after a power cut.

use crate::check::Loss;
use crate::mark::{Act, Name};
use crate::workload::Player;
use dioxide::Durability;
use dioxide_log::{Error, Log, LogOptions, LogView, Lsn};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

/// The log is closed and opened again this often.
const LIVES: u64 = 2;
/// Small, so that it goes on to the next segment often.
const SEGMENT_BYTES: u64 = 64 << 10;
const RECORD_BYTES_MAX: u64 = 6000;
const HEADER_BYTES: u64 = 16;
/// Records that the truncations leave.
const KEPT: u64 = 40;

/// When a workload takes a record for acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledged {
    /// When the append returns, which is durable.
    OnReturn,
    /// When a flush returns.
    OnSync,
    /// When the append returns, which is not durable: a control.
    Unsynced,
}

pub(crate) fn append(player: &Player<'_>, acknowledged: Acknowledged) {
    let durability = match acknowledged {
        Acknowledged::OnReturn => Durability::EveryWrite,
        Acknowledged::OnSync | Acknowledged::Unsynced => Durability::OnSync,
    };
    let options = options().durability(durability);
    for life in 0..LIVES {
        let log = options.open(path_of(player.dir, player.file)).expect("it opens");
        player.together(|writer| append_some(player, &log, writer + life * 100, acknowledged));
        log.close().expect("it closes");
    }
}

fn options() -> LogOptions {
    LogOptions::new().segment_bytes(SEGMENT_BYTES).spare_segments(1)
}

fn append_some(player: &Player<'_>, log: &Log, writer: u64, acknowledged: Acknowledged) {
    let mut random = player.random(writer);
    let mut written = Vec::new();
    let mut number = 0;
    while number < player.records / LIVES {
        let name = Name { writer, number };
        let count = if random.below(3) == 0 { 1 + random.below(4) } else { 1 };
        let bytes = HEADER_BYTES + random.below(RECORD_BYTES_MAX - HEADER_BYTES);
        let records: Vec<_> = (0..count).map(|nth| record(behind(name, nth), bytes)).collect();
        let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        player.mark(Act::LogAppend { first: name, count, bytes });
        let lsn = log.append_all(&slices).expect("there is space");
        written.push((name, lsn));
        number += count;
        if acknowledged == Acknowledged::OnSync && random.below(3) > 0 {
            continue;
        }
        if acknowledged == Acknowledged::OnSync {
            log.sync().expect("it syncs");
        }
        for (first, lsn) in written.drain(..) {
            player.mark(Act::Logged { first, lsn: lsn.0 });
        }
        if writer.is_multiple_of(100) && random.below(4) == 0 {
            let front = lsn.0.saturating_sub(KEPT).max(1);
            player.mark(Act::Front(front));
            log.truncate_front(Lsn(front)).expect("it is truncated");
            player.mark(Act::WasFront(front));
        }
    }
}

fn path_of(dir: &Path, file: u64) -> PathBuf {
    dir.join(format!("write-ahead-{file}"))
}

fn behind(first: Name, nth: u64) -> Name {
    Name { number: first.number + nth, ..first }
}

fn record(name: Name, bytes: u64) -> Vec<u8> {
    let mut record = vec![(name.writer * 31 + name.number * 7) as u8 | 1; bytes as usize];
    record[..8].copy_from_slice(&name.writer.to_le_bytes());
    record[8..16].copy_from_slice(&name.number.to_le_bytes());
    record
}

/// The appends of a log before a power cut.
#[derive(Debug, Default)]
pub struct WriteAhead {
    /// The number of records of a batch, and their length, by the name of the first.
    begun: HashMap<Name, (u64, u64)>,
    acknowledged: Vec<(Name, u64)>,
    /// The front that was acknowledged, and the highest that was begun.
    front: u64,
    front_max: u64,
}

impl WriteAhead {
    /// The log with these acts.
    pub fn of(acts: impl Iterator<Item = Act>) -> Self {
        let mut log = Self { front: 1, front_max: 1, ..Self::default() };
        for act in acts {
            match act {
                Act::LogAppend { first, count, bytes } => {
                    log.begun.insert(first, (count, bytes));
                }
                Act::Logged { first, lsn } => log.acknowledged.push((first, lsn)),
                Act::Front(lsn) => log.front_max = log.front_max.max(lsn),
                Act::WasFront(lsn) => log.front = log.front.max(lsn),
                _ => unreachable!("of another workload: {act:?}"),
            }
        }
        log
    }

    /// The number of batches that must survive.
    pub fn kept(&self) -> usize {
        let is_kept = |(_, lsn): &&(Name, u64)| *lsn >= self.front_max;
        self.acknowledged.iter().filter(is_kept).count()
    }

    /// Opens, checks and closes the log of a file.
    ///
    /// # Errors
    ///
    /// An error of the check itself. A log that cannot be opened is a loss.
    pub fn check(&self, dir: &Path, file: u64) -> io::Result<Vec<Loss>> {
        let path = path_of(dir, file);
        if !path.exists() {
            return Ok(self.loss_unless(self.acknowledged.is_empty(), "the log is gone"));
        }
        match self.losses(&path) {
            Ok(losses) => Ok(losses),
            Err(error) => Ok(vec![error.to_string()]),
        }
    }

    fn loss_unless(&self, holds: bool, loss: &str) -> Vec<Loss> {
        if holds { Vec::new() } else { vec![loss.to_owned()] }
    }

    fn losses(&self, path: &Path) -> Result<Vec<Loss>, Error> {
        let log = options().open(path)?;
        let first = log.first_lsn().0;
        let records = log.iter_from(Lsn(first)).collect::<Result<Vec<_>, _>>()?;
        let mut losses = self.compare(first, &records);
        log.close()?;
        let view = LogView::open(path)?;
        let seen = view.iter_from(Lsn(first)).collect::<Result<Vec<_>, _>>()?;
        losses.extend(self.loss_unless(seen == records, "a view sees other records"));
        losses.truncate(5);
        Ok(losses)
    }

    fn compare(&self, front: u64, records: &[(Lsn, Vec<u8>)]) -> Vec<Loss> {
        let mut losses = Vec::new();
        if !(self.front..=self.front_max).contains(&front) {
            losses.push(format!("the front is {front}, not {} to {}", self.front, self.front_max));
        }
        let mut found = HashMap::new();
        for (lsn, bytes) in records {
            match name_of(bytes) {
                Some(name) if found.insert(name, lsn.0).is_none() => {}
                name => losses.push(format!("record {lsn} is {name:?}, torn or there twice")),
            }
        }
        let mut expected = 0;
        for (first, (count, bytes)) in &self.begun {
            let names = (0..*count).map(|nth| behind(*first, nth));
            let lsns: Vec<_> = names.map(|name| found.get(&name).copied()).collect();
            expected += lsns.iter().flatten().count();
            // Those below the front are gone.
            let Some(start) = lsns.iter().zip(0..).find_map(|(lsn, nth)| lsn.map(|lsn| lsn - nth))
            else {
                continue;
            };
            let whole = lsns.iter().zip(start..).all(|(lsn, at)| at < front || *lsn == Some(at));
            let index = |lsn: &u64| &records[(lsn - front) as usize].1;
            let length = lsns.iter().flatten().all(|lsn| index(lsn).len() as u64 == *bytes);
            if !(whole && length) {
                losses.push(format!("of the batch of {first:?} only {lsns:?} is there"));
            }
        }
        if expected != found.len() {
            losses.push(format!("{} records were never appended", found.len() - expected));
        }
        for (first, lsn) in &self.acknowledged {
            let (count, _) = self.begun[first];
            let last = (behind(*first, count - 1), lsn + count - 1);
            if last.1 >= front && found.get(&last.0) != Some(&last.1) {
                losses.push(format!("lost: {first:?}, which was acknowledged at {lsn}"));
            }
        }
        losses
    }
}

/// The name of a record whose bytes are all right.
fn name_of(bytes: &[u8]) -> Option<Name> {
    let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let name = Name { writer: number(0)?, number: number(8)? };
    (record(name, bytes.len() as u64) == bytes).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_found() {
        let name = |number| Name { writer: 3, number };
        let acts = [
            Act::LogAppend { first: name(0), count: 1, bytes: 20 },
            Act::Logged { first: name(0), lsn: 1 },
            Act::LogAppend { first: name(1), count: 2, bytes: 30 },
            Act::Logged { first: name(1), lsn: 2 },
            Act::LogAppend { first: name(3), count: 2, bytes: 16 },
        ];
        let log = WriteAhead::of(acts.into_iter());
        let row = |numbers: &[(u64, u64)]| -> Vec<(Lsn, Vec<u8>)> {
            let records = numbers.iter().map(|(number, bytes)| record(name(*number), *bytes));
            (1..).map(Lsn).zip(records).collect()
        };
        let whole = row(&[(0, 20), (1, 30), (2, 30), (3, 16), (4, 16)]);
        assert!(log.compare(1, &whole).is_empty() && log.compare(1, &whole[..3]).is_empty());
        for wrong in [
            row(&[(0, 20), (1, 30), (2, 30), (3, 16)]),
            row(&[(0, 20), (1, 30)]),
            row(&[(0, 20), (2, 30), (1, 30)]),
            row(&[(0, 20), (1, 30), (2, 30), (9, 16)]),
            row(&[(0, 20), (1, 31), (2, 31)]),
            row(&[(0, 20), (1, 30), (2, 30), (0, 20)]),
        ] {
            assert!(!log.compare(1, &wrong).is_empty(), "{wrong:?}");
        }
        let mut torn = whole;
        torn[4].1[15] ^= 1;
        assert!(!log.compare(1, &torn).is_empty());
        assert!(!log.compare(2, &row(&[])).is_empty(), "the front was never moved");
    }
}
