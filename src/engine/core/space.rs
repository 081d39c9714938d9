//! The space ahead of the writers: when to grow, what the marker says, and which operations fail
//! when there is no space.
//!
//! A recycled file has old content ahead, up to `old_to`. Three rules hide it:
//! 1. No write leaves a gap in it: below `old_to` the file is extended contiguously, except for the
//!    zeros behind a record.
//! 2. Markers say `recycled` until their base has passed `old_to`. Then all space ahead was grown,
//!    and they mean the same as in any other file.
//! 3. It is no growth: it is not charged to the budget, and growth beyond it waits until an
//!    operation needs it.
//!
//! Growth that is refused for good (no fallocate, no attributes) is no error: the file continues
//! without growth, and the kernel decides on each write. A marker must be removed first: recovery
//! would take the kernel's later extension for that of another program. So no extending request is
//! submitted until the space ahead is truncated and the marker removed.

use super::{Core, Failure, GrowthJob, Outbox, Target};
use crate::error::ErrorKind;
use crate::os_error;
use crate::rules::growth::{Need, Plan, SpaceLimits};
use crate::rules::marker::{Marker, Mode};
use crate::rules::policy::Tail;

impl<T: Clone + PartialEq> Core<T> {
    pub(super) fn start_grower(&mut self, out: &mut Outbox<T>) {
        if !self.space.grower_running && self.wants_growth() {
            self.space.grower_running = true;
            out.start_grower = true;
        }
    }

    pub(super) fn wants_growth(&self) -> bool {
        let space = &self.space;
        let low = !space.exhausted
            && !self.is_sufficient()
            && space.planner.below_low_water(self.sizes.ahead());
        let extending = space.marker.is_some() || space.need.is_some();
        let has_cause = match space.growth_ends {
            // A write of the last unit beside the truncate would extend the file again.
            true => self.in_flight == 0 && !self.overwrites.reaches_behind(self.sizes.written),
            false => space.need.is_some() || (extending && low),
        };
        let may_run = !space.paused && self.stopped.is_none();
        space.prepared.is_some() && may_run && has_cause
    }

    /// Whether the file has the space that it is expected to need.
    fn is_sufficient(&self) -> bool {
        let expected = self.space.planner.capacity().max(self.space.old_to);
        self.sizes.reserved <= expected && expected <= self.sizes.physical
    }

    /// Whether a write at `offset` would leave a gap that does not read as zeros.
    pub(super) fn would_show_old_content(&self, offset: u64) -> bool {
        offset > self.sizes.reserved.max(self.space.zeros_to)
            && self.sizes.reserved < self.space.old_to
    }

    /// Whether the marker must change before a write at `place`: recovery looks for other things
    /// after a positional write beyond the end.
    pub(super) fn marker_must_change(&self, place: Target) -> bool {
        let mode = if place == Target::End { self.space.mode } else { Mode::Positional };
        self.space.marker.is_some_and(|marker| marker.mode != mode)
    }

    /// Switches to positional mode, before a positional write beyond the end.
    pub(super) fn set_positional(&mut self) {
        self.space.mode = Mode::Positional;
        self.space.jumped = true;
    }

    /// Bytes that the next step of growth asks for.
    pub fn growth_wanted(&self) -> u64 {
        self.space.planner.wanted()
    }

    /// Bytes that were grown and are still ahead, for the budget. A hole has none.
    pub fn grown_ahead(&self) -> u64 {
        let used = self.sizes.reserved.max(self.space.old_to).max(self.space.hole_to);
        self.sizes.physical.saturating_sub(used)
    }

    /// Whether positional writes past the end may have left holes.
    pub fn leaves_holes(&self) -> bool {
        self.space.jumped
    }

    /// Offset above which this process never wrote, and the file held no data before.
    pub fn ours_to(&self) -> u64 {
        self.sizes.reserved.max(self.space.old_to).next_multiple_of(self.props.append_unit)
    }

    /// Returns the next job of the grower. Without one the grower must end.
    pub fn next_growth(&mut self, room: SpaceLimits, out: &mut Outbox<T>) -> Option<GrowthJob> {
        while self.wants_growth() {
            let sizes = self.sizes;
            if self.space.growth_ends {
                let marker = self.space.marker.expect("growth ends when it is away");
                return Some(GrowthJob {
                    marker,
                    announced: true,
                    plan: None,
                    truncate_to: Some(sizes.reserved),
                });
            }
            let missing = self.space.need.filter(|need| need.least > sizes.physical);
            self.space.tried = missing;
            // Existing space must not wait for space that may not exist.
            if missing.is_none() && self.space.need.is_some() {
                // It replaces the marker that announced the next step.
                self.space.announced = None;
                let marker = self.next_marker(sizes.physical, sizes.physical);
                return Some(GrowthJob { marker, announced: false, plan: None, truncate_to: None });
            }
            if let Some((marker, plan)) = self.take_announced(missing, room) {
                return Some(GrowthJob {
                    marker,
                    announced: true,
                    plan: Some(plan),
                    truncate_to: None,
                });
            }
            match self.space.planner.plan(sizes.physical, sizes.reserved, missing, room) {
                Some(plan) => {
                    let marker = self.next_marker(sizes.physical, plan.to);
                    return Some(GrowthJob {
                        marker,
                        announced: false,
                        plan: Some(plan),
                        truncate_to: None,
                    });
                }
                None => self.on_grown(Err(ErrorKind::NoSpace(libc::EFBIG)), out),
            }
        }
        self.space.grower_running = false;
        self.release_overwrites(out);
        None
    }

    /// Takes the step that the marker on disk announces, if it still serves.
    pub(super) fn take_announced(
        &mut self,
        missing: Option<Need>,
        room: SpaceLimits,
    ) -> Option<(Marker, Plan)> {
        let plan = self.space.announced.take()?;
        let marker = self.space.marker?;
        if marker.mode != self.space.mode || marker.grown_to != plan.to {
            return None;
        }
        let serves = missing.is_none_or(|need| need.start <= plan.from && need.least <= plan.to);
        let affordable = plan.to - plan.from <= room.granted_bytes.min(room.free_bytes);
        (serves && affordable && plan.from == self.sizes.physical).then_some((marker, plan))
    }

    /// Returns the marker for a file grown to `physical`, valid while writers use that space. It
    /// announces the next step as well, so one marker ends this growth and permits the next one.
    pub fn announce(&mut self, done: Plan, physical: u64, room: SpaceLimits) -> Marker {
        self.space.growing = Some((self.space.planner, done.from));
        self.space.planner.carried_out(done, physical);
        let Some(plan) = self.space.planner.plan(physical, physical, None, room) else {
            return self.next_marker(physical, physical);
        };
        self.space.announced = Some(plan);
        self.next_marker(physical, plan.to)
    }

    pub(super) fn next_marker(&mut self, grown_from: u64, grown_to: u64) -> Marker {
        let durable = self.sizes.durable;
        let (base, recycled) = match self.space.held {
            Some(held) => (held.base, held.recycled),
            // The next record begins at a block. A hole below may be intended.
            None if self.props.tail == Tail::Pad && durable >= self.space.old_to => {
                (durable.next_multiple_of(self.props.append_unit), false)
            }
            None => (durable, durable < self.space.old_to),
        };
        Marker {
            identity: self.props.identity,
            prepared: self.space.prepared.expect("only files that grow have a marker"),
            mode: self.space.mode,
            recycled,
            base,
            // Extents end at blocks, so those of this file may reach as far.
            grown_from: grown_from.next_multiple_of(self.props.append_unit),
            grown_to,
            epoch: self.next_epoch(),
            truncations: Some(self.space.truncations),
        }
    }

    /// Returns the marker that announces the truncate of a file with `marker`; `base` is its floor.
    /// Each truncate counts, so that readers in other processes read again. The next marker counts
    /// once more: a reader may know the old length by this one. Each count takes an epoch (see
    /// `Marker::only_grew_until`).
    pub fn truncating_marker(&mut self, marker: Marker, base: u64) -> Marker {
        let grown_to = marker.grown_to;
        let (truncations, epoch) = (Some(self.next_truncation()), self.next_epoch());
        self.next_truncation();
        self.next_epoch();
        Marker { base, grown_from: grown_to, grown_to, epoch, truncations, ..marker }
    }

    /// Returns the marker of a file that was not truncated after all. It counts as the next one
    /// does: readers read once more, and no count repeats.
    pub fn restored_marker(&mut self, marker: Marker) -> Marker {
        Marker { epoch: self.next_epoch(), truncations: Some(self.space.truncations), ..marker }
    }

    fn next_truncation(&mut self) -> u8 {
        self.space.truncations = self.space.truncations.wrapping_add(1);
        self.space.truncations
    }

    /// Returns the marker that must be durable before the file is recycled. To readers it is a
    /// truncate.
    pub fn recycling_marker(&mut self) -> Marker {
        let physical = self.sizes.physical;
        self.next_truncation();
        let marker = self.next_marker(physical, physical);
        Marker { mode: Mode::AppendOnly, recycled: true, base: 0, ..marker }
    }

    /// Returns the epoch of the next marker that goes to the disk.
    pub fn next_epoch(&mut self) -> u32 {
        self.props.epoch = self.props.epoch.wrapping_add(1);
        self.props.epoch
    }

    /// Records that the marker is set: durable, or ordered before all that depends on it.
    pub fn on_marked(&mut self, marker: Marker) {
        self.space.marker = Some(marker);
    }

    /// Takes the result of a growth job: the new physical size, with its marker; or an error for
    /// lack of space.
    pub fn on_grown(&mut self, result: Result<u64, ErrorKind>, out: &mut Outbox<T>) {
        match result {
            Ok(physical) => {
                if let Some((_, from)) = self.space.growing.take()
                    && from > self.sizes.physical
                {
                    self.space.hole_to = from;
                }
                self.sizes.grow_to(physical);
                (self.space.need, self.space.tried) = (None, None);
                self.space.exhausted = false;
            }
            Err(kind) => {
                match self.need_of_failed() {
                    Some(need) if need.least > self.sizes.physical => self.refuse(need, kind, out),
                    _ => self.space.exhausted |= self.space.need.is_none(),
                }
                self.leave_refused_mode();
            }
        }
        self.pump(out);
    }

    /// Takes what the operations need that a failed growth job was for. None if an operation with a
    /// smaller need has come before them: it may find space.
    fn need_of_failed(&mut self) -> Option<Need> {
        if let Some((before, _)) = self.space.growing.take() {
            self.space.planner = before;
        }
        let (need, tried) = (self.space.need, self.space.tried.take());
        let is_untried = |need: Need| tried.is_some_and(|tried| need.least < tried.least);
        let need = need.filter(|need| !is_untried(*need))?;
        self.space.need = None;
        Some(need)
    }

    /// Leaves positional mode if the positional writes that asked for it were refused. Appends
    /// would need another marker, for which there is no space.
    fn leave_refused_mode(&mut self) {
        let asks = self.waiting.iter().any(|group| group.place() != Target::End);
        if self.is_append_only() && !asks {
            self.space.mode = Mode::AppendOnly;
        }
    }

    /// Whether the marker on disk says that the file only grows by appends.
    fn is_append_only(&self) -> bool {
        self.space.marker.is_some_and(|marker| marker.mode == Mode::AppendOnly)
    }

    /// Whether an operation waits for growth.
    pub fn needs_growth(&self) -> bool {
        self.space.need.is_some()
    }

    /// Records a truncate to the reserved end. No extending request is in flight.
    pub fn give_up_ahead(&mut self) {
        self.sizes.give_up_ahead();
        self.space.announced = None;
        self.space.old_to = 0;
        self.space.written_to = 0;
        self.space.hole_to = 0;
    }

    /// Ends growth: the space ahead is truncated and the marker removed. From now on the kernel
    /// moves EOF.
    pub fn on_growth_ended(&mut self, out: &mut Outbox<T>) {
        self.give_up_ahead();
        self.space.need = None;
        self.on_unmarked();
        self.pump(out);
    }

    /// Takes the failure of a marker or a growth. A refusal for good ends growth. Any other failure
    /// fails the operations that need the space or the marker.
    pub fn on_growth_failed(&mut self, failure: Failure, out: &mut Outbox<T>) {
        let is_needed = self.space.need.is_some();
        let (need, untried) = (self.need_of_failed(), self.space.need.take());
        let was_ending = std::mem::take(&mut self.space.growth_ends);
        // A file whose end is unknown must change only as its marker announces.
        let may_end =
            !was_ending && self.space.held.is_none() && os_error::is_refusal(&failure.kind);
        if failure.wedges {
            self.wedge(failure.cause, out);
        } else if may_end && self.space.marker.is_none() {
            self.space.prepared = None;
        } else if may_end && is_needed {
            self.space.growth_ends = true;
        } else if may_end {
            // The space ahead remains usable.
            self.space.exhausted = true;
        } else {
            self.space.exhausted = true;
            let lacks_space = matches!(failure.kind, ErrorKind::NoSpace(_));
            match need {
                // While growth ends, none of them can be submitted.
                _ if was_ending => self.fail_waiting(&failure.kind, out),
                Some(need) if need.least > self.sizes.physical => {
                    self.refuse(need, failure.kind, out)
                }
                // The marker is for positional writes. Appends need none.
                Some(_) if lacks_space && self.is_append_only() => {
                    self.fail_those(|place, _| place != Target::End, &failure.kind, out)
                }
                Some(_) => self.fail_waiting(&failure.kind, out),
                None => self.space.need = untried,
            }
            if lacks_space {
                self.leave_refused_mode();
            }
        }
        self.pump(out);
    }

    /// Fails the first waiting operation, and each that needs as much: there is no space.
    pub(super) fn refuse(&mut self, need: Need, kind: ErrorKind, out: &mut Outbox<T>) {
        // A write far beyond the end says nothing about appends, nor they about it.
        let end_of_file = self.end_of_file();
        let at_the_end = need.start <= end_of_file;
        self.space.exhausted |= at_the_end;
        let [append_unit, offset_unit] = [Target::End, Target::At(0)].map(|at| self.unit_of(at));
        let is_refused = |place: Target, len: u64| match place {
            // Each is judged as if it were alone: those behind a refused one move to lower offsets.
            Target::End => {
                at_the_end && (end_of_file + len).next_multiple_of(append_unit) >= need.least
            }
            Target::At(offset) => (offset + len).next_multiple_of(offset_unit) >= need.least,
        };
        for (_, member) in self.take_waiting(is_refused) {
            out.answer(member.token, Err(kind.clone()));
        }
    }
}
