//! Durable overwrites on their way: which may go out at once, and which wait.
//!
//! A write waits while it overlaps one that is in flight or waits itself, so two overlapping writes are never in flight
//! together; and with the others of its cohort, so that those that stand side by side go out as one. What waits goes out,
//! lowest offset first, whenever a request comes back or the one who was called for it is awake.

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
    /// Those of a cohort, until the one who is called for them is awake.
    held: Vec<(Span, Member<T>)>,
}

impl<T> Default for Positional<T> {
    fn default() -> Self {
        Self { in_flight: Vec::new(), waiting: Vec::new(), held: Vec::new() }
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
        if self.touches(span) {
            self.wait(offset, member);
        } else {
            self.send(id, vec![(span, member)], means, out);
        }
    }

    /// Lets a write wait for the next release.
    pub fn wait(&mut self, offset: u64, member: Member<T>) {
        self.waiting.push((Span::at(offset, member.segment.len()), member));
    }

    /// Lets a write wait for its cohort. Returns whether it is the first, who is to be called.
    pub fn hold(&mut self, offset: u64, member: Member<T>) -> bool {
        self.held.push((Span::at(offset, member.segment.len()), member));
        self.held.len() == 1
    }

    /// The one who was called is awake: those held may go with the next release.
    pub fn let_go(&mut self) {
        self.waiting.append(&mut self.held);
    }

    /// Everything in flight or waiting.
    fn others(&self) -> impl Iterator<Item = &Span> {
        let waiting = self.waiting.iter().chain(&self.held).map(|(span, _)| span);
        self.in_flight.iter().map(|request| &request.span).chain(waiting)
    }

    /// Whether any of them touches the span.
    pub fn touches(&self, span: Span) -> bool {
        self.others().any(|other| other.overlaps(&span))
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
        let work = Work::Write {
            segments,
            offset: span.start,
            head: 0,
            means,
            extends: None,
            records: false,
            composed: None,
        };
        out.requests.push(Request { id, owner, work });
        self.in_flight.push(InFlight { id, span, members, means });
    }

    /// Request `id` came back.
    pub fn complete(&mut self, id: u64) -> InFlight<T> {
        let index = self.in_flight.iter().position(|request| request.id == id);
        self.in_flight.swap_remove(index.expect("a request comes back once"))
    }

    /// Sends out what waits and overlaps nothing in flight, merged.
    pub fn release(&mut self, limits: Limits, next_id: &mut u64, out: &mut Outbox<T>) {
        self.waiting.sort_by_key(|(span, _)| span.start);
        let spans: Vec<_> = self.waiting.iter().map(|(span, _)| *span).collect();
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        for count in merge::runs(&spans, limits) {
            let run: Vec<_> = waiting.by_ref().take(count).collect();
            let crossed = |other: &InFlight<T>| run.iter().any(|(span, _)| span.overlaps(&other.span));
            if self.in_flight.iter().any(crossed) {
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
