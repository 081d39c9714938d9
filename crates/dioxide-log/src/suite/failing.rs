//! A storage whose calls fail from a moment on, as those of a process that is killed.

use crate::error::{Error, Result};
use crate::storage::{Mark, Segment, Storage};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The calls that still work: writes, flushes, and those that make segments.
#[derive(Clone, Debug)]
pub struct Left(Arc<AtomicU64>);

/// What happens to a call.
#[derive(PartialEq, Eq)]
enum StorageFate {
    Works,
    /// The process ends in this call.
    Ends,
    Ended,
}

impl Left {
    pub fn new(calls: u64) -> Self {
        Self(Arc::new(AtomicU64::new(calls)))
    }

    /// No call works any more.
    pub fn end(&self) {
        self.0.store(0, Relaxed);
    }

    fn fate(&self) -> StorageFate {
        let before = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        match before {
            Err(_) => StorageFate::Ended,
            Ok(1) => StorageFate::Ends,
            Ok(_) => StorageFate::Works,
        }
    }
}

fn ended(path: &Path) -> Error {
    Error::system("use", path, io::Error::other("the process has ended"))
}

#[derive(Debug)]
pub struct Failing {
    pub inner: Arc<dyn Storage>,
    pub left: Left,
}

impl Failing {
    fn segment(&self, inner: Arc<dyn Segment>) -> Arc<dyn Segment> {
        Arc::new(FailingSegment { inner, left: self.left.clone() })
    }
}

impl Storage for Failing {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        let segments = self.inner.segments()?;
        Ok(segments.into_iter().map(|segment| self.segment(segment)).collect())
    }

    fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>> {
        match self.left.fate() {
            StorageFate::Works => Ok(self.segment(self.inner.create(bytes)?)),
            StorageFate::Ends | StorageFate::Ended => Err(ended(self.path())),
        }
    }

    fn segment_bytes(&self, bytes: u64) -> u64 {
        self.inner.segment_bytes(bytes)
    }

    fn begin(&self, bytes: u64, header: &[u8]) -> Result<Arc<dyn Segment>> {
        match self.left.fate() {
            StorageFate::Works => Ok(self.segment(self.inner.begin(bytes, header)?)),
            StorageFate::Ends | StorageFate::Ended => Err(ended(self.path())),
        }
    }

    fn fixed_count(&self) -> Option<usize> {
        self.inner.fixed_count()
    }

    fn remove(&self, segment: &dyn Segment) -> Result<()> {
        match self.left.fate() {
            StorageFate::Works => self.inner.remove(segment),
            StorageFate::Ends | StorageFate::Ended => Err(ended(self.path())),
        }
    }

    fn publish(&self, mark: Mark) {
        self.inner.publish(mark);
    }

    fn mark(&self) -> Result<Option<Mark>> {
        self.inner.mark()
    }

    fn release(&self) {
        self.inner.release();
    }
}

#[derive(Debug)]
struct FailingSegment {
    inner: Arc<dyn Segment>,
    left: Left,
}

impl Segment for FailingSegment {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        match self.left.fate() {
            StorageFate::Works => self.inner.write(data, offset, durable),
            StorageFate::Ends => {
                // The power may fail before the write is stable.
                self.inner.write(data, offset, false)?;
                Err(ended(self.path()))
            }
            StorageFate::Ended => Err(ended(self.path())),
        }
    }

    fn sync(&self) -> Result<()> {
        match self.left.fate() {
            StorageFate::Works => self.inner.sync(),
            StorageFate::Ends | StorageFate::Ended => Err(ended(self.path())),
        }
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read(into, offset)
    }

    fn prepare(&self) -> Result<()> {
        self.inner.prepare()
    }

    fn was_read(&self) {
        self.inner.was_read();
    }

    fn rest(&self) -> Result<()> {
        self.inner.rest()
    }
}
