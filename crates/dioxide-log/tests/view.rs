//! A view reads a log without its writer, and changes nothing.

use dioxide_log::storage::memory::Memory;
use dioxide_log::{Error, Log, LogOptions, LogView, Lsn, Stream, StreamView};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

type Numbered = Vec<(Lsn, Vec<u8>)>;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

fn records(log: &Log) -> Numbered {
    log.iter_from(log.first_lsn()).map(|record| record.expect("it is read")).collect()
}

fn seen(view: &LogView, from: Lsn) -> Numbered {
    view.iter_from(from).map(|record| record.expect("it is read")).collect()
}

fn append(log: &Log, count: usize) {
    for number in 0..count {
        let len = [0, 1, 100, 4000, 20_000][number % 5];
        log.append(&vec![number as u8; len]).unwrap();
    }
}

/// Compares a view with the log, which is closed.
fn expect_equal(path: &Path, log: Log) {
    let (id, first, next) = (log.id(), log.first_lsn(), log.next_lsn());
    let expected = records(&log);
    log.close().unwrap();
    let view = LogView::open(path).unwrap();
    assert_eq!((view.id(), view.first_lsn(), view.next_lsn()), (id, first, next));
    assert!(view.report().closed);
    assert_eq!(view.segments() as u64, view.report().segments);
    for skipped in 0..=expected.len() {
        let from = Lsn(first.0 + skipped as u64);
        assert_eq!(seen(&view, from), expected[skipped..]);
    }
}

#[test]
fn a_view_has_the_records_of_the_log() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    append(&log, 100);
    log.append_all(&[b"a", b"b"]).unwrap();
    expect_equal(dir.path(), log);
}

#[test]
fn a_view_has_no_truncated_record() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    append(&log, 60);
    log.truncate_back(Lsn(31)).unwrap();
    expect_equal(dir.path(), log);

    let log = small().open(dir.path()).unwrap();
    append(&log, 30);
    log.truncate_back(log.next_lsn()).unwrap();
    append(&log, 3);
    log.truncate_front(Lsn(20)).unwrap();
    append(&log, 3);
    expect_equal(dir.path(), log);
    let view = LogView::open(dir.path()).unwrap();
    let mut below = view.iter_from(Lsn(19));
    assert!(matches!(below.next(), Some(Err(Error::OutOfRange { .. }))));
    assert!(below.next().is_none());
    assert!(view.iter_from(Lsn(1000)).next().is_none());

    // Empty, and then far above.
    let log = small().open(dir.path()).unwrap();
    log.truncate_front(Lsn(5000)).unwrap();
    expect_equal(dir.path(), log);
    let log = small().open(dir.path()).unwrap();
    append(&log, 7);
    expect_equal(dir.path(), log);
}

#[test]
fn a_damaged_log_has_no_view() {
    let disk = Memory::default();
    let storage = || Arc::new(disk.clone());
    assert!(matches!(LogView::of(storage()), Err(Error::Missing { .. })));
    let log = small().open_storage(storage()).unwrap();
    append(&log, 50);
    let expected = records(&log);
    log.close().unwrap();
    let view = LogView::of(storage()).unwrap();
    assert_eq!(seen(&view, Lsn(1)), expected);

    let name = disk.names()[1];
    disk.edit(name, |bytes| bytes[5000] ^= 1);
    assert!(matches!(LogView::of(storage()), Err(Error::Corrupt { .. })));
    // The earlier view does not return a changed record.
    let read: Vec<_> = view.iter_from(Lsn(1)).collect();
    let (last, before) = read.split_last().expect("records");
    assert!(matches!(last, Err(Error::Corrupt { .. })));
    let before: Numbered = before.iter().map(|record| record.clone().unwrap()).collect();
    assert_eq!(before, expected[..before.len()]);
}

/// The content and the time of the last change of each file.
fn files(path: &Path) -> BTreeMap<String, (Vec<u8>, std::time::SystemTime)> {
    let file = |entry: fs::DirEntry| {
        let changed = entry.metadata().unwrap().modified().unwrap();
        let content = fs::read(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), (content, changed))
    };
    fs::read_dir(path).unwrap().map(|entry| file(entry.unwrap())).collect()
}

/// All three were "no log", which invites a user to make one.
#[test]
fn a_view_says_why_there_is_no_log() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path();
    let message = |name: &str| LogView::open(path.join(name)).unwrap_err().to_string();
    small().open_set(path.join("set")).unwrap().close().unwrap();
    fs::write(path.join("file"), "").unwrap();
    std::os::unix::fs::symlink("loop", path.join("loop")).unwrap();
    assert!(message("set").contains("a set of logs"), "{}", message("set"));
    assert!(message("file/log").contains("Not a directory"), "{}", message("file/log"));
    assert!(message("loop").contains("symbolic links"), "{}", message("loop"));
    assert!(message("none").contains("no log"), "{}", message("none"));
}

#[test]
fn a_view_changes_no_file_and_needs_no_lock() {
    let dir = tempfile::tempdir_in(".").unwrap();
    assert!(matches!(LogView::open(dir.path()), Err(Error::Missing { .. })));
    assert!(matches!(LogView::open(dir.path().join("none")), Err(Error::Missing { .. })));
    assert!(files(dir.path()).is_empty());
    let log = small().open(dir.path()).unwrap();
    append(&log, 50);
    // The pool may still make a segment.
    let expected = records(&log);
    let view = LogView::open(dir.path()).unwrap();
    assert!(!view.report().closed);
    assert_eq!(seen(&view, Lsn(1)), expected);
    log.close().unwrap();

    let before = files(dir.path());
    let view = LogView::open(dir.path()).unwrap();
    assert_eq!(seen(&view, Lsn(1)), expected);
    drop(view);
    assert!(files(dir.path()) == before);
}

#[test]
fn a_view_beside_a_writer_has_all_that_was_acknowledged() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| append(&log, 300));
        while !writer.is_finished() {
            let next = log.stable_lsn();
            match LogView::open(dir.path()) {
                Ok(view) => assert!(view.next_lsn() >= next),
                // The log has no header yet.
                Err(Error::Missing { .. }) if next == Lsn::FIRST => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}

/// The writer went on between the reads of the last segment, which then looked damaged.
#[test]
fn a_view_of_a_long_log_is_never_corrupt_beside_its_writer() {
    let disk = Memory::default();
    let log = small().open_storage(Arc::new(disk.clone())).unwrap();
    for _ in 0..200 {
        log.append(&[1; 30_000]).unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                log.append(b"a record").unwrap();
            }
        });
        let views: Vec<_> = (0..5).map(|_| LogView::of(Arc::new(disk.clone()))).collect();
        stop.store(true, Relaxed);
        for view in views {
            assert!(view.unwrap().next_lsn() > Lsn(200));
        }
    });
}

fn stream_records(stream: &Stream) -> Numbered {
    stream.iter_from(stream.first_lsn()).map(|record| record.expect("it is read")).collect()
}

/// Random changes of a few streams, in a log whose oldest segments are collected.
#[test]
fn a_view_has_each_stream_as_its_log_has_it() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = Memory::default();
        let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
        for _ in 0..400 {
            let stream = log.stream(rng.u64(1..6));
            let (first, next) = (stream.first_lsn().0, stream.next_lsn().0);
            match rng.u8(0..20) {
                0 => stream.truncate_front(Lsn(rng.u64(first..=next))).unwrap(),
                1 => stream.truncate_back(Lsn(rng.u64(first..=next))).unwrap(),
                2 if rng.u8(0..4) == 0 => stream.remove().unwrap(),
                _ => {
                    let record = vec![rng.u8(..); rng.usize(0..3000)];
                    stream.append(&record).unwrap();
                }
            }
        }
        let ids = log.ids();
        let state = |stream: &Stream| (stream.first_lsn(), stream.next_lsn());
        let expected: Vec<_> = (0..7)
            .map(|id| log.stream(id))
            .map(|stream| (state(&stream), stream_records(&stream)))
            .collect();
        log.close().unwrap();

        let view = StreamView::of_log(LogView::of(Arc::new(disk)).unwrap()).unwrap();
        assert_eq!(view.ids(), ids, "seed {seed}");
        for (id, (range, records)) in expected.into_iter().enumerate() {
            let id = id as u64;
            assert_eq!((view.first_lsn(id), view.next_lsn(id)), range, "seed {seed}: {id}");
            let found = view.iter_from(id, range.0).map(|record| record.expect("it is read"));
            assert_eq!(found.collect::<Numbered>(), records, "seed {seed}: {id}");
            if range.0 > Lsn(1) {
                let mut below = view.iter_from(id, Lsn(range.0.0 - 1));
                assert!(range.0 == range.1 || below.next().unwrap().is_err());
            }
        }
    }
}

#[test]
fn a_view_of_streams_refuses_other_logs() {
    let dir = tempfile::tempdir_in(".").unwrap();
    assert!(matches!(StreamView::open(dir.path()), Err(Error::Missing { .. })));
    let log = small().open(dir.path()).unwrap();
    log.append(b"a record").unwrap();
    log.close().unwrap();
    let view = LogView::open(dir.path()).unwrap();
    assert!(!view.has_streams() && matches!(StreamView::of_log(view), Err(Error::Options(_))));
    assert!(matches!(StreamView::open(dir.path()), Err(Error::Options(_))));
}

/// The writer collects segments, and uses them again, while the view reads.
#[test]
fn a_view_of_streams_beside_their_writer_is_consistent() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (rests, goes_on) = (log.stream(1), log.stream(2));
            for number in 0..20u8 {
                rests.append(&[number; 100]).unwrap();
            }
            while !ends.load(Relaxed) {
                let lsn = goes_on.append(&[9; 3000]).unwrap();
                if lsn.0 % 50 == 0 {
                    goes_on.truncate_front(lsn).unwrap();
                }
            }
        });
        let views: Vec<_> = (0..20).map(|_| StreamView::open(dir.path())).collect();
        ends.store(true, Relaxed);
        let mut seen = Lsn(1);
        for view in views {
            let view = match view {
                Ok(view) => view,
                Err(error) => {
                    assert!(matches!(error, Error::Changing { .. }), "{error}");
                    continue;
                }
            };
            let next = view.next_lsn(2);
            assert!(next >= seen, "records that were there are lost");
            assert!(view.next_lsn(1) <= Lsn(21));
            seen = next;
        }
    });
    let view = StreamView::open(dir.path()).unwrap();
    assert_eq!((view.next_lsn(1), view.next_lsn(2)), (Lsn(21), log.stream(2).next_lsn()));
    assert_eq!(log.stream(1).next_lsn(), Lsn(21));
    log.close().unwrap();
}
