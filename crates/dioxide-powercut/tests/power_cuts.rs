//! Power cuts at any moment of every workload, on every file system that recovers by itself. No
//! acknowledged record is lost. The controls lose.

use dioxide_powercut::SCENARIOS;
use dioxide_powercut::campaign::CONTROL_RECORDINGS_MAX;
use dioxide_powercut::recording::{Cut, Flushes, Plan, Recording, Seen};
use dioxide_powercut::workload::{
    CLEAN_FILE, CLEAN_FILE_AFTER_GROWTH, PARTS_TOGETHER, SHOWN_UNSYNCED, UNFLUSHED, UNSYNCED,
    WORKLOADS, WRITE_AHEAD_UNSYNCED, Workload, ZEROS_IN_FRONT, everywhere,
};
use dioxide_testkit::fuse_disk::Keep;
use dioxide_testkit::lab::{self, Fs};
use dioxide_testkit::trials::{Trial, TrialResult, fuse_trial, fuse_trials_where};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use dioxide_testkit::with_default_signals;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// For each workload on each file system.
const CUTS: usize = 12;

fn plan(fs: Fs, workload: &'static Workload, flushes: Flushes) -> Plan {
    Plan { fs, workload, flushes, seed: 1, records: 24, delay_max: Duration::from_millis(1) }
}

fn cut_all(recording: &mut Recording, cuts: &[Cut]) -> std::io::Result<Vec<Seen>> {
    cuts.iter().map(|cut| recording.replay(*cut)).collect()
}

fn loses_nothing(fs: Fs, workload: &'static Workload) -> TrialResult {
    let plan = plan(fs, workload, Flushes::Kept);
    let mut recording = Recording::new(&plan)?;
    assert!(recording.durable() >= 24, "too little was acknowledged to test anything");
    let cuts = recording.cuts(CUTS, plan.seed);
    let seen = cut_all(&mut recording, &cuts)?;
    recording.fsck()?;
    for (seen, cut) in seen.iter().zip(&cuts) {
        assert!(seen.losses.is_empty(), "{cut:?}: {:#?}", seen.losses);
    }
    assert!(seen.iter().any(|seen| seen.records > 0), "no record had to be there at any cut");
    Ok(())
}

/// A control on a disk that flushes: with some seed a power cut loses what was acknowledged.
fn loses(fs: Fs, workload: &'static Workload) -> TrialResult {
    loses_with(plan(fs, workload, Flushes::Kept), "lost")
}

/// A control: with some seed a power cut has such a loss.
fn loses_with(plan: Plan, loss: &str) -> TrialResult {
    for seed in 1..=CONTROL_RECORDINGS_MAX {
        if lossy_cuts(&Plan { seed, ..plan }, loss)? > 0 {
            return Ok(());
        }
    }
    Err(format!("no power cut of {CONTROL_RECORDINGS_MAX} runs lost").into())
}

/// How many power cuts of a run have such a loss. A file system that a lying disk has damaged may
/// return errors: those power cuts are not counted.
fn lossy_cuts(plan: &Plan, loss: &str) -> std::io::Result<usize> {
    let mut recording = Recording::new(plan)?;
    let mut lossy = 0;
    for cut in recording.cuts(2 * CUTS, plan.seed) {
        match recording.replay(cut) {
            Err(_) if plan.flushes == Flushes::Ignored => {}
            seen => lossy += usize::from(seen?.losses.iter().any(|told| told.contains(loss))),
        }
    }
    Ok(lossy)
}

fn what_is_acknowledged_without_a_flush_is_lost(fs: Fs) -> TrialResult {
    loses(fs, &UNSYNCED)
}

fn what_a_log_acknowledges_without_a_flush_is_lost(fs: Fs) -> TrialResult {
    loses(fs, &WRITE_AHEAD_UNSYNCED)
}

fn what_a_follower_shows_without_a_flush_is_lost(fs: Fs) -> TrialResult {
    loses_with(plan(fs, &SHOWN_UNSYNCED, Flushes::Kept), "a follower was shown")
}

/// Without dioxide: many files, and no flush.
fn blocks_of_many_files_are_lost_without_a_flush(fs: Fs) -> TrialResult {
    loses(fs, &UNFLUSHED)
}

/// Without dioxide: the flush of a clean file commits nothing of the others.
fn first_writes_are_lost_behind_the_flush_of_a_clean_file(fs: Fs) -> TrialResult {
    loses(fs, &CLEAN_FILE)
}

/// Without dioxide: the flush of a clean file commits no growth of the others.
fn grown_zeros_are_lost_behind_the_flush_of_a_clean_file(fs: Fs) -> TrialResult {
    loses(fs, &CLEAN_FILE_AFTER_GROWTH)
}

/// Without dioxide: rewrites the last block in an unsafe way.
fn what_is_rewritten_with_zeros_in_front_is_lost(fs: Fs) -> TrialResult {
    loses(fs, &ZEROS_IN_FRONT)
}

/// Without dioxide: each writer of a block writes back what the others replaced.
fn parts_of_a_block_written_together_are_lost(fs: Fs) -> TrialResult {
    loses(fs, &PARTS_TOGETHER)
}

fn what_a_disk_that_lies_about_flushes_was_given_is_lost(fs: Fs) -> TrialResult {
    loses_with(plan(fs, &WORKLOADS[0], Flushes::Ignored), "")
}

/// A disk that keeps all its writes shows every record after any power cut.
fn a_cut_that_loses_nothing_shows_what_was_never_flushed() -> TrialResult {
    let mut recording = Recording::new(&plan(Fs::Ext4, &WORKLOADS[0], Flushes::Ignored))?;
    let mut cuts = recording.cuts(CUTS, 1);
    cuts.iter_mut().for_each(|cut| *cut = Cut { keep: Keep::All, again: None, ..*cut });
    assert!(cut_all(&mut recording, &cuts)?.iter().all(|seen| seen.losses.is_empty()));
    Ok(())
}

fn a_saved_recording_shows_the_same_losses() -> TrialResult {
    let dir = lab::fresh_dir(Fs::Ext4, "saved")?;
    let log = dir.join("log");
    let mut recording = Recording::new(&plan(Fs::Ext4, &UNSYNCED, Flushes::Kept))?;
    let cuts = recording.cuts(CUTS, 3);
    let lossy =
        |seen: Vec<Seen>| seen.iter().map(|seen| !seen.losses.is_empty()).collect::<Vec<_>>();
    let seen = lossy(cut_all(&mut recording, &cuts)?);
    recording.save(&log)?;
    drop(recording);
    let mut loaded = Recording::load(Fs::Ext4, &log)?;
    assert_eq!(lossy(cut_all(&mut loaded, &cuts)?), seen);
    drop(loaded);
    let cut = cuts
        .iter()
        .zip(&seen)
        .find_map(|(cut, is_lossy)| is_lossy.then_some(cut))
        .ok_or("no loss")?;
    let (after, keep) = (cut.after.to_string(), cut.keep.to_string());
    let replay =
        ["replay", &log.to_string_lossy(), "--fs", "ext4", "--after", &after, "--keep", &keep];
    let replayed = command().args(replay).output()?;
    assert_eq!(replayed.status.code(), Some(1), "{replayed:?}");
    assert!(String::from_utf8(replayed.stdout)?.contains("lost from sector"));
    Ok(())
}

/// The defect: the kernel kept blocks of one power cut for the next, while another program had the
/// device open. So power cuts showed losses that no disk had.
fn a_cut_beside_a_program_that_has_the_device_open_shows_old_blocks() -> TrialResult {
    let mut volume = Volume::recorded(Fs::Ext4, SIZE_MIN, &[])?;
    let path = volume.path().join("file");
    let write = |content: &str| {
        fs::write(&path, content)?;
        fs::File::open(&path)?.sync_all()?;
        let disk = volume.disk().expect("it was made with one");
        std::io::Result::Ok((disk.stats()?.logged, content.to_owned()))
    };
    let states = [write("first")?, write("second and longer")?];
    let _open = fs::File::open(volume.device())?;
    for (cut, content) in states.iter().chain(&states) {
        volume.replay(*cut, Keep::Nothing)?;
        assert_eq!(fs::read_to_string(volume.path().join("file"))?, *content);
    }
    Ok(())
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dioxide-powercut"));
    with_default_signals(&mut command);
    command
}

fn the_command_cuts_as_often_as_asked() -> TrialResult {
    let ran = command().args(["run", "--cuts", "12", "--fs", "ext4", "--records", "8"]).output()?;
    let out = String::from_utf8(ran.stdout)?;
    assert!(ran.status.success(), "{out}");
    // Includes the power cuts of the controls, which go on until they lose.
    let line = out.lines().find(|line| line.contains(" power cuts in ")).expect("a summary");
    let cuts: u64 = line.split(' ').next().unwrap_or_default().parse()?;
    assert!(cuts >= 192 && (cuts - 192).is_multiple_of(20), "{out}");
    assert_eq!(out.matches("control, must lose").count(), 9, "{out}");
    Ok(())
}

fn the_command_takes_everything_down_when_it_is_interrupted() -> TrialResult {
    let mut running = command().args(["run", "--fs", "ext4,xfs"]).stdout(Stdio::null()).spawn()?;
    let prefix = format!("{}-", running.id());
    let volumes = || -> std::io::Result<usize> {
        let entries = fs::read_dir(lab::dir()?.join("volumes"))?;
        Ok(entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .count())
    };
    let deadline = Instant::now() + Duration::from_secs(240);
    while !volumes().is_ok_and(|count| count > 0) {
        assert!(Instant::now() < deadline, "it makes no disks");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&running), Signal::INT)?;
    while running.try_wait()?.is_none() {
        assert!(Instant::now() < deadline, "it does not end");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(volumes().unwrap_or(0), 0, "it left disks behind");
    Ok(())
}

type Once = fn() -> TrialResult;

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for workload in WORKLOADS {
        trials.extend(fuse_trials_where(
            &format!("{}_loses_nothing", workload.name),
            workload.applies,
            move |fs| loses_nothing(fs, workload),
        ));
    }
    trials.extend(fuse_trials_where(
        "what_is_acknowledged_without_a_flush_is_lost",
        everywhere,
        what_is_acknowledged_without_a_flush_is_lost,
    ));
    trials.extend(fuse_trials_where(
        "what_a_log_acknowledges_without_a_flush_is_lost",
        everywhere,
        what_a_log_acknowledges_without_a_flush_is_lost,
    ));
    trials.extend(fuse_trials_where(
        "what_a_follower_shows_without_a_flush_is_lost",
        everywhere,
        what_a_follower_shows_without_a_flush_is_lost,
    ));
    trials.extend(fuse_trials_where(
        "what_a_disk_that_lies_about_flushes_was_given_is_lost",
        everywhere,
        what_a_disk_that_lies_about_flushes_was_given_is_lost,
    ));
    trials.extend(fuse_trials_where(
        "what_is_rewritten_with_zeros_in_front_is_lost",
        ZEROS_IN_FRONT.applies,
        what_is_rewritten_with_zeros_in_front_is_lost,
    ));
    trials.extend(fuse_trials_where(
        "parts_of_a_block_written_together_are_lost",
        PARTS_TOGETHER.applies,
        parts_of_a_block_written_together_are_lost,
    ));
    trials.extend(fuse_trials_where(
        "blocks_of_many_files_are_lost_without_a_flush",
        UNFLUSHED.applies,
        blocks_of_many_files_are_lost_without_a_flush,
    ));
    trials.extend(fuse_trials_where(
        "first_writes_are_lost_behind_the_flush_of_a_clean_file",
        CLEAN_FILE.applies,
        first_writes_are_lost_behind_the_flush_of_a_clean_file,
    ));
    trials.extend(fuse_trials_where(
        "grown_zeros_are_lost_behind_the_flush_of_a_clean_file",
        CLEAN_FILE_AFTER_GROWTH.applies,
        grown_zeros_are_lost_behind_the_flush_of_a_clean_file,
    ));
    let once: [(&str, Once); 5] = [
        (
            "a_cut_beside_a_program_that_has_the_device_open_shows_old_blocks",
            a_cut_beside_a_program_that_has_the_device_open_shows_old_blocks,
        ),
        (
            "a_cut_that_loses_nothing_shows_what_was_never_flushed",
            a_cut_that_loses_nothing_shows_what_was_never_flushed,
        ),
        ("a_saved_recording_shows_the_same_losses", a_saved_recording_shows_the_same_losses),
        ("the_command_cuts_as_often_as_asked", the_command_cuts_as_often_as_asked),
        (
            "the_command_takes_everything_down_when_it_is_interrupted",
            the_command_takes_everything_down_when_it_is_interrupted,
        ),
    ];
    trials.extend(once.map(|(name, test)| fuse_trial(name, test)));
    trials
}

fn main() -> ExitCode {
    dioxide_testkit::run(SCENARIOS, trials)
}
