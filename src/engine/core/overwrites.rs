//! Writes below the end that go through the core. Durable ones share a flush.

use super::overwrites_in_flight::FileEnds;
use super::{Core, Failure, LeaderTask, Member, Outbox, SmallVec1};
use crate::error::ErrorKind;
use crate::rules::flush::SyncMethod;
use crate::rules::merge::{self, Refusal, Span};
use crate::rules::size::Sizes;

impl<T: Clone + PartialEq> Core<T> {
    pub(super) fn overwrite(&mut self, offset: u64, member: Member<T>, out: &mut Outbox<T>) {
        if let Some(stopped @ ErrorKind::Wedged(_)) = &self.stopped {
            return out.answer(member.token, Err(stopped.clone()));
        }
        if !member.durable || !merge::gathers(self.cohort, true) {
            return self.send_overwrite(offset, member, out);
        }
        if member.segment.len() >= merge::WORTH_MERGING_BYTES {
            self.refusals.count(Refusal::Bytes);
            return self.send_overwrite(offset, member, out);
        }
        let token = member.token.clone();
        if self.overwrites.hold(offset, member) {
            out.calls.push((token, LeaderTask::Overwrite));
        }
    }

    /// Submits writes that were queued together, in as few requests as possible.
    pub(super) fn overwrite_together(
        &mut self,
        mut writes: SmallVec1<(u64, Member<T>)>,
        out: &mut Outbox<T>,
    ) {
        if let Some(stopped @ ErrorKind::Wedged(_)) = &self.stopped {
            writes
                .into_iter()
                .for_each(|(_, member)| out.answer(member.token, Err(stopped.clone())));
            return;
        }
        if writes.len() > 1 {
            writes.into_iter().for_each(|(offset, member)| self.overwrites.wait(offset, member));
            self.release_overwrites(out);
        } else if let Some((offset, member)) = writes.pop() {
            self.send_overwrite(offset, member, out);
        }
    }

    pub(super) fn release_overwrites(&mut self, out: &mut Outbox<T>) {
        let file_ends = self.file_ends();
        self.overwrites.release(
            self.props.limits,
            file_ends,
            &mut self.next_id,
            &mut self.refusals,
            out,
        );
        self.pad();
    }

    fn send_overwrite(&mut self, offset: u64, member: Member<T>, out: &mut Outbox<T>) {
        let span = Span::at(offset, member.segment.len());
        if self.overwrites.touches(span) {
            self.refusals.count(Refusal::Order);
            return self.overwrites.hold_up(offset, member);
        }
        if self.overwrites.must_wait(span, self.file_ends()) {
            return self.overwrites.wait(offset, member);
        }
        // The range may be a hole, or shared with another file. The repeated write finds out
        // (`RequestIo`).
        let sync_method = member.durable.then(|| self.sync_method(false));
        self.send_alone(span, member, sync_method, out);
    }

    /// Submits a write as a request of its own.
    fn send_alone(
        &mut self,
        span: Span,
        member: Member<T>,
        sync_method: Option<SyncMethod>,
        out: &mut Outbox<T>,
    ) {
        let (id, file_ends) = (self.next_id(), self.file_ends());
        self.overwrites.send(id, vec![(span, member)], sync_method, file_ends, out);
        self.pad();
    }

    fn file_ends(&self) -> FileEnds {
        let Sizes { written, physical, .. } = self.sizes;
        let are_moving = match self.space.prepared {
            None => self.in_flight > 0,
            Some(_) => self.space.growth_ends && self.space.grower_running,
        };
        FileEnds { written, physical, are_moving }
    }

    /// Records that a write in flight moves i_size to the end of the last unit.
    fn pad(&mut self) {
        if self.overwrites.pads() {
            self.sizes.grow_to(self.sizes.written.next_multiple_of(self.props.offset_unit));
        }
    }

    /// Submits the writes of a cohort: their leader is awake.
    pub(super) fn send_overwrites(&mut self, out: &mut Outbox<T>) {
        self.overwrites.let_go();
        if self.wedged() {
            return self.fail_all(out);
        }
        self.release_overwrites(out);
    }

    pub(super) fn on_overwritten(
        &mut self,
        id: u64,
        result: Result<(), Failure>,
        out: &mut Outbox<T>,
    ) {
        let done = self.overwrites.complete(id);
        if let (Some(physical), Err(_)) = (done.pads, &result) {
            // The engine took that back.
            self.sizes.unpad(physical);
        }
        match result {
            Err(_) if done.members.len() > 1 && !self.wedged() => {
                // One of them failed, and the kernel does not say which. Each is repeated, to fail
                // alone. One that shares a unit with the one before waits for it.
                for (span, member) in done.members {
                    let must_wait = self.overwrites.must_wait(span, self.file_ends());
                    if must_wait || self.overwrites.touches(span) {
                        self.overwrites.hold_up(span.start, member);
                    } else {
                        self.send_alone(span, member, done.sync_method, out);
                    }
                }
            }
            result => {
                let synced = done.sync_method == Some(SyncMethod::Dsync);
                for (span, member) in done.members {
                    self.answer_overwrite(span.start, member, &result, synced, out);
                }
            }
        }
        self.release_overwrites(out);
    }

    pub(super) fn answer_overwrite(
        &mut self,
        offset: u64,
        member: Member<T>,
        result: &Result<(), Failure>,
        synced: bool,
        out: &mut Outbox<T>,
    ) {
        match (result, &self.stopped) {
            (Err(failure), _) => out.answer(member.token, Err(failure.kind.clone())),
            (_, Some(stopped @ ErrorKind::Wedged(_))) => {
                out.answer(member.token, Err(stopped.clone()))
            }
            _ if member.durable && !synced => {
                self.awaiting_flush.push_back((self.flushes.ticket(), member.token));
            }
            _ => out.answer(member.token, Ok(offset)),
        }
    }
}
