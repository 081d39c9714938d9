//! One open file or device: the control flow between the core, the backend and the callers. All
//! handles and threads of the file share it.
//!
//! A caller submits its operation to the [`Core`] and waits, unless the core need not know of it
//! (`course_of_write`, `write_among`, `sync_among`). The core returns requests, and each
//! goes to one of the callers that wait for it. There are no I/O threads. A lone writer performs
//! its own write. With many writers, the first of a group writes for the group (leader and
//! followers).

mod abort;
mod core;
#[cfg(test)]
mod core_model;
mod exclusive;
mod grower;
pub(crate) mod handle;
mod inbox;
mod io;
#[cfg(all(test, loom))]
mod models;
mod packing;
mod placement;
pub(crate) mod process;
pub(crate) mod queue;
pub(crate) mod reactor;
pub(crate) mod reader;
mod reading;
pub(crate) mod recover;
pub(crate) mod registry;
#[cfg(test)]
mod tests;
mod token;
mod truncate;
mod waiter;

pub(crate) use core::FileProps;
pub(crate) use io::{RequestIo, part_of, read_fully, write_fully};
pub(crate) use reading::read_up_to;

use crate::backend::Backend;
use crate::backend::journal::Journal;
use crate::buffer::Segment;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::observe::{self, Event, Timestamp};
use crate::os_error::{self, flushed};
use crate::rules::flush::{Reach, SyncMethod, Turn};
use crate::rules::growth::{GrowthConfig, Planner};
use crate::rules::marker::{Marker, Prepared};
use crate::rules::merge::{self, Refusals, Sequential, Span};
use crate::rules::pack::{self, Shape};
use crate::rules::policy::Growth;
use crate::rules::recovery::Recovery;
use crate::rules::size::Sizes;
use crate::stats::{Counters, Stats, count};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::inflight::{DrainGate, InFlightGuard};
use crate::sync::{CachePadded, Condvar, JoinHandle, Mutex, MutexGuard, now, yield_now};
use crate::sys::journal::{FAST_COMMITS, Order};
use crate::sys::probe::Alignment;
use crate::text::shown;
use abort::AbortOnPanic;
use core::{Core, Dio, Failure, Fill, LeaderTask, Outbox, Request, RequestCall, Work};
use packing::Packer;
use placement::Placement;
use process::{CountedDurable, EndedFlush, FileSystems, Flushing, Process};
use reactor::Reactor;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use token::Token;
use waiter::{News, Sleepers, Task, Wakeup};

/// The parts of an engine, once the file is open, locked and recovered.
pub(crate) struct Parts {
    pub backend: Arc<dyn Backend>,
    /// The journal by which the file shares flushes; or why it shares none.
    pub journal: Result<Arc<dyn Journal>, String>,
    /// The order in which the file system commits changes, if it is known.
    pub order: Option<Order>,
    pub path: Arc<Path>,
    pub process: &'static Process,
    pub fs: FileSystems,
    pub props: FileProps,
    pub alignment: Alignment,
    pub growth_config: GrowthConfig,
    pub recovery: Recovery,
    /// The marker that stays, if only the caller can find the end of the file.
    pub held: Option<Marker>,
}

/// Whether the durable writes of threads are adjacent. An update that is lost does no harm.
#[derive(Debug, Default)]
struct SequentialWrites {
    /// The end of the last one.
    end: AtomicU64,
    /// [`Sequential`].
    score: AtomicU64,
}

/// One open file or device.
#[derive(Debug)]
pub(crate) struct Engine {
    pub backend: Arc<dyn Backend>,
    pub alignment: Alignment,
    pub recovery: Recovery,
    path: Arc<Path>,
    process: &'static Process,
    fs: FileSystems,
    is_device: bool,
    writes_through: bool,
    /// Plain writes flush as well, so the ledger counts each of them as a flush.
    flushes_each_write: bool,
    /// With a journal, a flush may be that of another file. Otherwise the reason in words.
    journal: Result<Arc<dyn Journal>, String>,
    /// While it holds, growth and its markers need no flush.
    order: Option<Order>,
    placement: CachePadded<Placement>,
    core: CachePadded<Mutex<Core<Token>>>,
    packer: CachePadded<Packer>,
    sleepers: Arc<Sleepers>,
    /// Copy of the core's `written`, readable without its lock.
    len: CachePadded<AtomicU64>,
    /// Copy of the core's `durable`.
    durable: CachePadded<AtomicU64>,
    /// Copy of [`Core::wedged`]. Set once.
    stopped: AtomicBool,
    gate: DrainGate,
    grower_ended: Condvar,
    grower: Mutex<Option<JoinHandle>>,
    /// Bytes that the growth budget charges for this file.
    charged: Mutex<u64>,
    /// Upper bound of the size that a failed append or growth left, if that could not be taken
    /// back.
    left_behind: AtomicU64,
    /// Below this offset, the file had its space when it was opened.
    kept_to: AtomicU64,
    /// Set once. Read wherever a queue begins an operation.
    closed: AtomicBool,
    /// Set once, while no operation is in flight. Some writes replace parts of blocks, so the core
    /// orders all writes.
    writes_parts: AtomicBool,
    sequential: CachePadded<SequentialWrites>,
    /// Reactors of other threads that may hold this engine.
    reactors: Mutex<Vec<Arc<Reactor>>>,
    counters: CachePadded<Counters>,
}

impl Engine {
    pub fn new(parts: Parts) -> Self {
        let len = parts.recovery.ceiling;
        let flushes_each_write = parts.backend.flushes_each_write();
        let placement = Placement::new(parts.fs.clone());
        if parts.journal.is_ok() {
            // The extents that one commit covers. Without them, each file needs one of its own.
            placement.look_at_all(&*parts.backend, len);
        }
        let core = Core::new(len, parts.props, Planner::new(parts.growth_config), parts.held);
        Self {
            backend: parts.backend,
            alignment: parts.alignment,
            recovery: parts.recovery,
            path: parts.path,
            process: parts.process,
            fs: parts.fs,
            is_device: parts.props.is_device,
            writes_through: parts.props.writes_through,
            flushes_each_write,
            journal: parts.journal,
            order: parts.order,
            placement: CachePadded(placement),
            core: CachePadded(Mutex::new(core)),
            packer: CachePadded(Packer::new(parts.alignment)),
            sleepers: Arc::default(),
            len: CachePadded(AtomicU64::new(len)),
            durable: CachePadded(AtomicU64::new(len)),
            stopped: AtomicBool::new(false),
            gate: DrainGate::default(),
            grower_ended: Condvar::default(),
            grower: Mutex::default(),
            charged: Mutex::new(0),
            left_behind: AtomicU64::new(0),
            kept_to: AtomicU64::new(len),
            closed: AtomicBool::new(false),
            writes_parts: AtomicBool::new(false),
            sequential: CachePadded::default(),
            reactors: Mutex::default(),
            counters: CachePadded::default(),
        }
    }

    pub fn growth(&self) -> Growth {
        match self.lock().prepared() {
            Some(Prepared::Unwritten) => Growth::Unwritten,
            Some(Prepared::Zeroed) => Growth::Zeroed,
            None => Growth::None,
        }
    }

    /// Length in bytes: the end of the written data, without space that was only grown.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// The descriptor that the check of the order of commits keeps open.
    pub fn descriptor_of_order(&self) -> Option<BorrowedFd<'_>> {
        self.order.as_ref()?.descriptor()
    }

    pub fn stats(&self) -> Stats {
        let counted = self.counters.snapshot();
        // A lock that the parent held at the fork stays locked in the child.
        if !self.process.is_current() {
            return counted;
        }
        let below = self.backend.request_counts();
        let core = self.lock();
        let mut refusals = core.refusals();
        refusals.add(below.refused);
        let Refusals { gap, bytes, segments, member, order } = refusals;
        Stats {
            requests: below.requests.unwrap_or(counted.requests + below.more_requests),
            metadata_requests: below.metadata_requests,
            growth_waits: core.growth_waits(),
            refused_gap: gap,
            refused_bytes: bytes,
            refused_segments: segments,
            refused_member: member,
            refused_order: order,
            ..counted
        }
    }

    pub fn append(self: &Arc<Self>, data: &[u8], durable: bool) -> Result<u64> {
        let begun = observe::begun();
        let _pass = self.begin(Operation::Append)?;
        match self.course_of_append(data)? {
            Course::Core(dio) => {
                let offset = self
                    .run(dio, durable)
                    .map_err(|kind| self.error(Operation::Append, None, kind))?;
                self.on_appended(data.len() as u64, begun);
                Ok(offset)
            }
            Course::Done(offset) | Course::Direct(offset) => Ok(offset),
        }
    }

    pub fn write_at(self: &Arc<Self>, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        let fail = |kind| self.error(Operation::Write, Some(offset), kind);
        self.prepare_write(data.len() as u64, offset);
        let _pass = self.begin(Operation::Write)?;
        let one = (durable && self.journal.is_ok()).then(|| self.fs.count_durable());
        // Only after the end is checked.
        let range = || offset..offset + data.len() as u64;
        let is_among_many = one.as_ref().is_some_and(CountedDurable::is_among_many);
        match self.course_of_write(data, offset, durable)? {
            Course::Core(_) if is_among_many && self.goes_alone(data, range()) => {
                self.write_among(data, offset).map_err(fail)
            }
            Course::Core(dio) => self.run(dio, durable).map(drop).map_err(fail),
            Course::Direct(_) => {
                let segments = &[Segment::of(data)];
                let transfer = RequestIo::of_write(data.len() as u64, self.alignment.offset)
                    .with_flush(durable);
                let result = io::write_fully(&*self.backend, segments, offset, transfer);
                self.judge_place(result, range(), self.placement.is_flush_shared())
                    .map_err(|failure| fail(failure.kind))
            }
            Course::Done(_) => Ok(()),
        }
    }

    /// A durable write of a thread beside those of others: a write, then a flush that they share.
    /// The core need not know of either.
    fn write_among(self: &Arc<Self>, data: &[u8], offset: u64) -> Result<(), ErrorKind> {
        let begun = observe::begun();
        let (bytes, segments) = (data.len() as u64, &[Segment::of(data)]);
        self.count_request(1, None);
        count(&self.counters.request_bytes, bytes);
        let transfer = RequestIo::of_write(bytes, self.alignment.offset);
        let result = io::write_fully(&*self.backend, segments, offset, transfer);
        let result = self.judge_place(result, offset..offset + bytes, true);
        observe::ended(begun, |took| {
            let (file, error) = (&*self.path, result.as_ref().err().map(|failure| &*failure.cause));
            Event::Write { file, operations: 1, bytes, dsync: false, took, error }
        });
        result.map_err(|failure| failure.kind)?;
        self.sync_among()
    }

    /// A flush of a thread beside those of others, for all writes of the file that have finished.
    fn sync_among(self: &Arc<Self>) -> Result<(), ErrorKind> {
        queue::settle_own();
        let _all_or_nothing = AbortOnPanic::armed();
        let covers = self.len();
        match self.flush_among(true) {
            Ok(()) if self.durable.load(Ordering::Relaxed) < covers => {
                self.step(|core, out| core.on_flushed(covers, out));
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(failure) => {
                // It also fails the operations that the core has.
                self.step(|core, out| core.wedge(failure.cause.clone(), out));
                Err(ErrorKind::Wedged(failure.cause))
            }
        }
    }

    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let closed = || self.error(Operation::Read, Some(offset), ErrorKind::Os(libc::EBADF));
        self.read_unless_closed(into, offset)?.ok_or_else(closed)
    }

    /// Like [`read_at`](Self::read_at); returns `None` if the file was closed before.
    pub fn read_unless_closed(&self, into: &mut [u8], offset: u64) -> Result<Option<usize>> {
        let fail = |kind| self.error(Operation::Read, Some(offset), kind);
        let _pass = self.begin(Operation::Read)?;
        // Inside the gate: close sets this while it holds the gate shut.
        if self.is_closed() {
            return Ok(None);
        }
        let read = read_up_to(&*self.backend, into, offset, self.len(), self.alignment);
        read.map(|read| Some(read as usize)).map_err(|error| fail(os_error::kind(&error)))
    }

    pub fn sync_data(self: &Arc<Self>) -> Result<()> {
        let fail = |kind| self.error(Operation::Flush, None, kind);
        let _pass = self.begin(Operation::Flush)?;
        let one = self.journal.is_ok().then(|| self.fs.count_durable());
        if one.as_ref().is_some_and(CountedDurable::is_among_many) && !self.is_stopped() {
            self.sync_among().map_err(fail)
        } else {
            self.run(Dio::Sync, true).map(drop).map_err(fail)
        }
    }

    /// Whether one flush can be that of both files.
    pub fn shares_flushes_with(&self, other: &Self) -> bool {
        match (&self.journal, &other.journal) {
            (Ok(one), Ok(other)) => Arc::ptr_eq(one, other) && !self.fs.has_ended_sharing(),
            _ => false,
        }
    }

    /// Why each flush is one of this file alone, if so.
    pub fn why_no_shared_flush(&self) -> Option<&str> {
        let ended = || self.fs.has_ended_sharing().then_some(FAST_COMMITS);
        self.journal.as_ref().err().map(String::as_str).or_else(ended)
    }

    // --- checks ----------------------------------------------------------------------------------

    fn course_of_append(&self, data: &[u8]) -> Result<Course> {
        let fail = |kind| self.error(Operation::Append, None, kind);
        if self.is_device {
            return Err(fail(ErrorKind::Unsupported(
                "a block device has no end to append to".into(),
            )));
        }
        if data.is_empty() {
            return Ok(Course::Done(self.len()));
        }
        Ok(Course::Core(Dio::Append(Segment::of(data))))
    }

    fn course_of_read(&self, into: &[u8], offset: u64) -> Course {
        match self.len().saturating_sub(offset).min(into.len() as u64) {
            0 => Course::Done(0),
            left => Course::Direct(left),
        }
    }

    fn course_of_write(&self, data: &[u8], offset: u64, durable: bool) -> Result<Course> {
        let end = self.end_of_write(data.len() as u64, offset)?;
        if data.is_empty() {
            return Ok(Course::Done(0));
        }
        // There is no flush to share or to fail.
        let has_no_flush = !durable || self.writes_through;
        let is_direct = has_no_flush && self.is_independent(data, offset..end);
        Ok(match is_direct {
            true => Course::Direct(data.len() as u64),
            false => Course::Core(Dio::Write(Segment::of(data), offset)),
        })
    }

    /// Whether the core need not know of a write: the file system orders overlapping ones.
    fn is_independent(&self, data: &[u8], range: Range<u64>) -> bool {
        let append_unit = self.alignment.append;
        // An append may rewrite a partial last block.
        let is_in_full_blocks =
            self.is_device || range.end <= self.len() / append_unit * append_unit;
        is_in_full_blocks
            && !self.writes_parts()
            && self.needs_no_packing(data, range.start)
            && !self.flushes_each_write
    }

    /// Whether a durable write beside others is best a request by itself. The core merges adjacent
    /// ones.
    fn goes_alone(&self, data: &[u8], range: Range<u64>) -> bool {
        let Range { start, end } = range;
        let is_adjacent = self.sequential.end.swap(end, Ordering::Relaxed) == start;
        let before = Sequential(self.sequential.score.load(Ordering::Relaxed));
        let score = before.after(is_adjacent);
        if score != before {
            self.sequential.score.store(score.0, Ordering::Relaxed);
        }
        !score.merges(end - start) && !self.is_stopped() && self.is_independent(data, start..end)
    }

    /// The end of a write. Fails if that is impossible on this file.
    fn end_of_write(&self, len: u64, offset: u64) -> Result<u64> {
        let fail = |kind| self.error(Operation::Write, Some(offset), kind);
        let unit = self.alignment.offset;
        let last_end = i64::MAX as u64 / unit * unit;
        let Some(end) = offset.checked_add(len).filter(|end| *end <= last_end) else {
            return Err(fail(ErrorKind::NoSpace(libc::EFBIG)));
        };
        // A device of an odd size ends inside a unit, which cannot be written.
        if len > 0 && self.is_device && end.next_multiple_of(unit) > self.len() {
            return Err(fail(ErrorKind::Os(libc::ENOSPC)));
        }
        Ok(end)
    }

    /// Whether the kernel takes the write as it is.
    fn needs_no_packing(&self, data: &[u8], offset: u64) -> bool {
        let Alignment { memory, offset: block, .. } = self.alignment;
        pack::fits(offset, [(data.as_ptr().addr(), data.len() as u64)], Shape { block, memory })
    }

    // --- begin and close -------------------------------------------------------------------------

    /// Whether [`prepare_write`](Self::prepare_write) would wait for operations in flight: it is
    /// the first write of a part of a block.
    pub fn must_prepare(&self, len: u64, offset: u64) -> bool {
        let unit = self.alignment.offset;
        let is_part = !(offset.is_multiple_of(unit) && len.is_multiple_of(unit));
        is_part
            && len > 0
            && !self.writes_parts()
            && self.check_usable(Operation::Write).is_ok()
            && self.end_of_write(len, offset).is_ok()
    }

    /// Prepares the file for a write that is about to begin.
    pub fn prepare_write(&self, len: u64, offset: u64) {
        if self.must_prepare(len, offset) {
            queue::settle_own();
            // No write that the core does not know is in flight from here on.
            let _alone = self.gate.shut();
            self.writes_parts.store(true, Ordering::Release);
        }
    }

    fn writes_parts(&self) -> bool {
        self.writes_parts.load(Ordering::Acquire)
    }

    /// Enters the gate. Fails with `Forked` in a child, and with `Wedged` after a failed flush,
    /// except for reads.
    fn begin(&self, operation: Operation) -> Result<InFlightGuard<'_>> {
        self.check_usable(operation)?;
        if let Some(pass) = self.gate.try_pass() {
            return Ok(pass);
        }
        // The exclusive operation may wait for this thread's own queues.
        queue::settle_own();
        let pass = self.gate.enter();
        // The exclusive operation may have failed.
        self.check_usable(operation)?;
        Ok(pass)
    }

    /// Refuses new operations, and waits until the reactors have released the file. Truncates and
    /// unlocks nothing: for an engine that only reads.
    pub fn release(&self) {
        // A waker in a reactor may wait for this thread's own queues.
        queue::settle_own();
        self.refuse_all();
        self.await_reactors();
    }

    fn refuse_all(&self) {
        self.closed.store(true, Ordering::Release);
        self.process.count_close();
        queue::let_go_of_closed();
    }

    /// Waits until reactors in other threads have released the file. The gate must be open
    /// meanwhile, or their operations would wait for it.
    fn await_reactors(&self) {
        let reactors = std::mem::take(&mut *self.reactors.lock());
        reactors.iter().for_each(|reactor| reactor.let_go_of_closed());
    }

    /// Registers a reactor that works on the file. Close waits until it releases the file.
    pub fn attach(&self, reactor: &Arc<Reactor>) {
        let mut reactors = self.reactors.lock();
        reactors.retain(|known| !known.is_gone());
        if !reactors.iter().any(|known| Arc::ptr_eq(known, reactor)) {
            reactors.push(reactor.clone());
        }
    }

    /// The file systems of the file.
    pub fn file_systems(&self) -> &FileSystems {
        &self.fs
    }

    /// Whether the engine refuses new operations.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn check_usable(&self, operation: Operation) -> Result<()> {
        if !self.process.is_current() {
            return Err(self.error(operation, None, ErrorKind::Forked));
        }
        match self.fs.wedged() {
            Some(cause) if operation != Operation::Read => {
                Err(self.error(operation, None, ErrorKind::Wedged(cause.clone())))
            }
            _ => Ok(()),
        }
    }

    /// An error with the path of this file.
    pub fn error(&self, operation: Operation, offset: Option<u64>, kind: ErrorKind) -> Error {
        Error::new(operation, &self.path, offset, kind)
    }

    // --- the life of an operation ----------------------------------------------------------------

    fn lock(&self) -> MutexGuard<'_, Core<Token>> {
        self.core.lock()
    }

    /// Submits an operation to the core and waits for its outcome. Meanwhile performs the tasks
    /// that the core assigns to it.
    fn run(self: &Arc<Self>, dio: Dio, durable: bool) -> Result<u64, ErrorKind> {
        queue::settle_own();
        let me = waiter::mine(&self.sleepers);
        let group = self.step(|core, out| {
            core.take(Token::Thread(me.clone()), dio, durable, out);
            core.groups_sent()
        });
        loop {
            let news = me.next(durable, group);
            let _all_or_nothing = AbortOnPanic::armed();
            match news {
                News::Task(Task::Request(request)) => self.perform(request),
                News::Task(Task::Flush(..)) => unreachable!("a thread waits for its turn"),
                News::Task(Task::Lead(call)) => self.on_called(call, durable),
                News::Done(outcome) => return outcome,
            }
        }
    }

    /// Changes the core, then hands out its requests, calls and outcomes.
    fn step<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Core<Token>, &mut Outbox<Token>) -> R,
    ) -> R {
        let _all_or_nothing = AbortOnPanic::armed();
        let (result, out) = self.change(false, change);
        if self.hand_out(out) && !self.start_grower() {
            self.grow();
        }
        result
    }

    /// Hands out requests, calls and outcomes. Returns whether the grower must start. Not inlined:
    /// copies of it make the frames of callers large, and a program may lend the preload library a
    /// small stack.
    #[inline(never)]
    fn hand_out(&self, out: Outbox<Token>) -> bool {
        // Requests first: the device is busy before finished operations are woken.
        for request in out.requests {
            request.owner.clone().assign(Task::Request(request));
        }
        for (owner, call) in out.calls {
            owner.assign(Task::Lead(call));
        }
        let mut wakeup = Wakeup::default();
        for (token, outcome) in out.outcomes {
            token.finish(outcome, &mut wakeup);
        }
        self.sleepers.wake(wakeup);
        out.start_grower
    }

    /// Changes the core. The caller hands out the outbox. With `others_come`, other files are about
    /// to need a flush.
    fn change<R>(
        &self,
        others_come: bool,
        change: impl FnOnce(&mut Core<Token>, &mut Outbox<Token>) -> R,
    ) -> (R, Outbox<Token>) {
        let mut out = Outbox::default();
        let has_company = self.is_in_company() || others_come && self.journal.is_ok();
        let mut core = self.lock();
        let _all_or_nothing = AbortOnPanic::armed();
        core.set_company(has_company);
        let result = change(&mut core, &mut out);
        self.publish(&core);
        (result, out)
    }

    /// Stores what others read without the lock. Only if it changed: they may be reading.
    fn publish(&self, core: &Core<Token>) {
        let Sizes { written, durable, .. } = core.sizes();
        for (copy, value) in [(&self.len, written), (&self.durable, durable)] {
            if copy.load(Ordering::Relaxed) != value {
                copy.store(value, Ordering::Release);
            }
        }
        if core.wedged() && !self.is_stopped() {
            self.stopped.store(true, Ordering::Release);
        }
    }

    /// Whether a failed flush has stopped the file. It may not have wedged the file system.
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Runs a call as the leader. A durable group is worth a yield to operations of the file that
    /// are about to join.
    fn on_called(self: &Arc<Self>, call: LeaderTask, durable: bool) {
        if durable && self.may_gather() {
            match call {
                LeaderTask::Extend => self.gather(),
                LeaderTask::Overwrite | LeaderTask::Flush => yield_now(),
            }
        }
        self.step(|core, out| core.on_called(call, out));
    }

    /// Yields to operations that are about to join: those that were answered together come back
    /// together.
    fn gather(&self) {
        let begun = now();
        for _ in 0..merge::GATHER_YIELDS_MAX {
            yield_now();
            if self.lock().has_gathered() || now() - begun > merge::GATHER_MAX {
                break;
            }
        }
    }

    /// Whether other operations of the file may be about to join. While files share flushes, that
    /// is so only after operations that were answered together.
    fn may_gather(&self) -> bool {
        !self.is_in_company() || self.lock().gathers()
    }

    /// Whether files share flushes now, this one among them.
    fn is_in_company(&self) -> bool {
        self.journal.is_ok() && self.fs.is_busy()
    }

    fn perform(self: &Arc<Self>, mut request: Request<Token>) {
        let result = match (&request.work, &self.journal) {
            (Work::Flush, Ok(_)) => self.flush_among(false),
            _ => self.perform_alone(&mut request),
        };
        self.step(|core, out| core.on_completed(request.id, result, out));
    }

    fn perform_alone(&self, request: &mut Request<Token>) -> Result<(), Failure> {
        let begun = self.begin_request(request, Turn::Alone)?;
        let result = match &request.work {
            Work::Flush => flushed(|| self.backend.flush()),
            Work::Write { segments, offset, .. } => {
                let transfer = self.transfer_of(&request.work);
                io::write_fully(&*self.backend, segments, *offset, transfer)
            }
        };
        let result = match self.end_flush(&request.work, begun, &result) {
            AfterFlush::Settles(ended) => self.fs.awaited(ended, result),
            AfterFlush::Final | AfterFlush::FlushesAlone => result,
        };
        let work = std::mem::replace(&mut request.work, Work::Flush);
        self.end_request(work, request.call.take(), result)
    }

    /// Makes the finished writes of the file durable, by a flush that others may share. Many
    /// threads need one now if `is_among_many`.
    fn flush_among(&self, is_among_many: bool) -> Result<(), Failure> {
        let mut needs = self.reach_of_flush();
        loop {
            let turn = needs.map_or_else(|turn| turn, |needs| self.fs.turn(needs, is_among_many));
            self.placement.on_flush(turn != Turn::Alone);
            let call = call_of(&Work::Flush, turn);
            self.count_flush(turn);
            let begun = self.begin_flush(&Work::Flush, turn);
            let result = match begun {
                Begun::Flush(_) => flushed(|| self.backend.flush()),
                Begun::Shared(..) => flushed(|| self.journal().commit()),
                Begun::Without => Ok(()),
                Begun::Superseded => continue,
            };
            let result = match self.end_flush(&Work::Flush, begun, &result) {
                AfterFlush::Final => result,
                AfterFlush::Settles(ended) => self.fs.awaited(ended, result),
                AfterFlush::FlushesAlone => {
                    needs = Err(Turn::Alone);
                    continue;
                }
            };
            return self.end_request(Work::Flush, call, result);
        }
    }

    /// Writes the file back. Returns the reach that its flush needs. `Err` is no error: the flush
    /// is not shared, and has this turn already. The write-back may wait, so it comes before
    /// [`share`](Self::share): no leader waits here.
    fn reach_of_flush(&self) -> Result<Reach, Turn> {
        let least = self.journal().least_reach();
        let write_back = || {
            // Before another flush of the file learns less: the kernel returns the error once.
            flushed(|| self.backend.write_back()).inspect_err(|error| {
                if os_error::is_failed_flush(error) {
                    self.fs.wedge(self.cause(Operation::Flush, None, error));
                }
            })
        };
        match self.placement.prepare_flush(write_back) {
            Ok(needs) => Ok(needs.max(least)),
            Err(error) if os_error::is_failed_flush(&error) => Err(Turn::Refused),
            Err(_) => Err(Turn::Alone),
        }
    }

    /// Asks for the turn of a flush that may be shared, as [`FileSystems::share`].
    fn share(
        &self,
        request: Request<Token>,
        needs: Result<Reach, Turn>,
        others: usize,
    ) -> Option<(Turn, Request<Token>)> {
        match needs {
            Ok(needs) => self.fs.share(request, needs, others),
            Err(turn) => Some((turn, request)),
        }
    }

    fn journal(&self) -> &dyn Journal {
        self.journal.as_deref().expect("a file with shared flushes has one")
    }

    fn transfer_of(&self, work: &Work) -> RequestIo {
        RequestIo::of_work(work, self.alignment.offset).with_flushes_anyway(self.flushes_each_write)
    }

    /// Prepares a request: packs its segments into whole blocks, and begins its flush.
    fn begin_request(&self, request: &mut Request<Token>, turn: Turn) -> Result<Begun, Failure> {
        request.call = call_of(&request.work, turn);
        let work = &mut request.work;
        self.make_ready(work, turn).inspect_err(|_| self.undo(work))?;
        Ok(self.begin_flush(work, turn))
    }

    fn begin_flush(&self, work: &Work, turn: Turn) -> Begun {
        match turn {
            Turn::Covered | Turn::Refused => Begun::Without,
            Turn::Leads(election) => {
                let Some((flush, needs)) = self.fs.lead(election) else {
                    return Begun::Superseded;
                };
                // After the number is taken: what the flush covers has joined the journal before.
                if needs == Reach::Device || self.journal().join().is_ok() {
                    return Begun::Shared(flush, needs);
                }
                self.fs.end_in_vain(flush, false);
                Begun::Flush(self.fs.begin_flush())
            }
            Turn::Alone if work.flushes() || self.flushes_each_write => {
                Begun::Flush(self.fs.begin_flush())
            }
            Turn::Alone => Begun::Without,
        }
    }

    fn make_ready(&self, work: &mut Work, turn: Turn) -> Result<(), Failure> {
        let len = work.len();
        match work {
            Work::Flush => self.count_flush(turn),
            Work::Write { segments, fill, offset, sync_method, extends, .. } => {
                self.count_request(segments.len(), *sync_method);
                if extends.is_some() {
                    self.expect_end(*offset..*offset + len, *fill, extends)?;
                }
                if let Fill::Kept(_) = fill {
                    self.packer.forget(Span::at(*offset, len));
                }
                self.pack(work)?;
                count(&self.counters.request_bytes, work.len());
            }
        }
        Ok(())
    }

    /// Looks at the size before a write moves it. `extends` becomes the size that stays if the
    /// write fails. A failed write must not take back what another program appended.
    fn expect_end(
        &self,
        range: Range<u64>,
        fill: Fill,
        extends: &mut Option<u64>,
    ) -> Result<(), Failure> {
        let Some(size) = *extends else { return Ok(()) };
        let found = self.backend.physical_size().unwrap_or(size);
        let pads = matches!(fill, Fill::Kept(kept_to) if range.end <= kept_to);
        if pads && found != size {
            // The zeros behind the end would replace the bytes of that program.
            *extends = None;
            return Err(self.changed(range.start, size, found));
        }
        *extends = Some(if found > self.end_of_block(size) { found } else { size });
        self.check_size_limit(match fill {
            Fill::Appended => self.end_of_block(range.end),
            Fill::Kept(_) => range.end.next_multiple_of(self.alignment.offset),
        })
    }

    /// Looks at the size before the failure to read a block ends its write. So
    /// [`undo`](Self::undo) spares what another program appended.
    fn on_unread_edge(&self, work: &mut Work) {
        let len = work.len();
        if let Work::Write { offset, fill, extends, .. } = work {
            // Its error is that of the write, which fails anyway.
            let _ = self.expect_end(*offset..*offset + len, *fill, extends);
        }
    }

    /// Ends the flush of a request. If a write failed, its flush may have failed: the kernel does
    /// not say which.
    fn end_flush(&self, work: &Work, begun: Begun, result: &std::io::Result<()>) -> AfterFlush {
        let (flush, reach) = match begun {
            Begun::Without | Begun::Superseded => return AfterFlush::Final,
            Begun::Flush(flush) => (flush, Reach::File),
            Begun::Shared(flush, reach) => {
                count(&self.counters.flushes, 1);
                let commits = reach == Reach::FileSystem && result.is_ok();
                match commits.then(|| self.journal().commits_all()) {
                    None | Some(Ok(true)) => (flush, reach),
                    // Not known: it counts for no other file, and the next one is asked again.
                    unfit => {
                        self.fs.end_in_vain(flush, matches!(unfit, Some(Ok(false))));
                        return AfterFlush::FlushesAlone;
                    }
                }
            }
        };
        AfterFlush::Settles(self.fs.end_flush(flush, (result, reach), |error| match work {
            Work::Flush => self.cause(Operation::Flush, None, error),
            Work::Write { offset, .. } => self.cause(Operation::Write, Some(*offset), error),
        }))
    }

    /// Packs the segments of a write into whole blocks.
    fn pack(&self, work: &mut Work) -> Result<(), Failure> {
        self.packer.pack(work, &*self.backend, &self.counters).map_err(|error| {
            let Work::Write { offset, .. } = work else { unreachable!("a flush has no blocks") };
            let cause = self.cause(Operation::Read, Some(*offset), &error);
            Failure { kind: os_error::kind(&error), cause, wedges: false }
        })
    }

    /// Ends a request, once its result and that of its flush are final.
    fn end_request(
        &self,
        mut work: Work,
        call: Option<RequestCall>,
        result: std::io::Result<()>,
    ) -> Result<(), Failure> {
        if result.is_err() {
            self.undo(&work);
        }
        let result = match work {
            Work::Flush => self.judge(result, Operation::Flush, 0),
            Work::Write { offset, ref mut composed, .. } => {
                composed.take().into_iter().for_each(|memory| self.packer.take_back(memory));
                self.place(&work, result.is_ok());
                self.judge(result, Operation::Write, offset)
            }
        };
        if let Some(call) = call {
            self.report_end(&work, call, &result);
        }
        result
    }

    fn report_end(&self, work: &Work, call: RequestCall, result: &Result<(), Failure>) {
        let (file, error) = (&*self.path, result.as_ref().err().map(|failure| &*failure.cause));
        observe::ended(Some(call.begun), |took| match work {
            Work::Flush => Event::Flush { file, took, error },
            Work::Write { sync_method, .. } => {
                let (operations, bytes) = (u64::from(call.operations), work.len());
                let dsync = *sync_method == Some(SyncMethod::Dsync);
                Event::Write { file, operations, bytes, dsync, took, error }
            }
        });
    }

    /// Records where a write went.
    fn place(&self, work: &Work, succeeded: bool) {
        match work {
            Work::Write {
                offset,
                sync_method: Some(SyncMethod::SharedFlush),
                extends: None,
                ..
            } => {
                let range = *offset..*offset + work.len();
                self.find_place(range, succeeded && self.is_in_company());
            }
            _ => self.placement.on_written_anywhere(),
        }
    }

    /// Takes back a failed write. If it was to move the size, truncates to the end of file in the
    /// core, without the padding that was behind it.
    fn undo(&self, work: &Work) {
        let Work::Write { offset, extends: Some(size), .. } = work else { return };
        // At least to the end of the block that was the last before.
        let end = self.end_of_block(offset + work.len());
        if let Err(error) = self.take_back(*size, end) {
            self.leave_behind(end, &error);
            log::error!("dioxide: {}: taking back a failed append: {error}", shown(&*self.path));
        }
    }

    fn end_of_block(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.alignment.append)
    }

    /// Counts and reports an acknowledged append.
    fn on_appended(&self, bytes: u64, begun: Option<Timestamp>) {
        count(&self.counters.appends, 1);
        count(&self.counters.append_bytes, bytes);
        observe::ended(begun, |took| Event::Append { file: &self.path, bytes, took });
    }

    fn count_flush(&self, turn: Turn) {
        match turn {
            Turn::Covered => count(&self.counters.flushes_shared, 1),
            Turn::Alone => count(&self.counters.flushes, 1),
            // A leader is counted when it ends.
            Turn::Leads(_) | Turn::Refused => {}
        }
    }

    fn count_request(&self, operations: usize, sync_method: Option<SyncMethod>) {
        count(&self.counters.requests, 1);
        count(&self.counters.dsync_requests, u64::from(sync_method == Some(SyncMethod::Dsync)));
        count(&self.counters.merged, if operations > 1 { operations as u64 } else { 0 });
    }

    /// Fails with EFBIG above the file size limit, where a write would end the process by SIGXFSZ,
    /// and above the largest offset.
    fn check_size_limit(&self, end: u64) -> Result<(), Failure> {
        if end <= self.backend.size_max().min(i64::MAX as u64) {
            return Ok(());
        }
        let error = std::io::Error::from_raw_os_error(libc::EFBIG);
        let cause = self.cause(Operation::Write, Some(end), &error);
        Err(Failure { kind: os_error::kind(&error), cause, wedges: false })
    }

    /// The failure of a write, if another program changed the size.
    fn changed(&self, offset: u64, size: u64, found: u64) -> Failure {
        let kind = ErrorKind::ModifiedExternally(format!("it had {size} bytes and has {found}"));
        let cause = Arc::new(self.error(Operation::Write, Some(offset), kind.clone()));
        Failure { kind, cause, wedges: false }
    }

    /// Takes the result of a write that the core does not know: wherever it went, it may need a
    /// commit.
    fn judge_write(&self, result: std::io::Result<()>, offset: u64) -> Result<(), Failure> {
        self.placement.on_written_anywhere();
        self.judge(result, Operation::Write, offset)
    }

    /// The same, of a write whose thread may look where it went.
    fn judge_place(
        &self,
        result: std::io::Result<()>,
        range: Range<u64>,
        is_flush_shared: bool,
    ) -> Result<(), Failure> {
        let offset = range.start;
        self.find_place(range, result.is_ok() && is_flush_shared);
        self.judge(result, Operation::Write, offset)
    }

    /// Looks where a write went. That is worth it only for a flush of the device that others share.
    fn find_place(&self, range: Range<u64>, is_flush_shared: bool) {
        if self.placement.is_unplaced() {
            return;
        }
        if is_flush_shared {
            self.placement.on_written(&*self.backend, range);
        } else {
            self.placement.on_written_anywhere();
        }
    }

    /// Converts the result of a request for the core. After a failed flush on this file system,
    /// every result is an error.
    fn judge(
        &self,
        result: std::io::Result<()>,
        operation: Operation,
        offset: u64,
    ) -> Result<(), Failure> {
        if let Err(error) = &result {
            self.wedge_if_gone(operation, Some(offset), error);
            let cause = self.cause(operation, Some(offset), error);
            // A failed flush wedges the file, whether or not it wedges the file system.
            let wedges = self.fs.wedged().is_some() || operation == Operation::Flush;
            let cause = self.fs.wedged().cloned().unwrap_or(cause);
            return Err(Failure { kind: os_error::kind(error), cause, wedges });
        }
        match self.fs.wedged() {
            Some(cause) => Err(Failure {
                kind: ErrorKind::Wedged(cause.clone()),
                cause: cause.clone(),
                wedges: true,
            }),
            None => Ok(()),
        }
    }

    /// Error kind of a failed grow, truncate or close: the first failed flush, if the file system
    /// is wedged.
    fn judged_kind(&self, operation: Operation, error: &std::io::Error) -> ErrorKind {
        self.wedge_if_gone(operation, None, error);
        match self.fs.wedged() {
            Some(cause) => ErrorKind::Wedged(cause.clone()),
            None => os_error::kind(error),
        }
    }

    /// Wedges the file system if the error shows that it is gone.
    fn wedge_if_gone(&self, operation: Operation, offset: Option<u64>, error: &std::io::Error) {
        if os_error::is_gone(error) {
            self.fs.wedge(self.cause(operation, offset, error));
        }
    }

    fn cause(
        &self,
        operation: Operation,
        offset: Option<u64>,
        error: &std::io::Error,
    ) -> Arc<Error> {
        let kind = match os_error::kind(error) {
            // A retry of the flush would succeed, although its data is lost.
            ErrorKind::NoSpace(errno) if operation == Operation::Flush => ErrorKind::Os(errno),
            kind => kind,
        };
        Arc::new(self.error(operation, offset, kind))
    }
}

/// The call of a request that begins now, while events are observed. None of a flush that no call
/// of this file makes.
fn call_of(work: &Work, turn: Turn) -> Option<RequestCall> {
    let begun = match turn {
        Turn::Covered | Turn::Refused => None,
        Turn::Alone | Turn::Leads(_) => observe::begun(),
    };
    let operations = match work {
        Work::Write { segments, .. } => segments.len() as u32,
        Work::Flush => 0,
    };
    begun.map(|begun| RequestCall { begun, operations })
}

/// What a request began besides its transfer.
#[derive(Debug)]
enum Begun {
    /// No flush.
    Without,
    /// The flush of its file.
    Flush(Flushing),
    /// The flush of all files, with this reach.
    Shared(Flushing, Reach),
    /// No flush: another one has taken the lead, so it asks again.
    Superseded,
}

/// How a request goes on when its transfer, and the flush, have ended.
enum AfterFlush {
    /// The result is final.
    Final,
    /// The result is final once all concurrent flushes have ended.
    Settles(EndedFlush),
    /// Its commit was not one of all files, so its file needs a flush.
    FlushesAlone,
}

/// How a checked operation continues.
enum Course {
    /// There is nothing to do. Holds the result.
    Done(u64),
    /// By a request of its own, without the core. Holds the result of success.
    Direct(u64),
    /// Through the core.
    Core(Dio),
}
