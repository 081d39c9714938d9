//! Rows from a log: those of the writer that begins, and those of readers.

use crate::error::{blocking, data, of_log};
use crate::rows::{Batches, is_anew};
use async_trait::async_trait;
use dioxide_log::{Error, Iter, LogReader, Lsn, Record};
use slatedb::RowEntry;
use slatedb::wal::{WalError, WalIterator, WalRows};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// About how many bytes of records one call returns.
const CHUNK_BYTES: usize = 1 << 20;
/// How often an iterator without end looks for more.
const LOOK: Duration = Duration::from_millis(10);

/// Where records are read.
pub enum Source {
    Log(Iter),
    /// Shared by the iterators of a log: opening one reads the whole log.
    Reader(Arc<Mutex<LogReader>>),
}

/// The rows of the records from `next` on, below `end`.
pub struct Rows(Option<Reading>);

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
        Self(Some(Reading { source, batches, next, end, consumed }))
    }
}

impl Reading {
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
            Source::Log(iter) => while take(iter.next().map_err(of_log)?)? {},
            Source::Reader(reader) => {
                let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                let begin = begin_of(&mut reader, from)?;
                reader.seek(begin);
                while take(reader.next().map_err(of_log)?)? {}
            }
        }
        Ok(rows)
    }
}

/// The record to begin with: this one, or the first of a log that began anew behind it.
fn begin_of(reader: &mut LogReader, from: Lsn) -> Result<Lsn, WalError> {
    reader.seek(from);
    let first = match reader.next() {
        Ok(_) => return Ok(from),
        Err(Error::OutOfRange { first, .. }) => first,
        Err(error) => return Err(of_log(error)),
    };
    reader.seek(first);
    let record = reader.next().map_err(of_log)?;
    let begins_anew = record.is_some_and(|record| is_anew(record.payload));
    if begins_anew { Ok(first) } else { Err(WalError::WalTruncated(from.0)) }
}

#[async_trait]
impl WalIterator for Rows {
    async fn next(&mut self) -> Result<Option<WalRows>, WalError> {
        loop {
            let Some(mut reading) = self.0.take() else { return Ok(None) };
            if reading.end.is_some_and(|end| reading.next >= end) {
                return Ok(None);
            }
            let before = reading.next;
            let (reading, rows) = blocking(move || {
                let rows = reading.read()?;
                Ok((reading, rows))
            })
            .await?;
            let (after, last_consumed_wal_file_id) = (reading.next, reading.consumed.0);
            let is_bounded = reading.end.is_some();
            self.0 = Some(reading);
            match after > before {
                true => return Ok(Some(WalRows { rows, last_consumed_wal_file_id })),
                // The writer may have removed the end of its log after a crash.
                false if is_bounded => return Ok(None),
                false => tokio::time::sleep(LOOK).await,
            }
        }
    }
}
