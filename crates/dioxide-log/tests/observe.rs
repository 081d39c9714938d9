//! The events of logs. The process has one observer, which keeps the events of each log apart.

use dioxide_log::observe::{self, Event, ObserverIsSet};
use dioxide_log::storage::Storage;
use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{Durability, Log, LogOptions, Lsn, Report, StreamLog};
use futures::executor::block_on;
use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

const THREADS: u64 = 8;
const RECORDS: u64 = 50;

/// The events of a log.
#[derive(Clone, Debug, Default)]
struct Seen {
    recoveries: Vec<Report>,
    appends: u64,
    appended: u64,
    batches: u64,
    records: u64,
    bytes: u64,
    write_time: Duration,
    failed_batches: u64,
    syncs: u64,
    rotations: Vec<u64>,
    created: u64,
    freed: u64,
    failures: Vec<String>,
}

static SEEN: LazyLock<Mutex<HashMap<PathBuf, Seen>>> = LazyLock::new(Mutex::default);

fn record(event: &Event<'_>) {
    let (Event::Recovery { log, .. }
    | Event::Append { log, .. }
    | Event::Batch { log, .. }
    | Event::Sync { log, .. }
    | Event::Rotation { log, .. }
    | Event::SegmentCreated { log, .. }
    | Event::SegmentFreed { log, .. }
    | Event::Failure { log, .. }) = event
    else {
        panic!("an event that no test knows: {event:?}");
    };
    let mut all = SEEN.lock().unwrap();
    let seen = all.entry(log.to_path_buf()).or_default();
    match *event {
        Event::Recovery { report, .. } => seen.recoveries.push(report.clone()),
        Event::Append { records, .. } => {
            seen.appends += 1;
            seen.appended += records;
        }
        Event::Batch { error: Some(_), .. } => seen.failed_batches += 1,
        Event::Batch { records, bytes, took, .. } => {
            seen.batches += 1;
            seen.records += records;
            seen.bytes += bytes;
            seen.write_time += took;
        }
        Event::Sync { .. } => seen.syncs += 1,
        Event::Rotation { segment, .. } => seen.rotations.push(segment),
        Event::SegmentCreated { .. } => seen.created += 1,
        Event::SegmentFreed { .. } => seen.freed += 1,
        Event::Failure { error, .. } => seen.failures.push(error.to_string()),
        _ => unreachable!("matched above"),
    }
}

fn observe() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| observe::set_observer(record).expect("only these tests set one"));
}

/// The events of a log since the last call.
fn take(log: &Path) -> Seen {
    SEEN.lock().unwrap().remove(log).unwrap_or_default()
}

/// Appends by calls and by futures.
fn append_by_many(log: &Log) {
    let append = |number: u64| match number % 3 {
        0 => log.append(&[1; 500]),
        1 => log.append_all(&[b"one", b"two"]),
        _ => block_on(log.append_async(&[2; 900])),
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| assert!((0..RECORDS).map(append).all(|appended| appended.is_ok())));
        }
    });
}

#[test]
fn there_are_as_many_events_as_the_counters_say() {
    observe();
    for durability in [Durability::EveryWrite, Durability::OnSync] {
        let dir = tempfile::tempdir_in(".").unwrap();
        let options = LogOptions::new().segment_bytes(64 << 10).durability(durability);
        let log = options.open(dir.path()).unwrap();
        append_by_many(&log);
        log.sync().unwrap();
        log.truncate_front(log.next_lsn()).unwrap();
        append_by_many(&log);
        let closed = log.clone();
        // No thread works for it any more.
        closed.close().unwrap();
        let (seen, stats) = (take(dir.path()), log.stats());
        assert_eq!(
            (seen.records, seen.batches, seen.bytes, seen.syncs),
            (stats.records, stats.batches, stats.bytes, stats.syncs)
        );
        assert_eq!(stats.bytes % 4096, 0, "a write is whole blocks");
        assert_eq!(seen.write_time.as_nanos() as u64, stats.write_ns);
        assert_eq!((seen.created, seen.freed), (stats.segments_created, stats.segments_freed));
        assert_eq!((seen.appends, seen.appended), (2 * THREADS * RECORDS, stats.records));
        // The first segment was begun by its header.
        let segments = 2..2 + seen.rotations.len() as u64;
        assert!(seen.rotations.iter().copied().eq(segments) && seen.rotations.len() > 4);
        assert!(seen.freed > 0 && seen.created > 0);
        assert!(seen.recoveries.is_empty() && seen.failures.is_empty());
    }
}

#[test]
fn a_recovery_is_reported_with_its_findings() {
    observe();
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = Log::open(dir.path()).unwrap();
    log.append_all(&[&b"a record"[..]; 5]).unwrap();
    log.close().unwrap();
    take(dir.path());
    let log = Log::open(dir.path()).unwrap();
    assert_eq!(take(dir.path()).recoveries, [log.report().clone()]);
    assert_eq!((log.report().records, log.next_lsn()), (5, Lsn(6)));
}

#[test]
fn a_failed_write_is_reported_as_one_and_fails_the_log_once() {
    observe();
    let disk = Memory::default();
    let log = LogOptions::new().open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"a record").unwrap();
    let name = disk.path().to_owned();
    take(&name);
    disk.set_faults(Faults { failed_call: Some(disk.calls() + 1), ..Faults::default() });
    let error = log.append(b"a record").unwrap_err();
    log.append(b"a record").unwrap_err();
    let seen = take(&name);
    assert_eq!((seen.failed_batches, seen.batches, seen.appends), (1, 0, 0));
    assert_eq!(seen.failures, [error.to_string()]);
}

#[test]
fn a_process_has_one_observer() {
    observe();
    assert_eq!(observe::set_observer(|_| {}), Err(ObserverIsSet));
}

/// A future of one was reported, a call was not.
#[test]
fn an_empty_batch_is_no_append() {
    observe();
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = Log::open(dir.path().join("log")).unwrap();
    let streams = StreamLog::open(dir.path().join("streams")).unwrap();
    log.append_all(&[]).unwrap();
    block_on(log.append_all_async(&[])).unwrap();
    streams.stream(1).append_all(&[]).unwrap();
    block_on(streams.stream(1).append_all_async(&[])).unwrap();
    assert_eq!(["log", "streams"].map(|name| take(&dir.path().join(name)).appends), [0, 0]);
}

/// Its thread ended, and the threads that waited for that one stayed.
#[test]
fn an_observer_that_panics_ends_the_process() {
    const DIR: &str = "DIOXIDE_TEST_OF_AN_OBSERVER_THAT_PANICS";
    const SIGABRT: i32 = 6;
    if let Some(dir) = std::env::var_os(DIR) {
        observe::set_observer(|_| panic!("an observer")).unwrap();
        let log = Log::open(dir).unwrap();
        // A thread of the log writes it.
        let _ = block_on(log.append_async(b"a record"));
        return;
    }
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "an_observer_that_panics_ends_the_process", "--nocapture"]);
    again.env(DIR, dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let (mut child, begun) = (again.spawn().unwrap(), Instant::now());
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > Duration::from_secs(60) => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the process hangs");
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(status.signal(), Some(SIGABRT), "{status}");
}
