//! A log in a directory of the file system of the tests.

use dioxide_log::{Error, Log, LogOptions, Lsn};
use std::path::Path;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

fn records(log: &Log) -> Vec<(u64, Vec<u8>)> {
    let records = log.iter_from(log.first_lsn());
    records.map(|record| record.expect("it is read")).map(|(lsn, bytes)| (lsn.0, bytes)).collect()
}

fn record(lsn: u64) -> Vec<u8> {
    let len = [0, 1, 100, 4000, 20_000][lsn as usize % 5];
    let mut bytes = vec![lsn as u8; len];
    bytes.extend(lsn.to_le_bytes());
    bytes
}

#[test]
fn records_come_back_in_order_across_segments_and_opens() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut expected = Vec::new();
    for round in 0..3u64 {
        let log = small().open(dir.path()).unwrap();
        assert_eq!(records(&log), expected);
        assert_eq!(log.report().closed, round > 0);
        for lsn in round * 100 + 1..=round * 100 + 100 {
            assert_eq!(log.append(&record(lsn)).unwrap(), Lsn(lsn));
            expected.push((lsn, record(lsn)));
        }
        assert_eq!(records(&log), expected);
        for lsn in [1, 50, 51, 52, 53, round * 100 + 100] {
            assert_eq!(log.read(Lsn(lsn)).unwrap(), Some(record(lsn)));
        }
        assert_eq!(log.read(log.next_lsn()).unwrap(), None);
        if round == 1 {
            drop(log);
        } else {
            log.close().unwrap();
        }
    }
}

#[test]
fn threads_append_at_once_and_each_record_has_its_number() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    let mut numbered: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let write = |thread: u64| {
            let log = log.clone();
            move || {
                let append = |number: u64| {
                    let bytes = [thread, number].map(u64::to_le_bytes).concat();
                    (log.append(&bytes).unwrap().0, bytes)
                };
                (0..200).map(append).collect::<Vec<_>>()
            }
        };
        let writers: Vec<_> = (0..16).map(|thread| scope.spawn(write(thread))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    numbered.sort();
    assert_eq!(records(&log), numbered);
    assert!(numbered.iter().map(|(lsn, _)| *lsn).eq(1..=3200));
    assert_eq!(log.stats().records, 3200);
    log.close().unwrap();
    let log = small().open(dir.path()).unwrap();
    assert_eq!(records(&log), numbered);
}

#[test]
fn both_ends_are_truncated() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    for lsn in 1..=100 {
        log.append(&record(lsn)).unwrap();
    }
    let segments = log.stats().segments;
    log.truncate_front(Lsn(80)).unwrap();
    assert_eq!(log.first_lsn(), Lsn(80));
    assert!(log.stats().segments < segments);
    assert!(matches!(log.read(Lsn(79)), Err(Error::OutOfRange { .. })));
    assert_eq!(log.read(Lsn(80)).unwrap(), Some(record(80)));

    let mut reader = log.iter_from(Lsn(90));
    assert_eq!(reader.next().unwrap().unwrap().payload, record(90));
    log.truncate_back(Lsn(91)).unwrap();
    assert_eq!((log.last_lsn(), log.next_lsn()), (Some(Lsn(90)), Lsn(91)));
    assert!(dioxide_log::Iter::next(&mut reader).unwrap().is_none());
    assert_eq!(log.append(b"another").unwrap(), Lsn(91));
    assert_eq!(dioxide_log::Iter::next(&mut reader).unwrap().unwrap().payload, b"another");
    assert!(matches!(log.truncate_back(Lsn(79)), Err(Error::OutOfRange { .. })));
    assert!(matches!(log.truncate_back(Lsn(93)), Err(Error::OutOfRange { .. })));

    let expected = records(&log);
    assert_eq!(expected.len(), 12);
    log.close().unwrap();
    let log = small().open(dir.path()).unwrap();
    assert_eq!(records(&log), expected);
    // As after a snapshot: the log continues far above.
    log.truncate_front(Lsn(1000)).unwrap();
    assert_eq!((log.first_lsn(), log.last_lsn()), (Lsn(1000), None));
    assert_eq!(log.append(b"later").unwrap(), Lsn(1000));
    log.close().unwrap();
    let log = small().open(dir.path()).unwrap();
    assert_eq!(records(&log), [(1000, b"later".to_vec())]);
}

#[test]
fn a_batch_is_appended_as_a_whole() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    assert_eq!(log.append_all(&[]).unwrap(), Lsn(1));
    assert_eq!(log.append_all(&[b"a", b"b", b"c"]).unwrap(), Lsn(1));
    assert_eq!(log.append_all(&[b"d"]).unwrap(), Lsn(4));
    let long = vec![1; 64 << 10];
    assert!(matches!(log.append(&long), Err(Error::TooLong { .. })));
    let half = vec![1; 30_000];
    for _ in 0..5 {
        log.append_all(&[&half, b"x", &half[..20_000]]).unwrap();
    }
    assert_eq!(records(&log).len(), 19);
}

#[test]
fn a_second_writer_is_refused() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    assert!(matches!(small().open(dir.path()), Err(Error::Locked { .. })));
    log.close().unwrap();
    small().open(dir.path()).unwrap();
    let missing = dir.path().join("none");
    assert!(matches!(small().create(false).open(&missing), Err(Error::Missing { .. })));
}

#[test]
fn one_thread_keeps_many_records_in_flight() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    let lsns: Vec<Lsn> = (1..=5000).map(|lsn| log.submit(&record(lsn % 3)).unwrap()).collect();
    assert_eq!(lsns.last(), Some(&Lsn(5000)));
    for lsn in &lsns {
        log.wait(*lsn).unwrap();
    }
    assert!(log.wait(Lsn(5001)).is_err());
    assert_eq!(records(&log).len(), 5000);
}

#[test]
fn a_follower_gets_each_record_once() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    let mut follower = log.follow(Lsn(1));
    let reader = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while let Some(record) = follower.next().unwrap() {
            seen.push((record.lsn.0, record.payload.to_vec()));
        }
        seen
    });
    for lsn in 1..=500 {
        log.append(&record(lsn)).unwrap();
    }
    let expected = records(&log);
    log.close().unwrap();
    assert_eq!(reader.join().unwrap(), expected);
}

/// The reader got the error of the system for the file, which was removed.
#[test]
fn a_reader_of_a_removed_segment_gets_the_range() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().segment_bytes(1 << 20).spare_segments(0).open(dir.path()).unwrap();
    let mut reader = log.iter_from(Lsn(1));
    // The last segment is not half full, so the log keeps none for later.
    for _ in 0..33 {
        log.append(&[1; 100_000]).unwrap();
    }
    dioxide_log::Iter::next(&mut reader).unwrap().unwrap();
    let segment = || dir.path().join("segment-000000").exists();
    assert!(segment());
    log.truncate_front(log.next_lsn()).unwrap();
    while segment() {
        std::thread::yield_now();
    }
    // Two more are in its memory.
    let error = (0..3).find_map(|_| dioxide_log::Iter::next(&mut reader).map(drop).err());
    assert!(matches!(error, Some(Error::OutOfRange { first: Lsn(34), .. })), "{error:?}");
}

/// It returned the same error again and again, so a loop over it did not end.
#[test]
fn an_iterator_did_not_end_at_an_error() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    for lsn in 1..=3 {
        log.append(&record(lsn)).unwrap();
    }
    log.truncate_front(Lsn(3)).unwrap();
    assert_eq!(log.iter_from(Lsn(1)).take(5).count(), 1);
    let mut iter = log.iter_from(Lsn(1));
    assert!(Iterator::next(&mut iter).unwrap().is_err() && Iterator::next(&mut iter).is_none());
    assert!(Iterator::next(&mut iter).unwrap().is_err(), "it looks again");
}

/// The frame that ends a segment was alone in its batch, and no thread wrote it.
#[test]
fn threads_go_on_behind_the_end_of_a_segment() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..500 {
                    log.append(&[thread; 3000]).unwrap();
                }
            });
        }
    });
    assert_eq!(log.next_lsn(), Lsn(2001));
    assert!(log.stats().segments > 90);
}

/// Each thread that waited for a segment ended the next one, which was almost empty.
#[test]
fn threads_that_wait_for_a_segment_share_it() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().segment_bytes(1 << 20).open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..20 {
                    log.append(&[thread; 8000]).unwrap();
                }
            });
        }
    });
    // The records fill 9.8 MiB.
    assert!(log.stats().segments <= 11, "{:?}", log.stats());
}

/// The number of descriptors of this process on files with this beginning of their path.
fn open_files(path: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.starts_with(path)).count()
}

/// Each segment that was read kept its descriptor, of which a process has a thousand by default.
#[test]
fn a_pass_over_a_log_keeps_few_descriptors() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().canonicalize().unwrap();
    let log = small().open(&path).unwrap();
    for _ in 0..60 {
        log.append(&[7; 50_000]).unwrap();
    }
    let open = || open_files(&path);
    assert_eq!(records(&log).len(), 60);
    assert!(open() < 15, "{}", open());
    let view = dioxide_log::LogView::open(&path).unwrap();
    assert_eq!(view.iter_from(Lsn(1)).filter(Result::is_ok).count(), 60);
    let mut reader = dioxide_log::LogReader::open(&path).unwrap();
    while reader.next().unwrap().is_some() {}
    assert!(open() < 15, "{}", open());
}

/// A read of one record opened its segment for ever.
#[test]
fn reads_of_single_records_kept_a_descriptor_each() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().canonicalize().unwrap();
    let log = small().open(&path).unwrap();
    for _ in 0..150 {
        log.append(&[7; 50_000]).unwrap();
    }
    for lsn in 1..=150 {
        assert_eq!(log.read(Lsn(lsn)).unwrap().map(|record| record.len()), Some(50_000));
    }
    // The thread of the log closes segments that are complete.
    let begun = std::time::Instant::now();
    while open_files(&path) > 70 {
        assert!(begun.elapsed().as_secs() < 60, "{}", open_files(&path));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Recovery read the last segment by a descriptor of its own, so an opened log had one more.
#[test]
fn an_opened_log_had_a_descriptor_more_than_a_new_one() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().canonicalize().unwrap();
    let log = small().open(&path).unwrap();
    log.append(b"a record").unwrap();
    let new = open_files(&path);
    log.close().unwrap();
    let log = small().open(&path).unwrap();
    assert_eq!(log.read(Lsn(1)).unwrap(), Some(b"a record".to_vec()));
    log.append(b"another").unwrap();
    assert_eq!(open_files(&path), new);
}

#[test]
fn an_append_knows_its_number_before_its_end() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    let first = log.append_async(b"one");
    let batch = log.append_all_async(&[b"two", b"three"]);
    let too_long = log.append_async(&[0; 64 << 10]);
    assert_eq!((first.lsn(), batch.lsn(), too_long.lsn()), (Some(Lsn(1)), Some(Lsn(2)), None));
    assert_eq!(log.next_lsn(), Lsn(4));
    log.wait(Lsn(3)).unwrap();
    log.close().unwrap();
}

/// It failed late, and left a file in the working directory.
#[test]
fn an_empty_path_left_a_lock() {
    assert!(matches!(Log::open(""), Err(Error::Options(_))));
    assert!(matches!(dioxide_log::LogSet::open(""), Err(Error::Options(_))));
    assert!(matches!(LogOptions::new().create(false).open(""), Err(Error::Missing { .. })));
    for name in ["lock", ".lock", ".pool"] {
        assert!(!std::path::Path::new(name).exists(), "{name}");
    }
}

/// Twice the size overflowed in the thread that leads, and then all others waited for it.
#[test]
fn batches_of_any_size_hung() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().batch_bytes(u64::MAX).open(dir.path()).unwrap();
    for lsn in 1..=3 {
        assert_eq!(log.append(&record(lsn)).unwrap(), Lsn(lsn));
    }
    log.close().unwrap();
}

#[test]
fn refused_options_left_a_directory() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let (path, odd) = (dir.path().join("log"), LogOptions::new().segment_bytes(100_000));
    let retaining = LogOptions::new().retain_bytes(1);
    assert!(matches!(odd.open(&path), Err(Error::Options(_))));
    assert!(matches!(odd.open_streams(&path), Err(Error::Options(_))));
    assert!(matches!(odd.open_set(&path), Err(Error::Options(_))));
    assert!(matches!(retaining.open_streams(&path), Err(Error::Options(_))));
    assert!(!path.exists());
}
