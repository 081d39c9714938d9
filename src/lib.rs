//! Concurrent, durable, safe direct I/O (O_DIRECT) for Linux.
//!
//! On ext4 and XFS, appends to an O_DIRECT file serialize on the inode lock, and durable writers
//! wait for each other's flushes. dioxide grows the file ahead of its writers, so that no write
//! moves EOF. It merges concurrent appends into one request, and lets writers share flushes.
//! Closing the file undoes the growth; after a crash the next open does.
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
//!     // Stable when it returns, with its offset.
//!     let append = |n| log.append(format!("record {n}\n").as_bytes());
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
//! Start with [`OpenOptions`] and [`File`]. [`AsyncFile`] has futures, and [`Queue`] many
//! operations of one thread. The documentation of each call states its guarantees on return and
//! after a crash. [`observe`] reports events, for metrics and traces.

#![deny(unsafe_code)]

mod api;
mod backend;
#[allow(unsafe_code)]
mod buffer;
mod engine;
mod error;
#[doc(hidden)]
pub mod ledger;
pub mod observe;
mod open;
mod os_error;
mod rules;
mod stats;
mod sync;
#[allow(unsafe_code)]
mod sys;
// For the command line, which escapes names as errors do.
#[doc(hidden)]
pub mod text;

pub use api::file::File;
pub use api::future::{AsyncFile, Blocking, SyncData, Transfer};
// For dioxide-ext.
#[doc(hidden)]
pub use api::image;
pub use api::options::OpenOptions;
// For dioxide-log.
#[doc(hidden)]
pub use api::owner::Owner;
pub use api::queue::{Full, Queue, QueueOptions, Reaped};
pub use api::reactor::{LocalReactor, Reactor};
pub use api::replace::{copy, copy_with_progress, replace};
#[cfg(any(test, feature = "sim"))]
pub use api::sim;
pub use api::stream::{Reader, Writer};
pub use api::sync_all::sync_all;
pub use buffer::Buffer;
pub use engine::queue::Completion;
pub use engine::recover::Recover;
pub use error::{Error, ErrorKind, Operation, Result};
// For the preload library.
#[doc(hidden)]
pub use open::is_left_grown;
pub use open::recover;
pub use open::striped::recover_striped;
// For the preload library and the command line.
#[doc(hidden)]
pub use rules::marker::NAME as MARKER_NAME;
pub use rules::policy::{Durability, GROWTH_CAP_DEFAULT_BYTES, Growth, Tail};
pub use rules::recovery::{Recovery, Verdict};
pub use stats::Stats;
// For the preload library: signal handlers of the program must not run on its threads either.
#[doc(hidden)]
pub use sync::signals::with_signals_blocked;
pub use sys::probe::Alignment;

/// The parsers of untrusted bytes, for `fuzz/`.
#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod fuzzing {
    pub use crate::rules::marker::{Identity, Marker, Mode, Prepared};
    pub use crate::rules::recovery::{Extent, judge};
}

/// Sets how many bytes all files of the process together may grow ahead; 2 GiB by default. Beyond
/// it, an append gets only the space that it needs. The space that [`File::recycle`] keeps is not
/// counted.
pub fn set_growth_budget(bytes: u64) {
    engine::process::Process::current().budget().set_limit(bytes);
}
