//! A file that the library knows: its descriptions, its transfers in flight, its engine handles.

use crate::accepted::Accepted;
use crate::lease;
use crate::slots::{self, Changing, State};
use dioxide::ledger::FileSystem;
use rustix::fs::{FileType, Stat};
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The identity of a file, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The number of the file system, or of the device itself.
    pub dev: u64,
    /// None for a device.
    pub inode: Option<u64>,
}

impl Key {
    /// Returns the key of a regular file or a block device.
    pub fn of(stat: &Stat) -> Option<Self> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Some(Self { dev: stat.st_dev, inode: Some(stat.st_ino) }),
            FileType::BlockDevice => Some(Self { dev: stat.st_rdev, inode: None }),
            _ => None,
        }
    }
}

/// An open file description: the state that duplicated descriptors share.
#[derive(Debug)]
pub struct Description {
    /// The file.
    pub inode: Arc<Inode>,
    /// Opened for reading.
    pub reads: bool,
    /// Opened for writing.
    pub writes: bool,
    /// O_DSYNC or O_SYNC.
    pub durable: bool,
    /// O_APPEND, which F_SETFL changes.
    pub append: AtomicBool,
    /// The end of the last append that moved the position, and the truncations before it. A thread
    /// that uses the position holds this lock. The kernel keeps the position itself, in the
    /// program's description.
    pub position: Mutex<(u64, u64)>,
}

/// A file or device, watched or taken.
#[derive(Debug)]
pub struct Inode {
    pub(super) key: Key,
    /// The file system or device below. It records failed flushes.
    pub below: Option<FileSystem>,
    /// Held during a take-over, a hand-back and other changes of how the file is served.
    changes: Mutex<()>,
    /// The kernel serves the file until its last close.
    pub(super) kernel_only: AtomicBool,
    /// A keeper hands the file back because its lease is broken.
    pub(super) broken: AtomicBool,
    /// Transfers in flight while the file is watched, and the writes among them.
    pub(super) transfers: AtomicUsize,
    writers: AtomicUsize,
    /// The time of the next attempt to take the file over, in milliseconds since the first one.
    pub(super) try_again: AtomicU64,
    /// Attempts that failed.
    pub(super) tries: AtomicU32,
    /// Calls that set the length.
    pub truncations: AtomicU64,
    /// A length that the kernel reported. A write beyond it asks again.
    kernel_len: AtomicU64,
    /// The program's descriptors. A change holds KNOWN too, so KNOWN has no file without any.
    descriptors: Mutex<BTreeSet<c_int>>,
    pub(super) taken: RwLock<Option<Arc<Taken>>>,
    /// The engine could not close the file exactly, and no call has reported it yet.
    pub(super) failed: AtomicBool,
}

/// The engine's handles of a file.
#[derive(Debug)]
pub struct Taken {
    /// Durable after a sync.
    pub plain: dioxide::File,
    /// Durable on return.
    pub durable: dioxide::File,
    /// The transfers for the engine.
    pub accepted: Accepted,
    /// None for a device.
    pub(super) lease: Option<Lease>,
}

/// The lease under which a file is taken.
#[derive(Debug)]
pub(super) struct Lease {
    /// A duplicate of the program's descriptor. It releases the lease after the engine has closed
    /// the file.
    pub held: OwnedFd,
    /// The only description of the file.
    pub description: Arc<Description>,
}

impl Taken {
    /// The handles, plain and durable, and the lease of a regular file.
    pub(super) fn of([plain, durable]: [dioxide::File; 2], lease: Option<Lease>) -> Self {
        let accepted = Accepted::of(&plain, lease.is_none());
        Self { plain, durable, accepted, lease }
    }

    /// Returns the handle for durable or other writes.
    pub fn handle(&self, durable: bool) -> &dioxide::File {
        if durable { &self.durable } else { &self.plain }
    }

    /// Returns the length of the file, as the program knows it.
    pub fn len(&self) -> u64 {
        self.plain.len().expect("only readers beside other processes can fail")
    }

    /// The descriptors of the engine and the lease.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = c_int> {
        let held = self.lease.as_ref().map(|lease| lease.held.as_raw_fd());
        held.into_iter().chain(self.plain.descriptors().map(|fd| fd.as_raw_fd()))
    }
}

/// Borrows a descriptor number of the program. If it is not open, the call that uses it fails.
pub fn borrowed(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: only the kernel gets the number, and the kernel refuses one that is not open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Inode {
    pub(super) fn new(key: Key, fd: c_int) -> Self {
        Self {
            key,
            below: FileSystem::of(borrowed(fd)).ok(),
            changes: Mutex::default(),
            kernel_only: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            transfers: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            try_again: AtomicU64::new(0),
            tries: AtomicU32::new(0),
            truncations: AtomicU64::new(0),
            kernel_len: AtomicU64::new(0),
            descriptors: Mutex::default(),
            taken: RwLock::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// Whether the kernel serves the file until its last close.
    pub fn is_kernel_only(&self) -> bool {
        self.kernel_only.load(Ordering::Acquire)
    }

    /// Whether it is a block device.
    pub fn is_device(&self) -> bool {
        self.key.inode.is_none()
    }

    /// Counts a transfer of a watched file until the drop of the guard. Also returns whether it is
    /// a write beside another write.
    pub fn count(self: &Arc<Self>, is_write: bool) -> (Counted, bool) {
        self.transfers.fetch_add(1, Ordering::SeqCst);
        let beside = is_write && self.writers.fetch_add(1, Ordering::Relaxed) > 0;
        (Counted { inode: self.clone(), is_write }, beside)
    }

    /// Whether the kernel's length of the file, asked by `fd`, is below `end`. May miss a truncate
    /// since the last question to the kernel.
    pub fn ends_below(&self, fd: c_int, end: u64) -> bool {
        if end <= self.kernel_len.load(Ordering::Relaxed) {
            return false;
        }
        let Ok(stat) = rustix::fs::fstat(borrowed(fd)) else { return false };
        self.kernel_len.store(stat.st_size as u64, Ordering::Relaxed);
        end > stat.st_size as u64
    }

    /// Whether a close of the engine's file has failed since the last call.
    pub fn take_failure(&self) -> bool {
        self.failed.load(Ordering::Relaxed) && self.failed.swap(false, Ordering::Relaxed)
    }

    pub(super) fn changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn descriptors(&self) -> MutexGuard<'_, BTreeSet<c_int>> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_taken(&self) -> bool {
        self.taken.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether the file is taken. Waits for a change in progress.
    pub(super) fn is_taken_or_about_to_be(&self) -> bool {
        let _changes = self.changes();
        self.is_taken()
    }

    /// Whether another opener waits for the lease, or has ended it. Does not block on `taken`,
    /// which a hand-back in progress holds.
    pub(super) fn has_broken_lease(&self) -> bool {
        let Ok(taken) = self.taken.try_read() else { return false };
        let lease = taken.as_ref().and_then(|taken| taken.lease.as_ref());
        lease.is_some_and(|lease| lease::is_broken(lease.held.as_raw_fd()))
    }

    /// Locks all slots of the file, after the engine's transfers have ended. A number may be that
    /// of another file by the time of its lock.
    pub(super) fn drained(&self) -> Vec<Drained> {
        let numbers: Vec<_> = self.descriptors().iter().copied().collect();
        let is_ours = |state: &State| {
            state.description().is_some_and(|description| ptr::eq(&*description.inode, self))
        };
        let drained: Vec<_> = numbers
            .into_iter()
            .filter_map(|fd| Some((fd, slots::find(fd)?.write())))
            .filter(|(_, state)| is_ours(state))
            .collect();
        drained.iter().for_each(|(_, state)| state.hide_append());
        drained
    }
}

/// A descriptor, and its slot without any transfer.
pub(super) type Drained = (c_int, Changing);

/// A transfer in flight.
pub struct Counted {
    inode: Arc<Inode>,
    is_write: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.inode.writers.fetch_sub(usize::from(self.is_write), Ordering::Relaxed);
        self.inode.transfers.fetch_sub(1, Ordering::SeqCst);
    }
}
