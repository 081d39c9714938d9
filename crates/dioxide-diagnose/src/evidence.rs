//! What was seen: values only, as recorded. Nothing here says what they mean.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All that a verdict may rest on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Whom it is about.
    pub subject: Subject,
    /// As `uname -r` says it.
    pub kernel_release: String,
    /// Online when it was recorded.
    pub cpus: usize,
    /// For how long the threads were looked at, in nanoseconds.
    pub watched_ns: u64,
    /// How often each thread was looked at in that time.
    pub looks: u64,
    /// The threads that were there, for at least one look.
    pub threads: u64,
    /// Where threads were seen, each place once, with how often.
    pub sightings: Vec<Sighting>,
    /// The files and devices that sightings, direct writes and counts speak of.
    pub files: Vec<SeenFile>,
    /// Direct I/O as the kernel began it. None where tracing is not allowed or there is none.
    pub direct: Option<Vec<DirectIo>>,
    /// Waits for locks of the kernel, timed. None where tracing is not allowed.
    pub locks: Option<Vec<LockWait>>,
    /// Operations that io_uring handed to its workers, by opcode as the kernel names it. None where tracing is not allowed.
    pub punts: Option<Vec<Punt>>,
    /// The devices below the files.
    pub devices: Vec<SeenDevice>,
    /// How much work was done by how many threads. Empty for a program that is only watched.
    pub curve: Vec<Step>,
    /// The same work at the last step of the curve, done in other ways.
    pub others: Vec<OtherWay>,
    /// What could not be seen, and why: "stacks: for root only".
    pub unseen: Vec<String>,
}

/// Whom evidence is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Work that was done to be looked at. The sightings are of the last step of the curve.
    Workload(Workload),
    /// A program of somebody else's, with its children.
    Program {
        /// The process that was named.
        pid: u32,
        /// Its command line.
        command: String,
        /// How many processes were seen, with its children.
        processes: u64,
    },
}

/// Work that was done to be looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// What kind.
    pub rw: Rw,
    /// The directory or device that was named.
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
    /// Writes over blocks that are written already.
    Overwrite,
    /// Writes into holes inside of the file.
    Hole,
    /// Each thread rewrites a region of its own, durably.
    Sync,
    /// Reads and writes of written blocks, in random order.
    Mixed,
}

/// A place where threads were seen. Two sightings differ in at least one of the fields beside the counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sighting {
    /// Looks at which a thread was here, all threads together.
    pub count: u64,
    /// How many threads were here at least once.
    pub threads: u64,
    /// The thread's name, with numbers taken out: `fio`, `iou-wrk`.
    pub task: String,
    /// As the kernel writes it: `R` runs or could, `S` sleeps, `D` sleeps and does not hear signals.
    pub state: char,
    /// The system call that the thread was in. None if it was in none, or that cannot be seen.
    pub call: Option<Call>,
    /// The kernel function that it waited in, as `/proc/PID/task/TID/wchan` has it. None if it did not wait.
    pub channel: Option<String>,
    /// The kernel's functions, innermost first, without offsets. Empty where that is for root only.
    pub stack: Vec<String>,
}

/// A system call that a thread was seen in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// `pwrite64`, `fdatasync`, `futex`, ...; `syscall 500` if its number has no name here.
    pub name: String,
    /// Index into [`Evidence::files`].
    pub file: Option<usize>,
    /// For a write whose place is known: whether it ended beyond the end that the file then had.
    pub extends: Option<bool>,
    /// For a read or write whose place is known: whether offset and length were multiples of the file system's block.
    pub is_aligned: Option<bool>,
    /// The address of a futex, to tell a lock that many wait for from many that are waited for.
    pub futex: Option<u64>,
    /// For a futex: whether it is a lock by the way it is waited for: FUTEX_LOCK_PI, or FUTEX_WAIT and FUTEX_WAIT_BITSET for the
    /// value 2, by which glibc and Rust's std mark a lock that others wait for. None where that cannot be seen.
    pub is_lock: Option<bool>,
}

impl Call {
    /// A call of which nothing else is known.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            file: None,
            extends: None,
            is_aligned: None,
            futex: None,
            is_lock: None,
        }
    }
}

/// A file or device that the threads had open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeenFile {
    /// As `/proc/PID/fd` names it.
    pub path: String,
    /// `ext4`, `xfs`, ..., `device`, or None where it cannot be told.
    pub fs: Option<String>,
    /// Major and minor number of the device that it lies on, or that it is.
    pub device: (u32, u32),
    /// The inode's number.
    pub inode: u64,
    /// Whether any descriptor of it has O_DIRECT.
    pub is_direct: bool,
    /// Whether any descriptor of it has none: the page cache may be in the way.
    pub is_buffered: bool,
    /// Whether any descriptor has O_DSYNC or O_SYNC.
    pub is_durable: bool,
    /// Whether any descriptor has O_SYNC, which makes times durable as well.
    #[serde(default)]
    pub is_sync: bool,
    /// Bytes, at first and at last. None if it was gone.
    pub size_bytes: Option<(u64, u64)>,
    /// Bytes of allocated space, at first and at last.
    pub allocated_bytes: Option<(u64, u64)>,
}

impl SeenFile {
    /// Whether it is a device, and no file on one.
    pub fn is_device(&self) -> bool {
        self.fs.as_deref() == Some("device")
    }
}

/// Direct reads or writes of one file, of one kind, as the tracepoint `iomap_dio_rw_begin` saw them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectIo {
    /// Index into [`Evidence::files`].
    pub file: Option<usize>,
    /// How many.
    pub count: u64,
    /// How many bytes they asked for.
    pub bytes: u64,
    /// Whether they wrote.
    pub is_write: bool,
    /// Whether they ended beyond the end of the file, as it was when they began.
    pub extends: bool,
    /// Whether they began beyond the end of the file.
    pub begins_beyond: bool,
    /// Whether they were O_DSYNC or O_SYNC.
    pub is_durable: bool,
    /// Whether offset and length were multiples of the file system's block.
    pub is_aligned: bool,
}

/// Waits for one kind of lock from one place of the kernel, as `contention_begin` and `contention_end` saw them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LockWait {
    /// How many waits.
    pub count: u64,
    /// How long all of them took.
    pub wait_ns: u64,
    /// The longest.
    pub wait_max_ns: u64,
    /// Of which kind, as the kernel names the flags: `READ`, `WRITE`, `MUTEX`, `SPIN`, ...
    pub kind: String,
    /// How many locks of this kind were waited for from here.
    pub locks: u64,
    /// The kernel's functions, innermost first, without offsets.
    pub stack: Vec<String>,
}

/// Operations that io_uring handed to its workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Punt {
    /// `WRITE`, `FSYNC`, ...
    pub opcode: String,
    /// Whether those on one file wait for each other.
    pub is_hashed: bool,
    /// How many.
    pub count: u64,
}

/// A device below the files, by its counts in /sys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeenDevice {
    /// `loop0`, `nvme0n1`.
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
    /// Whether it says that it has a volatile cache, which flushes are for.
    pub has_volatile_cache: Option<bool>,
    /// Whether it takes writes that pass its cache.
    pub has_fua: Option<bool>,
    /// Reads that it completed meanwhile, whoever asked for them.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: Option<u64>,
    /// The time in which it had something to do.
    pub busy_ns: u64,
    /// The time of all requests together, divided by `watched_ns`: the mean number that it had.
    pub inflight: f64,
}

/// One step of a curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Threads.
    pub numjobs: usize,
    /// Operations a second, one figure for each round.
    pub iops: Vec<f64>,
}

/// The same work in another way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherWay {
    /// As `bench` names it: `preallocated`, `dioxide`.
    pub path: String,
    /// Threads.
    pub numjobs: usize,
    /// Operations a second, one figure for each round.
    pub iops: Vec<f64>,
}
