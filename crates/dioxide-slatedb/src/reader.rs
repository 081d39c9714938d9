//! Rows from a log: those of the writer that begins, and those of readers.

use crate::error::{data, of_log, of_task};
use crate::rows::{Batches, is_anew};
use async_trait::async_trait;
use dioxide_log::{Error, Iter, LogReader, Lsn, Record};
use slatedb::RowEntry;
use slatedb::wal::{WalError, WalIterator, WalRows};
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_blocking};

/// About how many bytes of records one call returns.
const CHUNK_BYTES: usize = 1 << 20;
/// How often an iterator without end looks for more.
pub const LOOK: Duration = Duration::from_millis(10);
/// How long a reader looks at a log that changes, or that lacks records.
pub const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 30_000 });

/// Where records are read.
pub enum Source {
    Log(Box<Iter>),
    /// Shared by the iterators of a log: opening one reads the whole log.
    Reader(Arc<Mutex<LogReader>>),
}

/// The rows of the records from `next` on, below `end`.
pub struct Rows(State);

enum State {
    Rests(Box<Reading>),
    /// The call that began it may be dropped. The next one goes on.
    Reads(JoinHandle<Result<Read, WalError>>),
    Ended,
    /// Each call returns this.
    Failed(WalError),
}

struct Read {
    reading: Box<Reading>,
    rows: Vec<RowEntry>,
    found_some: bool,
}

struct Reading {
    source: Source,
    batches: Batches,
    next: Lsn,
    end: Option<Lsn>,
    /// The last record of the last whole batch.
    consumed: Lsn,
}

impl Rows {
    pub fn new(source: Source, next: Lsn, end: Option<Lsn>) -> Self {
        let (batches, consumed) = (Batches::default(), Lsn(next.0.saturating_sub(1)));
        Self(State::Rests(Box::new(Reading { source, batches, next, end, consumed })))
    }

    /// The read that goes on, or begins now. None at the end.
    fn reads(&mut self) -> Result<Option<&mut JoinHandle<Result<Read, WalError>>>, WalError> {
        if let State::Rests(_) = &self.0 {
            let rests = mem::replace(&mut self.0, State::Ended);
            if let State::Rests(reading) = rests
                && !reading.is_at_end()
            {
                self.0 = State::Reads(spawn_blocking(|| reading.read_next()));
            }
        }
        match &mut self.0 {
            State::Reads(reads) => Ok(Some(reads)),
            State::Failed(error) => Err(error.clone()),
            State::Rests(_) | State::Ended => Ok(None),
        }
    }
}

impl Reading {
    fn is_at_end(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    fn read_next(mut self: Box<Self>) -> Result<Read, WalError> {
        let before = self.next;
        let rows = self.read()?;
        Ok(Read { rows, found_some: self.next > before, reading: self })
    }

    /// Reads the next rows, as far as they are there.
    fn read(&mut self) -> Result<Vec<RowEntry>, WalError> {
        let from = self.next;
        let Self { source, batches, next, end, consumed } = self;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let mut take = |record: Option<Record<'_>>| -> Result<bool, WalError> {
            let Some(record) = record else { return Ok(false) };
            let batch = batches.take(record.payload).ok_or_else(|| {
                data(format!("record {} of the log is none of this crate", record.lsn))
            })?;
            *next = record.lsn.next();
            bytes += record.payload.len();
            if let Some(batch) = batch {
                rows.extend(batch);
                *consumed = record.lsn;
            }
            Ok(bytes < CHUNK_BYTES && end.is_none_or(|end| *next < end))
        };
        match source {
            Source::Log(iter) => while take(Iter::next(iter).map_err(of_log)?)? {},
            Source::Reader(reader) => {
                let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                let begin = begin_of(&mut reader, from)?;
                reader.seek(begin);
                while read_next(&mut reader, &mut take).map_err(of_log)?? {}
            }
        }
        Ok(rows)
    }
}

/// The record to begin with: this one, or the first of a log that began anew behind it.
fn begin_of(reader: &mut LogReader, from: Lsn) -> Result<Lsn, WalError> {
    reader.seek(from);
    let first = match read_next(reader, |_| ()) {
        Ok(()) => return Ok(from),
        Err(Error::OutOfRange { first, .. }) => first,
        Err(error) => return Err(of_log(error)),
    };
    reader.seek(first);
    let begins_anew = |record: Option<Record<'_>>| record.is_some_and(|it| is_anew(it.payload));
    match read_next(reader, begins_anew).map_err(of_log)? {
        true => Ok(first),
        false => Err(WalError::WalTruncated(from.0)),
    }
}

/// Passes the next record on. Waits while the writer changes its log faster than a reader looks:
/// SlateDB closes a reader at any error.
pub fn read_next<R>(
    reader: &mut LogReader,
    mut then: impl FnMut(Option<Record<'_>>) -> R,
) -> Result<R, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match reader.next() {
            Err(Error::Changing { .. }) if Instant::now() < deadline => thread::sleep(LOOK),
            record => return record.map(&mut then),
        }
    }
}

/// The error of a reader that has waited for a record in vain.
pub fn not_shown(lsn: Lsn) -> WalError {
    let reason = format!("the log shows readers no record {lsn}; open the log with its writer");
    WalError::Unavailable(Arc::new(io::Error::new(io::ErrorKind::TimedOut, reason)))
}

#[async_trait]
impl WalIterator for Rows {
    async fn next(&mut self) -> Result<Option<WalRows>, WalError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Some(reads) = self.reads()? else { return Ok(None) };
            let read = reads.await.unwrap_or_else(|error| Err(of_task(error)));
            let Read { reading, rows, found_some } = match read {
                Ok(read) => read,
                Err(error) => {
                    self.0 = State::Failed(error.clone());
                    return Err(error);
                }
            };
            let last_consumed_wal_file_id = reading.consumed.0;
            let (next, is_bounded) = (reading.next, reading.end.is_some());
            let is_of_writer = matches!(reading.source, Source::Log(_));
            self.0 = State::Rests(reading);
            match found_some {
                true => return Ok(Some(WalRows { rows, last_consumed_wal_file_id })),
                false if is_of_writer => return Ok(None),
                // The mark of the log may be old or missing. None would be the end of the range.
                false if is_bounded && Instant::now() >= deadline => {
                    let error = not_shown(next);
                    self.0 = State::Failed(error.clone());
                    return Err(error);
                }
                false => tokio::time::sleep(LOOK).await,
            }
        }
    }
}
