//! The threads of a log.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::task::Waker;
use std::thread::{self, JoinHandle};

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread that serves logs. `path` is that of the log, for messages.
pub fn spawn(
    name: &str,
    path: &Path,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let serve = || {
        SERVES.set(true);
        run();
    };
    let spawned = thread::Builder::new().name(name.into()).spawn(serve);
    spawned.map_err(|error| Error::system("spawn a thread for", path, error))
}

/// Runs what waits for threads of a log. In a thread of its own if the caller is such a thread: a
/// task that it woke may have dropped the log.
pub fn run_where_it_may_wait(path: &Path, run: impl FnOnce() + Send + 'static) {
    if !serves() {
        return run();
    }
    if let Err(error) = spawn("dioxide-log-close", path, run) {
        log::error!("a log stays open: {error}");
    }
}

/// Wakes tasks. A waker that panics must not end the calling thread, which other tasks need.
pub fn wake(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            log::error!("a waker panicked; its task may never wake");
        }
    }
}

/// Whether the calling thread serves a log. It must not wait for the threads of a log.
fn serves() -> bool {
    SERVES.get()
}
