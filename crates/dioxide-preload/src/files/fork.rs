//! Forks, and the end of the process: all files go back to the kernel, and no take-over begins.

use super::hand_back::hand_back_those;
use super::registry::{Known, NAP, forget_taken, known_to_change, try_numbers_to_change};
use crate::process::Inside;
use crate::slots;
use crate::summary;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The number of threads that fork, or change the rights of the process.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// The process ends, or is a child that takes no files.
static OVER: AtomicBool = AtomicBool::new(false);

/// Whether the library takes no more files in this process.
pub(super) fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// Whether a take-over may begin now.
pub(super) fn may_take_over() -> bool {
    FORKS.load(Ordering::SeqCst) == 0 && !OVER.load(Ordering::SeqCst)
}

/// Hands all files back at the end of the process. Leaves later files to the kernel.
pub fn end() {
    OVER.store(true, Ordering::SeqCst);
    hand_back_those("the process ended", |_| true);
}

/// A guard that prevents take-overs.
pub struct Still(());

impl Still {
    pub fn begin() -> Self {
        FORKS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        FORKS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The locks that the child might wait for, held during the fork.
pub struct ForkLocks {
    _still: Still,
    _numbers: RwLockWriteGuard<'static, ()>,
    known: RwLockWriteGuard<'static, Known>,
    summary: summary::Held,
    _inside: Inside,
}

/// Before a fork: hands all files back, in both processes, because the child has copies of all
/// descriptors. No take-over begins until the drop of the result.
pub fn before_fork() -> ForkLocks {
    let (inside, still) = (Inside::begin(), Still::begin());
    hand_back_those("the process forked", |_| true);
    let numbers = loop {
        match try_numbers_to_change() {
            Some(numbers) => break numbers,
            None => thread::sleep(NAP),
        }
    };
    let (known, summary) = (known_to_change(), summary::hold());
    ForkLocks { _still: still, _numbers: numbers, known, summary, _inside: inside }
}

/// In the child: forgets all files. `divided` is none if the fork could not take the locks.
pub fn in_child(divided: Option<ForkLocks>, takes_files: bool) {
    slots::forget_all();
    forget_taken();
    OVER.store(!takes_files, Ordering::Relaxed);
    if let Some(mut divided) = divided {
        // The other counts are of threads of the parent.
        FORKS.store(1, Ordering::Relaxed);
        // The parent's files, which the child must not close.
        std::mem::forget(std::mem::take(&mut *divided.known));
        divided.summary.forget();
    }
}
