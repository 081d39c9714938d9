//! The preload library under programs: C programs that check themselves (`tests/c`), and programs
//! of Debian. Every test also runs without the library. A failure there is a bug of the test.

mod bad_use;
mod cases;
mod neighbours;
mod posix;
mod programs;
mod rig;
mod threads;
mod wedge;

use dioxide_testkit::trials::Trial;
use std::process::ExitCode;

fn trials() -> Vec<Trial> {
    [
        cases::trials(),
        posix::trials(),
        threads::trials(),
        wedge::trials(),
        neighbours::trials(),
        programs::trials(),
        bad_use::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run_in_turn(&[], &[trials, neighbours::alone])
}
