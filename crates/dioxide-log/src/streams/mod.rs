//! Many logs in one: streams of records, each with its own numbers.
//!
//! # Layout
//!
//! `entry`, `table` and `usage` are values: the payload of a frame, the places of the records of a
//! stream, and the bytes that streams need. `log` opens and closes, and appends. `stream` is what
//! users hold, and `reader` reads. `view` reads without a writer, and `stream_reader`
//! follows the writer of another process. `collect` frees the oldest segments.
//!
//! # Order
//!
//! A frame of a stream is pushed into the log under the lock of the stream. So the frames of a
//! stream lie in the log in the order of its changes. Two streams are locked in the order of their
//! ids. The lock of the log's writer comes after those of streams, and that of `usage` is the last.

mod collect;
mod entry;
mod log;
mod reader;
mod stream;
mod stream_reader;
mod table;
mod usage;
mod view;

pub use log::{StreamLog, StreamStats};
pub use reader::{StreamFollow, StreamIter};
pub use stream::{Stream, StreamAppend, StreamChange};
pub use stream_reader::StreamReader;
pub use view::{StreamRecords, StreamView};
