//! Tests that need the lab. Without it they are listed as ignored, with the reason, so that a run
//! counts and names what it skipped. The same applies to a test on a file system where it has
//! nothing to test.
//!
//! `make test` runs the trials of every file system on ext4 and XFS, or on the first one where they
//! apply. `make test-all` sets `DIOXIDE_TEST_ALL`: they run on every file system, and [`in_turn`]
//! and [`only_in_all`] hide nothing.

use std::env;
use std::io;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

use crate::lab::{self, Applies, Disk, Fs, TestDir};
use crate::limit::Limited;

pub use libtest_mimic::{Failed, Trial};

/// The result of a trial. `?` takes any error that can be displayed.
pub type TrialResult = Result<(), Failed>;

/// A test that needs a fresh directory on the lab's `fs`; named `fs::name`.
pub fn lab_trial(
    name: &str,
    fs: Fs,
    test: impl FnOnce(TestDir) -> TrialResult + Send + 'static,
) -> Trial {
    let full_name = format!("{fs}::{name}");
    let label = full_name.clone();
    // A lab that lacks the file system fails the trial.
    trial(full_name, skipped(lab::dir().map(drop)), move || test(lab::fresh_dir(fs, &label)?))
}

/// The same test on every file system of the lab.
pub fn lab_trials(name: &str, test: fn(TestDir) -> TrialResult) -> Vec<Trial> {
    lab_trials_where(name, |_| Ok(()), test)
}

/// Like [`lab_trials`], where the test applies. Listed as ignored on the others, with the reason.
pub fn lab_trials_where(
    name: &str,
    applies: fn(Fs) -> Applies,
    test: impl Fn(TestDir) -> TrialResult + Copy + Send + 'static,
) -> Vec<Trial> {
    on_each(name, applies, |fs| lab_trial(name, fs, test))
}

/// A test that needs the lab's bare disk, one at a time; named `disk::name`.
pub fn disk_trial(name: &str, test: impl FnOnce(Disk) -> TrialResult + Send + 'static) -> Trial {
    trial(format!("disk::{name}"), skipped(lab::disk_path().map(drop)), move || test(lab::disk()?))
}

/// A test that makes file systems of its own ([`crate::volume::Volume`]).
pub fn volume_trial(name: &str, test: impl FnOnce() -> TrialResult + Send + 'static) -> Trial {
    trial(name.to_owned(), skipped(can_make_volumes()), test)
}

/// Like [`volume_trials`], where the test applies. Listed as ignored on the others, with the
/// reason.
pub fn volume_trials_where(
    name: &str,
    applies: fn(Fs) -> Applies,
    test: impl Fn(Fs) -> TrialResult + Copy + Send + 'static,
) -> Vec<Trial> {
    on_each(name, applies, |fs| volume_trial(&format!("{fs}::{name}"), move || test(fs)))
}

/// A test that makes a file system of each kind; named `fs::name`.
pub fn volume_trials(name: &str, test: fn(Fs) -> TrialResult) -> Vec<Trial> {
    volume_trials_where(name, |_| Ok(()), test)
}

/// A test that makes FUSE disks ([`crate::fuse_disk::FuseDisk`]).
pub fn fuse_trial(name: &str, test: impl FnOnce() -> TrialResult + Send + 'static) -> Trial {
    trial(name.to_owned(), skipped(can_make_volumes().and_then(|()| exists("/dev/fuse"))), test)
}

/// Like [`fuse_trials`], where the test applies. Listed as ignored on the others, with the reason.
pub fn fuse_trials_where(
    name: &str,
    applies: fn(Fs) -> Applies,
    test: impl Fn(Fs) -> TrialResult + Copy + Send + 'static,
) -> Vec<Trial> {
    let applies = |fs: Fs| fs.has_disk().and_then(|()| applies(fs));
    on_each(name, applies, |fs| fuse_trial(&format!("{fs}::{name}"), move || test(fs)))
}

/// A test that makes a FUSE disk with a file system of each kind that has a disk; named `fs::name`.
pub fn fuse_trials(name: &str, test: fn(Fs) -> TrialResult) -> Vec<Trial> {
    fuse_trials_where(name, |_| Ok(()), test)
}

/// Trials that run where `tool` is installed, and are listed as ignored elsewhere.
pub fn trials_with(tool: &str, trials: impl IntoIterator<Item = Vec<Trial>>) -> Vec<Trial> {
    let trials = trials.into_iter().flatten();
    match Command::new(tool).arg("--version").output() {
        Ok(_) => trials.collect(),
        Err(why) => {
            let skipped = |trial: Trial| {
                trial.with_kind(format!("skipped: {tool}: {why}")).with_ignored_flag(true)
            };
            trials.map(skipped).collect()
        }
    }
}

/// A trial for each file system, ignored where it does not apply or is not chosen.
fn on_each(name: &str, applies: impl Fn(Fs) -> Applies, make: impl Fn(Fs) -> Trial) -> Vec<Trial> {
    let first = Fs::ALL.into_iter().find(|fs| applies(*fs).is_ok());
    let each = |fs| match applies(fs) {
        Err(why) => inapplicable(name, fs, why),
        Ok(()) if matches!(fs, Fs::Ext4 | Fs::Xfs) || Some(fs) == first => make(fs),
        Ok(()) => in_all(make(fs)),
    };
    Fs::ALL.map(each).into()
}

/// Tests that do not depend on the file system or the shape of a volume. `make test` runs one trial
/// of each test: the first of one, the second of the next, and so on.
pub fn in_turn(tests: impl IntoIterator<Item = Vec<Trial>>) -> Vec<Trial> {
    tests.into_iter().enumerate().flat_map(|(n, trials)| only_nth(n, trials)).collect()
}

/// Leaves one of the trials that run: the `n`-th, counted round.
fn only_nth(n: usize, trials: Vec<Trial>) -> Vec<Trial> {
    let (mut running, mut others): (Vec<_>, Vec<_>) =
        trials.into_iter().partition(|trial| !trial.has_ignored_flag());
    if !running.is_empty() {
        let chosen = running.swap_remove(n % running.len());
        others.extend(running.into_iter().map(in_all));
        others.push(chosen);
    }
    others
}

/// Slow trials, and trials that repeat others on another file system: only `make test-all` runs
/// them.
pub fn only_in_all(trials: impl IntoIterator<Item = Trial>) -> Vec<Trial> {
    trials.into_iter().map(in_all).collect()
}

/// Whether this is a run of `make test-all`.
pub fn is_of_all() -> bool {
    env::var_os("DIOXIDE_TEST_ALL").is_some()
}

fn in_all(trial: Trial) -> Trial {
    if is_of_all() || trial.has_ignored_flag() {
        return trial;
    }
    trial.with_kind("left to make test-all").with_ignored_flag(true)
}

fn inapplicable(name: &str, fs: Fs, why: &'static str) -> Trial {
    let fail = move || Err(Failed::from(why));
    trial(format!("{fs}::{name}"), Err(format!("does not apply: {why}")), fail)
}

fn skipped(possible: io::Result<()>) -> Result<(), String> {
    possible.map_err(|why| format!("skipped: {why}"))
}

fn trial(
    name: String,
    possible: Result<(), String>,
    test: impl FnOnce() -> TrialResult + Send + 'static,
) -> Trial {
    let label = name.clone();
    let test = move || {
        let _limited = Limited::begin(&label);
        test()
    };
    match possible {
        Ok(()) => Trial::test(name, test),
        // Fails with the reason if run with --ignored.
        Err(why) => Trial::test(name, test).with_kind(why).with_ignored_flag(true),
    }
}

fn can_make_volumes() -> io::Result<()> {
    lab::dir()?;
    if geteuid().is_root() { Ok(()) } else { Err(io::Error::other("not root")) }
}

fn exists(path: &str) -> io::Result<()> {
    if Path::new(path).exists() { Ok(()) } else { Err(io::Error::other(format!("no {path}"))) }
}
