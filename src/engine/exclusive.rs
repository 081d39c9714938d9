//! Operations that need the file exclusively: `set_len`, `recycle` and close. `set_len` and close
//! leave it as any other program would: its size is its length, and it has no marker.
//!
//! Order of a truncate, so that a crash at any point is recovered from:
//! 1. make everything written durable: the base must not be above data that a crash could lose;
//! 2. lower the floor of a striped volume, and write a marker whose base is the new end, both
//!    durable;
//! 3. look for data of other programs, and truncate ([`truncate`](super::truncate)), durable;
//! 4. remove the marker, durable.
//!
//! Data that another program wrote above our end, into the space ahead, stays. Close truncates
//! behind it and reports it, `set_len` fails. While another process has the file open for writing
//! both fail. Close then leaves the file grown, with a marker by which recovery keeps everything up
//! to the last written extent.
//!
//! An extension comes after a truncate to the written end, because the space above may hold
//! anything.
//!
//! Recycling has one step: a durable marker with base 0, which promises nothing about the content.
//! Before it, all content is there. After it, the content is space ahead, and only the records show
//! to which life they belong.

use super::abort::AbortOnPanic;
use super::core::Core;
use super::token::Token;
use super::truncate::{
    Attempt, LOOKS_MAX, Takes, changed_by_another, refuse_other_writers, truncate, written_by,
};
use super::{Engine, queue, read_up_to};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::os_error::{self, is_no_space, uninterrupted};
use crate::rules::marker::{Marker, Mode, Prepared};
use crate::rules::merge::Span;
use crate::rules::recovery::{written_above, written_from_start};
use crate::rules::size::Sizes;
use crate::sync::atomic::Ordering;
use crate::text::shown;

/// Bytes per read of the look at zeroed space.
const LOOK_BYTES: usize = 1 << 20;

pub(super) fn written_above_the_end() -> &'static str {
    "something was written above the end by another program"
}

impl Engine {
    pub fn set_len(&self, len: u64) -> Result<()> {
        let fail = |kind| self.error(Operation::SetLen, Some(len), kind);
        self.check_usable(Operation::SetLen)?;
        if self.is_device {
            return Err(fail(ErrorKind::Unsupported("the size of a block device is fixed".into())));
        }
        self.exclusively(|| {
            // A growth that failed meanwhile may have left a marker that the core does not know.
            self.check_open(Operation::SetLen)?;
            self.truncate_to(len).map_err(|error| fail(self.judged_kind(Operation::SetLen, &error)))
        })
    }

    /// Resets the length to 0, durably, and keeps the file's space for reuse.
    pub fn recycle(&self) -> Result<()> {
        self.check_usable(Operation::Recycle)?;
        self.exclusively(|| {
            self.check_open(Operation::Recycle)?;
            if let Err(why) = self.lock().can_recycle() {
                return Err(self.error(
                    Operation::Recycle,
                    None,
                    ErrorKind::Unsupported(why.into()),
                ));
            }
            self.check_size(Operation::Recycle)?;
            let marker = self.lock().recycling_marker();
            self.mark(marker).map_err(|error| self.failure(Operation::Recycle, &error))?;
            let extents = self.backend.extents(0).unwrap_or_default();
            self.adopt(|core| core.recycle(written_from_start(&extents)));
            Ok(())
        })
    }

    /// A call of a future may come when the file is closed.
    fn check_open(&self, operation: Operation) -> Result<()> {
        self.check_usable(operation)?;
        match self.is_closed() {
            true => Err(self.error(operation, None, ErrorKind::Os(libc::EBADF))),
            false => Ok(()),
        }
    }

    /// Makes a change with nothing in flight, and growth paused.
    fn exclusively<R>(&self, change: impl FnOnce() -> R) -> R {
        queue::settle_own();
        let _alone = self.gate.shut();
        // Growth would stay paused.
        let _all_or_nothing = AbortOnPanic::armed();
        self.stop_grower();
        let result = self.placement.change(change);
        self.lock().resume_growth();
        result
    }

    /// Closes the file in this process. The engine must not be used afterwards.
    pub fn finish(&self) -> Result<()> {
        if !self.process.is_current() {
            // The parent continues with the file; the child's exit must change nothing.
            return Err(self.error(Operation::Close, None, ErrorKind::Forked));
        }
        queue::settle_own();
        let alone = self.gate.shut();
        self.stop_grower();
        let result = self.put_away();
        self.charge(0, 0);
        self.refuse_all();
        self.backend.unlock();
        drop(alone);
        self.await_reactors();
        result
    }

    fn put_away(&self) -> Result<()> {
        self.restore_size()?;
        self.punch_holes();
        if !self.backend.needs_close() {
            return Ok(());
        }
        let cause = |error: &std::io::Error| self.cause(Operation::Close, None, error);
        let closed = self.fs.flushing(|| self.backend.close(), cause);
        closed.map_err(|error| self.failure(Operation::Close, &error))
    }

    /// Punches holes where positional writes left space that was grown. Space that the file had
    /// when it was opened stays. A failure is no error: the hole reads as zeros either way.
    fn punch_holes(&self) {
        let (positional, len) = {
            let core = self.lock();
            (core.leaves_holes(), core.sizes().physical)
        };
        let from = self.kept_to.load(Ordering::Relaxed).next_multiple_of(self.alignment.append);
        if !positional || from >= len {
            return;
        }
        let punched = self.backend.exclude_others().and_then(|others| {
            // A concurrent write of another program there would be lost.
            if !others.is_whole() {
                return Ok(());
            }
            let holes = self.backend.extents(from)?.into_iter().filter(|extent| !extent.written);
            let inside = holes.map(|hole| hole.start.max(from)..hole.end.min(len));
            // A process that was stopped for long has lost the lease.
            inside
                .filter(|hole| hole.start < hole.end)
                .take_while(|_| others.is_whole())
                .try_for_each(|hole| {
                    uninterrupted(|| self.backend.punch_hole(hole.start, hole.end))
                })
        });
        if let Err(error) = punched {
            log::debug!("dioxide: {}: holes keep their space: {error}", self.path.display());
        }
    }

    /// Makes the length the size again, durably, and removes the marker. Beside another writer,
    /// leaves the file grown with a marker.
    fn restore_size(&self) -> Result<()> {
        self.check_usable(Operation::Close)?;
        let fail = |error: std::io::Error| self.failure(Operation::Close, &error);
        let (sizes, marker, held) = {
            let core = self.lock();
            (core.sizes(), core.marker(), core.held())
        };
        if marker.is_none() && sizes.written == sizes.physical {
            self.settled_size(sizes.physical).map_err(fail)?;
            return self.make_stable().map_err(fail);
        }
        if let Err(error) = self.check_size(Operation::Close) {
            return Err(match (marker, error.kind()) {
                // Leftovers of a failed growth are not taken back beside another writer.
                (Some(marker), ErrorKind::Busy(why)) => self.left_grown(marker, why.clone()),
                _ => error,
            });
        }
        let Some(marker) = marker else { return self.truncate_last_block(sizes).map_err(fail) };
        let closed = match held {
            // The caller did not set the end, so it stays unknown for the next open.
            Some(base) => match self.truncate_with(marker, base, sizes.written, None) {
                Ok(Attempt::Done) => Ok(None),
                Ok(Attempt::Changed(_)) => {
                    let why = format!("{}; left as it was found", written_above_the_end());
                    return Err(self.error(
                        Operation::Close,
                        None,
                        ErrorKind::ModifiedExternally(why),
                    ));
                }
                Err(error) => Err(error),
            },
            None => self.truncate_behind_others(marker, sizes.written),
        };
        match closed {
            Ok(None) => Ok(()),
            Ok(Some(end)) => {
                let why = format!("{}; left at {end} bytes", written_above_the_end());
                Err(self.error(Operation::Close, None, ErrorKind::ModifiedExternally(why)))
            }
            Err(error) => match os_error::kind(&error) {
                ErrorKind::Busy(why) => Err(self.left_grown(marker, why)),
                _ => Err(fail(error)),
            },
        }
    }

    /// Truncates the padding of the last block of a file that has not grown ahead. It needs no
    /// marker: a crash leaves the padding, or not. Truncates nothing beside another writer, or if
    /// the size has changed.
    fn truncate_last_block(&self, sizes: Sizes) -> std::io::Result<()> {
        let look = || self.backend.physical_size();
        self.lower_floor(sizes.written)?;
        match truncate(&*self.backend, sizes.written, &sizes.physical, Takes::Short, look)? {
            Attempt::Done => {}
            Attempt::Changed(found) => {
                return Err(std::io::Error::other(changed_by_another(sizes.physical, found)));
            }
        }
        self.adopt_truncate(sizes.written);
        self.make_stable()
    }

    /// Truncates to `written`, or behind another program's data above it. Returns the end of that.
    fn truncate_behind_others(&self, marker: Marker, written: u64) -> std::io::Result<Option<u64>> {
        let mut theirs = None;
        for _ in 0..LOOKS_MAX {
            match self.truncate_marked(marker, theirs.unwrap_or(written), theirs)? {
                Attempt::Done => return Ok(theirs),
                Attempt::Changed(now) => theirs = now,
            }
        }
        Err(written_by("another program"))
    }

    /// Leaves the file grown beside another writer. With this marker, recovery keeps that writer's
    /// data, at any offset.
    fn left_grown(&self, marker: Marker, why: String) -> Error {
        let (sizes, epoch) = {
            let mut core = self.lock();
            (core.sizes(), core.next_epoch())
        };
        let is_known = self.lock().held().is_none();
        let base = if is_known { sizes.written } else { marker.base };
        // The other writer may extend the file as well: no size and no written extent there is a
        // doubt.
        let any = u64::MAX;
        let left = Marker {
            base,
            mode: Mode::Positional,
            grown_from: any,
            grown_to: any,
            epoch,
            ..marker
        };
        if let Err(error) = self.mark(left) {
            return self.failure(Operation::Close, &error);
        }
        let why = format!("{why}; left grown, the next open without that writer recovers it");
        self.error(Operation::Close, None, ErrorKind::Busy(why))
    }

    /// The end of another program's data above ours. Extents show it in unwritten space, bytes in
    /// zeroed space. Old content of a recycled file shows nothing.
    fn end_of_anothers(&self, marker: Marker) -> std::io::Result<Option<u64>> {
        let (ours_to, physical) = {
            let core = self.lock();
            (core.ours_to(), core.sizes().physical)
        };
        let size = self.backend.physical_size()?;
        if size < physical {
            return Err(std::io::Error::other(changed_by_another(physical, size)));
        }
        // A failed growth of ours may have left space above.
        if size > physical.max(self.left_behind.load(Ordering::Relaxed)) {
            return Ok(Some(size));
        }
        match marker.prepared {
            Prepared::Unwritten => {
                Ok(written_above(ours_to, size, &self.backend.extents(ours_to)?))
            }
            Prepared::Zeroed => self.end_of_bytes(ours_to, size),
        }
    }

    /// The end of the last block in the range that holds a byte other than zero.
    pub(super) fn end_of_bytes(&self, from: u64, to: u64) -> std::io::Result<Option<u64>> {
        let unit = self.alignment.append;
        let mut last = None;
        let mut memory = Buffer::zeroed(LOOK_BYTES);
        let mut start = from;
        while start < to {
            let part = &mut memory[..(to - start).min(LOOK_BYTES as u64) as usize];
            let read = read_up_to(&*self.backend, part, start, to, self.alignment)? as usize;
            if let Some(byte) = part[..read].iter().rposition(|byte| *byte != 0) {
                last = Some((start + byte as u64 + 1).next_multiple_of(unit).min(to));
            }
            start += part.len() as u64;
        }
        Ok(last)
    }

    /// Fails if another program changed the size: its data must not be truncated or overwritten.
    fn check_size(&self, operation: Operation) -> Result<()> {
        let physical = self.lock().sizes().physical;
        let found = self.settled_size(physical).map_err(|error| self.failure(operation, &error))?;
        if found == physical {
            return Ok(());
        }
        Err(self.error(operation, None, changed_by_another(physical, found)))
    }

    fn failure(&self, operation: Operation, error: &std::io::Error) -> Error {
        self.error(operation, None, self.judged_kind(operation, error))
    }

    /// Sets the size, durably, and removes the marker.
    fn truncate_to(&self, len: u64) -> std::io::Result<()> {
        let (marker, sizes) = {
            let core = self.lock();
            (core.marker(), core.sizes())
        };
        if len > self.backend.size_max().min(i64::MAX as u64).max(self.len()) {
            // The kernel would raise SIGXFSZ, which ends the process.
            return Err(std::io::Error::from_raw_os_error(libc::EFBIG));
        }
        let found_to = sizes.physical.max(self.left_behind.load(Ordering::Relaxed));
        if len > sizes.written && (marker.is_some() || found_to > sizes.written) {
            self.truncate_to(sizes.written)?;
            return self.truncate_to(len);
        }
        let Some(marker) = marker else {
            // Nothing is grown, so this is a plain truncate of the kernel.
            self.lower_floor(len)?;
            uninterrupted(|| self.backend.truncate(len))?;
            self.adopt_truncate(len);
            return self.make_stable();
        };
        match self.truncate_marked(marker, len, None)? {
            Attempt::Done => Ok(()),
            Attempt::Changed(_) => Err(std::io::Error::other(ErrorKind::ModifiedExternally(
                written_above_the_end().into(),
            ))),
        }
    }

    /// Truncates a file that has a marker, and removes the marker, both durably. Does neither if
    /// another program's data above ours no longer ends at `theirs`.
    fn truncate_marked(
        &self,
        marker: Marker,
        len: u64,
        theirs: Option<u64>,
    ) -> std::io::Result<Attempt<Option<u64>>> {
        self.make_stable()?;
        // A lower base would move the end of a file with holes before the truncate does. Recovery
        // keeps a file that ends below the base.
        let base = len.max(marker.base);
        if let changed @ Attempt::Changed(_) = self.truncate_with(marker, base, len, theirs)? {
            return Ok(changed);
        }
        self.adopt_truncate(len);
        self.backend.remove_marker()?;
        self.lock().on_unmarked();
        self.make_stable()?;
        Ok(Attempt::Done)
    }

    fn adopt_truncate(&self, len: u64) {
        // Nothing else runs meanwhile.
        self.kept_to.store(len.min(self.kept_to.load(Ordering::Relaxed)), Ordering::Relaxed);
        self.adopt(|core| core.truncate(len));
    }

    /// Records a change of the file, even if later steps fail. Nothing of it is grown ahead.
    fn adopt(&self, change: impl FnOnce(&mut Core<Token>)) {
        let mut core = self.lock();
        change(&mut core);
        self.publish(&core);
        drop(core);
        self.packer.forget(Span { start: 0, end: u64::MAX });
        self.left_behind.store(0, Ordering::Relaxed);
        self.charge(0, 0);
    }

    /// Announces the truncate, and truncates, both durably. The marker says that no data of ours
    /// lies above `grown_from`.
    pub(super) fn truncate_with(
        &self,
        marker: Marker,
        base: u64,
        len: u64,
        theirs: Option<u64>,
    ) -> std::io::Result<Attempt<Option<u64>>> {
        refuse_other_writers(&*self.backend)?;
        self.lower_floor(len)?;
        let announcing = self.lock().truncating_marker(marker, base);
        match self.mark(announcing) {
            // A truncate must work on a full disk, to free space. Or the file system refuses
            // attributes by now.
            Err(error)
                if self.finds_again(marker, len)
                    && (is_no_space(&error) || os_error::is_refusal(&os_error::kind(&error)))
                    && self.fs.wedged().is_none() => {}
            result => result?,
        }
        let attempt = {
            let takes =
                if marker.prepared == Prepared::Zeroed { Takes::Long } else { Takes::Short };
            let look = || self.end_of_anothers(marker);
            self.placement.change(|| truncate(&*self.backend, len, &theirs, takes, look))
        };
        if !matches!(attempt, Ok(Attempt::Done)) {
            // A volume of which some members were truncated is not as it was. After a failed flush
            // nothing more is written.
            let is_gone = attempt.as_ref().is_err_and(os_error::is_gone);
            if !is_gone && self.fs.wedged().is_none() {
                self.restore(marker);
            }
            return attempt;
        }
        self.make_stable()?;
        Ok(Attempt::Done)
    }

    /// Lowers the floor of a striped volume before a truncate, if needed. The ledger counts its
    /// flush: if it fails, the kernel may report success to other files.
    fn lower_floor(&self, len: u64) -> std::io::Result<()> {
        if !self.backend.needs_lower_floor(len) {
            return Ok(());
        }
        let cause = |error: &std::io::Error| self.cause(Operation::Flush, None, error);
        self.fs.flushing(|| self.backend.lower_floor(len), cause)
    }

    /// Whether recovery finds this end by the marker on disk, if the file is truncated there and
    /// nothing else happens. It keeps a file that ends below the base. Where extents do not tell,
    /// it leaves the end to the program.
    fn finds_again(&self, marker: Marker, len: u64) -> bool {
        len <= marker.base
            || !marker.extents_tell()
            || marker.mode == Mode::AppendOnly
            || len >= self.len()
    }

    /// Restores the marker after a failed truncate, which left the file as it was.
    fn restore(&self, marker: Marker) {
        let restored = self.lock().restored_marker(marker);
        if let Err(error) = self.mark(restored) {
            log::warn!("dioxide: {}: restoring the marker: {error}", shown(&*self.path));
        }
    }

    fn stop_grower(&self) {
        let mut core = self.lock();
        while !core.pause_growth() {
            core = self.grower_ended.wait(core);
        }
        drop(core);
        // It has nothing left to do, but may still hold the descriptor.
        if let Some(thread) = self.grower.lock().take() {
            thread.join();
        }
    }
}
