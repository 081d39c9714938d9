//! A log of streams, as users see it.

use super::collect::{self, Signal};
use super::entry::Entry;
use super::stream::{Shared, State, Stream};
use super::table::{Replay, Table};

use super::usage::Usage;
use crate::batch::Purpose;
use crate::error::{Error, Result};
use crate::format::Content;
use crate::index::Location;
use crate::log::Log;
use crate::lsn::Lsn;
use crate::options::LogOptions;
use crate::reader::Iter;
use crate::stats::Stats;
use crate::storage::Storage;
use crate::threads;
use crate::ticket::Ticket;
use crate::writer::{Guard, Writer};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

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
/// A segment is free once no stream needs a record of it. A thread copies records of the oldest
/// segment to the end of the log, so that a stream that rests does not keep old segments. A log has
/// at most about twice the bytes that its streams need. In memory, a record needs 16 bytes.
///
/// # After a crash
///
/// Each stream is as a [`Log`]: every acknowledged record is there. A batch of several streams is
/// there whole, or not at all.
#[derive(Clone)]
pub struct StreamLog(pub(super) Arc<Open>);

pub(super) struct Open {
    pub core: Arc<Core>,
    collector: Mutex<Option<JoinHandle<()>>>,
    /// The process that opened the log.
    process: u32,
}

/// What the log shares with its collector.
pub(super) struct Core {
    pub log: Log,
    pub streams: Mutex<BTreeMap<u64, Arc<Shared>>>,
    pub usage: Mutex<Usage>,
    pub signal: Signal,
    /// One thread collects at a time.
    pub collecting: Mutex<()>,
    /// The segment of the last append.
    newest: AtomicU64,
    pub copied_bytes: AtomicU64,
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

impl LogOptions {
    /// Opens a log of streams in a directory, or on a block device.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open). [`Error::Options`] with [`retain_bytes`](Self::retain_bytes) or
    /// [`retain_age`](Self::retain_age), which would remove records that streams need, and for a
    /// log without streams.
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
        let tables = replay(&log)?;
        let mut usage = Usage::default();
        tables.values().flat_map(Table::places).for_each(|place| usage.add(place));
        let streams = tables.into_iter().map(|(id, table)| (id, Arc::new(Shared::new(table))));
        let core = Arc::new(Core {
            streams: Mutex::new(streams.collect()),
            usage: Mutex::new(usage),
            signal: Signal::default(),
            collecting: Mutex::default(),
            newest: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            log,
        });
        let run = {
            let core = core.clone();
            move || collect::run(&core)
        };
        let path = &core.writer().storage.path().to_owned();
        let collector = Mutex::new(Some(threads::spawn("dioxide-log-collect", path, run)?));
        Ok(Self(Arc::new(Open { core, collector, process: std::process::id() })))
    }

    /// The stream with a number. It begins with its first record.
    pub fn stream(&self, id: u64) -> Stream {
        Stream::new(self.0.clone(), id, self.0.core.shared(id))
    }

    /// The numbers of the streams that are in use, in order. A stream that was
    /// [removed](Stream::remove) is not.
    pub fn ids(&self) -> Vec<u64> {
        let streams = self.0.core.streams();
        let used = streams.iter().filter(|(_, state)| !state.lock().table.is_unused());
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

    /// The counters since the log was opened.
    pub fn stats(&self) -> StreamStats {
        let core = &self.0.core;
        StreamStats {
            log: core.log.stats(),
            streams: self.ids().len() as u64,
            needed_bytes: core.usage().total(),
            copied_bytes: core.copied_bytes.load(Relaxed),
        }
    }

    /// Writes what is in flight, and closes the log for all clones and streams.
    ///
    /// # Errors
    ///
    /// As [`Log::close`].
    pub fn close(self) -> Result<()> {
        self.0.end_collector();
        self.0.core.log.clone().close()
    }
}

impl fmt::Debug for StreamLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLog").field("log", &self.0.core.log).finish_non_exhaustive()
    }
}

impl Open {
    fn end_collector(&self) {
        self.core.signal.end();
        let collector = self.collector.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread of a log woke a task, and that dropped the log. It cannot wait for itself.
        if let Some(collector) = collector.filter(|_| !threads::serves()) {
            // It has no result. A panic has printed its message.
            let _ = collector.join();
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // A child of a fork has the memory, but not the thread.
        if std::process::id() == self.process {
            self.end_collector();
        }
    }
}

impl Core {
    pub fn writer(&self) -> &Arc<Writer> {
        self.log.writer()
    }

    pub fn streams(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Shared>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn shared(&self, id: u64) -> Arc<Shared> {
        self.streams().entry(id).or_default().clone()
    }

    /// Appends records as an atomic batch, and waits until it is acknowledged.
    pub fn append_all(&self, records: &[(&Stream, &[u8])]) -> Result<Vec<Lsn>> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        self.with_space(|| {
            let (lsns, guard, ticket) = self.push(records)?;
            self.writer().finish(guard, &ticket)?;
            Ok(lsns)
        })
    }

    /// Adds a record to the log without waiting.
    pub fn submit(&self, stream: &Stream, record: &[u8]) -> Result<(Lsn, Arc<Ticket>)> {
        self.writer().start_driver()?;
        self.with_space(|| {
            let (lsns, guard, ticket) = self.push(&[(stream, record)])?;
            self.writer().give_away(guard);
            Ok((lsns[0], ticket))
        })
    }

    /// Adds records to the log, and to the tables of their streams.
    fn push(&self, records: &[(&Stream, &[u8])]) -> Result<(Vec<Lsn>, Guard<'_>, Arc<Ticket>)> {
        let mut streams: Vec<&Stream> = records.iter().map(|(stream, _)| *stream).collect();
        streams.sort_by_key(|stream| stream.id());
        streams.dedup_by_key(|stream| stream.id());
        let mut states: Vec<_> = streams.iter().map(|stream| stream.lock()).collect();
        let index_of = |id| streams.partition_point(|stream| stream.id() < id);

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
        let (guard, pushed) = self.writer().push(&payloads, Purpose::Records)?;
        let locations: Vec<_> = pushed.locations(&payloads).collect();
        for (number, ((index, _), location)) in frames.iter().zip(&locations).enumerate() {
            let table = &mut states[*index].table;
            match number < begun {
                true => table.begin(*location),
                false => table.push(*location),
            }
        }
        let behind = Lsn(pushed.first.0 + frames.len() as u64);
        states.iter_mut().for_each(|state| state.on_pushed(behind));
        let mut usage = self.usage();
        locations.iter().for_each(|location| usage.add(*location));
        drop(usage);
        if self.newest.swap(pushed.segment, Relaxed) != pushed.segment {
            // A segment is complete.
            self.signal.wake();
        }
        Ok((lsns, guard, pushed.ticket))
    }

    /// Changes the bounds of a stream. Stable on return. `change` returns None if they stay.
    pub fn bound(
        &self,
        stream: &Stream,
        change: impl Fn(&Table) -> Result<Option<(Lsn, Lsn)>>,
    ) -> Result<()> {
        self.with_space(|| {
            let mut state = stream.lock();
            let guard = match change(&state.table)? {
                Some((front, next)) => self.push_bounds(stream.id(), &mut state, front, next)?,
                // Another thread may have changed them, and still wait.
                None => self.writer().lock(),
            };
            drop(state);
            self.writer().stabilize(guard)
        })?;
        self.signal.wake();
        Ok(())
    }

    /// Adds the bounds of a stream to the log, and applies them.
    pub fn push_bounds(
        &self,
        id: u64,
        state: &mut State,
        front: Lsn,
        next: Lsn,
    ) -> Result<Guard<'_>> {
        let payload = Entry::Bounds { stream: id, front, next }.encode();
        let (guard, pushed) = self.writer().push(&[&payload], Purpose::Upkeep)?;
        let anchor = pushed.locations(&[&payload]).next().expect("one");
        let mut usage = self.usage();
        state.bound(front, next, anchor, |freed| usage.remove(freed));
        if let Some(anchor) = state.table.anchor() {
            usage.add(anchor);
        }
        Ok(guard)
    }

    /// Performs a change of a log that may be full. If it is, old segments are collected once.
    fn with_space<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        match change() {
            Err(Error::Full(_) | Error::DeviceFull(_)) if collect::make_space(self) => change(),
            result => result,
        }
    }
}

/// Reads the streams of a log.
fn replay(log: &Log) -> Result<BTreeMap<u64, Table>> {
    let mut replays = BTreeMap::<u64, Replay>::new();
    let mut iter = Iter::new(log.writer().clone(), log.first_lsn());
    while let Some((location, record)) = iter.next_located()? {
        let applied = match Entry::parse(record.payload) {
            Some(Entry::Record { stream, lsn, .. }) => {
                replays.entry(stream).or_default().record(lsn, location)
            }
            Some(Entry::Copy { stream, lsn, .. }) => {
                replays.entry(stream).or_default().copy(lsn, location)
            }
            Some(Entry::Bounds { stream, front, next }) => {
                replays.entry(stream).or_default().bound(front, next, location);
                Ok(())
            }
            None => Err("no record of a stream".into()),
        };
        applied.map_err(|reason| corrupt(log, location, reason))?;
    }
    let finish = |(id, replay): (u64, Replay)| match replay.finish() {
        Ok(table) => Ok((id, table)),
        Err(reason) => {
            let path = log.writer().storage.path();
            Err(Error::corrupt(path, 0, format!("stream {id}: {reason}")))
        }
    };
    replays.into_iter().map(finish).collect()
}

fn corrupt(log: &Log, location: Location, reason: String) -> Error {
    let member = log.writer().member(location.segment);
    let path = member.as_ref().map_or(log.writer().storage.path(), |found| found.segment.path());
    Error::corrupt(path, location.offset.into(), reason)
}
