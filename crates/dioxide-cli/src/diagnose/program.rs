//! Observes a running process for a time, until it ends, or until Ctrl-C.

use crate::bench::progress::Progress;
use crate::interrupt::{self, Interrupted};
use anyhow::Result;
use dioxide_diagnose::evidence::{Evidence, Subject};
use dioxide_diagnose::watch::{Options, Watcher, Whom};
use signal_hook::consts::SIGINT;
use std::time::{Duration, Instant};

/// Interval of checking for Ctrl-C and the end of the process.
const ATTENTION: Duration = Duration::from_millis(50);

/// The evidence from this time.
pub fn watch(pid: u32, time: Duration, options: Options) -> Result<Evidence> {
    let watcher = Watcher::start(Whom::Program { pid }, options)?;
    let progress = Progress::of_time(time);
    progress.tell(format!("watching process {pid}"));
    wait(&watcher, time, &progress)?;
    // The watcher fills in the rest.
    Ok(watcher.stop(Subject::Program { pid, command: String::new(), processes: 0 }))
}

/// The first Ctrl-C ends the observation and gives a verdict. A second one, or any other signal,
/// kills.
fn wait(watcher: &Watcher, time: Duration, progress: &Progress) -> Result<()> {
    let began = Instant::now();
    loop {
        match interrupt::check() {
            Ok(()) => {}
            Err(Interrupted { signal }) if i32::from(signal) == SIGINT => return Ok(()),
            Err(interrupted) => return Err(interrupted.into()),
        }
        let left = time.saturating_sub(began.elapsed());
        if left.is_zero() || watcher.is_over() {
            return Ok(());
        }
        std::thread::sleep(left.min(ATTENTION));
        progress.pass(began.elapsed());
    }
}
