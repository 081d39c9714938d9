//! A reader follows one stream of a log that another process writes.

mod common;

use common::{Ends, LIMIT};
use dioxide_log::storage::memory::Memory;
use dioxide_log::{
    Durability, Error, Log, LogOptions, Lsn, Result, Stream, StreamLog, StreamReader, StreamView,
};
use fastrand::Rng;
use futures::executor::block_on;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The writer of a test goes so many records before a reader, so that it does not always win.
const LEAD: u64 = 200;

type Numbered = Vec<(Lsn, Vec<u8>)>;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10).spare_segments(1)
}

fn rest(reader: &mut StreamReader) -> Result<Numbered> {
    let mut records = Vec::new();
    while let Some(record) = reader.next()? {
        records.push((record.lsn, record.payload.to_vec()));
    }
    Ok(records)
}

/// Whether a reader finds these records from here on. The writer may not have shown all changes.
fn finds(reader: &mut StreamReader, from: Lsn, expected: &Numbered) -> bool {
    reader.seek(from);
    match rest(reader) {
        Ok(found) => found == *expected,
        Err(Error::Changing { .. } | Error::OutOfRange { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Looks again until the writer has shown what it has done. A call may return before.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn records(stream: &Stream) -> Numbered {
    stream.iter_from(stream.first_lsn()).map(|record| record.expect("it is read")).collect()
}

#[test]
fn a_reader_follows_both_truncations_and_the_collector() {
    let mut copied = 0;
    for seed in 0..20 {
        let (mut rng, disk) = (Rng::with_seed(seed), Memory::default());
        let mut log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
        let mut readers: Vec<_> =
            (1..4).map(|id| StreamReader::of(Arc::new(disk.clone()), id).unwrap()).collect();
        for step in 0..300u32 {
            let stream = log.stream(rng.u64(1..4));
            let (first, next) = (stream.first_lsn().0, stream.next_lsn().0);
            match rng.u32(0..30) {
                0 | 1 => stream.truncate_front(Lsn(rng.u64(first..next + 3))).unwrap(),
                2 => stream.truncate_back(Lsn(rng.u64(first..=next))).unwrap(),
                3 if rng.u8(0..4) == 0 => stream.remove().unwrap(),
                4 if rng.u8(0..4) == 0 => {
                    copied += log.stats().copied_bytes;
                    log.close().unwrap();
                    log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
                }
                _ => drop(stream.append(&vec![step as u8; rng.usize(0..3000)]).unwrap()),
            }
            let reader = &mut readers[rng.usize(0..3)];
            let stream = log.stream(reader.id());
            let mut from = reader.lsn();
            if reader.next().is_err() || rng.bool() {
                from = Lsn(rng.u64(stream.first_lsn().0..=stream.next_lsn().0));
            }
            let expected = records(&stream);
            let expected: Numbered = expected.into_iter().filter(|(lsn, _)| *lsn >= from).collect();
            let range = (stream.first_lsn(), stream.next_lsn());
            wait_until(&format!("seed {seed}, step {step} is shown: {range:?}"), || {
                finds(reader, from.max(range.0), &expected)
                    && (reader.first_lsn(), reader.stable_lsn()) == range
            });
        }
        copied += log.stats().copied_bytes;
    }
    assert!(copied > 0, "the collector has copied nothing");
}

#[test]
fn a_reader_sees_only_what_is_stable() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().durability(Durability::OnSync).open_streams(dir.path()).unwrap();
    let (stream, other) = (log.stream(7), log.stream(8));
    let mut reader = StreamReader::open(dir.path(), 7).unwrap();
    stream.append(b"one").unwrap();
    assert!(reader.next().unwrap().is_none());
    log.sync().unwrap();
    assert_eq!(rest(&mut reader).unwrap(), [(Lsn(1), b"one".to_vec())]);
    other.append(b"of another stream").unwrap();
    stream.append_all(&[b"two", b"three"]).unwrap();
    assert!(reader.next().unwrap().is_none());
    log.sync().unwrap();
    assert_eq!(rest(&mut reader).unwrap().len(), 2);
    assert_eq!((reader.id(), reader.log_id()), (7, log.id()));
}

#[test]
fn a_reader_waits_for_records_and_is_told_of_removed_ones() {
    let dir = tempfile::tempdir_in(".").unwrap();
    assert!(matches!(StreamReader::open(dir.path(), 1), Err(Error::Missing { .. })));
    let log = small().open_streams(dir.path()).unwrap();
    let (stream, other) = (log.stream(1), log.stream(2));
    let mut reader = StreamReader::open(dir.path(), 1).unwrap();
    assert!(reader.next_within(Duration::from_millis(1)).unwrap().is_none());
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..300u64 {
                other.append(b"of another stream").unwrap();
                stream.append(&number.to_le_bytes().repeat(200)).unwrap();
            }
        });
        for number in 0..300u64 {
            // By a call, or for a task.
            let record = match number % 2 {
                0 => reader.next_within(LIMIT).unwrap().expect("it comes"),
                _ => block_on(reader.next_async()).unwrap(),
            };
            let expected = (Lsn(number + 1), &number.to_le_bytes()[..]);
            assert_eq!((record.lsn, &record.payload[..8]), expected);
        }
    });
    stream.truncate_front(Lsn(200)).unwrap();
    wait_until("the truncation is shown", || {
        reader.seek(Lsn(1));
        match reader.next() {
            Ok(_) | Err(Error::Changing { .. }) => false,
            Err(Error::OutOfRange { first: Lsn(200), .. }) => true,
            other => panic!("{other:?}"),
        }
    });
    let expected = records(&stream);
    wait_until("the others are read", || finds(&mut reader, Lsn(200), &expected));
}

#[test]
fn a_reader_of_streams_refuses_other_logs() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = Log::open(dir.path()).unwrap();
    log.append(b"a record").unwrap();
    assert!(matches!(StreamReader::open(dir.path(), 1), Err(Error::Options(_))));
}

/// Damage of a record that a stream needs, in a segment that is not the last.
#[test]
fn a_reader_of_a_damaged_log_returns_no_fewer_records() {
    let disk = Memory::default();
    let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
    let stream = log.stream(1);
    for _ in 0..30 {
        stream.append(&[7; 9000]).unwrap();
    }
    let mut reader = StreamReader::of(Arc::new(disk.clone()), 1).unwrap();
    let name = disk.names()[0];
    disk.edit(name, |bytes| bytes[9000] ^= 1);
    let error = reader.next().unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let error = StreamReader::of(Arc::new(disk.clone()), 1).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

/// Appends to one stream and truncates it, while another rests, until it is to end. `reached` is
/// the position of its reader.
fn write(log: &StreamLog, reached: &AtomicU64, ends: &AtomicBool) {
    let goes_on = log.stream(2);
    let mut rng = Rng::with_seed(3);
    while !ends.load(Relaxed) {
        let next = goes_on.next_lsn();
        if next.0 > reached.load(Relaxed) + LEAD {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let lsn = goes_on.append(&next.0.to_le_bytes().repeat(rng.usize(1..400))).unwrap();
        if lsn.0.is_multiple_of(50) {
            goes_on.truncate_front(Lsn(lsn.0 - rng.u64(0..20))).unwrap();
        }
        if rng.u8(0..40) == 0 {
            goes_on.truncate_back(Lsn(lsn.0 - 1).max(goes_on.first_lsn())).unwrap();
        }
    }
}

/// The writer truncates, collects, and uses segments again, while the readers read.
#[test]
fn readers_beside_a_busy_writer_find_each_record() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path: &Path = dir.path();
    let log = small().open_streams(path).unwrap();
    let rests = log.stream(1);
    for number in 0..20u8 {
        rests.append(&[number; 100]).unwrap();
    }
    let expected = records(&rests);
    let mut resting = StreamReader::open(path, 1).unwrap();
    let mut going = StreamReader::open(path, 2).unwrap();
    let (reached, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let writer = scope.spawn(|| write(&log, &reached, &ends));
        let _ends = Ends(&ends);
        let mut found = 0;
        let is_enough = |found| found >= 1000 && log.stats().copied_bytes >= 100_000;
        while !is_enough(found) && !writer.is_finished() {
            for _ in 0..100 {
                let lsn = going.lsn();
                reached.store(lsn.0, Relaxed);
                match going.next_within(Duration::from_millis(10)) {
                    Ok(Some(record)) => {
                        assert_eq!(
                            (record.lsn, &record.payload[..8]),
                            (lsn, &lsn.0.to_le_bytes()[..])
                        );
                        found += 1;
                    }
                    Ok(None) | Err(Error::Changing { .. }) => {}
                    Err(Error::OutOfRange { first, .. }) => going.seek(first),
                    Err(error) => panic!("{error}"),
                }
            }
            resting.seek(Lsn(1));
            let read = (0..20).map_while(|_| {
                let record = resting.next().unwrap_or_else(|error| {
                    assert!(matches!(error, Error::Changing { .. }), "{error}");
                    None
                })?;
                Some((record.lsn, record.payload.to_vec()))
            });
            let read: Numbered = read.collect();
            assert_eq!(read, expected[..read.len()]);
        }
    });
    let going_on = records(&log.stream(2));
    log.close().unwrap();
    resting.seek(Lsn(1));
    assert_eq!(rest(&mut resting).unwrap(), expected);
    let mut reader = StreamReader::open(path, 2).unwrap();
    let view = StreamView::open(path).unwrap();
    assert_eq!(rest(&mut reader).unwrap(), going_on);
    assert_eq!(reader.stable_lsn(), view.next_lsn(2));
}
