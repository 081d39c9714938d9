//! Counters of a log.

use crate::batch::Batch;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters of a log since it was opened. See [`Log::stats`](crate::Log::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Records that were written.
    pub records: u64,
    /// Writes. Each is a batch of records, and one flush if appends are durable.
    pub batches: u64,
    /// Bytes of these writes.
    pub bytes: u64,
    /// The time of all writes, in nanoseconds.
    pub write_ns: u64,
    /// Flushes by [`sync`](crate::Log::sync).
    pub syncs: u64,
    /// Segments that were made.
    pub segments_created: u64,
    /// Segments that became free for reuse.
    pub segments_freed: u64,
    /// Segments in use now.
    pub segments: u64,
    /// Free segments now.
    pub free_segments: u64,
}

/// The counters that [`Stats`] shows.
#[derive(Debug, Default)]
pub struct Counters {
    records: AtomicU64,
    batches: AtomicU64,
    bytes: AtomicU64,
    write_ns: AtomicU64,
    syncs: AtomicU64,
    created: AtomicU64,
    freed: AtomicU64,
}

impl Counters {
    pub fn on_batch(&self, batch: &Batch, took: Duration, succeeded: bool) {
        if succeeded {
            self.records.fetch_add(batch.records(), Relaxed);
            self.batches.fetch_add(1, Relaxed);
            self.bytes.fetch_add(batch.end() - batch.start(), Relaxed);
            self.write_ns.fetch_add(took.as_nanos() as u64, Relaxed);
        }
    }

    pub fn on_sync(&self) {
        self.syncs.fetch_add(1, Relaxed);
    }

    pub fn on_created(&self) {
        self.created.fetch_add(1, Relaxed);
    }

    pub fn on_freed(&self) {
        self.freed.fetch_add(1, Relaxed);
    }

    pub fn stats(&self) -> Stats {
        Stats {
            records: self.records.load(Relaxed),
            batches: self.batches.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            write_ns: self.write_ns.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            segments_created: self.created.load(Relaxed),
            segments_freed: self.freed.load(Relaxed),
            ..Stats::default()
        }
    }
}
