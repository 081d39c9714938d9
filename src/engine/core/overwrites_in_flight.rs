//! Overwrites in flight, and those that wait.
//!
//! A part of a unit is written with the rest of it. So a write waits while it shares a unit with
//! one that is in flight or waits itself. A write also waits for its cohort, so that adjacent ones
//! share a request. A release submits waiting writes, lowest offset first. It follows each
//! completed request, and each leader that is awake.

use super::{Fill, Member, Outbox, Request, SmallVec1, Work};
use crate::error::ErrorKind;
use crate::rules::flush::SyncMethod;
use crate::rules::merge::{self, Limits, Refusal, Refusals, Span};

/// A request in flight, and its members.
#[derive(Debug)]
pub(super) struct InFlight<T> {
    id: u64,
    /// In whole units.
    span: Span,
    pub members: Vec<(Span, Member<T>)>,
    pub sync_method: Option<SyncMethod>,
    /// It moves i_size to the end of its last unit.
    pub pads: bool,
}

/// The ends of the file for a write below them: of the data, and of the space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub written: u64,
    pub physical: u64,
    /// The grower is at work, which moves i_size.
    pub grows: bool,
}

impl Ends {
    /// Whether a write of these units moves i_size.
    fn are_passed_by(&self, units: Span) -> bool {
        units.end > self.physical
    }
}

/// A write that waits.
#[derive(Debug)]
struct Waiting<T> {
    span: Span,
    member: Member<T>,
    /// It overlaps another write, which was counted.
    held_up: bool,
}

/// The overwrites of one file.
#[derive(Debug)]
pub(super) struct Positional<T> {
    /// Length in bytes: a write replaces whole ones.
    unit: u64,
    in_flight: Vec<InFlight<T>>,
    waiting: Vec<Waiting<T>>,
    /// The writes of a cohort, until its leader is awake.
    held: Vec<Waiting<T>>,
}

impl<T: Clone> Positional<T> {
    pub fn new(unit: u64) -> Self {
        Self { unit, in_flight: Vec::new(), waiting: Vec::new(), held: Vec::new() }
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
        self.waiting.push(Waiting::at(offset, member));
    }

    /// Queues a write until those that it overlaps have completed.
    pub fn hold_up(&mut self, offset: u64, member: Member<T>) {
        self.waiting.push(Waiting { held_up: true, ..Waiting::at(offset, member) });
    }

    /// Holds a write for its cohort. Returns whether it is the first, which becomes the leader.
    pub fn hold(&mut self, offset: u64, member: Member<T>) -> bool {
        self.held.push(Waiting::at(offset, member));
        self.held.len() == 1
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

    /// Whether a write must wait for the grower: both move i_size.
    pub fn must_wait(&self, span: Span, ends: Ends) -> bool {
        ends.grows && ends.are_passed_by(span.whole(self.unit))
    }

    /// Lets no write of these bytes go while request `id` is in flight: an extending request that
    /// begins below the end of the file.
    pub fn occupy(&mut self, id: u64, span: Span) {
        let span = span.whole(self.unit);
        let (members, sync_method, pads) = (Vec::new(), None, false);
        self.in_flight.push(InFlight { id, span, members, sync_method, pads });
    }

    /// Ends the occupation by request `id`. Returns whether there was one.
    pub fn vacate(&mut self, id: u64) -> bool {
        let before = self.in_flight.len();
        self.in_flight.retain(|request| request.id != id);
        self.in_flight.len() < before
    }

    /// Submits `members`, which are adjacent, as request `id`.
    pub fn send(
        &mut self,
        id: u64,
        members: Vec<(Span, Member<T>)>,
        sync_method: Option<SyncMethod>,
        ends: Ends,
        out: &mut Outbox<T>,
    ) {
        let span = Span { start: members[0].0.start, end: members[members.len() - 1].0.end };
        let segments = members.iter().map(|(_, member)| member.segment).collect();
        let owner = members[0].1.token.clone();
        let units = span.whole(self.unit);
        let pads = ends.are_passed_by(units);
        let work = Work::Write {
            segments,
            offset: span.start,
            head: 0,
            sync_method,
            extends: pads.then_some(ends.written),
            fill: Fill::Kept(ends.written),
            edges: SmallVec1::new(),
            composed: None,
        };
        out.requests.push(Request { id, owner, work });
        self.in_flight.push(InFlight { id, span: units, members, sync_method, pads });
    }

    /// Removes request `id`, which has completed.
    pub fn complete(&mut self, id: u64) -> InFlight<T> {
        let index = self.in_flight.iter().position(|request| request.id == id);
        self.in_flight.swap_remove(index.expect("a request comes back once"))
    }

    /// Submits, merged, the waiting writes that share no unit with one in flight. One that moves
    /// i_size waits for the grower.
    pub fn release(
        &mut self,
        limits: Limits,
        ends: Ends,
        next_id: &mut u64,
        refusals: &mut Refusals,
        out: &mut Outbox<T>,
    ) {
        self.waiting.sort_by_key(|write| write.span.start);
        let spans: Vec<_> = self.waiting.iter().map(|write| write.span).collect();
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        for (count, refusal) in merge::runs(&spans, limits) {
            let run: Vec<_> = waiting.by_ref().take(count).collect();
            let crossed =
                |other: &InFlight<T>| run.iter().any(|write| write.span.overlaps(&other.span));
            let waits = self.must_wait(run[run.len() - 1].span, ends);
            if waits || self.in_flight.iter().any(crossed) {
                run.iter()
                    .filter(|write| !write.held_up)
                    .for_each(|_| refusals.count(Refusal::Order));
                self.waiting
                    .extend(run.into_iter().map(|write| Waiting { held_up: true, ..write }));
                continue;
            }
            refusal.into_iter().for_each(|refusal| refusals.count(refusal));
            *next_id += 1;
            let members: Vec<_> = run.into_iter().map(|write| (write.span, write.member)).collect();
            let durable = members.iter().any(|(_, member)| member.durable);
            self.send(*next_id, members, durable.then_some(SyncMethod::SharedFlush), ends, out);
        }
    }

    /// Whether a write in flight moves i_size to the end of its last unit.
    pub fn pads(&self) -> bool {
        self.in_flight.iter().any(|request| request.pads)
    }

    /// Fails all waiting writes.
    pub fn fail_waiting(&mut self, kind: &ErrorKind, out: &mut Outbox<T>) {
        for write in self.waiting.drain(..) {
            out.answer(write.member.token, Err(kind.clone()));
        }
    }
}

impl<T> Waiting<T> {
    fn at(offset: u64, member: Member<T>) -> Self {
        Self { span: Span::at(offset, member.segment.len()), member, held_up: false }
    }
}
