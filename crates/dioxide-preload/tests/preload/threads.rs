//! Many threads on one file, beside other events and with each end of the process. The file has
//! every acknowledged write, its exact length and no marker.

use super::rig::*;
use dioxide_testkit::files;
use dioxide_testkit::lab::TestDir;
use dioxide_testkit::trials::{Failed, Trial, TrialResult, in_turn, lab_trials_where};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// The arguments of `c/threads.c`, and the signal that ends it.
const PLANS: [(&str, Option<i32>); 28] = [
    ("threads=64 blocks=4000 end=close", None),
    ("threads=64 blocks=2000", None),
    ("threads=64 blocks=2000 end=exit", None),
    ("threads=16 blocks=1000 end=_exit", None),
    ("threads=16 blocks=1000 end=quick_exit", None),
    ("threads=16 blocks=1000 end=pthread_exit", None),
    ("threads=16 blocks=1000 end=exec", None),
    ("threads=64 blocks=2000 append end=close", None),
    ("threads=16 blocks=600 dsync end=close", None),
    ("threads=16 blocks=600 dsync append", None),
    ("threads=32 regions end=close", None),
    ("threads=16 regions", None),
    ("threads=16 blocks=2000 beside=fork", None),
    ("threads=16 blocks=2000 append beside=fork", None),
    ("threads=16 regions beside=fork", None),
    ("threads=16 blocks=2000 beside=spawn", None),
    ("threads=16 blocks=2000 append beside=system", None),
    ("threads=16 blocks=2000 beside=close", None),
    ("threads=16 blocks=2000 beside=look", None),
    ("threads=16 blocks=20000 middle end=return", None),
    ("threads=16 blocks=20000 middle end=exit", None),
    ("threads=16 blocks=20000 middle end=_exit", None),
    ("threads=16 blocks=20000 middle end=quick_exit", None),
    ("threads=16 blocks=4000 middle end=pthread_exit", None),
    ("threads=16 blocks=20000 middle end=exec", None),
    ("threads=16 blocks=20000 middle append end=exit", None),
    // The file is exact, though the process ends by the signal.
    ("threads=16 blocks=20000 middle end=term", Some(libc::SIGTERM)),
    ("threads=16 blocks=20000 middle end=kill", Some(libc::SIGKILL)),
];

fn threads(dir: &Path, verb: &str, plan: &str, with: With) -> (Command, String) {
    let mut command = Command::new(c_program("threads", COMPILED[plan.len() % 3]));
    command.arg(verb).arg("file").arg("acks").args(plan.split(' ')).current_dir(dir);
    with.set(&mut command);
    let shown =
        format!("{} {} {verb} file acks {plan}", with.words(), command.get_program().display());
    (command, shown)
}

fn try_plan(dir: &Path, plan: &str, signal: Option<i32>, with: With) -> TrialResult {
    let dir = empty(dir, &format!("{with:?}"))?;
    let (mut command, shown) = threads(&dir, "write", plan, with);
    let again = |error: Failed| {
        failed(format!("{}\nagain, in an empty directory: {shown}", message(&error)))
    };
    let finished = run(&mut command).map_err(again)?;
    if finished.status.signal() != signal {
        return Err(finished.well().err().map_or_else(|| failed("it was to be killed"), again));
    }
    let file = dir.join("file");
    if signal == Some(libc::SIGKILL) {
        dioxide::recover(&file, dioxide::Recover::Truncate)?;
    }
    run(&mut threads(&dir, "check", plan, With::Nothing).0)
        .and_then(Finished::well)
        .map_err(again)?;
    if files::marker(&file)?.is_some() {
        return Err(again(failed("the marker is still there")));
    }
    let size = std::fs::metadata(&file)?.len();
    match files::extents(&file)?.last() {
        Some(last) if last.start >= size => {
            Err(again(failed(format!("{size} bytes, and space behind: {last:?}"))))
        }
        _ => Ok(()),
    }
}

pub fn trials() -> Vec<Trial> {
    let each = |(plan, signal): (&'static str, _)| {
        let name = format!("threads {plan}").replace(' ', "_");
        lab_trials_where(
            &name,
            |_| Ok(()),
            move |dir: TestDir| {
                With::ALL.into_iter().try_for_each(|with| try_plan(&dir, plan, signal, with))
            },
        )
    };
    in_turn(PLANS.into_iter().map(each))
}
