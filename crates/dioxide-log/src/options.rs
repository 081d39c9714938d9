//! The options of a log.

use crate::batch::Purpose;
use crate::error::{Error, Result};
use crate::format::{Content, is_segment_size};
use crate::storage::Storage;
use dioxide::Durability;
use dioxide::text::shown;
use std::time::Duration;

/// The fewest segments of a log of streams: the last one, two in reserve, and some to collect.
const STREAMS_SEGMENTS_MIN: usize = 5;

/// Options for [`Log::open`](crate::Log::open).
///
/// ```no_run
/// use dioxide_log::LogOptions;
///
/// let log = LogOptions::new().segment_bytes(64 << 20).open("records")?;
/// log.append(b"a record")?;
/// # Ok::<(), dioxide_log::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LogOptions {
    pub(crate) create: bool,
    pub(crate) durability: Durability,
    pub(crate) segment_bytes: u64,
    pub(crate) spare_segments: usize,
    pub(crate) batch_bytes: u64,
    pub(crate) retain_bytes: Option<u64>,
    pub(crate) retain_age: Option<Duration>,
    pub(crate) read_unsynced: bool,
    pub(crate) content: Content,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl LogOptions {
    /// Creates the log if it is missing, with durable appends and segments of 16 MiB.
    pub fn new() -> Self {
        Self {
            create: true,
            durability: Durability::EveryWrite,
            segment_bytes: 16 << 20,
            spare_segments: 4,
            batch_bytes: 1 << 20,
            retain_bytes: None,
            retain_age: None,
            read_unsynced: false,
            content: Content::Records,
        }
    }

    /// Sets whether a missing log is created. True by default.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets when a record is acknowledged. With [`Durability::EveryWrite`], the default, it is
    /// stable then. With [`Durability::OnSync`] it is written, and the next
    /// [`sync`](crate::Log::sync) makes it stable.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the size of the segments of a new log, in bytes: a power of two from 64 KiB to 1 GiB.
    /// 16 MiB by default. A log keeps the size that it was created with.
    ///
    /// The log frees its space by whole segments. The largest record is 8 KiB and 24 bytes smaller
    /// than a segment.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Sets how many free segments are kept for reuse, by a log or by all logs of a set together. 4
    /// by default. Those that a log needs soon are kept as well, and more are removed.
    pub fn spare_segments(mut self, count: usize) -> Self {
        self.spare_segments = count;
        self
    }

    /// Sets how many bytes of records one write gathers at most. 1 MiB by default. A longer record
    /// is one write.
    pub fn batch_bytes(mut self, bytes: u64) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// Sets the size of the log from which the oldest segments are freed, in bytes of segments.
    /// Unlimited by default. The last segment always stays.
    pub fn retain_bytes(mut self, bytes: u64) -> Self {
        self.retain_bytes = Some(bytes);
        self
    }

    /// Sets the age from which segments are freed: a segment is freed when all its records are
    /// older. Unlimited by default.
    pub fn retain_age(mut self, age: Duration) -> Self {
        self.retain_age = Some(age);
        self
    }

    /// Sets whether readers of this process see records that are written and not yet stable. False
    /// by default. It makes a difference only with [`Durability::OnSync`]. Not for streams.
    pub fn read_unsynced(mut self, read: bool) -> Self {
        self.read_unsynced = read;
        self
    }

    /// How many free segments frames of this purpose leave to others. In a log of streams, bounds
    /// have a segment that records do not use, and copies have one that only they use. So a full
    /// log can be truncated, and its oldest segment fits where the copies go.
    pub(crate) fn left_by(&self, purpose: Purpose) -> usize {
        match (self.content, purpose) {
            (Content::Streams, Purpose::Records) => 2,
            (Content::Streams, Purpose::Bounds) => 1,
            _ => 0,
        }
    }

    /// Fails if the medium has no room for more than the reserve.
    pub(crate) fn check_room(&self, storage: &dyn Storage) -> Result<()> {
        let Some(count) = storage.fixed_count() else { return Ok(()) };
        match self.content == Content::Streams && count < STREAMS_SEGMENTS_MIN {
            true => Err(Error::Options(format!(
                "{}: {count} segments; streams need {STREAMS_SEGMENTS_MIN}, so make the segments \
                 smaller",
                shown(storage.path())
            ))),
            false => Ok(()),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !is_segment_size(self.segment_bytes) {
            let bytes = self.segment_bytes;
            return Err(Error::Options(format!(
                "a segment of {bytes} bytes; use a power of two from 64 KiB to 1 GiB"
            )));
        }
        Ok(())
    }
}
