//! The write lease that a caller holds on the description that the engine uses.

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

/// Timeout for the helper thread: it cannot start while its parent holds the lock of the dynamic
/// loader.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns whether this process still has its write lease on the description, even while an opener
/// waits for its end.
///
/// F_GETLEASE is not enough: with a waiting opener it reports F_UNLCK. It reports the same after
/// the lease-break time, when the kernel has removed the lease. The description's fdinfo lists only
/// the first, and no other description's lease. The kernel makes that text under one lock and keeps
/// it for all reads of one open. /proc/locks is no source: the kernel rebuilds it at each read, so
/// locks of other processes shift lines past the reader.
///
/// It reads the directory of the calling thread: that of the process is empty once its first thread
/// has ended.
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

/// Reads fdinfo when the process has no free descriptor number. A thread with its own descriptor
/// table frees one there: the close does not affect other threads.
fn info_without_a_number(fd: RawFd) -> io::Result<String> {
    let (tell, told) = mpsc::channel();
    let look = move || {
        // SAFETY: the thread ends after this. It uses only the inspected descriptor, which its
        // table has.
        let info = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.and_then(|()| {
            // SAFETY: closes only in the table of this thread, which does not use the number.
            unsafe { rustix::io::close(RawFd::from(fd == 0)) };
            read_info(fd)
        });
        let _ = tell.send(info);
    };
    with_signals_blocked(|| thread::Builder::new().name("dioxide-look".into()).spawn(look))?;
    Ok(told.recv_timeout(PATIENCE).map_err(|_| io::ErrorKind::TimedOut)??)
}

/// Bypasses libc: an interposer in front of it would take the thread's numbers for those of the
/// process.
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
    // SAFETY: it was opened here, and has no other user.
    unsafe { rustix::io::close(file.as_raw_fd()) };
    read
}

/// Returns whether the text of a description's fdinfo lists a lease.
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
