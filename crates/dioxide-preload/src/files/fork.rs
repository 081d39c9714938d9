//! Forks, exec, and the end of the process: all files go back to the kernel, and no take-over
//! begins.

use super::hand_back::hand_back_those;
use super::registry::{Known, NAP, forget_taken, known_to_change, try_numbers_to_change};
use crate::process::{Inside, own_thread, pause};
use crate::slots;
use crate::summary;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};

/// The number of threads that fork, change the rights of the process, or are in another call beside
/// which no file may be taken over.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// The number of calls of exec that return after a failure.
static EXECS: AtomicUsize = AtomicUsize::new(0);
/// The thread that calls an exec which the library cannot see return, or 0.
static EXECUTES: AtomicI32 = AtomicI32::new(0);
/// The process ends, has more than one table of descriptors, or is a child that takes no files.
static OVER: AtomicBool = AtomicBool::new(false);

/// Whether the library takes no more files in this process.
pub(super) fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// Whether a take-over may begin now.
pub(super) fn may_take_over() -> bool {
    FORKS.load(Ordering::SeqCst) == 0
        && EXECS.load(Ordering::SeqCst) == 0
        && EXECUTES.load(Ordering::SeqCst) == 0
        && !OVER.load(Ordering::SeqCst)
}

/// Hands all files back, and leaves later files to the kernel.
pub fn stop(why: &str) {
    OVER.store(true, Ordering::SeqCst);
    hand_back_those(why, |_| true);
}

/// This thread is about to call exec. The caller then looks for taken files. `returns` is whether
/// [`exec_failed`] follows if it fails. Async-signal-safe.
pub fn exec_begins(returns: bool) {
    match returns {
        true => _ = EXECS.fetch_add(1, Ordering::SeqCst),
        false => EXECUTES.store(own_thread(), Ordering::SeqCst),
    }
    // A take-over counts its file, and then looks for an exec.
    fence(Ordering::SeqCst);
}

/// An exec that returns has failed. In the child of a fork in a signal handler, it is not counted.
pub fn exec_failed() {
    let one_less = |count: usize| count.checked_sub(1);
    let _ = EXECS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
}

/// This thread is not in exec, so its last one has failed.
pub fn not_in_exec() {
    let thread = EXECUTES.load(Ordering::Relaxed);
    if thread != 0 && thread == own_thread() {
        EXECUTES.store(0, Ordering::SeqCst);
    }
}

/// A guard that prevents take-overs.
pub struct Still(());

impl Still {
    pub fn begin() -> Self {
        FORKS.fetch_add(1, Ordering::SeqCst);
        // As in `exec_begins`: the caller then looks for files.
        fence(Ordering::SeqCst);
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
    summary: summary::HeldSummary,
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
            None => pause(NAP),
        }
    };
    let (known, summary) = (known_to_change(), summary::hold());
    ForkLocks { _still: still, _numbers: numbers, known, summary, _inside: inside }
}

/// In the child: forgets all files. `locks` is none if the fork could not take the locks.
pub fn in_child(locks: Option<ForkLocks>, takes_files: bool) {
    slots::forget_all();
    forget_taken();
    OVER.store(!takes_files, Ordering::Relaxed);
    // Threads of the parent call exec.
    EXECS.store(0, Ordering::Relaxed);
    EXECUTES.store(0, Ordering::Relaxed);
    if let Some(mut locks) = locks {
        // The other counts are of threads of the parent.
        FORKS.store(1, Ordering::Relaxed);
        // The parent's files, which the child must not close.
        std::mem::forget(std::mem::take(&mut *locks.known));
        locks.summary.forget();
    }
}
