//! Bounded waits: nothing in the rig waits for ever, least of all for a device it has broken.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How long mounts, detaches and servers get before the rig takes harder measures. Where two busy cores are shared, a server
/// needs more than fifteen seconds to start.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(20);

/// Tries again until `attempt` succeeds; when time is up, its last error is the answer.
pub(crate) fn retry<T>(limit: Duration, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(_) if start.elapsed() < limit => thread::sleep(PAUSE),
            result => return result,
        }
    }
}
