//! A stream, as users see it.

use super::log::{Core, Open, StreamLog};
use super::reader::{StreamFollow, StreamIter};
use super::table::Table;

use crate::error::{Error, Result};
use crate::index::Location;
use crate::log::Append;
use crate::lsn::Lsn;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// One of the logs of a [`StreamLog`]. Threads and tasks share it by reference. Clones are the same
/// stream, and keep the log open.
///
/// Records have the numbers 1, 2, 3 and so on in their stream. After a crash, the promises of a
/// [`Log`](crate::Log) hold for each stream.
#[derive(Clone)]
pub struct Stream {
    log: Arc<Open>,
    id: u64,
    shared: Arc<Shared>,
}

/// What all handles of a stream share.
pub(super) struct Shared(Mutex<State>);

pub(super) struct State {
    pub table: Table,
    /// Records that readers did not see at the last look. Once the log shows its records up to the
    /// first LSN, the stream shows its own up to the second.
    pending: VecDeque<(Lsn, Lsn)>,
    /// The LSN behind the last record that readers saw at the last look.
    visible: Lsn,
}

impl Default for Shared {
    fn default() -> Self {
        Self::new(Table::default())
    }
}

impl Shared {
    pub fn new(table: Table) -> Self {
        let (visible, pending) = (table.next(), VecDeque::new());
        Self(Mutex::new(State { table, pending, visible }))
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Records were added. They are visible once the log shows its records up to `behind`.
    pub fn on_pushed(&mut self, behind: Lsn) {
        self.pending.push_back((behind, self.table.next()));
    }

    /// Applies bounds that lie at `anchor`. Passes what is needed no more to `freed`.
    pub fn bound(&mut self, front: Lsn, next: Lsn, anchor: Location, freed: impl FnMut(Location)) {
        self.table.bound(front, next, anchor, freed);
        self.visible = self.visible.clamp(front, next);
        for (_, end) in &mut self.pending {
            *end = (*end).clamp(front, next);
        }
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
    pub(super) fn new(log: Arc<Open>, id: u64, shared: Arc<Shared>) -> Self {
        Self { log, id, shared }
    }

    pub(super) fn core(&self) -> &Core {
        &self.log.core
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
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
        StreamAppend(Append::new(self.core().submit(self, record)))
    }

    /// Returns a copy of a record. None if it is not there yet.
    ///
    /// # Errors
    ///
    /// As [`StreamIter::next`].
    pub fn read(&self, lsn: Lsn) -> Result<Option<Vec<u8>>> {
        let mut iter = self.iter_from(lsn);
        Ok(StreamIter::next(&mut iter)?.map(|record| record.payload.to_vec()))
    }

    /// Returns the records from `lsn` on, up to the last that is stable.
    pub fn iter_from(&self, lsn: Lsn) -> StreamIter {
        StreamIter::new(self.clone(), lsn)
    }

    /// Returns the records from `lsn` on, and waits for each next one to be stable.
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
        self.core().bound(self, |table| {
            let (first, next) = (table.front(), table.next());
            match lsn > Lsn::MAX {
                true => Err(Error::OutOfRange { lsn, first, next }),
                false => Ok((lsn > first).then(|| (lsn, next.max(lsn)))),
            }
        })
    }

    /// Removes `lsn` and all records above it. Stable on return. The next record gets this number.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `lsn` is below the first record or above the next one. Or as
    /// [`append`](Self::append).
    pub fn truncate_back(&self, lsn: Lsn) -> Result<()> {
        self.core().bound(self, |table| {
            let (first, next) = (table.front(), table.next());
            match (first..=next).contains(&lsn) {
                true => Ok((lsn < next).then_some((first, lsn))),
                false => Err(Error::OutOfRange { lsn, first, next }),
            }
        })
    }

    /// Removes the stream: all of its records and its numbers. Stable on return. Its next record
    /// has number 1.
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
