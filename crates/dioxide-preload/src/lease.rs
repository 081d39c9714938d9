//! The write lease on an open file description of the program. While it lasts, the file has no
//! other opener.
//!
//! The kernel grants F_WRLCK only to the single opener of a file, among all processes. From then on
//! an `open` (for reading too) or `truncate` by its path waits until the lease ends. The wait is at
//! most `/proc/sys/fs/lease-break-time`, 45 s by default. So the next opener finds the file as the
//! library handed it back.
//!
//! The kernel announces such an opener by a signal. Only the listener gets it, which blocks it and
//! waits for it. So neither a handler of the program nor the default action runs. The signal is
//! only a hint, and the state of the lease decides. Two causes lose the signal:
//!
//! - The queue of signals is full. The kernel then sends SIGIO, which stays pending in the
//!   listener.
//! - The program sets the signal to be ignored, which empties the queue.
//!
//! So the listener also looks at each lease once a second.

use std::ffi::c_int;
use std::io;

const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;
const F_OWNER_TID: c_int = 0;
const F_OWNER_PID: c_int = 1;

/// Commands of `fcntl` that read or set the signal of a description, or its owner.
pub const ABOUT_SIGNALS: [c_int; 6] =
    [F_SETSIG, F_GETSIG, F_SETOWN_EX, F_GETOWN_EX, libc::F_SETOWN, libc::F_GETOWN];

/// The signal of a broken lease. Programs rarely use the last real-time signals.
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

/// Why the library has no lease.
pub enum Refusal {
    /// The file has another opener, in this process or another one.
    OtherOpener,
    /// A later attempt fails too, for this reason.
    Other(String),
}

/// Takes the lease. The thread `listener` gets the signal when another opener waits.
pub fn take(fd: c_int, listener: c_int) -> Result<(), Refusal> {
    let other = |why: &str| Err(Refusal::Other(why.into()));
    let mut owner = Owner::default();
    // SAFETY: F_GETOWN_EX writes one structure of this layout, which outlives the call.
    let asked = unsafe { libc::fcntl(fd, F_GETOWN_EX, &raw mut owner) };
    if asked != 0 || owner.id != 0 || fcntl(fd, F_GETSIG, 0).unwrap_or(1) != 0 {
        return other("the program receives signals of it");
    }
    if fcntl(fd, libc::F_GETLEASE, 0).unwrap_or(libc::F_WRLCK) != libc::F_UNLCK {
        return other("the program has a lease of it");
    }
    // Before the lease: the program must not get the signal of an early opener.
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
    /// By this call. Waiting openers go on.
    Now,
    /// Before this call.
    Earlier,
    /// Not at all: the process neither owns the file nor has CAP_LEASE.
    NotYet,
}

/// Ends the lease. The kernel also resets the owner and the signal.
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
    // SAFETY: F_SETOWN_EX reads one structure of this layout, which outlives the call.
    match unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn fcntl(fd: c_int, command: c_int, argument: c_int) -> io::Result<c_int> {
    // SAFETY: these commands take a number, no address.
    match unsafe { libc::fcntl(fd, command, libc::c_long::from(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}
