//! What needs the file to itself: `set_len` and close. Both leave it as any other program would: its size is its
//! length, and no marker.
//!
//! Order, so that a crash at any point is recovered from:
//! 1. everything written durable, since the base must not be above anything that a crash could take;
//! 2. a marker whose base is the new end, durable;
//! 3. the cut, durable; 4. the marker away, durable.

use super::process::lock;
use super::{Engine, io};
use crate::backend::Backend;
use crate::error::{ErrorKind, Operation, Result};
use crate::marker::Marker;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl<B: Backend> Engine<B> {
    pub fn set_len(&self, len: u64) -> Result<()> {
        let fail = |kind| self.error(Operation::SetLen, Some(len), kind);
        self.check_usable(Operation::SetLen)?;
        if self.is_device {
            return Err(fail(ErrorKind::Unsupported("the size of a block device is fixed".into())));
        }
        let _alone = self.gate.shut();
        self.stop_grower();
        let result = self.cut_to(len);
        self.lock().resume_growth();
        result.map_err(|error| fail(self.kind_of(Operation::SetLen, &error)))
    }

    /// Ends the file's life in this process. Nothing may use the engine afterwards.
    pub fn finish(&self) -> Result<()> {
        if !self.process.is_current() {
            // The parent goes on with the file; the child's exit must change nothing.
            return Err(self.error(Operation::Close, None, ErrorKind::Forked));
        }
        let _alone = self.gate.shut();
        self.stop_grower();
        let result = self.put_away();
        self.process.budget().give_back(std::mem::take(&mut lock(&self.charged)));
        self.backend.unlock();
        result
    }

    fn put_away(&self) -> Result<()> {
        self.check_usable(Operation::Close)?;
        let fail = |error: std::io::Error| {
            self.error(Operation::Close, None, self.kind_of(Operation::Close, &error))
        };
        let (sizes, marker, held) = {
            let core = self.lock();
            (core.sizes(), core.marker(), core.held())
        };
        let Some(marker) = marker else { return self.make_stable().map_err(fail) };
        let found = self.backend.physical_size().map_err(fail)?;
        if found != sizes.physical {
            let why = format!("it was grown to {} bytes and has {found}", sizes.physical);
            return Err(self.error(Operation::Close, None, ErrorKind::Doubtful(why)));
        }
        match held {
            // Nobody said where the file ends, so the question stays for the next one who opens it.
            Some(base) => self.cut_with(marker, base, sizes.written).map_err(fail),
            None => self.cut_to(sizes.written).map_err(fail),
        }
    }

    /// Sets the size, durably, and removes the marker.
    fn cut_to(&self, len: u64) -> std::io::Result<()> {
        let marker = self.lock().marker();
        if len > self.backend.size_max().max(self.len()) {
            // The kernel would end the process by SIGXFSZ.
            return Err(std::io::Error::from_raw_os_error(libc::EFBIG));
        }
        let Some(marker) = marker else {
            io::uninterrupted(|| self.backend.truncate(len))?;
            self.adopt(len);
            return self.make_stable();
        };
        self.make_stable()?;
        let base = len.min(self.lock().sizes().written);
        self.cut_with(marker, base, len)?;
        self.adopt(len);
        self.backend.remove_marker()?;
        self.lock().unmarked();
        self.make_stable()
    }

    /// The file has the new size, whatever else may still fail.
    fn adopt(&self, len: u64) {
        self.lock().cut(len);
        self.process.budget().give_back(std::mem::take(&mut lock(&self.charged)));
        self.len.store(len, Ordering::Release);
    }

    /// Announces the cut, and cuts, both durably. Nothing above `grown_from` is anybody's any more.
    fn cut_with(&self, marker: Marker, base: u64, len: u64) -> std::io::Result<()> {
        let grown_to = marker.grown_to.max(len);
        let epoch = self.lock().next_epoch();
        self.mark(Marker { base, grown_from: grown_to, grown_to, epoch, ..marker })?;
        io::uninterrupted(|| self.backend.truncate(len)).inspect_err(|_| self.restore(marker))?;
        self.make_stable()
    }

    /// A cut that failed left the file as it was, so the marker must say again what it said.
    fn restore(&self, marker: Marker) {
        let epoch = self.lock().next_epoch();
        if let Err(error) = self.mark(Marker { epoch, ..marker }) {
            log::warn!("dioxide: {}: restoring the marker: {error}", self.path.display());
        }
    }

    fn stop_grower(&self) {
        let mut core = self.lock();
        while !core.pause_growth() {
            core = self.grower_ended.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        drop(core);
        // It has nothing left to do, but may still hold the descriptor.
        if let Some(thread) = lock(&self.grower).take() {
            let _ = thread.join();
        }
    }
}
