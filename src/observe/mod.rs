//! Events of the library, for metrics and traces.
//!
//! A program sets one observer for the process. Without one, each place that would report an event
//! costs one load and a branch, and reads no clock.
//!
//! ```
//! use dioxide::observe::{self, Event};
//!
//! observe::set_observer(|event| {
//!     if let Event::Flush { file, took, .. } = event {
//!         println!("a flush of {} took {took:?}", file.display());
//!     }
//! })?;
//! # Ok::<(), observe::ObserverIsSet>(())
//! ```
//!
//! The function `metrics` (feature `metrics`) makes an observer for the crate `metrics`, and
//! `tracing` (feature `tracing`) one for the crate `tracing`.
//!
//! # Rules for an observer
//!
//! It runs on the thread on which the event happens: that of a caller, a queue, a reactor or
//! growth. The outcome of an operation waits for it, so it should take microseconds at most. It may
//! run under locks of this library, so it must not use a file of it, nor wait for a thread that
//! does. It must not panic: a panic aborts the process.

// For dioxide-log.
#[cfg(feature = "metrics")]
#[doc(hidden)]
pub mod metrics;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use self::metrics::metrics;
#[cfg(feature = "tracing")]
pub use self::tracing::tracing;

use crate::error::Error;
use crate::sync::now;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Something that happened. `file` is the path of the file, as given at open, and `took` the time
/// from begin to end.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An append was acknowledged. There are as many as [`Stats::appends`](crate::Stats::appends).
    #[non_exhaustive]
    Append {
        /// The file.
        file: &'a Path,
        /// The length of the record.
        bytes: u64,
        /// From the call, or from its entry into a queue, to the acknowledgment.
        took: Duration,
    },
    /// A write request ended. The requests are those of
    /// [`Stats::requests`](crate::Stats::requests), without those that failed before their first
    /// call.
    #[non_exhaustive]
    Write {
        /// The file.
        file: &'a Path,
        /// The number of operations that shared the request.
        operations: u64,
        /// The length of the request, in whole blocks.
        bytes: u64,
        /// Whether it carried a flush (RWF_DSYNC).
        dsync: bool,
        /// With all its calls.
        took: Duration,
        /// Why it failed, if it did.
        error: Option<&'a Error>,
    },
    /// A flush ended. The flushes are those of [`Stats::flushes`](crate::Stats::flushes). A journal
    /// commit of some files only, which another flush repeats, is no event.
    #[non_exhaustive]
    Flush {
        /// The file that made it. It may be that of many files.
        file: &'a Path,
        /// Until its result is final: after all concurrent flushes of the file system.
        took: Duration,
        /// Why it failed, if it did.
        error: Option<&'a Error>,
    },
    /// A growth step was completed. There are as many as
    /// [`Stats::growths`](crate::Stats::growths).
    #[non_exhaustive]
    Growth {
        /// The file.
        file: &'a Path,
        /// The length of the step.
        bytes: u64,
        /// From the allocation to the marker of the next step.
        took: Duration,
    },
    /// A file system was wedged. Every file on it fails from now on.
    #[non_exhaustive]
    Wedge {
        /// The failed flush, with the path of its file.
        error: &'a Error,
    },
}

/// The process has an observer already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process has an observer already")]
pub struct ObserverIsSet;

type Observer = dyn Fn(&Event<'_>) + Send + Sync;

static OBSERVER: OnceLock<Box<Observer>> = OnceLock::new();

/// Sets the observer of the process, for good. Operations in flight may be reported or not.
///
/// # Errors
///
/// [`ObserverIsSet`] if the process has one.
pub fn set_observer(
    observer: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> Result<(), ObserverIsSet> {
    OBSERVER.set(Box::new(observer)).map_err(|_| ObserverIsSet)
}

/// A time in nanoseconds, from 1. So an `Option` of it, which each operation has, is one word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamp(NonZeroU64);

impl Timestamp {
    fn now() -> Self {
        Self(NonZeroU64::MIN.saturating_add(now().as_nanos() as u64))
    }
}

/// The time now, if events are observed.
#[inline]
pub(crate) fn begun() -> Option<Timestamp> {
    OBSERVER.get().map(|_| Timestamp::now())
}

/// Reports the end of what began then, if that was observed.
#[inline]
pub(crate) fn ended<'a>(begun: Option<Timestamp>, event: impl FnOnce(Duration) -> Event<'a>) {
    if let Some(Timestamp(begun)) = begun {
        let Timestamp(now) = Timestamp::now();
        report(&event(Duration::from_nanos(now.get() - begun.get())));
    }
}

pub(crate) fn report(event: &Event<'_>) {
    if let Some(observer) = OBSERVER.get() {
        let observed = catch_unwind(AssertUnwindSafe(|| observer(event)));
        if observed.is_err() {
            // Other threads wait for this one. The panic has printed its message.
            std::process::abort();
        }
    }
}
