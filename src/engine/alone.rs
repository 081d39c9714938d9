//! What needs the file to itself: `set_len`, `recycle` and close. `set_len` and close leave it as any other program
//! would: its size is its length, and no marker.
//!
//! Order of a cut, so that a crash at any point is recovered from:
//! 1. everything written durable, since the base must not be above anything that a crash could take;
//! 2. a marker whose base is the new end, durable;
//! 3. the cut, durable; 4. the marker away, durable.
//!
//! What another program wrote above our end, into the space ahead, is not cut by close: the file keeps it, and close says so.
//!
//! An extension comes after a cut to the written end, because what lies above may be anything.
//!
//! Recycling has one step: a marker that promises nothing of what the file holds (base 0), durable. Before, all of it
//! is there; afterwards it is space ahead, and only the records tell which life they are of.

use super::core::Core;
use super::grower::changed_by_another;
use super::token::Token;
use super::{Engine, io, is_no_space, puts_flush_in_doubt, queue};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::marker::{Marker, Mode, Prepared};
use crate::merge::Span;
use crate::recovery::written_above;
use crate::sync::atomic::Ordering;
use crate::text::shown;

impl Engine {
    pub fn set_len(&self, len: u64) -> Result<()> {
        let fail = |kind| self.error(Operation::SetLen, Some(len), kind);
        self.check_usable(Operation::SetLen)?;
        if self.is_device {
            return Err(fail(ErrorKind::Unsupported("the size of a block device is fixed".into())));
        }
        self.alone(|| {
            // A growth that failed meanwhile may have left a marker that nobody knows of.
            self.check_usable(Operation::SetLen)?;
            self.cut_to(len).map_err(|error| fail(self.kind_of(Operation::SetLen, &error)))
        })
    }

    /// Gives up what the file holds, and keeps its space.
    pub fn recycle(&self) -> Result<()> {
        self.check_usable(Operation::Recycle)?;
        self.alone(|| {
            self.check_usable(Operation::Recycle)?;
            if let Err(why) = self.lock().can_recycle() {
                return Err(self.error(Operation::Recycle, None, ErrorKind::Unsupported(why.into())));
            }
            self.check_size(Operation::Recycle)?;
            let marker = self.lock().recycling_marker();
            self.mark(marker).map_err(|error| self.failure(Operation::Recycle, &error))?;
            self.adopt(Core::recycle);
            Ok(())
        })
    }

    /// Makes a change with nothing in flight, and no growth.
    fn alone<R>(&self, change: impl FnOnce() -> R) -> R {
        queue::settle_own();
        let _alone = self.gate.shut();
        self.stop_grower();
        let result = change();
        self.lock().resume_growth();
        result
    }

    /// Ends the file's life in this process. Nothing may use the engine afterwards.
    pub fn finish(&self) -> Result<()> {
        if !self.process.is_current() {
            // The parent goes on with the file; the child's exit must change nothing.
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
        self.bring_into_order()?;
        if self.backend.mapped().is_none() {
            return Ok(());
        }
        let blame = |error: &std::io::Error| {
            puts_flush_in_doubt(error).then(|| self.cause(Operation::Close, None, error))
        };
        let closed = self.fs.flushing(|| self.backend.close(), blame);
        closed.map_err(|error| self.failure(Operation::Close, &error))
    }

    fn bring_into_order(&self) -> Result<()> {
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
        self.check_size(Operation::Close)?;
        let Some(marker) = marker else { return self.cut_to(sizes.written).map_err(fail) };
        match held {
            // Nobody said where the file ends, so the question stays for the next one who opens it.
            Some(base) => self.cut_with(marker, base, sizes.written).map_err(fail),
            None => match self.end_of_anothers(marker, sizes.physical).map_err(fail)? {
                None => self.cut_to(sizes.written).map_err(fail),
                Some(end) => {
                    self.cut_marked(marker, end).map_err(fail)?;
                    let why = format!(
                        "something was written above the end by another program; left at {end} bytes"
                    );
                    Err(self.error(Operation::Close, None, ErrorKind::Doubtful(why)))
                }
            },
        }
    }

    /// Where that ends which another program wrote into the space ahead. Only where extents tell: it is allocated and
    /// unwritten there, but for what we wrote.
    fn end_of_anothers(&self, marker: Marker, physical: u64) -> std::io::Result<Option<u64>> {
        if marker.prepared != Prepared::Unwritten {
            return Ok(None);
        }
        let ours_to = self.lock().ours_to();
        Ok(written_above(ours_to, physical, &self.backend.extents()?))
    }

    /// What another program appended is not ours to cut, nor to write over.
    fn check_size(&self, operation: Operation) -> Result<()> {
        let physical = self.lock().sizes().physical;
        let found = self.settled_size(physical).map_err(|error| self.failure(operation, &error))?;
        if found == physical {
            return Ok(());
        }
        Err(self.error(operation, None, changed_by_another(physical, found)))
    }

    fn failure(&self, operation: Operation, error: &std::io::Error) -> Error {
        self.error(operation, None, self.kind_of(operation, error))
    }

    /// Sets the size, durably, and removes the marker.
    fn cut_to(&self, len: u64) -> std::io::Result<()> {
        let (marker, sizes) = {
            let core = self.lock();
            (core.marker(), core.sizes())
        };
        if len > self.backend.size_max().max(self.len()) {
            // The kernel would end the process by SIGXFSZ.
            return Err(std::io::Error::from_raw_os_error(libc::EFBIG));
        }
        let found_to = sizes.physical.max(self.left_behind.load(Ordering::Relaxed));
        if len > sizes.written && (marker.is_some() || found_to > sizes.written) {
            self.cut_to(sizes.written)?;
            return self.cut_to(len);
        }
        let Some(marker) = marker else {
            io::uninterrupted(|| self.backend.truncate(len))?;
            self.adopt(|core| core.cut(len));
            return self.make_stable();
        };
        self.cut_marked(marker, len)
    }

    /// The same, of a file with a marker and nothing of ours above.
    fn cut_marked(&self, marker: Marker, len: u64) -> std::io::Result<()> {
        self.make_stable()?;
        self.cut_with(marker, len, len)?;
        self.adopt(|core| core.cut(len));
        self.backend.remove_marker()?;
        self.lock().unmarked();
        self.make_stable()
    }

    /// The file has changed, whatever else may still fail. Nothing of it was grown ahead.
    fn adopt(&self, change: impl FnOnce(&mut Core<Token>)) {
        let mut core = self.lock();
        change(&mut core);
        self.publish_len(&core);
        drop(core);
        self.packer.forget(Span { start: 0, end: u64::MAX });
        self.left_behind.store(0, Ordering::Relaxed);
        self.charge(0, 0);
    }

    /// Announces the cut, and cuts, both durably. Nothing above `grown_from` is anybody's any more.
    fn cut_with(&self, marker: Marker, base: u64, len: u64) -> std::io::Result<()> {
        let announcing = self.lock().truncating_marker(marker, base);
        match self.mark(announcing) {
            // A full disk, and yet no reason to keep it full.
            Err(error)
                if self.finds_again(marker, len) && is_no_space(&error) && self.fs.wedged().is_none() => {}
            result => result?,
        }
        io::uninterrupted(|| self.backend.truncate(len)).inspect_err(|_| self.restore(marker))?;
        self.make_stable()
    }

    /// Whether recovery finds this end by the marker that is on disk, if the file is cut there and nothing else happens.
    fn finds_again(&self, marker: Marker, len: u64) -> bool {
        let ends_written = len >= self.len() || marker.mode == Mode::AppendOnly;
        marker.base <= len && ends_written
    }

    /// A cut that failed left the file as it was, so the marker must say again what it said.
    fn restore(&self, marker: Marker) {
        let epoch = self.lock().next_epoch();
        if let Err(error) = self.mark(Marker { epoch, ..marker }) {
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
