//! Random calls against a file in memory, faults and power cuts.

use dioxide::sim::{Call, Disk, Settings};
use dioxide::{Growth, OpenOptions};
use dioxide_write_behind::WriteBehind;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn options(growth: Growth) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).growth(growth);
    options
}

fn open(path: &Path) -> WriteBehind {
    WriteBehind::open(&options(Growth::Unwritten), path).unwrap()
}

fn of(disk: &Disk, growth: Growth) -> WriteBehind {
    disk.open(&options(growth), "file").unwrap().try_into().unwrap()
}

/// Random calls of one thread. Ranges overlap, and have any alignment. Calls `flushed` with the
/// expected content after each flush. Returns the content.
fn random_calls(
    file: &WriteBehind,
    random: &mut fastrand::Rng,
    calls: usize,
    mut flushed: impl FnMut(&[u8]),
) -> Vec<u8> {
    let mut model: Vec<u8> = Vec::new();
    for call in 0..calls {
        let unit = if random.bool() { 4096 } else { 1 };
        let len = random.usize(..=8192 / unit) * unit;
        // Often behind the end, sometimes beyond it.
        let offset = match random.u32(..4) {
            0 => model.len(),
            1 => random.usize(..model.len() + 20_000) / unit * unit,
            _ => random.usize(..=model.len()) / unit * unit,
        };
        let end = offset + len;
        match random.u32(..100) {
            0..55 => {
                let data: Vec<u8> = (0..len).map(|i| (call + i) as u8 | 1).collect();
                file.write_at(&data, offset as u64).unwrap();
                if len > 0 {
                    model.resize(model.len().max(end), 0);
                    model[offset..end].copy_from_slice(&data);
                }
            }
            55..85 => {
                let mut read = vec![0xee; len];
                let count = file.read_at(&mut read, offset as u64).unwrap();
                let expected = &model[offset.min(model.len())..end.min(model.len())];
                assert_eq!(&read[..count], expected, "call {call}: {offset}+{len}");
            }
            85..92 => {
                file.sync_data().unwrap();
                flushed(&model);
            }
            92 => file.write_waiting().unwrap(),
            93..96 => {
                let len = random.usize(..1 + (model.len() + 20_000).min(200_000));
                file.set_len(len as u64).unwrap();
                model.resize(len, 0);
                flushed(&model);
            }
            _ => assert_eq!(file.len().unwrap(), model.len() as u64, "call {call}"),
        }
    }
    model
}

#[test]
fn random_calls_behave_as_a_file() {
    let dir = dir();
    for seed in 0..10 {
        let path = dir.path().join(format!("file-{seed}"));
        let growth = if seed % 2 == 0 { Growth::None } else { Growth::Unwritten };
        let file = WriteBehind::open(&options(growth), &path).unwrap();
        let model = random_calls(&file, &mut fastrand::Rng::with_seed(seed), 1000, |_| ());
        if seed % 3 == 0 {
            file.close().unwrap()
        } else {
            drop(file)
        }
        assert!(fs::read(path).unwrap() == model, "seed {seed}: other programs read the same");
    }
}

/// Bytes that a flush covered are there after a power cut.
#[test]
fn a_power_cut_after_a_flush_loses_nothing() {
    let mut flushes = 0;
    for seed in 0..40 {
        let disk = Disk::new(seed);
        let growth = if seed % 2 == 0 { Growth::None } else { Growth::Unwritten };
        let file = of(&disk, growth);
        random_calls(&file, &mut fastrand::Rng::with_seed(seed), 150, |model| {
            flushes += 1;
            let after = of(&disk.crash(), growth);
            let mut found = vec![0xee; model.len()];
            assert_eq!(after.read_at(&mut found, 0).unwrap(), model.len(), "seed {seed}");
            assert!(found == model, "seed {seed}");
        });
    }
    assert!(flushes > 300, "only {flushes} flushes");
}

/// The control of the test above: without the flush, power cuts lose bytes.
#[test]
fn a_power_cut_without_a_flush_loses_bytes() {
    let mut lost = 0;
    for seed in 0..20 {
        let disk = Disk::new(seed);
        let file = of(&disk, Growth::Unwritten);
        file.write_at(&[7; 50_000], 0).unwrap();
        file.write_waiting().unwrap();
        let after = of(&disk.crash(), Growth::Unwritten);
        let mut found = vec![0; 50_000];
        let count = after.read_at(&mut found, 0).unwrap();
        lost += u32::from(count < found.len() || found.iter().any(|byte| *byte != 7));
    }
    assert!(lost > 5, "only {lost} of 20 power cuts lost something");
}

/// More than may wait in memory.
#[test]
fn many_writes_without_a_flush_are_all_there() {
    let dir = dir();
    let file = open(&dir.path().join("file"));
    let pages = 6000_u64;
    let page = |n: u64| n.to_le_bytes().repeat(512);
    for n in (0..pages).map(|n| n * 7 % pages) {
        file.write_at(&page(n), n * 4096).unwrap();
    }
    file.write_at(&[9; 20_000_000], 3).unwrap();
    file.write_at(&page(0), 0).unwrap();
    for n in (0..1).chain(20_000_003_u64.div_ceil(4096)..pages) {
        let mut read = vec![0; 4096];
        assert_eq!(file.read_at(&mut read, n * 4096).unwrap(), 4096);
        assert!(read == page(n), "page {n}");
    }
}

/// Neighbours become one request: the counters of dioxide.
#[test]
fn small_writes_of_a_flush_are_one_append() {
    let dir = dir();
    let file = open(&dir.path().join("file"));
    for n in 0..1000_u64 {
        file.write_at(&[n as u8; 100], n * 100).unwrap();
    }
    file.sync_data().unwrap();
    let stats = file.file().stats();
    assert_eq!(stats.appends, 1, "{stats:?}");
    assert_eq!(file.file().len().unwrap(), 100_000);
}

#[test]
fn threads_see_their_own_writes_while_another_flushes() {
    let dir = dir();
    let file = Arc::new(open(&dir.path().join("file")));
    let ended = Arc::new(AtomicBool::new(false));
    let flusher = thread::spawn({
        let (file, ended) = (file.clone(), ended.clone());
        move || {
            while !ended.load(Ordering::Relaxed) {
                file.sync_data().unwrap();
            }
        }
    });
    let writers: Vec<_> = (0..4)
        .map(|thread| {
            let file = file.clone();
            thread::spawn(move || {
                // Each thread has its own ranges, so it knows their content.
                for round in 0..400_u64 {
                    let offset = (round * 4 % 64 + thread) * 3000;
                    file.write_at(&[round as u8; 3000], offset).unwrap();
                    let mut read = vec![0; 3000];
                    assert_eq!(file.read_at(&mut read, offset).unwrap(), 3000);
                    assert!(read == [round as u8; 3000], "thread {thread}, round {round}");
                }
            })
        })
        .collect();
    let results: Vec<_> = writers.into_iter().map(thread::JoinHandle::join).collect();
    ended.store(true, Ordering::Relaxed);
    flusher.join().unwrap();
    assert!(results.iter().all(Result::is_ok));
}

/// The defect: a flush of another thread appended its bytes behind the new length, at another
/// offset than theirs.
#[test]
fn a_flush_does_not_begin_while_the_length_is_set() {
    let disk = Disk::new(3);
    let file = of(&disk, Growth::Unwritten);
    file.write_at(&[1; 100], 0).unwrap();
    file.sync_data().unwrap();
    let (begins, begun) = mpsc::channel();
    let mut begins = Some(begins);
    // Holds the first call of `set_len`. The flush reads the old length meanwhile.
    disk.watch(Some(Box::new(move || {
        if let Some(begins) = begins.take() {
            begins.send(()).unwrap();
            thread::sleep(Duration::from_millis(300));
        }
    })));
    thread::scope(|scope| {
        scope.spawn(|| file.set_len(50).unwrap());
        begun.recv().unwrap();
        file.write_at(&[2; 10], 100).unwrap();
        file.sync_data().unwrap();
    });
    assert_eq!(file.len().unwrap(), 110);
    let mut found = [0xee; 110];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), 110);
    assert!(found[..] == [[1; 50].as_slice(), &[0; 50], &[2; 10]].concat(), "{found:?}");
}

/// The defect: it wrote what other threads added meanwhile, without an end.
#[test]
fn a_length_is_set_beside_a_thread_that_writes() {
    const CALLS_MAX: usize = 200;
    let disk = Disk::new(4);
    let file = of(&disk, Growth::None);
    file.write_at(&[1; 100], 0).unwrap();
    let (go, wanted) = mpsc::channel();
    let (wrote, written) = mpsc::channel();
    let calls = Arc::new(AtomicUsize::new(0));
    // During each call on the disk the other thread writes, if it may.
    disk.watch(Some(Box::new({
        let calls = calls.clone();
        move || {
            if calls.fetch_add(1, Ordering::SeqCst) < CALLS_MAX {
                go.send(()).unwrap();
                let _ = written.recv_timeout(Duration::from_millis(50));
            }
        }
    })));
    thread::scope(|scope| {
        scope.spawn(|| {
            for (nth, ()) in wanted.into_iter().enumerate() {
                file.write_at(&[2; 10], 1000 + 100 * nth as u64).unwrap();
                // The callback may be gone.
                let _ = wrote.send(());
            }
        });
        file.set_len(50).unwrap();
        disk.watch(None);
    });
    assert!(calls.load(Ordering::SeqCst) < CALLS_MAX);
}

/// A write that failed is not forgotten: the next flush writes it.
#[test]
fn a_failed_write_is_written_by_the_next_flush() {
    let page = |n: u64| [n as u8 + 1; 4096];
    for writes in [1, 3] {
        for nth in 0..writes {
            let disk = Disk::new(writes);
            let file = of(&disk, Growth::None);
            file.set_len(1 << 20).unwrap();
            (0..writes).for_each(|n| file.write_at(&page(n), n * 65536).unwrap());
            disk.fail(Call::Write, nth, 28);
            file.sync_data().unwrap_err();
            let mut read = [0; 4096];
            for n in 0..writes {
                file.read_at(&mut read, n * 65536).unwrap();
                assert!(read == page(n), "read {n} of {writes} after the failure of {nth}");
            }
            file.sync_data().unwrap();
            let after = of(&disk.crash(), Growth::None);
            for n in 0..writes {
                after.read_at(&mut read, n * 65536).unwrap();
                assert!(read == page(n), "write {n} of {writes} after the failure of {nth}");
            }
        }
    }
}

/// It reaches the file behind the writes that waited, or is not taken.
#[test]
fn a_write_through_reports_its_own_error() {
    let mut settings = Settings::default();
    settings.capacity_bytes = 64 << 10;
    let disk = Disk::with(7, settings);
    let file = of(&disk, Growth::Unwritten);
    file.write_at(&[1; 1000], 0).unwrap();
    file.write_through(&[2; 1000], 1000).unwrap();
    assert_eq!(file.file().len().unwrap(), 2000);
    file.write_through(&[3; 100_000], 2000).unwrap_err();
    file.write_at(&[4; 10], 2000).unwrap();
    file.write_through(&[5; 10], 500).unwrap();
    file.sync_data().unwrap();
    let mut expected = [[1; 1000].as_slice(), &[2; 1000], &[4; 10]].concat();
    expected[500..510].fill(5);
    for disk in [disk.crash(), disk.crash()] {
        let file = of(&disk, Growth::Unwritten);
        let mut found = vec![0; expected.len()];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), found.len());
        assert!(found == expected);
    }
}

/// An append that finds no space keeps its bytes, and its offset.
#[test]
fn without_space_the_bytes_wait() {
    let mut settings = Settings::default();
    settings.capacity_bytes = 64 << 10;
    let disk = Disk::with(5, settings);
    disk.put("other", &[1; 48 << 10]);
    let file = of(&disk, Growth::Unwritten);
    file.write_at(&[2; 30_000], 0).unwrap();
    file.sync_data().unwrap_err();
    file.write_at(&[3; 100], 30_000).unwrap();
    file.sync_data().unwrap_err();
    assert_eq!(file.len().unwrap(), 30_100);
    disk.remove("other");
    file.sync_data().unwrap();
    let after = of(&disk.crash(), Growth::Unwritten);
    let mut found = vec![0; 30_100];
    assert_eq!(after.read_at(&mut found, 0).unwrap(), found.len());
    assert!(found[..30_000].iter().all(|byte| *byte == 2));
    assert!(found[30_000..].iter().all(|byte| *byte == 3));
}
