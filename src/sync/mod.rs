//! What threads wait with: every lock, condition, futex and thread of the library is made here, so that there is one
//! place to put a scheduler under them.
//!
//! A lock is never poisoned: no state is left half changed by a panic, or the process ends (see the engine).

mod system;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod world;

pub(crate) use system::*;
