//! Bounded waits: nothing in the rig waits for ever, least of all for a device it has broken.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of mounts, detaches and servers before the rig takes harder measures. On two busy
/// shared cores a server needs more than 15 seconds to start.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(20);

/// Retries until `attempt` succeeds. After `limit`, returns its last error.
pub(crate) fn retry<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(_) if start.elapsed() < limit => thread::sleep(PAUSE),
            result => return result,
        }
    }
}
