//! A stream, as users see it.

use super::log::{Core, NewBounds, OpenStreams, StreamLog};
use super::reader::{StreamFollow, StreamIter};
use super::table::Table;
use crate::locked::locked;

use crate::error::{Error, Result};
use crate::index::Location;
use crate::log::Append;
use crate::lsn::Lsn;
use crate::observe;
use crate::ticket::Ticket;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

/// One of the logs of a [`StreamLog`]. Threads and tasks share it by reference. Clones are the same
/// stream, and keep the log open.
///
/// Records have the numbers 1, 2, 3 and so on in their stream. After a crash, the promises of a
/// [`Log`](crate::Log) hold for each stream.
#[derive(Clone)]
pub struct Stream {
    log: Arc<OpenStreams>,
    id: u64,
    shared: Arc<SharedStream>,
}

/// What all handles of a stream share.
pub(super) struct SharedStream(Mutex<StreamState>);

pub(super) struct StreamState {
    pub table: Table,
    /// Records that readers did not see at the last look. Once the log shows its records up to the
    /// first LSN, the stream shows its own up to the second.
    pending: VecDeque<(Lsn, Lsn)>,
    /// The LSN behind the last record that readers saw at the last look.
    visible: Lsn,
}

impl Default for SharedStream {
    fn default() -> Self {
        Self::new(Table::default())
    }
}

impl SharedStream {
    pub fn new(table: Table) -> Self {
        let (visible, pending) = (table.next(), VecDeque::new());
        Self(Mutex::new(StreamState { table, pending, visible }))
    }

    pub fn lock(&self) -> MutexGuard<'_, StreamState> {
        locked(&self.0)
    }
}

impl StreamState {
    /// Records were added. They are visible once the log shows its records up to `behind`. It shows
    /// those up to `log` now.
    pub fn on_pushed(&mut self, behind: Lsn, log: Lsn) {
        self.visible(log);
        self.pending.push_back((behind, self.table.next()));
    }

    /// Applies bounds that lie at `anchor`. Returns the segments of the frames that are not needed
    /// any more, each with a number of bytes.
    pub fn bound(&mut self, front: Lsn, next: Lsn, anchor: Location, log: Lsn) -> Vec<(u64, u64)> {
        self.visible(log);
        let mut sums = Vec::<(u64, u64)>::new();
        self.table.bound(front, next, anchor, |Location { segment, bytes, .. }| {
            match sums.last_mut() {
                Some((last, sum)) if *last == segment => *sum += u64::from(bytes),
                _ => sums.push((segment, bytes.into())),
            }
        });
        self.visible = self.visible.clamp(front, next);
        for (_, end) in &mut self.pending {
            *end = (*end).clamp(front, next);
        }
        sums
    }

    /// The LSN behind the last record that readers may see, when the log shows its records up to
    /// `log`.
    pub fn visible(&mut self, log: Lsn) -> Lsn {
        while let Some((_, end)) = self.pending.front().filter(|(behind, _)| *behind <= log) {
            self.visible = *end;
            self.pending.pop_front();
        }
        self.visible
    }

    /// The LSN of the log that must be visible before record `lsn` is. None if the stream does not
    /// have the record yet.
    pub fn behind(&self, lsn: Lsn) -> Option<Lsn> {
        let found = self.pending.iter().find(|(_, end)| *end > lsn);
        found.map(|(behind, _)| *behind)
    }
}

impl Stream {
    pub(super) fn new(log: Arc<OpenStreams>, id: u64, shared: Arc<SharedStream>) -> Self {
        Self { log, id, shared }
    }

    pub(super) fn core(&self) -> &Core {
        &self.log.core
    }

    pub(super) fn shared(&self) -> &Arc<SharedStream> {
        &self.shared
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.shared.lock()
    }

    pub(super) fn is_of(&self, log: &StreamLog) -> bool {
        Arc::ptr_eq(&self.log, &log.0)
    }

    /// The number of the stream.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Appends a record, and returns its number once it is acknowledged. As
    /// [`Log::append`](crate::Log::append).
    ///
    /// # Errors
    ///
    /// As [`Log::append`](crate::Log::append). A full log takes records again when streams are
    /// truncated.
    pub fn append(&self, record: &[u8]) -> Result<Lsn> {
        self.append_all(&[record])
    }

    /// Appends records as one atomic batch, and returns the number of the first. As
    /// [`Log::append_all`](crate::Log::append_all). For records of several streams, there is
    /// [`StreamLog::append_all`].
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append). The whole batch must fit into a segment.
    pub fn append_all(&self, records: &[&[u8]]) -> Result<Lsn> {
        let records: Vec<_> = records.iter().map(|record| (self, *record)).collect();
        let lsns = self.core().append_all(&records)?;
        Ok(lsns.first().copied().unwrap_or_else(|| self.next_lsn()))
    }

    /// As [`append`](Self::append), for a task. The record is in the stream when this returns; the
    /// future waits until it is acknowledged. As [`Log::append_async`](crate::Log::append_async).
    pub fn append_async(&self, record: &[u8]) -> StreamAppend {
        self.append_all_async(&[record])
    }

    /// As [`append_all`](Self::append_all), for a task: the records are one atomic batch. Otherwise
    /// as [`append_async`](Self::append_async).
    pub fn append_all_async(&self, records: &[&[u8]]) -> StreamAppend {
        let begun = observe::begun();
        let records: Vec<_> = records.iter().map(|record| (self, *record)).collect();
        let submitted = match records.is_empty() {
            true => Ok((self.next_lsn(), Ticket::done())),
            false => self.core().submit(&records).map(|(lsns, ticket)| (lsns[0], ticket)),
        };
        StreamAppend(Append::new(submitted, begun, records.len(), self.core().writer()))
    }

    /// Returns a copy of a record. None if it is not there yet.
    ///
    /// # Errors
    ///
    /// As [`StreamIter::next`].
    pub fn read(&self, lsn: Lsn) -> Result<Option<Vec<u8>>> {
        let mut iter = self.iter_from(lsn).for_one();
        Ok(StreamIter::next(&mut iter)?.map(|record| record.payload.to_vec()))
    }

    /// Returns the records from `lsn` on, up to the last that is stable.
    pub fn iter_from(&self, lsn: Lsn) -> StreamIter {
        StreamIter::new(self.log.core.clone(), self.id, self.shared.clone(), lsn)
    }

    /// Returns the records from `lsn` on, and waits for each next one to be stable. A waker of the
    /// reader must not call what waits for the log, as `append` and `close` do.
    pub fn follow(&self, lsn: Lsn) -> StreamFollow {
        StreamFollow::new(self.iter_from(lsn))
    }

    /// Removes all records below `lsn`. Stable on return.
    ///
    /// `lsn` may be above the next record: the stream is then empty, and the next record has that
    /// number.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append). [`Error::OutOfRange`] if `lsn` is above [`Lsn::MAX`].
    pub fn truncate_front(&self, lsn: Lsn) -> Result<()> {
        self.core().bound(self, |table| without_front(table, lsn))
    }

    /// As [`truncate_front`](Self::truncate_front), for a task. The records are gone when this
    /// returns, and later appends come behind the truncation also after a crash. The future waits
    /// until the truncation is acknowledged, as an append is.
    pub fn truncate_front_async(&self, lsn: Lsn) -> StreamChange {
        self.change(|table| without_front(table, lsn))
    }

    /// Removes `lsn` and all records above it. Stable on return. The next record gets this number.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `lsn` is below the first record or above the next one. Or as
    /// [`append`](Self::append).
    pub fn truncate_back(&self, lsn: Lsn) -> Result<()> {
        self.core().bound(self, |table| without_back(table, lsn))
    }

    /// As [`truncate_back`](Self::truncate_back), for a task. Otherwise as
    /// [`truncate_front_async`](Self::truncate_front_async).
    pub fn truncate_back_async(&self, lsn: Lsn) -> StreamChange {
        self.change(|table| without_back(table, lsn))
    }

    fn change(&self, change: impl Fn(&Table) -> Result<NewBounds>) -> StreamChange {
        let ticket = self.core().bound_soon(self, change);
        let changed = ticket.map(|ticket| (Lsn::FIRST, ticket));
        StreamChange(Append::new(changed, None, 0, self.core().writer()))
    }

    /// Removes the stream: all of its records and its numbers. Stable on return. Its next record
    /// has number 1. A reader stays at its position, so end the readers before.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn remove(&self) -> Result<()> {
        self.core()
            .bound(self, |table| Ok((!table.is_unused()).then_some((Lsn::FIRST, Lsn::FIRST))))
    }

    /// The lowest number that the stream has. It is that of the next record if it is empty.
    pub fn first_lsn(&self) -> Lsn {
        self.lock().table.front()
    }

    /// The number of the last record, acknowledged or not. None if the stream is empty.
    pub fn last_lsn(&self) -> Option<Lsn> {
        let state = self.lock();
        let (first, next) = (state.table.front(), state.table.next());
        (next > first).then(|| Lsn(next.0 - 1))
    }

    /// The number of the next record.
    pub fn next_lsn(&self) -> Lsn {
        self.lock().table.next()
    }

    /// The number behind the last stable record: all below are stable.
    pub fn stable_lsn(&self) -> Lsn {
        let visible = self.core().writer().visible();
        self.lock().visible(visible)
    }
}

/// The bounds of a stream without the records below `lsn`. None if they stay.
fn without_front(table: &Table, lsn: Lsn) -> Result<NewBounds> {
    let (first, next) = (table.front(), table.next());
    match lsn > Lsn::MAX {
        true => Err(Error::OutOfRange { lsn, first, next }),
        false => Ok((lsn > first).then(|| (lsn, next.max(lsn)))),
    }
}

/// The bounds of a stream without `lsn` and the records above it. None if they stay.
fn without_back(table: &Table, lsn: Lsn) -> Result<NewBounds> {
    let (first, next) = (table.front(), table.next());
    match (first..=next).contains(&lsn) {
        true => Ok((lsn < next).then_some((first, lsn))),
        false => Err(Error::OutOfRange { lsn, first, next }),
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = &self.core().log;
        f.debug_struct("Stream").field("id", &self.id).field("log", log).finish()
    }
}

/// A record of a stream that is being appended. The future of [`Stream::append_async`].
///
/// Dropping it does not take the record back.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct StreamAppend(Append);

impl Future for StreamAppend {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

/// A truncation of a stream. The future of [`Stream::truncate_front_async`] and
/// [`Stream::truncate_back_async`].
///
/// Dropping it does not take the truncation back.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct StreamChange(Append);

impl Future for StreamChange {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|outcome| outcome.map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only readers forgot what they had seen, so the memory of a stream without readers grew.
    #[test]
    fn a_stream_without_readers_forgets_acknowledged_records() {
        let mut state =
            StreamState { table: Table::default(), pending: VecDeque::new(), visible: Lsn(1) };
        for lsn in 1..1000 {
            let location = Location::new(1, 8 * lsn, 8);
            state.table.push(location);
            state.on_pushed(Lsn(lsn + 1), Lsn(lsn));
            assert!(state.pending.len() < 3);
        }
        assert_eq!((state.visible(Lsn(1000)), state.pending.len()), (Lsn(1000), 0));
    }
}
