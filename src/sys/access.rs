//! Checks whether the calling thread may open a file, without opening it.

use rustix::fs::{AtFlags, FileType, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// STATX_ATTR_APPEND of linux/stat.h.
const ATTRIBUTE_APPEND: u64 = 0x20;

/// Fails as open(2) would, for O_RDWR if `write`, else for O_RDONLY. `fd` may be O_PATH.
///
/// Does not check Landlock, nor the hooks of security modules that only open(2) runs.
pub(crate) fn may_open(fd: BorrowedFd<'_>, write: bool) -> rustix::io::Result<()> {
    let mode = if write { libc::R_OK | libc::W_OK } else { libc::R_OK };
    match by_credentials_in_use(fd, mode) {
        Err(Errno::NOSYS) => by_real_ids(fd, mode)?,
        // Sandboxes that do not know the call refuse it with EPERM for any mode.
        Err(Errno::PERM) if by_credentials_in_use(fd, libc::F_OK) == Err(Errno::PERM) => {
            by_real_ids(fd, mode)?
        }
        answer => answer?,
    }
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    // open(2) refuses two cases beyond permissions.
    if write && stat.stx_attributes.bits() & ATTRIBUTE_APPEND != 0 {
        return Err(Errno::PERM);
    }
    let is_device = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice;
    if is_device && rustix::fs::fstatvfs(fd)?.f_flag.contains(StatVfsMountFlags::NODEV) {
        return Err(Errno::ACCESS);
    }
    Ok(())
}

/// With AT_EACCESS the kernel uses the credentials of the thread, as open(2) does: fsuid, fsgid,
/// groups and capabilities. The manual says effective ids, which fsuid and fsgid follow unless they
/// are set. The call respects read-only mounts, idmapped mounts, and immutable files. Linux 5.8.
fn by_credentials_in_use(fd: BorrowedFd<'_>, mode: i32) -> rustix::io::Result<()> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the kernel only reads the path, which is NUL-terminated.
    let result =
        unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), mode, flags) };
    answered(result)
}

/// Fallback without that call. access(2) uses the real ids, and ignores the capabilities of all but
/// root. So its result counts only where the real ids are those in use.
fn by_real_ids(fd: BorrowedFd<'_>, mode: i32) -> rustix::io::Result<()> {
    // SAFETY: an invalid id changes nothing; the call returns the id in use.
    let in_use = unsafe { (libc::setfsuid(u32::MAX) as u32, libc::setfsgid(u32::MAX) as u32) };
    let real = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if in_use != real {
        return Err(Errno::ACCESS);
    }
    let name = format!("/proc/thread-self/fd/{}\0", fd.as_raw_fd());
    // SAFETY: as above.
    let result = unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, name.as_ptr(), mode) };
    answered(result)
}

fn answered(result: libc::c_long) -> rustix::io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::ACCESS))
    }
}
