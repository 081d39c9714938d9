//! Writes that extend the file: grouped while they wait, submitted below `physical`, acknowledged
//! in the order of their offsets.
//!
//! Positional writes that wait together are submitted in the order of their offsets, not of
//! arrival. So threads that take offsets from one counter share a request even if they arrive
//! slightly out of order. A gap between such writes is intended, and no write waits until it is
//! filled. A write may fill it too late, with writes beyond it in flight. It waits until they have
//! completed.

use super::{
    Core, Failure, Fill, LeaderTask, Member, Outbox, Outcome, RangeState, Request, ReservedRange,
    SmallVec1, Target, WaitingGroup, Work,
};
use crate::buffer::Segment;
use crate::error::ErrorKind;
use crate::rules::flush::{self, FlushContext, SyncMethod};
use crate::rules::growth::Need;
use crate::rules::marker::Prepared;
use crate::rules::merge::{self, Limits, Refusal, SINGLE_APPENDS_MAX, Span};
use crate::rules::policy::Tail;
use crate::rules::size::Sizes;

/// What the core can do with the oldest waiting group.
#[derive(Clone, Copy, Debug)]
enum Oldest {
    /// There is none, or it waits for a request in flight or for the end of growth.
    Waits,
    /// This many of its members can be submitted, at this offset.
    Fits(u64, usize),
    /// Its first member, at this offset, lies within a range that others reserved meanwhile.
    Inside(u64),
    /// The same, and its last unit reaches behind the space. A write would move i_size, which only
    /// the grower does.
    LacksUnit(Need),
    /// Its first member begins in a block that is being written.
    SharesBlock,
    /// Its first member would leave a gap that shows content from before the recycle.
    ShowsOldContent,
    /// There is too little space, or the marker must change first.
    LacksSpace(Need),
}

impl<T: Clone + PartialEq> Core<T> {
    pub(super) fn extend(&mut self, place: Target, member: Member<T>, out: &mut Outbox<T>) {
        let durable = member.durable;
        let alone = self.join(place, member, out);
        if alone && !merge::gathers(self.cohort, durable) {
            // Its submitter is awake, so it is submitted at once.
            self.send_waiting(out);
        }
        self.pump(out);
    }

    /// Adds an operation to the waiting groups, or refuses it. Returns whether none waited before
    /// it.
    pub(super) fn join(&mut self, place: Target, member: Member<T>, out: &mut Outbox<T>) -> bool {
        if let Some(stopped) = &self.stopped {
            out.answer(member.token, Err(stopped.clone()));
            return false;
        }
        let alone = self.waiting.is_empty() && self.called.is_none();
        let len = member.segment.len();
        // It must not overtake the members above it, which may wait for its block.
        let is_inside = matches!(place, Target::At(start) if start + len <= self.sizes.written);
        let refusal = match self.waiting.back_mut().or(self.called.as_mut()) {
            None => None,
            Some(_) if is_inside => None,
            Some(last) => match last.admits(place, len, self.props.limits) {
                Ok(()) => {
                    last.push(place, member);
                    return alone;
                }
                Err(refusal) => Some(refusal),
            },
        };
        refusal.into_iter().for_each(|refusal| self.refusals.count(refusal));
        let mut group =
            WaitingGroup { members: SmallVec1::new(), bytes: 0, begun: false, held_up: false };
        group.push(place, member);
        self.waiting.push_back(group);
        alone
    }

    /// Elects a leader for the oldest group if it can be submitted, and asks for what it lacks.
    pub(super) fn pump(&mut self, out: &mut Outbox<T>) {
        if self.called.is_none() && self.may_send() && self.prepare_oldest(out).is_some() {
            let group = self.waiting.pop_front().expect("it can go");
            out.calls.push((group.members[0].1.token.clone(), LeaderTask::Extend));
            self.called = Some(group);
        }
        self.start_grower(out);
        self.start_flush(out);
    }

    /// Submits the group of the leader, with all operations that joined it.
    pub(super) fn send_called(&mut self, out: &mut Outbox<T>) {
        let group = self.called.take().expect("a call is answered once");
        self.waiting.push_front(group);
        if self.stopped.is_some() {
            self.fail_the_rest(out);
        }
        self.send_waiting(out);
        self.pump(out);
    }

    pub(super) fn send_waiting(&mut self, out: &mut Outbox<T>) {
        while self.may_send()
            && let Some((offset, count)) = self.prepare_oldest(out)
        {
            self.send(offset, count, out);
        }
    }

    /// Whether a group may be submitted now. One at a time, so that the others merge; or a few
    /// appends side by side; or a few groups that no operation can join.
    fn may_send(&self) -> bool {
        let is_full = self.waiting.len() > 1;
        let is_begun = self.waiting.front().is_some_and(|group| group.begun);
        if is_begun || is_full && self.in_flight < merge::FULL_REQUESTS_MAX {
            return true;
        }
        let in_flight =
            self.reserved.iter().filter(|range| matches!(range.state, RangeState::InFlight(_)));
        let appends = || in_flight.map(|range| range.members.len()).sum::<usize>();
        self.in_flight == 0 || !merge::gathers(self.cohort, false) && appends() < SINGLE_APPENDS_MAX
    }

    /// Prepares the oldest group: reroutes, refuses or holds up members before it, and asks for
    /// space. Returns the offset at which it can be submitted now, and how many adjacent members
    /// fit there.
    pub(super) fn prepare_oldest(&mut self, out: &mut Outbox<T>) -> Option<(u64, usize)> {
        loop {
            match self.oldest() {
                Oldest::Waits => return None,
                Oldest::Fits(offset, count) => {
                    self.set_mode_of_oldest();
                    return Some((offset, count));
                }
                Oldest::Inside(offset) => self.reroute_oldest(offset, out),
                Oldest::SharesBlock => {
                    self.hold_up_oldest();
                    return None;
                }
                Oldest::ShowsOldContent => {
                    let why = "the gap below would show what the file held before it was recycled";
                    self.refuse_oldest(ErrorKind::Unsupported(why.into()), out);
                }
                Oldest::LacksUnit(need) => {
                    self.ask_for(need);
                    return None;
                }
                Oldest::LacksSpace(need) => {
                    self.set_mode_of_oldest();
                    self.ask_for(need);
                    return None;
                }
            }
        }
    }

    /// Returns what can be done with the oldest waiting group. Changes nothing.
    fn oldest(&self) -> Oldest {
        let Some(group) = self.waiting.front().filter(|_| !self.space.growth_ends) else {
            return Oldest::Waits;
        };
        let place = group.place();
        let offset = match place {
            Target::End => self.end_of_file(),
            Target::At(offset) => offset,
        };
        if place != Target::End && group.fitting(offset, self.sizes.reserved) > 0 {
            let end = group.member_ends(offset).next().expect("a group has members");
            return match self.lacks_unit(end) {
                Some(least) => Oldest::LacksUnit(Need { start: offset, least, end: least }),
                None => Oldest::Inside(offset),
            };
        }
        if self.shares_a_block(offset) {
            return Oldest::SharesBlock;
        }
        if self.would_show_old_content(offset) {
            return Oldest::ShowsOldContent;
        }
        if self.space.prepared.is_none() {
            // The write itself moves i_size. One at a time, so that no write lies above one that
            // fails.
            let is_alone =
                self.in_flight == 0 && !self.overwrites.reaches_behind(self.sizes.written);
            return if is_alone {
                Oldest::Fits(offset, group.fitting(offset, u64::MAX))
            } else {
                Oldest::Waits
            };
        }
        let unit = self.unit_of(place);
        let fitting = group.fitting(offset, self.sizes.physical / unit * unit);
        let mut ends = group.member_ends(offset).map(|end| end.next_multiple_of(unit));
        let least = ends.next().expect("a group has members");
        let need = Need { start: offset, least, end: ends.last().unwrap_or(least) };
        if self.marker_must_change(place) || fitting == 0 {
            return Oldest::LacksSpace(need);
        }
        Oldest::Fits(offset, fitting)
    }

    /// Asks for growth.
    fn ask_for(&mut self, need: Need) {
        self.growth_waits += u64::from(self.space.need.is_none());
        self.space.need = Some(need);
    }

    /// The end of the last unit of a write that ends at `end`, if that lies behind the space of a
    /// file that grows ahead.
    fn lacks_unit(&self, end: u64) -> Option<u64> {
        let units_end = end.next_multiple_of(self.props.offset_unit);
        (self.space.prepared.is_some() && units_end > self.sizes.physical).then_some(units_end)
    }

    /// Length in bytes: a write at `place` fills whole ones.
    pub(super) fn unit_of(&self, place: Target) -> u64 {
        match place {
            Target::End => self.props.append_unit,
            Target::At(_) => self.props.offset_unit,
        }
    }

    /// Switches to positional mode for a positional group. A positional write beyond the end
    /// changes what recovery must look for in a file that grows ahead.
    fn set_mode_of_oldest(&mut self) {
        let is_positional = self.waiting.front().is_some_and(|group| group.place() != Target::End);
        if is_positional && self.space.prepared.is_some() {
            self.set_positional();
        }
    }

    /// The offset of the next append.
    pub(super) fn end_of_file(&self) -> u64 {
        let next_block = self.sizes.reserved.next_multiple_of(self.props.append_unit);
        match self.props.tail {
            Tail::Pad if !self.would_show_old_content(next_block) => next_block,
            Tail::Pad | Tail::Rewrite => self.sizes.reserved,
        }
    }

    /// Whether a write that ends at `end` extends nothing, and shares no block with an append in
    /// flight or to come.
    pub(super) fn is_inside(&self, end: u64) -> bool {
        end <= self.full_blocks() || end <= self.sizes.written && self.in_flight == 0
    }

    /// Whether such a write may overtake the waiting extending operations. Not if one of these may
    /// wait for its block: both would wait forever.
    pub(super) fn may_overwrite(&self, end: u64) -> bool {
        let mut groups = self.called.iter().chain(&self.waiting);
        if end <= self.full_blocks() {
            return !groups.any(|it| matches!(it.place(), Target::At(start) if start < end));
        }
        groups.next().is_none() && self.is_inside(end) && self.lacks_unit(end).is_none()
    }

    /// The end of the blocks that no append will rewrite.
    fn full_blocks(&self) -> u64 {
        let written = self.sizes.written;
        if self.props.is_device { written } else { written - written % self.props.append_unit }
    }

    /// Whether a write at `offset`, at the end of the file or beyond, begins in a block that is
    /// being written.
    fn shares_a_block(&self, offset: u64) -> bool {
        let unit = self.props.append_unit;
        let reserved = self.sizes.reserved;
        let last = Span { start: reserved, end: reserved }.whole(unit);
        // A positional write may begin below the last block.
        let rewritten = Span { start: last.start.min(offset), ..last };
        offset < last.end && (self.in_flight > 0 || self.overwrites.touches(rewritten))
    }

    /// Holds up the oldest group, and counts that once: it shares a block with a request in flight.
    fn hold_up_oldest(&mut self) {
        let group = self.waiting.front_mut().expect("the caller looked at it");
        if !std::mem::replace(&mut group.held_up, true) {
            self.refusals.count(Refusal::Order);
        }
    }

    /// Refuses the oldest member: it can never be written at its offset.
    pub(super) fn refuse_oldest(&mut self, kind: ErrorKind, out: &mut Outbox<T>) {
        let member = self.take_oldest();
        out.answer(member.token, Err(kind));
    }

    /// Reroutes the oldest member, which lies within a range that others reserved meanwhile.
    fn reroute_oldest(&mut self, offset: u64, out: &mut Outbox<T>) {
        let member = self.take_oldest();
        if self.is_inside(offset + member.segment.len()) {
            return self.overwrite(offset, member, out);
        }
        self.refusals.count(Refusal::Order);
        self.late.push((offset, member));
    }

    /// Submits late writes after a request has completed: as overwrites, or as extending writes if
    /// the ranges above them were taken back.
    pub(super) fn let_late_ones_go(&mut self, out: &mut Outbox<T>) {
        for (offset, member) in std::mem::take(&mut self.late) {
            let end = offset + member.segment.len();
            if self.is_inside(end) {
                self.overwrite(offset, member, out);
            } else if end <= self.sizes.reserved {
                self.late.push((offset, member));
            } else {
                self.join(Target::At(offset), member, out);
            }
        }
    }

    fn take_oldest(&mut self) -> Member<T> {
        let group = self.waiting.front_mut().expect("the caller looked at it");
        let (_, member) = group.members.remove(0);
        group.bytes -= member.segment.len();
        if group.members.is_empty() {
            self.waiting.pop_front();
        }
        member
    }

    /// Reserves space at `offset` for the first `count` members of the oldest group, and submits
    /// them.
    pub(super) fn send(&mut self, offset: u64, count: usize, out: &mut Outbox<T>) {
        let place = self.waiting.front().expect("the caller looked at it").place();
        let (segments, members, end, durable) = self.take_members(offset, count);
        let units = Span { start: offset, end }.whole(self.unit_of(place));
        let before = self.sizes.reserved;
        let moves_eof = self.space.prepared.is_none();
        // A truncate to this also removes what a failed write leaves in the last block.
        let extends = moves_eof.then_some(before);
        self.sizes.grow_to(units.end);
        let span = Span { start: before, end: end.max(before) };
        self.sizes.reserve_to(span.end);
        self.space.zeros_to = self.space.zeros_to.max(units.end);
        let fill = match place {
            Target::End => Fill::Appended,
            Target::At(_) => Fill::Kept(before),
        };
        let head = self.head(units, before);
        let sync_method = durable
            .then(|| if head > 0 { SyncMethod::SharedFlush } else { self.sync_method(moves_eof) });
        let id = self.next_id();
        if offset < before && place != Target::End {
            self.overwrites.occupy(id, Span { start: offset, end: before });
        }
        let owner = members[0].0.clone();
        let edges = SmallVec1::new();
        let work = Work::Write {
            segments,
            offset,
            head,
            sync_method,
            extends,
            fill,
            edges,
            composed: None,
        };
        out.requests.push(Request { id, owner, work, call: None });
        self.reserved.push_back(ReservedRange {
            id,
            span,
            members,
            durable,
            state: RangeState::InFlight(sync_method),
        });
        self.in_flight += 1;
    }

    /// Takes the first `count` members of the oldest group, which go to `offset` one behind the
    /// other. Returns their segments, their tokens with offsets, their end, and whether one is
    /// durable.
    fn take_members(
        &mut self,
        offset: u64,
        count: usize,
    ) -> (SmallVec1<Segment>, SmallVec1<(T, u64)>, u64, bool) {
        let group = self.waiting.front_mut().expect("the caller looked at it");
        let count = count.min(group.members.len());
        let mut end = offset;
        let mut segments = SmallVec1::with_capacity(count);
        let mut members = SmallVec1::with_capacity(count);
        let mut durable = false;
        for (_, member) in group.members.drain(..count) {
            members.push((member.token, end));
            durable |= member.durable;
            end += member.segment.len();
            segments.push(member.segment);
        }
        if group.members.is_empty() {
            self.waiting.pop_front();
        } else {
            group.bytes -= end - offset;
            group.held_up = false;
            if group.place() > Target::At(end) {
                group.begun = true;
                self.refusals.count(Refusal::Gap);
            }
        }
        (segments, members, end, durable)
    }

    /// Length in bytes of the first, separately issued write of a request for `units`. It goes to
    /// the end of the block in which the file ended `before`. So no call crosses from written to
    /// unwritten space. Zeroed space counts as written.
    fn head(&self, units: Span, before: u64) -> u64 {
        let begun_to = before.next_multiple_of(self.props.append_unit);
        let is_written =
            self.space.prepared == Some(Prepared::Zeroed) || units.end <= self.space.written_to;
        let crosses = units.start < begun_to && begun_to < units.end && !is_written;
        if crosses { begun_to - units.start } else { 0 }
    }

    pub(super) fn sync_method(&self, allocates: bool) -> SyncMethod {
        flush::sync_method(FlushContext {
            writes_through: self.props.writes_through,
            is_device: self.props.is_device,
            others_in_flight: self.in_flight > 0
                || self.overwrites.in_flight() > 0
                || self.flushes.running(),
            unstable_below: self.sizes.durable < self.sizes.written || !self.waiting.is_empty(),
            allocates: allocates && !self.props.without_journal,
            has_company: self.has_company,
        })
    }

    /// Takes the result of an extending request.
    pub(super) fn on_extended(&mut self, index: usize, result: Result<(), Failure>) {
        self.in_flight -= 1;
        let grows_ahead = self.space.prepared.is_some();
        let range = &mut self.reserved[index];
        let RangeState::InFlight(sync_method) = range.state else {
            unreachable!("a request comes back once")
        };
        let Err(failure) = result else {
            range.state = RangeState::Written { synced: sync_method == Some(SyncMethod::Dsync) };
            return;
        };
        let no_space = matches!(failure.kind, ErrorKind::NoSpace(_));
        range.state = RangeState::Failed(failure.kind);
        if !grows_ahead {
            // It was to move i_size itself, alone, and the engine took that back.
            self.sizes.take_back_to(range.span.start);
        }
        if grows_ahead || !no_space {
            self.stopped.get_or_insert(ErrorKind::AppendEnded(failure.cause));
        }
    }

    /// Whether a failed flush has stopped all operations.
    pub fn wedged(&self) -> bool {
        matches!(self.stopped, Some(ErrorKind::Wedged(_)))
    }

    /// Advances `written` and `durable` as far as finished requests allow, and answers the waiters
    /// that this satisfies.
    pub(super) fn settle(&mut self, out: &mut Outbox<T>) {
        for range in &self.reserved {
            if !matches!(range.state, RangeState::Written { .. })
                || range.span.start > self.sizes.written
            {
                break;
            }
            // Ranges that wait for a flush were counted before.
            self.sizes.written_to(range.span.end.max(self.sizes.written));
        }
        for range in &self.reserved {
            let RangeState::Written { synced: true } = range.state else { break };
            if range.span.end <= self.sizes.written && range.span.start <= self.sizes.durable {
                self.sizes.durable_to(range.span.end);
            }
        }
        while !self.wedged() && self.reserved.front().is_some_and(|range| self.is_answerable(range))
        {
            let range = self.reserved.pop_front().expect("just seen");
            range.answer(Ok, out);
        }
        self.fail_the_failed(out);
        if self.stopped.is_some() {
            self.fail_the_rest(out);
        }
    }

    /// Whether a range is complete. The owner of a flush waits for its end, although another flush
    /// may have made the range durable before.
    fn is_answerable(&self, range: &ReservedRange<T>) -> bool {
        range.is_complete(&self.sizes)
            && !range.members.iter().any(|(token, _)| self.is_flushing_for(token))
    }

    pub(super) fn fail_the_failed(&mut self, out: &mut Outbox<T>) {
        while let Some(index) =
            self.reserved.iter().position(|range| matches!(range.state, RangeState::Failed(_)))
        {
            let range = self.reserved.remove(index).expect("just seen");
            let RangeState::Failed(kind) = range.state.clone() else { unreachable!("just seen") };
            range.answer(|_| Err(kind.clone()), out);
        }
    }

    /// Fails the waiting operations, and submits those below the last block.
    pub(super) fn fail_waiting(&mut self, kind: &ErrorKind, out: &mut Outbox<T>) {
        self.fail_those(|_, _| true, kind, out);
    }

    /// The same for the waiting operations that are such.
    pub(super) fn fail_those(
        &mut self,
        are_such: impl Fn(Target, u64) -> bool,
        kind: &ErrorKind,
        out: &mut Outbox<T>,
    ) {
        for (place, member) in self.take_waiting(are_such) {
            match place {
                Target::At(start) if start + member.segment.len() <= self.full_blocks() => {
                    self.overwrite(start, member, out)
                }
                _ => out.answer(member.token, Err(kind.clone())),
            }
        }
    }

    /// Takes the waiting operations that are such, by place and length.
    pub(super) fn take_waiting(
        &mut self,
        are_such: impl Fn(Target, u64) -> bool,
    ) -> Vec<(Target, Member<T>)> {
        let mut taken = Vec::new();
        for group in &mut self.waiting {
            let (its, kept): (SmallVec1<_>, _) = group
                .members
                .drain(..)
                .partition(|(place, member)| are_such(*place, member.segment.len()));
            taken.extend(its);
            group.members = kept;
            group.bytes = group.members.iter().map(|(_, member)| member.segment.len()).sum();
        }
        self.waiting.retain(|group| !group.members.is_empty());
        taken
    }

    /// After a failure, fails written ranges behind the gap and all waiting operations. Requests in
    /// flight are answered when they complete, since the kernel still reads their memory.
    pub(super) fn fail_the_rest(&mut self, out: &mut Outbox<T>) {
        let stopped = self.stopped.clone().expect("the caller looked at it");
        self.space.need = None;
        self.fail_waiting(&stopped, out);
        for (_, member) in self.late.drain(..) {
            out.answer(member.token, Err(stopped.clone()));
        }
        let wedged = self.wedged();
        let mut end = self.sizes.written;
        for range in std::mem::take(&mut self.reserved) {
            let is_kept = range.members.iter().any(|(token, _)| self.is_flushing_for(token));
            let behind_a_gap = range.span.start > end;
            if !behind_a_gap {
                end = end.max(range.span.end);
            }
            match range.state {
                RangeState::Written { .. } if behind_a_gap || wedged && !is_kept => {
                    range.answer(|_| Err(stopped.clone()), out)
                }
                _ => self.reserved.push_back(range),
            }
        }
    }
}

impl<T> WaitingGroup<T> {
    /// The target of the first member.
    pub(super) fn place(&self) -> Target {
        self.members[0].0
    }

    /// Whether an operation of `len` bytes at `place` may join. The error is the reason.
    fn admits(&self, place: Target, len: u64, limits: Limits) -> Result<(), Refusal> {
        if (self.place() == Target::End) != (place == Target::End) {
            return Err(Refusal::Gap);
        }
        limits.admit(self.bytes, self.members.len(), len)
    }

    fn push(&mut self, place: Target, member: Member<T>) {
        self.bytes += member.segment.len();
        let before = self.members.iter().rposition(|(other, _)| *other <= place);
        self.members.insert(before.map_or(0, |index| index + 1), (place, member));
    }

    /// The ends of the adjacent members from the first on, if that is written at `offset`.
    fn member_ends(&self, offset: u64) -> impl Iterator<Item = u64> {
        self.members.iter().scan(offset, |end, (place, member)| {
            let is_next = matches!(place, Target::End) || *place == Target::At(*end);
            *end += member.segment.len();
            is_next.then_some(*end)
        })
    }

    /// Number of adjacent members that end at `limit` or below.
    fn fitting(&self, offset: u64, limit: u64) -> usize {
        self.member_ends(offset).take_while(|end| *end <= limit).count()
    }
}

impl<T> ReservedRange<T> {
    pub(super) fn is_complete(&self, sizes: &Sizes) -> bool {
        let reached = if self.durable { sizes.durable } else { sizes.written };
        matches!(self.state, RangeState::Written { .. }) && self.span.end <= reached
    }

    pub(super) fn answer(self, outcome: impl Fn(u64) -> Outcome, out: &mut Outbox<T>) {
        for (token, offset) in self.members {
            out.answer(token, outcome(offset));
        }
    }
}
