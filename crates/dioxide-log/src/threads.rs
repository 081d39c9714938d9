//! The threads of a log.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::path::Path;
use std::thread::{self, JoinHandle};

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread that serves a log. `path` is that of the log, for messages.
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

/// Whether the calling thread serves a log. It must not wait for the threads of a log.
pub fn serves() -> bool {
    SERVES.get()
}
