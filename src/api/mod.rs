//! The public API: files, queues, futures and the options that open them.

pub mod file;
pub mod future;
pub mod image;
pub mod options;
pub mod queue;
pub mod reactor;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod sync_all;
