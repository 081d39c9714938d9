//! The writer of a log. Shared by all threads of the process that append.
//!
//! # The life of an append
//!
//! 1. The thread computes the checksum of its record.
//! 2. Under the lock it adds a frame to the batch that is being composed. So LSNs, frames and bytes
//!    on disk have one order.
//! 3. If no batch is being written, the thread leads. Otherwise it sleeps: the first one of a batch
//!    as its likely leader, the others until the outcome.
//! 4. The leader waits a moment for the threads that it expects, takes the batch, and writes it by
//!    one durable write.
//! 5. It gives the lead to the likely leader of the next batch, and then wakes those of its own.
//!
//! One write is in flight, so everything before a frame of a later write is stable. Recovery relies
//! on it to tell a torn write from damage.
//!
//! A batch that ends a segment reserves the next segment before. The header of that segment is in
//! its first batch. The pool (`pool`) makes segments ahead and frees those that are not needed.

use crate::batch::{Batch, EMPTY_FRAME_BYTES, Fit, Purpose};
use crate::error::{Error, Result};
use crate::format::frame::{Flags, Kind, checksum_of, frame_bytes};
use crate::format::header::Header;
use crate::format::{BLOCK_BYTES, LogId, block_of};
use crate::index::{Index, Location, Place};
use crate::locked::locked;
use crate::lsn::Lsn;
use crate::options::LogOptions;
use crate::pool::Bell;
use crate::recover::{Member, Recovered, Report, member_of};
use crate::stats::{Counters, Stats};
use crate::storage::{Mark, Segment, Storage};
use crate::threads;
use crate::ticket::{Ticket, Turn};
use dioxide::{Buffer, Durability};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BUFFER_BYTES: usize = 256 << 10;

/// How long a leader waits for the appends that it expects.
const GATHER_MAX: Duration = Duration::from_micros(200);
const GATHER_YIELDS_MAX: usize = 64;

/// How far the log has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The LSN behind the last record.
    pub next: Lsn,
    pub front: Lsn,
    /// The number of the last segment.
    number: u64,
    /// The offset behind the last frame of that segment.
    end: u64,
    /// The number of frames since the log was opened.
    frames: u64,
}

/// The log of a process.
#[derive(Debug)]
pub struct Writer {
    pub storage: Arc<dyn Storage>,
    pub options: LogOptions,
    pub id: LogId,
    pub segment_bytes: u64,
    pub report: Report,
    state: Mutex<WriterState>,
    /// A batch was taken, a segment became free, or an exclusive change ended.
    room: Condvar,
    /// More records are visible, or the log was closed.
    advanced: Condvar,
    /// The driver has the lead, or ends.
    driver: Condvar,
    /// Where it rings when the thread of the pool has work.
    pub bell: Bell,
    /// The appends in the batch that is being composed.
    composed: AtomicU64,
    /// The appends that the next leader expects.
    expected: AtomicU64,
    /// The LSN behind the last record that readers may see.
    visible: AtomicU64,
    /// The number of truncations of the back, which make older reads invalid.
    truncations: AtomicU64,
    /// The number of the next follower.
    followers: AtomicU64,
    /// The mark that other processes see. None once another writer may open the log.
    mark: Mutex<Option<Mark>>,
    counters: Counters,
}

/// Everything that the lock guards.
#[derive(Debug)]
pub struct WriterState {
    index: Index,
    /// The segments in use. The last is that of `batch`.
    chain: VecDeque<Member>,
    /// For each of them, the lowest LSN that was next since it began. A truncation of the back
    /// counts once it is stable.
    lowest: VecDeque<Lsn>,
    /// The batch that is being composed, and its outcome.
    batch: Batch,
    ticket: Arc<Ticket>,
    /// A thread waits as the likely leader of that batch.
    has_leader: bool,
    /// A thread leads: it will take the batch, or writes one.
    leading: bool,
    /// The outcome of the batch that is being written.
    in_flight: Option<Arc<Ticket>>,
    /// A thread changes the log alone.
    exclusive: bool,
    /// Records from here on are being removed.
    back: Lsn,
    /// The segment that follows when this one is complete.
    following: Option<Arc<dyn Segment>>,
    frames: u64,
    /// A frame says that the last segment is stable up to this offset.
    witnessed: u64,
    written: Progress,
    stable: Progress,
    buffers: Vec<Buffer>,
    /// The tasks that wait for a record, by the numbers of their followers.
    followers: BTreeMap<u64, Waker>,
    failure: Option<Arc<Error>>,
    closing: bool,
    closed: bool,
    /// The segments whose flush runs, or is about to.
    flushing: Vec<Arc<dyn Segment>>,
    has_driver: bool,
    /// The lead is with the driver.
    driven: bool,
    pub pool: Pool,
}

/// The free segments, and the work of the thread that makes and frees them.
#[derive(Debug, Default)]
pub struct Pool {
    pub free: VecDeque<Arc<dyn Segment>>,
    /// Segments that are complete, and are to rest.
    pub resting: Vec<Arc<dyn Segment>>,
    /// The one that the thread lets rest.
    pub rests: Option<Arc<dyn Segment>>,
    /// A thread has begun to wait for a free segment.
    pub wanted: bool,
    /// The threads that wait for one.
    pub waiting: usize,
    /// The number of attempts to make a segment that was wanted, and the error of the last.
    pub attempts: u64,
    pub error: Option<Error>,
    /// The segment during which the last one was made ahead.
    pub made_during: u64,
}

pub type Guard<'a> = MutexGuard<'a, WriterState>;

/// Waits whose event has come. They are woken without the lock: a task may do anything then.
#[derive(Debug, Default)]
#[must_use]
struct Waiting {
    /// A batch that has an outcome.
    ticket: Option<Arc<Ticket>>,
    followers: BTreeMap<u64, Waker>,
}

impl Waiting {
    fn wake(self) {
        if let Some(ticket) = self.ticket {
            ticket.wake();
        }
        threads::wake(self.followers.into_values());
    }
}

/// The frames of a change, and its outcome later.
#[derive(Debug)]
pub struct Pushed {
    pub first: Lsn,
    /// The segment and the offset of the first frame.
    pub segment: u64,
    offset: u64,
    pub ticket: Arc<Ticket>,
}

/// The segments in use.
#[derive(Clone, Debug)]
pub struct InUse {
    pub numbers: Range<u64>,
    /// The lowest LSN of the log.
    pub front: Lsn,
    /// The LSN behind the last record of the oldest segment. None if it is the only one.
    pub end: Option<Lsn>,
}

impl Pushed {
    /// The locations of the frames that have these payloads.
    pub fn locations(&self, payloads: &[&[u8]]) -> impl Iterator<Item = Location> {
        payloads.iter().scan(self.offset, |offset, payload| {
            let bytes = frame_bytes(payload.len());
            let location = Location::new(self.segment, *offset, bytes);
            *offset += bytes;
            Some(location)
        })
    }
}

impl Writer {
    /// Starts to write a log at its end.
    pub fn new(
        storage: Arc<dyn Storage>,
        options: LogOptions,
        recovered: Recovered,
        bell: Bell,
    ) -> Result<Self> {
        let Recovered { id, segment_bytes, index, mut chain, mut lowest, end, ended, .. } =
            recovered;
        let (report, mut free) = (recovered.report, VecDeque::from(recovered.free));
        let buffer = Buffer::zeroed(BUFFER_BYTES);
        let last = chain.back().expect("a log has a segment").clone();
        let batch = if ended {
            let segment = match free.pop_front() {
                Some(segment) => segment,
                None => storage.create(segment_bytes)?,
            };
            segment.prepare()?;
            let header = header_after(&last.header, &index);
            let member = Member { header, segment };
            chain.push_back(member.clone());
            lowest.push_back(header.first);
            Batch::begin(member, buffer)
        } else {
            let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
            last.segment.read(&mut block, block_of(end))?;
            last.segment.was_read();
            let used = (end - block_of(end)) as usize;
            Batch::resume(last, end, &block[..used], buffer)
        };
        let progress = Progress {
            next: index.next(),
            front: index.front(),
            number: batch.header().number,
            end: batch.end(),
            frames: 0,
        };
        let visible = AtomicU64::new(index.next().0);
        let mut epoch = [0; 8];
        rustix::rand::getrandom(&mut epoch, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::system("draw a random number for", storage.path(), error))?;
        let epoch = u64::from_le_bytes(epoch);
        let state = WriterState {
            index,
            chain,
            lowest,
            batch,
            ticket: Arc::default(),
            has_leader: false,
            leading: false,
            in_flight: None,
            exclusive: false,
            back: Lsn(u64::MAX),
            following: None,
            frames: 0,
            witnessed: 0,
            written: progress,
            stable: progress,
            buffers: Vec::new(),
            followers: BTreeMap::new(),
            failure: None,
            closing: false,
            closed: false,
            flushing: Vec::new(),
            has_driver: false,
            driven: false,
            pool: Pool { free, ..Pool::default() },
        };
        let counters = Counters::of(storage.path());
        let writer = Self {
            storage,
            options,
            id,
            segment_bytes,
            report,
            state: Mutex::new(state),
            room: Condvar::new(),
            advanced: Condvar::new(),
            driver: Condvar::new(),
            bell,
            composed: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            visible,
            truncations: AtomicU64::new(0),
            followers: AtomicU64::new(0),
            mark: Mutex::new(Some(Mark { epoch, frames: 0, truncations: 0, next: Lsn(0) })),
            counters,
        };
        writer.publish();
        Ok(writer)
    }

    /// Shows other processes how far the log is stable. The caller does not have the lock: it may
    /// take long.
    fn publish(&self) {
        let mut mark = locked(&self.mark);
        let Some(mark) = &mut *mark else { return };
        // Looked up with the lock of the mark, so a slower thread does not set it back.
        let state = self.lock();
        let Progress { next, frames, .. } = state.stable;
        let truncations = self.truncations.load(Relaxed);
        drop(state);
        let now = Mark { epoch: mark.epoch, frames, truncations, next };
        if now != *mark {
            *mark = now;
            self.storage.publish(now);
        }
    }

    pub fn lock(&self) -> Guard<'_> {
        locked(&self.state)
    }

    fn is_durable(&self) -> bool {
        self.options.durability == Durability::EveryWrite
    }

    /// Adds records as one atomic batch. Waits until they fit into the batch that is composed.
    pub fn push(
        self: &Arc<Self>,
        records: &[&[u8]],
        purpose: Purpose,
    ) -> Result<(Guard<'_>, Pushed)> {
        let bytes = self.check_size(records, 0)?;
        with_sums(records, |sums| {
            let mut state = self.reserve(self.lock(), bytes, purpose)?;
            let pushed = self.add(&mut state, records, bytes, sums);
            Ok((state, pushed))
        })
    }

    /// As [`push`](Self::push), without a wait. None if the records do not fit now, see
    /// [`wait_for_room`](Self::wait_for_room).
    pub fn try_push(
        &self,
        records: &[&[u8]],
        purpose: Purpose,
    ) -> Result<Option<(Guard<'_>, Pushed)>> {
        let bytes = self.check_size(records, 0)?;
        with_sums(records, |sums| {
            let mut state = self.lock();
            state.check()?;
            let fits = state.pool.free.len() >= self.options.left_by(purpose)
                && state.batch.fit(bytes, self.options.batch_bytes, purpose) == Fit::Yes;
            if !fits {
                return Ok(None);
            }
            let pushed = self.add(&mut state, records, bytes, sums);
            Ok(Some((state, pushed)))
        })
    }

    /// Waits until records fit. Another thread may take the room.
    pub fn wait_for_room(self: &Arc<Self>, records: &[&[u8]], purpose: Purpose) -> Result<()> {
        let bytes = self.check_size(records, 0)?;
        self.reserve(self.lock(), bytes, purpose).map(drop)
    }

    /// Returns the size of the frames of records, and of others. Fails if it is too large.
    pub fn check_size(&self, records: &[&[u8]], others: u64) -> Result<u64> {
        self.check_lengths(records.iter().map(|record| record.len()), others)
    }

    /// As [`check_size`](Self::check_size), of records with these lengths.
    pub fn check_lengths(&self, lengths: impl Iterator<Item = usize>, others: u64) -> Result<u64> {
        // Lengths that no memory has may come from C.
        let bytes = lengths.map(frame_bytes).fold(others, u64::saturating_add);
        let max = Batch::max_bytes(self.segment_bytes);
        match bytes > max {
            true => Err(Error::TooLong { bytes, max }),
            false => Ok(bytes),
        }
    }

    fn add(&self, state: &mut WriterState, records: &[&[u8]], bytes: u64, sums: &[u32]) -> Pushed {
        self.witness_flush(state, bytes);
        let pushed = Pushed {
            first: state.index.next(),
            segment: state.batch.header().number,
            offset: state.batch.end(),
            ticket: state.ticket.clone(),
        };
        let last = records.len().wrapping_sub(1);
        for (number, (record, sum)) in records.iter().zip(sums).enumerate() {
            let lsn = state.index.next();
            self.frame(state, Kind::Record, number != last, lsn, record, *sum);
        }
        self.composed.fetch_add(1, Relaxed);
        pushed
    }

    /// Without durable writes, threads may append while others flush. Then no frame begins when all
    /// is stable. So the first frame of a batch says how far the segment is, if it fits before
    /// records of this size.
    fn witness_flush(&self, state: &mut WriterState, bytes: u64) {
        let Progress { number, end, .. } = state.stable;
        let is_first = state.batch.is_empty() && state.batch.start() > 0;
        let is_new = number == state.batch.header().number && end > state.witnessed;
        if !is_first || !is_new || self.is_settled(state) {
            return;
        }
        if state.batch.fit(EMPTY_FRAME_BYTES + bytes, u64::MAX, Purpose::Records) == Fit::Yes {
            self.add_empty_frame(state, Kind::Flushed, Lsn(end));
            state.witnessed = end;
        }
    }

    /// Whether everything before the batch is stable when it is written.
    fn is_settled(&self, state: &WriterState) -> bool {
        // The first batch of a segment follows a flush of the segment before.
        self.is_durable() || state.batch.start() == 0 || state.stable.frames == state.frames
    }

    /// Adds one frame to the batch and to the index.
    fn frame(
        &self,
        state: &mut WriterState,
        kind: Kind,
        more: bool,
        lsn: Lsn,
        payload: &[u8],
        sum: u32,
    ) {
        let flags = Flags { stable: state.batch.is_empty() && self.is_settled(state), more };
        let offset = state.batch.push(kind, flags, lsn, payload, sum);
        if flags.stable {
            state.witnessed = offset;
        }
        let number = state.batch.header().number;
        state.index.apply(kind, lsn, number, offset);
        state.frames += 1;
    }

    fn add_empty_frame(&self, state: &mut WriterState, kind: Kind, lsn: Lsn) {
        self.frame(state, kind, false, lsn, &[], checksum_of(&[]));
    }

    /// Returns with the lock when frames of this size fit into the batch.
    fn reserve<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        bytes: u64,
        purpose: Purpose,
    ) -> Result<Guard<'a>> {
        loop {
            state.check()?;
            if state.exclusive && purpose == Purpose::Records {
                state = self.wait(&self.room, state);
                continue;
            }
            // Records leave free segments to frames that free others.
            let left = self.options.left_by(purpose);
            match state.batch.fit(bytes, self.options.batch_bytes, purpose) {
                Fit::Yes if state.pool.free.len() < left => {
                    state = self.wait_for_free(state, left)?
                }
                Fit::Yes => return Ok(state),
                Fit::InNextSegment if !state.batch.ended() => {
                    state = self.end_segment(state, left + 1)?;
                }
                Fit::InNextSegment | Fit::AfterThisBatch => state = self.make_room(state),
            }
        }
    }

    /// Waits until the batch that is being composed was taken. Takes it if no other thread does.
    fn make_room<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Guard<'a> {
        if state.leading {
            return self.wait(&self.room, state);
        }
        state.leading = true;
        drop(state);
        self.lead();
        self.lock()
    }

    /// Completes the segment, if this many are free and the next one can be opened. May return with
    /// nothing done.
    fn end_segment<'a>(&'a self, state: Guard<'a>, count: usize) -> Result<Guard<'a>> {
        let (number, closing) = (state.batch.header().number, state.closing);
        let mut state = self.wait_for_free(state, count)?;
        let Some(next) = state.pool.free.front().cloned() else { return Ok(state) };
        let is_next = |segment: &Arc<dyn Segment>| Arc::ptr_eq(segment, &next);
        // It was complete in its life before, and may not have come to its rest.
        state.pool.resting.retain(|segment| !is_next(segment));
        if state.pool.rests.as_ref().is_some_and(is_next) {
            return Ok(self.wait(&self.room, state));
        }
        state.pool.waiting += 1;
        drop(state);
        // Once the records behind it have numbers, a failure would end the log.
        let prepared = next.prepare();
        let mut state = self.lock();
        state.pool.waiting -= 1;
        // Another thread may have ended it, and the next one may have room.
        if !state.batch.ended()
            && state.batch.header().number == number
            && state.closing == closing
            && state.pool.free.len() >= count
            && is_next(&state.pool.free[0])
        {
            prepared.map_err(|error| Error::NoSegment(Arc::new(error)))?;
            self.end(&mut state);
        }
        Ok(state)
    }

    /// Waits until this many segments are free, or another segment began.
    fn wait_for_free<'a>(&'a self, mut state: Guard<'a>, count: usize) -> Result<Guard<'a>> {
        let (attempts, number) = (state.pool.attempts, state.batch.header().number);
        while state.pool.free.len() < count {
            if state.pool.attempts > attempts
                && let Some(error) = &state.pool.error
            {
                let (is_full, cause) = (error.is_no_space(), Arc::new(error.clone()));
                return Err(if is_full { Error::Full(cause) } else { Error::NoSegment(cause) });
            }
            state.pool.wanted = true;
            state.pool.waiting += 1;
            self.bell.ring();
            state = self.wait(&self.room, state);
            state.pool.waiting -= 1;
            state.check()?;
            if state.batch.ended() || state.batch.header().number != number {
                break;
            }
        }
        Ok(state)
    }

    /// Completes the segment. The first free one follows.
    fn end(&self, state: &mut WriterState) {
        state.following = state.pool.free.pop_front();
        let next = state.index.next();
        self.add_empty_frame(state, Kind::End, next);
    }

    fn wait<'a>(&self, condvar: &Condvar, state: Guard<'a>) -> Guard<'a> {
        condvar.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the outcome of the batch that is being composed.
    pub fn finish(self: &Arc<Self>, mut state: Guard<'_>, ticket: &Ticket) -> Result<()> {
        let mut leads = !state.leading;
        if leads {
            state.leading = true;
            drop(state);
        } else {
            let is_leader = !state.has_leader;
            state.has_leader = true;
            drop(state);
            leads = ticket.wait(is_leader) == Turn::Lead;
        }
        if leads {
            self.lead();
        }
        ticket.outcome().expect("the wait is over").clone()
    }

    /// Adds records as one atomic batch that the driver writes, if no other thread does.
    pub fn submit(self: &Arc<Self>, records: &[&[u8]]) -> Result<Pushed> {
        self.start_driver()?;
        let (state, pushed) = self.push(records, Purpose::Records)?;
        self.give_away(state);
        Ok(pushed)
    }

    /// Leaves what was added to the driver, if no other thread writes it. The driver runs.
    pub fn give_away(&self, mut state: Guard<'_>) {
        if !state.leading && !state.batch.is_empty() {
            state.leading = true;
            self.give_to_driver(&mut state);
        }
    }

    /// Starts the driver before the first record that needs it.
    pub fn start_driver(self: &Arc<Self>) -> Result<()> {
        let mut state = self.lock();
        state.check()?;
        if !state.has_driver {
            let writer = self.clone();
            threads::spawn("dioxide-log", self.storage.path(), move || writer.run_driver())?;
            state.has_driver = true;
        }
        Ok(())
    }

    fn give_to_driver(&self, state: &mut WriterState) {
        state.driven = true;
        self.driver.notify_one();
    }

    fn run_driver(self: Arc<Self>) {
        let mut state = self.lock();
        loop {
            if state.driven {
                state.driven = false;
                drop(state);
                self.lead();
                state = self.lock();
            } else if state.closed {
                state.has_driver = false;
                self.room.notify_all();
                return;
            } else {
                state = self.wait(&self.driver, state);
            }
        }
    }

    /// Waits a moment for the appends that are expected.
    fn gather(&self) {
        let expected = self.expected.load(Relaxed);
        if self.composed.load(Relaxed) >= expected {
            return;
        }
        let begun = Instant::now();
        for _ in 0..GATHER_YIELDS_MAX {
            thread::yield_now();
            if self.composed.load(Relaxed) >= expected || begun.elapsed() > GATHER_MAX {
                return;
            }
        }
    }

    /// Writes the batch that is being composed. The calling thread has the lead, and gives it on.
    fn lead(self: &Arc<Self>) {
        self.gather();
        let mut state = self.lock();
        if state.failure.is_some() {
            // A flush failed meanwhile, and decided the outcome of the batch.
            state.leading = false;
            drop(state);
            self.room.notify_all();
            return;
        }
        let (mut batch, before, progress) = self.take(&mut state);
        let ticket = state.in_flight.clone().expect("the batch was taken");
        let appends = self.composed.swap(0, Relaxed);
        drop(state);
        self.room.notify_all();

        let begun = Instant::now();
        let result = self.write(&mut batch, before.as_deref());
        self.counters.on_batch(&batch, begun.elapsed(), &result);

        let mut state = self.lock();
        state.in_flight = None;
        let buffer = batch.into_buffer();
        let kept_max = self.options.batch_bytes.saturating_mul(2).max(BUFFER_BYTES as u64);
        if buffer.len() as u64 <= kept_max {
            state.buffers.push(buffer);
        }
        let waiting = match &result {
            Ok(()) => self.on_written(&mut state, progress),
            Err(error) => self.fail(&mut state, error.clone()),
        };
        ticket.decide(result);
        self.expected.store(self.composed.load(Relaxed) + appends, Relaxed);
        let successor = self.hand_over(&mut state);
        drop(state);
        self.room.notify_all();
        if let Some(next) = successor {
            next.wake_leader();
        }
        ticket.wake();
        waiting.wake();
        self.publish();
    }

    /// Takes the batch that is being composed, and begins the next one. Returns the segment before,
    /// if the batch is the first of its segment and the segment before is not yet stable.
    fn take(&self, state: &mut WriterState) -> (Batch, Option<Arc<dyn Segment>>, Progress) {
        let buffer = state.buffers.pop().unwrap_or_else(|| Buffer::zeroed(BUFFER_BYTES));
        let next = if state.batch.ended() {
            let last = state.chain.back().expect("a log has a segment");
            let header = header_after(&last.header, &state.index);
            let segment = state.following.take().expect("it was reserved");
            let member = Member { header, segment };
            state.chain.push_back(member.clone());
            state.lowest.push_back(header.first);
            Batch::begin(member, buffer)
        } else {
            state.batch.next(buffer)
        };
        let batch = std::mem::replace(&mut state.batch, next);
        state.in_flight = Some(std::mem::take(&mut state.ticket));
        state.has_leader = false;
        let header = batch.header();
        let before = header.number - 1;
        let before = (batch.start() == 0 && !self.is_durable())
            .then(|| member_of(&state.chain, before))
            .flatten()
            .map(|member| member.segment.clone());
        let left = self.options.left_by(Purpose::Records);
        if state.pool.free.len() <= left && state.is_half_full() {
            self.bell.ring();
        }
        let progress = Progress {
            next: state.index.next(),
            front: state.index.front(),
            number: header.number,
            end: batch.end(),
            frames: state.frames,
        };
        (batch, before, progress)
    }

    fn write(&self, batch: &mut Batch, before: Option<&dyn Segment>) -> Result<()> {
        if let Some(before) = before {
            before.sync()?;
        }
        let (start, segment) = (batch.start(), batch.member().segment.clone());
        segment.write(batch.blocks(), start, self.is_durable())
    }

    fn on_written(&self, state: &mut WriterState, mut progress: Progress) -> Waiting {
        // Not when the batch was taken: the truncation may have failed since.
        progress.next = progress.next.min(state.back.max(progress.front));
        state.written = progress;
        if self.is_durable() {
            self.on_stable(state, progress);
        }
        self.show(state)
    }

    /// Everything up to there is stable. Segments that only records below the front had are free.
    fn on_stable(&self, state: &mut WriterState, progress: Progress) {
        if progress.number != state.stable.number {
            let complete = state.stable.number..progress.number;
            let WriterState { chain, pool, .. } = &mut *state;
            let complete = chain.iter().filter(|member| complete.contains(&member.header.number));
            pool.resting.extend(complete.map(|member| member.segment.clone()));
        }
        state.stable = progress;
        self.free_oldest(state);
    }

    /// Frees the segments without a record of the front or above.
    fn free_oldest(&self, state: &mut WriterState) {
        let Progress { front, number, .. } = state.stable;
        while state.frees(front) && state.chain[1].header.number <= number {
            let member = state.chain.pop_front().expect("two");
            state.lowest.pop_front();
            state.pool.free.push_back(member.segment);
            self.counters.on_freed();
            self.room.notify_all();
        }
        if !state.pool.resting.is_empty() || state.has_surplus(&self.options) {
            self.bell.ring();
        }
    }

    /// Shows the records that readers may see. Returns the tasks that wait for them.
    fn show(&self, state: &mut WriterState) -> Waiting {
        let progress = if self.options.read_unsynced { state.written } else { state.stable };
        self.visible.store(progress.next.0, Release);
        self.advanced.notify_all();
        Waiting { ticket: None, followers: std::mem::take(&mut state.followers) }
    }

    /// Refuses everything from now on, also the batch that is being composed.
    fn fail(&self, state: &mut WriterState, error: Error) -> Waiting {
        let first = || {
            self.counters.on_failure(&error);
            Arc::new(error)
        };
        let failure = state.failure.get_or_insert_with(first).clone();
        state.ticket.decide(Err(Error::Failed(failure)));
        self.room.notify_all();
        Waiting { ticket: Some(state.ticket.clone()), ..self.show(state) }
    }

    /// Gives the lead on. Returns the batch whose likely leader gets it.
    fn hand_over(self: &Arc<Self>, state: &mut WriterState) -> Option<Arc<Ticket>> {
        if state.batch.is_empty() || state.failure.is_some() {
            state.leading = false;
            return None;
        }
        if state.has_leader {
            state.ticket.give_lead();
            return Some(state.ticket.clone());
        }
        match state.has_driver {
            // Its records were submitted, or it only ends the segment.
            true => self.give_to_driver(state),
            // It only ends the segment. The threads that wait for room take it.
            false => state.leading = false,
        }
        None
    }

    /// Makes everything stable that was acknowledged before the call.
    pub fn sync(self: &Arc<Self>) -> Result<()> {
        loop {
            let mut state = self.settle(self.lock())?;
            state.check_failure()?;
            let (written, truncations) = (state.written, self.truncations.load(Relaxed));
            if state.stable.frames == written.frames {
                return Ok(());
            }
            let member = member_of(&state.chain, written.number);
            let segment = member.expect("segments in use stay").segment.clone();
            state.flushing.push(segment.clone());
            drop(state);
            let begun = Instant::now();
            let result = segment.sync();
            self.counters.on_sync(begun.elapsed(), &result);
            let mut state = self.lock();
            let place = state.flushing.iter().position(|other| Arc::ptr_eq(other, &segment));
            state.flushing.swap_remove(place.expect("it was added"));
            if state.closed {
                self.room.notify_all();
            }
            if state.has_surplus(&self.options) {
                self.bell.ring();
            }
            if let Err(error) = result {
                let waiting = self.fail(&mut state, error.clone());
                drop(state);
                waiting.wake();
                return Err(error);
            }
            // Another flush may have failed, and reported what this one does not.
            state.check_failure()?;
            if self.truncations.load(Relaxed) != truncations {
                continue;
            }
            if state.stable.frames < written.frames {
                self.on_stable(&mut state, written);
                let waiting = self.show(&mut state);
                drop(state);
                waiting.wake();
                self.publish();
            }
            return Ok(());
        }
    }

    /// Waits until everything is written that is in a batch now.
    fn settle<'a>(self: &'a Arc<Self>, mut state: Guard<'a>) -> Result<Guard<'a>> {
        let frames = state.frames;
        while state.written.frames < frames {
            state.check_failure()?;
            if !state.batch.is_empty() {
                let ticket = state.ticket.clone();
                self.finish(state, &ticket)?;
            } else if let Some(ticket) = state.in_flight.clone() {
                drop(state);
                ticket.wait(false);
            } else {
                drop(state);
            }
            state = self.lock();
        }
        Ok(state)
    }

    /// Adds a frame without payload, and waits until it is stable.
    fn change(self: &Arc<Self>, mut state: Guard<'_>, kind: Kind, lsn: Lsn) -> Result<()> {
        self.add_empty_frame(&mut state, kind, lsn);
        self.stabilize(state)
    }

    /// Waits until all frames are stable.
    pub fn stabilize(self: &Arc<Self>, state: Guard<'_>) -> Result<()> {
        drop(self.settle(state)?);
        match self.is_durable() {
            true => Ok(()),
            false => self.sync(),
        }
    }

    /// Removes the records below an LSN.
    pub fn truncate_front(self: &Arc<Self>, lsn: Lsn) -> Result<()> {
        let state = self.lock();
        if lsn > Lsn::MAX {
            let (first, next) = (state.index.front(), state.index.next());
            return Err(Error::OutOfRange { lsn, first, next });
        }
        if lsn <= state.stable.front {
            return state.check();
        }
        let purpose = Purpose::Front { frees: state.frees(lsn) };
        let state = self.reserve(state, EMPTY_FRAME_BYTES, purpose)?;
        if lsn <= state.index.front() {
            // Another thread does it.
            return self.stabilize(state);
        }
        self.change(state, Kind::Front, lsn)
    }

    /// As [`truncate_front`](Self::truncate_front), if the frame fits into the batch. False if not.
    /// The pool calls it, so it does not wait for a segment.
    pub fn truncate_front_now(self: &Arc<Self>, state: Guard<'_>, lsn: Lsn) -> Result<bool> {
        let purpose = Purpose::Front { frees: state.frees(lsn) };
        match state.batch.fit(EMPTY_FRAME_BYTES, u64::MAX, purpose) {
            Fit::Yes => self.change(state, Kind::Front, lsn).map(|()| true),
            // The next segment begins soon, and wakes the pool.
            _ => Ok(false),
        }
    }

    /// Removes the records from an LSN on.
    pub fn truncate_back(self: &Arc<Self>, lsn: Lsn) -> Result<()> {
        let mut state = self.lock();
        while state.exclusive {
            state = self.wait(&self.room, state);
        }
        state.exclusive = true;
        drop(state);
        let result = self.truncate_back_alone(lsn);
        let mut state = self.lock();
        if result.is_ok() {
            // The frame is stable, and no record came between.
            state.lowest.iter_mut().for_each(|lowest| *lowest = (*lowest).min(lsn));
            self.free_oldest(&mut state);
        }
        (state.exclusive, state.back) = (false, Lsn(u64::MAX));
        drop(state);
        self.room.notify_all();
        result
    }

    /// Returns when everything is written and the frame fits. Only a new front may come between.
    fn alone(self: &Arc<Self>) -> Result<Guard<'_>> {
        let mut state = self.lock();
        loop {
            state = self.settle(state)?;
            state = self.reserve(state, EMPTY_FRAME_BYTES, Purpose::Back)?;
            if state.written.frames == state.frames {
                return Ok(state);
            }
        }
    }

    fn truncate_back_alone(self: &Arc<Self>, lsn: Lsn) -> Result<()> {
        let mut state = self.alone()?;
        let (first, next) = (state.index.front(), state.index.next());
        if lsn < first || lsn > next {
            return Err(Error::OutOfRange { lsn, first, next });
        }
        if lsn == next {
            return Ok(());
        }
        // Readers must not take the records that come next for the old ones.
        let (frames, stable) = (state.frames, state.stable.next);
        state.back = lsn;
        state.written.next = lsn;
        state.stable.next = state.stable.next.min(lsn);
        self.truncations.fetch_add(1, Release);
        self.visible.fetch_min(lsn.0, Release);
        drop(state);
        self.publish();
        match self.alone() {
            Ok(state) => {
                // As if a front that came between had come behind.
                let lsn = lsn.max(state.index.front());
                self.change(state, Kind::Back, lsn)
            }
            Err(error) => {
                let mut state = self.lock();
                // Only fronts came between. A flush may have made the records stable meanwhile. One
                // that still runs looks again.
                let stable = if state.stable.frames < frames { stable } else { next };
                state.back = Lsn(u64::MAX);
                state.written.next = next.max(state.written.front);
                state.stable.next = stable.max(state.stable.front);
                self.truncations.fetch_add(1, Release);
                let waiting = self.show(&mut state);
                drop(state);
                waiting.wake();
                self.publish();
                Err(error)
            }
        }
    }

    /// Writes the rest, and the frame that shows that the log was closed. The pool may still work.
    pub fn close(self: &Arc<Self>) -> Result<()> {
        let mut state = self.lock();
        state.closing = true;
        let result = self.close_frames(state);
        let mut state = self.lock();
        state.closed = true;
        self.driver.notify_all();
        self.room.notify_all();
        let waiting = self.show(&mut state);
        drop(state);
        waiting.wake();
        let mut state = self.lock();
        // After a failure, a write may still be in flight. A flush or a truncation of the back may
        // run at any time.
        while state.has_driver || state.leading || !state.flushing.is_empty() || state.exclusive {
            state = self.wait(&self.room, state);
        }
        result
    }

    /// Lets another writer open the log. No thread of this one is left.
    pub fn release(&self) -> Result<()> {
        self.publish();
        *locked(&self.mark) = None;
        let state = self.lock();
        let used = state.chain.iter().map(|member| &member.segment);
        let segments = used.chain(&state.pool.free).chain(&state.following);
        let rested = segments.map(|segment| segment.rest()).fold(Ok(()), Result::and);
        self.storage.release();
        rested
    }

    fn close_frames(self: &Arc<Self>, state: Guard<'_>) -> Result<()> {
        let state = self.settle(state)?;
        if state.frames == 0 && self.report.closed {
            return Ok(());
        }
        drop(state);
        self.sync()?;
        let mut state = self.lock();
        loop {
            state.check_failure()?;
            match state.batch.fit(EMPTY_FRAME_BYTES, u64::MAX, Purpose::Closed) {
                Fit::Yes => break,
                // Without a free segment the log stays open: recovery reads it all the same.
                _ if state.pool.free.is_empty() && !state.batch.ended() => return Ok(()),
                _ if !state.batch.ended() => match self.end_segment(state, 1) {
                    Ok(again) => state = again,
                    // As without one.
                    Err(Error::NoSegment(_)) => return Ok(()),
                    Err(error) => return Err(error),
                },
                _ => state = self.make_room(state),
            }
        }
        let next = state.index.next();
        self.change(state, Kind::Closed, next)
    }

    // --- for readers -----------------------------------------------------------------------------

    /// The LSN behind the last record that readers may see.
    pub fn visible(&self) -> Lsn {
        Lsn(self.visible.load(Acquire))
    }

    pub fn truncations(&self) -> u64 {
        self.truncations.load(Acquire)
    }

    /// The last known place before a record, and its segment. None if the log does not have it, or
    /// not yet.
    pub fn find(&self, lsn: Lsn) -> Option<(Place, Member)> {
        let state = self.lock();
        if lsn >= self.visible() {
            return None;
        }
        let mut place = state.index.find(lsn)?;
        // Records that are being removed lie behind it. Their numbers come again elsewhere.
        place.run.1 = place.run.1.min(state.back);
        Some((place, member_of(&state.chain, place.segment)?.clone()))
    }

    /// A segment in use.
    pub fn member(&self, number: u64) -> Option<Member> {
        member_of(&self.lock().chain, number).cloned()
    }

    /// The segments in use.
    pub fn in_use(&self) -> InUse {
        let state = self.lock();
        let numbers = state.chain[0].header.number..state.batch.header().number + 1;
        let end = state.chain.get(1).map(|next| next.header.first);
        InUse { numbers, front: state.index.front(), end }
    }

    /// Refuses everything from now on.
    pub fn refuse(&self, error: Error) {
        let mut state = self.lock();
        let waiting = self.fail(&mut state, error);
        drop(state);
        waiting.wake();
    }

    /// The lowest LSN, and the next one.
    pub fn range(&self) -> (Lsn, Lsn) {
        let state = self.lock();
        (state.index.front(), state.index.next())
    }

    /// The LSN behind the last stable record.
    pub fn stable(&self) -> Lsn {
        self.lock().stable.next
    }

    /// Waits until a record is visible. False if the log was closed before.
    pub fn wait_for(&self, lsn: Lsn) -> Result<bool> {
        let mut state = self.lock();
        while self.visible() <= lsn {
            state.check_failure()?;
            if state.closed {
                return Ok(false);
            }
            state = self.wait(&self.advanced, state);
        }
        Ok(true)
    }

    /// As [`wait_for`](Self::wait_for), for a task.
    pub fn poll_for(&self, lsn: Lsn, follower: u64, waker: &Waker) -> Poll<Result<bool>> {
        let mut state = self.lock();
        if self.visible() > lsn {
            return Poll::Ready(Ok(true));
        }
        state.check_failure()?;
        if state.closed {
            return Poll::Ready(Ok(false));
        }
        state.followers.insert(follower, waker.clone());
        Poll::Pending
    }

    /// A number for a follower.
    pub fn next_follower(&self) -> u64 {
        self.followers.fetch_add(1, Relaxed)
    }

    /// Forgets the task of a follower that waits no longer.
    pub fn forget(&self, follower: u64) {
        // Without a wait: in a child of a fork, no thread may be there to unlock. The task is woken
        // in vain then.
        if let Ok(mut state) = self.state.try_lock() {
            state.followers.remove(&follower);
        }
    }

    /// Waits until a record is acknowledged.
    pub fn acknowledge(self: &Arc<Self>, lsn: Lsn) -> Result<()> {
        let state = self.lock();
        if lsn < state.written.next {
            return Ok(());
        }
        state.check_failure()?;
        let (first, next) = (state.index.front(), state.index.next());
        if lsn >= next {
            return Err(Error::OutOfRange { lsn, first, next });
        }
        if lsn < first {
            // The front counts once it is written.
            return self.settle(state).map(drop);
        }
        // The batch that is being composed holds the last records.
        let composed = state.index.next().0 - state.batch.records();
        match state.in_flight.clone() {
            Some(ticket) if lsn.0 < composed || state.batch.is_empty() => {
                drop(state);
                ticket.wait(false);
                ticket.outcome().expect("the wait is over").clone()
            }
            // It was acknowledged, and is being removed.
            None if state.batch.is_empty() => Ok(()),
            _ => {
                let ticket = state.ticket.clone();
                self.finish(state, &ticket)
            }
        }
    }

    pub fn stats(&self) -> Stats {
        let state = self.lock();
        let mut stats = self.counters.stats();
        stats.segments = state.chain.len() as u64;
        stats.free_segments = state.pool.free.len() as u64;
        stats
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Wakes the threads that wait for a segment.
    pub fn on_segment(&self) {
        self.room.notify_all();
    }
}

impl WriterState {
    /// Fails if the log takes no more.
    pub fn check(&self) -> Result<()> {
        self.check_failure()?;
        match self.closing {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    fn check_failure(&self) -> Result<()> {
        match &self.failure {
            Some(error) => Err(Error::Failed(error.clone())),
            None => Ok(()),
        }
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The records from here on are being removed.
    pub fn back(&self) -> Lsn {
        self.back
    }

    #[cfg(test)]
    pub fn set_back(&mut self, back: Lsn) {
        self.back = back;
    }

    /// Whether the log takes no more frames.
    pub fn has_ended(&self) -> bool {
        self.closing || self.failure.is_some()
    }

    /// The segments in use, from the oldest.
    pub fn chain(&self) -> &VecDeque<Member> {
        &self.chain
    }

    /// Whether a segment is free with this front.
    fn frees(&self, front: Lsn) -> bool {
        self.lowest.get(1).is_some_and(|lowest| *lowest <= front)
    }

    /// The batch whose outcome is that of everything that was added.
    pub fn latest(&self) -> Arc<Ticket> {
        match &self.in_flight {
            _ if !self.batch.is_empty() => self.ticket.clone(),
            Some(ticket) => ticket.clone(),
            None => Ticket::done(),
        }
    }

    /// Whether more segments are free than the log keeps. It keeps those that it needs soon.
    pub fn has_surplus(&self, options: &LogOptions) -> bool {
        let soon = options.left_by(Purpose::Records) + usize::from(self.is_half_full());
        self.pool.free.len() > options.spare_segments.max(soon)
    }

    /// Whether a flush of the segment runs, or is about to.
    pub fn is_flushing(&self, segment: &Arc<dyn Segment>) -> bool {
        self.flushing.iter().any(|other| Arc::ptr_eq(other, segment))
    }

    /// Whether the segment that is being written is more than half full.
    pub fn is_half_full(&self) -> bool {
        self.batch.end() > self.batch.header().segment_bytes / 2
    }
}

/// Passes the checksums of records. Without an allocation for a single one.
fn with_sums<T>(records: &[&[u8]], with: impl FnOnce(&[u32]) -> T) -> T {
    match records {
        [record] => with(&[checksum_of(record)]),
        _ => with(&records.iter().map(|record| checksum_of(record)).collect::<Vec<_>>()),
    }
}

/// The header of the segment that follows.
fn header_after(last: &Header, index: &Index) -> Header {
    let (first, front) = (index.next(), index.front());
    Header { number: last.number + 1, first, front, begun: now(), ..*last }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::{Faults, Memory};
    use dioxide::Durability;
    use std::thread;

    /// The flush failed between the end of one batch and the start of the next. That one was
    /// written nevertheless, or its leader panicked.
    #[test]
    fn a_failed_flush_ends_all_appends() {
        for seed in 0..200 {
            let disk = Memory::default();
            // Far from the end of its segment.
            let options = LogOptions::new().segment_bytes(1 << 20).batch_bytes(4096);
            let options = options.durability(Durability::OnSync);
            let log = options.open_storage(Arc::new(disk.clone())).unwrap();
            let failed_call = Some(disk.calls() + 20 + seed % 40);
            disk.set_faults(Faults { failed_call, ..Faults::default() });
            thread::scope(|scope| {
                for thread in 0..4u8 {
                    let log = &log;
                    scope.spawn(move || while log.append(&[thread; 100]).is_ok() {});
                    scope.spawn(move || while log.sync().is_ok() {});
                    scope.spawn(move || while log.submit(&[thread; 100]).is_ok() {});
                }
            });
            // A thread of the log may still write the batch that was in flight at the failure.
            let state = log.writer().lock();
            let (calls, in_flight) = (disk.calls(), state.in_flight.is_some());
            drop(state);
            assert!(matches!(log.append(b"x"), Err(Error::Failed(_))));
            assert!(log.close().is_err());
            let more = disk.calls() - calls;
            assert!(more <= in_flight.into(), "seed {seed}: {more} calls after the failure");
        }
    }
}
