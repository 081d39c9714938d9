//! Write leases: they show that a file has no other opener, and delay the open of another one.
//!
//! The kernel grants F_WRLCK only to the one open file description of a file (`check_conflicting_open` in fs/locks.c),
//! to the owner of the file or with CAP_LEASE. While it is held, an `open` or `truncate` of the file by path sleeps
//! until the lease is released, `/proc/sys/fs/lease-break-time` seconds at most (45 by default). A copy of the
//! descriptor, in a forked child too, is the same description and no other opener.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// The signal that announces a break of the lease. Its default action is nothing, and the thread blocks it.
const SIGNAL: libc::c_int = libc::SIGURG;

/// `struct f_owner_ex` of fcntl.h.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

/// A write lease of the calling thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    fd: BorrowedFd<'a>,
    _blocked: Blocked,
}

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The file has another open file description, for reading or writing, in this process or in another one.
    OtherOpener,
    /// This process may not take leases of the file, or its file system has none.
    Unavailable,
}

impl<'a> Lease<'a> {
    /// Takes the lease. The description must be private to this library: its owner and signal are changed.
    pub fn take(fd: BorrowedFd<'a>) -> Result<Self, Refused> {
        // The signal goes to this thread only, which takes it back before it can be delivered.
        let blocked = Blocked::new();
        let owner = Owner { kind: F_OWNER_TID, id: rustix::thread::gettid().as_raw_nonzero().get() };
        // SAFETY: F_SETOWN_EX reads one structure with the kernel's layout, which outlives the call.
        let owned = unsafe { libc::fcntl(fd.as_raw_fd(), F_SETOWN_EX, &owner) };
        if owned != 0 || fcntl(fd, F_SETSIG, SIGNAL).is_err() {
            return Err(Refused::Unavailable);
        }
        match fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) {
            Ok(_) => Ok(Self { fd, _blocked: blocked }),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Err(Refused::OtherOpener),
            Err(_) => Err(Refused::Unavailable),
        }
    }

    /// Whether no opener waits for it. One that waited longer than the lease-break time has the file open by now.
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

fn fcntl(fd: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: these commands take a number, and no memory.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The signal is blocked in this thread. When this is dropped a signal of ours is gone, and the mask is as before.
#[derive(Debug)]
struct Blocked {
    /// The program blocks it itself.
    before: bool,
    /// One was pending already, which is the program's.
    pending: bool,
    /// The mask is that of one thread.
    _not_send: PhantomData<*const ()>,
}

impl Blocked {
    fn new() -> Self {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: each set is written by its call before it is read.
        let (before, pending) = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &only_ours(), before.as_mut_ptr());
            libc::sigpending(pending.as_mut_ptr());
            (
                libc::sigismember(before.as_ptr(), SIGNAL) == 1,
                libc::sigismember(pending.as_ptr(), SIGNAL) == 1,
            )
        };
        Self { before, pending, _not_send: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: all structures outlive the calls; the signal's details are not asked for.
        unsafe {
            // The lease has ended, so no other one comes.
            if !self.pending {
                libc::sigtimedwait(&only_ours(), std::ptr::null_mut(), &now);
            }
            if !self.before {
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &only_ours(), std::ptr::null_mut());
            }
        }
    }
}

fn only_ours() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
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
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
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
