//! The settings of a queue. The public builder is `api::queue::QueueOptions`.

use crate::buffer::Pool;
use std::sync::Arc;

/// Operations in flight in the reactor that a process shares. Further ones wait.
const REACTOR_DEPTH: usize = 1024;

/// The settings of a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueSettings {
    /// The largest number of operations that are queued, in flight, or finished and not reaped; at
    /// least 1.
    pub depth: usize,
    /// The number of registered buffers.
    pub buffers: usize,
    /// The length of each of them in bytes.
    pub buffer_bytes: usize,
    /// Whether io_uring may be used.
    pub io_uring: bool,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { depth: 64, buffers: 0, buffer_bytes: 0, io_uring: true }
    }
}

impl QueueSettings {
    /// The settings of the reactor that a process shares.
    pub fn of_shared_reactor() -> Self {
        Self { depth: REACTOR_DEPTH, ..Self::default() }
    }

    pub fn pool(&self) -> Option<Arc<Pool>> {
        (self.buffers > 0).then(|| Pool::new(self.buffers, self.buffer_bytes))
    }
}
