//! Paths that the kernel has in its cache, as that of an open file. Nothing here sends a request to
//! a file system, whose server may not answer.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statx};
use rustix::io::Errno;
use std::path::Path;

/// A change beside the walk of a path ends it.
const TRIES: usize = 8;

/// A descriptor without access (O_PATH). None if the kernel would have to ask the file system.
pub fn open(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let open = || match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        // Before Linux 5.12, or in a sandbox that predates it: this may wait.
        Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
            rustix::fs::open(path, flags, Mode::empty())
        }
        result => result,
    };
    (0..TRIES).map(|_| open()).find(|result| !matches!(result, Err(Errno::AGAIN)))?.ok()
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
        // No other test reads it.
        let path = format!("/proc/{}/oom_score_adj", std::process::id());
        assert!(open(path.as_ref()).is_none());
        assert!(std::fs::exists(path).unwrap());
    }
}
