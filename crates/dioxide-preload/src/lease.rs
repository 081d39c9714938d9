//! The write lease on an open file description of the program: while it lasts, the file has no
//! other opener.
//!
//! The kernel grants F_WRLCK only if the description is the one that has the file open, in all
//! processes. From then on `open` and `truncate` of the file by its path wait, for reading too,
//! until the lease ends; at most for the time of `/proc/sys/fs/lease-break-time`, 45 s by default.
//! So the next opener finds the file as it was handed back.
//!
//! The kernel announces such an opener by a signal. It goes to the listener alone, which blocks it
//! and waits for it: no handler of the program runs, and no default action. The signal is only a
//! hint, because it can be lost: the queue of signals may be full (then the kernel sends SIGIO,
//! which stays pending in the listener), and a program that ignores the signal empties the queue.
//! The state of the lease decides, so the listener also looks at it once a second.

use std::ffi::c_int;
use std::io;

const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
const F_OWNER_TID: c_int = 0;
const F_OWNER_PID: c_int = 1;

/// Commands of `fcntl` that show or change who gets the signals of a description.
pub const ABOUT_SIGNALS: [c_int; 6] =
    [F_SETSIG, F_GETSIG, F_SETOWN_EX, F_GETOWN_EX, libc::F_SETOWN, libc::F_GETOWN];

/// Near the end of the real-time signals, where programs use none.
pub fn signal() -> c_int {
    libc::SIGRTMAX() - 3
}

/// `struct f_owner_ex` of fcntl.h.
#[repr(C)]
#[derive(Default)]
struct Owner {
    kind: c_int,
    id: c_int,
}

/// Why there is no lease.
pub enum Refusal {
    /// The file has another opener, in this process or another one.
    OtherOpener,
    /// There never will be one, for this reason.
    Other(String),
}

/// Takes the lease. The thread `listener` gets the signal when another opener waits.
pub fn take(fd: c_int, listener: c_int) -> Result<(), Refusal> {
    let other = |why: &str| Err(Refusal::Other(why.into()));
    let mut owner = Owner::default();
    // SAFETY: F_GETOWN_EX writes one structure with the kernel's layout, which outlives the call.
    let asked = unsafe { libc::fcntl(fd, F_GETOWN_EX, &raw mut owner) };
    if asked != 0 || owner.id != 0 || fcntl(fd, F_GETSIG, 0).unwrap_or(1) != 0 {
        return other("the program receives signals of it");
    }
    if fcntl(fd, libc::F_GETLEASE, 0).unwrap_or(libc::F_WRLCK) != libc::F_UNLCK {
        return other("the program has a lease of it");
    }
    // Before the lease: no opener may find the program as the owner.
    let set = set_owner(fd, F_OWNER_TID, listener)
        .and_then(|()| fcntl(fd, F_SETSIG, signal()))
        .and_then(|_| fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK));
    set.map(drop).map_err(|error| {
        let _ = fcntl(fd, F_SETSIG, 0);
        let _ = set_owner(fd, F_OWNER_PID, 0);
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Refusal::OtherOpener,
            Some(libc::EACCES) => Refusal::Other("no write lease: it has another owner".into()),
            Some(libc::EINVAL) => Refusal::Other("no write lease: its file system has none".into()),
            _ => Refusal::Other(format!("no write lease: {error}")),
        }
    })
}

/// How a lease ended.
#[derive(PartialEq, Eq)]
pub enum Ended {
    /// By this call. The openers that wait go on.
    Now,
    /// Before.
    Earlier,
    /// It has not: for that the process owns the file or has CAP_LEASE.
    NotYet,
}

/// Ends the lease. The kernel takes owner and signal back with it.
pub fn release(fd: c_int) -> Ended {
    match fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK).map_err(|error| error.raw_os_error()) {
        Ok(_) => Ended::Now,
        Err(Some(libc::EACCES | libc::EPERM)) => Ended::NotYet,
        Err(_) => Ended::Earlier,
    }
}

/// Whether another opener waits, or the lease has ended.
pub fn is_broken(fd: c_int) -> bool {
    fcntl(fd, libc::F_GETLEASE, 0).is_ok_and(|kind| kind != libc::F_WRLCK)
}

fn set_owner(fd: c_int, kind: c_int, id: c_int) -> io::Result<()> {
    let owner = Owner { kind, id };
    // SAFETY: F_SETOWN_EX reads one structure with the kernel's layout, which outlives the call.
    match unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn fcntl(fd: c_int, command: c_int, argument: c_int) -> io::Result<c_int> {
    // SAFETY: these commands take a number, and no memory.
    match unsafe { libc::fcntl(fd, command, libc::c_long::from(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}
