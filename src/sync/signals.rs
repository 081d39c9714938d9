//! Signals and the threads of the library.

use std::mem::MaybeUninit;

/// Signals that a thread raises by its own fault. If one is blocked, it ends the process without a
/// call of its handler.
const OF_THE_THREAD: [libc::c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Runs `work` with signals from outside blocked in this thread. Threads that it starts inherit the
/// mask.
pub fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are written before they are read, and this thread gets its old mask back.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in OF_THE_THREAD {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        result
    }
}
