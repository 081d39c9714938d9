//! Files of one file system that share flushes.

use super::*;
use crate::api::file::File;
use crate::api::queue::Queue;
use crate::engine::handle::FileHandle;
use crate::engine::registry::Key;
use crate::rules::flush::SHARERS_MIN;
use crate::stats::Stats;
use crate::sync::{spawn, world};
use crate::sys::probe::Part;
use std::mem::ManuallyDrop;
use std::sync::Mutex;

const FILES: u64 = 4 * SHARERS_MIN as u64;
const RECORDS: u64 = 12;

fn file_on(device: &Arc<Device>, nth: u64, fs: &FileSystems) -> SimFile {
    let inode = device.find(&format!("file-{nth}"), true).expect("created");
    let props = FileProps { shares_flushes: true, ..props(Some(Prepared::Unwritten)) };
    open_as(Disk(Sim::new(device.clone(), inode)), props, fs.clone()).expect("in order")
}

fn files_on(device: &Arc<Device>) -> Vec<SimFile> {
    let fs = FileSystems::default();
    (0..FILES).map(|nth| file_on(device, nth, &fs)).collect()
}

/// Appends records durably in a thread for each file, until one fails. Returns the first errors.
fn append_beside(files: &[SimFile]) -> Vec<Error> {
    let errors = Arc::new(Mutex::new(Vec::new()));
    let threads = files.iter().map(|file| {
        let (engine, errors) = (file.engine.clone(), errors.clone());
        let append = move || {
            let result = (1..=RECORDS)
                .try_for_each(|number| engine.append(&record(number, 1), true).map(drop));
            errors.lock().unwrap().extend(result.err());
        };
        spawn("writer", Box::new(append)).expect("a thread")
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join());
    std::mem::take(&mut errors.lock().unwrap())
}

fn stats_of(files: &[SimFile]) -> Stats {
    files.iter().map(|file| file.stats()).fold(Stats::default(), |sum, stats| Stats {
        appends: sum.appends + stats.appends,
        flushes: sum.flushes + stats.flushes,
        flushes_shared: sum.flushes_shared + stats.flushes_shared,
        dsync_requests: sum.dsync_requests + stats.dsync_requests,
        ..sum
    })
}

/// The records that each file has after a power cut that keeps nothing more than it must.
fn kept(device: &Device) -> Vec<u64> {
    let crashed = device.crash(&mut |_, _| 0);
    let inode = |nth: u64| crashed.find(&format!("file-{nth}"), false).expect("it is durable");
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    (0..FILES)
        .map(|nth| {
            let content = crashed.content(inode(nth));
            let blocks = content.chunks(BLOCK_BYTES as usize).map(number);
            blocks.zip(1..).take_while(|(found, wanted)| found == wanted).count() as u64
        })
        .collect()
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
    let file = file_on(&device, 0, &FileSystems::default());
    let (errors, _) = world::run(0, || append_beside(std::slice::from_ref(&file)));
    assert_eq!(errors, []);
    assert_eq!(file.stats().flushes_shared, 0);
    assert_eq!(file.stats().dsync_requests, RECORDS, "one call for each");
}

#[test]
fn a_queue_on_many_files_flushes_once_for_all() {
    let device = Device::new(1, Settings::default());
    let files = files_on(&device);
    let handle = |(nth, file): (u64, &SimFile)| {
        let (engine, process) = (file.engine.clone(), Process::current());
        let key = Key { dev: u64::MAX, inode: Some(nth), part: Part::Whole };
        // No registry has it, so it is not closed.
        ManuallyDrop::new(File::of(FileHandle::Shared { engine, key, process, durable: true }))
    };
    let handles: Vec<_> = (0..).zip(&files).map(handle).collect();
    let (results, _) = world::run(1, || {
        let queue = Queue::new(files.len());
        let mut results = Vec::new();
        for number in 1..=RECORDS {
            for (tag, handle) in (0..).zip(&handles) {
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

/// The defect: those that waited for the flush of another file slept for ever.
#[test]
fn files_that_wait_for_a_flush_that_fails_are_wedged() {
    for seed in 0..20 {
        let device = Device::new(seed, Settings::default());
        let files = files_on(&device);
        device.fail(Call::Flush, seed, libc::EIO);
        let (errors, _) = world::run(seed, || append_beside(&files));
        assert_eq!(errors.len(), files.len(), "each file learns of it");
        let others = errors.iter().filter(|error| !matches!(error.kind(), ErrorKind::Wedged(_)));
        assert!(others.count() <= 1, "only the flush that failed has another error");
    }
}
