//! The backend of plain system calls on one descriptor.

use super::ring::RingFile;
use super::{Backend, EXTENTS_PER_LOOK, Exclusion, Job, Places, Stamp, Stamps};
use crate::buffer::Segment;
use crate::rules::marker;
use crate::rules::recovery::Extent;
use crate::sync::{self, JoinHandle};
use crate::sys;
use crate::sys::lease::{Lease, Refused};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};
use smallvec::{SmallVec, smallvec};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

/// A regular file or block device, open with O_DIRECT. All threads read the descriptor: it is
/// padded against false sharing.
#[derive(Debug)]
#[repr(align(128))]
pub struct Syscall {
    fd: OwnedFd,
    /// The description is O_DSYNC or O_SYNC. That cannot change.
    flushes_each_write: bool,
    /// The caller holds a write lease on this description until after the file is closed.
    leased: bool,
    ring_gains: RingGains,
}

/// Whether a ring is faster than calls. The first ring that asks looks at the device. Without a
/// lock, which the child of a fork may find held forever.
#[derive(Debug, Default)]
struct RingGains(AtomicU8);

impl RingGains {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;

    fn get(&self, fd: BorrowedFd<'_>) -> bool {
        match self.0.load(Ordering::Relaxed) {
            Self::UNKNOWN => {
                // io_uring would pass each request to a worker thread, only for a copy in memory.
                let gains = !sys::probe::is_in_memory(fd);
                self.0.store(if gains { Self::YES } else { Self::NO }, Ordering::Relaxed);
                gains
            }
            known => known == Self::YES,
        }
    }
}

impl Syscall {
    pub fn new(fd: OwnedFd) -> Self {
        let flags = rustix::fs::fcntl_getfl(&fd);
        let flushes_each_write = flags.is_ok_and(|flags| flags.contains(OFlags::DSYNC));
        Self { fd, flushes_each_write, leased: false, ring_gains: RingGains::default() }
    }

    /// Wraps a copy of a descriptor whose owner holds a write lease on it: no other program has the
    /// file open.
    pub fn with_lease_of_caller(fd: OwnedFd) -> Self {
        Self { leased: true, ..Self::new(fd) }
    }

    /// Whether it wraps a copy of a descriptor with a lease, as under the preload library.
    pub fn has_lease_of_caller(&self) -> bool {
        self.leased
    }

    /// Checks the caller's lease. A process that was stopped longer than the lease-break time has
    /// lost it, and another program may have written since.
    fn check_callers_lease(&self) -> io::Result<()> {
        match self.leased && !sys::callers_lease::is_held(self.fd.as_fd()) {
            true => Err(io::Error::from_raw_os_error(libc::EBUSY)),
            false => Ok(()),
        }
    }
}

impl AsFd for Syscall {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Backend for Syscall {
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64> {
        sys::write(self.fd.as_fd(), segments, offset, dsync)
    }

    fn flushes_each_write(&self) -> bool {
        self.flushes_each_write
    }

    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64> {
        sys::read(self.fd.as_fd(), into, offset)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(sys::flush(self.fd.as_fd())?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    fn write_back(&self) -> io::Result<()> {
        sys::write_back(self.fd.as_fd())
    }

    fn physical_size(&self) -> io::Result<u64> {
        sys::size(self.fd.as_fd())
    }

    fn allocate(&self, start: u64, end: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), start, end - start)?)
    }

    fn write_zeroes(&self, start: u64, end: u64) -> io::Result<()> {
        // FALLOC_FL_WRITE_ZEROES (Linux 6.17); rustix has no name for it yet.
        let flags = FallocateFlags::from_bits_retain(0x80);
        Ok(rustix::fs::fallocate(&self.fd, flags, start, end - start)?)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.check_callers_lease()?;
        Ok(rustix::fs::ftruncate(&self.fd, len)?)
    }

    fn extents(&self, from: u64) -> io::Result<Vec<Extent>> {
        sys::fiemap::extents(self.fd.as_fd(), from)
    }

    fn places(&self, range: Range<u64>) -> io::Result<Places> {
        let (end, found) = sys::fiemap::places::<EXTENTS_PER_LOOK>(self.fd.as_fd(), range)?;
        Ok(Places { end, found })
    }

    fn punch_hole(&self, start: u64, end: u64) -> io::Result<()> {
        self.check_callers_lease()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.fd, flags, start, end - start)?)
    }

    fn exclude_others(&self) -> io::Result<Exclusion<'_>> {
        if self.leased {
            return Ok(match sys::callers_lease::is_held(self.fd.as_fd()) {
                true => Exclusion::Held(SmallVec::new()),
                false => Exclusion::Refused("another program".into()),
            });
        }
        Ok(match Lease::take(self.fd.as_fd()) {
            Ok(lease) => Exclusion::Held(smallvec![lease]),
            // A reader does no harm, and another descriptor of this process is up to the program.
            Err(Refused::OtherOpener) => match sys::openers::writer_elsewhere(self.fd.as_fd()) {
                Some(who) => Exclusion::Refused(who),
                None => Exclusion::Unknown,
            },
            Err(Refused::Unavailable) => Exclusion::Unknown,
        })
    }

    fn stamps(&self) -> io::Result<Stamps> {
        let stat = rustix::fs::fstat(&self.fd)?;
        let modified = (stat.st_mtime, stat.st_mtime_nsec);
        let changed = (stat.st_ctime, stat.st_ctime_nsec);
        Ok(smallvec![Stamp { size: stat.st_size as u64, modified, changed }])
    }

    fn read_marker(&self) -> io::Result<Option<Vec<u8>>> {
        sys::read_xattr(self.fd.as_fd(), marker::NAME)
    }

    fn write_marker(&self, bytes: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(&self.fd, marker::NAME, bytes, XattrFlags::empty())?)
    }

    fn remove_marker(&self) -> io::Result<()> {
        match rustix::fs::fremovexattr(&self.fd, marker::NAME) {
            Err(rustix::io::Errno::NODATA) => Ok(()),
            other => Ok(other?),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let fs = rustix::fs::fstatvfs(&self.fd)?;
        Ok(fs.f_bavail * fs.f_frsize)
    }

    fn size_max(&self) -> u64 {
        rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX)
    }

    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>> {
        sync::spawn("dioxide-grow", job).map(Some)
    }

    fn unlock(&self) {
        sys::unlock(self.fd.as_fd());
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn ring_files(&self) -> SmallVec<[RingFile<'_>; 1]> {
        let gains = self.ring_gains.get(self.fd.as_fd());
        gains.then(|| RingFile::Descriptor(self.descriptor())).into_iter().collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A queue attaches a read-only file anew for each read, and each looked through /sys.
    #[test]
    fn a_ring_looked_at_the_device_with_each_read() {
        let file = tempfile::tempfile().expect("a file");
        let backend = Syscall::new(file.into());
        assert_eq!(backend.ring_gains.0.load(Ordering::Relaxed), RingGains::UNKNOWN);
        let found = backend.ring_files().len();
        let other = if found == 1 { RingGains::NO } else { RingGains::YES };
        backend.ring_gains.0.store(other, Ordering::Relaxed);
        assert_eq!(backend.ring_files().len(), 1 - found, "the first look is kept");
    }
}
