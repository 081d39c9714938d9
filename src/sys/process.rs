//! Which process we are: an address that changes in the child of a fork, without a system call.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A page that the kernel fills with zeros in the child of a fork (MADV_WIPEONFORK, Linux 4.14), however it
/// was forked. It holds one pointer, which so becomes null there.
fn wiped_on_fork() -> &'static AtomicPtr<()> {
    static PAGE: OnceLock<&'static AtomicPtr<()>> = OnceLock::new();
    PAGE.get_or_init(|| {
        let size = rustix::param::page_size();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing else.
        let page =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE) };
        let page = page.expect("one page of memory");
        // SAFETY: the advice concerns only the page mapped above.
        unsafe { rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork) }.expect("Linux 4.14 or later");
        // SAFETY: the page is never unmapped, aligned, and zero is a valid pointer value.
        unsafe { &*page.cast::<AtomicPtr<()>>() }
    })
}

/// The value of this process, made by `make` at the first call in it. A child of a fork gets its own: what its
/// parent held, locks included, is of no use to it.
pub(crate) fn of_this_process<T: Sync>(make: impl FnOnce() -> T) -> &'static T {
    let page = wiped_on_fork();
    let known = page.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: only this function stores here, and always the same type: there is one caller.
        return unsafe { &*known.cast::<T>() };
    }
    let made: *mut T = Box::into_raw(Box::new(make()));
    match page.compare_exchange(std::ptr::null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `made` is never freed.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: another thread was first, so nobody else knows `made`.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: as above.
            unsafe { &*other.cast::<T>() }
        }
    }
}

/// Whether `value` is this process's, and not its parent's.
pub(crate) fn is_of_this_process<T>(value: &'static T) -> bool {
    std::ptr::eq(wiped_on_fork().load(Ordering::Acquire).cast::<T>(), value)
}

/// Signals that a thread brings on itself: one that is blocked then ends the process without asking its handler.
const OF_THE_THREAD: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Does `work` while no signal from outside reaches this thread: threads that it starts inherit that.
pub(crate) fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both are filled before they are read, and this thread gets back what it had.
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
