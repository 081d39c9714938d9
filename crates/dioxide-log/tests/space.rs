//! Retention, and logs without free space.

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{Error, Log, LogOptions, Lsn};
use std::iter;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const SEGMENT_BYTES: u64 = 64 << 10;

fn options() -> LogOptions {
    LogOptions::new().segment_bytes(SEGMENT_BYTES)
}

fn records(log: &Log) -> Vec<(Lsn, Vec<u8>)> {
    log.iter_from(log.first_lsn()).map(|record| record.expect("it is read")).collect()
}

/// A disk with room for some segments.
fn disk(segments_max: usize) -> Memory {
    Memory::new(Faults { segments_max: Some(segments_max), ..Faults::default() })
}

/// Appends until the log is full.
fn fill(log: &Log, record_bytes: usize) {
    let error = loop {
        if let Err(error) = log.append(&vec![1; record_bytes]) {
            break error;
        }
    };
    assert!(matches!(error, Error::Full(_)) && error.is_no_space(), "{error}");
}

#[test]
fn a_full_log_works_again_after_its_front_was_truncated() {
    let disk = disk(3);
    let log = options().open_storage(Arc::new(disk.clone())).unwrap();
    for _ in 0..3 {
        fill(&log, 5000);
        // Many truncations that free nothing fit as well.
        for _ in 0..50 {
            log.truncate_front(log.first_lsn().next()).unwrap();
        }
        log.truncate_front(log.next_lsn()).unwrap();
        log.append(&[2; 5000]).unwrap();
    }
    let expected = records(&log);
    log.close().unwrap();
    assert_eq!(records(&options().open_storage(Arc::new(disk)).unwrap()), expected);
}

#[test]
fn old_segments_are_freed_by_size_and_used_again() {
    let disk = Memory::default();
    let options = options().retain_bytes(4 * SEGMENT_BYTES);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    for _ in 0..2000 {
        log.append(&[3; 1000]).unwrap();
    }
    // The last truncation may still be on its way.
    while log.stats().segments > 4 {
        std::thread::yield_now();
    }
    assert!(log.first_lsn() > Lsn(1500));
    let stats = log.stats();
    assert!(stats.segments_freed > 25, "{stats:?}");
    assert!(stats.segments_created < stats.segments_freed + stats.segments, "{stats:?}");
    // Four in use, and four to spare.
    while disk.names().len() > 8 {
        std::thread::yield_now();
    }
}

/// Truncations that free nothing used up the room of those that do, and then no call worked.
#[test]
fn a_full_log_takes_a_front_after_any_number_of_others() {
    let log = options().open_storage(Arc::new(disk(3))).unwrap();
    fill(&log, 20);
    let mut refused = 0;
    // The first segment has more than a thousand records.
    for lsn in 2..500 {
        refused += u32::from(log.truncate_front(Lsn(lsn)).is_err());
        refused += u32::from(log.truncate_back(Lsn(log.next_lsn().0 - 1)).is_err());
    }
    assert!(refused > 500, "the reserve is used up");
    log.truncate_front(log.next_lsn()).unwrap();
    log.append(b"there is room").unwrap();
    log.close().unwrap();
}

/// The first LSN of a segment is above its records after a truncation of the back.
#[test]
fn retention_keeps_the_records_behind_a_truncation_of_the_back() {
    let disk = Memory::default();
    let options = options().retain_bytes(2 * SEGMENT_BYTES);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    for _ in 0..60 {
        log.append(&[1; 1000]).unwrap();
    }
    log.truncate_back(Lsn(1)).unwrap();
    for number in 0..30 {
        log.append(&[number; 10_000]).unwrap();
        // The front may move meanwhile.
        let records = || log.iter_from(log.first_lsn()).collect::<Result<Vec<_>, Error>>();
        let records = iter::from_fn(|| Some(records())).find_map(Result::ok).unwrap();
        let first = log.first_lsn();
        // At least what lies in the last segment, and in the one before.
        assert!(records.len() >= 6.min(usize::from(number) + 1), "{first}: {}", records.len());
        assert_eq!(records.last().unwrap().1[0], number);
    }
}

/// The thread that frees segments waited for itself.
#[test]
fn retention_frees_a_full_log() {
    let options = options().retain_bytes(2 * SEGMENT_BYTES).spare_segments(0);
    for batch_bytes in [1, 30_000, 1 << 20] {
        let log = options.clone().batch_bytes(batch_bytes);
        let log = log.open_storage(Arc::new(disk(3))).unwrap();
        for _ in 0..400 {
            log.submit(&[1; 5000]).unwrap();
        }
        log.close().unwrap();
    }
}

/// The age was rounded down to seconds, and so were the times of segments.
#[test]
fn no_record_is_freed_before_its_age() {
    const AGE: Duration = Duration::from_millis(1900);
    let log = options().retain_age(AGE).open_storage(Arc::new(Memory::default())).unwrap();
    let mut begun = Vec::new();
    while log.stats().segments_freed < 3 {
        begun.push(Instant::now());
        log.append(&[1; 30_000]).unwrap();
        let removed = log.first_lsn().0 as usize - 1;
        for begun in &begun[..removed] {
            assert!(begun.elapsed() >= AGE, "{:?}", begun.elapsed());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
