//! Concurrent, durable, safe direct I/O (O_DIRECT) for Linux.
//!
//! On ext4 and XFS, many threads that append to one file opened O_DIRECT wait for each other in the kernel, and many
//! durable writers wait for each other's flushes. dioxide grows the file ahead of its writers, so that no
//! write moves the end of file; merges appends that wait together into one request; and lets writers share
//! flushes. What it does to a file is undone at close, or after a crash at the next open.
//!
//! ```no_run
//! use dioxide::{Durability, OpenOptions};
//!
//! let log = OpenOptions::new()
//!     .write(true)
//!     .create(true)
//!     .durability(Durability::EveryWrite)
//!     .open("records.log")?;
//! std::thread::scope(|scope| {
//!     let append = |n| log.append(format!("record {n}\n").as_bytes()); // stable when it returns, with its offset
//!     let writers: Vec<_> = (0..64).map(|n| scope.spawn(move || append(n))).collect();
//!     for writer in writers {
//!         let offset = writer.join().expect("no writer panics")?;
//!         println!("a record at {offset}");
//!     }
//!     dioxide::Result::Ok(())
//! })?;
//! log.close()?;
//! # Ok::<(), dioxide::Error>(())
//! ```
//!
//! Start with [`OpenOptions`] and [`File`]; with [`AsyncFile`] for futures, and [`Queue`] for many operations of one thread. What is promised when a call returns and after a crash stands with
//! each call.

#![deny(unsafe_code)]

mod backend;
mod bounce;
#[allow(unsafe_code)]
mod buffer;
mod engine;
mod error;
mod ext;
mod file;
mod flush;
mod future;
mod growth;
mod inflight;
#[doc(hidden)]
pub mod ledger;
mod map;
mod marker;
mod merge;
mod open;
mod options;
mod os_error;
mod pack;
mod queue;
mod reactor;
mod reader;
mod recovery;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod size;
mod stats;
mod stripe;
mod sync;
#[allow(unsafe_code)]
mod sys;

pub use buffer::Buffer;
pub use engine::recover::Recover;
pub use error::{Error, ErrorKind, Operation, Result};
pub use file::File;
pub use future::{AsyncFile, Blocking, SyncData, Transfer};
pub use open::recover;
pub use open::striped::recover_striped;
pub use options::{Durability, GROWTH_CAP_DEFAULT_BYTES, Growth, OpenOptions, Tail};
pub use queue::{Completion, Full, Queue, QueueOptions, Reaped};
pub use reactor::{LocalReactor, Reactor};
pub use recovery::{Recovery, Verdict};
pub use stats::Stats;
pub use sys::probe::Alignment;

/// What takes bytes from outside, for `fuzz/`.
#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod fuzzing {
    pub use crate::marker::{Identity, Marker, Mode, Prepared};
    pub use crate::recovery::{Extent, judge};
}

/// Sets what all files of the process together may have grown ahead, in bytes; 2 GiB by default. An append that
/// needs more gets just what it needs. What [`File::recycle`] keeps is not counted.
pub fn set_growth_budget(bytes: u64) {
    engine::process::Process::current().budget().set_limit(bytes);
}
