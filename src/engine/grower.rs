//! The background grower: a thread that lives while its file needs space ahead, and performs the
//! steps that the core decides.
//!
//! Order, so that a crash at any point can be undone:
//! 1. the marker that announces the new size;
//! 2. the allocation, and zeros if the space is to be filled;
//! 3. if there was no space for all of it: less, and the marker again, with the true size;
//! 4. the marker that announces the next step as well, so the next job has its first step behind
//!    it;
//! 5. only now do writers use the space.
//!
//! An ordered journal commits these changes in this order, so no step waits for a flush. The first
//! durable write into unwritten space converts it, and so commits them all. A write into zeroed
//! space needs the new size only, and may leave the marker of step 4 behind. So recovery believes
//! `grown_from` only where extents tell ([`Marker::extents_tell`]).
//!
//! Elsewhere each marker is durable before the next step, and the sync of step 4 makes the growth
//! durable as well. The same holds for a marker that announces more than a growth.
//!
//! The marker of step 4 has `grown_from` = the size now reached. No writer writes above it until
//! the next allocation is complete. Recovery relies on that.

use super::abort::AbortOnPanic;
use super::core::{Failure, GrowthJob};
use super::exclusive::written_above_the_end;
use super::io::RequestIo;
use super::truncate::{Attempt, Takes, changed_by_another, is_unsettled, truncate};
use super::{Engine, io};
use crate::buffer::{Buffer, Segment};
use crate::error::{ErrorKind, Operation};
use crate::observe::{self, Event};
use crate::os_error::{self, flushed, is_no_space, uninterrupted};
use crate::rules::growth::{Plan, SpaceLimits};
use crate::rules::marker::{Marker, Prepared};
use crate::rules::recovery::written_above;
use crate::stats::count;
use crate::sync::atomic::Ordering;
use crate::text::shown;
use std::io::Result;
use std::sync::Arc;

/// Bytes per request of zeros.
const ZEROS_BYTES: usize = 1 << 20;

impl Engine {
    /// Starts the grower. False without a thread: then the caller must [grow](Self::grow) the file.
    pub(super) fn start_grower(self: &Arc<Self>) -> bool {
        let engine = self.clone();
        // The last thread has done its work, but may still hold the descriptor. Stopping the grower
        // waits for one thread, so there is one at a time.
        let mut thread = self.grower.lock();
        if let Some(last) = thread.take() {
            last.join();
        }
        match self.backend.spawn(Box::new(move || engine.grow())) {
            Ok(started) => {
                *thread = started;
                true
            }
            Err(error) => {
                log::warn!(
                    "dioxide: no thread to grow {} ({error}); a writer does it",
                    shown(&*self.path)
                );
                false
            }
        }
    }

    /// Performs growth jobs until there are none.
    pub(super) fn grow(self: &Arc<Self>) {
        if !self.process.is_current() {
            return;
        }
        let _all_or_nothing = AbortOnPanic::armed();
        loop {
            let room = self.room();
            let job = self.step(|core, out| {
                let job = core.next_growth(room, out);
                if job.is_none() {
                    // The granted step is not taken.
                    self.charge(core.grown_ahead(), 0);
                    self.grower_ended.notify_all();
                }
                job
            });
            let Some(job) = job else { return };
            // Those that need the marker of such a job fail without space for it, rather than ask
            // for it again at once.
            let (marks_only, ends_growth) = (job.plan.is_none(), job.truncate_to.is_some());
            let result = self.perform_growth(job, room);
            if let Err(failure) = &result
                && !matches!(failure.kind, ErrorKind::NoSpace(_))
                // Logged once, when it begins to matter.
                && (!os_error::is_refusal(&failure.kind) || self.lock().needs_growth())
            {
                log::warn!("dioxide: no growth ahead: {}", failure.cause);
            }
            self.step(|core, out| match result {
                Ok(_) if ends_growth => core.on_growth_ended(out),
                Ok(physical) => core.on_grown(Ok(physical), out),
                Err(failure)
                    if matches!(failure.kind, ErrorKind::NoSpace(_))
                        && !failure.wedges
                        && !marks_only =>
                {
                    core.on_grown(Err(failure.kind), out)
                }
                Err(failure) => core.on_growth_failed(failure, out),
            });
        }
    }

    fn room(&self) -> SpaceLimits {
        let free_bytes = self.backend.free_bytes().unwrap_or_else(|error| {
            log::warn!("dioxide: {}: free space unknown: {error}", shown(&*self.path));
            0
        });
        let (wanted, ahead) = {
            let core = self.lock();
            (core.growth_wanted(), core.grown_ahead())
        };
        let granted_bytes = self.charge(ahead, wanted.min(free_bytes));
        SpaceLimits { free_bytes, size_max: self.backend.size_max(), granted_bytes }
    }

    /// Charges the file for its space ahead and for the part of `wanted` that the budget grants.
    /// Returns that part in bytes.
    pub(super) fn charge(&self, ahead: u64, wanted: u64) -> u64 {
        let mut charged = self.charged.lock();
        let (charge, granted) = self.process.budget().grant(*charged, ahead, wanted);
        *charged = charge;
        granted
    }

    fn perform_growth(
        &self,
        job: GrowthJob,
        room: SpaceLimits,
    ) -> std::result::Result<u64, Failure> {
        let fail = |error: std::io::Error| self.growth_failure(&error);
        let physical = self.lock().sizes().physical;
        // Before the marker: leftovers of a failed growth may lie above everything that the next
        // marker announces.
        let found = self.settled_size(physical).map_err(fail)?;
        if found != physical {
            // Growth over another program's data would claim that data, and overwrite it.
            let kind = changed_by_another(physical, found);
            let cause = Arc::new(self.error(Operation::Grow, None, kind.clone()));
            return Err(Failure { kind, cause, wedges: false });
        }
        if let Some(end) = job.truncate_to {
            return self.end_growth(job.marker, end, physical).map_err(fail);
        }
        if !job.announced {
            let marked = match job.plan {
                Some(_) => self.mark_growth(job.marker),
                None => self.mark(job.marker),
            };
            marked.map_err(|error| fail(self.of_marker(error, job.plan, room)))?;
        }
        let Some(plan) = job.plan else { return Ok(job.marker.grown_to) };
        let result = self.grow_by(plan, job.marker, room);
        if result.is_err() {
            let taken_back = self.take_back(physical, plan.to);
            if let Err(error) = taken_back {
                self.leave_behind(plan.to, &error);
                log::warn!("dioxide: {}: taking back a growth: {error}", shown(&*self.path));
            }
        }
        result.map_err(fail)
    }

    /// The first marker found no space on a file system that has some: the file's space for
    /// attributes is full (ext4), and stays so. A quota (EDQUOT) does not.
    fn of_marker(
        &self,
        error: std::io::Error,
        plan: Option<Plan>,
        room: SpaceLimits,
    ) -> std::io::Error {
        let has_space = plan.is_some_and(|plan| plan.to - plan.from <= room.free_bytes);
        let is_full = error.raw_os_error() == Some(libc::ENOSPC);
        if is_full && has_space && self.lock().marker().is_none() {
            let why = "the inode has no space for another attribute";
            return std::io::Error::other(ErrorKind::Unsupported(why.into()));
        }
        error
    }

    /// Ends growth for good: truncates the space ahead, and removes the marker, both durably. No
    /// extending request is in flight.
    fn end_growth(&self, marker: Marker, end: u64, physical: u64) -> Result<u64> {
        self.make_stable()?;
        if end < physical
            && let Attempt::Changed(_) = self.truncate_with(marker, end, end, None)?
        {
            return Err(std::io::Error::other(ErrorKind::ModifiedExternally(
                written_above_the_end().into(),
            )));
        }
        // Even if the marker stays: the size has changed.
        self.lock().give_up_ahead();
        self.backend.remove_marker()?;
        self.make_stable()?;
        Ok(end)
    }

    /// Takes back leftovers of an earlier failure above `physical`. Returns the size on disk.
    pub(super) fn settled_size(&self, physical: u64) -> Result<u64> {
        self.take_back(physical, self.left_behind.load(Ordering::Relaxed))?;
        self.left_behind.store(0, Ordering::Relaxed);
        self.backend.physical_size()
    }

    /// Records that space up to `end` could not be taken back, for a later attempt. Not beside
    /// another writer, which may own that space.
    pub(super) fn leave_behind(&self, end: u64, error: &std::io::Error) {
        if is_unsettled(error) || !matches!(os_error::kind(error), ErrorKind::Busy(_)) {
            self.left_behind.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Takes back a failed growth or write by a truncate to `physical`: no operation uses the space
    /// yet. A failed allocation may have moved the size, and would keep the disk full. A size that
    /// this process did not set stays, and so does another program's data. Where the file grows
    /// ahead, only zeros of ours lie above `physical`; elsewhere a failed write may.
    pub(super) fn take_back(&self, physical: u64, tried: u64) -> Result<()> {
        // A failed write may have left bytes behind an end inside a block. A truncate to that end
        // makes them zeros, which an extension of the file would show.
        let is_whole = physical.is_multiple_of(self.alignment.append);
        let least = if is_whole { physical + 1 } else { physical };
        let prepared = self.lock().prepared();
        let is_ours = || {
            let size = self.backend.physical_size()?;
            let is_written = match prepared {
                _ if !(least..=tried).contains(&size) => return Ok(false),
                None => false,
                Some(Prepared::Unwritten) => self.is_written_between(physical, size)?,
                Some(Prepared::Zeroed) => self.end_of_bytes(physical, size)?.is_some(),
            };
            Ok(!is_written)
        };
        if !is_ours()? {
            return Ok(());
        }
        let takes = if prepared == Some(Prepared::Zeroed) { Takes::Long } else { Takes::Short };
        // Changed: another program moved the end meanwhile.
        let truncated =
            self.placement.change(|| truncate(&*self.backend, physical, &true, takes, is_ours));
        truncated.map(|_| ())
    }

    /// Whether something is written above `end`, in space that may be allocated unwritten. The
    /// block of `end` is written either way.
    fn is_written_between(&self, end: u64, size: u64) -> Result<bool> {
        let blocks_end = end.next_multiple_of(self.alignment.append).min(size);
        if self.end_of_bytes(end, blocks_end)?.is_some() {
            return Ok(true);
        }
        Ok(written_above(blocks_end, size, &self.backend.extents(blocks_end)?).is_some())
    }

    fn grow_by(&self, plan: Plan, marker: Marker, room: SpaceLimits) -> Result<u64> {
        let begun = observe::begun();
        let prepared = self.prepare(plan, marker.prepared);
        self.placement.need_commit();
        let grown_to = prepared?;
        if grown_to < plan.to {
            self.mark(Marker { grown_to, ..marker })?;
        }
        let next = self.lock().announce(plan, grown_to, room);
        self.mark_growth(next)?;
        let bytes = grown_to - plan.from;
        count(&self.counters.growths, 1);
        count(&self.counters.grown_bytes, bytes);
        observe::ended(begun, |took| Event::Growth { file: &self.path, bytes, took });
        Ok(grown_to)
    }

    /// Writes a marker that announces a growth. In an ordered journal it needs no flush, if it
    /// differs from the one before in nothing else.
    fn mark_growth(&self, marker: Marker) -> Result<()> {
        let only_grows = marker.only_grows_after(self.lock().marker());
        let is_ordered = || self.order.as_ref().is_some_and(|order| order.check().is_ok());
        if !(only_grows && is_ordered()) {
            return self.mark(marker);
        }
        self.backend.write_marker(&marker.encode())?;
        self.lock().on_marked(marker);
        Ok(())
    }

    /// Writes the marker and makes it durable.
    pub(super) fn mark(&self, marker: Marker) -> Result<()> {
        self.backend.write_marker(&marker.encode())?;
        self.make_stable()?;
        self.lock().on_marked(marker);
        Ok(())
    }

    /// Makes data, size and attributes durable. A failure wedges the file system.
    pub(super) fn make_stable(&self) -> Result<()> {
        let cause = |error: &std::io::Error| self.cause(Operation::Flush, None, error);
        self.fs.flushing(|| flushed(|| self.backend.sync_all()), cause)
    }

    /// Allocates space, in smaller steps if there is not enough for the whole. Returns the new
    /// physical size.
    fn prepare(&self, plan: Plan, prepared: Prepared) -> Result<u64> {
        let physical = self.lock().sizes().physical;
        let mut plan = plan;
        loop {
            let result = self.take_space(plan.from, plan.to, prepared);
            // Space that stays belongs to another program. Growth would overwrite it.
            let is_taken_back = || {
                self.take_back(physical, plan.to)?;
                Ok::<_, std::io::Error>(self.backend.physical_size()? == physical)
            };
            let may_go_on = result.is_err() && is_taken_back().unwrap_or(false);
            match (result, plan.smaller().filter(|_| may_go_on)) {
                (Ok(()), _) => return Ok(plan.to),
                (Err(error), Some(smaller)) if is_no_space(&error) => {
                    plan = smaller;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    fn take_space(&self, from: u64, to: u64, prepared: Prepared) -> Result<()> {
        let allocated = uninterrupted(|| self.backend.allocate(from, to));
        match prepared {
            Prepared::Unwritten => allocated,
            // Where space cannot be allocated unwritten (indirect-block files), the zeros extend
            // the file.
            Prepared::Zeroed => match allocated {
                Err(error) if !os_error::is_missing(&error) => Err(error),
                _ => self.fill(from, to),
            },
        }
    }

    /// Fills with zeros, by the device itself if it can.
    fn fill(&self, from: u64, to: u64) -> Result<()> {
        if self.backend.write_zeroes(from, to).is_ok() {
            return Ok(());
        }
        let zeros = Buffer::zeroed(ZEROS_BYTES);
        // The part of a block before an unaligned end was zeroed when the file was extended.
        let from = from.next_multiple_of(self.alignment.offset);
        for start in (from..to).step_by(ZEROS_BYTES) {
            let len = (to - start).min(ZEROS_BYTES as u64);
            let transfer = RequestIo::of_write(len, self.alignment.offset)
                .with_flushes_anyway(self.flushes_each_write);
            let zeros = &[Segment::of(&zeros[..len as usize])];
            let write = || io::write_fully(&*self.backend, zeros, start, transfer);
            match self.flushes_each_write {
                true => {
                    self.fs.flushing(write, |error| self.cause(Operation::Grow, None, error))?
                }
                false => write()?,
            }
        }
        Ok(())
    }

    fn growth_failure(&self, error: &std::io::Error) -> Failure {
        let own = self.cause(Operation::Grow, None, error);
        let kind = self.judged_kind(Operation::Grow, error);
        match self.fs.wedged() {
            Some(cause) => Failure { kind, cause: cause.clone(), wedges: true },
            None => Failure { kind, cause: own, wedges: false },
        }
    }
}
