//! Which other processes have a file open for writing, as /proc shows it to this user.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const KCMP_FILE: libc::c_int = 0;

/// Names another process that has the file of `fd` open for writing. `None` if there is none, or none that this user may see.
pub(crate) fn writer_elsewhere(fd: BorrowedFd<'_>) -> Option<String> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let own = std::process::id();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|pid| *pid != own && writes(*pid, (stat.st_dev, stat.st_ino), fd)).map(|pid| name(pid))
}

fn writes(pid: u32, file: (u64, u64), fd: BorrowedFd<'_>) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|entry| {
        // This follows the link to the file, and opens nothing.
        let is_it = fs::metadata(entry.path()).is_ok_and(|found| (found.dev(), found.ino()) == file);
        is_it && is_writable(pid, &entry.file_name()) && !is_ours(pid, &entry.file_name(), fd)
    })
}

fn is_writable(pid: u32, number: &std::ffi::OsStr) -> bool {
    let info = fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(number)).unwrap_or_default();
    let flags =
        info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| {
        flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
    })
}

/// Whether it is a copy of our own descriptor, which a child inherited.
fn is_ours(pid: u32, number: &std::ffi::OsStr, fd: BorrowedFd<'_>) -> bool {
    let Some(number) = number.to_str().and_then(|number| number.parse::<libc::c_int>().ok()) else {
        return false;
    };
    // SAFETY: kcmp compares two descriptors of two processes, and touches no memory.
    unsafe { libc::syscall(libc::SYS_kcmp, std::process::id(), pid, KCMP_FILE, fd.as_raw_fd(), number) == 0 }
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("process {pid}"),
        name => format!("process {pid} ({})", name.escape_debug()),
    }
}
