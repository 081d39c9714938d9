//! Random programs on a log, over several lives. Each ends with a close, a kill or a power cut.

use super::Medium;
use super::failing::{Failing, Left};
use crate::error::Error;
use crate::log::Log;
use crate::lsn::Lsn;
use crate::options::LogOptions;
use dioxide::Durability;
use fastrand::Rng;
use std::sync::Arc;

const LIVES: u64 = 6;

/// The records of a log, and the number of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    first: u64,
    records: Vec<Vec<u8>>,
}

impl List {
    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn of(log: &Log) -> Result<Self, Error> {
        let first = log.first_lsn().0;
        let read: Result<Vec<_>, _> = log.iter_from(Lsn(first)).collect();
        let (lsns, records): (Vec<_>, Vec<_>) = read?.into_iter().unzip();
        let list = Self { first, records };
        assert!(lsns.iter().map(|lsn: &Lsn| lsn.0).eq(first..list.next()));
        assert_eq!(log.next_lsn().0, list.next());
        Ok(list)
    }
}

#[derive(Clone, Debug)]
enum Change {
    Append(Vec<Vec<u8>>),
    /// Records that are in flight at once.
    Submit(Vec<Vec<u8>>),
    Front(u64),
    Back(u64),
    Sync,
}

impl Change {
    fn draw(rng: &mut Rng, list: &List, marker: &mut u64) -> Self {
        let record = |rng: &mut Rng, marker: &mut u64| {
            *marker += 1;
            let len = match rng.u32(0..10) {
                0 => rng.usize(0..30_000),
                1..3 => rng.usize(0..3000),
                // Often the same lengths, so that frames of torn writes fit behind later ones. A
                // frame of the second length fills a block, and the one behind it is not rewritten.
                3..6 => 4096 - 24 - 8,
                _ => 100,
            };
            let mut record = vec![*marker as u8; len];
            record.extend(marker.to_le_bytes());
            record
        };
        match rng.u32(0..30) {
            0 => Self::Front(rng.u64(list.first..list.next() + 1)),
            1 => Self::Front(list.next() + rng.u64(0..5)),
            2 => Self::Back(rng.u64(list.first..list.next() + 1)),
            3..5 => Self::Sync,
            5..10 => Self::Submit((0..rng.usize(2..30)).map(|_| record(rng, marker)).collect()),
            10..14 => Self::Append((0..rng.usize(2..6)).map(|_| record(rng, marker)).collect()),
            _ => Self::Append(vec![record(rng, marker)]),
        }
    }

    fn apply(&self, list: &mut List) {
        match self {
            Self::Append(records) | Self::Submit(records) => {
                list.records.extend(records.iter().cloned());
            }
            Self::Front(lsn) => {
                let removed = (lsn - list.first).min(list.records.len() as u64);
                list.records.drain(..removed as usize);
                list.first = *lsn;
            }
            Self::Back(lsn) => list.records.truncate((lsn - list.first) as usize),
            Self::Sync => {}
        }
    }

    fn perform(&self, log: &Log) -> Result<(), Error> {
        match self {
            Self::Append(records) => {
                let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
                log.append_all(&records).map(drop)
            }
            Self::Submit(records) => {
                for record in records {
                    log.submit(record)?;
                }
                log.wait(Lsn(log.next_lsn().0 - 1))
            }
            Self::Front(lsn) => log.truncate_front(Lsn(*lsn)),
            Self::Back(lsn) => log.truncate_back(Lsn(*lsn)),
            Self::Sync => log.sync(),
        }
    }

    /// Whether everything before is stable when the change of `list` is acknowledged. A truncation
    /// that removes nothing flushes nothing.
    fn stabilizes(&self, list: &List) -> bool {
        match self {
            Self::Append(_) | Self::Submit(_) => false,
            Self::Front(lsn) => *lsn > list.first,
            Self::Back(lsn) => *lsn < list.next(),
            Self::Sync => true,
        }
    }
}

/// One program.
struct Program<'a> {
    medium: &'a dyn Medium,
    options: LogOptions,
    rng: Rng,
    /// The number of the next record.
    marker: u64,
}

impl Program<'_> {
    fn open(&self, left: &Left) -> Result<Log, Error> {
        let (inner, left) = (self.medium.open()?, left.clone());
        self.options.open_storage(Arc::new(Failing { inner, left }))
    }

    /// The log as a writer finds it.
    fn look(&self) -> Result<List, Error> {
        let left = Left::new(u64::MAX);
        let list = List::of(&self.open(&left)?);
        // Without a close.
        left.end();
        list
    }

    /// One life of the log, which begins with these records. Returns the states that the log may
    /// have after the next crash.
    fn live(&mut self, base: &List) -> Result<Vec<List>, Error> {
        // Often soon, while the frames of a torn write may still lie behind the end.
        let soon = self.rng.bool();
        let left = Left::new(self.rng.u64(1..if soon { 6 } else { 80 }));
        let mut states = vec![base.clone()];
        let mut list = base.clone();
        let Ok(log) = self.open(&left) else { return Ok(states) };
        let mut has_failed = false;
        for _ in 0..self.rng.u64(0..100) {
            let change = Change::draw(&mut self.rng, &list, &mut self.marker);
            let outcome = change.perform(&log);
            // Nothing was done.
            if matches!(change, Change::Append(_))
                && let Err(
                    Error::TooLong { .. }
                    | Error::Full(_)
                    | Error::NoSegment(_)
                    | Error::DeviceFull(_),
                ) = &outcome
            {
                continue;
            }
            // A part of the records may be there.
            if let Change::Submit(records) = &change {
                let mut part = list.clone();
                for record in records {
                    states.push(part.clone());
                    part.records.push(record.clone());
                }
            }
            let stabilizes = change.stabilizes(&list);
            change.apply(&mut list);
            match outcome {
                Ok(()) if self.options.durability == Durability::EveryWrite || stabilizes => {
                    states = vec![list.clone()];
                }
                Ok(()) => states.push(list.clone()),
                Err(error @ Error::Corrupt { .. }) => return Err(error),
                Err(_) => {
                    states.push(list.clone());
                    has_failed = true;
                    break;
                }
            }
        }
        if self.rng.u32(0..4) == 0 && !has_failed && log.clone().close().is_ok() {
            states = vec![list];
        }
        left.end();
        Ok(states)
    }

    /// Ends the process, or the power.
    fn crash(&mut self) {
        if self.rng.u32(0..4) > 0 {
            self.medium.cut_power(self.rng.u64(..));
        }
    }
}

/// Plays a program on an empty medium. The error says what the log lost.
pub fn play(medium: &dyn Medium, seed: u64, segment_bytes: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let durability = if rng.bool() { Durability::EveryWrite } else { Durability::OnSync };
    let options = LogOptions::new().segment_bytes(segment_bytes).durability(durability);
    let options = options.spare_segments(1);
    let mut program = Program { medium, options, rng, marker: 0 };
    let mut base = List { first: 1, records: Vec::new() };
    for life in 0..LIVES {
        let failed = |error| format!("life {life}: {error}");
        let states = program.live(&base).map_err(failed)?;
        program.crash();
        if program.rng.bool() {
            // A recovery that is interrupted as well.
            let left = Left::new(program.rng.u64(1..4));
            let log = program.open(&left);
            left.end();
            drop(log);
            program.crash();
        }
        let found = program.look().map_err(failed)?;
        if !states.contains(&found) {
            let of = |list: &List| (list.first, list.records.len());
            let (found, states) = (of(&found), states.iter().map(of).collect::<Vec<_>>());
            return Err(format!("life {life}: {found:?} (first, records) is none of {states:?}"));
        }
        // The records that an open finds are stable.
        program.crash();
        let again = program.look().map_err(failed)?;
        if again != found {
            return Err(format!("life {life}: another recovery finds other records"));
        }
        base = found;
    }
    Ok(())
}
