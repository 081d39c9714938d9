//! The log on a simulated disk whose power fails during any call. The recovered log must have every
//! acknowledged record, nothing else than whole records that were being appended, and no record of
//! an earlier life.

use dioxide_log::storage::Storage;
use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::suite::{Extent, Medium, play, run, run_with};
use dioxide_log::{Durability, Log, LogOptions, Lsn, Result};
use fastrand::Rng;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const SEGMENT_BYTES: u64 = 64 << 10;

/// A simulated disk that loses power.
struct Simulated {
    disk: Mutex<Memory>,
    lies: bool,
}

impl Simulated {
    fn new(lies: bool) -> Self {
        let disk = Mutex::new(Memory::new(Faults { lies, ..Faults::default() }));
        Self { disk, lies }
    }
}

impl Medium for Simulated {
    fn open(&self) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(self.disk.lock().unwrap().clone()))
    }

    fn cut_power(&self, seed: u64) -> bool {
        let mut disk = self.disk.lock().unwrap();
        *disk = disk.after_power_cut(seed);
        disk.set_faults(Faults { lies: self.lies, ..Faults::default() });
        true
    }
}

#[test]
fn a_power_cut_at_any_call_loses_nothing_acknowledged() {
    let extent = Extent { programs: 500, ..Extent::default() };
    run_with(extent, || Simulated::new(false)).unwrap();
}

/// The control: a disk that lies about flushes must lose records.
#[test]
fn a_disk_that_lies_about_flushes_loses_records() {
    let broken = run(|| Simulated::new(true)).unwrap_err();
    assert_eq!(broken.rule, "stable bytes survive a power cut");
    // The programs find it as well, without that rule.
    let loses = |seed: &u64| play(&Simulated::new(true), *seed, SEGMENT_BYTES).is_err();
    let lost = (0..200).filter(loses).count();
    assert!(lost > 50, "only {lost} of 200 programs lost records");
}

fn options() -> LogOptions {
    LogOptions::new().segment_bytes(SEGMENT_BYTES).spare_segments(1)
}

fn records(log: &Log) -> Vec<Vec<u8>> {
    log.iter_from(log.first_lsn()).map(|record| record.expect("it is read").1).collect()
}

/// Frames of a torn write lay behind its end, and a record of the next life ended before them.
#[test]
fn frames_of_a_torn_write_do_not_follow_later_records() {
    let disk = Memory::default();
    let open = |disk: &Memory| options().open_storage(Arc::new(disk.clone())).expect("it opens");
    let block = |byte| vec![byte; 4096 - 24];
    let log = open(&disk);
    log.append(&block(1)).unwrap();
    log.append_all(&[&block(2), &block(3), &block(4)]).unwrap();
    let torn = disk.copy();
    torn.edit(torn.names()[0], |bytes| bytes[2 * 4096 + 100] ^= 1);
    let log = open(&torn);
    assert_eq!((records(&log), log.report().remnants), (vec![block(1)], 2));
    log.append_all(&[&block(5)]).unwrap();
    let killed = torn.copy();
    assert_eq!(records(&open(&killed)), [block(1), block(5)]);
}

#[test]
fn threads_lose_nothing_acknowledged() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let disk = Memory::default();
        let log = options().open_storage(Arc::new(disk.clone())).unwrap();
        let cut = disk.calls() + rng.u64(1..60);
        disk.set_faults(Faults { power_cut: Some(cut), ..Faults::default() });
        let write = |thread: u64| {
            let log = log.clone();
            move || {
                let mut acknowledged = Vec::new();
                for number in 0u64.. {
                    let bytes = [thread, number].map(u64::to_le_bytes).concat();
                    match log.append(&bytes) {
                        Ok(lsn) => acknowledged.push((lsn, bytes)),
                        Err(_) => break,
                    }
                }
                acknowledged
            }
        };
        let acknowledged: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8).map(|thread| scope.spawn(write(thread))).collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        let after = disk.after_power_cut(seed);
        let log = options().open_storage(Arc::new(after)).unwrap();
        let found = records(&log);
        for (lsn, bytes) in &acknowledged {
            let there = found.get(lsn.0 as usize - 1);
            assert_eq!(there, Some(bytes), "seed {seed}: record {lsn}");
        }
        let unacknowledged = found.len() - acknowledged.len();
        assert!(unacknowledged <= 8, "seed {seed}: each thread has one append in flight");
    }
}

/// Later frames name the bytes that a flush beside appends has covered. A power cut must not tear
/// these.
#[test]
fn flushes_beside_appends_keep_what_they_cover() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let disk = Memory::default();
        let options = options().durability(Durability::OnSync);
        let log = options.open_storage(Arc::new(disk.clone())).unwrap();
        let cut = disk.calls() + rng.u64(1..120);
        disk.set_faults(Faults { power_cut: Some(cut), ..Faults::default() });
        let (acknowledged, synced) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let writers = [50, 700, 3000, 9000].map(|len| {
                let (log, acknowledged) = (&log, &acknowledged);
                scope.spawn(move || {
                    while let Ok(lsn) = log.append_all(&[&vec![1; len], b"another"]) {
                        acknowledged.fetch_max(lsn.0 + 1, Relaxed);
                    }
                })
            });
            // Without a segment the writers end, and a log whose records are all stable has nothing
            // to flush.
            while !writers.iter().all(|writer| writer.is_finished()) {
                let covered = acknowledged.load(Relaxed);
                if log.sync().is_ok() {
                    synced.store(covered, Relaxed);
                }
            }
        });
        for cut in 0..3 {
            let after = disk.after_power_cut(seed + 1000 * cut);
            let log = options.open_storage(Arc::new(after)).unwrap_or_else(|error| {
                panic!("seed {seed}: {error}");
            });
            let synced = synced.load(Relaxed);
            assert!(log.next_lsn() > Lsn(synced), "seed {seed}: record {synced} is lost");
            assert_eq!(records(&log).len() as u64, log.next_lsn().0 - 1);
        }
    }
}
