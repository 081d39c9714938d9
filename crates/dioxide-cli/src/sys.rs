//! The two kernel calls without a safe wrapper in the crates we use: all the `unsafe` of the command line.

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::fs::File;
use std::io;
use std::time::Duration;

/// `struct fiemap` of linux/fiemap.h without room for extents: asks only how many there are.
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

/// How many extents the file consists of.
pub fn count_extents(file: &File) -> io::Result<u64> {
    let mut request = Fiemap { length: u64::MAX, ..Fiemap::default() };
    // SAFETY: `Fiemap` is laid out as the kernel's structure; with room for no extents the kernel
    // writes nothing behind it.
    unsafe { ioctl(file, Updater::<FIEMAP, Fiemap>::new(&mut request)) }?;
    Ok(request.mapped_extents.into())
}

/// CPU time that the process has used, all threads together.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

/// CPU time so far. /proc/self/stat has it too, but only in steps of 10 ms.
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
        // Not every file system knows FIEMAP (tmpfs does not).
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
