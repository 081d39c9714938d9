//! The life of every dio that others must know of, as a state machine without I/O: appends, writes that extend
//! the file, durable writes, flushes and growth. The engine holds it under one lock.
//!
//! Operations go in by `append`, `write` and `sync`; out come requests to perform (each with an owner, one
//! of those who wait for it), and outcomes. Whoever performed a request reports it by `completed`. Everything
//! between is decided here, by the leaf modules and these rules:
//!
//! 1. Space before offset: an extending write gets its offset only below `physical`, so a full disk is
//!    an error without a hole.
//! 2. Extending writes are acknowledged in the order of their offsets: never above a gap.
//! 3. A plain one is acknowledged when everything below its end is written, a durable one when everything
//!    below its end is durable.
//! 4. After a failure above `written` nothing can extend the file any more: it would lie behind a gap.

use super::positional::Positional;
use crate::buffer::Segment;
use crate::error::{Error, ErrorKind};
use crate::flush::{self, Company, Flushes, Generation, Means};
use crate::growth::{Need, Plan, Planner, Room};
use crate::marker::{Identity, Marker, Mode, Prepared};
use crate::merge::{Limits, Span};
use crate::size::Sizes;
use std::collections::VecDeque;
use std::sync::Arc;

/// With this many requests of appends in flight, further ones wait, and are merged. More would leave less to
/// merge; with fewer the device would be idle while the next request is made up.
const MERGED_REQUESTS_MAX: usize = 2;

/// But so many appends go out side by side all the same: a few writers gain nothing by waiting for each other.
const SINGLE_APPENDS_MAX: usize = 4;

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
        segments: Vec<Segment>,
        offset: u64,
        means: Option<Means>,
        /// The kernel's i_size, if the write moves it: to be restored if the write fails.
        extends: Option<u64>,
    },
    /// Flush the file's data, and the device's cache.
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

/// What a step of the machine gave: requests to perform, outcomes to hand back, and whether to start the grower.
#[derive(Debug)]
pub struct Outbox<T> {
    pub requests: Vec<Request<T>>,
    pub outcomes: Vec<(T, Outcome)>,
    pub start_grower: bool,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self { requests: Vec::new(), outcomes: Vec::new(), start_grower: false }
    }
}

impl<T> Outbox<T> {
    pub fn answer(&mut self, token: T, outcome: Outcome) {
        self.outcomes.push((token, outcome));
    }
}

/// What the file is, and what its file system does.
#[derive(Clone, Copy, Debug)]
pub struct Ground {
    pub identity: Identity,
    pub limits: Limits,
    /// Appends, and the end of a file that takes them, lie at multiples of this.
    pub append_unit: u64,
    pub is_device: bool,
    /// How space ahead is prepared; nothing where it is not.
    pub prepared: Option<Prepared>,
    /// Where the epochs of markers start.
    pub epoch: u32,
}

/// What a growth job is to do.
#[derive(Clone, Copy, Debug)]
pub struct GrowthJob {
    pub marker: Marker,
    /// The marker is on disk already: the job before this one announced it.
    pub announced: bool,
    /// Nothing when only the marker has to change.
    pub plan: Option<Plan>,
}

/// One operation on its way.
#[derive(Debug)]
pub(super) struct Member<T> {
    pub token: T,
    pub segment: Segment,
    pub durable: bool,
}

/// Extending operations that will go out together, without an offset yet.
#[derive(Debug)]
struct Waiting<T> {
    place: Place,
    members: VecDeque<Member<T>>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    members: Vec<(T, u64)>,
    durable: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    InFlight(Option<Means>),
    Written { synced: bool },
    Failed(ErrorKind),
}

/// The space ahead of the writers.
#[derive(Debug)]
struct Space {
    planner: Planner,
    /// As it is on disk, if it is there.
    marker: Option<Marker>,
    /// The next step, if the marker on disk announces it.
    announced: Option<Plan>,
    /// What the next marker must say.
    mode: Mode,
    prepared: Option<Prepared>,
    /// Recovery left it to the caller to cut; until then the floor stays the base.
    held: Option<(u64, Prepared)>,
    need: Option<Need>,
    grower_running: bool,
    paused: bool,
    /// No space was left when growing ahead: wait for somebody who needs it.
    exhausted: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Core<T> {
    sizes: Sizes,
    ground: Ground,
    waiting: VecDeque<Waiting<T>>,
    reserved: VecDeque<Reserved<T>>,
    in_flight: usize,
    positional: Positional<T>,
    flushes: Flushes,
    /// The flush in flight: its request, its number, and how far the file was written when it began.
    flushing: Option<(u64, Generation, u64)>,
    /// The next flush waits for the requests up to this one that are in flight.
    flush_after: Option<u64>,
    awaiting_flush: VecDeque<(Generation, T)>,
    space: Space,
    stopped: Option<ErrorKind>,
    next_id: u64,
    growth_waits: u64,
}

impl<T: Clone> Core<T> {
    /// A file of `len` bytes, all of it stable. `held` is what recovery left to the caller.
    pub fn new(len: u64, ground: Ground, planner: Planner, held: Option<Marker>) -> Self {
        Self {
            sizes: Sizes::settled(len),
            ground,
            waiting: VecDeque::new(),
            reserved: VecDeque::new(),
            in_flight: 0,
            positional: Positional::default(),
            flushes: Flushes::default(),
            flushing: None,
            flush_after: None,
            awaiting_flush: VecDeque::new(),
            space: Space {
                planner,
                marker: held,
                announced: None,
                mode: held.map_or(Mode::AppendOnly, |marker| marker.mode),
                prepared: ground.prepared,
                held: held.map(|marker| (marker.base, marker.prepared)),
                need: None,
                grower_running: false,
                paused: false,
                exhausted: false,
            },
            stopped: None,
            next_id: 0,
            growth_waits: 0,
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

    /// The base that stays until the caller cuts, if recovery left that to it.
    pub fn held(&self) -> Option<u64> {
        self.space.held.map(|(base, _)| base)
    }

    /// How often an operation found too little space ahead.
    pub fn growth_waits(&self) -> u64 {
        self.growth_waits
    }

    /// Appends `segment`, for `token`.
    pub fn append(&mut self, token: T, segment: Segment, durable: bool, out: &mut Outbox<T>) {
        self.extend(Place::End, Member { token, segment, durable }, out);
    }

    /// Writes `segment` at `offset`, for `token`. Only for writes that extend the file or are durable: others
    /// need no order.
    pub fn write(&mut self, token: T, segment: Segment, offset: u64, durable: bool, out: &mut Outbox<T>) {
        let member = Member { token, segment, durable };
        if offset + segment.len() <= self.sizes.written {
            self.overwrite(offset, member, out);
        } else {
            self.extend(Place::At(offset), member, out);
        }
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

    /// Reports a request performed.
    pub fn completed(&mut self, id: u64, result: Result<(), Failure>, out: &mut Outbox<T>) {
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
                Some(index) => self.extended(index, result),
                None => self.overwritten(id, result, out),
            },
        }
        self.settle(out);
        self.pump(out);
    }

    /// From now on everything fails: a flush failed on this file system.
    pub fn wedge(&mut self, cause: Arc<Error>, out: &mut Outbox<T>) {
        if !self.wedged() {
            self.stopped = Some(ErrorKind::Wedged(cause));
        }
        let stopped = self.stopped.clone().expect("just set");
        for (_, token) in self.awaiting_flush.drain(..) {
            out.answer(token, Err(stopped.clone()));
        }
        self.positional.fail_waiting(&stopped, out);
        self.settle(out);
    }

    // --- extending writes -------------------------------------------------------------------------

    fn extend(&mut self, place: Place, member: Member<T>, out: &mut Outbox<T>) {
        if let Some(stopped) = &self.stopped {
            return out.answer(member.token, Err(stopped.clone()));
        }
        let len = member.segment.len();
        match self.waiting.back_mut() {
            Some(last) if last.admits(place, len, self.ground.limits) => last.push(member),
            _ => {
                let mut group = Waiting { place, members: VecDeque::new(), bytes: 0 };
                group.push(member);
                self.waiting.push_back(group);
            }
        }
        self.pump(out);
    }

    /// Sends out what can go, and asks for what it lacks.
    fn pump(&mut self, out: &mut Outbox<T>) {
        while self.may_send() && self.send_next(out) {}
        self.start_grower(out);
        self.start_flush(out);
    }

    fn may_send(&self) -> bool {
        let in_flight = self.reserved.iter().filter(|part| matches!(part.state, State::InFlight(_)));
        self.in_flight < MERGED_REQUESTS_MAX
            || in_flight.map(|part| part.members.len()).sum::<usize>() < SINGLE_APPENDS_MAX
    }

    /// Sends out the oldest waiting group, or the part of it that fits into the space there is.
    fn send_next(&mut self, out: &mut Outbox<T>) -> bool {
        let Some(group) = self.waiting.front() else { return false };
        let offset = match group.place {
            Place::End => self.sizes.reserved,
            Place::At(offset) => offset,
        };
        let end = offset + group.bytes;
        let inside = if group.place == Place::End { 0 } else { group.fitting(offset, self.sizes.reserved) };
        if inside > 0 {
            return self.reroute(inside, out);
        }
        if group.place == Place::End && !offset.is_multiple_of(self.ground.append_unit) {
            return self.refuse_unaligned_end(offset, out);
        }
        if self.space.prepared.is_none() {
            // The write itself moves i_size. One at a time, so that nobody is above it if it fails.
            return self.in_flight == 0 && self.send(offset, usize::MAX, out);
        }
        let fitting = group.fitting(offset, self.sizes.physical);
        let need = Need { start: offset, least: offset + group.members[0].segment.len(), end };
        if self.marker_must_change(group.place) || fitting == 0 {
            self.growth_waits += u64::from(self.space.need.is_none());
            self.space.need = Some(need);
            return false;
        }
        self.send(offset, fitting, out)
    }

    /// Appends stand at whole blocks; a positional write has left the end elsewhere.
    fn refuse_unaligned_end(&mut self, end: u64, out: &mut Outbox<T>) -> bool {
        let required = self.ground.append_unit;
        let group = self.waiting.pop_front().expect("the caller looked at it");
        for member in group.members {
            let kind = ErrorKind::Misaligned { what: "file length", value: end, required };
            out.answer(member.token, Err(kind));
        }
        true
    }

    /// A group that was to extend the file lies within what others extended meanwhile.
    fn reroute(&mut self, count: usize, out: &mut Outbox<T>) -> bool {
        let group = self.waiting.front_mut().expect("the caller looked at it");
        let Place::At(mut offset) = group.place else { unreachable!("appends lie at the end") };
        let bytes: u64 = group.members.iter().take(count).map(|member| member.segment.len()).sum();
        if offset + bytes > self.sizes.written {
            return false;
        }
        let members: Vec<_> = group.members.drain(..count).collect();
        group.bytes -= bytes;
        group.place = Place::At(offset + bytes);
        if group.members.is_empty() {
            self.waiting.pop_front();
        }
        for member in members {
            let len = member.segment.len();
            self.overwrite(offset, member, out);
            offset += len;
        }
        true
    }

    /// Reserves space at `offset` for the first `count` members of the oldest group, and sends them out.
    fn send(&mut self, offset: u64, count: usize, out: &mut Outbox<T>) -> bool {
        let group = self.waiting.front_mut().expect("the caller looked at it");
        let count = count.min(group.members.len());
        let mut end = offset;
        let mut segments = Vec::with_capacity(count);
        let mut members = Vec::with_capacity(count);
        let mut durable = false;
        for member in group.members.drain(..count) {
            members.push((member.token, end));
            durable |= member.durable;
            end += member.segment.len();
            segments.push(member.segment);
        }
        if group.members.is_empty() {
            self.waiting.pop_front();
        } else {
            group.bytes -= end - offset;
            group.place = if group.place == Place::End { Place::End } else { Place::At(end) };
        }
        let extends = (end > self.sizes.physical).then_some(self.sizes.physical);
        self.sizes.grow_to(end);
        let span = Span { start: self.sizes.reserved, end: end.max(self.sizes.reserved) };
        self.sizes.reserve_to(span.end);
        let means = durable.then(|| self.means());
        let id = self.next_id();
        out.requests.push(Request {
            id,
            owner: members[0].0.clone(),
            work: Work::Write { segments, offset, means, extends },
        });
        self.reserved.push_back(Reserved { id, span, members, durable, state: State::InFlight(means) });
        self.in_flight += 1;
        true
    }

    fn means(&self) -> Means {
        flush::means(Company {
            is_device: self.ground.is_device,
            others_in_flight: self.in_flight > 0 || self.positional.in_flight() > 0 || self.flushes.running(),
            unstable_below: self.sizes.durable < self.sizes.written || !self.waiting.is_empty(),
        })
    }

    /// An extending request came back.
    fn extended(&mut self, index: usize, result: Result<(), Failure>) {
        self.in_flight -= 1;
        let grows_ahead = self.space.prepared.is_some();
        let part = &mut self.reserved[index];
        let State::InFlight(means) = part.state else { unreachable!("a request comes back once") };
        let Err(failure) = result else {
            part.state = State::Written { synced: means == Some(Means::Dsync) };
            return;
        };
        let no_space = matches!(failure.kind, ErrorKind::NoSpace(_));
        part.state = State::Failed(failure.kind);
        if !grows_ahead {
            // It was to move i_size itself, alone, and the engine took back what it did.
            self.sizes.take_back_to(part.span.start);
        }
        if grows_ahead || !no_space {
            self.stopped.get_or_insert(ErrorKind::AppendEnded(failure.cause));
        }
    }

    fn wedged(&self) -> bool {
        matches!(self.stopped, Some(ErrorKind::Wedged(_)))
    }

    /// Moves `written` and `durable` as far as finished requests allow, and answers whom that satisfies.
    fn settle(&mut self, out: &mut Outbox<T>) {
        for part in &self.reserved {
            if !matches!(part.state, State::Written { .. }) || part.span.start > self.sizes.written {
                break;
            }
            // Those that wait for a flush were counted before.
            self.sizes.written_to(part.span.end.max(self.sizes.written));
        }
        for part in &self.reserved {
            let State::Written { synced: true } = part.state else { break };
            if part.span.end <= self.sizes.written && part.span.start <= self.sizes.durable {
                self.sizes.durable_to(part.span.end);
            }
        }
        while !self.wedged() && self.reserved.front().is_some_and(|part| part.is_complete(&self.sizes)) {
            let part = self.reserved.pop_front().expect("just seen");
            part.answer(Ok, out);
        }
        self.fail_the_failed(out);
        if self.stopped.is_some() {
            self.fail_the_rest(out);
        }
    }

    fn fail_the_failed(&mut self, out: &mut Outbox<T>) {
        while let Some(index) = self.reserved.iter().position(|part| matches!(part.state, State::Failed(_))) {
            let part = self.reserved.remove(index).expect("just seen");
            let State::Failed(kind) = part.state.clone() else { unreachable!("just seen") };
            part.answer(|_| Err(kind.clone()), out);
        }
    }

    /// After a failure: nobody behind it is acknowledged, and nobody who waits goes out. Those in flight
    /// are answered when they come back, since the kernel still reads their memory.
    fn fail_the_rest(&mut self, out: &mut Outbox<T>) {
        let stopped = self.stopped.clone().expect("the caller looked at it");
        for group in self.waiting.drain(..) {
            for member in group.members {
                out.answer(member.token, Err(stopped.clone()));
            }
        }
        let wedged = self.wedged();
        let mut end = self.sizes.written;
        for part in std::mem::take(&mut self.reserved) {
            let behind_a_gap = part.span.start > end;
            if !behind_a_gap {
                end = end.max(part.span.end);
            }
            match part.state {
                State::Written { .. } if behind_a_gap || wedged => part.answer(|_| Err(stopped.clone()), out),
                _ => self.reserved.push_back(part),
            }
        }
    }

    // --- overwrites -------------------------------------------------------------------------------

    fn overwrite(&mut self, offset: u64, member: Member<T>, out: &mut Outbox<T>) {
        if let Some(stopped @ ErrorKind::Wedged(_)) = &self.stopped {
            return out.answer(member.token, Err(stopped.clone()));
        }
        let means = member.durable.then(|| self.means());
        let id = self.next_id();
        self.positional.submit(id, offset, member, means, out);
    }

    fn overwritten(&mut self, id: u64, result: Result<(), Failure>, out: &mut Outbox<T>) {
        let done = self.positional.complete(id);
        match result {
            Err(failure) if done.members.len() > 1 && !self.wedged() => {
                // One of them failed, the kernel does not say which: each goes again, to fail alone.
                log::debug!("a merged write failed ({}), its members go out one by one", failure.kind);
                for (span, member) in done.members {
                    let id = self.next_id();
                    self.positional.send(id, vec![(span, member)], done.means, out);
                }
            }
            result => {
                let synced = done.means == Some(Means::Dsync);
                for (span, member) in done.members {
                    self.answer_overwrite(span.start, member, &result, synced, out);
                }
            }
        }
        self.positional.release(self.ground.limits, &mut self.next_id, out);
    }

    fn answer_overwrite(
        &mut self,
        offset: u64,
        member: Member<T>,
        result: &Result<(), Failure>,
        synced: bool,
        out: &mut Outbox<T>,
    ) {
        match (result, &self.stopped) {
            (Err(failure), _) => out.answer(member.token, Err(failure.kind.clone())),
            (_, Some(stopped @ ErrorKind::Wedged(_))) => out.answer(member.token, Err(stopped.clone())),
            _ if member.durable && !synced => {
                self.awaiting_flush.push_back((self.flushes.ticket(), member.token));
            }
            _ => out.answer(member.token, Ok(offset)),
        }
    }

    // --- flushes ----------------------------------------------------------------------------------

    /// Answers whom the last flush covered, and begins the next one if anybody waits for it.
    fn start_flush(&mut self, out: &mut Outbox<T>) {
        while let Some((ticket, _)) = self.awaiting_flush.front() {
            if !self.flushes.covers(*ticket) {
                break;
            }
            let (_, token) = self.awaiting_flush.pop_front().expect("just seen");
            out.answer(token, Ok(0));
        }
        if self.flushes.running() || self.wedged() {
            return;
        }
        let Some(owner) = self.flush_owner() else { return };
        // Whoever is in flight by now can share this flush if it waits for them, and it would be in their way
        // on the device. Those who come later cannot hold it up.
        let last = *self.flush_after.get_or_insert(self.next_id);
        if self.oldest_in_flight().is_some_and(|oldest| oldest <= last) {
            return;
        }
        self.flush_after = None;
        let id = self.next_id();
        self.flushing = Some((id, self.flushes.begin(), self.sizes.written));
        out.requests.push(Request { id, owner, work: Work::Flush });
    }

    /// The oldest request that writes, if any is in flight.
    fn oldest_in_flight(&self) -> Option<u64> {
        let extending = self.reserved.iter().filter(|part| matches!(part.state, State::InFlight(_)));
        extending.map(|part| part.id).min().into_iter().chain(self.positional.oldest_in_flight()).min()
    }

    /// Somebody whom a flush that begins now would satisfy.
    fn flush_owner(&self) -> Option<T> {
        let written = self.sizes.written;
        let extending = self.reserved.iter().find(|part| part.durable && part.span.end <= written);
        let extending = extending.map(|part| &part.members[0].0);
        extending.or(self.awaiting_flush.front().map(|(_, token)| token)).cloned()
    }

    // --- growth -----------------------------------------------------------------------------------

    fn start_grower(&mut self, out: &mut Outbox<T>) {
        if !self.space.grower_running && self.wants_growth() {
            self.space.grower_running = true;
            out.start_grower = true;
        }
    }

    fn wants_growth(&self) -> bool {
        let space = &self.space;
        let low = !space.exhausted && space.planner.below_low_water(self.sizes.ahead());
        let extending = space.marker.is_some() || space.need.is_some();
        space.prepared.is_some()
            && !space.paused
            && self.stopped.is_none()
            && (space.need.is_some() || (extending && low))
    }

    /// Positional writes beyond the end change what recovery must look for, so the marker says so first.
    fn marker_must_change(&mut self, place: Place) -> bool {
        if place != Place::End {
            self.space.mode = Mode::Positional;
        }
        self.space.marker.is_some_and(|marker| marker.mode != self.space.mode)
    }

    /// How much the next step of growth would like to take, and how much is still ahead: for the budget.
    pub fn growth_wanted(&self) -> (u64, u64) {
        (self.space.planner.wanted(), self.sizes.ahead())
    }

    /// The grower asks for its next job. Without one it must end.
    pub fn next_growth(&mut self, room: Room, out: &mut Outbox<T>) -> Option<GrowthJob> {
        while self.wants_growth() {
            let sizes = self.sizes;
            let missing = self.space.need.filter(|need| need.least > sizes.physical);
            // Space that is there must not wait for space that may not be.
            if missing.is_none() && self.space.need.is_some() {
                // It takes the place of the one that announced the next step.
                self.space.announced = None;
                let marker = self.next_marker(sizes.physical, sizes.physical);
                return Some(GrowthJob { marker, announced: false, plan: None });
            }
            if let Some((marker, plan)) = self.take_announced(missing, room) {
                return Some(GrowthJob { marker, announced: true, plan: Some(plan) });
            }
            match self.space.planner.plan(sizes.physical, sizes.reserved, missing, room) {
                Some(plan) => {
                    let marker = self.next_marker(sizes.physical, plan.to);
                    return Some(GrowthJob { marker, announced: false, plan: Some(plan) });
                }
                None => self.grown(Err(ErrorKind::NoSpace(libc::EFBIG)), out),
            }
        }
        self.space.grower_running = false;
        None
    }

    /// The step that the marker on disk announces, if it still serves.
    fn take_announced(&mut self, missing: Option<Need>, room: Room) -> Option<(Marker, Plan)> {
        let plan = self.space.announced.take()?;
        let marker = self.space.marker?;
        if marker.mode != self.space.mode || marker.grown_to != plan.to {
            return None;
        }
        let serves = missing.is_none_or(|need| need.start <= plan.from && need.least <= plan.to);
        let affordable = plan.to - plan.from <= room.granted_bytes.min(room.free_bytes);
        (serves && affordable && plan.from == self.sizes.physical).then_some((marker, plan))
    }

    /// The file was grown to `physical`: the marker to stand while writers use that space. It announces the next step
    /// as well, so that one sync makes this growth durable and the next one possible.
    pub fn announce(&mut self, done: Plan, physical: u64, room: Room) -> Marker {
        self.space.planner.carried_out(done, physical);
        let Some(plan) = self.space.planner.plan(physical, physical, None, room) else {
            return self.next_marker(physical, physical);
        };
        self.space.announced = Some(plan);
        self.next_marker(physical, plan.to)
    }

    fn next_marker(&mut self, grown_from: u64, grown_to: u64) -> Marker {
        let prepared = self.space.prepared.expect("only files that grow have a marker");
        let (base, prepared) = self.space.held.unwrap_or((self.sizes.durable, prepared));
        self.ground.epoch = self.ground.epoch.wrapping_add(1);
        Marker {
            identity: self.ground.identity,
            prepared,
            mode: self.space.mode,
            base,
            // Extents end at blocks, so ours may reach as far.
            grown_from: grown_from.next_multiple_of(self.ground.append_unit),
            grown_to,
            epoch: self.ground.epoch,
        }
    }

    /// The marker is durable on disk.
    pub fn marked(&mut self, marker: Marker) {
        self.space.marker = Some(marker);
    }

    /// A growth job ended: with the new physical size, durable, or without space.
    pub fn grown(&mut self, result: Result<u64, ErrorKind>, out: &mut Outbox<T>) {
        let need = self.space.need.take();
        match (result, need) {
            (Ok(physical), _) => {
                self.sizes.grow_to(physical);
                self.space.exhausted = false;
            }
            (Err(kind), Some(need)) if need.least > self.sizes.physical => self.refuse(need, kind, out),
            (Err(_), _) => self.space.exhausted = true,
        }
        self.pump(out);
    }

    /// Marking or growing failed in a way that makes the file useless for extension.
    pub fn growth_failed(&mut self, failure: Failure, out: &mut Outbox<T>) {
        self.space.need = None;
        if failure.wedges {
            self.wedge(failure.cause, out);
        } else if self.space.marker.is_none() && matches!(failure.kind, ErrorKind::Os(libc::EOPNOTSUPP)) {
            log::warn!("dioxide: no growth ahead from now on: {}", failure.cause);
            self.space.prepared = None;
        } else {
            self.space.exhausted = true;
            for group in self.waiting.drain(..) {
                for member in group.members {
                    out.answer(member.token, Err(failure.kind.clone()));
                }
            }
        }
        self.pump(out);
    }

    /// There is no space for the first waiting operation, nor for any that needs as much.
    fn refuse(&mut self, need: Need, kind: ErrorKind, out: &mut Outbox<T>) {
        self.space.exhausted = true;
        let least = need.least - need.start;
        let physical = self.sizes.physical;
        for group in &mut self.waiting {
            let (refused, kept) = match group.place {
                Place::End => group.members.drain(..).partition(|m| m.segment.len() >= least),
                // Those behind a refused one would move to other offsets: all or none.
                Place::At(offset) if group.bytes >= least && offset + group.bytes > physical => {
                    (std::mem::take(&mut group.members), VecDeque::new())
                }
                Place::At(_) => continue,
            };
            group.members = kept;
            group.bytes = group.members.iter().map(|m| m.segment.len()).sum();
            for member in refused {
                out.answer(member.token, Err(kind.clone()));
            }
        }
        self.waiting.retain(|group| !group.members.is_empty());
    }

    // --- alone ------------------------------------------------------------------------------------

    /// Keeps the grower out; returns whether it is idle.
    pub fn pause_growth(&mut self) -> bool {
        self.space.paused = true;
        !self.space.grower_running
    }

    /// Lets the grower work again.
    pub fn resume_growth(&mut self) {
        self.space.paused = false;
    }

    /// With nothing in flight, the file was cut (or extended) to `len` durably and carries no marker.
    pub fn cut(&mut self, len: u64) {
        assert!(self.reserved.is_empty() && self.waiting.is_empty());
        self.sizes.cut(len);
        self.space.planner.reset();
        self.space.marker = None;
        self.space.announced = None;
        self.space.held = None;
        self.space.mode = Mode::AppendOnly;
        self.space.exhausted = false;
        if matches!(self.stopped, Some(ErrorKind::AppendEnded(_))) {
            self.stopped = None;
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl<T> Waiting<T> {
    fn admits(&self, place: Place, len: u64, limits: Limits) -> bool {
        let adjacent = match (self.place, place) {
            (Place::End, Place::End) => true,
            (Place::At(offset), Place::At(next)) => offset + self.bytes == next,
            _ => false,
        };
        adjacent && limits.admit(self.bytes, self.members.len(), len)
    }

    fn push(&mut self, member: Member<T>) {
        self.bytes += member.segment.len();
        self.members.push_back(member);
    }

    /// How many of the members, from the first, end below `physical` when written at `offset`.
    fn fitting(&self, offset: u64, physical: u64) -> usize {
        let mut end = offset;
        self.members
            .iter()
            .take_while(|member| {
                end += member.segment.len();
                end <= physical
            })
            .count()
    }
}

impl<T> Reserved<T> {
    fn is_complete(&self, sizes: &Sizes) -> bool {
        let reached = if self.durable { sizes.durable } else { sizes.written };
        matches!(self.state, State::Written { .. }) && self.span.end <= reached
    }

    fn answer(self, outcome: impl Fn(u64) -> Outcome, out: &mut Outbox<T>) {
        for (token, offset) in self.members {
            out.answer(token, outcome(offset));
        }
    }
}
