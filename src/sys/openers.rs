//! Which other processes have a file open for writing, as /proc shows it to this user.

use rustix::fs::{AtFlags, StatxFlags};
use std::fs;
use std::os::fd::BorrowedFd;

const KCMP_FILE: libc::c_int = 0;

/// Names another process that has the file of `fd` open for writing. `None` if there is none, or none that this user
/// may see.
pub(crate) fn writer_elsewhere(fd: BorrowedFd<'_>) -> Option<String> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let file = (stat.st_dev, stat.st_ino);
    let own = std::process::id();
    let ours = descriptors_of(own, file);
    // A child inherits copies of our descriptors, until it executes a program.
    let is_ours = |pid, number| ours.iter().any(|our| is_same_description(own, *our, pid, number));
    let writes = |pid| {
        let mut theirs = descriptors_of(pid, file).into_iter();
        theirs.any(|number| is_writable(pid, number) && !is_ours(pid, number))
    };
    let mut others = numbers_in("/proc").filter(|pid| *pid != own);
    others.find(|pid| writes(*pid)).map(name)
}

fn numbers_in(dir: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The descriptors by which a process has the file open. The link and the number of the inode come first: to ask a file
/// system that answers no more would wait for ever.
fn descriptors_of(pid: u32, file: (u64, u64)) -> Vec<u32> {
    let leads_there = |number: &u32| {
        let path = format!("/proc/{pid}/fd/{number}");
        let is_file = fs::read_link(&path).is_ok_and(|target| target.has_root());
        is_file && inode_of(pid, *number).is_none_or(|inode| inode == file.1) && identity(&path) == Some(file)
    };
    numbers_in(&format!("/proc/{pid}/fd")).filter(leads_there).collect()
}

/// The number of the inode, from Linux 5.14 on.
fn inode_of(pid: u32, number: u32) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
    info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok())
}

/// What the kernel knows without asking a server.
fn identity(path: &str) -> Option<(u64, u64)> {
    let found = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

fn is_writable(pid: u32, number: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags =
        info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| {
        flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
    })
}

/// Also where that cannot be asked (a sandbox without kcmp): a child of ours must not count as another writer.
fn is_same_description(own: u32, our: u32, pid: u32, number: u32) -> bool {
    // SAFETY: kcmp compares two descriptors of two processes, and touches no memory.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, own, pid, KCMP_FILE, our, number) };
    let refused =
        || matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
    order == 0 || order < 0 && refused()
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("process {pid}"),
        name => format!("process {pid} ({})", name.escape_debug()),
    }
}
