//! Evidence of queues of a program: threads that wait for another one that writes or syncs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Waits for futexes and semaphores, compared with the writes and syncs of a file by other threads.
/// Only waits of threads that ran within the second before. Only threads that mostly sleep through
/// the calls and run at their ends are waiters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// The name of the waiting threads, without numbers.
    pub task: String,
    /// Index into [`super::Evidence::files`].
    pub file: usize,
    /// The most frequent call on the file: `fdatasync`.
    pub call: String,
    /// Number of passes in which at least one thread was in such a call, and blocked.
    pub looks: u64,
    /// Number of passes with several such threads.
    pub looks_of_several: u64,
    /// Samples of waiters in these passes.
    pub waits: u64,
    /// Number of waiters.
    pub threads: u64,
    /// Number of threads in such a call.
    pub leaders: u64,
    /// Number of waiters that were in such a call at other times.
    pub leading_waiters: u64,
    /// Waiters in two readings of one pass.
    pub short: Pairs,
    /// Waiters in two passes.
    pub long: Pairs,
    /// Stacks of waiters. Empty if they cannot be read.
    #[serde(default)]
    pub waiting: Vec<Stack>,
    /// Stacks of threads in the call.
    #[serde(default)]
    pub leading: Vec<Stack>,
    /// Stacks of threads of the same name that waited in this way for a second or longer.
    #[serde(default)]
    pub idle: Vec<Stack>,
}

/// A stack in user space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stack {
    /// Number of samples.
    pub count: u64,
    /// Indices into [`super::Evidence::functions`], innermost first. The outermost may be missing.
    pub functions: Vec<usize>,
}

/// Stacks of threads that wait for one futex, while another thread writes or syncs a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FutexStacks {
    /// The process ID.
    pub process: u32,
    /// The address of the futex.
    pub futex: u64,
    /// The stacks.
    pub stacks: Vec<Stack>,
}

/// A function of the program or of a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Function {
    /// As in the source. None if the file has no symbol for it.
    pub name: Option<String>,
    /// The path of the program or library, as the process sees it.
    pub file: String,
    /// The address of its first instruction in the file, as linked.
    pub address: u64,
}

/// Counts of waiters over pairs of readings with a thread in the call at the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pairs {
    /// Waiters while that thread did not run.
    pub held: u64,
    /// Of these, the ones that ran.
    pub held_woken: u64,
    /// Waiters while that thread ran, and at least one of them.
    pub ended: u64,
    /// Of these, the ones that ran.
    pub ended_woken: u64,
    /// The number of such pairs of readings.
    pub ends: u64,
}
