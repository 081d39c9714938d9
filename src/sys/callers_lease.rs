//! The write lease that a caller holds on the description which the engine works on.

use crate::sync::signals::with_signals_blocked;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// For a thread to look: it cannot begin while its starter has the lock of the dynamic loader.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether this process still has its write lease on the description, also while an opener waits
/// for its end.
///
/// F_GETLEASE cannot say that: beside a waiting opener it reports F_UNLCK, and so it does once the
/// lease-break time has passed and the kernel has removed the lease. The description's fdinfo lists
/// only the first, and no other description's lease. The kernel makes that text under one lock and
/// keeps it for all reads of one open. /proc/locks is no source: the kernel builds it anew at each
/// read, so locks of other processes shift lines past the reader.
///
/// The calling thread's directory is the right one: that of the process is empty once its first
/// thread has ended.
pub(crate) fn is_held(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: F_GETLEASE takes no memory.
    let kind = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLEASE) };
    kind == libc::F_WRLCK || info(fd.as_raw_fd()).is_ok_and(|info| lists_lease(&info))
}

fn info(fd: RawFd) -> io::Result<String> {
    match read_info(fd) {
        Err(Errno::MFILE) => info_without_a_number(fd),
        info => Ok(info?),
    }
}

/// The process has no number left for one more descriptor. A thread with a table of descriptors of
/// its own has, since what it closes there stays open for all others.
fn info_without_a_number(fd: RawFd) -> io::Result<String> {
    let (tell, told) = mpsc::channel();
    let look = move || {
        // SAFETY: the thread ends with this, and uses no descriptor but the one that is looked at,
        // which its table has.
        let info = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.and_then(|()| {
            // SAFETY: only in the table of this thread, which does not use the number.
            unsafe { rustix::io::close(RawFd::from(fd == 0)) };
            read_info(fd)
        });
        let _ = tell.send(info);
    };
    with_signals_blocked(|| thread::Builder::new().name("dioxide-look".into()).spawn(look))?;
    Ok(told.recv_timeout(PATIENCE).map_err(|_| io::ErrorKind::TimedOut)??)
}

/// Past libc: what stands before it would look at the thread's numbers as at those of the process.
fn read_info(fd: RawFd) -> rustix::io::Result<String> {
    let path = format!("/proc/thread-self/fdinfo/{fd}");
    let file =
        ManuallyDrop::new(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let mut text = Vec::with_capacity(4096);
    let read = loop {
        match rustix::io::read(&*file, rustix::buffer::spare_capacity(&mut text)) {
            Ok(0) => break Ok(String::from_utf8_lossy(&text).into_owned()),
            Ok(_) => text.reserve(4096),
            Err(Errno::INTR) => {}
            Err(errno) => break Err(errno),
        }
    };
    // SAFETY: it was opened here, and nothing uses it any more.
    unsafe { rustix::io::close(file.as_raw_fd()) };
    read
}

/// Whether the text of a description's fdinfo has a lease.
fn lists_lease(info: &str) -> bool {
    info.lines().filter_map(|line| line.strip_prefix("lock:")).any(|lock| {
        let mut fields = lock.split_ascii_whitespace().skip(1);
        fields.next() == Some("LEASE") && matches!(fields.next(), Some("ACTIVE" | "BREAKING"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_listed_until_the_kernel_removes_it() {
        let held = |locks: &str| {
            lists_lease(&format!("pos:\t0\nflags:\t0140002\nmnt_id:\t27\nino:\t131\n{locks}"))
        };
        assert!(held("lock:\t1: LEASE  ACTIVE    WRITE 77 08:02:131 0 EOF\n"));
        assert!(held("lock:\t1: LEASE  BREAKING  UNLCK 77 08:02:131 0 EOF\n"));
        let behind_another = "lock:\t1: POSIX  ADVISORY  WRITE 77 08:02:131 0 EOF\n\
                              lock:\t2: LEASE  BREAKING  READ 77 08:02:131 0 EOF\n";
        assert!(held(behind_another));
        assert!(!held(""), "the kernel removed it");
        assert!(!held("lock:\t1: POSIX  ADVISORY  WRITE 77 08:02:131 0 EOF\n"));
        assert!(
            !held("lock:\t1: LEASE  BREAKER   READ 77 08:02:131 0 EOF\n"),
            "it waits for another one's"
        );
    }
}
