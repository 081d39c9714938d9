//! The test rig of dioxide: what integration tests stand on. Linux, and root for all but [`child`].
//!
//! - [`lab`]: fresh directories on the file systems that `scripts/lab up` mounts, and its bare
//!   disk.
//! - [`volume`]: a file system of a test's own, to be shut down, remounted, checked.
//! - [`ext_volume`]: ext2 and ext3 volumes as image files, seen by e2fsprogs and by the kernel.
//! - [`fuse_disk`]: a disk with a volatile cache that fails, lies and loses power on command.
//! - [`dio_trace`]: the direct I/O that the kernel does on a file, from its own trace events.
//! - [`child`]: the test's executable started again, to be killed.
//! - [`records`]: bytes that prove themselves.
//! - [`trials`]: tests that run if their lab is there and are listed as ignored otherwise.
//!
//! A test binary that uses children or a FUSE disk has `harness = false` and this main:
//!
//! ```no_run
//! use dioxide_testkit::{child::Acks, lab::Fs, trials::{Trial, lab_trial}};
//!
//! fn counter(acks: &Acks, args: &[String]) {
//!     let last: u64 = args[0].parse().unwrap();
//!     (0..last).for_each(|n| acks.send([n, 0, 0]));
//! }
//!
//! fn trials() -> Vec<Trial> {
//!     vec![lab_trial("writes", Fs::Ext4, |dir| Ok(std::fs::write(dir.join("file"), b"x")?))]
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     dioxide_testkit::run(&[("counter", counter)], trials)
//! }
//! ```

pub mod child;
mod command;
pub mod dio_trace;
pub mod ext_volume;
pub mod files;
pub mod fork;
pub mod fuse_disk;
pub mod lab;
mod limit;
pub mod loop_device;
mod mount;
pub mod records;
mod site;
pub mod trials;
pub mod volume;
mod wait;

pub use command::with_default_signals;
use std::process::ExitCode;

/// The main of a test binary: serves as a child or as a FUSE disk when started as one, and runs
/// the trials otherwise. Takes the arguments of the standard test harness.
pub fn run(scenarios: &[child::Scenario], trials: fn() -> Vec<trials::Trial>) -> ExitCode {
    run_in_turn(scenarios, &[trials])
}

/// The same with several suites. A suite begins when the one before it has ended. All but the first
/// run one trial at a time.
pub fn run_in_turn(
    scenarios: &[child::Scenario],
    suites: &[fn() -> Vec<trials::Trial>],
) -> ExitCode {
    if let Some(code) = serve_if_asked(scenarios) {
        return code;
    }
    let mut arguments = libtest_mimic::Arguments::from_args();
    let mut failed = false;
    for suite in suites {
        failed |= libtest_mimic::run(&arguments, suite()).has_failed();
        arguments.test_threads = Some(1);
    }
    if failed { ExitCode::from(101) } else { ExitCode::SUCCESS }
}

/// Serves as a child or as a FUSE disk when started as one. The first thing in the main of a
/// program, not a test, that uses either.
pub fn serve_if_asked(scenarios: &[child::Scenario]) -> Option<ExitCode> {
    let code = fuse_disk::server::serve_if_asked().or_else(|| child::play_if_asked(scenarios));
    if code.is_none() {
        child::allow_reexec();
    }
    code
}
