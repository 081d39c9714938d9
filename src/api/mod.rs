//! The public API: files, queues, futures and the options that open them.

pub mod file;
pub mod future;
pub mod image;
pub mod options;
pub mod owner;
pub mod queue;
pub mod reactor;
pub mod replace;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod stream;
pub mod sync_all;
