//! The systems that `--for` names: how each writes its log durably, and which latencies it needs.
//! Values only.

use crate::units;
use std::time::Duration;

/// One system.
#[derive(Clone, Copy, Debug)]
pub struct System {
    pub name: &'static str,
    pub record_bytes: u64,
    pub sync: RecordSync,
    pub space: RecordSpace,
    pub is_direct: bool,
    /// Threads, each with a file of its own.
    pub writers: usize,
    /// The load of the same system on its data files.
    pub beside: Option<Beside>,
    /// For p99, p99.9 and the maximum of durable writes.
    pub limits: [Limit; 3],
}

/// How a record becomes durable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecordSync {
    Fdatasync,
    Fsync,
    /// The file is open with O_DSYNC.
    Dsync,
}

/// The space that records are written into.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecordSpace {
    /// Each record extends the file.
    Growing,
    /// Allocated in segments, and unwritten.
    Allocated { segment_bytes: u64 },
    /// Segments that were written before.
    Recycled { segment_bytes: u64 },
}

/// Blocks at random places of another file, written together and then synced.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub blocks: u32,
    pub block_bytes: u64,
    pub every: Duration,
}

/// A limit, and its origin.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub max: Duration,
    pub source: &'static str,
}

const fn limit(max_ms: u64, source: &'static str) -> Limit {
    Limit { max: Duration::from_millis(max_ms), source }
}

/// All of them, by name.
pub const SYSTEMS: [System; 6] = [
    System {
        name: "etcd",
        // The mean that its authors' fio recipe uses.
        record_bytes: 2300,
        sync: RecordSync::Fdatasync,
        space: RecordSpace::Allocated { segment_bytes: 64 << 20 },
        is_direct: false,
        writers: 1,
        // Its database commits a batch every 100 ms.
        beside: Some(Beside { blocks: 16, block_bytes: 4096, every: Duration::from_millis(100) }),
        limits: [
            limit(10, "etcd.io/docs/latest/faq: p99 of wal_fsync_duration_seconds below 10 ms"),
            limit(
                100,
                "chosen by dioxide: a longer write delays a heartbeat (etcd.io/docs/latest/tuning)",
            ),
            limit(
                1000,
                "chosen by dioxide: the default election timeout (etcd.io/docs/latest/tuning)",
            ),
        ],
    },
    System {
        name: "kafka",
        // The default of batch.size.
        record_bytes: 16 << 10,
        sync: RecordSync::Fsync,
        space: RecordSpace::Growing,
        is_direct: false,
        writers: 8,
        beside: None,
        limits: [
            limit(
                200,
                "netdata.cloud/guides/kafka/kafka-log-flush-latency-high: a p99 above is slow",
            ),
            limit(500, "chosen by dioxide: the same guide investigates hard disks from there on"),
            limit(2000, "chosen by dioxide: the same guide suspects failing hardware there"),
        ],
    },
    System {
        name: "jetstream",
        record_bytes: 1 << 10,
        // With `sync_interval: always`.
        sync: RecordSync::Fsync,
        space: RecordSpace::Growing,
        is_direct: false,
        writers: 4,
        beside: None,
        limits: [
            limit(20, "chosen by dioxide: NATS documents none; each publish waits that long"),
            limit(100, "chosen by dioxide: a stall that a client notices"),
            limit(1000, "chosen by dioxide: the heartbeat interval of its Raft groups"),
        ],
    },
    System {
        name: "postgres",
        // A page of the log.
        record_bytes: 8 << 10,
        sync: RecordSync::Fdatasync,
        space: RecordSpace::Recycled { segment_bytes: 16 << 20 },
        is_direct: false,
        // One process flushes at a time.
        writers: 1,
        // The checkpointer.
        beside: Some(Beside {
            blocks: 32,
            block_bytes: 8 << 10,
            every: Duration::from_millis(200),
        }),
        limits: [
            limit(10, "chosen by dioxide: PostgreSQL documents none; each commit waits that long"),
            limit(100, "chosen by dioxide: a stall that a client notices"),
            limit(1000, "chosen by dioxide: the default of deadlock_timeout"),
        ],
    },
    System {
        name: "raft",
        record_bytes: 4 << 10,
        sync: RecordSync::Dsync,
        space: RecordSpace::Allocated { segment_bytes: 64 << 20 },
        is_direct: true,
        // Several groups on one disk.
        writers: 4,
        beside: None,
        limits: [
            limit(
                20,
                "Raft paper, section 5.6: a broadcast and its durable write take up to 20 ms",
            ),
            limit(
                150,
                "chosen by dioxide: the shortest recommended election timeout of that paper",
            ),
            limit(500, "chosen by dioxide: the longest election timeout in section 5.6"),
        ],
    },
    System {
        name: "rocksdb",
        record_bytes: 1 << 10,
        // With WriteOptions::sync.
        sync: RecordSync::Fdatasync,
        space: RecordSpace::Growing,
        is_direct: false,
        // One leader writes for a group.
        writers: 1,
        // A flush of a memtable, in pieces.
        beside: Some(Beside { blocks: 8, block_bytes: 1 << 20, every: Duration::from_millis(500) }),
        limits: [
            limit(10, "chosen by dioxide: RocksDB documents none; each group waits that long"),
            limit(100, "chosen by dioxide: a stall that a client notices"),
            limit(1000, "chosen by dioxide: a stall that callers take for a failure"),
        ],
    },
];

impl System {
    /// The pattern of its writes, in a sentence.
    pub fn pattern(&self) -> String {
        let size = units::size;
        let threads = match self.writers {
            1 => "1 thread writes".to_owned(),
            writers => format!("{writers} threads, each with its file, write"),
        };
        let how = if self.is_direct { " with O_DIRECT" } else { "" };
        let space = match self.space {
            RecordSpace::Growing => "at the end of a growing file".to_owned(),
            RecordSpace::Allocated { segment_bytes } => {
                format!("into allocated segments of {}", size(segment_bytes))
            }
            RecordSpace::Recycled { segment_bytes } => {
                format!("over written segments of {}", size(segment_bytes))
            }
        };
        let sync = match self.sync {
            RecordSync::Fdatasync => "fdatasync after each",
            RecordSync::Fsync => "fsync after each",
            RecordSync::Dsync => "O_DSYNC",
        };
        let record = size(self.record_bytes);
        let beside = self.beside.map(|Beside { blocks, block_bytes, every }| {
            format!(
                " Beside that, {blocks} blocks of {} are written and synced every {} ms.",
                size(block_bytes),
                every.as_millis()
            )
        });
        format!("{threads} records of {record}{how} {space}, {sync}.{}", beside.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_rise_and_tell_their_source() {
        for system in SYSTEMS {
            let [p99, p999, max] = system.limits;
            assert!(p99.max < p999.max && p999.max < max.max, "{}", system.name);
            for limit in system.limits {
                let is_cited = limit.source.contains('/') || limit.source.contains("paper");
                assert!(is_cited || limit.source.starts_with("chosen by dioxide: "), "{limit:?}");
            }
        }
    }

    #[test]
    fn etcd_needs_what_its_documentation_says() {
        let etcd = SYSTEMS[0];
        assert_eq!(etcd.limits[0].max, Duration::from_millis(10));
        assert_eq!(
            etcd.pattern(),
            "1 thread writes records of 2300 B into allocated segments of 64 MiB, fdatasync after \
             each. Beside that, 16 blocks of 4 KiB are written and synced every 100 ms."
        );
    }
}
