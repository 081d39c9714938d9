//! Diagnoses on the lab: known bottlenecks are found, and none where there is none. Ignored, each
//! by name, where there is no lab (`scripts/with-lab`).

mod common;

use common::*;
use dioxide_diagnose::evidence::{Evidence, Rw, Subject};
use dioxide_diagnose::finding::{Finding, Wall};
use dioxide_diagnose::judge::judge;
use dioxide_testkit::files::install_program;
use dioxide_testkit::lab::{Applies, Disk, Fs, TestDir};
use dioxide_testkit::trials::{
    Trial, TrialResult, disk_trial, lab_trial, lab_trials_where, volume_trial,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

const NOBODY: u32 = 65534;
/// The minimum that shows a bottleneck: few steps, watched for long enough.
const SHORT: &str = "--numjobs 1,64 --runtime 100ms --rounds 1 --json -";

/// The causes of an exclusive inode lock. (On XFS writers may also wait for one that updates the
/// file's timestamps.)
const INODE_LOCK_WALLS: [Wall; 4] =
    [Wall::ExtendingWrites, Wall::Holes, Wall::UnalignedWrites, Wall::BufferedWrites];

/// One diagnosis in the JSON.
struct Diagnosed {
    evidence: Evidence,
    findings: Vec<Finding>,
}

impl Diagnosed {
    fn main_wall(&self) -> Wall {
        self.findings[0].wall
    }

    fn has(&self, wall: Wall) -> bool {
        self.findings.iter().any(|finding| finding.wall == wall)
    }
}

/// All diagnoses in a command's output, each complete.
fn diagnosed(output: &Output) -> Vec<Diagnosed> {
    expect_code(output, 0);
    let document: Value =
        serde_json::from_slice(&output.stdout).expect("stdout is JSON and nothing else");
    assert_eq!((&document["schema_version"], &document["kind"]), (&1.into(), &"diagnose".into()));
    document["diagnoses"].as_array().unwrap().iter().map(complete).collect()
}

/// Judging the evidence again has the same outcome.
fn complete(diagnosis: &Value) -> Diagnosed {
    let of = |key: &str| diagnosis[key].clone();
    let evidence: Evidence = serde_json::from_value(of("evidence")).unwrap();
    let findings: Vec<Finding> = serde_json::from_value(of("findings")).unwrap();
    let verdicts =
        |findings: &[Finding]| findings.iter().map(|finding| finding.wall).collect::<Vec<_>>();
    assert_eq!(verdicts(&findings), verdicts(&judge(&evidence)));
    assert!(findings.iter().all(|finding| !finding.verdict.is_empty()), "{findings:?}");
    assert!(!evidence.sightings.is_empty() && evidence.looks > 0 && !evidence.others.is_empty());
    assert!(!of("waits").as_array().unwrap().is_empty());
    assert!(of("watched_iops").as_f64().unwrap() > 0.0 && of("asked").is_object());
    // Exactly one of them.
    assert_ne!(of("usl").is_null(), of("usl_refusal").is_null(), "{diagnosis}");
    Diagnosed { evidence, findings }
}

fn diagnose(path: &Path, more: &str) -> Output {
    run(&format!("diagnose {} {more} {SHORT}", path.display()))
}

/// The only one.
fn one(path: &Path, more: &str) -> Diagnosed {
    let output = diagnose(path, more);
    let mut all = diagnosed(&output);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn appends_extend(dir: TestDir) -> TrialResult {
    let diagnosed = one(&dir, "--rw append");
    assert_eq!(diagnosed.main_wall(), Wall::ExtendingWrites, "{:#?}", diagnosed.findings);
    let Evidence { subject, curve, others, .. } = diagnosed.evidence;
    let Subject::Workload(workload) = subject else { panic!("{subject:?}") };
    assert_eq!((workload.rw, workload.numjobs, workload.bs_bytes), (Rw::Append, 64, 4096));
    assert_eq!(curve.iter().map(|step| step.numjobs).collect::<Vec<_>>(), [1, 64]);
    let others: Vec<_> = others.iter().map(|other| (&*other.path, other.numjobs)).collect();
    assert_eq!(others, [("preallocated", 64), ("dioxide", 64), ("dioxide-queue", 1)]);
    assert_eq!(fs::read_dir(&*dir)?.count(), 0, "the scratch file has no name");
    Ok(())
}

fn another_user_finds_it_too(dir: TestDir) -> TrialResult {
    fs::set_permissions(&*dir, fs::Permissions::from_mode(0o777))?;
    // Executable by all users.
    let own = dir.join("dioxide");
    install_program(env!("CARGO_BIN_EXE_dioxide"), &own)?;
    let line = format!("diagnose {} --rw append {SHORT}", dir.display());
    let mut command = Command::new(&own);
    command.args(line.split_whitespace()).uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
    let all = diagnosed(&command.output()?);
    assert_eq!(all[0].main_wall(), Wall::ExtendingWrites, "{:#?}", all[0].findings);
    let unseen = &all[0].evidence.unseen;
    assert!(unseen.iter().any(|what| what.contains("root only")), "{unseen:?}");
    Ok(())
}

fn holes_are_found(dir: TestDir) -> TrialResult {
    let diagnosed = one(&dir, "--rw hole");
    assert_eq!(diagnosed.main_wall(), Wall::Holes, "{:#?}", diagnosed.findings);
    Ok(())
}

fn overwrites_run_side_by_side(dir: TestDir) -> TrialResult {
    let diagnosed = one(&dir, "--rw overwrite");
    for wall in INODE_LOCK_WALLS {
        assert!(!diagnosed.has(wall), "{:#?}", diagnosed.findings);
    }
    Ok(())
}

fn sync_writers_wait_for_flushes(path: &Path, more: &str) -> TrialResult {
    let diagnosed = one(path, &format!("--rw sync {more}"));
    let is_expected = |wall| matches!(wall, Wall::Flush | Wall::JournalCommit | Wall::Device);
    assert!(is_expected(diagnosed.main_wall()), "{:#?}", diagnosed.findings);
    assert!(diagnosed.evidence.devices.iter().any(|device| device.writes > 0));
    Ok(())
}

fn a_disk_is_diagnosed_if_it_is_named_twice(disk: Disk) -> TrialResult {
    let (name, twice) = (disk.display(), format!("--overwrite-device {}", disk.display()));
    expect_refusal(&diagnose(&disk, ""), "confirms that its contents may be destroyed");
    expect_refusal(&diagnose(&disk, "--overwrite-device /dev/null"), "nothing was touched");
    expect_refusal(
        &diagnose(&disk, &format!("--rw overwrite,append {twice}")),
        "no end to append to",
    );
    sync_writers_wait_for_flushes(&disk, &twice)?;
    let output = run(&format!(
        "diagnose {name} {twice} --rw overwrite,mixed --numjobs 1,2 --runtime 50ms --rounds 1"
    ));
    expect_code(&output, 0);
    for words in
        ["Overwrites of 4 KiB", "Mixed reads and writes of 4 KiB", "By threads: ", "--verbose"]
    {
        assert!(stdout(&output).contains(words), "{words} in {}", stdout(&output));
    }
    Ok(())
}

fn everything_is_diagnosed(dir: TestDir) -> TrialResult {
    let all = diagnosed(&run(&format!("diagnose {} --json -", dir.display())));
    let kinds: Vec<Rw> = all
        .iter()
        .map(|diagnosed| match &diagnosed.evidence.subject {
            Subject::Workload(workload) => workload.rw,
            program => panic!("{program:?}"),
        })
        .collect();
    assert_eq!(kinds, [Rw::Append, Rw::Overwrite, Rw::Hole, Rw::Sync, Rw::Mixed]);
    assert!(all.iter().all(|diagnosed| diagnosed.evidence.curve.len() == 7));
    Ok(())
}

/// It panicked, because the kernel path was left out. dioxide merges parts of blocks.
fn small_durable_overwrites_without_a_curve() -> TrialResult {
    let volume = Volume::with_large_sectors(Fs::Ext4, SIZE_MIN)?;
    for rw in ["overwrite", "mixed"] {
        let output =
            diagnose(volume.path(), &format!("--rw {rw} --bs 512 --durability every-write"));
        expect_refusal(&output, "--bs 512: direct writes come in multiples of 4k here");
    }
    Ok(())
}

/// Where overwrites are direct and run in parallel.
fn overwrites_are_shared(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs | Fs::BtrfsNocow => Ok(()),
        _ => Err("its overwrites may wait for each other"),
    }
}

fn trials() -> Vec<Trial> {
    let one_each = vec![
        lab_trial("appends_extend", Fs::Ext4, appends_extend),
        lab_trial("another_user_finds_it_too", Fs::Ext4, another_user_finds_it_too),
        lab_trial("holes_are_found", Fs::Ext4, holes_are_found),
        lab_trial("sync_writers_wait_for_flushes", Fs::Ext4, |dir| {
            sync_writers_wait_for_flushes(&dir, "")
        }),
        lab_trial("everything_is_diagnosed", Fs::Ext4, everything_is_diagnosed),
        volume_trial(
            "small_durable_overwrites_without_a_curve",
            small_durable_overwrites_without_a_curve,
        ),
        disk_trial(
            "a_disk_is_diagnosed_if_it_is_named_twice",
            a_disk_is_diagnosed_if_it_is_named_twice,
        ),
    ];
    let side_by_side = lab_trials_where(
        "overwrites_run_side_by_side",
        overwrites_are_shared,
        overwrites_run_side_by_side,
    );
    one_each.into_iter().chain(side_by_side).collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
