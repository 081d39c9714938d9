//! What the next flush of a file needs: a flush of the device, or a commit of the journal as well.
//!
//! A write in place needs the device only ([`Committed`]). All other writes, and changes of the
//! size or the extents, need a commit. Each of them is recorded before a flush asks that covers it.

use crate::backend::{Backend, PLACES_MAX};
use crate::rules::committed::Committed;
use crate::rules::flush::Reach;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::ops::Range;

/// The placement of a file's writes since its last flush was asked for.
#[derive(Debug)]
pub(super) struct Placement {
    /// Read at each write, and stored only if it changes.
    needs_commit: AtomicBool,
    committed: Mutex<Committed>,
}

impl Default for Placement {
    /// Before the first flush nothing is known.
    fn default() -> Self {
        Self { needs_commit: AtomicBool::new(true), committed: Mutex::default() }
    }
}

impl Placement {
    /// Records that a write has finished that may be anywhere, or that the size has changed. If a
    /// commit is still to be asked for, that one begins later.
    pub fn need_commit(&self) {
        if !self.needs_commit.load(Ordering::Acquire) {
            self.needs_commit.store(true, Ordering::Release);
        }
    }

    /// Records that a write has finished, and looks whether it is in place.
    pub fn on_written(&self, backend: &dyn Backend, range: Range<u64>) {
        if !self.is_in_place(backend, range).unwrap_or(false) {
            self.need_commit();
        }
    }

    fn is_in_place(&self, backend: &dyn Backend, range: Range<u64>) -> std::io::Result<bool> {
        let mut committed = self.committed.lock();
        if !committed.is_worth_a_look() {
            return Ok(false);
        }
        let before = committed.now();
        drop(committed);
        let found = backend.places(range.clone())?;
        if self.committed.lock().holds(&range, &found) {
            return Ok(true);
        }
        // Later writes may go to the rest of the extents.
        let size = backend.physical_size()?.max(range.end);
        for start in [0, range.start] {
            let found = backend.places(start..size)?;
            let is_all = found.len() < PLACES_MAX;
            let seen_to = found.last().filter(|_| !is_all).map_or(size, |last| last.end);
            self.committed.lock().see(start..seen_to, &found, before);
            if seen_to >= range.end {
                break;
            }
        }
        Ok(false)
    }

    /// Changes the extents. The look of a write beside the change counts for nothing.
    pub fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        self.committed.lock().change();
        let result = change();
        self.committed.lock().change();
        self.need_commit();
        result
    }

    /// Asks for a flush, and returns the reach that it needs. A commit covers all that came before,
    /// so the next flush needs none unless something comes.
    pub fn ask(&self) -> Reach {
        if !self.needs_commit.swap(false, Ordering::AcqRel) {
            return Reach::Device;
        }
        self.committed.lock().begin();
        Reach::FileSystem
    }

    /// Records that the file flushes alone. fdatasync need not commit what another program moved.
    pub fn flush_alone(&self) {
        self.committed.lock().give_up();
    }

    /// Records the end of the flush that was asked for. No other one of the file ran beside it.
    pub fn on_flushed(&self, succeeded: bool) {
        match succeeded {
            true => self.committed.lock().succeed(),
            false => {
                self.committed.lock().give_up();
                self.need_commit();
            }
        }
    }
}
