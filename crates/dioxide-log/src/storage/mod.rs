//! The segments of a log as a medium gives them: files of a directory, parts of a block device, or
//! memory. A storage does what it is told and decides nothing.

pub mod device;
pub mod dir;
pub mod file;
mod mark;
pub mod memory;
mod pool_dir;
pub(crate) mod set_dir;
pub(crate) mod steps;

pub use mark::Mark;

use crate::error::Result;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

/// A medium that holds the segments of one log.
pub trait Storage: Debug + Send + Sync + 'static {
    /// The name of the medium, for messages.
    fn path(&self) -> &Path;

    /// All segments, in any order. None if there is no log yet.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>>;

    /// Makes a segment of `bytes` zeros, or takes one that is not blank behind its first block. It
    /// and its name are stable on return. A fixed storage makes all its segments by the first call,
    /// and returns one of them.
    ///
    /// # Errors
    ///
    /// The medium's error. [`Error::is_no_space`](crate::Error::is_no_space) holds if there is no
    /// space.
    fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>>;

    /// The size of the segments of a new log, if the options say `bytes`.
    fn segment_bytes(&self, bytes: u64) -> u64 {
        bytes
    }

    /// Makes the first segment of a log, with this header. It and its name are stable on return.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    fn begin(&self, bytes: u64, header: &[u8]) -> Result<Arc<dyn Segment>> {
        let segment = self.create(bytes)?;
        segment.write(header, 0, true)?;
        Ok(segment)
    }

    /// The number of segments if it is fixed, so that a log makes and removes none. Also before
    /// there is a log.
    fn fixed_count(&self) -> Option<usize> {
        None
    }

    /// Removes a segment that is not part of the log any more.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn remove(&self, segment: &dyn Segment) -> Result<()>;

    /// Shows readers of other processes how far the log is stable. A failure is no failure of the
    /// log: there is no mark then, and readers wait.
    fn publish(&self, _mark: Mark) {}

    /// The mark that was [published](Self::publish) last. None if there is none, or if it is being
    /// written.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn mark(&self) -> Result<Option<Mark>> {
        Ok(None)
    }

    /// The writer has closed the log, so another may open it. Readers may still read.
    fn release(&self) {}
}

/// A segment of fixed size. Calls of several threads may overlap.
pub trait Segment: Debug + Send + Sync {
    /// The name of the segment, for messages.
    fn path(&self) -> &Path;

    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// The writer is about to write here: opens what writing needs.
    ///
    /// # Errors
    ///
    /// The medium's error. The writer tries again later, as it has written nothing.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// Writes blocks: `data` and `offset` are aligned to 4096 bytes. With `durable` they are stable
    /// on return. Blocks that were written before without are not.
    ///
    /// A crash during the write leaves each sector of 512 bytes with its old or its new content.
    ///
    /// # Errors
    ///
    /// The medium's error. Any part may be written then.
    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()>;

    /// Makes everything stable that was written to this segment.
    ///
    /// # Errors
    ///
    /// The medium's error. The segment is not written afterwards.
    ///
    /// After a failure each call for a segment of the storage must fail, also one that runs beside
    /// it. Kernels report a lost write once: a plain `fdatasync` may succeed after a failure.
    fn sync(&self) -> Result<()>;

    /// Fills `into` with the bytes at `offset`, within the segment.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn read(&self, into: &mut [u8], offset: u64) -> Result<()>;

    /// A reader has left this segment: it may release what reading needs.
    fn was_read(&self) {}

    /// The writer will not write to this segment for a while: it may release what writing needs.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn rest(&self) -> Result<()> {
        Ok(())
    }
}
