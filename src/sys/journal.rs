//! The journal of a file system: whether the flush of one file can commit for all files.
//!
//! A flush of one file covers others if two things hold. A change that joins the journal later is
//! committed later, and each commit flushes the device that holds the data. Power cuts showed that
//! for ext4 and XFS with the defaults of mount. Elsewhere each file has flushes of its own.

use super::probe::{self, Facts, Part};
use rustix::fs::IFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Checks whether flushes of this file may be those of other files. If not, returns the reason in
/// words.
pub(crate) fn can_share_flushes(fd: BorrowedFd<'_>, facts: &Facts) -> Result<(), String> {
    let err = |why: &str| Err(why.to_owned());
    if facts.is_device || facts.part != Part::Whole {
        return err("it is not a file of a file system of the kernel");
    }
    if facts.writes_through || !probe::has_volatile_cache(facts.fs) {
        return err("each write is durable by itself, so a flush costs little");
    }
    let Some(options) = probe::mount_options(facts) else {
        return err("the options of its mount are not visible");
    };
    const OTHERWISE: &[&str] = &[
        "nobarrier",
        "barrier=0",
        "journal_async_commit",
        "data=journal",
        "data=writeback",
        "lazytime",
    ];
    if probe::has_any(&options, OTHERWISE) {
        return err("it is mounted with options that change what a commit covers");
    }
    match probe::kind_of_file_system(fd) {
        Ok(probe::EXT) => ext(fd, facts),
        Ok(probe::XFS) => xfs(fd, &options),
        _ => err("it is not known here that the flush of one file covers others"),
    }
}

fn ext(fd: BorrowedFd<'_>, facts: &Facts) -> Result<(), String> {
    let flags = rustix::fs::ioctl_getflags(fd).map_err(|error| error.to_string())?;
    if flags.contains(IFlags::JOURNALING) {
        return Err("its data goes through the journal (chattr +j)".into());
    }
    if commits_fast(facts.fs) {
        return Err("ext4 commits files one by one there (fast_commit)".into());
    }
    if !has_own_journal(facts.fs) {
        return Err("its file system has no journal on the same device".into());
    }
    Ok(())
}

fn xfs(fd: BorrowedFd<'_>, options: &str) -> Result<(), String> {
    let is_elsewhere = |option: &str| option.starts_with("logdev=") || option.starts_with("rtdev=");
    if options.split(',').any(is_elsewhere) {
        return Err("its file system has more than one device".into());
    }
    if is_realtime(fd).map_err(|error| error.to_string())? {
        return Err("it lies in the realtime section".into());
    }
    Ok(())
}

/// Whether the journal of an ext4 lies in the file system. Its folder is named after the device and
/// the inode of the journal, that of an external journal after the other device.
fn has_own_journal(dev: u64) -> bool {
    let folders = std::fs::read_dir("/proc/fs/jbd2").into_iter().flatten().flatten();
    let names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
    probe::device_name(dev).is_some_and(|device| {
        names.map(|name| name.strip_prefix(&*device).map(is_inode)).any(|it| it == Some(true))
    })
}

fn is_inode(suffix: &str) -> bool {
    suffix.strip_prefix('-').is_some_and(|inode| inode.parse::<u32>().is_ok())
}

/// Whether an ext4 has made fast commits. Those commit the changes of one file. Without statistics
/// the kernel has none (before Linux 5.10).
pub(crate) fn commits_fast(dev: u64) -> bool {
    let statistics = probe::device_name(dev)
        .map(|device| std::fs::read_to_string(format!("/proc/fs/ext4/{device}/fc_info")));
    match statistics {
        None => false,
        Some(Ok(text)) => fast_commits(&text) != Some(0),
        Some(Err(error)) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The number of fast commits, by the second line of the statistics.
fn fast_commits(statistics: &str) -> Option<u64> {
    statistics.lines().nth(1)?.strip_suffix(" commits")?.parse().ok()
}

/// `struct fsxattr` of linux/fs.h.
#[derive(Default)]
#[repr(C)]
struct FileAttributes {
    flags: u32,
    others: [u32; 6],
}

fn is_realtime(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // _IOR('X', 31, struct fsxattr)
    const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801C_581F_u32 as libc::Ioctl;
    const REALTIME: u32 = 0x1;
    let mut found = FileAttributes::default();
    // SAFETY: the call writes one structure of this layout, which outlives it.
    match unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut found) } {
        0 => Ok(found.flags & REALTIME != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_commits_are_counted_by_the_statistics() {
        let statistics = "fc stats:\n12 commits\n0 ineligible\n";
        assert_eq!(fast_commits(statistics), Some(12));
        assert_eq!(fast_commits("fc stats:\n"), None);
        assert_eq!(fast_commits("something else"), None);
    }

    #[test]
    fn the_journal_of_another_device_is_not_in_the_file_system() {
        assert!(is_inode("-8"));
        assert!(!is_inode(""), "an external journal");
        assert!(!is_inode("1-8"), "the journal of another device with a longer name");
    }
}
