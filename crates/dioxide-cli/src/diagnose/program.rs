//! A program that runs: watched for a time, until it ends, or until Ctrl-C.

use crate::bench::progress::Progress;
use crate::interrupt::{self, Interrupted};
use anyhow::Result;
use dioxide_diagnose::evidence::{Evidence, Subject};
use dioxide_diagnose::watch::{Options, Watcher, Whom};
use signal_hook::consts::SIGINT;
use std::time::{Duration, Instant};

/// How soon a Ctrl-C is noticed, or the end of the program.
const ATTENTION: Duration = Duration::from_millis(50);

/// What is seen of it in that time.
pub fn watch(pid: u32, time: Duration, options: Options) -> Result<Evidence> {
    let watcher = Watcher::start(Whom::Program { pid }, options)?;
    let progress = Progress::of_time(time);
    progress.tell(format!("watching process {pid}"));
    wait(&watcher, time, &progress)?;
    // The rest is the watcher's to say.
    Ok(watcher.stop(Subject::Program { pid, command: String::new(), processes: 0 }))
}

/// The first Ctrl-C ends the watching, not the verdict; the second one kills, and so does any other signal.
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
