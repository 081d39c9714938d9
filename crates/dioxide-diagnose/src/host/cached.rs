//! Paths that the kernel has in its cache, as that of an open file. Nothing here sends a request to
//! a file system, whose server may not answer.

use super::mount::mounts;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statx};
use rustix::io::Errno;
use std::path::Path;

/// File systems without a server.
const LOCAL: [&str; 14] = [
    "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "msdos", "ntfs3", "tmpfs",
    "vfat", "xfs", "zfs",
];

/// A change beside the walk of a path ends it.
const TRIES: usize = 8;

/// A descriptor without access (O_PATH). None if the kernel would have to ask the file system.
pub fn open(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let open = || openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED);
    match (0..TRIES).map(|_| open()).find(|result| !matches!(result, Err(Errno::AGAIN))) {
        // Some file systems use no cache. Before Linux 5.12, or in a sandbox, none can be asked to.
        None | Some(Err(Errno::INVAL | Errno::NOSYS | Errno::PERM)) if is_local(path) => {
            rustix::fs::open(path, flags, Mode::empty()).ok()
        }
        opened => opened?.ok(),
    }
}

/// Whether a path is on a file system without a server, by the mount points alone.
fn is_local(path: &Path) -> bool {
    let mounts = mounts().unwrap_or_default();
    let holding = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    holding.max_by_key(|mount| mount.point.len()).is_some_and(|it| LOCAL.contains(&&*it.fs))
}

/// The status of a file or directory.
pub fn status(path: &Path) -> Option<Statx> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE | StatxFlags::BLOCKS;
    statx(open(path)?, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_open_file_is_cached() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(7).unwrap();
        assert_eq!(status(file.path()).unwrap().stx_size, 7);
        let path = file.path().to_owned();
        drop(file);
        assert!(status(&path).is_none());
    }

    /// The defect: `stat` of a path on a server that is gone never returns.
    #[test]
    fn a_path_that_the_file_system_must_look_up_is_unknown() {
        // Nothing else reads it.
        let path = format!("/proc/{}/timerslack_ns", std::process::id());
        assert!(open(path.as_ref()).is_none());
        assert!(std::fs::exists(path).unwrap());
    }
}
