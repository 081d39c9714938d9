//! Which other processes have a file open for writing, as /proc shows it to this user.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

const KCMP_FILE: libc::c_int = 0;

/// Names another process that has the file of `fd` open for writing. `None` if there is none, or none that this user may see.
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

/// The descriptors by which a process has the file open. This follows links of /proc to the file, and opens nothing.
fn descriptors_of(pid: u32, file: (u64, u64)) -> Vec<u32> {
    let dir = format!("/proc/{pid}/fd");
    let leads_there = |number: &u32| {
        fs::metadata(format!("{dir}/{number}")).is_ok_and(|found| (found.dev(), found.ino()) == file)
    };
    numbers_in(&dir).filter(leads_there).collect()
}

fn is_writable(pid: u32, number: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags =
        info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| {
        flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
    })
}

fn is_same_description(own: u32, our: u32, pid: u32, number: u32) -> bool {
    // SAFETY: kcmp compares two descriptors of two processes, and touches no memory.
    unsafe { libc::syscall(libc::SYS_kcmp, own, pid, KCMP_FILE, our, number) == 0 }
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("process {pid}"),
        name => format!("process {pid} ({})", name.escape_debug()),
    }
}
