//! The backend of a file that keeps nothing, on a device that takes no time: what is left of a program's time is its own,
//! and the engine's. No call takes a lock.

use super::ring::{Bell, Files, Io, Ring};
use super::{Backend, Job};
use crate::buffer::Segment;
use crate::recovery::Extent;
use crate::sync::{self, JoinHandle};
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An open file; clones are the same. It has a size and nothing else: reads below it leave the memory as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Null {
    size: Arc<AtomicU64>,
}

impl Null {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Most writes move nothing, and then leave what all threads look at alone.
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

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<u64> {
        Ok(self.readable(into.len() as u64, offset))
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

    fn extents(&self) -> io::Result<Vec<Extent>> {
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

    fn null(&self) -> Option<&Null> {
        Some(self)
    }
}

/// For files that the system knows nothing of.
pub(super) fn descriptor() -> BorrowedFd<'static> {
    static NOTHING: OnceLock<OwnedFd> = OnceLock::new();
    let open = || rustix::fs::open("/dev/null", OFlags::CLOEXEC, rustix::fs::Mode::empty());
    NOTHING.get_or_init(|| open().expect("/dev/null is always there")).as_fd()
}

/// A ring on files that keep nothing. What is pushed has come back.
#[derive(Debug)]
pub(crate) struct NullRing {
    bell: Arc<Bell>,
    files: Files<Null>,
    back: VecDeque<(u64, io::Result<u64>)>,
}

impl NullRing {
    /// A ring that waits until `bell` rings, if nothing was pushed.
    pub fn new(bell: Arc<Bell>) -> Self {
        Self { bell, files: Files::default(), back: VecDeque::new() }
    }
}

impl Ring for NullRing {
    fn attach(&mut self, backend: &dyn Backend) -> Option<u32> {
        let file = backend.null()?.clone();
        Some(self.files.attach(file))
    }

    fn detach(&mut self, file: u32) {
        self.files.detach(file);
    }

    fn push(&mut self, file: u32, id: u64, io: Io) {
        let file = self.files.get(file);
        let result = match io {
            Io::Write { segments, offset, dsync } => file.write(&segments, offset, dsync),
            Io::Read { into, offset } => Ok(file.readable(into.len(), offset)),
            Io::Flush => Ok(0),
        };
        self.back.push_back((id, result));
    }

    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        if self.back.len() < wanted {
            self.bell.sleep();
        }
        Ok(())
    }

    fn next(&mut self) -> Option<(u64, io::Result<u64>)> {
        self.back.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use smallvec::smallvec;

    #[test]
    fn a_file_has_a_size_and_nothing_else() {
        let file = Null::default();
        let data = Buffer::from(&[7; 4096][..]);
        assert_eq!(file.write(&[Segment::of(&data), Segment::of(&data)], 4096, true).unwrap(), 8192);
        assert_eq!(file.clone().physical_size().unwrap(), 12288);
        file.write(&[Segment::of(&data)], 0, false).unwrap();
        file.allocate(0, 4096).unwrap();
        assert_eq!(file.physical_size().unwrap(), 12288, "nothing shrinks");
        let mut into = data.clone();
        assert_eq!(file.read(&mut into, 8192).unwrap(), 4096);
        assert_eq!(file.read(&mut into, 10240).unwrap(), 2048);
        assert_eq!(into[..], data[..]);
        file.truncate(100).unwrap();
        assert_eq!((file.read(&mut into, 4096).unwrap(), file.physical_size().unwrap()), (0, 100));
        file.write_zeroes(100, 8192).unwrap();
        assert_eq!(file.physical_size().unwrap(), 8192);
    }

    #[test]
    fn what_is_pushed_has_come_back() {
        let bell = Arc::new(Bell::default());
        let mut ring = NullRing::new(bell.clone());
        let files = [Null::default(), Null::default()];
        assert_eq!([ring.attach(&files[0]), ring.attach(&files[1])], [Some(0), Some(1)]);
        let mut data = Buffer::zeroed(4096);
        let segments = smallvec![Segment::of(&data), Segment::of(&data)];
        ring.push(1, 5, Io::Write { segments, offset: 4096, dsync: false });
        ring.push(1, 6, Io::Read { into: Segment::of_mut(&mut data), offset: 10240 });
        ring.push(0, 7, Io::Flush);
        ring.enter(3).unwrap();
        let back: Vec<_> =
            std::iter::from_fn(|| ring.next()).map(|(id, result)| (id, result.unwrap())).collect();
        assert_eq!(back, [(5, 8192), (6, 2048), (7, 0)]);
        assert_eq!(files.map(|file| file.size()), [0, 12288]);
    }

    #[test]
    fn who_waits_for_nothing_waits_for_the_bell() {
        let bell = Arc::new(Bell::default());
        let mut ring = NullRing::new(bell.clone());
        assert!(bell.may_sleep());
        let ringer = std::thread::spawn(move || bell.ring());
        ring.enter(1).unwrap();
        ringer.join().unwrap();
    }
}
