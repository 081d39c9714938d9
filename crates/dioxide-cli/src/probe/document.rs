//! The JSON document of a probe, written and read back.

use super::facts::Facts;
use super::fitness::judge::Fitness;
use super::layer::Layer;
use crate::bench::ratio::Ratio;
use crate::meter::machine::Machine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of [`ProbeDocument`].
pub const SCHEMA_VERSION: u32 = 1;

/// The behaviour of direct I/O on one path, one machine, now. Values without a measurement are
/// empty or null, and `unmeasured` gives the reason.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProbeDocument {
    /// The version of this format: 1.
    pub schema_version: u32,
    /// `probe`.
    pub kind: String,
    /// Where and how it was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// By their keys: `value`, or null and `unknown`, which gives the reason; `how`, the source;
    /// `name` for people.
    pub facts: Facts,
    /// The devices below, top to bottom.
    pub devices: Vec<Layer>,
    /// The cost of a flush.
    pub flush: Option<Flush>,
    /// The cost of one write, by its target.
    pub costs: Vec<Cost>,
    /// Whether operations on one file, or reads of one device, run in parallel.
    pub concurrency: Vec<Concurrency>,
    /// The ways to make a write durable, compared.
    pub sync_methods: Vec<SyncMethod>,
    /// Why nothing is durable here, whatever a program does. Null if nothing is known against it.
    pub not_durable: Option<String>,
    /// Whether the path is fit for a system, with `--for`.
    pub fitness: Option<Fitness>,
    /// Missing measurements with the reason, in sentences.
    pub unmeasured: Vec<String>,
    /// The consequences for a program, in sentences.
    pub meaning: Vec<String>,
}

/// fdatasync on a file with one dirty block, and with none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flush {
    /// Number of repetitions.
    pub count: u64,
    /// After one direct write of 4 KiB over written space: median, in nanoseconds.
    pub flush_ns_p50: u64,
    /// After such a write: 99th percentile, in nanoseconds.
    pub flush_ns_p99: u64,
    /// With nothing written since the last: median, in nanoseconds.
    pub flush_clean_ns_p50: u64,
    /// With nothing written since the last: 99th percentile, in nanoseconds.
    pub flush_clean_ns_p99: u64,
}

/// The target of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WriteTarget {
    /// Over written blocks.
    Overwrite,
    /// Over part of a written block of the file system.
    PartialOverwrite,
    /// Into allocated, unwritten space.
    Unwritten,
    /// Into a hole within the file.
    Hole,
    /// At the end of the file.
    Append,
    /// None: a read of a written block, at a random offset.
    Read,
}

/// The cost of one direct write of 4 KiB for a single thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    pub target: WriteTarget,
    /// Whether the file was open with O_DSYNC.
    pub is_dsync: bool,
    /// Whether it was stable when the call returned: with O_DSYNC, on a device that stores data.
    pub is_durable: bool,
    /// Number of timed writes.
    pub count: u64,
    /// Median, in nanoseconds.
    pub write_ns_p50: u64,
    /// The smallest median of a round, in nanoseconds.
    pub write_ns_p50_min: u64,
    /// The largest median of a round, in nanoseconds.
    pub write_ns_p50_max: u64,
    /// 99th percentile, in nanoseconds.
    pub write_ns_p99: u64,
    /// Write requests that the device completed during the call, by all processes, including calls
    /// for a flush: the median. Null without counters.
    pub requests_per_op: Option<f64>,
    /// Flushes that the device did during the call: the median. Null without counters.
    pub flushes_per_op: Option<f64>,
}

/// The same operation with 1, 2 and 8 threads on one file or device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Concurrency {
    pub target: WriteTarget,
    /// Operations per second of one thread, the median over the rounds.
    pub iops_1: f64,
    /// Operations per second of two threads together, the median over the rounds.
    pub iops_2: f64,
    /// Operations per second of eight threads together, the median over the rounds.
    pub iops_8: f64,
    /// Two threads to one, round by round.
    pub ratio_2: Ratio,
    /// Eight threads to one, round by round.
    pub ratio_8: Ratio,
    /// How many of the eight threads waited for a lock of the file or file system at a time: the
    /// mean. Null if not visible, as the next three.
    pub lock_waiters_8: Option<f64>,
    /// How many of the eight threads waited for the device at a time: the mean.
    pub device_waiters_8: Option<f64>,
    /// The share of samples in which two or more of the eight waited for the device, from 0 to 1.
    pub overlap_share_8: Option<f64>,
    /// The most frequent kernel function of their waits.
    pub wait_channel: Option<String>,
    pub verdict: ConcurrencyVerdict,
}

/// Whether operations on one file run in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConcurrencyVerdict {
    RunsConcurrently,
    OneAtATime,
    Undecided,
}

/// One way to make writes durable: 8 KiB over the same written space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SyncMethod {
    /// `open_datasync`, `fdatasync`, ...
    pub method: String,
    /// False for the baselines, and where nothing is stored.
    pub is_durable: bool,
    /// Writes of 8 KiB that become durable together: 1 or 2.
    pub writes: u32,
    /// Repetitions per second: the median over the rounds.
    pub ops_per_s: f64,
    /// Repetitions per second of the slowest round.
    pub ops_per_s_min: f64,
    /// Repetitions per second of the fastest round.
    pub ops_per_s_max: f64,
    /// Microseconds per repetition.
    pub us_per_op: f64,
    /// Why it is unavailable, if so: then the figures are 0.
    pub unavailable: Option<String>,
}

#[cfg(test)]
pub mod examples {
    use super::*;
    use crate::probe::facts::Topic;
    use crate::probe::fitness::judge::tests::etcd;

    /// An ext4 on a disk with a volatile cache.
    pub fn document() -> ProbeDocument {
        let mut facts = Facts::default();
        facts.know(Topic::FileSystem, "file_system", "kind", "ext4", "/proc/self/mountinfo");
        facts.know(
            Topic::FileSystem,
            "grows_unwritten",
            "grows ahead, unwritten",
            "yes",
            "File::growth",
        );
        facts.know(Topic::FileSystem, "is_direct", "O_DIRECT is direct", "yes", "cachestat");
        facts.know(Topic::Alignment, "offset_bytes", "offset and length", 512u64, "statx");
        facts.know(
            Topic::Durability,
            "has_volatile_cache",
            "volatile cache",
            true,
            "queue/write_cache",
        );
        facts.know(Topic::Durability, "has_fua", "FUA", false, "queue/fua");
        facts.know(Topic::Abilities, "fallocate", "allocate", true, "fallocate");
        facts.know(Topic::IoUring, "io_uring", "io_uring", "yes", "io_uring_setup");
        ProbeDocument {
            schema_version: SCHEMA_VERSION,
            kind: "probe".into(),
            machine: Machine::describe("/somewhere".into(), None),
            facts,
            devices: vec![Layer { name: "sda".into(), kind: "disk".into(), ..Layer::default() }],
            flush: Some(Flush {
                count: 100,
                flush_ns_p50: 200_000,
                flush_ns_p99: 900_000,
                flush_clean_ns_p50: 1000,
                flush_clean_ns_p99: 2000,
            }),
            costs: vec![
                cost(WriteTarget::Append, 1_000_000, 3.0, 2.0),
                cost(WriteTarget::Overwrite, 200_000, 2.0, 1.0),
            ],
            concurrency: vec![
                concurrency(WriteTarget::Append, ConcurrencyVerdict::OneAtATime, 0.5),
                concurrency(WriteTarget::Hole, ConcurrencyVerdict::OneAtATime, 0.6),
                concurrency(WriteTarget::Unwritten, ConcurrencyVerdict::RunsConcurrently, 3.0),
                concurrency(WriteTarget::Overwrite, ConcurrencyVerdict::RunsConcurrently, 4.0),
            ],
            sync_methods: vec![
                sync_method("open_datasync", true, 1000.0),
                sync_method("fdatasync", true, 960.0),
                sync_method("fsync", true, 500.0),
                sync_method("no sync", false, 9000.0),
            ],
            not_durable: None,
            fitness: None,
            unmeasured: Vec::new(),
            meaning: Vec::new(),
        }
    }

    /// The result of `--for`.
    pub fn fit() -> ProbeDocument {
        ProbeDocument {
            flush: None,
            costs: Vec::new(),
            concurrency: Vec::new(),
            sync_methods: Vec::new(),
            fitness: Some(etcd()),
            ..document()
        }
    }

    fn cost(target: WriteTarget, write_ns_p50: u64, requests: f64, flushes: f64) -> Cost {
        Cost {
            target,
            is_dsync: true,
            is_durable: true,
            count: 100,
            write_ns_p50,
            write_ns_p50_min: write_ns_p50 / 2,
            write_ns_p50_max: write_ns_p50 * 2,
            write_ns_p99: 2 * write_ns_p50,
            requests_per_op: Some(requests),
            flushes_per_op: Some(flushes),
        }
    }

    pub fn concurrency(
        target: WriteTarget,
        verdict: ConcurrencyVerdict,
        ratio: f64,
    ) -> Concurrency {
        let waits =
            |lock, device| if verdict == ConcurrencyVerdict::OneAtATime { lock } else { device };
        let of = |ratio| Ratio::of(vec![ratio; 5]).unwrap();
        Concurrency {
            target,
            iops_1: 1000.0,
            iops_2: 1000.0,
            iops_8: 1000.0,
            ratio_2: of(1.0),
            ratio_8: of(ratio),
            lock_waiters_8: Some(waits(6.5, 0.0)),
            device_waiters_8: Some(waits(1.0, 7.0)),
            overlap_share_8: Some(waits(0.0, 1.0)),
            wait_channel: Some("ext4_file_write_iter".into()),
            verdict,
        }
    }

    /// With rounds from 10 % below to 10 % above.
    pub fn sync_method(method: &str, is_durable: bool, ops_per_s: f64) -> SyncMethod {
        SyncMethod {
            method: method.into(),
            is_durable,
            writes: 1,
            ops_per_s,
            ops_per_s_min: 0.9 * ops_per_s,
            ops_per_s_max: 1.1 * ops_per_s,
            us_per_op: 1e6 / ops_per_s,
            unavailable: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_back() {
        let document = serde_json::to_value(examples::document()).unwrap();
        let again: ProbeDocument = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(serde_json::to_value(again).unwrap(), document);
        assert_eq!((&document["kind"], &document["schema_version"]), (&"probe".into(), &1.into()));
        assert_eq!(document["concurrency"][0]["verdict"], "one_at_a_time");
        assert_eq!(document["costs"][0]["target"], "append");
    }
}
