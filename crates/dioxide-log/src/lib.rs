//! A write-ahead log for Linux: concurrent durable appends by direct I/O, in recycled segments.
//!
//! ```no_run
//! use dioxide_log::Log;
//!
//! let log = Log::open("records")?; // a directory
//! let lsn = log.append(b"a record")?; // stable when it returns; threads share `log`
//! for record in log.iter_from(log.first_lsn()) {
//!     let (lsn, bytes) = record?;
//!     println!("{lsn}: {} bytes", bytes.len());
//! }
//! log.truncate_front(lsn)?; // removes the records before it
//! log.close()?;
//! # Ok::<(), dioxide_log::Error>(())
//! ```
//!
//! # Layout
//!
//! `format`, `index` and `batch` are values: the bytes of a log (docs/log-format.md), its records,
//! and the frames of one write. A [`storage`] is a medium. `recover` reads a log as it was left,
//! and `writer` continues it: it owns the control flow of appends, truncations and flushes. `pool`
//! makes and frees segments, for one log or for those of a `set`. `reader` follows the writer, and
//! `view` reads without one. Both go along the frames by a `cursor`. `log_reader` follows the
//! writer of another process, and a `timer` wakes its tasks. `streams` is a layer on top:
//! many logs in one. [`observe`] reports events, for metrics and traces. `suite`, with the feature
//! of that name, checks media of others.

#![deny(unsafe_code)]
#![cfg_attr(fuzzing, allow(missing_docs))]

mod ahead;
mod batch;
mod cursor;
mod error;
mod format;
mod index;
mod locked;
mod log;
mod log_reader;
mod lsn;
pub mod observe;
mod options;
mod per_process;
mod pool;
mod reader;
mod recover;
mod set;
mod stats;
pub mod storage;
mod streams;
#[cfg(feature = "suite")]
pub mod suite;
mod threads;
mod ticket;
mod timer;
mod view;
mod window;
mod writer;

/// The format, for `fuzz/`.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::format::frame::{Flags, Frame, Home, Kind, checksum_of, frame_bytes};
    pub use crate::format::header::{Found, Header};
}

pub use dioxide::Durability;
pub use error::{Error, Result};
pub use format::LogId;
pub use log::{Append, Log};
pub use log_reader::LogReader;
pub use lsn::Lsn;
pub use options::LogOptions;
pub use reader::{Follow, Iter, Record};
pub use recover::Report;
pub use set::LogSet;
pub use stats::{SetStats, Stats};
pub use streams::{
    Stream, StreamAppend, StreamChange, StreamFollow, StreamIter, StreamLog, StreamReader,
    StreamRecords, StreamStats, StreamView,
};
pub use view::{LogView, Records};
