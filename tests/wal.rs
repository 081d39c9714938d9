//! The example of a log, killed again and again on every file system. It starts this executable as
//! its writer.

#[path = "../examples/wal.rs"]
mod wal;

use dioxide_testkit::lab::TestDir;
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

fn a_killed_log_has_every_record_that_was_acknowledged(dir: TestDir) -> TrialResult {
    Ok(wal::crash(&dir.join("log"), &AtomicBool::new(false))?)
}

/// Each line of code in docs/records.md is in the example.
fn the_documentation_shows_the_example() {
    let example: Vec<_> = include_str!("../examples/wal.rs").lines().collect();
    let blocks = include_str!("../docs/records.md").split("```rust\n").skip(1);
    let shown = blocks.flat_map(|block| block.split("```").next().expect("it ends").lines());
    let mut count = 0;
    for line in shown {
        assert!(example.contains(&line), "{line}");
        count += 1;
    }
    assert!(count > 5, "{count} lines are shown");
}

fn trials() -> Vec<Trial> {
    let mut trials = lab_trials(
        "a_killed_log_has_every_record_that_was_acknowledged",
        a_killed_log_has_every_record_that_was_acknowledged,
    );
    trials.push(Trial::test("the_documentation_shows_the_example", || {
        the_documentation_shows_the_example();
        Ok(())
    }));
    trials
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|arg| arg == "write") {
        return wal::main().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    dioxide_testkit::run(&[], trials)
}
