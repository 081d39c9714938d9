//! Durable overwrites on their way: which may go out at once, and which wait to be merged.
//!
//! A write waits only while it overlaps one that is in flight or waits itself, or when it stands beside such a one and
//! [`REQUESTS_MAX`] requests are out: then those that stand side by side go out as one. So writers in different
//! places never wait for each other, and two overlapping writes are never in flight together. Nobody starves: what
//! waits goes out, oldest offset first, as requests come back.

use super::core::{Member, Outbox, Request, Work};
use crate::error::ErrorKind;
use crate::flush::Means;
use crate::merge::{self, Limits, Span};

/// With so many requests in flight, further ones that could be merged with others wait to be.
const REQUESTS_MAX: usize = 4;

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
        if self.others().any(|other| other.overlaps(&span)) || self.is_worth_merging(&span) {
            self.waiting.push((span, member));
        } else {
            self.send(id, vec![(span, member)], means, out);
        }
    }

    /// Everything in flight or waiting.
    fn others(&self) -> impl Iterator<Item = &Span> {
        let waiting = self.waiting.iter().map(|(span, _)| span);
        self.in_flight.iter().map(|request| &request.span).chain(waiting)
    }

    fn is_worth_merging(&self, span: &Span) -> bool {
        self.in_flight.len() >= REQUESTS_MAX && self.others().any(|other| other.touches(span))
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

    /// Sends out what waits and overlaps nothing in flight, merged, as far as there may be more requests.
    pub fn release(&mut self, limits: Limits, next_id: &mut u64, out: &mut Outbox<T>) {
        self.waiting.sort_by_key(|(span, _)| span.start);
        let spans: Vec<_> = self.waiting.iter().map(|(span, _)| *span).collect();
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        for count in merge::runs(&spans, limits) {
            let run: Vec<_> = waiting.by_ref().take(count).collect();
            let any = |meets: fn(&Span, &Span) -> bool| {
                self.in_flight.iter().any(|other| run.iter().any(|(span, _)| meets(span, &other.span)))
            };
            if any(Span::overlaps) || self.in_flight.len() >= REQUESTS_MAX && any(Span::touches) {
                self.waiting.extend(run);
                continue;
            }
            *next_id += 1;
            let durable = run.iter().any(|(_, member)| member.durable);
            self.send(*next_id, run, durable.then_some(Means::SharedFlush), out);
        }
    }

    /// Everything that waits fails.
    pub fn fail_waiting(&mut self, kind: &ErrorKind, out: &mut Outbox<T>) {
        for (_, member) in self.waiting.drain(..) {
            out.answer(member.token, Err(kind.clone()));
        }
    }
}
