//! A thread of a phase: it performs operations, and compares the results with the model.

use crate::life::{Shared, lock};
use crate::oracle::Oracle;
use crate::records::{BLOCK_BYTES, Number, Sector, record, sectors};
use dioxide::{Buffer, Error, ErrorKind, File};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

/// The error of an operation on a closed file.
pub const EBADF: i32 = 9;

/// A writer.
pub struct Writer {
    pub random: fastrand::Rng,
    /// Plain and durable; empty once it has dropped them.
    pub handles: Vec<File>,
    pub shared: Arc<Shared>,
    /// Its last write at each offset, in blocks.
    pub own: BTreeMap<u64, (Number, u64)>,
    pub at: String,
}

/// The next operation, in blocks.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    Append { blocks: u64 },
    Write { place: u64, blocks: u64 },
    Read(Read),
    Sync,
}

/// A read in flight.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub place: u64,
    pub blocks: u64,
    /// The expected write, if it is known.
    pub holds: Option<Number>,
}

/// A write in flight.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub number: Number,
    pub place: Option<u64>,
    pub blocks: u64,
    pub durable: bool,
    was_wedged: bool,
}

impl Writer {
    /// Performs several operations, one after the other.
    pub fn work(&mut self) {
        for _ in 0..1 + self.random.u64(..12) {
            lock(&self.shared.outcome).operations += 1;
            self.call();
        }
    }

    /// Performs one operation by a call.
    pub fn call(&mut self) {
        match self.want() {
            None => {}
            Some(Want::Append { blocks }) => {
                let asked = self.ask(None, blocks);
                let result = self.handle(asked.durable).append(&record(asked.number, blocks));
                self.answered(&asked, result.as_ref().map(|offset| Some(*offset)));
            }
            Some(Want::Write { place, blocks }) => {
                let asked = self.ask(Some(place), blocks);
                let data = record(asked.number, blocks);
                let result = self.handle(asked.durable).write_at(&data, place * BLOCK_BYTES);
                self.answered(&asked, result.as_ref().map(|()| None));
            }
            Some(Want::Read(read)) => {
                let mut into = Buffer::zeroed((read.blocks * BLOCK_BYTES) as usize);
                let result = self.handle(false).read_at(&mut into, read.place * BLOCK_BYTES);
                self.was_read(read, &into, result.as_ref().map(|read| *read as u64));
            }
            Some(Want::Sync) => {
                let promised = self.oracle().acknowledged();
                let result = self.handle(false).sync_data();
                self.synced(&promised, result.as_ref().map(drop));
            }
        }
    }

    pub fn handle(&self, durable: bool) -> &File {
        &self.handles[usize::from(durable)]
    }

    pub fn oracle(&self) -> MutexGuard<'_, Oracle> {
        lock(&self.shared.oracle)
    }

    pub fn want(&mut self) -> Option<Want> {
        let positional = lock(&self.shared.phase).positional;
        match self.random.u8(..16) {
            0..=7 => {
                let many = self.random.u8(..20) == 0;
                Some(Want::Append { blocks: self.random.u64(if many { 1..100 } else { 1..5 }) })
            }
            8..=10 => {
                let (place, blocks) = self.one_of_mine()?;
                // A truncate may have removed it.
                self.oracle().holes |= lock(&self.shared.phase).truncate_beside;
                Some(Want::Write { place, blocks })
            }
            11 | 12 if positional => {
                // Beyond EOF, perhaps with a hole before it.
                let place = self.handle(false).len().expect("no reader") / BLOCK_BYTES
                    + self.random.u64(..4);
                self.oracle().holes = true;
                Some(Want::Write { place, blocks: self.random.u64(1..3) })
            }
            13 => {
                let (place, blocks) = self.one_of_mine()?;
                Some(Want::Read(Read { place, blocks, holds: Some(self.own[&place].0) }))
            }
            // The last block of the file, which some writer has written.
            14 => {
                let end = self.handle(false).len().expect("no reader");
                let place = end
                    .checked_sub(BLOCK_BYTES)
                    .filter(|place| *place >= self.oracle().base_len())?;
                let place = place / BLOCK_BYTES;
                end.is_multiple_of(BLOCK_BYTES).then_some(Want::Read(Read {
                    place,
                    blocks: 1,
                    holds: None,
                }))
            }
            _ => Some(Want::Sync),
        }
    }

    pub fn one_of_mine(&mut self) -> Option<(u64, u64)> {
        if self.own.is_empty() {
            return None;
        }
        let nth = self.random.usize(..self.own.len());
        self.own.iter().nth(nth).map(|(place, (_, blocks))| (*place, *blocks))
    }

    /// Begins a write in the model.
    pub fn ask(&mut self, place: Option<u64>, blocks: u64) -> Asked {
        let durable = self.random.bool();
        let was_wedged = lock(&self.shared.phase).wedged;
        let number = self.oracle().begin(blocks, place);
        Asked { number, place, blocks, durable, was_wedged }
    }

    /// Ends a write in the model; `result` has the offset of an append.
    pub fn answered(&mut self, asked: &Asked, result: Result<Option<u64>, &Error>) {
        let Asked { number, place, blocks, durable, was_wedged } = *asked;
        assert!(!was_wedged || result.is_err(), "{}: written on a wedged file system", self.at);
        let promised = durable || place.is_none() && lock(&self.shared.phase).too_early;
        self.oracle().end(number, result.map_err(drop), promised);
        match result {
            Ok(offset) => {
                let place =
                    place.or(offset.map(|offset| offset / BLOCK_BYTES)).expect("one of them");
                self.own.insert(place, (number, blocks));
            }
            Err(error) => {
                place.map(|place| self.own.remove(&place));
                if *error.kind() == ErrorKind::Os(EBADF) {
                    self.oracle().never_was(number);
                }
                self.judge(error);
            }
        }
    }

    /// Ends a flush that covers these writes.
    pub fn synced(&mut self, promised: &[Number], result: Result<(), &Error>) {
        match result {
            Ok(()) => self.oracle().promise(promised),
            Err(error) => self.judge(error),
        }
    }

    pub fn was_read(&mut self, asked: Read, into: &[u8], result: Result<u64, &Error>) {
        let Read { place, holds, .. } = asked;
        let phase = lock(&self.shared.phase).clone();
        let read = match result {
            Ok(read) => read as usize,
            Err(error) => {
                // A truncate may have failed after it shortened the file.
                let half_truncated = phase.truncate_beside && phase.faulty;
                let may_fail =
                    phase.dies || half_truncated || *error.kind() == ErrorKind::Os(EBADF);
                assert!(may_fail, "{}: {error}", self.at);
                return self.judge(error);
            }
        };
        if phase.truncate_beside {
            return;
        }
        assert_eq!(read, into.len(), "{}", self.at);
        for (block, sector) in sectors(into) {
            match holds {
                // Positional writes of other threads may have had the same range.
                Some(number) if !self.oracle().holes => {
                    assert_eq!(
                        sector,
                        Sector::Of { write: number, block },
                        "{}: read at {place}",
                        self.at
                    );
                }
                Some(_) => {}
                None => {
                    let recent = matches!(
                        sector,
                        Sector::Of { write, .. } if self.oracle().is_recent(write)
                    );
                    assert!(recent, "{}: {sector:?} at {place}, below the end", self.at);
                }
            }
        }
    }

    /// Checks that an error has a cause, and records it.
    pub fn judge(&self, error: &Error) {
        let mut phase = lock(&self.shared.phase);
        let mut outcome = lock(&self.shared.outcome);
        match error.kind() {
            ErrorKind::Os(EBADF) => {
                outcome.closed_before += 1;
                assert!(phase.closed_beside, "{}: {error}", self.at);
                return;
            }
            ErrorKind::NoSpace(_) => {
                outcome.full += 1;
                assert!(phase.narrow || phase.faulty, "{}: {error}", self.at);
                phase.broken = true;
            }
            ErrorKind::Wedged(_) => {
                outcome.wedged += u64::from(!phase.wedged);
                assert!(phase.faulty, "{}: {error}", self.at);
                (phase.wedged, phase.broken) = (true, true);
            }
            _ => {
                assert!(phase.faulty || phase.narrow, "{}: {error}", self.at);
                phase.broken = true;
            }
        }
        outcome.failed += 1;
    }
}
