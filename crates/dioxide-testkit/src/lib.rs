//! The test rig of dioxide: what integration tests stand on. Linux, and root for all but [`child`].
//!
//! - [`lab`]: fresh directories on the file systems that `scripts/lab up` mounts, and its bare disk.
//! - [`volume`]: a file system of a test's own, to be shut down, remounted, checked.
//! - [`fuse_disk`]: a disk with a volatile cache that fails, lies and loses power on command.
//! - [`child`]: the test's executable started again, to be killed.
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
pub mod files;
pub mod fuse_disk;
pub mod lab;
pub mod loop_device;
mod mount;
mod site;
pub mod trials;
pub mod volume;
mod wait;

use std::process::ExitCode;

/// The main of a test binary: serves as a child or as a FUSE disk when started as one, and runs
/// the trials otherwise. Takes the arguments of the standard test harness.
pub fn run(scenarios: &[child::Scenario], trials: fn() -> Vec<trials::Trial>) -> ExitCode {
    if let Some(code) = fuse_disk::server::serve_if_asked() {
        return code;
    }
    if let Some(code) = child::play_if_asked(scenarios) {
        return code;
    }
    child::allow_reexec();
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials()).exit_code()
}
