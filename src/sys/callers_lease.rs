//! The write lease that a caller holds on the description which the engine works on.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether this process still has its write lease on the description, also while an opener waits for its end.
///
/// F_GETLEASE cannot say that: beside a waiting opener it reports F_UNLCK, and so it does once the lease-break time has
/// passed and the kernel has removed the lease. /proc/locks has only the first.
pub(crate) fn is_held(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: F_GETLEASE takes no memory.
    let kind = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLEASE) };
    let listed = || {
        let stat = rustix::fs::fstat(fd).ok()?;
        let locks = fs::read_to_string("/proc/locks").ok()?;
        Some(lists(&locks, std::process::id(), stat.st_dev, stat.st_ino))
    };
    kind == libc::F_WRLCK || listed().unwrap_or(false)
}

/// Whether the text of /proc/locks has a lease on this file. Beside ours there is no other, since we have the file open
/// for writing; so its process matters only where the device is no proof.
fn lists(locks: &str, process: u32, dev: u64, inode: u64) -> bool {
    locks.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (Some("LEASE"), Some("ACTIVE" | "BREAKING"), Some(_)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        let owner = fields.next().and_then(|number| number.parse::<u32>().ok());
        let mut file = fields.next().unwrap_or_default().split(':');
        let mut number = |radix| u64::from_str_radix(file.next()?, radix).ok();
        let (Some(major), Some(minor), Some(found)) = (number(16), number(16), number(10)) else {
            return false;
        };
        let same_device = rustix::fs::makedev(major as u32, minor as u32) == dev;
        // File systems without a device of their own may show another number here (btrfs).
        found == inode && (same_device || major == 0 && owner == Some(process))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_listed_until_the_kernel_removes_it() {
        let locks = "1: LEASE  BREAKING  UNLCK 77 08:02:131 0 EOF\n\
                     1: -> LEASE  BREAKER   WRITE 77 08:02:132 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 77 08:02:133 0 EOF\n\
                     3: LEASE  ACTIVE    WRITE 78 00:2a:257 0 EOF\n";
        let dev = rustix::fs::makedev(8, 2);
        assert!(lists(locks, 77, dev, 131));
        assert!(lists(locks, 1, dev, 131), "the process has another number in the namespace of /proc");
        assert!(lists(locks, 78, dev, 257), "btrfs shows another device");
        for (process, dev, inode) in [(77, dev, 257), (77, dev + 1, 131), (77, dev, 132), (77, dev, 133)] {
            assert!(!lists(locks, process, dev, inode), "{process} {dev} {inode}");
        }
    }
}
