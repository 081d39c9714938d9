//! Readers of a stream.

use super::entry::Entry;
use super::log::Core;
use super::stream::SharedStream;
use crate::error::{Error, Result};
use crate::format::BLOCK_BYTES;
use crate::format::frame::{Frame, payload_of};
use crate::index::Location;
use crate::lsn::Lsn;
use crate::reader::Record;
use crate::recover::Member;
use crate::window::Window;
use std::fmt;
use std::future::poll_fn;
use std::iter;
use std::path::Path;
use std::sync::Arc;
use std::task::Context;

/// The longest read, unless a record is longer.
const READ_BYTES_MAX: u64 = 256 << 10;
/// The number of records that one read covers at most.
const RECORDS_MAX: usize = 4096;
/// A read is longer than a record if this part of it, or more, is records of the stream.
const SHARE: u64 = 4;

/// A position in a stream that moves from record to record.
///
/// [`next`](Self::next) lends each record until the next call. As an iterator it copies them.
pub struct StreamIter {
    core: Arc<Core>,
    id: u64,
    shared: Arc<SharedStream>,
    next: Lsn,
    /// The number of records that one read covers at most.
    records_max: usize,
    shown: Shown,
    /// As an iterator, it has returned an error.
    has_failed: bool,
}

/// The number of bytes to read for the record at the first location. The others are those of the
/// next records: the read covers them if they lie close together.
fn read_bytes(mut locations: impl Iterator<Item = Location>) -> u64 {
    let first = locations.next().expect("a record");
    let mut used = u64::from(first.bytes);
    let mut worth = used;
    let mut end = first.offset;
    for location in locations {
        let follows = location.segment == first.segment && location.offset >= end;
        end = location.offset + location.bytes;
        let bytes = u64::from(end.saturating_sub(first.offset));
        used += u64::from(location.bytes);
        if !follows || bytes > READ_BYTES_MAX {
            break;
        }
        if used * SHARE >= bytes {
            worth = bytes;
        }
    }
    worth
}

/// The record that a frame has. None if it has none.
fn record_of(payload: &[u8]) -> Option<(u64, Lsn, &[u8])> {
    match Entry::parse(payload)? {
        Entry::Record { stream, lsn, record } | Entry::Copy { stream, lsn, record } => {
            Some((stream, lsn, record))
        }
        Entry::Bounds { .. } => None,
    }
}

/// The part of a log that a reader of a stream has in memory.
#[derive(Debug)]
pub(super) struct Shown {
    window: Window,
    /// The segment that the window shows.
    member: Option<Member>,
}

impl Shown {
    pub fn new() -> Self {
        Self { window: Window::new(BLOCK_BYTES as usize), member: None }
    }

    /// Forgets what it read.
    pub fn clear(&mut self) {
        self.window.clear();
    }

    /// Whether it has a record of a stream at a location.
    pub fn has(&self, location: Location, wanted: (u64, Lsn)) -> bool {
        let Some(member) = &self.member else { return false };
        let (bytes, offset) = (self.window.from(location.offset.into()), location.offset.into());
        let frame = Frame::parse(bytes, member.home(), offset);
        let found = frame.ok().and_then(|frame| record_of(frame.payload));
        let is_it = found.is_some_and(|(stream, lsn, _)| (stream, lsn) == wanted);
        is_it && member.header.number == location.segment
    }

    /// The record at a location that it [has](Self::has).
    pub fn record(&self, location: Location) -> &[u8] {
        let frame = self.window.from(location.offset.into());
        record_of(payload_of(frame)).expect("it was found there").2
    }

    /// Reads the record at the first location, and those behind it that lie close together.
    pub fn load(
        &mut self,
        member: Member,
        locations: impl Iterator<Item = Location>,
    ) -> Result<()> {
        let mut locations = locations.take(RECORDS_MAX).peekable();
        let offset = locations.peek().expect("a record").offset;
        if let Some(old) = self.member.take()
            && old.header.number != member.header.number
        {
            old.segment.was_read();
        }
        self.window.clear();
        self.window.load(&member.segment, offset.into(), read_bytes(locations))?;
        self.member = Some(member);
        Ok(())
    }

    /// Reads a record as [`load`](Self::load), without the writer. `path` is that of the log.
    pub fn load_without_writer(
        &mut self,
        member: &Member,
        locations: impl Iterator<Item = Location>,
        wanted: (u64, Lsn),
        path: &Path,
    ) -> Result<()> {
        let mut locations = locations.peekable();
        let location = *locations.peek().expect("a record");
        let failure = match self.load(member.clone(), locations) {
            Ok(()) if self.has(location, wanted) => return Ok(()),
            Ok(()) => corrupt(Some(member), path, location, reason_not_there(wanted)),
            Err(error) => error,
        };
        Err(member.failure(failure, path))
    }
}

/// The error of a frame. `path` is that of the log, if it does not have the segment any more.
pub(super) fn corrupt(
    member: Option<&Member>,
    path: &Path,
    location: Location,
    reason: impl Into<String>,
) -> Error {
    let path = member.map_or(path, |member| member.segment.path());
    Error::corrupt(path, location.offset.into(), reason)
}

fn reason_not_there((stream, lsn): (u64, Lsn)) -> String {
    format!("record {lsn} of stream {stream} is not there any more")
}

impl StreamIter {
    pub(super) fn new(core: Arc<Core>, id: u64, shared: Arc<SharedStream>, next: Lsn) -> Self {
        let (records_max, shown) = (RECORDS_MAX, Shown::new());
        Self { core, id, shared, next, records_max, shown, has_failed: false }
    }

    /// Reads no record ahead.
    pub(super) fn for_one(self) -> Self {
        Self { records_max: 1, ..self }
    }

    /// The LSN of the record that [`next`](Self::next) returns.
    pub fn lsn(&self) -> Lsn {
        self.next
    }

    /// Returns the next record, or None if there is none yet. Later calls may return one.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`]: the record was removed by
    ///   [`truncate_front`](super::Stream::truncate_front).
    /// - [`Error::Corrupt`]: the record was damaged since it was written.
    ///
    /// Or the error of a read.
    #[allow(clippy::should_implement_trait)] // It lends.
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        Ok(self.advance()?.map(|location| self.lend(location)))
    }

    /// Returns the record at the location where [`advance`](Self::advance) found it.
    fn lend(&mut self, location: Location) -> Record<'_> {
        let lsn = self.next;
        self.next = lsn.next();
        Record { lsn, payload: self.shown.record(location) }
    }

    /// The location of the next record. None if there is none yet.
    fn locate(&self) -> Result<Option<Location>> {
        let log = self.core.writer().visible();
        let mut state = self.shared.lock();
        let (lsn, first, next) = (self.next, state.table.front(), state.table.next());
        if lsn < first {
            return Err(Error::OutOfRange { lsn, first, next });
        }
        let is_visible = lsn < state.visible(log);
        Ok(is_visible.then(|| state.table.get(lsn).expect("it is there")))
    }

    /// Reads the next record, and returns its location. None if there is none yet.
    fn advance(&mut self) -> Result<Option<Location>> {
        let mut read = None;
        loop {
            let Some(location) = self.locate()? else { return Ok(None) };
            if self.shown.has(location, (self.id, self.next)) {
                return Ok(Some(location));
            }
            let writer = self.core.writer();
            let member = writer.member(location.segment);
            // It was read and is not there. It may have been moved meanwhile.
            if read == Some(location) {
                if writer.lock().is_closed() {
                    // Another process may write the log by now.
                    return Err(Error::Closed);
                }
                let reason = reason_not_there((self.id, self.next));
                return Err(corrupt(member.as_ref(), writer.storage.path(), location, reason));
            }
            read = Some(location);
            // Without the segment, the record was moved, and the next look finds it.
            if let Some(member) = member {
                self.load(member, location)?;
            }
        }
    }

    fn load(&mut self, member: Member, location: Location) -> Result<()> {
        let state = self.shared.lock();
        let next: Vec<_> = state.table.from(self.next).take(self.records_max).collect();
        drop(state);
        // The record may have been moved or removed meanwhile.
        let others = next.into_iter().skip(1);
        let number = member.header.number;
        match self.shown.load(member, iter::once(location).chain(others)) {
            // A segment that became free may be gone.
            Err(_) if self.core.writer().member(number).is_none() => Ok(()),
            loaded => loaded,
        }
    }
}

impl fmt::Debug for StreamIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("StreamIter");
        debug.field("stream", &self.id).field("lsn", &self.next).finish_non_exhaustive()
    }
}

impl Iterator for StreamIter {
    type Item = Result<(Lsn, Vec<u8>)>;

    /// Returns the next record as a copy. Ends where there is none yet, and behind an error. Later
    /// calls look again.
    fn next(&mut self) -> Option<Self::Item> {
        if std::mem::take(&mut self.has_failed) {
            return None;
        }
        match StreamIter::next(self) {
            Ok(record) => record.map(|record| Ok((record.lsn, record.payload.to_vec()))),
            Err(error) => {
                self.has_failed = true;
                Some(Err(error))
            }
        }
    }
}

/// A reader that waits for records of a stream that are not there yet.
#[derive(Debug)]
pub struct StreamFollow {
    iter: StreamIter,
    /// Its number among those that wait.
    number: u64,
}

impl StreamFollow {
    pub(super) fn new(iter: StreamIter) -> Self {
        let number = iter.core.writer().next_follower();
        Self { iter, number }
    }

    /// The LSN of the record that [`next`](Self::next) returns.
    pub fn lsn(&self) -> Lsn {
        self.iter.lsn()
    }

    /// The LSN of the log that must be visible before the record is, as far as it is known.
    fn awaited(&self) -> Lsn {
        // Before the look at the stream, so that a record that comes later is visible behind it.
        let visible = self.iter.core.writer().visible();
        let behind = self.iter.shared.lock().behind(self.iter.next);
        behind.map_or(visible, |behind| Lsn(behind.0 - 1))
    }

    /// Returns the next record, and waits for it. None after the log was closed.
    ///
    /// # Errors
    ///
    /// As [`StreamIter::next`]. [`Error::Failed`] if a write or flush failed, so that none comes.
    #[allow(clippy::should_implement_trait)] // It lends.
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        loop {
            let awaited = self.awaited();
            if let Some(location) = self.iter.advance()? {
                return Ok(Some(self.iter.lend(location)));
            }
            if !self.iter.core.writer().wait_for(awaited)? {
                return Ok(None);
            }
        }
    }

    /// As [`next`](Self::next), for a task. The read itself blocks.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn next_async(&mut self) -> Result<Option<Record<'_>>> {
        loop {
            let awaited = self.awaited();
            if let Some(location) = self.iter.advance()? {
                return Ok(Some(self.iter.lend(location)));
            }
            let writer = self.iter.core.writer();
            let number = self.number;
            let wait =
                |context: &mut Context<'_>| writer.poll_for(awaited, number, context.waker());
            if !poll_fn(wait).await? {
                return Ok(None);
            }
        }
    }
}

impl Drop for StreamFollow {
    fn drop(&mut self) {
        self.iter.core.writer().forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_covers_records_that_lie_close_together() {
        let location = |segment, offset, bytes| Location { segment, offset, bytes };
        let bytes = |locations: &[Location]| read_bytes(locations.iter().copied());
        let first = location(1, 4096, 100);
        assert_eq!(bytes(&[first]), 100);
        assert_eq!(bytes(&[first, location(1, 4196, 100)]), 200);
        assert_eq!(bytes(&[first, location(1, 5000, 100)]), 100, "too far away");
        let near = [first, location(1, 5000, 100), location(1, 5100, 400)];
        assert_eq!(bytes(&near), 1404, "the next one makes up for it");
        assert_eq!(bytes(&[first, location(2, 4196, 100)]), 100, "in another segment");
        assert_eq!(bytes(&[first, location(1, 8, 100)]), 100, "a copy lies before it");
        let many = (0..10_000).map(|number| location(1, 4096 + number * 100, 100));
        assert!(read_bytes(many).abs_diff(READ_BYTES_MAX) < 100);
    }
}
