//! Retention, and logs without free space.

#[path = "common/hooked.rs"]
mod hooked;

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::storage::{Segment, Storage};
use dioxide_log::{Durability, Error, Log, LogOptions, LogView, Lsn};
use hooked::{Call, Hooked, await_that};
use std::io;
use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
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

const EMFILE: i32 = 24;

/// A disk that makes and opens no segments while the process has no descriptors left.
#[derive(Debug, Default)]
struct WithoutDescriptors(Memory, Arc<AtomicBool>);

impl WithoutDescriptors {
    fn check(is_without: &AtomicBool) -> dioxide_log::Result<()> {
        if is_without.load(Ordering::SeqCst) {
            let error = Arc::new(io::Error::from_raw_os_error(EMFILE));
            return Err(Error::System { action: "open", path: "segment".into(), error });
        }
        Ok(())
    }
}

/// A segment that is opened by its first write, unless that was prepared.
#[derive(Debug)]
struct Unopened(Arc<dyn Segment>, Arc<AtomicBool>, AtomicBool);

impl Segment for Unopened {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn prepare(&self) -> dioxide_log::Result<()> {
        if !self.2.load(Ordering::SeqCst) {
            WithoutDescriptors::check(&self.1)?;
            self.2.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> dioxide_log::Result<()> {
        self.prepare()?;
        self.0.write(data, offset, durable)
    }

    fn sync(&self) -> dioxide_log::Result<()> {
        self.0.sync()
    }

    fn read(&self, into: &mut [u8], offset: u64) -> dioxide_log::Result<()> {
        self.0.read(into, offset)
    }

    fn rest(&self) -> dioxide_log::Result<()> {
        self.2.store(false, Ordering::SeqCst);
        Ok(())
    }
}

impl Storage for WithoutDescriptors {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn segments(&self) -> dioxide_log::Result<Vec<Arc<dyn Segment>>> {
        self.0.segments()
    }

    fn create(&self, bytes: u64) -> dioxide_log::Result<Arc<dyn Segment>> {
        Self::check(&self.1)?;
        Ok(Arc::new(Unopened(self.0.create(bytes)?, self.1.clone(), AtomicBool::new(false))))
    }

    fn remove(&self, segment: &dyn Segment) -> dioxide_log::Result<()> {
        self.0.remove(segment)
    }
}

/// The message and the errno advised to remove records.
#[test]
fn a_lack_of_descriptors_was_reported_as_a_full_log() {
    let disk = Arc::new(WithoutDescriptors::default());
    let log = options().open_storage(disk.clone()).unwrap();
    disk.1.store(true, Ordering::SeqCst);
    let mut appended = 0;
    let error = loop {
        match log.append(&[1; 5000]) {
            Ok(_) => appended += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSegment(_)) && !error.is_no_space(), "{error}");
    disk.1.store(false, Ordering::SeqCst);
    let last = log.append(&[2; 5000]).expect("the descriptors are back");
    let all = records(&log);
    assert_eq!((all.len(), all.last()), (appended + 1, Some(&(last, vec![2; 5000]))));
    log.close().unwrap();
}

/// A free segment was opened by the write of records that had their numbers.
#[test]
fn a_lack_of_descriptors_at_a_rotation_ended_the_log() {
    let disk = Arc::new(WithoutDescriptors::default());
    let log = options().open_storage(disk.clone()).unwrap();
    let mut last = Lsn(0);
    for _ in 0..4 {
        last = log.append(&[1; 40_000]).unwrap();
    }
    log.truncate_front(last).unwrap();
    // The segments rest at some time, and then fail to open.
    let error = loop {
        disk.1.store(true, Ordering::SeqCst);
        let result = log.append(&[2; 40_000]);
        disk.1.store(false, Ordering::SeqCst);
        match result {
            Ok(lsn) => log.truncate_front(lsn).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSegment(_)), "{error}");
    let last = log.append(&[3; 40_000]).expect("the descriptors are back");
    assert_eq!(log.read(last).unwrap(), Some(vec![3; 40_000]));
    log.close().unwrap();
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

/// Segments stayed in use until the records reached their first LSN again. An empty log was full.
#[test]
fn a_full_log_stayed_full_after_its_back_was_truncated() {
    for back in [1, 5, 20] {
        let disk = disk(3);
        let log = options().open_storage(Arc::new(disk.clone())).unwrap();
        fill(&log, 5000);
        assert_eq!(log.stats().segments, 3);
        log.truncate_back(Lsn(back)).unwrap();
        // The records that are left keep their segment, and those behind it.
        let is_empty = back == 1;
        assert_eq!(log.stats().segments, if is_empty { 1 } else { 3 });
        log.truncate_front(log.next_lsn()).unwrap();
        assert_eq!(log.stats().segments, 1);
        fill(&log, 5000);
        let expected = records(&log);
        assert!(expected.len() > 20, "only {} records fit", expected.len());
        for opened in [disk.after_kill(), disk.after_power_cut(back)] {
            assert_eq!(LogView::of(Arc::new(opened.clone())).unwrap().segments(), 3);
            let log = options().open_storage(Arc::new(opened)).unwrap();
            assert_eq!(records(&log), expected);
            log.truncate_back(log.first_lsn()).unwrap();
            log.append(b"there is room").unwrap();
        }
    }
}

/// The bytes that are retained were counted with the segments of truncated records.
#[test]
fn retention_freed_nothing_after_a_truncation_of_the_back() {
    let options = options().retain_bytes(3 * SEGMENT_BYTES);
    let log = options.open_storage(Arc::new(Memory::default())).unwrap();
    for _ in 0..30 {
        log.append(&[1; 5000]).unwrap();
    }
    log.truncate_back(Lsn(2)).unwrap();
    let first = log.next_lsn();
    while log.first_lsn() == Lsn(1) {
        assert!(log.append(&[2; 5000]).unwrap() < Lsn(first.0 + 60), "nothing is freed");
        thread::sleep(Duration::from_millis(1));
    }
    await_that(|| log.stats().segments <= 2);
}

/// The power fails during a truncation of the back, a front behind it, or appends into the segments
/// that they free.
#[test]
fn a_power_cut_around_a_truncation_of_the_back_needs_no_segment_that_it_freed() {
    for durability in [Durability::EveryWrite, Durability::OnSync] {
        let options = options().durability(durability);
        let full = disk(3);
        let log = options.open_storage(Arc::new(full.clone())).unwrap();
        fill(&log, 5000);
        log.sync().unwrap();
        let base = records(&log);
        let full = full.copy();
        for (back, cut) in
            [1, 5, 20].into_iter().flat_map(|back| (1..40).map(move |cut| (back, cut)))
        {
            let disk = full.copy();
            let log = options.open_storage(Arc::new(disk.clone())).unwrap();
            let power_cut = Some(disk.calls() + cut);
            disk.set_faults(Faults { power_cut, segments_max: Some(3), ..Faults::default() });
            let mut list = base.clone();
            let mut states = vec![list.clone()];
            let mut change = |outcome: Result<(), Error>, list: &[(Lsn, Vec<u8>)], is_stable| {
                if outcome.is_ok() && is_stable {
                    states.clear();
                }
                states.push(list.to_vec());
                outcome
            };
            let mut live = || {
                list.truncate(back as usize - 1);
                change(log.truncate_back(Lsn(back)), &list, true)?;
                list.clear();
                change(log.truncate_front(Lsn(back)), &list, true)?;
                for lsn in back..back + 25 {
                    list.push((Lsn(lsn), vec![lsn as u8; 5000]));
                    let is_stable = durability == Durability::EveryWrite;
                    change(log.append(&[lsn as u8; 5000]).map(drop), &list, is_stable)?;
                }
                Ok::<(), Error>(())
            };
            // The power fails, or the log is full.
            let _ = live();
            for seed in 0..3 {
                let after = disk.after_power_cut(cut * 7 + seed);
                let log = options.open_storage(Arc::new(after)).unwrap();
                let found = records(&log);
                assert!(states.contains(&found), "back {back}, cut {cut}: {} records", found.len());
            }
        }
    }
}

/// A truncation of the back frees segments, also under a reader. It reported the missing file.
#[test]
fn a_reader_failed_where_its_segment_was_freed_by_a_truncation_of_the_back() {
    let disk = Memory::default();
    let shared = Arc::new(Mutex::new(None::<Log>));
    let hook = {
        let (disk, shared) = (disk.clone(), shared.clone());
        move |call| {
            let log = shared.lock().unwrap().take();
            if let (Some(log), Call::Read(_)) = (log, call) {
                log.truncate_back(Lsn(1)).unwrap();
                // The last segment, and the next one.
                await_that(|| disk.names().len() <= 2);
            }
        }
    };
    let options = options().spare_segments(0);
    let log = options.open_storage(Hooked::new(&disk, hook)).unwrap();
    for _ in 0..100 {
        log.append(&[1; 5000]).unwrap();
    }
    let mut reader = log.iter_from(Lsn(1));
    *shared.lock().unwrap() = Some(log.clone());
    assert!(Iterator::next(&mut reader).is_none());
    log.append(b"another").unwrap();
    let found = Iterator::next(&mut reader).expect("a record").unwrap();
    assert_eq!(found, (Lsn(1), b"another".to_vec()));
}
