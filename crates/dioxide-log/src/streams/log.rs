//! A log of streams, as users see it.

use super::collect::{self, Signal};
use super::entry::{Entry, HEADER_BYTES as RECORD_HEADER_BYTES};
use super::reader;
use super::stream::{SharedStream, Stream};
use super::table::{Replays, Table};
use crate::locked::locked;
use dioxide::Owner;

use super::usage::{Need, Usage};
use crate::batch::Purpose;
use crate::error::{Error, Result};
use crate::format::{Content, LogId};
use crate::index::Location;
use crate::log::Log;
use crate::lsn::Lsn;
use crate::observe;
use crate::options::LogOptions;
use crate::reader::Iter;
use crate::recover::Report;
use crate::stats::Stats;
use crate::storage::Storage;
use crate::threads;
use crate::ticket::Ticket;
use crate::writer::{Guard, Writer};
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The size of the frame of bounds.
const BOUNDS_BYTES: u64 = 56;

/// How many streams without records may be remembered at least.
const UNUSED_MAX: usize = 1024;

/// Many logs in one: [streams](Stream) of records, each with its own numbers, ends and readers.
///
/// All streams share the segments of one [`Log`], so one write and one flush carry the records that
/// wait, of all streams. For raft groups, shards and topics. Clones are the same log.
///
/// ```no_run
/// use dioxide_log::StreamLog;
///
/// let log = StreamLog::open("streams")?;
/// let stream = log.stream(7); // any number
/// let lsn = stream.append(b"a record")?; // stable when it returns
/// stream.truncate_front(lsn)?;
/// log.close()?;
/// # Ok::<(), dioxide_log::Error>(())
/// ```
///
/// # Space
///
/// A segment is free once no stream needs a record of it. When more than half of a log is garbage,
/// a thread copies records of the oldest segment to the end of the log. So a stream that rests does
/// not keep old segments. Two more segments are in reserve, so that a full log can be truncated.
/// In memory, a record needs 16 bytes, and 16 more until it is visible. A record is at most
/// 8.25 KiB smaller than a segment.
///
/// # After a crash
///
/// Each stream is as a [`Log`]: every acknowledged record is there. A batch of several streams is
/// there whole, or not at all.
#[derive(Clone)]
pub struct StreamLog(pub(super) Arc<OpenStreams>);

pub(super) struct OpenStreams {
    pub core: Arc<Core>,
    collector: Mutex<Option<JoinHandle<()>>>,
    /// The process that opened the log.
    owner: Owner,
}

/// What the log shares with its collector.
pub(super) struct Core {
    pub log: Log,
    pub streams: Mutex<BTreeMap<u64, Arc<SharedStream>>>,
    pub usage: Mutex<Usage>,
    pub signal: Signal,
    /// One thread collects at a time.
    pub collecting: Mutex<()>,
    /// The number of streams after those that only a look had made were removed.
    kept: AtomicUsize,
    /// The segment of the last append.
    newest: AtomicU64,
    pub copied_bytes: AtomicU64,
    /// The number of segments that were collected.
    pub collected: AtomicU64,
}

/// Counters of a log of streams. See [`StreamLog::stats`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// Those of the log.
    pub log: Stats,
    /// Streams that are in use.
    pub streams: u64,
    /// Bytes of the frames that streams need.
    pub needed_bytes: u64,
    /// Bytes of the frames that were copied to free segments, since the log was opened.
    pub copied_bytes: u64,
}

/// The front and the next LSN of a stream. None if they stay.
pub(super) type NewBounds = Option<(Lsn, Lsn)>;

impl LogOptions {
    /// Opens a log of streams in a directory, or on a block device.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open). [`Error::Options`] for a log without streams, and for a device with
    /// fewer than 5 segments. Also with [`retain_bytes`](Self::retain_bytes) or
    /// [`retain_age`](Self::retain_age), which would remove records that streams need, and with
    /// [`read_unsynced`](Self::read_unsynced).
    pub fn open_streams(&self, path: impl AsRef<Path>) -> Result<StreamLog> {
        let options = self.clone().of_streams()?;
        StreamLog::new(options.open(path)?)
    }

    /// Opens a log of streams on any medium. See [`open_storage`](Self::open_storage).
    ///
    /// # Errors
    ///
    /// As [`open_streams`](Self::open_streams).
    pub fn open_streams_storage(&self, storage: Arc<dyn Storage>) -> Result<StreamLog> {
        let options = self.clone().of_streams()?;
        StreamLog::new(options.open_storage(storage)?)
    }

    fn of_streams(mut self) -> Result<Self> {
        if self.retain_bytes.is_some() || self.retain_age.is_some() {
            let reason = "a log of streams retains what its streams need; truncate the streams";
            return Err(Error::Options(reason.into()));
        }
        if self.read_unsynced {
            let reason = "readers of streams see stable records only; leave read_unsynced off";
            return Err(Error::Options(reason.into()));
        }
        self.content = Content::Streams;
        Ok(self)
    }
}

impl StreamLog {
    /// Opens the log of streams in a directory or on a block device, and creates it if it is
    /// missing, with the default [options](LogOptions).
    ///
    /// # Errors
    ///
    /// As [`LogOptions::open_streams`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        LogOptions::new().open_streams(path)
    }

    fn new(log: Log) -> Result<Self> {
        let mut usage = Usage::default();
        let tables = replay(&log, &mut usage).inspect_err(|error| {
            // So that the close writes nothing.
            log.writer().refuse(error.clone());
        })?;
        let streams =
            tables.into_iter().map(|(id, table)| (id, Arc::new(SharedStream::new(table))));
        let core = Arc::new(Core {
            streams: Mutex::new(streams.collect()),
            kept: AtomicUsize::new(0),
            usage: Mutex::new(usage),
            signal: Signal::default(),
            collecting: Mutex::default(),
            newest: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            collected: AtomicU64::new(0),
            log,
        });
        let run = {
            let core = core.clone();
            move || collect::run(&core)
        };
        let path = &core.writer().storage.path().to_owned();
        let collector = Mutex::new(Some(threads::spawn("dioxide-log-collect", path, run)?));
        // There may be garbage.
        core.signal.wake();
        Ok(Self(Arc::new(OpenStreams { core, collector, owner: Owner::current() })))
    }

    /// The stream with a number. It begins with its first record.
    pub fn stream(&self, id: u64) -> Stream {
        Stream::new(self.0.clone(), id, self.0.core.shared(id))
    }

    /// The numbers of the streams that are in use, in order. A stream that was
    /// [removed](Stream::remove) is not.
    pub fn ids(&self) -> Vec<u64> {
        let streams = self.0.core.streams().clone();
        let used = streams.iter().filter(|(_, shared)| !shared.lock().table.is_unused());
        used.map(|(id, _)| *id).collect()
    }

    /// Appends records to several streams as one atomic batch: after a crash all of them are there,
    /// or none. Returns their numbers. Records of one stream have the order of the list.
    ///
    /// # Errors
    ///
    /// As [`Log::append_all`].
    pub fn append_all(&self, records: &[(&Stream, &[u8])]) -> Result<Vec<Lsn>> {
        if records.iter().any(|(stream, _)| !stream.is_of(self)) {
            return Err(Error::Options("a stream of another log".into()));
        }
        self.0.core.append_all(records)
    }

    /// Makes everything stable that was acknowledged before the call. For
    /// [`Durability::OnSync`](dioxide::Durability::OnSync).
    ///
    /// # Errors
    ///
    /// A failed flush is final: the log takes no more, see [`Error::Failed`].
    pub fn sync(&self) -> Result<()> {
        self.0.core.log.sync()
    }

    /// Returns the findings of recovery when the log was opened.
    pub fn report(&self) -> &Report {
        self.0.core.log.report()
    }

    /// The random name of the log.
    pub fn id(&self) -> LogId {
        self.0.core.log.id()
    }

    /// The counters since the log was opened.
    pub fn stats(&self) -> StreamStats {
        let core = &self.0.core;
        StreamStats {
            log: core.log.stats(),
            streams: self.ids().len() as u64,
            needed_bytes: core.usage().needed(),
            copied_bytes: core.copied_bytes.load(Relaxed),
        }
    }

    /// Writes what is in flight, and closes the log for all clones and streams.
    ///
    /// # Errors
    ///
    /// As [`Log::close`].
    pub fn close(self) -> Result<()> {
        close(&self.0.core, self.0.collector())
    }
}

impl fmt::Debug for StreamLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLog").field("log", &self.0.core.log).finish_non_exhaustive()
    }
}

impl OpenStreams {
    fn collector(&self) -> Option<JoinHandle<()>> {
        locked(&self.collector).take()
    }
}

/// Ends the collector, and closes the log.
fn close(core: &Core, collector: Option<JoinHandle<()>>) -> Result<()> {
    core.signal.end();
    if let Some(collector) = collector {
        // It has no result. A panic has printed its message.
        let _ = collector.join();
    }
    core.log.clone().close()
}

impl Drop for OpenStreams {
    fn drop(&mut self) {
        // A child of a fork has the memory, but not the threads. One of its own may have got the
        // number of the collector.
        if !self.owner.is_current() {
            mem::forget(self.collector.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            return;
        }
        let (core, collector) = (self.core.clone(), self.collector());
        let path = core.writer().storage.path().to_owned();
        let close = move || {
            if let Err(error) = close(&core, collector) {
                log::error!("closing a log: {error}");
            }
        };
        threads::run_where_it_may_wait(&path, close);
    }
}

impl Core {
    pub fn writer(&self) -> &Arc<Writer> {
        self.log.writer()
    }

    pub fn streams(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<SharedStream>>> {
        locked(&self.streams)
    }

    pub fn usage(&self) -> MutexGuard<'_, Usage> {
        locked(&self.usage)
    }

    pub fn shared(&self, id: u64) -> Arc<SharedStream> {
        let mut streams = self.streams();
        // Unused streams that only a look has made.
        if streams.len() > 2 * self.kept.load(Relaxed) + UNUSED_MAX {
            streams.retain(|_, shared| {
                Arc::strong_count(shared) > 1 || !shared.lock().table.is_unused()
            });
            self.kept.store(streams.len(), Relaxed);
        }
        streams.entry(id).or_default().clone()
    }

    /// Appends records as an atomic batch, and waits until it is acknowledged.
    pub fn append_all(&self, records: &[(&Stream, &[u8])]) -> Result<Vec<Lsn>> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let begun = observe::begun();
        let lsns = self.with_space(Need::Records, || {
            let (lsns, guard, ticket) = self.push(records)?;
            self.writer().finish(guard, &ticket)?;
            Ok(lsns)
        })?;
        self.writer().counters().on_append(records.len() as u64, begun);
        Ok(lsns)
    }

    /// Adds records to the log without waiting.
    pub fn submit(&self, records: &[(&Stream, &[u8])]) -> Result<(Vec<Lsn>, Arc<Ticket>)> {
        self.writer().start_driver()?;
        self.with_space(Need::Records, || {
            let (lsns, guard, ticket) = self.push(records)?;
            self.writer().give_away(guard);
            Ok((lsns, ticket))
        })
    }

    /// Adds records to the log, and to the tables of their streams.
    fn push(&self, records: &[(&Stream, &[u8])]) -> Result<(Vec<Lsn>, Guard<'_>, Arc<Ticket>)> {
        let mut streams: Vec<&Stream> = records.iter().map(|(stream, _)| *stream).collect();
        streams.sort_by_key(|stream| stream.id());
        streams.dedup_by_key(|stream| stream.id());
        let index_of = |id| streams.partition_point(|stream| stream.id() < id);
        // Before they are copied. The first records of a stream are limited as the later ones.
        let lengths = records.iter().map(|(_, record)| RECORD_HEADER_BYTES + record.len());
        self.writer().check_lengths(lengths, streams.len() as u64 * BOUNDS_BYTES)?;
        loop {
            let mut states: Vec<_> = streams.iter().map(|stream| stream.lock()).collect();
            // The frames, each with the index of its stream. Bounds begin an unused stream.
            let mut frames = Vec::with_capacity(records.len() + 1);
            for (index, (state, stream)) in states.iter().zip(&streams).enumerate() {
                if state.table.is_unused() {
                    let (stream, front, next) = (stream.id(), Lsn::FIRST, Lsn::FIRST);
                    frames.push((index, Entry::Bounds { stream, front, next }.encode()));
                }
            }
            let begun = frames.len();
            let mut nexts: Vec<_> = states.iter().map(|state| state.table.next()).collect();
            let mut lsns = Vec::with_capacity(records.len());
            for (stream, record) in records {
                let (index, stream) = (index_of(stream.id()), stream.id());
                let lsn = nexts[index];
                nexts[index] = lsn.next();
                lsns.push(lsn);
                frames.push((index, Entry::Record { stream, lsn, record }.encode()));
            }

            let payloads: Vec<&[u8]> = frames.iter().map(|(_, payload)| &payload[..]).collect();
            let pushed = self.writer().try_push(&payloads, Purpose::Records)?;
            let Some((guard, pushed)) = pushed else {
                drop(states);
                self.writer().wait_for_room(&payloads, Purpose::Records)?;
                continue;
            };
            let mut usage = self.usage();
            for (number, ((index, _), location)) in
                frames.iter().zip(pushed.locations(&payloads)).enumerate()
            {
                usage.write(location);
                usage.need(location);
                let table = &mut states[*index].table;
                match number < begun {
                    true => table.begin(location),
                    false => table.push(location),
                }
            }
            drop(usage);
            let behind = Lsn(pushed.first.0 + frames.len() as u64);
            let visible = self.writer().visible();
            states.iter_mut().for_each(|state| state.on_pushed(behind, visible));
            if self.newest.swap(pushed.segment, Relaxed) != pushed.segment {
                // A segment is complete.
                self.signal.wake();
            }
            return Ok((lsns, guard, pushed.ticket));
        }
    }

    /// Changes the bounds of a stream. Stable on return. `change` returns None if they stay.
    pub fn bound(
        &self,
        stream: &Stream,
        change: impl Fn(&Table) -> Result<NewBounds>,
    ) -> Result<()> {
        self.change(stream, change)?;
        // Also if they stay: another thread may have changed them, and still wait.
        self.writer().stabilize(self.writer().lock())
    }

    /// As [`bound`](Self::bound), without waiting.
    pub fn bound_soon(
        &self,
        stream: &Stream,
        change: impl Fn(&Table) -> Result<NewBounds>,
    ) -> Result<Arc<Ticket>> {
        self.writer().start_driver()?;
        let ticket = self.change(stream, change)?;
        let state = self.writer().lock();
        // If they stay, another task may have changed them, and still wait.
        let ticket = ticket.unwrap_or_else(|| state.latest());
        self.writer().give_away(state);
        Ok(ticket)
    }

    fn change(
        &self,
        stream: &Stream,
        change: impl Fn(&Table) -> Result<NewBounds>,
    ) -> Result<Option<Arc<Ticket>>> {
        let push = || self.push_bounds(stream.id(), stream.shared(), Purpose::Bounds, &change);
        let ticket = self.with_space(Need::Bounds, push)?;
        self.signal.wake();
        Ok(ticket)
    }

    /// Adds the bounds of a stream to the log, and applies them. None if they stay.
    pub fn push_bounds(
        &self,
        id: u64,
        shared: &SharedStream,
        purpose: Purpose,
        change: impl Fn(&Table) -> Result<NewBounds>,
    ) -> Result<Option<Arc<Ticket>>> {
        loop {
            let mut state = shared.lock();
            let Some((front, next)) = change(&state.table)? else {
                return self.writer().lock().check().map(|()| None);
            };
            let payload = Entry::Bounds { stream: id, front, next }.encode();
            let payloads = [&payload[..]];
            let Some((guard, pushed)) = self.writer().try_push(&payloads, purpose)? else {
                drop(state);
                self.writer().wait_for_room(&payloads, purpose)?;
                continue;
            };
            let anchor = pushed.locations(&payloads).next().expect("one");
            // Before another segment begins: the collector frees those that are not needed.
            let mut usage = self.usage();
            usage.write(anchor);
            usage.need(anchor);
            drop(usage);
            // The rest takes longer, the more records the stream has.
            drop(guard);
            let freed = state.bound(front, next, anchor, self.writer().visible());
            let mut usage = self.usage();
            if state.table.anchor() != Some(anchor) {
                usage.free(anchor.segment, anchor.bytes.into());
            }
            freed.into_iter().for_each(|(segment, bytes)| usage.free(segment, bytes));
            return Ok(Some(pushed.ticket));
        }
    }

    /// Performs a change of a log that may be full. While it is, segments are collected.
    fn with_space<T>(&self, need: Need, change: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let before = self.collected.load(Acquire);
            let result = change();
            if let Err(Error::Full(_) | Error::NoSegment(_)) = &result {
                collect::make_space(self, need);
                // The thread of the collector may have made space as well.
                if self.collected.load(Acquire) != before {
                    continue;
                }
            }
            return result;
        }
    }
}

/// Reads the streams of a log.
fn replay(log: &Log, usage: &mut Usage) -> Result<BTreeMap<u64, Table>> {
    let mut replays = Replays::default();
    let mut iter = Iter::new(log.writer().clone(), log.first_lsn());
    while let Some((location, record)) = iter.next_located()? {
        usage.write(location);
        let applied = replays.apply(record.payload, location);
        applied.map_err(|reason| corrupt(log, location, reason))?;
    }
    let tables = replays.finish();
    let tables = tables.map_err(|why| Error::corrupt(log.writer().storage.path(), 0, why))?;
    tables.values().flat_map(Table::locations).for_each(|location| usage.need(location));
    Ok(tables)
}

fn corrupt(log: &Log, location: Location, reason: String) -> Error {
    let member = log.writer().member(location.segment);
    reader::corrupt(member.as_ref(), log.writer().storage.path(), location, reason)
}
