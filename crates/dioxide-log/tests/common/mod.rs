//! For tests whose writer works in another thread.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Longer than anything here takes on a slow machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Ends the writer of a test, also one that fails.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
