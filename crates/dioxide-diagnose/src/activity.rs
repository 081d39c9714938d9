//! What a program did during the observation: its calls with their latencies, its rates, and both
//! over time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The activity of an observed program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Activity {
    /// Calls that read, write, sync or resize, by call and file, the most frequent first. None
    /// without tracing.
    pub calls: Option<Vec<CallStats>>,
    /// The coverage of the traced calls. None without tracing.
    pub coverage: Option<Coverage>,
    /// The counters of `/proc/PID/io`. None if they are not readable.
    pub counters: Option<IoCounters>,
    /// The observation in intervals. None for a workload of ours.
    pub timeline: Option<Timeline>,
}

/// The calls of one name on one file. A call that began before the observation does not count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallStats {
    /// `pwrite64`, `fdatasync`, ...
    pub name: String,
    /// Index into [`crate::evidence::Evidence::files`]. None if it is not known.
    pub file: Option<usize>,
    /// Number of calls. An estimate where the trace has gaps.
    pub count: u64,
    /// Bytes that reads and writes transferred, estimated in the same way.
    pub bytes: u64,
    /// Number of calls that failed.
    pub errors: u64,
    /// Half of the calls took at most this long.
    pub p50: Latency,
    /// 99 of 100 calls took at most this long.
    pub p99: Latency,
    /// The longest traced call.
    pub max: Latency,
    /// Number of calls with a traced begin: the base of the percentiles.
    pub traced: u64,
}

/// The time from the begin of a call to its return. It is not the latency of an operation of
/// io_uring or libaio, which outlives its call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// In nanoseconds. The trace has microseconds.
    pub ns: u64,
    /// Whether it was at least this long: the trace ended before the call did.
    pub is_at_least: bool,
}

/// The part of the observation that the trace covers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Coverage {
    /// The traced share of the time, from 0 to 1. Counts are scaled to the whole.
    pub share: f64,
    /// Events that the kernel's buffers lost. The time before them counts as not traced.
    pub lost_events: u64,
    /// Number of reads and writes of processes that ended before their descriptors were read. They
    /// may be of pipes, so they are not in the counts.
    #[serde(default)]
    pub ended_calls: u64,
}

/// Totals of `/proc/PID/io` over the observation, of all processes. They include pipes and sockets.
/// They exclude syncs, and the last moments of processes that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IoCounters {
    /// Read calls.
    pub read_calls: u64,
    /// Write calls.
    pub write_calls: u64,
    /// Bytes read from storage.
    pub read_bytes: u64,
    /// Bytes written to storage; for buffered writes, bytes that became dirty.
    pub write_bytes: u64,
}

impl IoCounters {
    /// All calls.
    pub fn calls(&self) -> u64 {
        self.read_calls.saturating_add(self.write_calls)
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.write_bytes)
    }
}

/// The observation in intervals of equal length. The last one may be shorter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// The length of an interval, in nanoseconds.
    pub interval_ns: u64,
    /// The source of the calls.
    pub calls_from: CallsFrom,
    /// In order.
    pub intervals: Vec<Interval>,
}

/// The source of the calls in a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallsFrom {
    /// Traced calls on files, syncs included.
    Trace,
    /// The counters of `/proc/PID/io`: reads and writes, of pipes and sockets too.
    Counters,
    /// Not available.
    Nothing,
}

/// A part of the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Its length, in nanoseconds.
    pub length_ns: u64,
    /// Number of calls.
    pub calls: f64,
    /// Number of calls that make a file durable. None without tracing.
    pub syncs: Option<f64>,
    /// Bytes read from and written to storage, from `/proc/PID/io`. None if that is not readable.
    pub bytes: Option<f64>,
    /// Sampling passes.
    pub looks: u64,
    /// Samples of threads in I/O.
    pub in_io: u64,
    /// Of these, samples of threads that waited.
    pub waiting: u64,
}

impl Interval {
    /// A count as a rate per second.
    pub fn per_second(&self, count: f64) -> f64 {
        if self.length_ns == 0 { 0.0 } else { count * 1e9 / self.length_ns as f64 }
    }

    /// The share of I/O time in which threads waited, from 0 to 1. None without I/O.
    pub fn waiting_share(&self) -> Option<f64> {
        (self.in_io > 0).then(|| (self.waiting as f64 / self.in_io as f64).min(1.0))
    }
}
