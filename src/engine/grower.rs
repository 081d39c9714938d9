//! The background grower: a thread that lives while its file needs space ahead, and performs the steps that
//! the core decides.
//!
//! Order, so that a crash at any point can be undone:
//! 1. the marker that announces the new size, durable;
//! 2. the allocation (smaller if there is no space for all of it; then the marker again, with the true size);
//! 3. zeros, if the space is to be filled;
//! 4. the marker that announces the next step as well; it and the growth durable by one sync, so that the next
//!    job has its first step behind it;
//! 5. only now do writers learn of the space.
//!
//! The marker of step 4 says `grown_from` = the size now reached: until the next allocation is complete nobody writes
//! above it, which is what recovery relies on.

use super::core::{Failure, GrowthJob};
use super::{Engine, io, os_kind, puts_flush_in_doubt};
use crate::backend::{Backend, FreeSpace};
use crate::buffer::{Buffer, Segment};
use crate::error::{ErrorKind, Operation};
use crate::growth::{Plan, Room};
use crate::marker::{Marker, Prepared};
use crate::stats::count;
use std::io::Result;
use std::sync::{Arc, OnceLock};

/// Zeros go out in requests of this size.
const ZEROS_BYTES: usize = 1 << 20;

impl<B: Backend> Engine<B> {
    pub(super) fn start_grower(self: &Arc<Self>) {
        let engine = self.clone();
        let spawned = self.backend.spawn(Box::new(move || engine.grow()));
        if let Err(error) = spawned {
            log::warn!("dioxide: no thread to grow {} ({error}); a writer does it", self.path.display());
            self.grow();
        }
    }

    /// Performs growth jobs until there are none.
    pub(super) fn grow(self: &Arc<Self>) {
        if !self.process.is_current() {
            return;
        }
        loop {
            let room = self.room();
            let job = self.step(|core, out| {
                let job = core.next_growth(room, out);
                if job.is_none() {
                    self.grower_ended.notify_all();
                }
                job
            });
            let Some(job) = job else { return };
            let result = self.perform_growth(job, room);
            self.step(|core, out| match result {
                Ok(physical) => core.grown(Ok(physical), out),
                Err(failure) if matches!(failure.kind, ErrorKind::NoSpace(_)) && !failure.wedges => {
                    core.grown(Err(failure.kind), out)
                }
                Err(failure) => core.growth_failed(failure, out),
            });
        }
    }

    fn room(&self) -> Room {
        let space = self.backend.free_space().unwrap_or_else(|error| {
            log::warn!("dioxide: {}: free space unknown: {error}", self.path.display());
            FreeSpace { free_bytes: 0, size_max: u64::MAX }
        });
        let (wanted, ahead) = self.lock().growth_wanted();
        let mut charged = super::lock(&self.charged);
        let wanted = wanted.min(space.free_bytes);
        let (charge, granted_bytes) = self.process.budget().grant(*charged, ahead, wanted);
        *charged = charge;
        Room { free_bytes: space.free_bytes, size_max: space.size_max, granted_bytes }
    }

    fn perform_growth(&self, job: GrowthJob, room: Room) -> std::result::Result<u64, Failure> {
        let fail = |error: std::io::Error| self.growth_failure(&error);
        if !job.announced {
            self.mark(job.marker).map_err(fail)?;
        }
        let Some(plan) = job.plan else { return Ok(job.marker.grown_to) };
        let grown_to = self.allocate(plan).map_err(fail)?;
        if grown_to < plan.to {
            self.mark(Marker { grown_to, ..job.marker }).map_err(fail)?;
        }
        if job.marker.prepared == Prepared::Zeroed {
            self.fill(plan.from, grown_to).map_err(fail)?;
        }
        let next = self.lock().announce(grown_to, room);
        match next {
            Some(marker) => self.mark(marker).map_err(fail)?,
            None => self.make_stable().map_err(fail)?,
        }
        count(&self.counters.growths, 1);
        count(&self.counters.grown_bytes, grown_to - plan.from);
        Ok(grown_to)
    }

    /// Writes the marker and makes it durable.
    pub(super) fn mark(&self, marker: Marker) -> Result<()> {
        self.backend.write_marker(&marker.encode())?;
        self.make_stable()?;
        self.lock().marked(marker);
        Ok(())
    }

    /// Data, size and attributes. A failure wedges the file system as that of any flush does.
    pub(super) fn make_stable(&self) -> Result<()> {
        let blame = |error: &std::io::Error| {
            puts_flush_in_doubt(error).then(|| self.cause(Operation::Flush, None, error))
        };
        self.fs.flushing(|| io::uninterrupted(|| self.backend.sync_all()), blame)
    }

    /// Allocates, in smaller steps if there is no space for the whole; returns the new physical size.
    fn allocate(&self, plan: Plan) -> Result<u64> {
        let mut plan = plan;
        loop {
            let result = io::uninterrupted(|| self.backend.allocate(plan.from, plan.to));
            match (result, plan.smaller()) {
                (Ok(()), _) => return Ok(plan.to),
                (Err(error), Some(smaller)) if matches!(os_kind(&error), ErrorKind::NoSpace(_)) => {
                    plan = smaller;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Fills with zeros, by the device itself if it can.
    fn fill(&self, from: u64, to: u64) -> Result<()> {
        if self.backend.write_zeroes(from, to).is_ok() {
            return Ok(());
        }
        static ZEROS: OnceLock<Buffer> = OnceLock::new();
        let zeros = ZEROS.get_or_init(|| Buffer::zeroed(ZEROS_BYTES));
        for start in (from..to).step_by(ZEROS_BYTES) {
            let len = (to - start).min(ZEROS_BYTES as u64) as usize;
            io::write_fully(
                &self.backend,
                &[Segment::of(&zeros[..len])],
                start,
                false,
                self.alignment.offset,
            )?;
        }
        Ok(())
    }

    fn growth_failure(&self, error: &std::io::Error) -> Failure {
        let own = self.cause(Operation::Grow, None, error);
        match self.fs.wedged() {
            Some(cause) => {
                Failure { kind: ErrorKind::Wedged(cause.clone()), cause: cause.clone(), wedges: true }
            }
            None => Failure { kind: own.kind().clone(), cause: own, wedges: false },
        }
    }
}
