//! Events of logs, for metrics and traces.
//!
//! As [`dioxide::observe`], which reports the requests and flushes below a log: the same rules hold
//! for an observer.
//!
//! ```
//! use dioxide_log::observe::{self, Event};
//!
//! observe::set_observer(|event| {
//!     if let Event::Batch { records, took, .. } = event {
//!         println!("{records} records in {took:?}");
//!     }
//! })?;
//! # Ok::<(), observe::ObserverIsSet>(())
//! ```

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(test)]
mod tests;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use self::metrics::metrics;
#[cfg(feature = "tracing")]
pub use self::tracing::tracing;
pub use dioxide::observe::ObserverIsSet;

use crate::error::Error;
use crate::recover::Report;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Something that happened. `log` is the directory or device of the log, and `took` the time from
/// begin to end.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A log that exists was recovered.
    #[non_exhaustive]
    Recovery {
        /// The log.
        log: &'a Path,
        /// The findings.
        report: &'a Report,
        /// With the writes that clear a torn write.
        took: Duration,
    },
    /// A call that appends was acknowledged, or a future of one. A record that was
    /// [submitted](crate::Log::submit) is only part of a batch.
    #[non_exhaustive]
    Append {
        /// The log.
        log: &'a Path,
        /// The number of records.
        records: u64,
        /// From the call to the acknowledgment.
        took: Duration,
    },
    /// A batch was written. There are as many without an error as
    /// [`Stats::batches`](crate::Stats::batches).
    #[non_exhaustive]
    Batch {
        /// The log.
        log: &'a Path,
        /// The number of records.
        records: u64,
        /// The length of the write.
        bytes: u64,
        /// With the flush, if appends are durable.
        took: Duration,
        /// Why it failed, if it did.
        error: Option<&'a Error>,
    },
    /// A flush by [`sync`](crate::Log::sync) ended.
    #[non_exhaustive]
    Sync {
        /// The log.
        log: &'a Path,
        /// The flush of the last segment.
        took: Duration,
        /// Why it failed, if it did.
        error: Option<&'a Error>,
    },
    /// A segment was begun, new or used again. The event of its first batch follows.
    #[non_exhaustive]
    Rotation {
        /// The log.
        log: &'a Path,
        /// The number of the segment.
        segment: u64,
    },
    /// A segment was made and filled with zeros, or taken from the pool of a set, as the log had no
    /// free one.
    #[non_exhaustive]
    SegmentCreated {
        /// The log.
        log: &'a Path,
        /// By the thread that makes segments.
        took: Duration,
    },
    /// A segment became free for reuse.
    #[non_exhaustive]
    SegmentFreed {
        /// The log.
        log: &'a Path,
    },
    /// A write or flush failed, so the log takes no more.
    #[non_exhaustive]
    Failure {
        /// The log.
        log: &'a Path,
        /// The first failure.
        error: &'a Error,
    },
}

type Observer = dyn Fn(&Event<'_>) + Send + Sync;

static OBSERVER: OnceLock<Box<Observer>> = OnceLock::new();

/// Sets the observer of the process for all its logs, for good.
///
/// # Errors
///
/// [`ObserverIsSet`] if the process has one.
pub fn set_observer(
    observer: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> Result<(), ObserverIsSet> {
    OBSERVER.set(Box::new(observer)).map_err(|_| ObserverIsSet)
}

/// The time now, if events are observed.
pub(crate) fn begun() -> Option<Instant> {
    OBSERVER.get().map(|_| Instant::now())
}

pub(crate) fn report(event: &Event<'_>) {
    if let Some(observer) = OBSERVER.get() {
        let observed = catch_unwind(AssertUnwindSafe(|| observer(event)));
        if observed.is_err() {
            // Threads wait for this one. It has printed the message.
            std::process::abort();
        }
    }
}
