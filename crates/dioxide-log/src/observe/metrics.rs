//! The events as metrics.

use super::Event;

dioxide::metrics_of_events! {
    recovery_seconds: Histogram, Seconds, "dioxide_log_recovery_seconds", "time of a recovery";
    append_seconds: Histogram, Seconds, "dioxide_log_append_seconds",
        "from the call of an append to its acknowledgment";
    batch_seconds: Histogram, Seconds, "dioxide_log_batch_seconds", "time of the write of a batch";
    batch_records: Histogram, Count, "dioxide_log_batch_records", "records of a batch";
    batch_bytes: Histogram, Bytes, "dioxide_log_batch_bytes", "length of the write of a batch";
    sync_seconds: Histogram, Seconds, "dioxide_log_sync_seconds", "time of a flush by `sync`";
    rotations: Counter, Count, "dioxide_log_rotations_total", "segments that were begun";
    creation_seconds: Histogram, Seconds, "dioxide_log_segment_creation_seconds",
        "time in which a new segment was made";
    freed: Counter, Count, "dioxide_log_segments_freed_total",
        "segments that became free for reuse";
    failures: Counter, Count, "dioxide_log_failures_total", "logs that failed";
}

impl Metrics {
    fn record(&self, event: &Event<'_>) {
        match *event {
            Event::Recovery { took, .. } => self.recovery_seconds.record(took),
            Event::Append { took, .. } => self.append_seconds.record(took),
            Event::Batch { records, bytes, took, .. } => {
                self.batch_seconds.record(took);
                self.batch_records.record(records as f64);
                self.batch_bytes.record(bytes as f64);
            }
            Event::Sync { took, .. } => self.sync_seconds.record(took),
            Event::Rotation { .. } => self.rotations.increment(1),
            Event::SegmentCreated { took, .. } => self.creation_seconds.record(took),
            Event::SegmentFreed { .. } => self.freed.increment(1),
            Event::Failure { .. } => self.failures.increment(1),
        }
    }
}
