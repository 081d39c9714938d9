//! Ctrl-C and similar signals: the first one asks every loop to stop, the second one kills.
//! Process-wide.
//!
//! Commands that change nothing do not listen until they write a result. The default action ends
//! them at once, also in a long read or a write to a full pipe. Nor does `dioxide run`, whose
//! program would lose its ignored signals. Signals that `nohup` ignores stay ignored.
//!
//! Scratch files have no name, so nothing is left behind in either case. But the second signal
//! leaves the temporary file of a copy or a result (`.dioxide-….tmp`), and the directory of
//! `bench log --files`.

use crate::sys::is_ignored;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

/// The number of the signal that arrived; 0 for none.
static ARRIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// The user, or the system, asked to stop.
#[derive(Debug)]
pub struct Interrupted {
    pub signal: u8,
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// From now on SIGINT, SIGTERM and SIGHUP set the flag that [`check`] reads, unless ignored.
pub fn listen() -> Result<()> {
    static LISTENS: AtomicBool = AtomicBool::new(false);
    if LISTENS.swap(true, Relaxed) {
        return Ok(());
    }
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if is_ignored(signal).context("look for ignored signals")? {
            continue;
        }
        // Handlers run in this order: the first signal finds `again` still unset.
        flag::register_conditional_default(signal, again.clone())
            .and_then(|_| flag::register(signal, again.clone()))
            .and_then(|_| flag::register_usize(signal, ARRIVED.clone(), signal as usize))
            .context("listen for Ctrl-C")?;
    }
    Ok(())
}

/// Fails once a signal has arrived. Every long loop calls it.
pub fn check() -> Result<(), Interrupted> {
    match ARRIVED.load(Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted { signal: signal as u8 }),
    }
}
