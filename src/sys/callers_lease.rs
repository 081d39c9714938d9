//! The write lease that a caller holds on the description which the engine works on.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether this process still has its write lease on the description, also while an opener waits for its end.
///
/// F_GETLEASE cannot say that: beside a waiting opener it reports F_UNLCK, and so it does once the lease-break time has
/// passed and the kernel has removed the lease. The description's fdinfo lists only the first, and no other
/// description's lease. The kernel makes that text under one lock and keeps it for all reads of one open. /proc/locks
/// is no source: the kernel builds it anew at each read, so locks of other processes shift lines past the reader.
///
/// The calling thread's directory is the right one: that of the process is empty once its first thread has ended.
pub(crate) fn is_held(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: F_GETLEASE takes no memory.
    let kind = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLEASE) };
    let info = || fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd()));
    kind == libc::F_WRLCK || info().is_ok_and(|info| lists_lease(&info))
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
        let held =
            |locks: &str| lists_lease(&format!("pos:\t0\nflags:\t0140002\nmnt_id:\t27\nino:\t131\n{locks}"));
        assert!(held("lock:\t1: LEASE  ACTIVE    WRITE 77 08:02:131 0 EOF\n"));
        assert!(held("lock:\t1: LEASE  BREAKING  UNLCK 77 08:02:131 0 EOF\n"));
        let behind_another = "lock:\t1: POSIX  ADVISORY  WRITE 77 08:02:131 0 EOF\n\
                              lock:\t2: LEASE  BREAKING  READ 77 08:02:131 0 EOF\n";
        assert!(held(behind_another));
        assert!(!held(""), "the kernel removed it");
        assert!(!held("lock:\t1: POSIX  ADVISORY  WRITE 77 08:02:131 0 EOF\n"));
        assert!(!held("lock:\t1: LEASE  BREAKER   READ 77 08:02:131 0 EOF\n"), "it waits for another one's");
    }
}
