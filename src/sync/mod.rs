//! Synchronization for the whole library. Every lock, condition variable, futex and thread is made
//! here, so that a scheduler can replace them.
//!
//! No lock is poisoned: a panic leaves no state half changed, or it ends the process (see the
//! engine).

pub(crate) mod inflight;
#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod number;
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
use std::task::Waker;

/// Adds a waker to those that an event wakes, unless it is among them. A queue asks again each time
/// its bell rings.
pub(crate) fn enlist(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|known| known.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

/// Padded against false sharing. 128 bytes are two lines, since processors prefetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
