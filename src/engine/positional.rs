//! Durable overwrites on their way: which may go out at once, and which wait to be merged.
//!
//! A write waits only while it touches one that is in flight or waits itself; then those that stand
//! side by side go out as one request. So writers in different places never wait for each other, and
//! two overlapping writes are never in flight together. Nobody starves: a newcomer that touches a
//! waiting write waits as well, and every completion sends out all that touches nothing in flight.

use super::core::{Member, Outbox, Request, Work};
use crate::error::ErrorKind;
use crate::flush::Means;
use crate::merge::{self, Limits, Span};

/// A request in flight, and what it carries.
#[derive(Debug)]
pub(super) struct InFlight<T> {
    id: u64,
    span: Span,
    pub members: Vec<(Span, Member<T>)>,
    pub means: Option<Means>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Positional<T> {
    in_flight: Vec<InFlight<T>>,
    waiting: Vec<(Span, Member<T>)>,
}

impl<T> Default for Positional<T> {
    fn default() -> Self {
        Self { in_flight: Vec::new(), waiting: Vec::new() }
    }
}

impl<T: Clone> Positional<T> {
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The number of the oldest request in flight.
    pub fn oldest_in_flight(&self) -> Option<u64> {
        self.in_flight.iter().map(|request| request.id).min()
    }

    /// Sends a write out, as request `id` and by the given means, or lets it wait.
    pub fn submit(
        &mut self,
        id: u64,
        offset: u64,
        member: Member<T>,
        means: Option<Means>,
        out: &mut Outbox<T>,
    ) {
        let span = Span::at(offset, member.segment.len());
        if self.touches_any(&span) {
            self.waiting.push((span, member));
        } else {
            self.send(id, vec![(span, member)], means, out);
        }
    }

    fn touches_any(&self, span: &Span) -> bool {
        self.touches_in_flight(span) || self.waiting.iter().any(|(other, _)| other.touches(span))
    }

    fn touches_in_flight(&self, span: &Span) -> bool {
        self.in_flight.iter().any(|other| other.span.touches(span))
    }

    /// Sends `members`, which stand side by side, as request `id`.
    pub fn send(
        &mut self,
        id: u64,
        members: Vec<(Span, Member<T>)>,
        means: Option<Means>,
        out: &mut Outbox<T>,
    ) {
        let span = Span { start: members[0].0.start, end: members[members.len() - 1].0.end };
        let segments = members.iter().map(|(_, member)| member.segment).collect();
        let owner = members[0].1.token.clone();
        let work = Work::Write { segments, offset: span.start, means, extends: None };
        out.requests.push(Request { id, owner, work });
        self.in_flight.push(InFlight { id, span, members, means });
    }

    /// Request `id` came back.
    pub fn complete(&mut self, id: u64) -> InFlight<T> {
        let index = self.in_flight.iter().position(|request| request.id == id);
        self.in_flight.swap_remove(index.expect("a request comes back once"))
    }

    /// Sends out what waits and touches nothing in flight, merged.
    pub fn release(&mut self, limits: Limits, next_id: &mut u64, out: &mut Outbox<T>) {
        let waiting = std::mem::take(&mut self.waiting);
        let (mut kept, mut free): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(span, _)| self.touches_in_flight(span));
        free.sort_by_key(|(span, _)| span.start);
        let spans: Vec<_> = free.iter().map(|(span, _)| *span).collect();
        let mut free = free.into_iter();
        let mut sent: Vec<Span> = Vec::new();
        for count in merge::runs(&spans, limits) {
            let run: Vec<_> = free.by_ref().take(count).collect();
            let overlaps = |other: &Span| run.iter().any(|(s, _)| s.start < other.end && other.start < s.end);
            if sent.iter().any(overlaps) {
                kept.extend(run);
                continue;
            }
            sent.extend(run.iter().map(|(span, _)| *span));
            *next_id += 1;
            let durable = run.iter().any(|(_, member)| member.durable);
            self.send(*next_id, run, durable.then_some(Means::SharedFlush), out);
        }
        self.waiting = kept;
    }

    /// Everything that waits fails.
    pub fn fail_waiting(&mut self, kind: &ErrorKind, out: &mut Outbox<T>) {
        for (_, member) in self.waiting.drain(..) {
            out.answer(member.token, Err(kind.clone()));
        }
    }
}
