//! A log of streams as it lies on its medium, for programs that only read it.

use super::reader::{Shown, corrupt};
use super::table::{Replays, Table};
use crate::error::{Error, Result};
use crate::lsn::Lsn;
use crate::storage::Storage;
use crate::view::{LOOKS_MAX, LogView};
use dioxide::text::shown;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A log of streams as it was found, without the lock of its writer. Nothing is changed.
///
/// Opening reads and checks the whole log. As a [`LogView`], it does not follow a writer: a record
/// that is appended later is not there. A record whose segment was used again is an error.
#[derive(Debug)]
pub struct StreamView {
    log: LogView,
    tables: BTreeMap<u64, Table>,
}

impl StreamView {
    /// Looks at the log of streams in a directory, or on a block device.
    ///
    /// # Errors
    ///
    /// As [`LogView::open`], and:
    ///
    /// - [`Error::Options`]: a log without streams.
    /// - [`Error::Changing`]: a writer frees segments faster than they are read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::find(|| LogView::open(path))
    }

    /// Looks at the log of streams on any medium.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn of(storage: Arc<dyn Storage>) -> Result<Self> {
        Self::find(|| LogView::of(storage.clone()))
    }

    /// Looks at the streams of a log that was looked at.
    ///
    /// # Errors
    ///
    /// - [`Error::Options`]: a log without streams.
    /// - [`Error::Corrupt`]: the log is damaged.
    /// - [`Error::Changing`]: a writer has used a segment again since. [`open`](Self::open) looks
    ///   at the log anew.
    ///
    /// Or the error of a read.
    pub fn of_log(log: LogView) -> Result<Self> {
        if !log.has_streams() {
            return Err(without_streams(log.path()));
        }
        let mut replays = Replays::default();
        let mut records = log.iter_from(log.first_lsn());
        while let Some((location, payload)) = records.next_located()? {
            replays.apply(payload, location).map_err(|reason| {
                corrupt(log.member(location.segment), log.path(), location, reason)
            })?;
        }
        drop(records);
        let tables = replays.finish().map_err(|reason| Error::corrupt(log.path(), 0, reason))?;
        Ok(Self { log, tables })
    }

    /// Reads a log that a writer may change meanwhile.
    fn find(look: impl Fn() -> Result<LogView>) -> Result<Self> {
        let mut looks = 1..LOOKS_MAX;
        loop {
            match Self::of_log(look()?) {
                Err(Error::Changing { .. }) if looks.next().is_some() => {}
                result => return result,
            }
        }
    }

    /// The log that has the streams.
    pub fn log(&self) -> &LogView {
        &self.log
    }

    /// The numbers of the streams that are in use, in order.
    pub fn ids(&self) -> Vec<u64> {
        let used = self.tables.iter().filter(|(_, table)| !table.is_unused());
        used.map(|(id, _)| *id).collect()
    }

    /// The lowest number that a stream has. It is that of the next record if the stream is empty.
    pub fn first_lsn(&self, id: u64) -> Lsn {
        self.tables.get(&id).map_or(Lsn::FIRST, Table::front)
    }

    /// The number of the next record of a stream.
    pub fn next_lsn(&self, id: u64) -> Lsn {
        self.tables.get(&id).map_or(Lsn::FIRST, Table::next)
    }

    /// Returns the records of a stream from `lsn` on, as copies. To begin with the first, pass
    /// [`first_lsn`](Self::first_lsn). An error is the last item: [`Error::OutOfRange`] below the
    /// first record, [`Error::Changing`] if a writer uses the segment again, or that of a read.
    pub fn iter_from(&self, id: u64, lsn: Lsn) -> StreamRecords<'_> {
        StreamRecords { view: self, id, next: lsn, shown: Shown::new() }
    }
}

pub(super) fn without_streams(path: &Path) -> Error {
    Error::Options(format!("{}: a log without streams", shown(path)))
}

/// The records of a stream of a [`StreamView`], see [`StreamView::iter_from`].
#[derive(Debug)]
pub struct StreamRecords<'a> {
    view: &'a StreamView,
    id: u64,
    /// The next record to return.
    next: Lsn,
    shown: Shown,
}

impl StreamRecords<'_> {
    /// Reads the next record, which is below the end of the stream.
    fn read(&mut self) -> Result<Vec<u8>> {
        let (view, id, lsn) = (self.view, self.id, self.next);
        let (first, next) = (view.first_lsn(id), view.next_lsn(id));
        let table = view.tables.get(&id);
        let location = table.and_then(|table| table.get(lsn));
        let location = location.ok_or(Error::OutOfRange { lsn, first, next })?;
        if !self.shown.has(location, (id, lsn)) {
            let member = view.log.member(location.segment);
            let member = member.expect("the table names segments in use");
            let locations = table.into_iter().flat_map(|table| table.from(lsn));
            self.shown.load_without_writer(member, locations, (id, lsn), view.log.path())?;
        }
        Ok(self.shown.record(location).to_vec())
    }
}

impl Iterator for StreamRecords<'_> {
    type Item = Result<(Lsn, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = self.view.next_lsn(self.id);
        if self.next >= end {
            return None;
        }
        let lsn = self.next;
        let read = self.read();
        self.next = if read.is_ok() { lsn.next() } else { end };
        Some(read.map(|record| (lsn, record)))
    }
}
