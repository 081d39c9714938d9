//! Which other processes have a file open for writing, as /proc shows it to this user.

use rustix::fs::{AtFlags, StatxFlags};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

const KCMP_FILE: libc::c_int = 0;
const KCMP_FILES: libc::c_int = 2;

/// How far the parents of a process are followed.
const ANCESTORS_MAX: usize = 1000;

/// A descriptor: a thread that has it, and its number.
type Descriptor = (u32, u32);

/// Names another process that has the file of `fd` open for writing. `None` if there is none, or
/// none that this user may see.
pub(crate) fn writer_elsewhere(fd: BorrowedFd<'_>) -> Option<String> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let file = (stat.st_dev, stat.st_ino);
    let own = std::process::id();
    if !numbers_are_ours(fs::read_link("/proc/self").ok()?.as_path(), own) {
        return None;
    }
    let ours = descriptors_of(own, file);
    // A child inherits copies of our descriptors, until it executes a program.
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

/// Whether /proc, where `link` is what /proc/self leads to, numbers processes as this one does.
/// That of another PID namespace shows us under another number, like another program.
fn numbers_are_ours(link: &Path, own: u32) -> bool {
    link.to_str().and_then(|number| number.parse().ok()) == Some(own)
}

fn numbers_in(dir: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A thread for each table of descriptors that a process has: for nearly all one. The first thread
/// has none once it has ended, while others go on.
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

/// The descriptors by which a process has the file open. The link and the number of the inode come
/// first: to ask a file system that answers no more would wait for ever.
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

/// The number of the inode, from Linux 5.14 on.
fn inode_of((thread, number): Descriptor) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}")).ok()?;
    info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok())
}

/// What the kernel knows without asking a server.
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

/// Where that cannot be asked (a sandbox without kcmp), a child of ours must not count as another
/// writer, and nothing else is taken for ours.
fn is_same_description(
    (our_thread, our): Descriptor,
    (thread, number): Descriptor,
    is_child: impl FnOnce() -> bool,
) -> bool {
    compared(our_thread, thread, KCMP_FILE, our, number).unwrap_or_else(is_child)
}

/// Threads of a process have one table, as long as nothing else can be found.
fn is_same_table(one: u32, other: u32) -> bool {
    compared(one, other, KCMP_FILES, 0, 0).unwrap_or(true)
}

/// Whether two threads have the same; nothing where that cannot be asked.
fn compared(one: u32, other: u32, kind: libc::c_int, of_one: u32, of_other: u32) -> Option<bool> {
    // SAFETY: kcmp compares what two threads have, and touches no memory.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, kind, of_one, of_other) };
    let refused = || {
        matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
    };
    if order < 0 && refused() { None } else { Some(order == 0) }
}

/// Whether a process comes from another one by forks. One whose parents have ended does not show
/// it.
fn is_descendant(pid: u32, of: u32) -> bool {
    let parent = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    // Numbers may be given again meanwhile, so the chain is not believed to end.
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
