//! Other processes that use the files whose locks the observed program waits for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was seen of other processes while threads of the program waited for the lock of a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contenders {
    /// Sampling passes in which a thread of the program waited for such a lock.
    pub passes: u64,
    /// Processes whose descriptors may not be read.
    pub refused: u64,
    /// Whether the descriptors of all other processes were read at least once, and all processes
    /// with such a file were sampled.
    pub is_complete: bool,
    /// The threads that were in a call on such a file, the most frequent first.
    pub threads: Vec<Contender>,
}

/// A thread of another process in a call on such a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contender {
    /// The process ID.
    pub pid: u32,
    /// The name of the process.
    pub process: String,
    /// The thread ID.
    pub tid: u32,
    /// The name of the thread.
    pub thread: String,
    /// Index into [`crate::evidence::Evidence::files`].
    pub file: usize,
    /// The call: `fallocate`, `fsync`, ...
    pub call: String,
    /// Whether its descriptor is open with O_DIRECT. None if that is not known.
    pub is_direct: Option<bool>,
    /// Number of passes in which the thread was in the call, and did not wait for the lock.
    pub working: u64,
    /// Number of passes in which it waited for the lock too.
    pub waiting: u64,
}
