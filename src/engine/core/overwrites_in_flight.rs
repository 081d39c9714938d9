//! Overwrites in flight, and those that wait. An extending request that begins below the end
//! occupies its bytes here as well.
//!
//! A part of a unit is written with the rest of it. So a write waits while it shares a unit with
//! one that is in flight or waits itself. A write also waits for its cohort, so that adjacent ones
//! share a request. A release merges adjacent waiting writes, and submits the oldest first. None
//! overtakes an older one that shares a unit with it, except as a part of an older request. A
//! release follows each completed request, and each leader that is awake.

use super::{Fill, Member, Outbox, Request, SmallVec1, Work};
use crate::error::ErrorKind;
use crate::rules::flush::SyncMethod;
use crate::rules::merge::{self, Limits, Refusal, Refusals, Span};

/// A request in flight, and its members.
#[derive(Debug)]
pub(super) struct OverwriteInFlight<T> {
    id: u64,
    /// In whole units.
    span: Span,
    pub members: Vec<(Span, Member<T>)>,
    pub sync_method: Option<SyncMethod>,
    /// The size of the file before, if it moves that to the end of its last unit.
    pub pads: Option<u64>,
}

/// The ends of the file for a write below them: of the data, and of the space.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileEnds {
    pub written: u64,
    pub physical: u64,
    /// A request or the end of growth moves i_size, and may truncate to `written`.
    pub are_moving: bool,
}

/// A write that waits.
#[derive(Debug)]
struct WaitingOverwrite<T> {
    /// Counts up.
    arrival: u64,
    span: Span,
    member: Member<T>,
    /// It overlaps another write, which was counted.
    held_up: bool,
}

/// The overwrites of one file.
#[derive(Debug)]
pub(super) struct Overwrites<T> {
    /// Length in bytes: a write replaces whole ones.
    unit: u64,
    in_flight: Vec<OverwriteInFlight<T>>,
    waiting: Vec<WaitingOverwrite<T>>,
    /// The writes of a cohort, until its leader is awake.
    held: Vec<WaitingOverwrite<T>>,
    /// Number of writes that have waited.
    arrivals: u64,
}

impl<T: Clone> Overwrites<T> {
    pub fn new(unit: u64) -> Self {
        let (in_flight, waiting, held) = (Vec::new(), Vec::new(), Vec::new());
        Self { unit, in_flight, waiting, held, arrivals: 0 }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The id of the oldest request in flight.
    pub fn oldest_in_flight(&self) -> Option<u64> {
        self.in_flight.iter().map(|request| request.id).min()
    }

    /// Queues a write for the next release.
    pub fn wait(&mut self, offset: u64, member: Member<T>) {
        let write = self.arrived(offset, member);
        self.waiting.push(write);
    }

    /// Queues a write until those that it overlaps have completed.
    pub fn hold_up(&mut self, offset: u64, member: Member<T>) {
        let write = self.arrived(offset, member);
        self.waiting.push(WaitingOverwrite { held_up: true, ..write });
    }

    /// Holds a write for its cohort. Returns whether it is the first, which becomes the leader.
    pub fn hold(&mut self, offset: u64, member: Member<T>) -> bool {
        let write = self.arrived(offset, member);
        self.held.push(write);
        self.held.len() == 1
    }

    fn arrived(&mut self, offset: u64, member: Member<T>) -> WaitingOverwrite<T> {
        self.arrivals += 1;
        let (arrival, span) = (self.arrivals, Span::at(offset, member.segment.len()));
        WaitingOverwrite { arrival, span, member, held_up: false }
    }

    /// Moves the held writes to the next release: their leader is awake.
    pub fn let_go(&mut self) {
        self.waiting.append(&mut self.held);
    }

    /// The spans of all writes in flight or waiting.
    fn others(&self) -> impl Iterator<Item = &Span> {
        let waiting = self.waiting.iter().chain(&self.held).map(|write| &write.span);
        self.in_flight.iter().map(|request| &request.span).chain(waiting)
    }

    /// Whether any of them shares a unit with `span`.
    pub fn touches(&self, span: Span) -> bool {
        let units = span.whole(self.unit);
        self.others().any(|other| other.overlaps(&units))
    }

    /// Whether a write must wait while i_size moves: it writes the last unit, as far as there is
    /// one.
    pub fn must_wait(&self, span: Span, file_ends: FileEnds) -> bool {
        file_ends.are_moving && span.whole(self.unit).end > file_ends.written
    }

    /// Lets no write of these bytes go while request `id` is in flight: an extending request that
    /// begins below the end of the file.
    pub fn occupy(&mut self, id: u64, span: Span) {
        let span = span.whole(self.unit);
        let (members, sync_method, pads) = (Vec::new(), None, None);
        self.in_flight.push(OverwriteInFlight { id, span, members, sync_method, pads });
    }

    /// Ends the occupation by request `id`, if there is one.
    pub fn vacate(&mut self, id: u64) {
        self.in_flight.retain(|request| request.id != id);
    }

    /// Whether a write waits for a release.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Submits `members`, which are adjacent, as request `id`.
    pub fn send(
        &mut self,
        id: u64,
        members: Vec<(Span, Member<T>)>,
        sync_method: Option<SyncMethod>,
        file_ends: FileEnds,
        out: &mut Outbox<T>,
    ) {
        let span = Span { start: members[0].0.start, end: members[members.len() - 1].0.end };
        let segments = members.iter().map(|(_, member)| member.segment).collect();
        let owner = members[0].1.token.clone();
        let units = span.whole(self.unit);
        let pads = (units.end > file_ends.physical).then_some(file_ends.physical);
        let work = Work::Write {
            segments,
            offset: span.start,
            head: 0,
            sync_method,
            extends: pads,
            fill: Fill::Kept(file_ends.written),
            edges: SmallVec1::new(),
            composed: None,
        };
        out.requests.push(Request { id, owner, work, call: None });
        self.in_flight.push(OverwriteInFlight { id, span: units, members, sync_method, pads });
    }

    /// Removes request `id`, which has completed.
    pub fn complete(&mut self, id: u64) -> OverwriteInFlight<T> {
        let index = self.in_flight.iter().position(|request| request.id == id);
        self.in_flight.swap_remove(index.expect("a request comes back once"))
    }

    /// Submits, merged, the waiting writes that share no unit with one in flight or with an older
    /// one that waits.
    pub fn release(
        &mut self,
        limits: Limits,
        file_ends: FileEnds,
        next_id: &mut u64,
        refusals: &mut Refusals,
        out: &mut Outbox<T>,
    ) {
        self.waiting.sort_by_key(|write| write.span.start);
        let spans: Vec<_> = self.waiting.iter().map(|write| write.span).collect();
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        let mut runs: Vec<(Vec<WaitingOverwrite<T>>, _)> = merge::runs(&spans, limits)
            .into_iter()
            .map(|(count, refusal)| (waiting.by_ref().take(count).collect(), refusal))
            .collect();
        runs.sort_by_key(|(run, _)| run.iter().map(|write| write.arrival).min());
        for (run, refusal) in runs {
            let crossed = |units: &Span| run.iter().any(|write| write.span.overlaps(units));
            let waits = self.must_wait(run[run.len() - 1].span, file_ends)
                || self.in_flight.iter().any(|other| crossed(&other.span))
                || self.waiting.iter().any(|older| crossed(&older.span.whole(self.unit)));
            if waits {
                run.iter()
                    .filter(|write| !write.held_up)
                    .for_each(|_| refusals.count(Refusal::Order));
                self.waiting.extend(
                    run.into_iter().map(|write| WaitingOverwrite { held_up: true, ..write }),
                );
                continue;
            }
            refusal.into_iter().for_each(|refusal| refusals.count(refusal));
            *next_id += 1;
            let members: Vec<_> = run.into_iter().map(|write| (write.span, write.member)).collect();
            let durable = members.iter().any(|(_, member)| member.durable);
            let sync_method = durable.then_some(SyncMethod::SharedFlush);
            self.send(*next_id, members, sync_method, file_ends, out);
        }
    }

    /// Whether a write in flight writes the last unit of a file that ends at `written`. It may move
    /// i_size to the end of that unit.
    pub fn reaches_behind(&self, written: u64) -> bool {
        self.in_flight.iter().any(|request| request.span.end > written)
    }

    /// Whether a write in flight moves i_size to the end of its last unit.
    pub fn pads(&self) -> bool {
        self.in_flight.iter().any(|request| request.pads.is_some())
    }

    /// Fails all waiting writes.
    pub fn fail_waiting(&mut self, kind: &ErrorKind, out: &mut Outbox<T>) {
        for write in self.waiting.drain(..) {
            out.answer(write.member.token, Err(kind.clone()));
        }
    }
}
