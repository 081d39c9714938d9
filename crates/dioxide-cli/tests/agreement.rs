//! The `kernel` path of the bench against fio and sysbench doing the same work, in the same
//! minutes: rates agree within 15 %. Ignored, each by name, where there is no lab
//! (`scripts/with-lab`) or no such tool.

mod common;

use common::*;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials_where, trials_with};
use serde_json::Value;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};

const AGREEMENT: RangeInclusive<f64> = 0.85..=1.15;
/// Random I/O depends on the position of the file on the disk, and the bench makes a new file in
/// each round.
const MIXED_AGREEMENT: RangeInclusive<f64> = 0.7..=1.3;
/// Other work on the machine disturbs single rounds. Both the fastest of several rounds and the
/// medians are compared, and there is time to find a quiet period. Rates that really differ, differ
/// in both.
const ROUNDS_MIN: usize = 6;
const ROUNDS_MAX: usize = 30;
const RUNTIME: &str = "200ms";
/// For appends: large, so that the tools' own work between two writes does not count.
const APPEND_BYTES: u64 = 256 << 10;
/// For sync writers, which keep the cores busy. Small, so that filling a block does not count. The
/// bench does that for each write, fio once.
const SYNC_BYTES: u64 = 16 << 10;
const SYNC_JOBS: u64 = 8;
/// For random I/O: as above.
const MIXED_BYTES: u64 = 16 << 10;
const MIXED_SIZE_BYTES: usize = 16 << 20;
const MIXED_READS: u32 = 70;
/// As many writes as in one of our runs: sysbench runs for at least a second.
const SYSBENCH_EVENTS: &str = "1000";

type Rate = Result<f64, Box<dyn Error>>;

/// Fails unless the fastest rounds of `ours` and `theirs`, taken in turn, come to agree.
fn expect_agreement(ours: impl Fn() -> Rate, theirs: impl Fn() -> Rate) -> TrialResult {
    expect_within(AGREEMENT, ours, theirs)
}

fn expect_within(
    agreement: RangeInclusive<f64>,
    ours: impl Fn() -> Rate,
    theirs: impl Fn() -> Rate,
) -> TrialResult {
    static ALONE: Mutex<()> = Mutex::new(());
    let _turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS_MAX {
        our_rates.push(ours()?);
        their_rates.push(theirs()?);
        our_rates.sort_by(f64::total_cmp);
        their_rates.sort_by(f64::total_cmp);
        let agree = |nth: usize| agreement.contains(&(our_rates[nth] / their_rates[nth]));
        if round >= ROUNDS_MIN && (agree(round - 1) || agree(round / 2)) {
            return Ok(());
        }
    }
    Err(format!(
        "operations a second by the bench: {our_rates:.0?}, by the other: {their_rates:.0?}"
    )
    .into())
}

/// The rate of the `kernel` path in one round.
fn kernel_path(scenario: &str, dir: &Path, more: &str) -> Rate {
    let dir = dir.display();
    let output = run(&format!(
        "bench {scenario} --dir {dir} --runtime {RUNTIME} --rounds 1 --json - {more}"
    ));
    expect_code(&output, 0);
    let document: Value = serde_json::from_slice(&output.stdout)?;
    let rows = document["results"].as_array().ok_or("no results")?;
    let kernel = rows.iter().find(|row| row["path"] == "kernel").ok_or("no kernel path")?;
    Ok(kernel["iops"].as_f64().ok_or("no iops")?)
}

/// The output of a tool in `dir`, which must succeed.
fn tool(line: &str, dir: &Path) -> Result<String, Box<dyn Error>> {
    let mut words = line.split_whitespace();
    let output =
        Command::new(words.next().ok_or("no tool")?).args(words).current_dir(dir).output()?;
    if !output.status.success() {
        return Err(format!("{line}: {}", stderr(&output)).into());
    }
    Ok(stdout(&output).to_owned())
}

/// Direct writes of `bs_bytes` in order by fio, on the file `fio` in `dir`, with further options.
fn fio(dir: &Path, bs_bytes: u64, more: &str) -> Rate {
    let common = "fio --name=agreement --filename=fio --ioengine=psync --direct=1 --rw=write \
        --thread --fallocate=none --gtod_reduce=1 --group_reporting --output-format=json";
    let output = tool(&format!("{common} --bs={bs_bytes} --runtime={RUNTIME} {more}"), dir)?;
    fs::remove_file(dir.join("fio"))?;
    let document: Value = serde_json::from_str(&output)?;
    let rate = |direction: &str| document["jobs"][0][direction]["iops"].as_f64().ok_or("no iops");
    Ok(rate("read")? + rate("write")?)
}

/// Sequential direct writes past the end of a fresh file.
fn sysbench(dir: &Path) -> Rate {
    let line = "sysbench fileio --file-num=1 --file-total-size=400M --file-test-mode=seqwr \
        --file-extra-flags=direct --file-fsync-freq=0 --threads=1 --time=0";
    let output = tool(
        &format!("{line} --file-block-size={APPEND_BYTES} --events={SYSBENCH_EVENTS} run"),
        dir,
    )?;
    fs::remove_file(dir.join("test_file.0"))?;
    let rate = output.lines().find_map(|line| line.trim().strip_prefix("writes/s:"));
    Ok(rate.ok_or("no writes/s")?.trim().parse()?)
}

fn appends(dir: &Path, more: &str) -> Rate {
    kernel_path("append", dir, &format!("--bs {APPEND_BYTES} --numjobs 1 {more}"))
}

fn appends_as_fio(dir: TestDir) -> TrialResult {
    expect_agreement(|| appends(&dir, ""), || fio(&dir, APPEND_BYTES, "--size=400m --end_fsync=1"))
}

fn durable_appends_as_fio(dir: TestDir) -> TrialResult {
    expect_agreement(
        || appends(&dir, "--durability every-write"),
        || fio(&dir, APPEND_BYTES, "--size=400m --sync=dsync"),
    )
}

fn appends_as_sysbench(dir: TestDir) -> TrialResult {
    expect_agreement(|| appends(&dir, ""), || sysbench(&dir))
}

fn sync_writers_as_fio(dir: TestDir) -> TrialResult {
    let regions = format!(
        "--numjobs={SYNC_JOBS} --size={SYNC_BYTES} --offset_increment={SYNC_BYTES} --time_based \
         --sync=sync"
    );
    let theirs = || {
        let mut file = File::create(dir.join("fio"))?;
        file.write_all(&vec![7; (SYNC_JOBS * SYNC_BYTES) as usize])?;
        file.sync_all()?;
        fio(&dir, SYNC_BYTES, &regions)
    };
    let ours = || kernel_path("sync", &dir, &format!("--bs {SYNC_BYTES} --numjobs {SYNC_JOBS}"));
    expect_agreement(ours, theirs)
}

fn mixed_as_fio(dir: TestDir) -> TrialResult {
    let mixed =
        format!("--rw=randrw --rwmixread={MIXED_READS} --norandommap --time_based --end_fsync=1");
    let theirs = || {
        fs::write(dir.join("fio"), vec![7; MIXED_SIZE_BYTES])?;
        File::open(dir.join("fio"))?.sync_all()?;
        fio(&dir, MIXED_BYTES, &format!("{mixed} --size={MIXED_SIZE_BYTES}"))
    };
    let more = format!(
        "--rwmixread {MIXED_READS} --bs {MIXED_BYTES} --size {MIXED_SIZE_BYTES} --numjobs 1"
    );
    expect_within(MIXED_AGREEMENT, || kernel_path("mixed", &dir, &more), theirs)
}

/// The path is the same everywhere, and each comparison takes seconds.
fn stands_for_all(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs => Ok(()),
        _ => Err("ext4 and XFS stand for all"),
    }
}

fn trials() -> Vec<Trial> {
    let fio = trials_with(
        "fio",
        [
            lab_trials_where("appends_as_fio", stands_for_all, appends_as_fio),
            lab_trials_where("durable_appends_as_fio", stands_for_all, durable_appends_as_fio),
            lab_trials_where("sync_writers_as_fio", stands_for_all, sync_writers_as_fio),
            lab_trials_where("mixed_as_fio", stands_for_all, mixed_as_fio),
        ],
    );
    let sysbench = trials_with(
        "sysbench",
        [lab_trials_where("appends_as_sysbench", stands_for_all, appends_as_sysbench)],
    );
    fio.into_iter().chain(sysbench).collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
