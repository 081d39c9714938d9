//! A reader follows the writer of another process, which it does not share memory with.

use dioxide_log::storage::memory::Memory;
use dioxide_log::storage::{Mark, Segment, Storage};
use dioxide_log::{Durability, Error, Log, LogOptions, LogReader, Lsn, Result};
use fastrand::Rng;
use futures::executor::block_on;
use futures::future::join;
use std::collections::VecDeque;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use std::{fmt, fs, thread};

const LIMIT: Duration = Duration::from_secs(60);

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10).spare_segments(1)
}

/// Reads a mark, and does something before or after it.
type Look = Box<dyn FnOnce(&Memory) -> Result<Option<Mark>> + Send>;

/// A disk whose next marks are read by these looks.
#[derive(Clone)]
struct Scripted {
    disk: Memory,
    looks: Arc<Mutex<VecDeque<Look>>>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(f)
    }
}

impl Storage for Scripted {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        self.disk.segments()
    }

    fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>> {
        self.disk.create(bytes)
    }

    fn remove(&self, segment: &dyn Segment) -> Result<()> {
        self.disk.remove(segment)
    }

    fn mark(&self) -> Result<Option<Mark>> {
        let look = self.looks.lock().unwrap().pop_front();
        look.map_or_else(|| self.disk.mark(), |look| look(&self.disk))
    }
}

fn rest(reader: &mut LogReader) -> Vec<(Lsn, Vec<u8>)> {
    let mut records = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        records.push((record.lsn, record.payload.to_vec()));
    }
    records
}

fn append(log: &Log, count: usize, record: &[u8]) {
    for _ in 0..count {
        log.append(record).unwrap();
    }
}

fn records(log: &Log) -> Vec<(Lsn, Vec<u8>)> {
    log.iter_from(log.first_lsn()).map(|record| record.expect("it is read")).collect()
}

/// Records came between two truncations of the back, and were never stable. The marks around the
/// look were those of the records before and behind them.
#[test]
fn two_truncations_in_a_look_showed_what_was_never_stable() {
    let disk = Memory::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    append(&log, 9, b"old");
    log.sync().unwrap();
    let scripted = Scripted { disk, looks: Arc::default() };
    let mut reader = LogReader::of(Arc::new(scripted.clone())).unwrap();
    assert_eq!(rest(&mut reader).len(), 9);
    append(&log, 1, b"old");
    log.sync().unwrap();
    let (first, second) = (log.clone(), log.clone());
    let replace = move |log: &Log, count, record| {
        log.truncate_back(Lsn(5)).unwrap();
        append(log, count, record);
    };
    *scripted.looks.lock().unwrap() = VecDeque::<Look>::from([
        Box::new(move |disk: &Memory| {
            let mark = disk.mark();
            replace(&first, 8, b"never stable");
            mark
        }) as Look,
        Box::new(move |disk: &Memory| {
            replace(&second, 9, b"new");
            second.sync().unwrap();
            disk.mark()
        }),
    ]);
    reader.seek(Lsn(5));
    let mut found = rest(&mut reader);
    found.extend(rest(&mut reader));
    assert_eq!(found.len(), 9);
    assert!(found.iter().all(|(_, record)| record == b"new"), "{found:?}");
}

#[test]
fn a_reader_follows_each_record_and_both_truncations() {
    for seed in 0..20 {
        let (mut rng, disk) = (Rng::with_seed(seed), Memory::default());
        let mut log = small().open_storage(Arc::new(disk.clone())).unwrap();
        let mut reader = LogReader::of(Arc::new(disk.clone())).unwrap();
        for step in 0..200u8 {
            match rng.u32(0..12) {
                0 => {
                    log.truncate_front(Lsn(rng.u64(log.first_lsn().0..=log.next_lsn().0))).unwrap()
                }
                1 => log.truncate_back(Lsn(rng.u64(log.first_lsn().0..=log.next_lsn().0))).unwrap(),
                2 => {
                    log.close().unwrap();
                    log = small().open_storage(Arc::new(disk.clone())).unwrap();
                }
                3 => drop(log.append_all(&[b"one", b"two", &vec![step; 9000]]).unwrap()),
                _ => drop(log.append(&vec![step; rng.usize(0..8000)]).unwrap()),
            }
            // Sometimes it falls behind.
            if rng.bool() {
                let mut behind = reader.lsn();
                if reader.next().is_err() || rng.bool() {
                    behind = log.first_lsn();
                }
                reader.seek(behind.max(log.first_lsn()));
                let expected = records(&log).into_iter().filter(|(lsn, _)| *lsn >= behind);
                let expected: Vec<_> = expected.collect();
                assert!(rest(&mut reader) == expected, "seed {seed}, step {step}: {reader:?}");
                assert_eq!(reader.stable_lsn(), log.next_lsn());
                let back = reader.lsn().0.saturating_sub(rng.u64(0..4)).max(log.first_lsn().0);
                reader.seek(Lsn(back));
            }
        }
    }
}

#[test]
fn a_reader_sees_only_what_is_stable() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let options = small().durability(Durability::OnSync).read_unsynced(true);
    let log = options.open(dir.path()).unwrap();
    let mut reader = LogReader::open(dir.path()).unwrap();
    log.append(b"one").unwrap();
    assert_eq!(log.read(Lsn(1)).unwrap(), Some(b"one".to_vec()));
    assert!(reader.next().unwrap().is_none());
    log.sync().unwrap();
    assert_eq!(rest(&mut reader), [(Lsn(1), b"one".to_vec())]);
    // The LSNs of stable records are used again, and not yet stable.
    log.append_all(&[b"two", b"three"]).unwrap();
    log.sync().unwrap();
    assert_eq!(rest(&mut reader).len(), 2);
    log.truncate_back(Lsn(2)).unwrap();
    log.append_all(&[b"another", b"more", b"most"]).unwrap();
    reader.seek(Lsn(2));
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.stable_lsn(), Lsn(2));
    drop(log);
    assert_eq!(rest(&mut reader).len(), 3);
    assert!(reader.next().unwrap().is_none());
}

/// It waited for ever.
#[test]
fn a_reader_waits_for_no_log_that_was_removed() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("log");
    let log = small().open(&path).unwrap();
    log.append(b"one").unwrap();
    let mut reader = LogReader::open(&path).unwrap();
    assert_eq!(rest(&mut reader).len(), 1);
    log.close().unwrap();
    fs::remove_dir_all(&path).unwrap();
    assert!(matches!(reader.next_within(LIMIT), Err(Error::Missing { .. })));
}

#[test]
fn a_reader_waits_for_records_and_is_told_of_removed_ones() {
    let dir = tempfile::tempdir_in(".").unwrap();
    assert!(matches!(LogReader::open(dir.path()), Err(Error::Missing { .. })));
    let log = small().open(dir.path()).unwrap();
    let mut reader = LogReader::open(dir.path()).unwrap();
    assert!(reader.next_within(Duration::from_millis(1)).unwrap().is_none());
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..500u64 {
                log.append(&number.to_le_bytes().repeat(200)).unwrap();
            }
        });
        for number in 0..500u64 {
            let record = reader.next_within(LIMIT).unwrap().expect("it comes");
            assert_eq!(
                (record.lsn, &record.payload[..8]),
                (Lsn(number + 1), &number.to_le_bytes()[..])
            );
        }
    });
    reader.seek(Lsn(1));
    log.truncate_front(Lsn(300)).unwrap();
    for _ in 0..100 {
        log.append(&[7; 5000]).unwrap();
    }
    let error = reader.next().unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    reader.seek(reader.first_lsn());
    assert_eq!(rest(&mut reader), records(&log));
}

/// Of two tasks on one thread, each goes on while the other one waits.
#[test]
fn tasks_wait_for_records() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    let mut readers = [(); 2].map(|()| LogReader::open(dir.path()).unwrap());
    let mut context = Context::from_waker(Waker::noop());
    // Dropping a future that waits loses no record.
    assert!(pin!(readers[0].next_async()).poll(&mut context).is_pending());
    let [one, other] = readers.each_mut().map(|reader| async {
        for number in 0..50u64 {
            let record = reader.next_async().await.unwrap();
            assert_eq!((record.lsn, record.payload), (Lsn(number + 1), &number.to_le_bytes()[..]));
        }
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..50u64 {
                log.append(&number.to_le_bytes()).unwrap();
            }
        });
        block_on(async { join(one, other).await });
    });
    log.truncate_front(Lsn(40)).unwrap();
    log.close().unwrap();
    let [reader, _] = &mut readers;
    reader.seek(Lsn(1));
    let error = block_on(reader.next_async()).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
}

/// It had read ahead of what was stable. It then looked for changes, and yet returned those bytes.
#[test]
fn a_reader_returned_records_that_were_replaced() {
    for first in 1..=5 {
        let disk = Memory::default();
        let options = small().durability(Durability::OnSync);
        let log = options.open_storage(Arc::new(disk.clone())).unwrap();
        append(&log, 4, b"stable");
        log.sync().unwrap();
        append(&log, 6, b"not stable");
        let mut reader = LogReader::of(Arc::new(disk)).unwrap();
        assert_eq!(rest(&mut reader).len(), 4);

        log.truncate_back(Lsn(first)).unwrap();
        append(&log, 12, b"another");
        log.sync().unwrap();
        let expected: Vec<_> = records(&log).into_iter().filter(|(lsn, _)| *lsn > Lsn(4)).collect();
        assert_eq!(rest(&mut reader), expected, "from record {first} on");
    }
}

#[test]
fn a_reader_returned_records_that_it_had_seen_removed() {
    let disk = Memory::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"stable").unwrap();
    log.sync().unwrap();
    append(&log, 6, b"not stable");
    let mut reader = LogReader::of(Arc::new(disk)).unwrap();
    assert_eq!(rest(&mut reader).len(), 1);
    log.truncate_front(Lsn(5)).unwrap();
    let error = reader.next().unwrap_err();
    assert!(matches!(error, Error::OutOfRange { first: Lsn(5), .. }), "{error}");
}

/// Each segment that a reader had left by a seek stayed open.
#[test]
fn a_reader_kept_segments_open_after_a_seek() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    append(&log, 200, &[7; 9000]);
    log.close().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let opened = || {
        let targets = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = targets.filter_map(|entry| fs::read_link(entry.path()).ok());
        let of_the_log = targets.filter(|target| target.starts_with(&path));
        of_the_log.filter(|target| target.to_str().unwrap().contains("segment-")).count()
    };
    let mut reader = LogReader::open(&path).unwrap();
    for lsn in (1..200).step_by(5).map(Lsn) {
        reader.seek(lsn);
        assert_eq!(reader.next().unwrap().unwrap().lsn, lsn);
        // The last segment of the log, and that of the record.
        assert!(opened() <= 2, "{} at record {lsn}", opened());
    }
}
