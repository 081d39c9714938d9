//! System calls without a safe wrapper in our dependencies: with `sync_ring`, all the `unsafe` of
//! the command line.

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Whether the process ignores a signal.
pub fn is_ignored(signal: i32) -> io::Result<bool> {
    // SAFETY: `sigaction` is plain data, for which zeros are valid. The call only reads the action.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        action
    };
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

/// A duplicate of an open descriptor of this process.
pub fn duplicate(fd: u32) -> io::Result<File> {
    // SAFETY: only for this call, which fails if it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd as i32) };
    fd.try_clone_to_owned().map(File::from)
}

/// Whether the process began with SIGPIPE ignored. The runtime of Rust ignores it before `main`.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn look_at_pipe() {
    PIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE).unwrap_or(false), Relaxed);
}

// SAFETY: the loader calls the functions of this section once, before `main`. This one needs
// nothing of the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_PIPE: extern "C" fn() = look_at_pipe;

/// Lets a program begin with SIGPIPE as this process did. `exec` sets the default action.
pub fn pass_on_pipe(command: &mut Command) {
    if !PIPE_WAS_IGNORED.load(Relaxed) {
        return;
    }
    let ignore = || {
        // SAFETY: the action is valid for the signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: `signal` is async-signal-safe.
    unsafe { command.pre_exec(ignore) };
}

/// `struct fiemap` of linux/fiemap.h without room for extents: only counts them.
#[repr(C)]
#[derive(Default)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

/// FS_IOC_FIEMAP
const FIEMAP: Opcode = opcode::read_write::<Fiemap>(b'f', 11);

/// The number of extents of the file.
pub fn count_extents(file: &File) -> io::Result<u64> {
    let mut request = Fiemap { length: u64::MAX, ..Fiemap::default() };
    // SAFETY: `Fiemap` has the layout of the kernel's structure. With room for no extents the
    // kernel writes nothing after it.
    unsafe { ioctl(file, Updater::<FIEMAP, Fiemap>::new(&mut request)) }?;
    Ok(request.mapped_extents.into())
}

/// FIEMAP_EXTENT_UNWRITTEN: allocated, and reads as zeros.
pub const EXTENT_UNWRITTEN: u32 = 0x800;

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

const EXTENTS_MAX: usize = 32;

/// `struct fiemap` followed by room for some extents.
#[repr(C)]
#[derive(Default)]
struct FiemapWithRoom {
    head: Fiemap,
    extents: [FiemapExtent; EXTENTS_MAX],
}

/// The flags of the first extents of the file.
pub fn extent_flags(file: &File) -> rustix::io::Result<Vec<u32>> {
    let head = Fiemap { length: u64::MAX, extent_count: EXTENTS_MAX as u32, ..Fiemap::default() };
    let mut request = FiemapWithRoom { head, ..FiemapWithRoom::default() };
    // SAFETY: both structures have the kernel's layout. It writes at most `extent_count` extents
    // after the head.
    unsafe { ioctl(file, Updater::<FIEMAP, FiemapWithRoom>::new(&mut request)) }?;
    let found = (request.head.mapped_extents as usize).min(EXTENTS_MAX);
    Ok(request.extents[..found].iter().map(|extent| extent.flags).collect())
}

/// `struct cachestat` of linux/mman.h, in pages.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The number of cached pages of the file (Linux 6.5).
pub fn pages_in_cache(file: &File) -> io::Result<u64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    // `struct cachestat_range`: offset and length, where 0 means all.
    let range = [0u64; 2];
    let mut answer = CacheStat::default();
    // SAFETY: range and answer have the layout of the kernel's structures, and outlive the call.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), &raw mut answer, 0)
    };
    if result == 0 { Ok(answer.cached) } else { Err(io::Error::last_os_error()) }
}

/// Writes back all dirty pages of the file and waits. Makes nothing durable.
pub fn sync_file_range(file: &File) -> rustix::io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it takes numbers only.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(rustix::io::Errno::from_io_error(&io::Error::last_os_error())
            .unwrap_or(rustix::io::Errno::IO))
    }
}

/// CPU time of the process, all threads together.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

/// CPU time so far. /proc/self/stat has it only in steps of 10 ms.
pub fn cpu_time() -> CpuTime {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage`, for which there is room; all zeros is a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    CpuTime { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_has_no_extents() {
        let file = tempfile::tempfile().unwrap();
        // Not every file system supports FIEMAP (tmpfs does not).
        if let Ok(count) = count_extents(&file) {
            assert_eq!(count, 0);
        }
    }

    #[test]
    fn cpu_time_grows() {
        let before = cpu_time();
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let after = cpu_time();
        assert!(after.user + after.system > before.user + before.system);
    }
}
