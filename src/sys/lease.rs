//! Write leases: they show that a file has no other opener, and delay the open of another one.
//!
//! The kernel grants F_WRLCK only if the file has no other open file description
//! (`check_conflicting_open` in fs/locks.c). It requires the owner of the file or CAP_LEASE. While
//! the lease is held, an `open` or `truncate` of the file by path sleeps until its release. The
//! sleep lasts at most `/proc/sys/fs/lease-break-time` seconds (45 by default). A copy of the
//! descriptor, in a forked child too, is the same description and no other opener.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// The signal that announces a break of the lease. Its default action is to ignore it, and the
/// thread blocks it.
const SIGNAL: libc::c_int = libc::SIGURG;

/// `struct f_owner_ex` of fcntl.h.
#[repr(C)]
struct DescriptorOwner {
    kind: libc::c_int,
    id: libc::pid_t,
}

/// A write lease of the calling thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    fd: BorrowedFd<'a>,
    _blocked: Blocked,
}

/// The kernel's data for a signal of a descriptor: the `_sigpoll` of `siginfo_t`, in its layout.
#[derive(Clone, Copy)]
#[repr(C)]
struct OfDescriptor {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    band: libc::c_long,
    fd: libc::c_int,
}

/// `siginfo_t`, and the part of it that is read.
#[repr(C)]
union Info {
    all: MaybeUninit<libc::siginfo_t>,
    of_descriptor: OfDescriptor,
}

/// The signal code of a lease break (`lease_break_callback` in fs/locks.c).
const POLL_MSG: libc::c_int = 3;

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The file has another open file description, for reading or writing, in this or another
    /// process.
    OtherOpener,
    /// This process may not take leases of the file, or its file system does not support them.
    Unavailable,
}

impl<'a> Lease<'a> {
    /// Takes the lease. The description must be private to this library: its owner and signal
    /// change.
    pub fn take(fd: BorrowedFd<'a>) -> Result<Self, Refused> {
        // The signal goes to this thread only, which consumes it before delivery.
        let mut blocked = Blocked::new();
        let owner = DescriptorOwner {
            kind: F_OWNER_TID,
            id: rustix::thread::gettid().as_raw_nonzero().get(),
        };
        // SAFETY: F_SETOWN_EX reads one structure with the kernel's layout, which outlives the
        // call.
        let owned = unsafe { libc::fcntl(fd.as_raw_fd(), F_SETOWN_EX, &owner) };
        if owned != 0 || fcntl(fd, F_SETSIG, SIGNAL).is_err() {
            return Err(Refused::Unavailable);
        }
        match fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) {
            Ok(_) => {
                blocked.lease = Some(fd.as_raw_fd());
                Ok(Self { fd, _blocked: blocked })
            }
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Err(Refused::OtherOpener),
            Err(_) => Err(Refused::Unavailable),
        }
    }

    /// Returns whether no opener waits for its end. An opener that waited longer than the
    /// lease-break time has the file open by now.
    pub fn is_whole(&self) -> bool {
        fcntl(self.fd, libc::F_GETLEASE, 0).is_ok_and(|kind| kind == libc::F_WRLCK)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Err(error) = fcntl(self.fd, libc::F_SETLEASE, libc::F_UNLCK) {
            log::warn!("dioxide: releasing a lease: {error}");
        }
    }
}

fn fcntl(
    fd: BorrowedFd<'_>,
    command: libc::c_int,
    argument: libc::c_int,
) -> io::Result<libc::c_int> {
    // SAFETY: these commands take a number, and no memory.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Blocks the signal in this thread. On drop it consumes our pending signal, and restores the mask.
#[derive(Debug)]
struct Blocked {
    /// The program itself blocks the signal.
    before: bool,
    /// A signal of the program was pending before.
    pending: bool,
    /// The descriptor with a lease: without one no signal of ours arrives.
    lease: Option<libc::c_int>,
    /// The mask belongs to one thread.
    _not_send: PhantomData<*const ()>,
}

impl Blocked {
    fn new() -> Self {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the calls write the sets before they are read.
        let (before, pending) = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &only_ours(), before.as_mut_ptr());
            libc::sigpending(pending.as_mut_ptr());
            (
                libc::sigismember(before.as_ptr(), SIGNAL) == 1,
                libc::sigismember(pending.as_ptr(), SIGNAL) == 1,
            )
        };
        Self { before, pending, lease: None, _not_send: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // The lease has ended, so no further signal arrives.
        if let Some(fd) = self.lease.filter(|_| !self.pending) {
            take_signal(fd);
        }
        if !self.before {
            // SAFETY: the set outlives the call.
            unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &only_ours(), std::ptr::null_mut()) };
        }
    }
}

/// Consumes the pending signal of the lease on `fd`, if there is one. Sends a consumed signal of
/// the program again.
fn take_signal(fd: libc::c_int) {
    /// The size of the kernel's `sigset_t`.
    const SET_BYTES: libc::c_long = 8;
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut info = Info { all: MaybeUninit::zeroed() };
    // SAFETY: all structures outlive the call. glibc's function would report SI_USER for a signal
    // sent to a thread.
    let taken = unsafe {
        libc::syscall(libc::SYS_rt_sigtimedwait, &only_ours(), &raw mut info, &now, SET_BYTES)
    };
    if taken < 0 {
        return;
    }
    // SAFETY: the kernel initialized it, and any bytes are valid numbers.
    let found = unsafe { info.of_descriptor };
    if found.code == POLL_MSG && found.fd == fd {
        return;
    }
    let process = std::process::id();
    // SAFETY: the structure outlives the calls.
    let sent = unsafe {
        match found.code {
            libc::SI_USER | libc::SI_QUEUE | libc::SI_KERNEL => {
                libc::syscall(libc::SYS_rt_sigqueueinfo, process, SIGNAL, &raw const info)
            }
            // The signal of another lease of this thread is such a case.
            _ => {
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, SIGNAL, &raw const info)
            }
        }
    };
    if sent != 0 {
        // Only the main thread may forward a signal with the kernel's code to its process.
        // SAFETY: kill touches no memory.
        unsafe { libc::kill(process as libc::pid_t, SIGNAL) };
    }
}

fn only_ours() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initializes the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), SIGNAL);
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn file() -> (tempfile::TempDir, std::path::PathBuf, File) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let file =
            File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        (dir, path, file)
    }

    #[test]
    fn a_lease_is_refused_beside_another_opener() {
        let (_dir, path, file) = file();
        let copy = file.try_clone().expect("a copy");
        assert!(Lease::take(file.as_fd()).expect("no other opener").is_whole());
        drop(copy);
        let other = File::open(&path).expect("it opens");
        assert_eq!(Lease::take(file.as_fd()).err(), Some(Refused::OtherOpener));
        drop(other);
        assert!(Lease::take(file.as_fd()).is_ok());
    }

    /// Returns whether SIGURG is pending in this thread, which blocks it. Consumes it.
    fn was_pending() -> bool {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structures outlive the call.
        unsafe { libc::sigtimedwait(&only_ours(), std::ptr::null_mut(), &now) == SIGNAL }
    }

    fn raise() {
        // SAFETY: sends a signal that this thread blocks.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), SIGNAL) }, 0);
    }

    #[test]
    fn a_signal_of_the_program_stays_pending() {
        let (_dir, path, file) = file();
        let before = Blocked::new();
        let lease = Lease::take(file.as_fd()).expect("no other opener");
        raise();
        drop(lease);
        assert!(was_pending(), "it was swallowed with a lease");
        let none = Blocked::new();
        raise();
        drop(none);
        assert!(was_pending(), "it was swallowed without a lease");
        let lease = Lease::take(file.as_fd()).expect("no other opener");
        let opener = std::thread::spawn(move || File::open(path).map(drop));
        while lease.is_whole() {
            std::thread::yield_now();
        }
        drop(lease);
        assert!(!was_pending(), "that was the lease's");
        opener.join().expect("no panic").expect("it opens");
        drop(before);
    }

    #[test]
    fn a_signal_of_another_lease_is_left_to_that_one() {
        let (_dir, path, file_of_first) = file();
        let (_other_dir, _, file_of_second) = file();
        let before = Blocked::new();
        let first = Lease::take(file_of_first.as_fd()).expect("no other opener");
        let second = Lease::take(file_of_second.as_fd()).expect("no other opener");
        let opener = std::thread::spawn(move || File::open(path).map(drop));
        while first.is_whole() {
            std::thread::yield_now();
        }
        drop(second);
        drop(first);
        assert!(!was_pending());
        opener.join().expect("no panic").expect("it opens");
        drop(before);
    }

    #[test]
    fn an_open_waits_for_the_lease_and_no_signal_arrives() {
        let (_dir, path, file) = file();
        let lease = Lease::take(file.as_fd()).expect("no other opener");
        let opener = std::thread::spawn(move || File::open(path).map(drop));
        while lease.is_whole() {
            std::thread::yield_now();
        }
        assert!(!opener.is_finished(), "it waits for the lease");
        drop(lease);
        opener.join().expect("no panic").expect("it opens");
    }
}
