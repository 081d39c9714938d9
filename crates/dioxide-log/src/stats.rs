//! Counters of a log.

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::observe::{self, Event};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

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
    /// Segments that were made since the open, or taken from the pool of a set.
    pub segments_created: u64,
    /// Segments that became free for reuse.
    pub segments_freed: u64,
    /// Segments in use now.
    pub segments: u64,
    /// Free segments now.
    pub free_segments: u64,
}

/// The counters that [`Stats`] shows. Reports each event that it counts, and others.
#[derive(Debug, Default)]
pub struct Counters {
    log: PathBuf,
    records: AtomicU64,
    batches: AtomicU64,
    bytes: AtomicU64,
    write_ns: AtomicU64,
    syncs: AtomicU64,
    created: AtomicU64,
    freed: AtomicU64,
}

impl Counters {
    /// The counters of the log with this name.
    pub fn of(log: &Path) -> Self {
        Self { log: log.into(), ..Self::default() }
    }

    pub fn on_append(&self, records: u64, begun: Option<Instant>) {
        if let Some(begun) = begun
            && records > 0
        {
            let took = begun.elapsed();
            observe::report(&Event::Append { log: &self.log, records, took });
        }
    }

    pub fn on_batch(&self, batch: &Batch, took: Duration, result: &Result<()>) {
        let (log, error) = (&*self.log, result.as_ref().err());
        let (records, bytes) = (batch.records(), batch.write_bytes());
        if error.is_none() {
            self.records.fetch_add(records, Relaxed);
            self.batches.fetch_add(1, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
            self.write_ns.fetch_add(took.as_nanos() as u64, Relaxed);
        }
        if batch.start() == 0 {
            observe::report(&Event::Rotation { log, segment: batch.header().number });
        }
        observe::report(&Event::Batch { log, records, bytes, took, error });
    }

    pub fn on_sync(&self, took: Duration, result: &Result<()>) {
        self.syncs.fetch_add(1, Relaxed);
        let error = result.as_ref().err();
        observe::report(&Event::Sync { log: &self.log, took, error });
    }

    pub fn on_created(&self, took: Duration) {
        self.created.fetch_add(1, Relaxed);
        observe::report(&Event::SegmentCreated { log: &self.log, took });
    }

    pub fn on_freed(&self) {
        self.freed.fetch_add(1, Relaxed);
        observe::report(&Event::SegmentFreed { log: &self.log });
    }

    pub fn on_failure(&self, error: &Error) {
        observe::report(&Event::Failure { log: &self.log, error });
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

/// Counters of the free segments that the logs of a set share, since it was opened. See
/// [`LogSet::stats`](crate::LogSet::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetStats {
    /// Segments that a log took. It makes another one if there is none.
    pub segments_taken: u64,
    /// Segments that a log gave.
    pub segments_given: u64,
    /// Segments that were removed, because more were free than the options keep.
    pub segments_removed: u64,
    /// Free segments now, without those of a log.
    pub free_segments: u64,
}

/// The counters that [`SetStats`] shows.
#[derive(Debug, Default)]
pub struct PoolCounters {
    taken: AtomicU64,
    given: AtomicU64,
    removed: AtomicU64,
}

impl PoolCounters {
    pub fn on_taken(&self) {
        self.taken.fetch_add(1, Relaxed);
    }

    pub fn on_given(&self) {
        self.given.fetch_add(1, Relaxed);
    }

    pub fn on_removed(&self) {
        self.removed.fetch_add(1, Relaxed);
    }

    pub fn stats(&self) -> SetStats {
        SetStats {
            segments_taken: self.taken.load(Relaxed),
            segments_given: self.given.load(Relaxed),
            segments_removed: self.removed.load(Relaxed),
            ..SetStats::default()
        }
    }
}
