//! State machine without I/O for operations that need an order: appends, extending and durable
//! writes, writes of parts of a block, flushes and growth. The engine holds it under one lock.
//!
//! Operations go in by `take`, or together by `submit`. Requests and outcomes come out. Each
//! request has an owner, one of the operations that wait for it. `on_completed` reports a performed
//! request. The leaf modules and these rules decide everything between:
//!
//! 1. Space before offset: an extending write gets its offset only below `physical`, so a full disk
//!    is an error without a hole.
//! 2. Extending writes are acknowledged in the order of their offsets: never above a gap.
//! 3. A plain write is acknowledged when everything below its end is written, a durable one when
//!    everything below its end is durable.
//! 4. After a failure above `written`, no write extends the file: it would lie behind a gap.
//! 5. One request at a time writes a block. An append that begins inside a block waits for
//!    extending requests in flight, and for positional writes of that block. Such a positional
//!    write waits for extending requests.

mod extending;
mod flushes;
mod overwrites;
mod overwrites_in_flight;
mod space;

use crate::buffer::{Buffer, Segment};
use crate::error::{Error, ErrorKind};
use crate::observe::Timestamp;
use crate::rules::flush::{Flushes, Generation, SyncMethod};
use crate::rules::growth::{Need, Plan, Planner};
use crate::rules::marker::{Identity, Marker, Mode, Prepared};
use crate::rules::merge::{self, FULL_REQUESTS_MAX, Limits, Refusals, Span};
use crate::rules::policy::Tail;
use crate::rules::size::Sizes;
use crate::sys::probe::{Facts, is_without_journal};
use overwrites_in_flight::Overwrites;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// A list that mostly holds one item: a lone writer needs no allocation for it.
pub(in crate::engine) type SmallVec1<T> = SmallVec<[T; 1]>;

/// Result of an operation: the offset written, or the error kind.
pub type Outcome = Result<u64, ErrorKind>;

/// A request to perform, and its owner: one of the operations that wait for it.
#[derive(Debug)]
pub struct Request<T> {
    pub id: u64,
    pub owner: T,
    pub work: Work,
    /// Its call, while events are observed.
    pub call: Option<RequestCall>,
}

/// The call of a request, as it began.
#[derive(Clone, Copy, Debug)]
pub struct RequestCall {
    pub begun: Timestamp,
    /// The operations that share it; 0 for a flush.
    pub operations: u32,
}

/// What fills the blocks in which the segments of a write begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Appended records: the end of the file before them, and zeros behind them. The unit is the
    /// block of appends.
    Appended,
    /// A positional write: the bytes of the file below this offset stay, and zeros stand above. The
    /// unit is the alignment of offsets.
    Kept(u64),
}

/// A block of the file, as it was read.
#[derive(Debug)]
pub struct Edge {
    pub start: u64,
    pub memory: Buffer,
    /// The number of bytes read.
    pub read: u64,
}

/// The work of a request.
#[derive(Debug)]
pub enum Work {
    /// Write the segments contiguously, all or nothing.
    Write {
        segments: SmallVec1<Segment>,
        offset: u64,
        /// Length in bytes of the first, separately issued write. For records, in the blocks that
        /// they become.
        head: u64,
        sync_method: Option<SyncMethod>,
        /// The end of the file, if the write itself moves i_size. Restored if the write fails.
        extends: Option<u64>,
        /// What fills the blocks in which the segments begin and end.
        fill: Fill,
        /// Blocks in which the segments begin and end, if they were read before.
        edges: SmallVec1<Edge>,
        /// The buffer into which segments were packed, if any.
        composed: Option<Buffer>,
    },
    /// Flush the file's data, and the device's cache.
    Flush,
}

impl Work {
    /// Bytes to move.
    pub fn len(&self) -> u64 {
        match self {
            Self::Write { segments, .. } => segments.iter().map(Segment::len).sum(),
            Self::Flush => 0,
        }
    }

    /// Whether it is a flush, or carries one.
    pub fn flushes(&self) -> bool {
        matches!(self, Self::Flush | Self::Write { sync_method: Some(SyncMethod::Dsync), .. })
    }
}

/// A task for a leader. The core builds the request only when the leader is awake, so that
/// operations that came meanwhile join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderTask {
    /// Submit the waiting extending operations.
    Extend,
    /// Submit the waiting durable overwrites.
    Overwrite,
    /// Begin the next flush.
    Flush,
}

/// The failure of a request.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Error kind for the operations of the request.
    pub kind: ErrorKind,
    /// The same with operation, path and offset, for other operations that fail because of it.
    pub cause: Arc<Error>,
    /// No later result can be trusted: the core is wedged.
    pub wedges: bool,
}

/// An operation for the core.
#[derive(Clone, Copy, Debug)]
pub enum Dio {
    /// Append the segment.
    Append(Segment),
    /// Write the segment at this offset.
    Write(Segment, u64),
    /// Make everything written before durable.
    Sync,
}

/// Output of a step: requests to perform, calls and outcomes to hand out, and whether to start the
/// grower.
#[derive(Debug)]
pub struct Outbox<T> {
    pub requests: SmallVec1<Request<T>>,
    /// Each with its leader, one of the waiters, which returns it by `on_called`.
    pub calls: SmallVec1<(T, LeaderTask)>,
    pub outcomes: SmallVec1<(T, Outcome)>,
    pub start_grower: bool,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self {
            requests: SmallVec1::new(),
            calls: SmallVec1::new(),
            outcomes: SmallVec1::new(),
            start_grower: false,
        }
    }
}

impl<T> Outbox<T> {
    pub fn answer(&mut self, token: T, outcome: Outcome) {
        self.outcomes.push((token, outcome));
    }
}

/// Properties of the file and its file system.
#[derive(Clone, Copy, Debug)]
pub struct FileProps {
    pub identity: Identity,
    pub limits: Limits,
    /// Block size in bytes into which appends are packed. A multiple of `offset_unit`.
    pub append_unit: u64,
    /// Alignment of offsets in bytes: a write replaces whole units.
    pub offset_unit: u64,
    /// Treatment of a partial last block.
    pub tail: Tail,
    pub is_device: bool,
    /// Each write is durable when it returns (see `Facts`), so a durable write has no flush to
    /// share.
    pub writes_through: bool,
    /// ext4 without a journal, where a write with a separate flush lost more than a durable write.
    pub without_journal: bool,
    /// Overwrites of written data stay in place and need no new space. Known only for files that
    /// grow ahead.
    pub overwrites_in_place: bool,
    /// How space ahead is prepared; `None` without growth.
    pub prepared: Option<Prepared>,
    /// Markers count their epochs up from this.
    pub epoch: u32,
}

impl FileProps {
    /// The properties of a file that does not grow ahead.
    pub fn of(facts: &Facts) -> Self {
        Self {
            identity: facts.identity,
            limits: facts.limits,
            append_unit: facts.alignment.append,
            offset_unit: facts.alignment.offset,
            tail: Tail::default(),
            is_device: facts.is_device,
            writes_through: facts.writes_through,
            without_journal: is_without_journal(facts),
            overwrites_in_place: false,
            prepared: None,
            epoch: 0,
        }
    }
}

/// The work of one growth job.
#[derive(Clone, Copy, Debug)]
pub struct GrowthJob {
    pub marker: Marker,
    /// The marker is on disk already: the previous job announced it.
    pub announced: bool,
    /// `None` if only the marker must change.
    pub plan: Option<Plan>,
    /// Growth ends: truncate to this offset, then remove the marker.
    pub truncate_to: Option<u64>,
}

/// One operation that waits or is in flight.
#[derive(Debug)]
pub(in crate::engine) struct Member<T> {
    pub token: T,
    pub segment: Segment,
    pub durable: bool,
}

/// A group of extending operations that wait: appends without an offset yet, or positional writes.
#[derive(Debug)]
struct WaitingGroup<T> {
    /// Appends in the order of arrival, positional writes in the order of their offsets.
    members: SmallVec1<(Target, Member<T>)>,
    bytes: u64,
    /// Some members were submitted already: only adjacent ones share a request.
    begun: bool,
    /// It was counted as held up: it shares bytes or a block with a request in flight.
    held_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    End,
    At(u64),
}

/// A reserved range of the file, until it is acknowledged.
#[derive(Debug)]
struct ReservedRange<T> {
    id: u64,
    /// From the end of the previous range: includes an intended hole.
    span: Span,
    /// Each with its offset.
    members: SmallVec1<(T, u64)>,
    durable: bool,
    state: RangeState,
}

#[derive(Clone, Debug)]
enum RangeState {
    InFlight(Option<SyncMethod>),
    Written { synced: bool },
    Failed(ErrorKind),
}

/// The space ahead of the writers.
#[derive(Debug)]
struct Space {
    planner: Planner,
    /// The marker on disk, if any.
    marker: Option<Marker>,
    /// Counts the markers that announce a truncate or a recycle, and the outcome of each truncate.
    truncations: u8,
    /// The next step, if the marker on disk announces it.
    announced: Option<Plan>,
    /// The mode of the next marker.
    mode: Mode,
    /// A positional write past the end was submitted since the file was opened.
    jumped: bool,
    prepared: Option<Prepared>,
    /// The marker that recovery left, until the caller truncates. The next markers keep its base
    /// and its `recycled`.
    held: Option<Marker>,
    /// End of the content from before the recycle; 0 if the file was not recycled.
    old_to: u64,
    /// The blocks of the old content up to this offset are written.
    written_to: u64,
    /// The space from the reserved end to this offset reads as zeros.
    zeros_to: u64,
    /// End of a hole that a step of growth left before its space; 0 if none did.
    hole_to: u64,
    /// The planner before the growth that is under way, and the begin of its space.
    growing: Option<(Planner, u64)>,
    need: Option<Need>,
    /// The need of the growth job that is under way. Another operation may have come before.
    tried: Option<Need>,
    grower_running: bool,
    paused: bool,
    /// Growth ahead found no space. It waits until an operation needs space.
    exhausted: bool,
    /// Growth was refused for good, and the marker still stands. No extending request is submitted
    /// until it is removed.
    growth_ends: bool,
}

/// The flush in flight, which may wait for that of another file.
#[derive(Debug)]
struct FlushInFlight<T> {
    id: u64,
    owner: T,
    generation: Generation,
    /// `written` when it began.
    covers: u64,
}

/// The state machine of one file.
#[derive(Debug)]
pub struct Core<T> {
    sizes: Sizes,
    props: FileProps,
    waiting: VecDeque<WaitingGroup<T>>,
    /// The group of the elected leader. Its operations precede all in `waiting`.
    called: Option<WaitingGroup<T>>,
    reserved: VecDeque<ReservedRange<T>>,
    /// Positional writes below an end that later ones reserved first. Each waits until `written`
    /// passes it: data above `written` is neither visible nor acknowledged.
    late: Vec<(u64, Member<T>)>,
    in_flight: usize,
    overwrites: Overwrites<T>,
    flushes: Flushes,
    flushing: Option<FlushInFlight<T>>,
    /// The next flush waits for the requests in flight up to this id.
    flush_after: Option<u64>,
    /// The leader of the next flush.
    flush_called: Option<T>,
    /// The next flush was postponed once, for operations that came while its leader awoke.
    flush_postponed: bool,
    awaiting_flush: VecDeque<(Generation, T)>,
    space: Space,
    /// Number of operations that were last answered together.
    cohort: usize,
    /// That number, and the extending operations that waited then: the size of the next group.
    expected: usize,
    /// Other files of the file system share flushes now.
    has_company: bool,
    stopped: Option<ErrorKind>,
    next_id: u64,
    /// Sent by leaders.
    groups_sent: u32,
    growth_waits: u64,
    refusals: Refusals,
}

impl<T: Clone + PartialEq> Core<T> {
    /// A file of `len` bytes, all durable. `held` is the marker that recovery left to the caller.
    pub fn new(len: u64, props: FileProps, planner: Planner, held: Option<Marker>) -> Self {
        Self {
            sizes: Sizes::settled(len),
            props,
            waiting: VecDeque::new(),
            called: None,
            reserved: VecDeque::new(),
            late: Vec::new(),
            in_flight: 0,
            overwrites: Overwrites::new(props.offset_unit),
            flushes: Flushes::default(),
            flushing: None,
            flush_after: None,
            flush_called: None,
            flush_postponed: false,
            awaiting_flush: VecDeque::new(),
            space: Space {
                planner,
                marker: held,
                truncations: 0,
                announced: None,
                mode: held.map_or(Mode::AppendOnly, |marker| marker.mode),
                jumped: false,
                prepared: props.prepared,
                held,
                old_to: 0,
                written_to: 0,
                zeros_to: 0,
                hole_to: 0,
                growing: None,
                need: None,
                tried: None,
                grower_running: false,
                paused: false,
                exhausted: false,
                growth_ends: false,
            },
            cohort: 1,
            expected: 1,
            has_company: false,
            stopped: None,
            next_id: 0,
            groups_sent: 0,
            growth_waits: 0,
            refusals: Refusals::default(),
        }
    }

    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The marker on disk.
    pub fn marker(&self) -> Option<Marker> {
        self.space.marker
    }

    /// How space ahead is prepared; `None` without growth.
    pub fn prepared(&self) -> Option<Prepared> {
        self.space.prepared
    }

    /// Whether the file can be recycled over its own space. The error is the reason in words.
    pub fn can_recycle(&self) -> Result<(), &'static str> {
        match self.space.prepared {
            None => Err(
                "the file does not grow ahead (disabled, a block device, or see its warning), so \
                 recovery would be impossible",
            ),
            Some(_) if !self.props.overwrites_in_place => Err(
                "the file system does not overwrite in place (btrfs without `chattr +C`), so no \
                 space can be reused",
            ),
            Some(_) => Ok(()),
        }
    }

    /// The base that stays until the caller truncates, if recovery left the end to the caller.
    pub fn held(&self) -> Option<u64> {
        self.space.held.map(|marker| marker.base)
    }

    /// How often an operation found too little space ahead.
    pub fn growth_waits(&self) -> u64 {
        self.growth_waits
    }

    /// How often an operation did not join a request, by reason.
    pub fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// Records whether other files of the file system share flushes now.
    pub fn set_company(&mut self, has_company: bool) {
        self.has_company = has_company;
    }

    /// Appends `segment`, for `token`.
    pub fn append(&mut self, token: T, segment: Segment, durable: bool, out: &mut Outbox<T>) {
        self.extend(Target::End, Member { token, segment, durable }, out);
    }

    /// Writes `segment` at `offset`, for `token`. Only for writes that need an order. Those extend
    /// the file or are durable. In a file with writes of parts of blocks, all need it.
    pub fn write(
        &mut self,
        token: T,
        segment: Segment,
        offset: u64,
        durable: bool,
        out: &mut Outbox<T>,
    ) {
        let member = Member { token, segment, durable };
        if self.may_overwrite(offset + segment.len()) {
            self.overwrite(offset, member, out);
        } else {
            self.extend(Target::At(offset), member, out);
        }
    }

    /// Takes one operation, for `token`.
    pub fn take(&mut self, token: T, dio: Dio, durable: bool, out: &mut Outbox<T>) {
        match dio {
            Dio::Append(segment) => self.append(token, segment, durable, out),
            Dio::Write(segment, offset) => self.write(token, segment, offset, durable, out),
            Dio::Sync => self.sync(token, out),
        }
    }

    /// Takes operations that were submitted together, each with whether it is durable. They form as
    /// few requests as possible. Their submitter is awake, so they need no leader.
    pub fn submit(&mut self, batch: impl IntoIterator<Item = (T, Dio, bool)>, out: &mut Outbox<T>) {
        let mut overwrites = SmallVec1::new();
        let is_idle = self.in_flight == 0;
        for (token, dio, durable) in batch {
            match dio {
                Dio::Append(segment) => {
                    self.join(Target::End, Member { token, segment, durable }, out);
                }
                Dio::Write(segment, offset) if self.may_overwrite(offset + segment.len()) => {
                    overwrites.push((offset, Member { token, segment, durable }));
                }
                Dio::Write(segment, offset) => {
                    self.join(Target::At(offset), Member { token, segment, durable }, out);
                }
                Dio::Sync => self.sync(token, out),
            }
        }
        self.overwrite_together(overwrites, out);
        if self.called.is_none() {
            self.send_waiting(out);
            // The rest of the batch has no other operation to wait for.
            while is_idle
                && self.in_flight < FULL_REQUESTS_MAX
                && let Some((offset, count)) = self.prepare_oldest(out)
            {
                self.send(offset, count, out);
            }
        }
        self.pump(out);
    }

    /// Makes everything written before durable, for `token`.
    pub fn sync(&mut self, token: T, out: &mut Outbox<T>) {
        match &self.stopped {
            Some(ErrorKind::Wedged(cause)) => {
                out.answer(token, Err(ErrorKind::Wedged(cause.clone())));
            }
            _ => {
                self.awaiting_flush.push_back((self.flushes.ticket(), token));
                self.start_flush(out);
            }
        }
    }

    /// Whether operations that were answered together may be about to come back together.
    pub fn gathers(&self) -> bool {
        merge::gathers(self.cohort, true)
    }

    /// Whether the elected leader's group has all expected operations, or no room for more.
    pub fn has_gathered(&self) -> bool {
        !self.waiting.is_empty() || self.extending_ones() >= self.expected
    }

    /// The number of extending operations that wait.
    fn extending_ones(&self) -> usize {
        self.called.iter().chain(&self.waiting).map(|group| group.members.len()).sum()
    }

    /// The number of groups that leaders have sent. The operations that arrive between two of them
    /// mostly go out together.
    pub fn groups_sent(&self) -> u32 {
        self.groups_sent
    }

    /// Runs a call: its leader is awake.
    pub fn on_called(&mut self, call: LeaderTask, out: &mut Outbox<T>) {
        self.groups_sent = self.groups_sent.wrapping_add(u32::from(call != LeaderTask::Flush));
        match call {
            LeaderTask::Extend => self.send_called(out),
            LeaderTask::Overwrite => self.send_overwrites(out),
            LeaderTask::Flush => self.begin_flush(out),
        }
    }

    /// Takes the result of request `id`.
    pub fn on_completed(&mut self, id: u64, result: Result<(), Failure>, out: &mut Outbox<T>) {
        let flushed = self.flushing.take_if(|flushing| flushing.id == id);
        if let Err(Failure { wedges: true, cause, .. }) = &result {
            self.wedge(cause.clone(), out);
        }
        match flushed {
            Some(FlushInFlight { generation, covers, .. }) => {
                self.flushes.end(generation, result.is_ok());
                if result.is_ok() {
                    self.sizes.durable_to(covers);
                }
            }
            None => match self.reserved.iter().position(|range| range.id == id) {
                Some(index) => self.on_extended(index, result),
                None => self.on_overwritten(id, result, out),
            },
        }
        self.settle(out);
        self.overwrites.vacate(id);
        if self.overwrites.waits() {
            self.release_overwrites(out);
        }
        self.let_late_ones_go(out);
        self.pump(out);
        if !out.outcomes.is_empty() {
            self.cohort = out.outcomes.len();
            self.expected = self.cohort + self.extending_ones();
        }
    }

    /// Records a flush that the core did not begin. It covers the bytes below `covers`, which were
    /// written when it began.
    pub fn on_flushed(&mut self, covers: u64, out: &mut Outbox<T>) {
        self.sizes.durable_to(covers.min(self.sizes.written));
        self.settle(out);
        self.pump(out);
    }

    /// Fails all operations from now on: a flush failed on this file system.
    pub fn wedge(&mut self, cause: Arc<Error>, out: &mut Outbox<T>) {
        if !self.wedged() {
            self.stopped = Some(ErrorKind::Wedged(cause));
        }
        self.fail_all(out);
    }

    /// Fails all waiters. An elected leader gets its error when it runs, and the owner of the flush
    /// in flight when that ends.
    fn fail_all(&mut self, out: &mut Outbox<T>) {
        let stopped = self.stopped.clone().expect("the caller set it");
        for (ticket, token) in std::mem::take(&mut self.awaiting_flush) {
            if self.is_flushing_for(&token) {
                self.awaiting_flush.push_back((ticket, token));
            } else {
                out.answer(token, Err(stopped.clone()));
            }
        }
        self.overwrites.fail_waiting(&stopped, out);
        self.settle(out);
    }

    /// Whether the operation leads the next flush, or owns the one in flight.
    pub(super) fn is_flushing_for(&self, token: &T) -> bool {
        let owner = self.flushing.as_ref().map(|flushing| &flushing.owner);
        [self.flush_called.as_ref(), owner].contains(&Some(token))
    }

    /// Pauses growth. Returns whether the grower is idle.
    pub fn pause_growth(&mut self) -> bool {
        self.space.paused = true;
        !self.space.grower_running
    }

    /// Resumes growth.
    pub fn resume_growth(&mut self) {
        self.space.paused = false;
    }

    /// Records that the file was truncated or extended to `len`. Nothing is in flight.
    pub fn truncate(&mut self, len: u64) {
        self.sizes.truncate(len);
        self.begin_anew(0);
    }

    /// Records that the file was recycled, and up to where its blocks are written. Nothing is in
    /// flight, and the marker on disk says so.
    pub fn recycle(&mut self, written_to: u64) {
        self.sizes.recycle();
        self.begin_anew(self.sizes.physical);
        self.space.written_to = written_to;
    }

    fn begin_anew(&mut self, old_to: u64) {
        assert!(self.reserved.is_empty() && self.waiting.is_empty() && self.called.is_none());
        assert!(self.late.is_empty());
        self.space.planner.reset();
        self.space.announced = None;
        self.space.held = None;
        self.space.old_to = old_to;
        self.space.written_to = 0;
        self.space.zeros_to = 0;
        self.space.hole_to = 0;
        self.space.mode = Mode::AppendOnly;
        self.space.exhausted = false;
        if matches!(self.stopped, Some(ErrorKind::AppendEnded(_))) {
            self.stopped = None;
        }
    }

    /// Records that the marker was removed.
    pub fn on_unmarked(&mut self) {
        self.space.marker = None;
        if std::mem::take(&mut self.space.growth_ends) {
            self.space.prepared = None;
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
