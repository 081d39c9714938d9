//! Programs in which threads wait for another one that syncs. The verdict must say so, and only of
//! them.

use crate::limited::{Limited, on_ext4_with_limits};
use crate::program::*;
use crate::servers::{MariaDb, Postgres};
use dioxide_testkit::lab::Fs;
use dioxide_testkit::trials::{Trial, TrialResult, fuse_trials_where, only_in_all, trials_with};
use dioxide_testkit::volume::Volume;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

/// Maximum duration of a flush on the slow disk.
const FLUSH_MAX: Duration = Duration::from_millis(20);
/// With fewer waiters at the ends of flushes, the program has done too little to be judged.
const ENDED_MIN: u64 = 60;
/// Four times the wake-ups that make a thread a follower, because not every one is seen.
const TURNS_MIN: u64 = 16;
/// Writes a second. Below the rate of a disk that other trials keep busy.
const LIMIT: u32 = 40;

/// On a disk with slow flushes. Otherwise commits mostly wait for processors on a busy machine.
fn slow_volume(kind: Fs) -> io::Result<Volume> {
    Volume::on_fuse_disk(kind, 512 << 20)
}

fn slow_down(volume: &Volume) -> io::Result<()> {
    volume.disk().expect("a FUSE disk").delay(FLUSH_MAX, 1).map(drop)
}

/// The waiters that evidence has of the ends of flushes.
fn ended(document: &Value) -> u64 {
    let queues = document["diagnoses"][0]["evidence"]["queues"].as_array().expect("queues");
    let count = |queue: &Value, pairs: &str| queue[pairs]["ended"].as_u64().expect("a count");
    queues.iter().map(|queue| count(queue, "short") + count(queue, "long")).sum()
}

fn is_thin(document: &Value) -> bool {
    let verdict = &document["diagnoses"][0]["findings"][0]["verdict"];
    verdict.as_str().expect("a verdict").contains("is thin")
}

/// Whether the program has done enough to be judged.
fn is_judged(document: &Value) -> bool {
    ended(document) >= ENDED_MIN && !is_thin(document)
}

/// Whether each thread of a pool has had enough turns, and a flush in each, to be judged.
fn is_pool_judged(document: &Value) -> bool {
    let devices = document["diagnoses"][0]["evidence"]["devices"].as_array().expect("devices");
    let flushes: u64 = devices.iter().filter_map(|device| device["flushes"].as_u64()).sum();
    flushes >= TURNS_MIN * THREADS as u64 && !is_thin(document)
}

fn has_queue(document: &Value) -> bool {
    walls(&findings_of(document)).contains(&"program_queue")
}

/// The findings on a program with a queue. A short observation may miss it.
fn observe_queue(program: &Program) -> Vec<Value> {
    observe_until(program, |document| is_judged(document) && has_queue(document))
}

/// Threads wait for the one that flushes, and the advice is not what the program does already.
fn expect_queue(findings: &[Value]) -> TrialResult {
    let queue = findings.iter().find(|finding| finding["wall"] == "program_queue");
    let queue = queue.unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(queue["verdict"].as_str().unwrap().contains("sync"), "{findings:#?}");
    assert!(!format!("{findings:?}").contains("group commit"), "{findings:#?}");
    Ok(())
}

/// The stacks of the waiters name the functions of the program.
fn expect_functions(findings: &[Value], functions: &str) -> TrialResult {
    expect_queue(findings)?;
    if cfg!(target_arch = "x86_64") {
        let text = format!("{findings:?}");
        assert!(text.contains(&format!("wait in {functions}")), "{functions}: {findings:#?}");
    }
    Ok(())
}

fn commits_of_postgres_wait_for_flushes(kind: Fs) -> TrialResult {
    let volume = slow_volume(kind)?;
    let postgres = Postgres::start(volume.path(), || slow_down(&volume))?;
    postgres.wait_for_clients();
    expect_functions(&observe_queue(&postgres.server), "LWLockAcquireOrWait, called by XLogFlush")
}

/// D1 of the review: nothing was said of the cgroup's limit, nor of the queue.
fn commits_under_a_limit_of_the_cgroup(kind: Fs) -> TrialResult {
    let volume = Volume::new(kind, 512 << 20)?;
    let number = fs::metadata(volume.device())?.st_rdev();
    let limited = Limited::new((rustix::fs::major(number), rustix::fs::minor(number)), LIMIT)?;
    let postgres = Postgres::start(volume.path(), || Ok(()))?;
    postgres.wait_for_clients();
    postgres.processes().into_iter().try_for_each(|pid| limited.add(pid))?;
    let is_enough = |document: &Value| {
        is_judged(document) && is_led_by(document, "cgroup_limit") && has_queue(document)
    };
    let findings = observe_until(&postgres.server, is_enough);
    drop(postgres);
    drop(limited);
    assert_eq!(walls(&findings).first(), Some(&"cgroup_limit"), "{findings:#?}");
    expect_functions(&findings, "LWLockAcquireOrWait, called by XLogFlush")
}

fn commits_of_mariadb_wait_for_flushes(kind: Fs) -> TrialResult {
    let volume = slow_volume(kind)?;
    let mariadb = MariaDb::start(volume.path(), || slow_down(&volume))?;
    expect_queue(&observe_queue(&mariadb.server))
}

/// Writers of RocksDB, of which one at a time leads a group.
fn writers_of_rocksdb_wait_for_their_leader(kind: Fs) -> TrialResult {
    let volume = slow_volume(kind)?;
    slow_down(&volume)?;
    let line = format!(
        "db_bench --benchmarks=fillrandom --sync=1 --threads={THREADS} --num=1000000000 --db=db"
    );
    let rocksdb = Program::start(&line, volume.path()).wait_for_threads(THREADS + 1);
    let findings = observe_queue(&rocksdb);
    let functions = "rocksdb::WriteThread::JoinBatchGroup, called by rocksdb::DBImpl::";
    expect_functions(&findings, functions)
}

/// This test's own program of this name, on a disk with slow flushes.
fn own(name: &str, kind: Fs) -> Result<(Volume, Program), Box<dyn std::error::Error>> {
    let volume = slow_volume(kind)?;
    file_of(volume.path(), &Space::Written);
    slow_down(&volume)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([name, "file"]).current_dir(volume.path());
    let program = Program::spawn(&mut command, Signal::KILL).wait_for_threads(THREADS + 1);
    Ok((volume, program))
}

/// D1 of the review: 14.9 of 16 threads were hidden.
fn followers_of_a_group_commit_wait_for_its_flush(kind: Fs) -> TrialResult {
    let (_volume, program) = own("group-commit", kind)?;
    expect_queue(&observe_queue(&program))
}

fn followers_on_one_futex_wait_for_its_flush(kind: Fs) -> TrialResult {
    let (_volume, program) = own("one-condition", kind)?;
    expect_queue(&observe_queue(&program))
}

/// The control: they share their loop with the thread that syncs.
fn idle_threads_of_a_pool_wait_for_nothing(kind: Fs) -> TrialResult {
    let (_volume, program) = own("idle-pool", kind)?;
    let document = document_until(&program, is_pool_judged);
    assert!(is_pool_judged(&document), "{document:#}");
    let findings = findings_of(&document);
    let walls = walls(&findings);
    assert!(!walls.contains(&"program_queue") && !walls.contains(&"program_lock"), "{findings:#?}");
    Ok(())
}

fn a_lock_is_named_by_the_function_that_takes_it(kind: Fs) -> TrialResult {
    let (_volume, program) = own("one-lock", kind)?;
    let findings = find_wall(&program, "program_lock");
    let evidence = findings[0]["evidence"].to_string();
    let function = "sampled waiters take it in attach::commits::one_lock::";
    assert!(!cfg!(target_arch = "x86_64") || evidence.contains(function), "{evidence}");
    Ok(())
}

pub fn trials() -> Vec<Trial> {
    let own = [
        fuse_trials_where(
            "a_lock_is_named_by_the_function_that_takes_it",
            Fs::on_ext4,
            a_lock_is_named_by_the_function_that_takes_it,
        ),
        fuse_trials_where(
            "followers_of_a_group_commit_wait_for_its_flush",
            Fs::on_ext4,
            followers_of_a_group_commit_wait_for_its_flush,
        ),
        fuse_trials_where(
            "followers_on_one_futex_wait_for_its_flush",
            Fs::on_ext4,
            followers_on_one_futex_wait_for_its_flush,
        ),
        fuse_trials_where(
            "idle_threads_of_a_pool_wait_for_nothing",
            Fs::on_ext4,
            idle_threads_of_a_pool_wait_for_nothing,
        ),
    ];
    let postgres = [fuse_trials_where(
        "commits_of_postgres_wait_for_flushes",
        Fs::on_ext4,
        commits_of_postgres_wait_for_flushes,
    )];
    let limited = [fuse_trials_where(
        "commits_under_a_limit_of_the_cgroup",
        on_ext4_with_limits,
        commits_under_a_limit_of_the_cgroup,
    )];
    let rocksdb = [fuse_trials_where(
        "writers_of_rocksdb_wait_for_their_leader",
        Fs::on_ext4,
        writers_of_rocksdb_wait_for_their_leader,
    )];
    let mariadb = [fuse_trials_where(
        "commits_of_mariadb_wait_for_flushes",
        Fs::on_ext4,
        commits_of_mariadb_wait_for_flushes,
    )];
    let mut trials: Vec<Trial> = own.into_iter().flatten().collect();
    trials.extend(trials_with("pg_ctlcluster", postgres));
    trials.extend(trials_with("db_bench", rocksdb));
    trials.extend(only_in_all(trials_with("pg_ctlcluster", limited)));
    trials.extend(only_in_all(trials_with("/usr/sbin/mariadbd", mariadb)));
    trials
}
