//! `dioxide diagnose --pid` on unmodified programs. Each program hits a known bottleneck of the
//! kernel, which the verdict must name, or none, and the verdict must say so.

mod commits;
#[path = "../common/mod.rs"]
mod common;
mod limited;
mod nobody;
mod program;
mod queues;
mod servers;

use common::*;
use dioxide_testkit::files::install_program;
use dioxide_testkit::fuse_disk::GoesOn;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{
    Failed, Trial, TrialResult, fuse_trials_where, lab_trials_where, trials_with,
};
use dioxide_testkit::volume::Volume;
use limited::{Limited, on_ext4_with_limits};
use nobody::AsNobody;
use program::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// fio, with this many threads on one file, for ever.
fn fio(dir: &Path, threads: usize, more: &str) -> Program {
    fio_on("--filename=file", dir, threads, more)
}

fn fio_on(files: &str, dir: &Path, threads: usize, more: &str) -> Program {
    let line = format!("fio {}", fio_options(files, threads, more));
    Program::start(&line, dir).wait_for_threads(threads_of_fio(threads))
}

fn fio_options(files: &str, threads: usize, more: &str) -> String {
    format!(
        "--name=attach {files} --thread --time_based --runtime=1h --fallocate=none --direct=1 \
         --numjobs={threads} {more}"
    )
}

/// With its own thread, and one that it generates data from.
fn threads_of_fio(threads: usize) -> usize {
    threads + 2
}

fn psync(dir: &Path, more: &str) -> Program {
    fio(dir, THREADS, &format!("--ioengine=psync --bs=4k {more}"))
}

const RANDOM_WRITES: &str = "--rw=randwrite --size=256m";
/// Each thread has its own blocks, which are interleaved.
const INTERLEAVED: &str = "--create_on_open=1 --size=600m --offset_increment=4k";

fn appends_of_sysbench_wait_for_each_other(dir: TestDir) -> TrialResult {
    let line = format!(
        "sysbench fileio --file-num=1 --file-total-size=600M --file-test-mode=seqwr \
         --file-extra-flags=direct --file-block-size=4096 --file-fsync-freq=0 --threads={THREADS} \
         --time=0 run"
    );
    expect_wall(&Program::start(&line, &dir).wait_for_threads(THREADS), "extending_writes")
}

fn appends_of_fio_wait_for_each_other(dir: TestDir) -> TrialResult {
    expect_wall(&psync(&dir, &format!("--rw=write:60k {INTERLEAVED}")), "extending_writes")
}

/// Stacks and traces are for root only. Wait channels and sizes must do.
fn the_owner_of_a_program_finds_it_too(dir: TestDir) -> TrialResult {
    let user = AsNobody::new(&dir)?;
    // Executable by all users.
    let own = dir.join("dioxide");
    install_program(env!("CARGO_BIN_EXE_dioxide"), &own)?;
    let appends = format!("--ioengine=psync --bs=4k --rw=write:60k {INTERLEAVED}");
    let mut fio = user.command("fio", &fio_options("--filename=file", THREADS, &appends));
    let program = Program::spawn(&mut fio, Signal::KILL).wait_for_threads(threads_of_fio(THREADS));
    let observe = |seconds| {
        let line = format!("diagnose --pid {} --seconds {seconds}s --json -", program.pid());
        let mut dioxide = user.command(&own, &line);
        dioxide.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("it runs")
    };
    let document = observe_by(observe, |document| is_led_by(document, "extending_writes"));
    let findings = findings_of(&document);
    assert_eq!(walls(&findings).first(), Some(&"extending_writes"), "{findings:#?}");
    let unseen = document["diagnoses"][0]["evidence"]["unseen"].to_string();
    assert!(unseen.contains("for root only"), "{unseen}");
    Ok(())
}

fn writes_into_holes_wait_for_each_other(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Hole);
    expect_wall(&psync(&dir, RANDOM_WRITES), "holes")
}

fn parts_of_blocks_wait_for_each_other(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Unwritten);
    expect_wall(&psync(&dir, &format!("{RANDOM_WRITES} --bs=512")), "unaligned_writes")
}

/// fio, each thread of which waits in its first write for a disk that answers nothing.
struct Stuck<'a> {
    // In drop order: fio cannot be killed while it waits for the disk.
    _goes_on: GoesOn<'a>,
    fio: Program,
}

impl<'a> Stuck<'a> {
    /// Writes to a file of which fio first drops all cached pages.
    fn start(volume: &'a Volume, more: &str) -> Result<Self, Failed> {
        let disk = volume.disk().expect("a FUSE disk");
        file_of(volume.path(), &Space::Written);
        // A stall has a limit, which must not pass while another program runs.
        let alone = Alone::wait();
        let goes_on = GoesOn(disk);
        disk.stall()?;
        let writes = format!("--ioengine=psync {RANDOM_WRITES} {more}");
        let options = fio_options("--filename=file", THREADS, &writes);
        let mut command = Command::new("fio");
        command.args(options.split_whitespace()).current_dir(volume.path());
        let fio = Program::spawn_alone(alone, &mut command, Signal::KILL);
        let stuck = Self { _goes_on: goes_on, fio };
        stuck.fio.wait_for_stuck_threads(THREADS);
        Ok(stuck)
    }
}

/// Each write covers a part of a block. One thread reads the rest of its block, with the lock.
fn buffered_writes_wait_for_each_other(kind: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(kind, 512 << 20)?;
    let stuck = Stuck::start(&volume, "--bs=512 --direct=0")?;
    expect_wall(&stuck.fio, "buffered_writes")
}

/// The control: direct writes wait for the disk, not for a lock.
fn a_disk_that_does_not_answer_hung_diagnose(kind: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(kind, 512 << 20)?;
    let stuck = Stuck::start(&volume, "--bs=4k")?;
    expect_no_wall(&stuck.fio)
}

/// D6 of the review: by path, one lock had two causes.
fn checksums_are_the_one_cause_on_btrfs(dir: TestDir) -> TrialResult {
    const LOCKS: [&str; 5] =
        ["extending_writes", "holes", "unaligned_writes", "buffered_writes", "file_lock"];
    file_of(&dir, &Space::Written);
    let is_lock = |finding: &&Value| LOCKS.contains(&finding["wall"].as_str().unwrap());
    let has_lock = |document: &Value| findings_of(document).iter().any(|finding| is_lock(&finding));
    let by_process = observe_until(&psync(&dir, RANDOM_WRITES), has_lock);
    let workload = |seconds: u32| {
        run(&format!(
            "diagnose {} --rw overwrite --numjobs 1,{THREADS} --runtime {}ms --rounds 1 --json -",
            dir.display(),
            seconds * 100
        ))
    };
    let by_path = findings_of(&observe_by(workload, has_lock));
    for findings in [by_process, by_path] {
        let locks: Vec<&Value> = findings.iter().filter(is_lock).collect();
        let [lock] = locks[..] else { panic!("{findings:#?}") };
        assert_eq!(lock["wall"], "buffered_writes", "{findings:#?}");
        let verdict = lock["verdict"].as_str().unwrap();
        assert!(verdict.contains("btrfs writes files with checksums through"), "{verdict}");
    }
    Ok(())
}

fn durable_overwrites_wait_for_flushes(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Written);
    expect_wall(&psync(&dir, &format!("{RANDOM_WRITES} --fdatasync=1")), "flush")
}

/// A checkpoint: one thread makes one file after the other durable.
fn syncs_of_many_files_wait_for_a_flush_each(dir: TestDir) -> TrialResult {
    let writes = "--ioengine=psync --bs=4k --rw=randwrite --overwrite=1 --fdatasync=1";
    let program = fio_on("--nrfiles=64 --filesize=64k", &dir, 1, writes);
    let findings = find_wall(&program, "file_flushes");
    let verdict = findings[0]["verdict"].as_str().unwrap();
    assert!(verdict.contains(" one flush per file: ") && verdict.contains(" on loop"), "{verdict}");
    Ok(())
}

fn durable_writes_of_unwritten_space_wait_for_commits(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Unwritten);
    expect_wall(&psync(&dir, &format!("{RANDOM_WRITES} --sync=dsync")), "journal_commit")
}

/// The workers wait for the lock that threads would wait for: the verdict names both.
fn appends_on_rings_go_to_workers(dir: TestDir) -> TrialResult {
    let appends = format!("--ioengine=io_uring --iodepth=16 --bs=4k --rw=write:4k {INTERLEAVED}");
    let has_both = |findings: &[Value]| {
        let walls = walls(findings);
        walls.contains(&"ring_workers") && walls.contains(&"extending_writes")
    };
    let is_enough = |document: &Value| has_both(&findings_of(document));
    let findings = observe_until(&fio(&dir, 2, &appends), is_enough);
    assert!(has_both(&findings), "{findings:#?}");
    Ok(())
}

fn random_overwrites_are_well(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Written);
    expect_no_wall(&psync(&dir, RANDOM_WRITES))
}

fn random_reads_are_well(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Written);
    expect_no_wall(&psync(&dir, "--rw=randread --size=256m"))
}

fn a_sleeper_is_well() -> TrialResult {
    let sleeper = Program::start("sleep 3600", Path::new("/"));
    expect_no_wall(&sleeper)
}

fn who_only_computes_is_well() -> TrialResult {
    let mut command = Command::new("sh");
    expect_no_wall(&Program::spawn(command.args(["-c", "while :; do :; done"]), Signal::KILL))
}

/// D4 of the review: a stopped program was reported healthy, with exit code 0.
fn a_stopped_program_is_not_healthy() -> TrialResult {
    let sleeper = Program::start("sleep 3600", Path::new("/"));
    kill_process(Pid::from_child(&sleeper.child), Signal::STOP)?;
    let stat = PathBuf::from(format!("/proc/{}/stat", sleeper.pid()));
    wait_until("it is stopped", || fs::read_to_string(&stat).is_ok_and(|it| it.contains(") T ")));
    let output = run(&format!("diagnose --pid {} --seconds 200ms", sleeper.pid()));
    expect_code(&output, 4);
    assert!(stdout(&output).contains("The program was stopped"), "{}", stdout(&output));
    assert!(stdout(&output).contains(&format!("kill -CONT {}", sleeper.pid())));
    assert!(stderr(&output).contains("was stopped"), "{}", stderr(&output));
    Ok(())
}

/// Ctrl-C ends the observation with a verdict, and leaves nothing in tracefs.
fn ctrl_c_leaves_nothing_behind() -> TrialResult {
    let sleeper = Program::start("sleep 3600", Path::new("/"));
    let line = format!("diagnose --pid {} --seconds 1h --json -", sleeper.pid());
    let watching = dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (instances, own) =
        (Path::new("/sys/kernel/tracing/instances"), format!("dioxide-{}-", watching.id()));
    let traces = || {
        let names = fs::read_dir(instances).into_iter().flatten().flatten();
        names.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&own))
    };
    if rustix::process::geteuid().is_root() && instances.is_dir() {
        wait_until("it traces", traces);
    }
    wait_until("it watches", || {
        fs::read_dir(format!("/proc/{}/task", watching.id()))
            .is_ok_and(|threads| threads.count() > 1)
    });
    kill_process(Pid::from_child(&watching), Signal::INT)?;
    let output = watching.wait_with_output()?;
    assert!(walls(&findings(&output)).is_empty());
    assert!(!traces());
    Ok(())
}

const LIMIT: u32 = 100;

/// The findings on random writes below `place`, of a cgroup with a limit on the device of `dir`.
/// Observes until this wall is among them.
fn findings_under_a_limit(dir: &Path, place: &Path, wall: &str) -> Result<Vec<Value>, Failed> {
    file_of(place, &Space::Written);
    let number = rustix::fs::stat(dir)?.st_dev;
    let limited = Limited::new((rustix::fs::major(number), rustix::fs::minor(number)), LIMIT)?;
    let program = psync(place, RANDOM_WRITES);
    limited.add(program.pid())?;
    let is_enough = |document: &Value| {
        is_led_by(document, "cgroup_limit") && walls(&findings_of(document)).contains(&wall)
    };
    let findings = observe_until(&program, is_enough);
    drop(program);
    drop(limited);
    assert_eq!(walls(&findings).first(), Some(&"cgroup_limit"), "{findings:#?}");
    let verdict = findings[0]["verdict"].as_str().unwrap();
    assert!(verdict.contains(&format!(" at {LIMIT}/s, and ")), "{verdict}");
    Ok(findings)
}

fn a_limit_of_the_cgroup_is_named(dir: TestDir) -> TrialResult {
    findings_under_a_limit(&dir, &dir, "cgroup_limit").map(drop)
}

/// The defect: the files of an overlayfs had no devices, and so no limits.
fn a_limit_below_an_overlay_was_not_seen(dir: TestDir) -> TrialResult {
    let overlay = Overlay::on(&dir)?;
    let findings = findings_under_a_limit(&dir, overlay.path(), "file_lock")?;
    let lock = findings.iter().find(|finding| finding["wall"] == "file_lock");
    let lock = lock.unwrap_or_else(|| panic!("{findings:#?}"));
    let verdict = lock["verdict"].as_str().unwrap();
    assert!(verdict.contains("overlayfs performs every write of a file alone"), "{verdict}");
    let advice = lock["advice"][0].as_str().unwrap();
    assert!(advice.contains("merged into one write"), "{advice}");
    Ok(())
}

fn on_btrfs(fs: Fs) -> Applies {
    match fs {
        Fs::Btrfs => Ok(()),
        _ => Err("its files have no checksums"),
    }
}

fn on_ext4_and_xfs(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs => Ok(()),
        _ => Err("ext4 and XFS stand for all"),
    }
}

fn on_one_of_each(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs | Fs::BtrfsNocow => Ok(()),
        _ => Err("ext4, XFS and btrfs stand for all"),
    }
}

fn trials() -> Vec<Trial> {
    let fio = [
        lab_trials_where(
            "appends_of_fio_wait_for_each_other",
            on_one_of_each,
            appends_of_fio_wait_for_each_other,
        ),
        lab_trials_where(
            "the_owner_of_a_program_finds_it_too",
            Fs::on_ext4,
            the_owner_of_a_program_finds_it_too,
        ),
        lab_trials_where(
            "checksums_are_the_one_cause_on_btrfs",
            on_btrfs,
            checksums_are_the_one_cause_on_btrfs,
        ),
        lab_trials_where(
            "writes_into_holes_wait_for_each_other",
            Fs::on_ext4,
            writes_into_holes_wait_for_each_other,
        ),
        lab_trials_where(
            "parts_of_blocks_wait_for_each_other",
            on_ext4_and_xfs,
            parts_of_blocks_wait_for_each_other,
        ),
        fuse_trials_where(
            "buffered_writes_wait_for_each_other",
            on_ext4_and_xfs,
            buffered_writes_wait_for_each_other,
        ),
        fuse_trials_where(
            "a_disk_that_does_not_answer_hung_diagnose",
            on_ext4_and_xfs,
            a_disk_that_does_not_answer_hung_diagnose,
        ),
        lab_trials_where(
            "durable_overwrites_wait_for_flushes",
            on_ext4_and_xfs,
            durable_overwrites_wait_for_flushes,
        ),
        lab_trials_where(
            "syncs_of_many_files_wait_for_a_flush_each",
            on_ext4_and_xfs,
            syncs_of_many_files_wait_for_a_flush_each,
        ),
        lab_trials_where(
            "durable_writes_of_unwritten_space_wait_for_commits",
            on_ext4_and_xfs,
            durable_writes_of_unwritten_space_wait_for_commits,
        ),
        lab_trials_where(
            "appends_on_rings_go_to_workers",
            on_ext4_and_xfs,
            appends_on_rings_go_to_workers,
        ),
        lab_trials_where(
            "a_limit_of_the_cgroup_is_named",
            on_ext4_with_limits,
            a_limit_of_the_cgroup_is_named,
        ),
        lab_trials_where(
            "a_limit_below_an_overlay_was_not_seen",
            on_ext4_with_limits,
            a_limit_below_an_overlay_was_not_seen,
        ),
        lab_trials_where("random_overwrites_are_well", on_one_of_each, random_overwrites_are_well),
        lab_trials_where("random_reads_are_well", on_ext4_and_xfs, random_reads_are_well),
    ];
    let sysbench = [lab_trials_where(
        "appends_of_sysbench_wait_for_each_other",
        on_ext4_and_xfs,
        appends_of_sysbench_wait_for_each_other,
    )];
    let anywhere = [
        Trial::test("a_sleeper_is_well", a_sleeper_is_well),
        Trial::test("who_only_computes_is_well", who_only_computes_is_well),
        Trial::test("a_stopped_program_is_not_healthy", a_stopped_program_is_not_healthy),
        Trial::test("ctrl_c_leaves_nothing_behind", ctrl_c_leaves_nothing_behind),
    ];
    let mut trials: Vec<Trial> = anywhere.into();
    trials.extend(queues::trials());
    trials.extend(trials_with("fio", fio));
    trials.extend(trials_with("sysbench", sysbench));
    trials
}

fn main() -> ExitCode {
    commits::run_if_named();
    dioxide_testkit::run(&[], trials)
}
