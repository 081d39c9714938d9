//! Invalid settings, programs without a use for the library, and killed processes.

use super::rig::*;
use dioxide_testkit::files;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials_where};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// Runs `c/threads.c` with a variable set.
fn write_with(
    dir: &Path,
    name: &str,
    value: &str,
    with: With,
) -> Result<Finished, dioxide_testkit::trials::Failed> {
    let mut command = Command::new(c_program("threads", COMPILED[0]));
    command
        .args(["write", "file", "acks", "threads=8", "blocks=400", "end=close"])
        .current_dir(dir);
    with.set(&mut command);
    run(command.env(name, value))?.well()
}

fn what_is_not_understood_is_said_once_and_the_program_runs(dir: TestDir) -> TrialResult {
    for (name, value) in [
        ("DIOXIDE_DEVICES", "maybe"),
        ("DIOXIDE_STATS", "yes"),
        ("DIOXIDE_GROWTH_CAP", "big"),
        ("DIOXIDE_MATCH", "/a/[b"),
        ("DIOXIDE_EAGER", "\u{1b}[2J\ndioxide: all is well"),
    ] {
        let dir = empty(&dir, "run")?;
        let finished = write_with(&dir, name, value, With::Preload)?;
        let said: Vec<_> = finished.stderr.lines().collect();
        assert!(
            said.len() == 1 && said[0].starts_with("dioxide: ") && said[0].contains(name),
            "{said:?}"
        );
        assert!(!said[0].contains('\u{1b}'), "{said:?}");
        assert_eq!(fs::metadata(dir.join("file"))?.len(), 400 * 4096);
    }
    Ok(())
}

fn a_pattern_that_matches_nothing_is_said_once_and_nothing_is_taken(dir: TestDir) -> TrialResult {
    let finished = write_with(&dir, "DIOXIDE_MATCH", "*.nothing", With::Eager)?;
    let said: Vec<_> = finished.stderr.lines().collect();
    assert!(said.len() == 1 && said[0].contains("DIOXIDE_MATCH matched none"), "{said:?}");
    assert_eq!(fs::metadata(dir.join("file"))?.len(), 400 * 4096);
    Ok(())
}

/// The library prints nothing in a program without O_DIRECT files.
fn a_program_without_direct_files_hears_nothing(_dir: TestDir) -> TrialResult {
    let mut command = Command::new("true");
    With::Eager.set(&mut command);
    let finished = run(command.env("DIOXIDE_MATCH", "*.nothing"))?.well()?;
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("", ""));
    Ok(())
}

fn a_static_program_runs_as_without(dir: TestDir) -> TrialResult {
    let path = c_program("threads", ("static", &["-static"]));
    let mut command = Command::new(path);
    command.args(["write", "file", "acks", "threads=8", "blocks=400"]).current_dir(&*dir);
    With::Eager.set(&mut command);
    run(&mut command)?.well()?;
    assert_eq!(fs::metadata(dir.join("file"))?.len(), 400 * 4096);
    Ok(())
}

/// The next O_DIRECT open for writing under the library recovers the file of a killed process.
fn the_next_open_brings_a_killed_programs_file_into_order(dir: TestDir) -> TrialResult {
    for with in With::LIBRARY {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let threads = |verb: &str| {
            let mut command = Command::new(c_program("threads", COMPILED[0]));
            command
                .args([verb, "file", "acks", "threads=16", "blocks=20000", "middle", "end=kill"])
                .current_dir(&dir);
            command
        };
        let mut write = threads("write");
        with.set(&mut write);
        assert_eq!(run(&mut write)?.status.signal(), Some(libc::SIGKILL));
        let mut next = Command::new("dd");
        next.args([
            "if=/dev/null",
            "of=file",
            "oflag=direct,append",
            "conv=notrunc",
            "status=none",
        ])
        .current_dir(&dir);
        with.set(&mut next);
        run(&mut next)?.well()?;
        let file = dir.join("file");
        assert_eq!(files::marker(&file)?, None, "{with:?}");
        let mut check = threads("check");
        With::Nothing.set(&mut check);
        run(&mut check)?.well()?;
    }
    Ok(())
}

/// The bug: a file that could not be recovered at its open, because another process had it open,
/// served its grown length in silence. Appends landed behind it, and the next recovery lost them.
fn a_grown_file_with_another_opener_is_used_in_silence(dir: TestDir) -> TrialResult {
    for with in With::LIBRARY {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let plan = ["file", "acks", "threads=16", "blocks=20000", "middle", "end=kill"];
        let mut write = Command::new(c_program("threads", COMPILED[0]));
        write.arg("write").args(plan).current_dir(&dir);
        with.set(&mut write);
        assert_eq!(run(&mut write)?.status.signal(), Some(libc::SIGKILL));
        let append = || {
            let mut append = Command::new("dd");
            append
                .args(["if=/dev/null", "of=file", "status=none"])
                .args(["oflag=direct,append", "conv=notrunc,fsync"])
                .current_dir(&dir);
            with.set(&mut append);
            run(&mut append)
        };
        let file = dir.join("file");
        let other = fs::File::open(&file)?;
        let finished = append()?;
        let is_told = finished.stderr.contains("left it grown, so its length is wrong")
            && finished.stderr.contains("dioxide recover");
        assert!(is_told && !finished.status.success(), "{with:?}: {}", finished.stderr);
        drop(other);
        append()?.well()?;
        assert_eq!(files::marker(&file)?, None, "{with:?}");
    }
    Ok(())
}

fn where_files_grow(fs: Fs) -> Applies {
    fs.grows_unwritten()
}

pub fn trials() -> Vec<Trial> {
    [
        lab_trials_where(
            "what_is_not_understood_is_said_once_and_the_program_runs",
            Fs::on_ext4,
            what_is_not_understood_is_said_once_and_the_program_runs,
        ),
        lab_trials_where(
            "a_pattern_that_matches_nothing_is_said_once_and_nothing_is_taken",
            Fs::on_ext4,
            a_pattern_that_matches_nothing_is_said_once_and_nothing_is_taken,
        ),
        lab_trials_where(
            "a_program_without_direct_files_hears_nothing",
            Fs::on_ext4,
            a_program_without_direct_files_hears_nothing,
        ),
        lab_trials_where(
            "a_static_program_runs_as_without",
            Fs::on_ext4,
            a_static_program_runs_as_without,
        ),
        lab_trials_where(
            "the_next_open_brings_a_killed_programs_file_into_order",
            where_files_grow,
            the_next_open_brings_a_killed_programs_file_into_order,
        ),
        lab_trials_where(
            "a_grown_file_with_another_opener_is_used_in_silence",
            where_files_grow,
            a_grown_file_with_another_opener_is_used_in_silence,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}
