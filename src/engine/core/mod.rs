//! The life of every dio that others must know of, as a state machine without I/O: appends, writes
//! that extend the file, durable writes, flushes and growth. The engine holds it under one lock.
//!
//! Operations go in by `append`, `write` and `sync`; out come requests to perform (each with an
//! owner, one of those who wait for it), and outcomes. Whoever performed a request reports it by
//! `on_completed`. Everything between is decided here, by the leaf modules and these rules:
//!
//! 1. Space before offset: an extending write gets its offset only below `physical`, so a full disk
//!    is an error without a hole.
//! 2. Extending writes are acknowledged in the order of their offsets: never above a gap.
//! 3. A plain one is acknowledged when everything below its end is written, a durable one when
//!    everything below its end is durable.
//! 4. After a failure above `written` nothing can extend the file any more: it would lie behind a
//!    gap.
//! 5. A block is written by one request at a time: an append that begins in a block goes out when
//!    nothing that extends the file is in flight, nor a positional write of that block, and such a
//!    write waits for what extends the file.

mod extending;
mod flushes;
mod overwrites;
mod positional;
mod space;

use crate::buffer::{Buffer, Segment};
use crate::error::{Error, ErrorKind};
use crate::rules::flush::{Flushes, Generation, SyncMethod};
use crate::rules::growth::{Need, Plan, Planner};
use crate::rules::marker::{Identity, Marker, Mode, Prepared};
use crate::rules::merge::{FULL_REQUESTS_MAX, Limits, Refusals, Span};
use crate::rules::policy::Tail;
use crate::rules::size::Sizes;
use crate::sys::probe::{Facts, is_without_journal};
use positional::Positional;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// A list that is most often of one: a lone writer needs no memory for it.
pub(in crate::engine) type SmallVec1<T> = SmallVec<[T; 1]>;

/// What came of an operation: the offset written, or what stood in the way.
pub type Outcome = Result<u64, ErrorKind>;

/// One request to perform, and who should: an operation that waits for it.
#[derive(Debug)]
pub struct Request<T> {
    pub id: u64,
    pub owner: T,
    pub work: Work,
}

/// What to perform.
#[derive(Debug)]
pub enum Work {
    /// Write the segments one behind the other, all or nothing.
    Write {
        segments: SmallVec1<Segment>,
        offset: u64,
        /// So many bytes go out by a call of their own, before the others; of records, of the
        /// blocks that they become.
        head: u64,
        sync_method: Option<SyncMethod>,
        /// The end of the file, if the write itself moves i_size: to be restored if the write
        /// fails.
        extends: Option<u64>,
        /// The segments are records of any length, to be packed into blocks before they go out.
        records: bool,
        /// Where what segments say was put together, if it was.
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

/// Something to do next, put together only when its owner is awake for it: whoever came meanwhile
/// goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Send out those who wait to extend the file.
    Extend,
    /// Send out the durable writes that wait.
    Overwrite,
    /// Begin the next flush.
    Flush,
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// For the operations that the request carried.
    pub kind: ErrorKind,
    /// The same with operation, path and offset, for those that fail because of it.
    pub cause: Arc<Error>,
    /// Nothing on the file system can be trusted any more.
    pub wedges: bool,
}

/// An operation for the core.
#[derive(Clone, Copy, Debug)]
pub enum Dio {
    /// Append the segment.
    Append(Segment),
    /// Write the segment at this offset.
    Write(Segment, u64),
    /// Make stable what was written before.
    Sync,
}

/// What a step of the machine gave: requests to perform, outcomes to hand back, and whether to
/// start the grower.
#[derive(Debug)]
pub struct Outbox<T> {
    pub requests: SmallVec1<Request<T>>,
    /// Each with its owner, one of those who wait for it; to be given back by `on_called`.
    pub calls: SmallVec1<(T, Call)>,
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

/// What the file is, and what its file system does.
#[derive(Clone, Copy, Debug)]
pub struct FileProps {
    pub identity: Identity,
    pub limits: Limits,
    /// Appends are packed into blocks of this.
    pub append_unit: u64,
    /// What becomes of a last block that is not full.
    pub tail: Tail,
    pub is_device: bool,
    /// Each write is durable when it returns (see `Facts`), so that a durable write has no flush to
    /// share.
    pub writes_through: bool,
    /// ext4 without a journal, where a write and a flush of its own lost more than a durable write.
    pub without_journal: bool,
    /// What was written once is written over where it lies, and so needs no space again. Known of
    /// files that grow ahead.
    pub overwrites_in_place: bool,
    /// How space ahead is prepared; nothing where it is not.
    pub prepared: Option<Prepared>,
    /// Where the epochs of markers start.
    pub epoch: u32,
}

impl FileProps {
    /// Of a file that does not grow ahead.
    pub fn of(facts: &Facts) -> Self {
        Self {
            identity: facts.identity,
            limits: facts.limits,
            append_unit: facts.alignment.append,
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

/// What a growth job is to do.
#[derive(Clone, Copy, Debug)]
pub struct GrowthJob {
    pub marker: Marker,
    /// The marker is on disk already: the job before this one announced it.
    pub announced: bool,
    /// Nothing when only the marker has to change.
    pub plan: Option<Plan>,
    /// The file is not to grow any more: what is above this goes, and then the marker.
    pub ends: Option<u64>,
}

/// One operation on its way.
#[derive(Debug)]
pub(in crate::engine) struct Member<T> {
    pub token: T,
    pub segment: Segment,
    pub durable: bool,
}

/// Extending operations that will go out together: appends, without an offset yet, or positional
/// writes.
#[derive(Debug)]
struct Waiting<T> {
    /// Appends in the order in which they came. Positional writes have none among each other, and
    /// stand by their offsets.
    members: SmallVec1<(Place, Member<T>)>,
    bytes: u64,
    /// Some of them have gone already: only those that stand side by side share a request.
    begun: bool,
    /// It waited already because it shares a block with what is in flight.
    held_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    End,
    At(u64),
}

/// A reserved part of the file, until it is acknowledged.
#[derive(Debug)]
struct Reserved<T> {
    id: u64,
    /// From the end of the one before: a hole left on purpose is part of it.
    span: Span,
    /// With the offset of each.
    members: SmallVec1<(T, u64)>,
    durable: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    InFlight(Option<SyncMethod>),
    Written { synced: bool },
    Failed(ErrorKind),
}

/// The space ahead of the writers.
#[derive(Debug)]
struct Space {
    planner: Planner,
    /// As it is on disk, if it is there.
    marker: Option<Marker>,
    /// Counts markers that announce that the file becomes shorter, or begins anew; and what came of
    /// the former.
    truncations: u8,
    /// The next step, if the marker on disk announces it.
    announced: Option<Plan>,
    /// What the next marker must say.
    mode: Mode,
    /// A positional write past the end went out, in this life of the file or an earlier one.
    jumped: bool,
    prepared: Option<Prepared>,
    /// Recovery left it to the caller to cut; until then the next markers keep its base, and why it
    /// is not known.
    held: Option<Marker>,
    /// What the file held before it was recycled reaches to here; 0 if it was not.
    old_to: u64,
    /// What lies between the end of what was handed out and this reads as zeros.
    zeros_to: u64,
    need: Option<Need>,
    grower_running: bool,
    paused: bool,
    /// No space was left when growing ahead: wait for somebody who needs it.
    exhausted: bool,
    /// Growth was refused for good, and the marker still stands. Nothing that extends the file goes
    /// out until it is away.
    ends: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Core<T> {
    sizes: Sizes,
    props: FileProps,
    waiting: VecDeque<Waiting<T>>,
    /// Those whose first member is called to send them out. They are before all in `waiting`.
    called: Option<Waiting<T>>,
    reserved: VecDeque<Reserved<T>>,
    /// Those whom others have jumped over while they were on their way: each waits until the file
    /// is written beyond it, since what is above `written` is neither seen nor acknowledged.
    late: Vec<(u64, Member<T>)>,
    in_flight: usize,
    positional: Positional<T>,
    flushes: Flushes,
    /// The flush in flight: its request, its number, and how far the file was written when it
    /// began.
    flushing: Option<(u64, Generation, u64)>,
    /// The next flush waits for the requests up to this one that are in flight.
    flush_after: Option<u64>,
    /// Who is called to begin the next flush.
    flush_called: Option<T>,
    /// The next flush was held up already for those who came while its owner awoke.
    flush_postponed: bool,
    awaiting_flush: VecDeque<(Generation, T)>,
    space: Space,
    /// How many were answered together last.
    cohort: usize,
    stopped: Option<ErrorKind>,
    next_id: u64,
    growth_waits: u64,
    refusals: Refusals,
}

impl<T: Clone + PartialEq> Core<T> {
    /// A file of `len` bytes, all of it stable. `held` is what recovery left to the caller.
    pub fn new(len: u64, props: FileProps, planner: Planner, held: Option<Marker>) -> Self {
        Self {
            sizes: Sizes::settled(len),
            props,
            waiting: VecDeque::new(),
            called: None,
            reserved: VecDeque::new(),
            late: Vec::new(),
            in_flight: 0,
            positional: Positional::default(),
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
                zeros_to: 0,
                need: None,
                grower_running: false,
                paused: false,
                exhausted: false,
                ends: false,
            },
            cohort: 1,
            stopped: None,
            next_id: 0,
            growth_waits: 0,
            refusals: Refusals::default(),
        }
    }

    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The marker that is on disk.
    pub fn marker(&self) -> Option<Marker> {
        self.space.marker
    }

    /// How space is prepared ahead, if it is.
    pub fn prepared(&self) -> Option<Prepared> {
        self.space.prepared
    }

    /// Whether the file can begin anew over its own space: or in words, why not.
    pub fn can_recycle(&self) -> Result<(), &'static str> {
        match self.space.prepared {
            None => Err(
                "it does not grow ahead (asked not to, a block device, or the log says why), so a \
                 crash could not be recovered from",
            ),
            Some(_) if !self.props.overwrites_in_place => Err(
                "this file system would write elsewhere (btrfs does without `chattr +C`), so there \
                 is nothing to reuse",
            ),
            Some(_) => Ok(()),
        }
    }

    /// The base that stays until the caller cuts, if recovery left that to it.
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

    /// Appends `segment`, for `token`.
    pub fn append(&mut self, token: T, segment: Segment, durable: bool, out: &mut Outbox<T>) {
        self.extend(Place::End, Member { token, segment, durable }, out);
    }

    /// Writes `segment` at `offset`, for `token`. Only for writes that extend the file or are
    /// durable: others need no order.
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
            self.extend(Place::At(offset), member, out);
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

    /// Takes operations that were submitted together, each with whether it is durable: they go out
    /// together, as few requests. Whoever submitted them is awake.
    pub fn submit(&mut self, batch: impl IntoIterator<Item = (T, Dio, bool)>, out: &mut Outbox<T>) {
        let mut overwrites = SmallVec1::new();
        let is_idle = self.in_flight == 0;
        for (token, dio, durable) in batch {
            match dio {
                Dio::Append(segment) => {
                    self.join(Place::End, Member { token, segment, durable }, out);
                }
                Dio::Write(segment, offset) if self.may_overwrite(offset + segment.len()) => {
                    overwrites.push((offset, Member { token, segment, durable }));
                }
                Dio::Write(segment, offset) => {
                    self.join(Place::At(offset), Member { token, segment, durable }, out);
                }
                Dio::Sync => self.sync(token, out),
            }
        }
        self.overwrite_together(overwrites, out);
        if self.called.is_none() {
            self.send_waiting(out);
            // What is left over of a batch has nobody to wait for.
            while is_idle
                && self.in_flight < FULL_REQUESTS_MAX
                && let Some((offset, count)) = self.prepare_oldest(out)
            {
                self.send(offset, count, out);
            }
        }
        self.pump(out);
    }

    /// Makes stable what was written before, for `token`.
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

    /// Whoever was called is awake.
    pub fn on_called(&mut self, call: Call, out: &mut Outbox<T>) {
        match call {
            Call::Extend => self.send_called(out),
            Call::Overwrite => self.send_overwrites(out),
            Call::Flush => self.begin_flush(out),
        }
    }

    /// Reports a request performed.
    pub fn on_completed(&mut self, id: u64, result: Result<(), Failure>, out: &mut Outbox<T>) {
        if let Err(Failure { wedges: true, cause, .. }) = &result {
            self.wedge(cause.clone(), out);
        }
        match self.flushing {
            Some((flush, generation, covered)) if flush == id => {
                self.flushing = None;
                self.flushes.end(generation, result.is_ok());
                if result.is_ok() {
                    self.sizes.durable_to(covered);
                }
            }
            _ => match self.reserved.iter().position(|part| part.id == id) {
                Some(index) => self.on_extended(index, result),
                None => self.on_overwritten(id, result, out),
            },
        }
        self.settle(out);
        self.let_late_ones_go(out);
        self.pump(out);
        if !out.outcomes.is_empty() {
            self.cohort = out.outcomes.len();
        }
    }

    /// From now on everything fails: a flush failed on this file system.
    pub fn wedge(&mut self, cause: Arc<Error>, out: &mut Outbox<T>) {
        if !self.wedged() {
            self.stopped = Some(ErrorKind::Wedged(cause));
        }
        self.fail_all(out);
    }

    /// Whoever is called is answered when it comes.
    fn fail_all(&mut self, out: &mut Outbox<T>) {
        let stopped = self.stopped.clone().expect("the caller set it");
        for (ticket, token) in std::mem::take(&mut self.awaiting_flush) {
            if self.flush_called.as_ref() == Some(&token) {
                self.awaiting_flush.push_back((ticket, token));
            } else {
                out.answer(token, Err(stopped.clone()));
            }
        }
        self.positional.fail_waiting(&stopped, out);
        self.settle(out);
    }

    /// Keeps the grower out; returns whether it is idle.
    pub fn pause_growth(&mut self) -> bool {
        self.space.paused = true;
        !self.space.grower_running
    }

    /// Lets the grower work again.
    pub fn resume_growth(&mut self) {
        self.space.paused = false;
    }

    /// With nothing in flight, the file was cut (or extended) to `len`.
    pub fn cut(&mut self, len: u64) {
        self.sizes.cut(len);
        self.begin_anew(0);
    }

    /// With nothing in flight, and a marker on disk that says so, the file begins anew over the
    /// space that it has.
    pub fn recycle(&mut self) {
        self.sizes.recycle();
        self.begin_anew(self.sizes.physical);
    }

    fn begin_anew(&mut self, old_to: u64) {
        assert!(self.reserved.is_empty() && self.waiting.is_empty() && self.called.is_none());
        assert!(self.late.is_empty());
        self.space.planner.reset();
        self.space.announced = None;
        self.space.held = None;
        self.space.old_to = old_to;
        self.space.zeros_to = 0;
        self.space.mode = Mode::AppendOnly;
        self.space.exhausted = false;
        if matches!(self.stopped, Some(ErrorKind::AppendEnded(_))) {
            self.stopped = None;
        }
    }

    /// The file carries no marker any more.
    pub fn on_unmarked(&mut self) {
        self.space.marker = None;
        if std::mem::take(&mut self.space.ends) {
            self.space.prepared = None;
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
