//! Logs that share free segments and a thread.

use dioxide_log::{Error, Log, LogOptions, LogReader, LogSet, LogView, Lsn};
use dioxide_testkit::fork::holds_in_a_fork;
use std::fs;
use std::path::Path;
use std::thread;

const SEGMENT_BYTES: u64 = 64 << 10;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(SEGMENT_BYTES)
}

fn records(log: &Log) -> Vec<Vec<u8>> {
    log.iter_from(log.first_lsn()).map(|record| record.expect("it is read").1).collect()
}

fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn segments(dir: &Path) -> usize {
    entries(dir).iter().filter(|name| name.starts_with("segment-")).count()
}

/// The inodes of the segments in a directory.
fn inodes(dir: &Path) -> Vec<u64> {
    use std::os::unix::fs::MetadataExt;
    let names = entries(dir).into_iter().filter(|name| name.starts_with("segment-"));
    names.map(|name| fs::metadata(dir.join(name)).unwrap().ino()).collect()
}

/// Waits for the thread of the set.
fn until(done: impl Fn() -> bool) {
    while !done() {
        thread::yield_now();
    }
}

#[test]
fn logs_have_names_and_stay_open() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let set = small().open_set(dir.path()).unwrap();
    assert!(set.names().unwrap().is_empty());
    let (one, two) = (set.log("one").unwrap(), set.log("two").unwrap());
    assert_eq!(one.append(b"1").unwrap(), Lsn(1));
    assert_eq!(two.append(b"2").unwrap(), Lsn(1));
    assert_ne!(one.id(), two.id());
    drop(one);
    // The same log, which was open all the time.
    let one = set.log("one").unwrap();
    assert_eq!((one.next_lsn(), one.stats().records), (Lsn(2), 1));
    one.clone().close().unwrap();
    assert!(matches!(one.append(b"x"), Err(Error::Closed)));
    let one = set.log("one").unwrap();
    assert!(one.report().closed);
    one.append(b"3").unwrap();
    assert_eq!(set.names().unwrap(), ["one", "two"]);
    set.clone().close().unwrap();
    assert!(matches!(one.append(b"x"), Err(Error::Closed)));
    assert!(matches!(two.append(b"x"), Err(Error::Closed)));
    assert!(matches!(set.log("two"), Err(Error::Closed)));
    assert!(matches!(set.remove("two"), Err(Error::Closed)));
    set.close().unwrap();

    let set = small().create(false).open_set(dir.path()).unwrap();
    assert_eq!(records(&set.log("one").unwrap()), [b"1", b"3"]);
    assert_eq!(records(&set.log("two").unwrap()), [b"2"]);
    assert!(matches!(set.log("three"), Err(Error::Missing { .. })));
    drop(set);
    // The directory of a log is that of any other log.
    let log = Log::open(dir.path().join("one")).unwrap();
    assert!(log.report().closed);
    assert_eq!(records(&log).len(), 2);
}

#[test]
fn names_are_checked() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let set = small().open_set(dir.path()).unwrap();
    for name in ["", ".", "..", "a/b", ".pool", ".lock", "lost+found", "a\0"] {
        for error in [set.log(name).unwrap_err(), set.remove(name).unwrap_err()] {
            assert!(matches!(error, Error::Options(_)), "{error}");
            assert!(error.to_string().contains("use 1 to 255 bytes"), "{error}");
        }
    }
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    set.log("a name").unwrap();
    assert_eq!(set.names().unwrap(), ["a name"]);
}

#[test]
fn one_process_has_a_set_open() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("a/set");
    assert!(matches!(small().create(false).open_set(&path), Err(Error::Missing { .. })));
    let set = small().open_set(&path).unwrap();
    let log = set.log("log").unwrap();
    log.append(b"1").unwrap();
    let refused = || matches!(small().open_set(&path), Err(Error::Locked { .. }));
    assert!(refused() && holds_in_a_fork(refused));
    assert!(matches!(Log::open(path.join("log")), Err(Error::Locked { .. })));
    // A child drops its copies, and the parent goes on.
    let copies = std::cell::Cell::new(Some((set.clone(), log.clone())));
    assert!(holds_in_a_fork(|| {
        drop(copies.take());
        refused()
    }));
    log.append(b"2").unwrap();
    drop(copies);
    drop(set);
    assert!(matches!(log.append(b"3"), Err(Error::Closed)), "the set was dropped");
    let set = small().open_set(&path).unwrap();
    log.close().unwrap();
    assert_eq!(records(&set.log("log").unwrap()), [b"1", b"2"]);
}

#[test]
fn a_log_is_no_set_and_a_set_is_no_log() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let (set, log) = (dir.path().join("set"), dir.path().join("log"));
    small().open_set(&set).unwrap();
    small().open(&log).unwrap();
    let error = small().open(&set).unwrap_err().to_string();
    assert!(error.ends_with("a set of logs, not a log; open one of the logs in it"), "{error}");
    let error = small().open_set(&log).unwrap_err().to_string();
    assert!(error.ends_with("a set needs a directory of its own"), "{error}");
}

#[test]
fn a_removed_log_is_gone_and_its_segments_are_used_again() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path();
    let set = small().spare_segments(3).open_set(path).unwrap();
    let log = set.log("old").unwrap();
    for number in 0..9 {
        log.append(&[number; 50_000]).unwrap();
    }
    assert!(matches!(set.remove("old"), Err(Error::Locked { .. })));
    assert!(matches!(set.remove("other"), Err(Error::Missing { .. })));
    log.close().unwrap();
    let inodes_before = inodes(&path.join("old"));
    assert!(inodes_before.len() >= 9);
    set.remove("old").unwrap();
    assert!(matches!(set.remove("old"), Err(Error::Missing { .. })));
    // The pool has room for three.
    assert_eq!(entries(path), [".lock", ".pool"]);
    assert_eq!((segments(&path.join(".pool")), set.stats().free_segments), (3, 3));
    // Another log begins in one of them, and continues in the next.
    let log = set.log("old").unwrap();
    assert!(records(&log).is_empty() && log.next_lsn() == Lsn(1));
    for number in 0..2 {
        log.append(&[100 + number; 50_000]).unwrap();
    }
    assert!(inodes(&path.join("old")).iter().all(|inode| inodes_before.contains(inode)));
    assert!(set.stats().segments_taken >= 2, "{:?}", set.stats());
    let expected = records(&log);
    drop(set);
    assert_eq!(LogView::open(path.join("old")).unwrap().next_lsn(), Lsn(3));
    assert_eq!(records(&small().open(path.join("old")).unwrap()), expected);
}

#[test]
fn segments_move_from_log_to_log() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path();
    let set = small().spare_segments(2).open_set(path).unwrap();
    let names = ["a", "b", "c"];
    for name in names {
        set.log(name).unwrap();
    }
    let mut last = 0;
    for round in 0..12u8 {
        let log = set.log(names[usize::from(round) % 3]).unwrap();
        for number in 0..6 {
            log.append(&[round, number].repeat(20_000)).unwrap();
        }
        log.truncate_front(log.next_lsn()).unwrap();
        log.append(b"a record").unwrap();
        until(|| log.stats().free_segments <= 1 && set.stats().free_segments >= 2);
        // Each log has one in use and one ahead. One more is on its way to the pool.
        let used: usize = names.iter().map(|name| segments(&path.join(name))).sum();
        assert!(used <= 3 * 2 + 1, "{used}");
        // The pool makes room before it takes that one.
        until(|| set.stats().free_segments == 2);
        let taken = set.stats().segments_taken;
        assert!(round == 0 || taken > last, "{:?}", set.stats());
        last = taken;
    }
    let stats = set.stats();
    assert!(stats.segments_given >= 24 && stats.segments_removed > 0, "{stats:?}");
    for name in names {
        assert_eq!(records(&set.log(name).unwrap()).len(), 1);
    }
    set.close().unwrap();
    assert_eq!(entries(path), [".lock", ".pool", "a", "b", "c"]);
    assert!(segments(&path.join(".pool")) <= 2);
}

/// Each log needed a thread and free segments of its own.
#[test]
fn many_logs_share_few_free_segments_and_a_thread() {
    const LOGS: usize = 40;
    let dir = tempfile::tempdir_in(".").unwrap();
    let set = small().open_set(dir.path()).unwrap();
    for number in 0..LOGS {
        let log = set.log(&number.to_string()).unwrap();
        for _ in 0..3 {
            log.append(&[1; 50_000]).unwrap();
        }
        // In a segment that is not half full, so the log needs no other.
        log.append(&[2; 20_000]).unwrap();
        log.truncate_front(log.next_lsn()).unwrap();
    }
    let segments = || -> usize {
        let names = entries(dir.path()).into_iter().filter(|name| name != ".lock");
        names.map(|name| segments(&dir.path().join(name))).sum()
    };
    until(|| segments() <= LOGS + 4);
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten().filter(|task| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.trim() == "dioxide-log-poo"
    });
    // Those of other tests run beside.
    assert!(threads.count() < LOGS / 2);
}

#[test]
fn threads_append_to_many_logs() {
    const LOGS: u64 = 24;
    let dir = tempfile::tempdir_in(".").unwrap();
    let set = small().open_set(dir.path()).unwrap();
    let record = |log: u64, number: u64| [log, number].map(u64::to_le_bytes).concat().repeat(150);
    thread::scope(|scope| {
        for number in 0..LOGS {
            let set = &set;
            scope.spawn(move || {
                let log = set.log(&format!("log {number}")).unwrap();
                for lsn in 1..=300 {
                    assert_eq!(log.append(&record(number, lsn)).unwrap(), Lsn(lsn));
                    if lsn % 60 == 0 {
                        log.truncate_front(Lsn(lsn - 20)).unwrap();
                    }
                }
            });
        }
    });
    let all = |set: &LogSet| {
        assert_eq!(set.names().unwrap().len(), LOGS as usize);
        for number in 0..LOGS {
            let log = set.log(&format!("log {number}")).unwrap();
            let expected: Vec<_> = (280..=300).map(|lsn| record(number, lsn)).collect();
            assert_eq!(records(&log), expected, "log {number}");
        }
    };
    all(&set);
    let mut reader = LogReader::open(dir.path().join("log 3")).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().payload, record(3, 280));
    set.close().unwrap();
    all(&small().open_set(dir.path()).unwrap());
}

#[test]
fn threads_open_and_close_the_logs_of_a_set() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let set = small().open_set(dir.path()).unwrap();
    let appended: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let set = &set;
                scope.spawn(move || {
                    let mut appended = 0;
                    for round in 0..40 {
                        let log = set.log(["x", "y"][(round % 2) as usize]).unwrap();
                        match log.append(b"a record") {
                            Ok(_) => appended += 1,
                            Err(Error::Closed) => {}
                            Err(error) => panic!("{error}"),
                        }
                        if round % 4 == thread {
                            log.close().unwrap();
                        }
                    }
                    appended
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let count: usize = ["x", "y"].map(|name| records(&set.log(name).unwrap()).len()).iter().sum();
    assert_eq!(count as u64, appended);
}

#[test]
fn retention_frees_the_segments_of_all_logs() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let options = small().retain_bytes(2 * SEGMENT_BYTES).spare_segments(1);
    let set = options.open_set(dir.path()).unwrap();
    let logs = ["a", "b", "c"].map(|name| set.log(name).unwrap());
    for number in 0..100 {
        for log in &logs {
            log.append(&[number; 10_000]).unwrap();
        }
    }
    until(|| logs.iter().all(|log| log.stats().segments <= 2));
    // Two in use and one ahead for each log, and one in the pool.
    let segments = |name| segments(&dir.path().join(name));
    until(|| ["a", "b", "c", ".pool"].into_iter().map(segments).sum::<usize>() <= 3 * 3 + 1);
    assert!(set.stats().segments_given > 0 && logs[0].first_lsn() > Lsn(80));
}
