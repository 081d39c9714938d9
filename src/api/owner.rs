//! The process that has a value.

use crate::engine::process::Process;
use std::fmt;

/// The process that has a value with threads or locks. The child of a fork has a copy of the
/// memory, and neither of them. It may even have the same number, in another PID namespace.
///
/// Comparing costs no system call.
#[derive(Clone, Copy)]
pub struct Owner(&'static Process);

impl Owner {
    /// The calling process.
    pub fn current() -> Self {
        Self(Process::current())
    }

    /// Returns whether this is the calling process.
    pub fn is_current(self) -> bool {
        self.0.is_current()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("is_current", &self.is_current()).finish()
    }
}
