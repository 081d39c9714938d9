//! A damaged log is an error, or has all its records: never fewer, and never a wrong one.

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{Error, Log, LogOptions, Lsn, Result};
use std::sync::Arc;

const SEGMENT_BYTES: usize = 64 << 10;

fn open(disk: &Memory) -> Result<Log> {
    let options = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64);
    options.open_storage(Arc::new(disk.clone()))
}

fn records(log: &Log) -> Vec<(Lsn, Vec<u8>)> {
    log.iter_from(log.first_lsn()).map(|record| record.expect("it is read")).collect()
}

/// A closed log of some segments, the first of which is free again.
fn log(count: u64) -> (Memory, Vec<(Lsn, Vec<u8>)>) {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    for lsn in 1..=count {
        log.append(&[lsn as u8; 900]).unwrap();
    }
    log.append_all(&[b"a", b"b", b"c"]).unwrap();
    log.truncate_front(Lsn(70)).unwrap();
    log.append(b"the last").unwrap();
    let expected = records(&log);
    log.close().unwrap();
    (disk, expected)
}

/// Opens a damaged log, which may be refused.
fn is_refused(disk: &Memory, expected: &[(Lsn, Vec<u8>)], damage: &str) -> bool {
    match open(disk) {
        Ok(log) => {
            assert_eq!(records(&log), expected, "{damage}");
            false
        }
        Err(Error::Corrupt { .. } | Error::Version { .. }) => true,
        Err(error) => panic!("{damage}: {error}"),
    }
}

/// Coprime to the sizes of frames and headers.
const STEP: usize = 37;

#[test]
fn a_changed_bit_anywhere_is_found_or_does_no_harm() {
    let (disk, expected) = log(80);
    let mut refused = 0;
    for name in disk.names() {
        let content = disk.edit(name, |bytes| bytes.clone());
        let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        // Bytes that are used, and a few behind.
        for at in (0..SEGMENT_BYTES.min(used + 64)).step_by(STEP) {
            let damaged = disk.copy();
            damaged.edit(name, |bytes| bytes[at] ^= 1 << (at % 8));
            refused += u64::from(is_refused(&damaged, &expected, &format!("{name} at {at}")));
        }
    }
    // The records take about 12,000 bytes.
    assert!(refused > 10_000 / STEP as u64, "only {refused} changed bits were found");
}

#[test]
fn damage_of_a_log_that_was_killed_costs_at_most_its_last_write() {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    for lsn in 1..=20u64 {
        log.append(&[lsn as u8; 50]).unwrap();
    }
    let killed = disk.copy();
    let expected = records(&log);
    let name = killed.names()[0];
    for at in 4096..4096 + 20 * 80 {
        let damaged = killed.copy();
        damaged.edit(name, |bytes| bytes[at] ^= 0x10);
        match open(&damaged) {
            Ok(log) => {
                let found = records(&log);
                assert!(found.len() >= 19, "at {at} {} records are left", found.len());
                assert_eq!(found, expected[..found.len()], "at {at}");
            }
            Err(Error::Corrupt { .. }) => {}
            Err(error) => panic!("at {at}: {error}"),
        }
    }
}

#[test]
fn segments_that_were_moved_outside_are_told_apart() {
    let (disk, expected) = log(300);
    let names = disk.names();
    assert!(names.len() > 3);
    let newest = |disk: &Memory| {
        let number = |name: &u64| disk.edit(*name, |bytes| bytes[32]);
        disk.names().into_iter().max_by_key(number).expect("segments")
    };

    // Under another name a segment is the same.
    let renamed = disk.copy();
    let content = renamed.take(newest(&renamed)).unwrap();
    renamed.put(content);
    assert!(!is_refused(&renamed, &expected, "renamed"));

    let duplicated = disk.copy();
    let content = duplicated.edit(newest(&duplicated), |bytes| bytes.clone());
    duplicated.put(content);
    assert!(is_refused(&duplicated, &expected, "duplicated"));

    // Each segment in use but the last is missed. The second has record 70.
    for name in &names {
        let missing = disk.copy();
        if *name != newest(&missing) {
            let number = missing.take(*name).unwrap()[32];
            assert_eq!(is_refused(&missing, &expected, "missing"), number >= 2, "{number}");
        }
    }

    let foreign = disk.copy();
    let (other, _) = log(10);
    foreign.put(other.take(other.names()[0]).unwrap());
    assert!(is_refused(&foreign, &expected, "foreign"));

    // A segment as it was in an earlier life.
    let older = disk.copy();
    let (name, old) = (names[1], older.edit(names[1], |bytes| bytes.clone()));
    let log = open(&older).unwrap();
    log.truncate_front(log.next_lsn()).unwrap();
    for _ in 0..300 {
        log.append(&[7; 900]).unwrap();
    }
    let expected = records(&log);
    log.close().unwrap();
    assert!(!is_refused(&older, &expected, "untouched"));
    older.edit(name, |bytes| *bytes = old);
    assert!(is_refused(&older, &expected, "older"));

    let shorter = disk.copy();
    shorter.edit(names[1], |bytes| bytes.truncate(5000));
    assert!(is_refused(&shorter, &expected, "shorter"));
}

#[test]
fn a_failed_write_ends_the_log() {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    log.append(b"one").unwrap();
    disk.set_faults(Faults { failed_call: Some(disk.calls() + 1), ..Faults::default() });
    assert!(matches!(log.append(b"two"), Err(Error::System { .. })));
    disk.set_faults(Faults::default());
    for error in [
        log.append(b"three").unwrap_err(),
        log.truncate_front(Lsn(2)).unwrap_err(),
        log.truncate_back(Lsn(1)).unwrap_err(),
        log.wait(Lsn(2)).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Failed(_)), "{error}");
    }
    assert_eq!(records(&log), [(Lsn(1), b"one".to_vec())]);
    assert!(matches!(log.close(), Err(Error::Failed(_))));
    let log = open(&disk).unwrap();
    assert_eq!(log.read(Lsn(1)).unwrap(), Some(b"one".to_vec()));
    assert_eq!(log.append(b"again").unwrap(), log.last_lsn().unwrap());
}

#[test]
fn a_full_log_works_again_after_its_front_was_truncated() {
    let disk = Memory::new(Faults { segments_max: Some(3), ..Faults::default() });
    let log = open(&disk).unwrap();
    for _ in 0..3 {
        let error = loop {
            if let Err(error) = log.append(&[1; 5000]) {
                break error;
            }
        };
        assert!(matches!(error, Error::Full(_)) && error.is_no_space(), "{error}");
        // Many truncations that free nothing fit as well.
        for _ in 0..50 {
            log.truncate_front(log.first_lsn().next()).unwrap();
        }
        log.truncate_front(log.next_lsn()).unwrap();
        log.append(&[2; 5000]).unwrap();
    }
    let expected = records(&log);
    log.close().unwrap();
    assert_eq!(records(&open(&disk).unwrap()), expected);
}

#[test]
fn old_segments_are_freed_by_size_and_used_again() {
    let disk = Memory::default();
    let options = LogOptions::new().segment_bytes(64 << 10).retain_bytes(256 << 10);
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
    assert!(stats.segments_created < 15 && stats.segments_freed > 25, "{stats:?}");
    assert!(disk.names().len() < 12);
}
