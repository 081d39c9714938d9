//! Concurrent, durable, safe direct I/O (O_DIRECT) for Linux.
//!
//! On ext4 and XFS, many threads that append to one file opened O_DIRECT wait for each other in the
//! kernel, and many durable writers wait for each other's flushes. dioxide grows the file ahead of
//! its writers, so that no write moves the end of file; merges appends that wait together into one
//! request; and lets writers share flushes. What it does to a file is undone at close, or after a
//! crash at the next open.
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
//! Start with [`OpenOptions`] and [`File`]; with [`AsyncFile`] for futures, and [`Queue`] for many
//! operations of one thread. What is promised when a call returns and after a crash stands with
//! each call.

#![deny(unsafe_code)]

mod api;
mod backend;
#[allow(unsafe_code)]
mod buffer;
mod engine;
mod error;
#[doc(hidden)]
pub mod ledger;
mod open;
mod os_error;
mod rules;
mod stats;
mod sync;
#[allow(unsafe_code)]
mod sys;
// For the command line, which shows names as errors do.
#[doc(hidden)]
pub mod text;

pub use api::file::File;
// For dioxide-ext.
pub use api::future::{AsyncFile, Blocking, SyncData, Transfer};
#[doc(hidden)]
pub use api::image;
pub use api::options::OpenOptions;
pub use api::queue::{Full, Queue, QueueOptions, Reaped};
pub use api::reactor::{LocalReactor, Reactor};
#[cfg(any(test, feature = "sim"))]
pub use api::sim;
pub use buffer::Buffer;
pub use engine::queue::Completion;
pub use engine::recover::Recover;
pub use error::{Error, ErrorKind, Operation, Result};
pub use open::recover;
pub use open::striped::recover_striped;
pub use rules::policy::{Durability, GROWTH_CAP_DEFAULT_BYTES, Growth, Tail};
pub use rules::recovery::{Recovery, Verdict};
pub use stats::Stats;
// For the preload library, whose threads run no handlers of the program either.
#[doc(hidden)]
pub use sync::signals::with_signals_blocked;
pub use sys::probe::Alignment;

/// What takes bytes from outside, for `fuzz/`.
#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod fuzzing {
    pub use crate::rules::marker::{Identity, Marker, Mode, Prepared};
    pub use crate::rules::recovery::{Extent, judge};
}

/// Sets what all files of the process together may have grown ahead, in bytes; 2 GiB by default. An
/// append that needs more gets just what it needs. What [`File::recycle`] keeps is not counted.
pub fn set_growth_budget(bytes: u64) {
    engine::process::Process::current().budget().set_limit(bytes);
}
