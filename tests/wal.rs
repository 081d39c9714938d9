//! The example of a log, killed again and again on every file system. It starts this executable as its writer.

#[path = "../examples/wal.rs"]
mod wal;

use dioxide_testkit::lab::TestDir;
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

fn a_killed_log_has_every_record_that_was_acknowledged(dir: TestDir) -> TrialResult {
    Ok(wal::crash(&dir.join("log"), &AtomicBool::new(false))?)
}

fn trials() -> Vec<Trial> {
    lab_trials(
        "a_killed_log_has_every_record_that_was_acknowledged",
        a_killed_log_has_every_record_that_was_acknowledged,
    )
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|arg| arg == "write") {
        return wal::main().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    dioxide_testkit::run(&[], trials)
}
