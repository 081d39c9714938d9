//! A log, as users see it.

use crate::batch::Purpose;
use crate::error::{Error, Result};
use crate::format::header::Header;
use crate::format::{BLOCK_BYTES, LogId};
use crate::index::Index;
use crate::locked::locked;
use crate::lsn::Lsn;
use crate::observe::{self, Event};
use crate::options::LogOptions;
use crate::pool::PoolThread;
use crate::reader::{Follow, Iter};
use crate::recover::{Member, Recovered, Report, recover};
use crate::stats::Stats;
use crate::storage::Storage;
use crate::storage::device::{Device, is_device};
use crate::storage::dir::Dir;
use crate::threads;
use crate::ticket::Ticket;
use crate::writer::{Writer, now};
use dioxide::{Buffer, Owner};
use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// A write-ahead log. Threads and tasks share it by reference. Clones are the same log.
///
/// A record has a [number](Lsn): the first record of a log has 1, and each next record the next
/// number. All records below an acknowledged one are acknowledged, or will be with the same outcome
/// as their batch.
///
/// [`close`](Self::close) reports whether closing succeeded. Dropping the last clone closes as
/// well, and logs an error.
///
/// # After a crash
///
/// [`open`](Self::open) finds every acknowledged record, and possibly whole records behind them
/// that were not yet acknowledged. It never finds a torn record, an old one of a reused segment, or
/// a part of a batch. Damage of acknowledged records is an error, never a shorter log, within three
/// limits:
///
/// - Damage of the last write of a log that was not closed looks like a torn write. With
///   [`Durability::OnSync`](dioxide::Durability::OnSync), so does damage of what the last
///   [`sync`](Self::sync) has made stable, until an append follows.
/// - Records that hold many headers of frames of their segment may hide damage of their own length.
///   [`Report::unsearched`](crate::Report::unsearched) then has their bytes.
/// - A log without its newest segment, or without the first 16 KiB of it, looks like a log that
///   ends before it. Copy a directory as a whole, while no writer has it.
#[derive(Clone)]
pub struct Log(Arc<OpenLog>);

struct OpenLog {
    writer: Arc<Writer>,
    state: Mutex<OpenState>,
    /// The process that opened the log. A child has its memory, but not its threads.
    owner: Owner,
}

enum OpenState {
    /// With the thread of its pool.
    Open(Arc<PoolThread>),
    Closed(Result<()>),
}

impl LogOptions {
    /// Opens the log in a directory, or on a block device.
    ///
    /// A log on a device begins at the first block of the device. For a new log the first MiB of
    /// the device must be zeros, so that no file system is overwritten.
    ///
    /// # Errors
    ///
    /// - [`Error::Locked`]: another writer has the log open.
    /// - [`Error::Corrupt`], [`Error::Version`]: the log is damaged, or of a later version. Or a
    ///   device has other content.
    /// - [`Error::Missing`]: there is no log, and [`create`](Self::create) is not set.
    /// - [`Error::Options`]: an invalid segment size, a device that is too small, a set, or a log
    ///   of streams.
    ///
    /// Or the error of a system call.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Log> {
        let path = path.as_ref();
        // Before a directory is made.
        self.check()?;
        let storage: Arc<dyn Storage> = match is_device(path) {
            true => Arc::new(Device::open(path, self.segment_bytes)?),
            false => Arc::new(Dir::open(path, self.create)?),
        };
        self.open_storage(storage)
    }

    /// Opens the log on any medium, such as a striped volume ([`Device`]) or a simulated disk.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_storage(&self, storage: Arc<dyn Storage>) -> Result<Log> {
        self.check()?;
        let pool = PoolThread::start(storage.path(), self.retain_age)?;
        self.open_with(storage, Arc::new(pool))
    }

    /// Opens a log that shares the thread of its pool.
    pub(crate) fn open_with(
        &self,
        storage: Arc<dyn Storage>,
        pool: Arc<PoolThread>,
    ) -> Result<Log> {
        let begun = Instant::now();
        let recovered = match recover(storage.as_ref())? {
            Some(mut recovered) => {
                recovered.check_content(self.content)?;
                self.check_room(storage.as_ref())?;
                recovered.clear()?;
                let (log, report, took) = (storage.path(), &recovered.report, begun.elapsed());
                observe::report(&Event::Recovery { log, report, took });
                recovered
            }
            None if self.create => {
                // A log decides the size of the segments from its creation on.
                self.check_room(storage.as_ref())?;
                create(storage.as_ref(), self)?
            }
            None => return Err(Error::Missing { path: storage.path().into() }),
        };
        let writer = Arc::new(Writer::new(storage, self.clone(), recovered, pool.bell())?);
        pool.join(&writer);
        let state = Mutex::new(OpenState::Open(pool));
        Ok(Log(Arc::new(OpenLog { writer, state, owner: Owner::current() })))
    }
}

/// Makes the first segment of a log. Its header is stable before its first frame, so that damage of
/// the header is not taken for a log that was never begun.
fn create(storage: &dyn Storage, options: &LogOptions) -> Result<Recovered> {
    let mut free = storage.segments()?;
    let segment_bytes = match free.first() {
        // An earlier creation was interrupted.
        Some(segment) => segment.bytes(),
        None => storage.segment_bytes(options.segment_bytes),
    };
    let mut id = [0; 16];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::system("draw a random name for", storage.path(), error))?;
    #[rustfmt::skip]
    let header = Header { content: options.content, log: LogId(id), number: 1, segment_bytes,
        first: Lsn::FIRST, front: Lsn::FIRST, begun: now() };
    let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
    header.encode(&mut block);
    let segment = match free.is_empty() {
        false => {
            let segment = free.remove(0);
            segment.write(&block, 0, true)?;
            segment
        }
        true => {
            let segment = storage.begin(segment_bytes, &block)?;
            // A fixed storage has made others too, and lists all in any order.
            free = storage.segments()?;
            free.retain(|other| other.path() != segment.path());
            segment
        }
    };
    let index = Index::new(Lsn::FIRST, Lsn::FIRST);
    Ok(Recovered::created(index, Member { header, segment }, free))
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, id) = (self.writer().storage.path(), self.id());
        f.debug_struct("Log").field("path", &path).field("id", &id).finish_non_exhaustive()
    }
}

impl Log {
    /// Opens the log in a directory or on a block device, and creates it if it is missing, with the
    /// default [options](LogOptions).
    ///
    /// # Errors
    ///
    /// As [`LogOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        LogOptions::new().open(path)
    }

    pub(crate) fn writer(&self) -> &Arc<Writer> {
        &self.0.writer
    }

    /// Appends a record, and returns its number once it is acknowledged: with
    /// [`Durability::EveryWrite`](dioxide::Durability::EveryWrite) it is stable then, as all
    /// records before it.
    ///
    /// # Errors
    ///
    /// - [`Error::TooLong`]: the record does not fit into a segment. Nothing was appended.
    /// - [`Error::Full`]: there is no space. Nothing was appended, and the same call succeeds after
    ///   [`truncate_front`](Self::truncate_front).
    /// - [`Error::NoSegment`]: a segment is needed and cannot be made. Nothing was appended.
    /// - [`Error::Failed`]: an earlier write failed.
    ///
    /// Or the error of the write. The record may be there then after a new open.
    pub fn append(&self, record: &[u8]) -> Result<Lsn> {
        self.append_all(&[record])
    }

    /// Appends records as one atomic batch: after a crash all of them are there, or none. Returns
    /// the number of the first. The others have the next numbers.
    ///
    /// An empty batch appends nothing, and returns the number of the next record.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append). The whole batch must fit into a segment.
    pub fn append_all(&self, records: &[&[u8]]) -> Result<Lsn> {
        if records.is_empty() {
            return Ok(self.next_lsn());
        }
        let begun = observe::begun();
        let (state, pushed) = self.writer().push(records, Purpose::Records)?;
        self.writer().finish(state, &pushed.ticket)?;
        self.writer().counters().on_append(records.len() as u64, begun);
        Ok(pushed.first)
    }

    /// Adds a record to the log without waiting, and returns its number. It is written soon;
    /// [`wait`](Self::wait) waits until it is acknowledged. So one thread keeps thousands of
    /// records in flight.
    ///
    /// Waits only while the batch that is being composed is full.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append), without those of the write. [`wait`](Self::wait) returns these.
    pub fn submit(&self, record: &[u8]) -> Result<Lsn> {
        Ok(self.writer().submit(&[record])?.first)
    }

    /// Waits until a record that was [submitted](Self::submit) is acknowledged, and all before it.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`]: there is no such record.
    /// - [`Error::Failed`]: a write failed, so the record is not acknowledged.
    pub fn wait(&self, lsn: Lsn) -> Result<()> {
        self.writer().acknowledge(lsn)
    }

    /// As [`append`](Self::append), for a task. The record is in the log when this returns; the
    /// future waits until it is acknowledged. A thread of the log writes it, and wakes the task. A
    /// waker must not call what waits for the log, as `append` and `close` do. It may drop the log.
    pub fn append_async(&self, record: &[u8]) -> Append {
        self.append_all_async(&[record])
    }

    /// As [`append_all`](Self::append_all), for a task: the records are one atomic batch. Otherwise
    /// as [`append_async`](Self::append_async).
    pub fn append_all_async(&self, records: &[&[u8]]) -> Append {
        let begun = observe::begun();
        let pushed = match records.is_empty() {
            true => Ok((self.next_lsn(), Ticket::done())),
            false => self.writer().submit(records).map(|pushed| (pushed.first, pushed.ticket)),
        };
        Append::new(pushed, begun, records.len(), self.writer())
    }

    /// Makes everything stable that was acknowledged before the call. For
    /// [`Durability::OnSync`](dioxide::Durability::OnSync).
    ///
    /// # Errors
    ///
    /// A failed flush is final: the log takes no more, see [`Error::Failed`].
    pub fn sync(&self) -> Result<()> {
        self.writer().sync()
    }

    /// Returns a copy of a record. None if it is not there yet.
    ///
    /// # Errors
    ///
    /// As [`Iter::next`].
    pub fn read(&self, lsn: Lsn) -> Result<Option<Vec<u8>>> {
        let mut iter = Iter::new(self.writer().clone(), lsn);
        Ok(Iter::next(&mut iter)?.map(|record| record.payload.to_vec()))
    }

    /// Returns the records from `lsn` on, up to the last that is stable. To begin with the first,
    /// pass [`first_lsn`](Self::first_lsn).
    pub fn iter_from(&self, lsn: Lsn) -> Iter {
        Iter::new(self.writer().clone(), lsn)
    }

    /// Returns the records from `lsn` on, and waits for each next one to be stable.
    pub fn follow(&self, lsn: Lsn) -> Follow {
        Follow::new(self.iter_from(lsn))
    }

    /// Removes all records below `lsn`. Stable on return. Segments that have no other records are
    /// free for reuse.
    ///
    /// `lsn` may be above the next record: the log is then empty, and the next record has that
    /// number.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append). While the log is full, it works as long as it frees a segment,
    /// and some dozen times without. [`Error::OutOfRange`] above [`Lsn::MAX`].
    pub fn truncate_front(&self, lsn: Lsn) -> Result<()> {
        self.writer().truncate_front(lsn)
    }

    /// Removes `lsn` and all records above it. Stable on return. The next record gets this number.
    ///
    /// Waits for the appends in flight. Readers that are behind `lsn` see the new records there.
    ///
    /// Segments that only removed records have are free for reuse once the front reaches `lsn`: at
    /// once if no record is left.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `lsn` is below the first record or above the next one. Or as
    /// [`append`](Self::append).
    pub fn truncate_back(&self, lsn: Lsn) -> Result<()> {
        self.writer().truncate_back(lsn)
    }

    /// The lowest number that the log has. It is that of the next record if the log is empty.
    pub fn first_lsn(&self) -> Lsn {
        self.writer().range().0
    }

    /// The number of the last record, acknowledged or not. None if the log is empty.
    pub fn last_lsn(&self) -> Option<Lsn> {
        let (first, next) = self.writer().range();
        (next > first).then(|| Lsn(next.0 - 1))
    }

    /// The number of the next record.
    pub fn next_lsn(&self) -> Lsn {
        self.writer().range().1
    }

    /// The number behind the last stable record: all below are stable.
    pub fn stable_lsn(&self) -> Lsn {
        self.writer().stable()
    }

    /// Returns the findings of recovery when the log was opened.
    pub fn report(&self) -> &Report {
        &self.writer().report
    }

    /// The random name of the log.
    pub fn id(&self) -> LogId {
        self.writer().id
    }

    /// The counters since the log was opened.
    pub fn stats(&self) -> Stats {
        self.writer().stats()
    }

    /// Whether a close has ended.
    pub(crate) fn has_closed(&self) -> bool {
        let state = self.0.state.try_lock();
        state.is_ok_and(|state| matches!(*state, OpenState::Closed(_)))
    }

    /// Whether the log was closed. Waits for a close that is running.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Writes what is in flight, and closes the log for all clones. A later call on another clone
    /// waits for the first, and returns the same.
    ///
    /// # Errors
    ///
    /// The error of a write. The log is closed nevertheless, and the next open recovers it.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }
}

impl OpenLog {
    /// Whether the log was closed. Waits for a close that is running.
    fn is_closed(&self) -> bool {
        matches!(*locked(&self.state), OpenState::Closed(_))
    }

    fn close(&self) -> Result<()> {
        close(&self.writer, &mut locked(&self.state))
    }
}

fn close(writer: &Arc<Writer>, state: &mut OpenState) -> Result<()> {
    if let OpenState::Closed(result) = state {
        return result.clone();
    }
    let result = writer.close();
    if let OpenState::Open(pool) = std::mem::replace(state, OpenState::Closed(Ok(()))) {
        pool.leave(writer);
    }
    // The pool may have made or removed a segment until now.
    let result = result.and(writer.release());
    *state = OpenState::Closed(result.clone());
    result
}

impl Drop for OpenLog {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // The log is its parent's.
            return;
        }
        let closed = Mutex::new(OpenState::Closed(Ok(())));
        let state = std::mem::replace(&mut self.state, closed);
        let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let writer = self.writer.clone();
        let close = move || {
            if let Err(error) = close(&writer, &mut state) {
                log::error!("closing a log: {error}");
            }
        };
        threads::run_where_it_may_wait(self.writer.storage.path(), close);
    }
}

/// A record that is being appended. The future of [`Log::append_async`].
///
/// Dropping it does not take the record back.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Append {
    pushed: Option<Result<(Lsn, Arc<Ticket>)>>,
    waker: Option<usize>,
    /// When it began, while events are observed, and the number of records.
    observed: Option<(Instant, u64, Arc<Writer>)>,
}

impl Append {
    /// An append of this many records that began then, if events are observed.
    pub(crate) fn new(
        pushed: Result<(Lsn, Arc<Ticket>)>,
        begun: Option<Instant>,
        records: usize,
        writer: &Arc<Writer>,
    ) -> Self {
        let observed = begun.map(|begun| (begun, records as u64, writer.clone()));
        Self { pushed: Some(pushed), waker: None, observed }
    }

    /// The number of the record, or of the first of a batch, before it is acknowledged. None if it
    /// was not added to the log: the future then returns the reason. None after its end.
    pub fn lsn(&self) -> Option<Lsn> {
        self.pushed.as_ref()?.as_ref().ok().map(|(lsn, _)| *lsn)
    }
}

impl Future for Append {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(Ok((_, ticket))) = &this.pushed {
            ready!(ticket.poll(context, &mut this.waker));
        }
        let (lsn, ticket) = this.pushed.take().expect("it is polled after its end")?;
        let outcome = ticket.outcome().expect("it is complete").clone();
        if let (Ok(()), Some((begun, records, writer))) = (&outcome, &this.observed) {
            writer.counters().on_append(*records, Some(*begun));
        }
        Poll::Ready(outcome.map(|()| lsn))
    }
}

impl Drop for Append {
    fn drop(&mut self) {
        if let (Some(Ok((_, ticket))), Some(place)) = (&self.pushed, self.waker) {
            ticket.forget(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Segment;
    use crate::storage::memory::Memory;

    /// A disk with a fixed number of segments, which lists the last one first.
    #[derive(Debug)]
    struct Fixed(Memory);

    impl Storage for Fixed {
        fn path(&self) -> &Path {
            self.0.path()
        }

        fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
            Ok(self.0.segments()?.into_iter().rev().collect())
        }

        fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>> {
            let first = self.0.create(bytes)?;
            (1..4).try_for_each(|_| self.0.create(bytes).map(drop))?;
            Ok(first)
        }

        fn fixed_count(&self) -> Option<usize> {
            Some(4)
        }

        fn remove(&self, _segment: &dyn Segment) -> Result<()> {
            unreachable!("the number is fixed")
        }
    }

    /// The header was in another segment than the records, so they were not found.
    #[test]
    fn a_new_log_took_the_segment_that_was_listed_first() {
        let disk = Memory::default();
        let options = LogOptions::new().segment_bytes(64 << 10);
        let log = options.open_storage(Arc::new(Fixed(disk.clone()))).expect("a new log");
        log.append(b"a record").expect("it is appended");
        let after = Fixed(disk.after_kill());
        let again = options.open_storage(Arc::new(after)).expect("it opens");
        assert_eq!(again.read(Lsn::FIRST).expect("it reads"), Some(b"a record".to_vec()));
    }

    /// The log was there, so that smaller segments could not be chosen any more.
    #[test]
    fn a_log_of_streams_was_created_before_it_was_refused() {
        let disk = Memory::default();
        let options = LogOptions::new().segment_bytes(64 << 10);
        let refused = options.open_streams_storage(Arc::new(Fixed(disk.clone())));
        assert!(matches!(refused, Err(Error::Options(_))), "4 segments are not enough");
        assert_eq!(disk.segments().expect("it lists").len(), 0);
    }
}
