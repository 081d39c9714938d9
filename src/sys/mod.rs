//! System calls that no crate wraps as needed here. All unsafe code of the blocking path is here.

pub(crate) mod access;
pub(crate) mod callers_lease;
pub(crate) mod fiemap;
pub(crate) mod journal;
pub(crate) mod lease;
pub(crate) mod openers;
pub(crate) mod probe;
pub(crate) mod process;

use crate::buffer::Segment;
use crate::os_error;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Opens `path`, with a descriptor number of `descriptor_min` or more.
pub(crate) fn open(
    path: &Path,
    flags: OFlags,
    mode: Mode,
    descriptor_min: u32,
) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::fs::open(path, flags, mode)?;
    let descriptor_min = RawFd::try_from(descriptor_min).map_err(|_| Errno::MFILE)?;
    if fd.as_raw_fd() >= descriptor_min {
        return Ok(fd);
    }
    // The kernel returns EINVAL for numbers above the limit of this process.
    rustix::io::fcntl_dupfd_cloexec(&fd, descriptor_min).map_err(|errno| match errno {
        Errno::INVAL => Errno::MFILE,
        other => other,
    })
}

/// Writes segments in order, durably if `dsync`. May be short. Where RWF_DSYNC is missing (a
/// sandbox without pwritev2, a kernel before 4.7) an fdatasync follows each write. The first
/// failure is remembered.
pub(crate) fn write(
    fd: BorrowedFd<'_>,
    segments: &[Segment],
    offset: u64,
    dsync: bool,
) -> io::Result<u64> {
    static NO_DSYNC: AtomicBool = AtomicBool::new(false);
    let iovecs = Segment::as_iovecs(segments);
    if dsync && !NO_DSYNC.load(Ordering::Relaxed) {
        // SAFETY: the iovecs point to bytes that their owners keep in place until the operation
        // completes (see `Segment`), which is after this call. The kernel only reads them.
        let written = unsafe {
            let count = iovecs.len() as i32;
            libc::pwritev2(fd.as_raw_fd(), iovecs.as_ptr(), count, offset as i64, libc::RWF_DSYNC)
        };
        match moved(written) {
            Err(error) if os_error::is_missing(&error) => {
                if !NO_DSYNC.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "dioxide: no durable writes by RWF_DSYNC here ({error}); fdatasync follows \
                         them"
                    );
                }
            }
            result => return result,
        }
    }
    let written = write_plainly(fd, iovecs, offset)?;
    if dsync {
        // The write succeeded, so an error is that of the flush. An interrupted flush has reported
        // nothing yet.
        rustix::io::retry_on_intr(|| flush(fd))
            .map_err(|errno| os_error::of_flush(errno.into()))?;
    }
    Ok(written)
}

fn write_plainly(fd: BorrowedFd<'_>, iovecs: &[libc::iovec], offset: u64) -> io::Result<u64> {
    // SAFETY: as in `write`.
    moved(unsafe {
        match iovecs {
            // The kernel's path for one segment is shorter.
            [one] => libc::pwrite(fd.as_raw_fd(), one.iov_base, one.iov_len, offset as i64),
            _ => libc::pwritev(fd.as_raw_fd(), iovecs.as_ptr(), iovecs.len() as i32, offset as i64),
        }
    })
}

/// Makes the data of a file durable. Uses fsync where a sandbox lacks fdatasync.
pub(crate) fn flush(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    match rustix::fs::fdatasync(fd) {
        Err(Errno::NOSYS) => rustix::fs::fsync(fd),
        result => result,
    }
}

/// Writes back what the page cache has of a file, and reports a failed writeback. Flushes nothing.
pub(crate) fn write_back(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call uses no memory of this process.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn moved(result: isize) -> io::Result<u64> {
    u64::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Reads into segments made by [`Segment::of_mut`], in order. May be short.
pub(crate) fn read(fd: BorrowedFd<'_>, into: &[Segment], offset: u64) -> io::Result<u64> {
    let iovecs = Segment::as_iovecs(into);
    // SAFETY: as in `write`; the owners gave the bytes away for writing until the operation
    // completes.
    moved(unsafe {
        match iovecs {
            [one] => libc::pread(fd.as_raw_fd(), one.iov_base, one.iov_len, offset as i64),
            _ => libc::preadv(fd.as_raw_fd(), iovecs.as_ptr(), iovecs.len() as i32, offset as i64),
        }
    })
}

/// Returns the size of a file or device. Does not move the file position, which may be the
/// program's.
pub(crate) fn size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Ok(stat.st_size as u64);
    }
    let mut bytes = 0_u64;
    // SAFETY: BLKGETSIZE64 writes one u64, which outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) } {
        0 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an extended attribute, if the file has it and the file system supports any. A sandbox that
/// refuses the call is an error: a file may have a marker that no one sees.
pub(crate) fn read_xattr(fd: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; 4096];
    match rustix::fs::fgetxattr(fd, name, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        // Longer than any marker: present, but not ours.
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(errno) => Err(errno.into()),
    }
}

/// A number that differs at the next open of a file.
pub(crate) fn epoch() -> u32 {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.subsec_nanos() ^ now.as_secs() as u32
}

/// A unique id.
pub(crate) fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut id)?;
    Ok(id)
}

/// The byte whose lock is the right to write: near the largest offset, where programs do not lock
/// data. A lock of the whole file would make a program's own POSIX locks fail.
const LOCK_BYTE: i64 = i64::MAX - 1;

/// Takes the write lock for this open file description. False if another one holds it.
pub(crate) fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    locked(fd, libc::F_WRLCK)
}

fn locked(fd: BorrowedFd<'_>, kind: i32) -> io::Result<bool> {
    match ofd_lock(fd, kind) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Takes the shared lock, which excludes writers. False if another description holds the write
/// lock.
pub(crate) fn try_lock_shared(fd: BorrowedFd<'_>) -> io::Result<bool> {
    locked(fd, libc::F_RDLCK)
}

/// Releases the lock, even if a forked child still holds copies of the descriptor.
pub(crate) fn unlock(fd: BorrowedFd<'_>) {
    if let Err(error) = ofd_lock(fd, libc::F_UNLCK) {
        log::warn!("dioxide: unlocking failed: {error}");
    }
}

fn ofd_lock(fd: BorrowedFd<'_>, kind: i32) -> io::Result<()> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: LOCK_BYTE,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads one flock structure, which outlives the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct mnt_id_req` of linux/mount.h.
#[repr(C)]
struct MountRequest {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
}

impl MountRequest {
    fn new(mount: u64, param: u64) -> Self {
        Self { size: size_of::<Self>() as u32, spare: 0, mount, param }
    }
}

/// Returns the device of the file system of the mount with this unique id (Linux 6.8).
pub(crate) fn statmount(mount: u64) -> io::Result<u64> {
    const SYS_STATMOUNT: libc::c_long = 457;
    const STATMOUNT_SB_BASIC: u64 = 1;
    let request = MountRequest::new(mount, STATMOUNT_SB_BASIC);
    // `struct statmount`: size and options, mask, then the device: major, minor.
    let mut answer = [0u64; 512];
    // SAFETY: the request has the kernel's layout. The call gets the length of the answer, and
    // alone writes it.
    let result = unsafe {
        libc::syscall(SYS_STATMOUNT, &request, answer.as_mut_ptr(), size_of_val(&answer), 0)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let device = answer[2].to_ne_bytes();
    let half = |at: usize| {
        u32::from_ne_bytes([device[at], device[at + 1], device[at + 2], device[at + 3]])
    };
    Ok(rustix::fs::makedev(half(0), half(4)))
}

/// Returns the unique ids of all mounts that this process can reach (Linux 6.8).
pub(crate) fn list_mounts() -> io::Result<Vec<u64>> {
    const SYS_LISTMOUNT: libc::c_long = 458;
    const LSMT_ROOT: u64 = u64::MAX;
    let mut all = Vec::new();
    let mut some = [0u64; 512];
    loop {
        let request = MountRequest::new(LSMT_ROOT, all.last().copied().unwrap_or(0));
        // SAFETY: as for statmount.
        let count =
            unsafe { libc::syscall(SYS_LISTMOUNT, &request, some.as_mut_ptr(), some.len(), 0) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        all.extend_from_slice(&some[..count]);
        if count < some.len() {
            return Ok(all);
        }
    }
}
