//! Files of one file system that share flushes.

use super::*;
use crate::api::file::File;
use crate::api::queue::{Queue, QueueOptions};
use crate::backend::ring::RingFile;
use crate::backend::sim::SimJournal;
use crate::engine::handle::FileHandle;
use crate::engine::registry::Key;
use crate::rules::flush::SHARERS_MIN;
use crate::stats::Stats;
use crate::sync::{now, spawn, world};
use crate::sys::probe::Part;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(super) const FILES: u64 = 4 * SHARERS_MIN as u64;
pub(super) const RECORDS: u64 = 12;

pub(super) fn file_on(
    device: &Arc<Device>,
    nth: u64,
    fs: &FileSystems,
    journal: Arc<dyn Journal>,
) -> SimFile {
    let inode = device.find(&format!("file-{nth}"), true).expect("created");
    let (disk, props) = (Disk(Sim::new(device.clone(), inode)), props(Some(Prepared::Unwritten)));
    open_in(disk, props, fs.clone(), Some(journal)).expect("in order")
}

fn files_on(device: &Arc<Device>) -> Vec<SimFile> {
    files_with(device, &SimJournal::of(device.clone()))
}

pub(super) fn files_with<J: Journal + 'static>(
    device: &Arc<Device>,
    journal: &Arc<J>,
) -> Vec<SimFile> {
    let fs = FileSystems::default();
    (0..FILES).map(|nth| file_on(device, nth, &fs, journal.clone())).collect()
}

/// Appends records durably in a thread for each file, until one fails. Returns the first errors.
pub(super) fn append_beside(files: &[SimFile]) -> Vec<Error> {
    in_threads(files, 1..=RECORDS, |engine, number| {
        engine.append(&record(number, 1), true).map(drop)
    })
}

/// Does something for each number in a thread for each file, until it fails. Returns the first
/// errors.
pub(super) fn in_threads(
    files: &[SimFile],
    numbers: RangeInclusive<u64>,
    act: fn(&Arc<Engine>, u64) -> crate::error::Result<()>,
) -> Vec<Error> {
    let errors = Arc::new(Mutex::new(Vec::new()));
    let threads = files.iter().map(|file| {
        let (engine, errors, mut numbers) = (file.engine.clone(), errors.clone(), numbers.clone());
        let work = move || {
            let result = numbers.try_for_each(|number| act(&engine, number));
            errors.lock().unwrap().extend(result.err());
        };
        spawn("writer", Box::new(work)).expect("a thread")
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join());
    std::mem::take(&mut errors.lock().unwrap())
}

pub(super) fn stats_of(files: &[SimFile]) -> Stats {
    files.iter().map(|file| file.stats()).fold(Stats::default(), |sum, stats| Stats {
        appends: sum.appends + stats.appends,
        flushes: sum.flushes + stats.flushes,
        flushes_shared: sum.flushes_shared + stats.flushes_shared,
        dsync_requests: sum.dsync_requests + stats.dsync_requests,
        ..sum
    })
}

/// The numbers in the blocks of each file after a power cut that keeps nothing more than it must.
pub(super) fn numbers_after_power_cut(device: &Device) -> Vec<Vec<u64>> {
    let crashed = device.crash(&mut |_, _| 0);
    let inode = |nth: u64| crashed.find(&format!("file-{nth}"), false).expect("it is durable");
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let numbers = |content: Vec<u8>| content.chunks(BLOCK_BYTES as usize).map(number).collect();
    (0..FILES).map(|nth| numbers(crashed.content(inode(nth)))).collect()
}

/// The number of records that each file has after that power cut.
fn kept(device: &Device) -> Vec<u64> {
    let count = |numbers: Vec<u64>| {
        numbers.into_iter().zip(1..).take_while(|(found, wanted)| found == wanted).count() as u64
    };
    numbers_after_power_cut(device).into_iter().map(count).collect()
}

#[test]
fn threads_on_many_files_share_flushes() {
    for seed in 0..20 {
        let device = Device::new(seed, Settings::default());
        let files = files_on(&device);
        let (errors, _) = world::run(seed, || append_beside(&files));
        assert_eq!(errors, []);
        let Stats { appends, flushes, flushes_shared, dsync_requests, .. } = stats_of(&files);
        assert_eq!(appends, FILES * RECORDS);
        assert!(flushes + dsync_requests < appends * 3 / 4, "{flushes} and {dsync_requests}");
        assert!(flushes_shared > appends / 4, "{flushes_shared}");
        assert_eq!(kept(&device), [RECORDS; FILES as usize]);
    }
}

#[test]
fn one_file_shares_no_flush() {
    let device = Device::new(0, Settings::default());
    let journal = SimJournal::of(device.clone());
    let file = file_on(&device, 0, &FileSystems::default(), journal);
    let (errors, _) = world::run(0, || append_beside(std::slice::from_ref(&file)));
    assert_eq!(errors, []);
    assert_eq!(file.stats().flushes_shared, 0);
    assert_eq!(file.stats().dsync_requests, RECORDS, "one call for each");
}

/// A journal that counts and fails.
#[derive(Debug)]
struct Counted {
    joins: AtomicU64,
}

impl Journal for Counted {
    fn join(&self) -> std::io::Result<()> {
        self.joins.fetch_add(1, Relaxed);
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn commit(&self) -> std::io::Result<()> {
        unreachable!("it cannot be joined")
    }

    fn commits_all(&self) -> std::io::Result<bool> {
        unreachable!("it cannot be joined")
    }

    fn ring_file(&self) -> RingFile<'_> {
        unreachable!("it cannot be joined")
    }
}

/// Durable handles of files. No registry has them, so they are not closed.
pub(super) struct Handles(pub Vec<File>);

impl Drop for Handles {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|file| drop(file.into_handle()));
    }
}

pub(super) fn handles_of(files: &[SimFile]) -> Handles {
    let handle = |(nth, file): (u64, &SimFile)| {
        let (engine, process) = (file.engine.clone(), Process::current());
        let key = Key { dev: u64::MAX, inode: Some(nth), part: Part::Whole };
        File::of(FileHandle::Writer { engine, key, process, durable: true })
    };
    Handles((0..).zip(files).map(handle).collect())
}

/// Writes of one file in flight are no other files that share a flush.
#[test]
fn a_queue_on_one_file_shares_no_flush() {
    for seed in 0..5 {
        let device = Device::new(seed, Settings::default());
        let journal = Arc::new(Counted { joins: AtomicU64::new(0) });
        let inode = device.find("file-0", true).expect("created");
        let (disk, props) = (Disk(Sim::new(device, inode)), props(Some(Prepared::Unwritten)));
        let shared = Some(journal.clone() as Arc<dyn Journal>);
        let file = open_in(disk, props, FileSystems::default(), shared).expect("in order");
        file.append(&record(1, 64), true).expect("nothing fails");
        let handles = handles_of(std::slice::from_ref(&file));
        let (results, _) = world::run(seed, || {
            let queue = Queue::new(64);
            let mut results = Vec::new();
            for tag in 0..400 {
                let place = tag * 17 % 63 * BLOCK_BYTES;
                queue.write_at(&handles.0[0], record(1, 1), place, tag).unwrap();
                if queue.outstanding() >= 16 {
                    results.extend(queue.reap(1).map(|done| done.result.map(drop)));
                }
            }
            results.extend(queue.reap(64).map(|done| done.result.map(drop)));
            results
        });
        assert!(results.len() == 400 && results.iter().all(std::result::Result::is_ok));
        assert_eq!(journal.joins.load(Relaxed), 0);
    }
}

/// A flush for all files that commits one file is none, and no other follows.
#[test]
fn a_fast_commit_ends_sharing() {
    for seed in 0..5 {
        let settings = Settings { commits_fast: true, ..Settings::default() };
        let device = Device::new(seed, settings);
        let files = files_on(&device);
        let (errors, _) = world::run(seed, || append_beside(&files));
        assert_eq!(errors, []);
        assert_eq!(stats_of(&files).flushes_shared, 0);
        assert_eq!(kept(&device), [RECORDS; FILES as usize]);
        // The defect: it was told as at the open.
        assert!(files.iter().all(|file| file.engine.why_no_shared_flush().is_some()));
    }
}

#[test]
fn a_journal_that_cannot_be_joined_loses_nothing() {
    for seed in 0..5 {
        let device = Device::new(seed, Settings::default());
        let files = files_on(&device);
        (0..20).for_each(|nth| device.fail(Call::Join, nth * 2, libc::ENOSPC));
        let (errors, _) = world::run(seed, || append_beside(&files));
        assert_eq!(errors, []);
        assert_eq!(kept(&device), [RECORDS; FILES as usize]);
    }
}

#[test]
fn a_queue_on_many_files_flushes_once_for_all() {
    let device = Device::new(1, Settings::default());
    let files = files_on(&device);
    let handles = handles_of(&files);
    let (results, _) = world::run(1, || {
        let queue = Queue::new(files.len());
        let mut results = Vec::new();
        for number in 1..=RECORDS {
            for (tag, handle) in (0..).zip(&handles.0) {
                queue.append(handle, record(number, 1), tag).expect("there is room");
            }
            results.extend(queue.reap(files.len()).map(|done| done.result.map(drop)));
        }
        results
    });
    assert!(results.iter().all(std::result::Result::is_ok), "{results:?}");
    let Stats { flushes, flushes_shared, dsync_requests, .. } = stats_of(&files);
    // Some wait for the first growth of their file, and go out alone.
    assert!(flushes + dsync_requests < FILES * RECORDS / 2, "{flushes} and {dsync_requests}");
    assert!(flushes_shared > FILES * RECORDS / 2, "{flushes_shared}");
    assert_eq!(kept(&device), [RECORDS; FILES as usize]);
}

/// A journal whose device does not respond from the first join on, for a time.
#[derive(Debug)]
struct Stalling {
    journal: Arc<SimJournal>,
    device: Arc<Device>,
    joins: AtomicU64,
}

const STALL: Duration = Duration::from_millis(500);

impl Journal for Stalling {
    fn join(&self) -> std::io::Result<()> {
        if self.joins.fetch_add(1, Relaxed) == 0 {
            self.device.stall(STALL);
        }
        self.journal.join()
    }

    fn commit(&self) -> std::io::Result<()> {
        self.journal.commit()
    }

    fn commits_all(&self) -> std::io::Result<bool> {
        self.journal.commits_all()
    }

    fn ring_file(&self) -> RingFile<'_> {
        self.journal.ring_file()
    }
}

/// The defect: a queue elected leaders on two file systems before it began one. It waited for the
/// first file system, and the files of the second waited for its leader.
#[test]
fn a_queue_that_waited_for_one_file_system_held_up_another() {
    for seed in 0..10 {
        let [stalled, other] = [0, 1].map(|nth| Device::new(2 * seed + nth, Settings::default()));
        let (device, joins) = (stalled.clone(), AtomicU64::new(0));
        let journal =
            Arc::new(Stalling { journal: SimJournal::of(stalled.clone()), device, joins });
        let mut files = files_with(&stalled, &journal);
        files.extend(files_on(&other));
        let handles = handles_of(&files);
        let (beside, handles) = (files.last().expect("several").engine.clone(), &handles.0);
        let (is_over, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, known) = (is_over.clone(), longest.clone());
        let ((), _) = world::run(seed, || {
            let append = move || {
                while !ends.load(Relaxed) {
                    let begun = now();
                    beside.append(&record(1, 1), true).expect("nothing fails");
                    known.fetch_max((now() - begun).as_nanos() as u64, Relaxed);
                }
            };
            let writer = spawn("writer", Box::new(append)).expect("a thread");
            // With a ring, it may also be away while its flush of the other one ends.
            let queue = QueueOptions::new().depth(files.len()).io_uring(false).open();
            let mut of_queue: Vec<_> = handles[..files.len() - 1].iter().collect();
            // Flushes of the other file system may come before.
            if seed % 2 == 1 {
                of_queue.reverse();
            }
            for number in 1..=RECORDS {
                for (tag, handle) in (0..).zip(of_queue.iter().copied()) {
                    queue.append(handle, record(number, 1), tag).expect("there is room");
                }
                let done = queue.reap(of_queue.len());
                done.for_each(|done| assert!(done.result.is_ok()));
            }
            is_over.store(true, Relaxed);
            writer.join();
            drop(queue);
            // All files of the process share the budget of growth.
            files.iter().for_each(|file| file.finish().expect("nothing fails"));
        });
        assert!(journal.joins.load(Relaxed) > 0, "the disk did not stall");
        let longest = Duration::from_nanos(longest.load(Relaxed));
        assert!(longest < STALL / 2, "seed {seed}: an append beside took {longest:?}");
    }
}

/// The defect: those that waited for the flush of another file slept for ever.
#[test]
fn files_that_wait_for_a_flush_that_fails_are_wedged() {
    // All tests of this process share one growth budget, and these files are not closed.
    for seed in 0..25 {
        let device = Device::new(seed, Settings::default());
        let files = files_on(&device);
        device.fail(Call::Flush, seed / 2, libc::EIO);
        let (errors, _) = world::run(seed, || append_beside(&files));
        assert_eq!(errors.len(), files.len(), "each file learns of it");
        // EIO is that of the flush that failed, and of flushes that ran beside it.
        let is_told =
            |error: &Error| matches!(error.kind(), ErrorKind::Wedged(_) | ErrorKind::Os(libc::EIO));
        assert!(errors.iter().all(is_told), "{errors:?}");
    }
}
