//! Evidence: recorded values only, without interpretation.

mod queue;

pub use queue::{Function, FutexStacks, Pairs, Queue, Stack};

use crate::activity::Activity;
use crate::contenders::Contenders;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The input of a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The subject of the evidence.
    pub subject: Subject,
    /// Whether the observed program ended during the observation.
    #[serde(default)]
    pub has_ended: bool,
    /// The output of `uname -r`.
    pub kernel_release: String,
    /// Processors on which the threads may run.
    pub cpus: usize,
    /// Duration of the observation, in nanoseconds.
    pub watched_ns: u64,
    /// How often each thread was sampled in that time.
    pub looks: u64,
    /// Threads seen in at least one sample.
    pub threads: u64,
    /// The states in which threads were sampled, each once, with its count.
    pub sightings: Vec<Sighting>,
    /// The files and devices that sightings, direct writes and counts refer to.
    pub files: Vec<SeenFile>,
    /// Direct I/O as the kernel began it. None without tracing.
    pub direct: Option<Vec<DirectIo>>,
    /// Timed waits for locks of the kernel. None without tracing.
    pub locks: Option<Vec<LockWait>>,
    /// Operations that io_uring handed to its workers, by opcode as the kernel names it. None
    /// without tracing.
    pub punts: Option<Vec<Punt>>,
    /// The devices below the files.
    pub devices: Vec<SeenDevice>,
    /// The cgroups of the program that have limits for these devices or for processors, or waits
    /// for I/O.
    #[serde(default)]
    pub cgroups: Vec<SeenCgroup>,
    /// Threads that wait while another thread of the program writes or syncs.
    #[serde(default)]
    pub queues: Vec<Queue>,
    /// Stacks of waiters by futex, if several threads wait for it.
    #[serde(default)]
    pub futexes: Vec<FutexStacks>,
    /// The functions of the program on the stacks of queues and futexes.
    #[serde(default)]
    pub functions: Vec<Function>,
    /// Throughput by number of threads. Empty for a program that is only observed.
    pub curve: Vec<Step>,
    /// The same work at the last step of the curve, on other paths.
    pub others: Vec<OtherWay>,
    /// Other processes that use files whose locks the program waits for. None if nothing was
    /// looked for.
    #[serde(default)]
    pub contenders: Option<Contenders>,
    /// Numbers of the devices whose ext4 makes fast commits.
    #[serde(default)]
    pub fast_commits: Vec<(u32, u32)>,
    /// The calls of the program with their latencies and rates.
    #[serde(default)]
    pub activity: Activity,
    /// Unavailable evidence, with the reason: "stacks: for root only".
    pub unseen: Vec<String>,
}

/// The subject of evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A workload of ours. The sightings are of the last step of the curve.
    Workload(Workload),
    /// An existing program, with its children.
    Program {
        /// The given process.
        pid: u32,
        /// Its command line.
        command: String,
        /// Number of processes seen, children included.
        processes: u64,
        /// How it was selected, if not by its ID: "unit postgresql.service".
        #[serde(default)]
        selected: Option<String>,
    },
}

/// The observed workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// The kind of I/O.
    pub rw: Rw,
    /// The given directory or device.
    pub place: String,
    /// Bytes of each operation.
    pub bs_bytes: u64,
    /// Threads at the last step.
    pub numjobs: usize,
    /// Whether each write was durable before it was acknowledged (O_DSYNC).
    pub is_durable: bool,
}

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rw {
    /// Each write begins at the end of the file.
    Append,
    /// Writes over written blocks.
    Overwrite,
    /// Writes into holes inside the file.
    Hole,
    /// Each thread rewrites a region of its own, durably.
    Sync,
    /// Reads and writes of written blocks, in random order.
    Mixed,
}

/// A state in which threads were sampled. Two sightings differ in at least one field other than the
/// counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sighting {
    /// Number of samples in this state, over all threads.
    pub count: u64,
    /// Number of threads in this state at least once.
    pub threads: u64,
    /// The process ID. 0 if it was not recorded.
    #[serde(default)]
    pub process: u32,
    /// The thread's name without numbers: `fio`, `iou-wrk`.
    pub task: String,
    /// The state as the kernel writes it: `R` running or runnable, `S` sleeping, `D` sleeping
    /// uninterruptibly, `T` stopped, `t` stopped by a debugger.
    pub state: char,
    /// The system call. None outside of one, or if it is not visible.
    pub call: Option<Call>,
    /// The kernel function in which the thread waited, from `/proc/PID/task/TID/wchan`. None if it
    /// did not wait.
    pub channel: Option<String>,
    /// The kernel's functions, innermost first, without offsets. Empty where only root may read
    /// them.
    pub stack: Vec<String>,
    /// Of a wait for a futex or a semaphore: index into [`Evidence::queues`]. None unless the
    /// thread is a waiter of one, and ran within the second before.
    #[serde(default)]
    pub queue: Option<usize>,
}

/// A sampled system call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// `pwrite64`, `fdatasync`, `futex`, ...; `syscall 500` if its number has no name here.
    pub name: String,
    /// Index into [`Evidence::files`].
    pub file: Option<usize>,
    /// For a write at a known offset: whether it ended beyond the end of the file at that time.
    pub extends: Option<bool>,
    /// For a read or write at a known offset: whether offset and length were multiples of the file
    /// system's block.
    pub is_aligned: Option<bool>,
    /// The address of a futex. It distinguishes a lock with many waiters from many locks.
    pub futex: Option<u64>,
    /// Whether a futex is used as a lock, by its operation and value. True for FUTEX_LOCK_PI, and
    /// for FUTEX_WAIT and FUTEX_WAIT_BITSET with the value 2. glibc and Rust's std mark a lock with
    /// waiters by that value. None if not visible.
    pub is_lock: Option<bool>,
    /// Whether processes may share the futex. Otherwise its address means another futex in each.
    #[serde(default)]
    pub is_shared: bool,
}

impl Call {
    /// A call known only by its name.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            file: None,
            extends: None,
            is_aligned: None,
            futex: None,
            is_lock: None,
            is_shared: false,
        }
    }
}

/// A file or device that the threads had open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeenFile {
    /// The path as in `/proc/PID/fd`.
    pub path: String,
    /// `ext4`, `xfs`, ..., `device`; None if unknown.
    pub fs: Option<String>,
    /// Major and minor number of its device, or of the device that it is.
    pub device: (u32, u32),
    /// The inode number.
    pub inode: u64,
    /// Whether any descriptor of it has O_DIRECT.
    pub is_direct: bool,
    /// Whether any descriptor of it lacks O_DIRECT, so that the page cache may be involved.
    pub is_buffered: bool,
    /// Whether any descriptor has O_DSYNC or O_SYNC.
    pub is_durable: bool,
    /// Whether any descriptor has O_SYNC, which makes timestamps durable as well.
    #[serde(default)]
    pub is_sync: bool,
    /// Size in bytes, at the first and the last sample. None if the file was gone.
    pub size_bytes: Option<(u64, u64)>,
    /// Allocated bytes, at the first and the last sample.
    pub allocated_bytes: Option<(u64, u64)>,
}

impl SeenFile {
    /// Whether it is a device, not a file on one.
    pub fn is_device(&self) -> bool {
        self.fs.as_deref() == Some("device")
    }
}

/// Direct reads or writes of one file and kind, from the tracepoint `iomap_dio_rw_begin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectIo {
    /// Index into [`Evidence::files`].
    pub file: Option<usize>,
    /// Number of operations.
    pub count: u64,
    /// Bytes requested.
    pub bytes: u64,
    /// Whether they are writes.
    pub is_write: bool,
    /// Whether they ended beyond the end of the file at their begin.
    pub extends: bool,
    /// Whether they began beyond the end of the file.
    pub begins_beyond: bool,
    /// Whether they were O_DSYNC or O_SYNC.
    pub is_durable: bool,
    /// Whether offset and length were multiples of the file system's block.
    pub is_aligned: bool,
}

/// Waits for one kind of lock from one stack of the kernel, from the tracepoints `contention_begin`
/// and `contention_end`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LockWait {
    /// Number of waits.
    pub count: u64,
    /// Total wait time, in nanoseconds.
    pub wait_ns: u64,
    /// The longest wait, in nanoseconds.
    pub wait_max_ns: u64,
    /// The kind of lock, as the kernel names the flags: `READ`, `WRITE`, `MUTEX`, `SPIN`, ...
    pub kind: String,
    /// Number of different locks of this kind, from this stack.
    pub locks: u64,
    /// The kernel's functions, innermost first, without offsets.
    pub stack: Vec<String>,
}

/// Operations that io_uring handed to its workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Punt {
    /// `WRITE`, `FSYNC`, ...
    pub opcode: String,
    /// Whether operations on one file run one after the other.
    pub is_hashed: bool,
    /// Number of operations.
    pub count: u64,
}

/// A device below the files, with its counters from /sys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeenDevice {
    /// `loop0`, `nvme0n1`.
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
    /// Whether it reports a volatile cache, for which flushes exist.
    pub has_volatile_cache: Option<bool>,
    /// Whether it supports FUA writes, which bypass its cache.
    pub has_fua: Option<bool>,
    /// Reads completed during the observation, by all processes.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Flushes completed.
    pub flushes: Option<u64>,
    /// The time with at least one request in flight, in nanoseconds.
    pub busy_ns: u64,
    /// The mean number of requests in flight.
    pub inflight: f64,
    /// The requests that its queue holds (queue/nr_requests).
    #[serde(default)]
    pub queue_max: Option<u64>,
}

/// A cgroup of the observed processes, or one above theirs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeenCgroup {
    /// Its directory.
    pub path: String,
    /// Its limits for the devices below the files.
    pub io: Vec<IoLimit>,
    /// The time with at least one of its threads waiting for I/O, in nanoseconds (io.pressure).
    pub io_pressure_ns: Option<u64>,
    /// Its limit on processors. None without one.
    pub cpu: Option<CpuLimit>,
}

/// A limit on the I/O of a cgroup, with what all its processes did during the observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IoLimit {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Its name.
    pub device_name: Option<String>,
    /// The file of the cgroup that has the limit.
    pub file: String,
    /// `riops`, `wiops`, `rbps`, `wbps`, as in io.max.
    pub quantity: String,
    /// The limit: operations or bytes per second.
    pub per_second: u64,
    /// Operations or bytes done.
    pub done: u64,
}

/// A limit on the processors of a cgroup (cpu.max), and its effect during the observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuLimit {
    /// The processors that it may use.
    pub cpus: f64,
    /// Periods in which it ran.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled_periods: u64,
}

/// One step of a curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Threads.
    pub numjobs: usize,
    /// Operations per second, one value per round.
    pub iops: Vec<f64>,
}

/// The same work on another path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherWay {
    /// The name in `bench`: `preallocated`, `dioxide`.
    pub path: String,
    /// Threads.
    pub numjobs: usize,
    /// Operations per second, one value per round.
    pub iops: Vec<f64>,
}
