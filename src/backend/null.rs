//! The backend of a file without data, on a device that takes no time. It leaves the time of the
//! program and of the engine. No call takes a lock.

use super::{Backend, Job};
use crate::buffer::Segment;
use crate::rules::recovery::Extent;
use crate::sync::{self, JoinHandle};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An open file; clones are the same file. It has only a size: reads below it leave the memory as
/// it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Null {
    size: Arc<AtomicU64>,
}

impl Null {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Most writes leave the size as it is. They then write no shared cache line.
    fn extend(&self, end: u64) {
        if end > self.size() {
            self.size.fetch_max(end, Ordering::Relaxed);
        }
    }

    fn readable(&self, len: u64, offset: u64) -> u64 {
        len.min(self.size().saturating_sub(offset))
    }
}

impl Backend for Null {
    fn write(&self, segments: &[Segment], offset: u64, _dsync: bool) -> io::Result<u64> {
        let len = segments.iter().map(Segment::len).sum();
        self.extend(offset + len);
        Ok(len)
    }

    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64> {
        Ok(self.readable(into.iter().map(Segment::len).sum(), offset))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn physical_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }

    fn allocate(&self, _start: u64, end: u64) -> io::Result<()> {
        self.extend(end);
        Ok(())
    }

    fn write_zeroes(&self, _start: u64, end: u64) -> io::Result<()> {
        self.extend(end);
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.size.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn extents(&self, _from: u64) -> io::Result<Vec<Extent>> {
        Ok(Vec::new())
    }

    fn read_marker(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn write_marker(&self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn remove_marker(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX >> 1)
    }

    fn size_max(&self) -> u64 {
        u64::MAX
    }

    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>> {
        sync::spawn("dioxide-grow", job).map(Some)
    }

    fn unlock(&self) {}

    fn descriptor(&self) -> BorrowedFd<'_> {
        descriptor()
    }
}

/// A descriptor for files that the system does not know.
pub(super) fn descriptor() -> BorrowedFd<'static> {
    static NOTHING: OnceLock<OwnedFd> = OnceLock::new();
    let open = || rustix::fs::open("/dev/null", OFlags::CLOEXEC, rustix::fs::Mode::empty());
    NOTHING.get_or_init(|| open().expect("/dev/null is always there")).as_fd()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    #[test]
    fn a_file_has_a_size_and_nothing_else() {
        let file = Null::default();
        let data = Buffer::from(&[7; 4096][..]);
        assert_eq!(
            file.write(&[Segment::of(&data), Segment::of(&data)], 4096, true).unwrap(),
            8192
        );
        assert_eq!(file.clone().physical_size().unwrap(), 12288);
        file.write(&[Segment::of(&data)], 0, false).unwrap();
        file.allocate(0, 4096).unwrap();
        assert_eq!(file.physical_size().unwrap(), 12288, "nothing shrinks");
        let mut into = data.clone();
        assert_eq!(file.read(&[Segment::of_mut(&mut into)], 8192).unwrap(), 4096);
        assert_eq!(file.read(&[Segment::of_mut(&mut into)], 10240).unwrap(), 2048);
        assert_eq!(into[..], data[..]);
        file.truncate(100).unwrap();
        assert_eq!(
            (
                file.read(&[Segment::of_mut(&mut into)], 4096).unwrap(),
                file.physical_size().unwrap()
            ),
            (0, 100)
        );
        file.write_zeroes(100, 8192).unwrap();
        assert_eq!(file.physical_size().unwrap(), 8192);
    }
}
