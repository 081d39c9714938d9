//! The other processes that have a file open for writing, as /proc shows them to this user.

use rustix::fs::{AtFlags, StatxFlags};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

const KCMP_FILE: libc::c_int = 0;
const KCMP_FILES: libc::c_int = 2;

/// The limit for the chain of parent processes.
const ANCESTORS_MAX: usize = 1000;

/// A descriptor: a thread that has it, and its number.
type Descriptor = (u32, u32);

/// Names another process that has the file of `fd` open for writing. `None` if this user can see
/// none.
pub(crate) fn writer_elsewhere(fd: BorrowedFd<'_>) -> Option<String> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let file = (stat.st_dev, stat.st_ino);
    let own = std::process::id();
    if !numbers_are_ours(fs::read_link("/proc/self").ok()?.as_path(), own) {
        return None;
    }
    let ours = descriptors_of(own, file);
    // A child inherits copies of our descriptors until its exec.
    let is_ours = |pid, theirs| {
        ours.iter().any(|our| is_same_description(*our, theirs, || is_descendant(pid, own)))
    };
    let writes = |pid| {
        let mut theirs = descriptors_of(pid, file).into_iter();
        theirs.any(|descriptor| is_writable(descriptor) && !is_ours(pid, descriptor))
    };
    let mut others = numbers_in("/proc").filter(|pid| *pid != own);
    others.find(|pid| writes(*pid)).map(name)
}

/// Returns whether /proc uses the process ids of this PID namespace. `link` is the target of
/// /proc/self. The /proc of another namespace shows this process under another id, like another
/// program.
fn numbers_are_ours(link: &Path, own: u32) -> bool {
    link.to_str().and_then(|number| number.parse().ok()) == Some(own)
}

fn numbers_in(dir: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns a thread for each descriptor table of a process: nearly always one. A first thread that
/// has ended has none, while others go on.
fn tables_of(pid: u32) -> Vec<u32> {
    let mut tables: Vec<u32> = Vec::new();
    for thread in numbers_in(&format!("/proc/{pid}/task")) {
        let has_any = || numbers_in(&format!("/proc/{thread}/fd")).next().is_some();
        if !tables.iter().any(|known| is_same_table(*known, thread)) && has_any() {
            tables.push(thread);
        }
    }
    tables
}

/// Returns the descriptors by which a process has the file open. It compares the link and the inode
/// number first: stat on a file system that no longer responds would block forever.
fn descriptors_of(pid: u32, file: (u64, u64)) -> Vec<Descriptor> {
    let leads_there = |(thread, number): &Descriptor| {
        let path = format!("/proc/{thread}/fd/{number}");
        let is_file = fs::read_link(&path).is_ok_and(|target| target.has_root());
        is_file
            && inode_of((*thread, *number)).is_none_or(|inode| inode == file.1)
            && identity(&path) == Some(file)
    };
    let tables = tables_of(pid).into_iter();
    let all = tables.flat_map(|thread| {
        numbers_in(&format!("/proc/{thread}/fd")).map(move |number| (thread, number))
    });
    all.filter(leads_there).collect()
}

/// The inode number, since Linux 5.14.
fn inode_of((thread, number): Descriptor) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}")).ok()?;
    info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok())
}

/// Device and inode numbers that the kernel has without a request to a server.
fn identity(path: &str) -> Option<(u64, u64)> {
    let found =
        rustix::fs::statx(rustix::fs::CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

fn is_writable((thread, number): Descriptor) -> bool {
    let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}")).unwrap_or_default();
    let flags = info
        .lines()
        .find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| {
        flags & libc::O_PATH == 0
            && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
    })
}

/// Without kcmp (a sandbox), a child of ours must not count as another writer, and all others must
/// count.
fn is_same_description(
    (our_thread, our): Descriptor,
    (thread, number): Descriptor,
    is_child: impl FnOnce() -> bool,
) -> bool {
    compared(our_thread, thread, KCMP_FILE, our, number).unwrap_or_else(is_child)
}

/// Without kcmp, all threads of a process count as one table.
fn is_same_table(one: u32, other: u32) -> bool {
    compared(one, other, KCMP_FILES, 0, 0).unwrap_or(true)
}

/// Compares a resource of two threads with kcmp; `None` where a sandbox forbids it.
fn compared(one: u32, other: u32, kind: libc::c_int, of_one: u32, of_other: u32) -> Option<bool> {
    // SAFETY: kcmp compares resources of two threads, and touches no memory.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, kind, of_one, of_other) };
    let refused = || {
        matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
    };
    if order < 0 && refused() { None } else { Some(order == 0) }
}

/// Returns whether a process descends from another one by forks. The chain breaks at a parent that
/// has ended.
fn is_descendant(pid: u32, of: u32) -> bool {
    let parent = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    // Process ids may be reused meanwhile, so the chain may have a cycle.
    std::iter::successors(parent(&pid), parent).take(ANCESTORS_MAX).any(|ancestor| ancestor == of)
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("process {pid}"),
        name => format!("process {pid} ({})", name.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proc_of_another_pid_namespace_is_not_believed() {
        assert!(numbers_are_ours(Path::new("77"), 77));
        assert!(!numbers_are_ours(Path::new("78"), 77));
        assert!(!numbers_are_ours(Path::new(""), 77), "no process of ours is there");
    }

    #[test]
    fn only_children_count_as_ours_where_descriptions_cannot_be_compared() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("it starts");
        assert!(is_descendant(child.id(), own));
        assert!(!is_descendant(own, child.id()) && !is_descendant(1, own));
        assert!(!is_descendant(std::os::unix::process::parent_id(), own));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    #[test]
    fn threads_of_a_process_have_one_table() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv().is_ok());
        assert_eq!(tables_of(std::process::id()).len(), 1);
        drop(end);
        thread.join().expect("no panic");
    }
}
