//! The preload library under programs: C programs of our own that know what must be so (`tests/c`),
//! and programs that nobody here wrote. Every test runs without the library too: what fails there
//! is the test's own fault.

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
