//! Decides when a flush begins, and which operations it satisfies.

use super::{Core, FlushInFlight, LeaderTask, Outbox, RangeState, Request, Work};

impl<T: Clone + PartialEq> Core<T> {
    /// Answers operations that the last flush covered, and elects a leader for the next flush.
    pub(super) fn start_flush(&mut self, out: &mut Outbox<T>) {
        while let Some((ticket, _)) = self.awaiting_flush.front() {
            if !self.flushes.covers(*ticket) {
                break;
            }
            let (_, token) = self.awaiting_flush.pop_front().expect("just seen");
            out.answer(token, Ok(0));
        }
        if self.flushes.running() || self.flush_called.is_some() || self.wedged() {
            return;
        }
        let Some(owner) = self.flush_owner() else { return };
        // Requests in flight now can share this flush if it waits for them, and would compete with
        // it on the device. Later requests cannot delay it.
        let last = *self.flush_after.get_or_insert(self.next_id);
        if self.oldest_in_flight().is_some_and(|oldest| oldest <= last) {
            return;
        }
        self.flush_called = Some(owner.clone());
        out.calls.push((owner, LeaderTask::Flush));
    }

    /// Begins the flush. Postpones it once if requests are in flight that it can cover.
    pub(super) fn begin_flush(&mut self, out: &mut Outbox<T>) {
        let owner = self.flush_called.take().expect("a call is answered once");
        if self.wedged() {
            return self.fail_all(out);
        }
        if !self.flush_postponed && self.oldest_in_flight().is_some() {
            self.flush_postponed = true;
            self.flush_after = Some(self.next_id);
            return;
        }
        self.flush_postponed = false;
        self.flush_after = None;
        let id = self.next_id();
        let (generation, covers) = (self.flushes.begin(), self.sizes.written);
        self.flushing = Some(FlushInFlight { id, owner: owner.clone(), generation, covers });
        out.requests.push(Request { id, owner, work: Work::Flush, call: None });
    }

    /// The id of the oldest write request in flight, if any.
    pub(super) fn oldest_in_flight(&self) -> Option<u64> {
        let extending =
            self.reserved.iter().filter(|range| matches!(range.state, RangeState::InFlight(_)));
        extending
            .map(|range| range.id)
            .min()
            .into_iter()
            .chain(self.overwrites.oldest_in_flight())
            .min()
    }

    /// An operation that a flush that begins now would satisfy.
    pub(super) fn flush_owner(&self) -> Option<T> {
        let written = self.sizes.written;
        let extending =
            self.reserved.iter().find(|range| range.durable && range.span.end <= written);
        let extending = extending.map(|range| &range.members[0].0);
        extending.or(self.awaiting_flush.front().map(|(_, token)| token)).cloned()
    }
}
