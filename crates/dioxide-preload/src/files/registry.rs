//! The known files, and the descriptor numbers of the engine.

use super::descriptors::forget_lost;
use super::inode::{Inode, Key};
use crate::process::{Inside, is_elsewhere, is_inside, pause};
use crate::settings::Settings;
use crate::slots::{self, Slot};
use dioxide::ledger::FileSystem;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{
    Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

/// Pause of a thread that polls for a lock or for transfers.
pub(super) const NAP: Duration = Duration::from_micros(50);

pub(super) type Known = BTreeMap<Key, Arc<Inode>>;

static KNOWN: RwLock<Known> = RwLock::new(BTreeMap::new());
/// Protects the engine's descriptor numbers. A reader has descriptors that the slots do not show: a
/// take-over before it marks the slots, a close after it empties them. A writer closes a range of
/// numbers, or forks.
static NUMBERS: RwLock<()> = RwLock::new(());
/// The number of files that are taken, or about to be. Most calls go on to libc if it is 0.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// The program has opened a file that the library knows. Programs that never do stay fast.
static SEEN: AtomicBool = AtomicBool::new(false);
static SETTINGS: OnceLock<Settings> = OnceLock::new();

pub(super) fn known() -> RwLockReadGuard<'static, Known> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn known_to_change() -> RwLockWriteGuard<'static, Known> {
    KNOWN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held while the slots do not show all descriptors of the engine.
pub(super) fn numbers() -> RwLockReadGuard<'static, ()> {
    NUMBERS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Does not wait for a reader, so no other reader queues behind a writer. A reader may hold it for
/// ever.
pub(super) fn try_numbers_to_change() -> Option<RwLockWriteGuard<'static, ()>> {
    match NUMBERS.try_write() {
        Ok(numbers) => Some(numbers),
        Err(TryLockError::Poisoned(numbers)) => Some(numbers.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Runs `work` at a time when the slots show all descriptors of the engine.
pub fn while_numbers_stay<R>(work: impl Fn() -> R) -> R {
    loop {
        // A signal handler that opens the file would wait for its lease with this lock held.
        let done = dioxide::with_signals_blocked(|| try_numbers_to_change().map(|_numbers| work()));
        match done {
            Some(done) => return done,
            None => pause(NAP),
        }
    }
}

/// Whether the descriptor belongs to the engine. The program cannot use it.
pub fn is_engines(fd: c_int) -> bool {
    slots::find(fd).is_some_and(Slot::is_engines)
}

/// Starts to watch the program's opens.
pub fn begin(settings: Settings) {
    let _ = SETTINGS.set(settings);
}

/// Returns the settings of the environment. None if they are invalid.
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// Whether the engine serves any file.
#[inline]
pub fn any_taken() -> bool {
    any_taken_even_inside() && !is_inside()
}

/// The same, for a thread that ends the process. In a signal handler it may be inside.
pub fn any_taken_even_inside() -> bool {
    TAKEN.load(Ordering::Acquire) > 0
}

/// A file is about to be taken.
pub(super) fn count_taken() {
    TAKEN.fetch_add(1, Ordering::SeqCst);
}

/// The kernel serves a file again.
pub(super) fn uncount_taken() {
    TAKEN.fetch_sub(1, Ordering::Release);
}

/// In the child of a fork.
pub(super) fn forget_taken() {
    TAKEN.store(0, Ordering::Relaxed);
}

/// Whether the library has known any file.
#[inline]
pub fn any_known() -> bool {
    SEEN.load(Ordering::Relaxed) && !is_inside()
}

/// Returns the file of this key, known or new. `fd` is a descriptor of it.
pub(super) fn known_or_new(key: Key, fd: c_int) -> Arc<Inode> {
    SEEN.store(true, Ordering::Relaxed);
    known().get(&key).cloned().unwrap_or_else(|| Arc::new(Inode::new(key, fd)))
}

/// Returns the file of a descriptor, if it is known and not the kernel's until its last close.
pub(super) fn inode_of(fd: c_int) -> Option<Arc<Inode>> {
    forget_lost(fd);
    let slot = slots::find(fd).filter(|_| !is_inside() && !is_elsewhere())?;
    let _inside = Inside::begin();
    let state = slot.read();
    let inode = &state.description()?.inode;
    (!inode.is_kernel_only()).then(|| inode.clone())
}

/// Returns each file system of a known file, and a descriptor there.
pub fn one_of_each_file_system() -> Vec<(c_int, FileSystem)> {
    let _inside = Inside::begin();
    let mut each: Vec<(c_int, FileSystem)> = Vec::new();
    for inode in known().values().filter(|inode| !inode.is_device()) {
        if let (Some(fs), Some(fd)) = (&inode.below, inode.descriptors().first())
            && !each.iter().any(|(_, known)| known == fs)
        {
            each.push((*fd, fs.clone()));
        }
    }
    each
}

/// Returns the length of the file, if it is taken. The kernel's length includes growth.
pub fn len_of(key: Key) -> Option<u64> {
    let inode = known().get(&key).cloned()?;
    let taken = inode.taken.read().unwrap_or_else(PoisonError::into_inner);
    taken.as_ref().filter(|_| !inode.is_device()).map(|taken| taken.len())
}
