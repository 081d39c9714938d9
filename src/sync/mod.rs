//! What threads wait with: every lock, condition, futex and thread of the library is made here, so
//! that there is one place to put a scheduler under them.
//!
//! A lock is never poisoned: no state is left half changed by a panic, or the process ends (see the
//! engine).

pub(crate) mod inflight;
#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod number;
#[cfg(not(loom))]
#[allow(unsafe_code)]
pub(crate) mod signals;
#[cfg(not(loom))]
mod system;
#[cfg(any(test, feature = "sim"))]
#[cfg_attr(loom, allow(dead_code, reason = "only the system's waits give way to it"))]
pub(crate) mod world;

#[cfg(loom)]
pub use model::*;
#[cfg(not(loom))]
pub(crate) use number::thread_number;
#[cfg(not(loom))]
pub(crate) use std::{sync::OnceLock, thread_local};
#[cfg(not(loom))]
pub use system::*;

use std::ops::Deref;

/// A value that shares no cache line with another: what is written beside it slows down nobody who
/// reads it. 128 bytes are two lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
