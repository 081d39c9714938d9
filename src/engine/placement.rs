//! What the next flush of a file needs: a flush of the device, or a commit of the journal as well.
//!
//! A write in place needs the device only ([`Committed`]). All other writes, and changes of the
//! size or the extents, need a commit. Each of them is recorded before a flush asks that covers it.
//! Any later commit for all files is sufficient: it has a higher number in the ledger.
//!
//! A write that is not known to be in place may also be in the page cache. So its file is written
//! back, which may move its blocks, before that commit.

use super::process::FileSystems;
use crate::backend::{Backend, Places};
use crate::rules::committed::Committed;
use crate::rules::flush::Reach;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::ops::Range;

/// Number of writes between two flushes that are looked up.
const LOOKS_PER_FLUSH_MAX: u64 = 64;

/// The placement of a file's writes.
#[derive(Debug)]
pub(super) struct Placement {
    fs: FileSystems,
    /// The flush that covers the last change that needs a commit, if it commits. Stored only if it
    /// changes: each write reads it.
    changed: AtomicU64,
    /// A write may be in the page cache.
    is_unplaced: AtomicBool,
    /// A flush writes the file back, or has failed to.
    is_written_back: AtomicBool,
    write_back: Mutex<()>,
    /// The last flush was shared, so the next one may be.
    is_flush_shared: AtomicBool,
    /// Number of writes that may still be looked up before the next flush.
    looks_left: AtomicU64,
    committed: Mutex<Committed>,
}

impl Placement {
    /// Of a file that was just opened. What came before may need a commit as well.
    pub fn new(fs: FileSystems) -> Self {
        let changed = AtomicU64::new(fs.ticket());
        Self {
            fs,
            changed,
            is_unplaced: AtomicBool::new(true),
            is_written_back: AtomicBool::new(false),
            write_back: Mutex::default(),
            is_flush_shared: AtomicBool::new(false),
            looks_left: AtomicU64::new(LOOKS_PER_FLUSH_MAX),
            committed: Mutex::default(),
        }
    }

    /// Records that the size or the extents have changed.
    ///
    /// A commit that begins later has a higher number. If it had begun before the change, the
    /// kernel's locks would have ordered the two, and the number read here would be higher.
    pub fn need_commit(&self) {
        let ticket = self.fs.ticket();
        if self.changed.load(Ordering::Acquire) < ticket {
            self.changed.fetch_max(ticket, Ordering::AcqRel);
        }
    }

    /// Records that a write has finished that may be anywhere.
    pub fn on_written_anywhere(&self) {
        if !self.is_unplaced.load(Ordering::Acquire) {
            self.is_unplaced.store(true, Ordering::Release);
        }
    }

    /// Whether a write may be in the page cache, so that no look at another gains anything.
    pub fn is_unplaced(&self) -> bool {
        self.is_unplaced.load(Ordering::Acquire)
    }

    /// Whether the last flush was shared.
    pub fn is_flush_shared(&self) -> bool {
        self.is_flush_shared.load(Ordering::Relaxed)
    }

    /// Records whether a flush is shared.
    pub fn on_flush(&self, is_shared: bool) {
        if self.is_flush_shared() != is_shared {
            self.is_flush_shared.store(is_shared, Ordering::Relaxed);
        }
    }

    /// Records that a write has finished, and looks whether it is in place. Many writes before a
    /// flush cost more looks than its commit is worth.
    pub fn on_written(&self, backend: &dyn Backend, range: Range<u64>) {
        if self.is_unplaced() {
            return;
        }
        let left = self.looks_left.load(Ordering::Relaxed);
        self.looks_left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 || !self.is_in_place(backend, range).unwrap_or(false) {
            self.on_written_anywhere();
        }
    }

    fn is_in_place(&self, backend: &dyn Backend, range: Range<u64>) -> io::Result<bool> {
        if !self.committed.lock().take_look() {
            return Ok(false);
        }
        let Places { found, .. } = backend.places(range.clone())?;
        if self.committed.lock().record_write(&range, &found, self.fs.committed_to()) {
            return Ok(true);
        }
        // Later writes may go to the rest of the extents.
        let size = backend.physical_size()?.max(range.end);
        for start in [0, range.start] {
            if self.look(backend, start..size)? >= range.end {
                break;
            }
        }
        Ok(false)
    }

    /// Looks at a file of `len` bytes, which was just opened. That writes it back.
    pub fn look_at_all(&self, backend: &dyn Backend, len: u64) {
        if self.look(backend, 0..len).is_ok() {
            self.is_unplaced.store(false, Ordering::Release);
            self.need_commit();
        }
    }

    /// Looks where the blocks of a range are. Returns where the look ended.
    fn look(&self, backend: &dyn Backend, range: Range<u64>) -> io::Result<u64> {
        let before = self.committed.lock().now();
        let Places { end, found } = backend.places(range.clone())?;
        let ticket = self.fs.ticket();
        self.committed.lock().see(range.start..end, &found, before, ticket);
        Ok(end)
    }

    /// Changes the extents. The look of a write beside the change counts for nothing.
    pub fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        self.committed.lock().change();
        let result = change();
        self.committed.lock().change();
        self.need_commit();
        result
    }

    /// Returns what a flush needs now. Writes the file back first, because only a flush of this
    /// file would. One thread at a time does that, and the other flushes of the file wait for it.
    pub fn prepare_flush(&self, write_back: impl FnOnce() -> io::Result<()>) -> io::Result<Reach> {
        if self.looks_left.load(Ordering::Relaxed) != LOOKS_PER_FLUSH_MAX {
            self.looks_left.store(LOOKS_PER_FLUSH_MAX, Ordering::Relaxed);
        }
        // In this order: the flush that takes the first flag has set the second. That stays until
        // all see that a commit is needed, and after a failure until a write-back has succeeded.
        if self.is_unplaced() || self.is_written_back.load(Ordering::Acquire) {
            let _alone = self.write_back.lock();
            self.is_written_back.store(true, Ordering::Release);
            if self.is_unplaced.swap(false, Ordering::AcqRel) {
                write_back().inspect_err(|_| self.on_written_anywhere())?;
                self.need_commit();
            }
            self.is_written_back.store(false, Ordering::Release);
        }
        Ok(self.reach())
    }

    fn reach(&self) -> Reach {
        if self.changed.load(Ordering::Acquire) <= self.fs.committed_to() {
            Reach::Device
        } else {
            Reach::FileSystem
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::process::Process;
    use crate::sys::probe::Through;
    use std::cell::Cell;
    #[cfg(loom)]
    use std::sync::Arc;

    /// No device has this number.
    const NOWHERE: u64 = 0xFFFF_FFF1;

    /// The defect: the commit of another file covered a write that XFS had kept in the page cache.
    #[test]
    fn a_write_that_may_be_anywhere_is_written_back_before_its_commit() {
        let placement = Placement::new(FileSystems::default());
        let calls = Cell::new(0);
        let count = || {
            calls.set(calls.get() + 1);
            Ok(())
        };
        let needs = || placement.prepare_flush(count).expect("no error");
        for count in 1..3 {
            placement.on_written_anywhere();
            placement.changed.store(0, Ordering::Release);
            assert_eq!((needs(), calls.get()), (Reach::FileSystem, count));
            assert_eq!((needs(), calls.get()), (Reach::FileSystem, count), "until that commit");
        }
        placement.changed.store(0, Ordering::Release);
        assert_eq!(needs(), Reach::Device);
        placement.on_written_anywhere();
        placement
            .prepare_flush(|| Err(io::ErrorKind::Other.into()))
            .expect_err("it is not written back");
        placement.changed.store(0, Ordering::Release);
        assert_eq!((needs(), calls.get()), (Reach::FileSystem, 3), "it is tried again");
    }

    /// The defect: two threads synced one file. One wrote it back, and the other asked for a flush
    /// of the device meanwhile, which did not cover that. So it did if the first one failed.
    #[cfg(loom)]
    #[test]
    fn loom_a_flush_beside_the_one_that_writes_back_waits_for_it() {
        [false, true].into_iter().for_each(flush_beside_a_write_back);
    }

    /// The first write-back fails, if `fails`.
    #[cfg(loom)]
    fn flush_beside_a_write_back(fails: bool) {
        crate::sync::explore(3, move || {
            let placement = Arc::new(Placement::new(FileSystems::default()));
            placement.changed.store(0, Ordering::Release);
            let is_on_disk = Arc::new(AtomicBool::new(false));
            let fails = Arc::new(AtomicBool::new(fails));
            let flush = move |placement: &Placement, is_on_disk: &AtomicBool| {
                let write_back = || {
                    if fails.swap(false, Ordering::Relaxed) {
                        return Err(io::ErrorKind::Unsupported.into());
                    }
                    is_on_disk.store(true, Ordering::Relaxed);
                    Ok(())
                };
                if let Ok(needs) = placement.prepare_flush(write_back) {
                    assert!(is_on_disk.load(Ordering::Relaxed), "it is written back");
                    assert_eq!(needs, Reach::FileSystem, "and needs a commit");
                }
            };
            let other_flush = flush.clone();
            let (other, on_disk) = (placement.clone(), is_on_disk.clone());
            let other = loom::thread::spawn(move || other_flush(&other, &on_disk));
            flush(&placement, &is_on_disk);
            other.join().expect("no panic");
        });
    }

    /// Space that was grown since the last commit is found only after the next one.
    #[test]
    fn growth_needs_a_commit_that_begins_after_it() {
        let process = Process::new(0);
        let fs = process.file_system(NOWHERE, Through::Device).expect("nothing failed yet");
        let fs = FileSystems::from(fs);
        let placement = Placement::new(fs.clone());
        let needs = || placement.prepare_flush(|| Ok(())).expect("no error");
        let end = |flush| {
            fs.end_flush(flush, (&Ok(()), Reach::FileSystem), |_| unreachable!("no error"));
        };
        end(fs.begin_flush());
        for _ in 0..2 {
            let before = fs.begin_flush();
            placement.change(|| ());
            end(before);
            assert_eq!(needs(), Reach::FileSystem);
            end(fs.begin_flush());
            assert_eq!(needs(), Reach::Device);
        }
    }
}
