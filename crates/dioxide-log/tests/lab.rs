//! Logs on real media: on a block device, and by a process that is killed.

use dioxide::ErrorKind;
use dioxide_log::storage::Storage;
use dioxide_log::storage::device::Device;
use dioxide_log::suite::{Extent, Medium, run_with};
use dioxide_log::{Error, Log, LogOptions, LogReader, LogView, Lsn};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::fork::holds_in_a_fork;
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{Trial, TrialResult, lab_trial, lab_trials};
use futures::executor::block_on;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

const SEGMENT_BYTES: u64 = 256 << 10;
const LIMIT: Duration = Duration::from_secs(120);

fn options() -> LogOptions {
    LogOptions::new().segment_bytes(SEGMENT_BYTES)
}

fn disk(dir: &Path, bytes: u64) -> io::Result<AttachedFile> {
    let image = dir.join("image");
    File::create(&image)?.set_len(bytes)?;
    AttachedFile::new(&image)
}

/// Overwrites the start of the disk with zeros, but for one byte.
fn erase(disk: &Path, other: Option<usize>) -> io::Result<()> {
    let mut zeros = vec![0; 4 << 20];
    if let Some(at) = other {
        zeros[at] = 1;
    }
    let file = OpenOptions::new().write(true).open(disk)?;
    file.write_all_at(&zeros, 0)?;
    file.sync_all()
}

fn records(log: &Log) -> Vec<u64> {
    log.iter_from(log.first_lsn()).map(|record| record.expect("it is read").0.0).collect()
}

fn the_ring_of_segments_is_used_again(dir: TestDir) -> TrialResult {
    let disk = disk(&dir, 64 << 20)?;
    erase(disk.path(), None)?;
    let mut next = 1;
    for round in 0..4 {
        // A log that is there has its own size of segments.
        let options = if round == 0 { options() } else { LogOptions::new() };
        let log = options.open(disk.path())?;
        assert_eq!(log.report().closed, round > 0);
        for _ in 0..300 {
            let lsn = log.append(&[round; 5000])?;
            assert_eq!(lsn, Lsn(next));
            next += 1;
            log.truncate_front(Lsn(lsn.0.saturating_sub(40)))?;
        }
        let expected = records(&log);
        assert!(expected.len() == 41 && log.stats().segments < 4, "{:?}", log.stats());
        log.close()?;
        let view = LogView::open(disk.path())?;
        assert_eq!((view.first_lsn(), view.next_lsn()), (Lsn(next - 41), Lsn(next)));
    }
    Ok(())
}

fn a_full_device_works_again(dir: TestDir) -> TrialResult {
    let disk = disk(&dir, 8 << 20)?;
    let log = options().open(disk.path())?;
    for _ in 0..3 {
        let error = loop {
            if let Err(error) = log.append(&[7; 100_000]) {
                break error;
            }
        };
        assert!(matches!(error, Error::Full(_)) && error.is_no_space(), "{error}");
        log.truncate_front(log.next_lsn())?;
    }
    Ok(log.close()?)
}

/// Headers of an older log lay behind the zeros, and counted as those of the new one.
fn an_older_log_behind_zeros_is_gone(dir: TestDir) -> TrialResult {
    let disk = disk(&dir, 64 << 20)?;
    erase(disk.path(), None)?;
    let fill = |segment_bytes: u64, count: usize| -> TrialResult {
        let log = LogOptions::new().segment_bytes(segment_bytes).open(disk.path())?;
        assert!(records(&log).is_empty() && !log.report().closed);
        (0..count).try_for_each(|_| log.append(&[5; 30_000]).map(drop))?;
        log.close()?;
        assert_eq!(records(&LogOptions::new().open(disk.path())?).len(), count);
        Ok(())
    };
    for segment_bytes in [1 << 20, 128 << 10, 2 << 20, 64 << 10] {
        // Behind the 4 MiB that are erased.
        fill(segment_bytes, 200)?;
        erase(disk.path(), None)?;
        assert!(matches!(LogView::open(disk.path()), Err(Error::Missing { .. })));
        fill(segment_bytes, 3)?;
        erase(disk.path(), None)?;
    }
    Ok(())
}

/// A second log of the same process was not refused, and another process got another error.
fn a_second_writer_is_refused(dir: TestDir) -> TrialResult {
    let disk = disk(&dir, 64 << 20)?;
    erase(disk.path(), None)?;
    let refused = || matches!(options().open(disk.path()), Err(Error::Locked { .. }));
    let log = options().open(disk.path())?;
    log.append(b"a record")?;
    assert!(refused());
    assert!(holds_in_a_fork(refused));
    assert_eq!(LogView::open(disk.path())?.next_lsn(), Lsn(2));
    log.close()?;
    assert_eq!(records(&options().open(disk.path())?), [1]);
    Ok(())
}

struct Signal(Sender<()>);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        // The test may have ended.
        let _ = self.0.send(());
    }
}

/// A child has the memory of the thread that wakes tasks, and not the thread.
fn a_task_of_a_child_waits_for_a_record(dir: TestDir) -> TrialResult {
    let waits = |path: &Path| {
        let log = options().open(path)?;
        let mut reader = LogReader::open(path)?;
        let mut next = Box::pin(reader.next_async());
        let (send, woken) = channel();
        let waker = Waker::from(Arc::new(Signal(send)));
        // For another look.
        let is_woken = next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
            && woken.recv_timeout(LIMIT).is_ok();
        log.append(b"a record")?;
        Ok::<_, Error>((is_woken, block_on(next)?.lsn))
    };
    assert_eq!(waits(&dir.join("log"))?, (true, Lsn(1)));
    assert!(holds_in_a_fork(|| matches!(waits(&dir.join("other")), Ok((true, Lsn(1))))));
    Ok(())
}

/// It kept the device until the last position was dropped, so no program could mount or write it.
fn a_position_kept_a_closed_device(dir: TestDir) -> TrialResult {
    let disk = disk(&dir, 64 << 20)?;
    erase(disk.path(), None)?;
    let log = options().open(disk.path())?;
    for _ in 0..40 {
        log.append(&[3; 50_000])?;
    }
    let (mut iter, mut later) = (log.iter_from(Lsn(1)), log.iter_from(Lsn(20)));
    assert_eq!(iter.next()?.map(|record| record.lsn), Some(Lsn(1)));
    let alone = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlags::EXCL.bits() as i32).open(disk.path())
    };
    assert!(alone().is_err(), "the log has it");
    let other = log.clone();
    log.close()?;
    let held = alone()?;
    assert_eq!(later.next()?.map(|record| record.lsn), Some(Lsn(20)));
    assert_eq!(iter.filter(Result::is_ok).count(), 39);
    assert!(matches!(options().open(disk.path()), Err(Error::Locked { .. })));
    drop(held);
    assert_eq!(records(&options().open(disk.path())?).len(), 40);
    assert!(matches!(other.append(b"late"), Err(Error::Closed)));
    Ok(())
}

/// Only the first block was looked at. Other formats have their marks behind it.
fn other_content_is_not_overwritten(dir: TestDir) -> TrialResult {
    let disk = disk(&dir, 64 << 20)?;
    // The first block, that of md, that of btrfs, and the last of the first MiB.
    for at in [0, 4096, 64 << 10, (1 << 20) - 1] {
        erase(disk.path(), Some(at))?;
        let error = options().open(disk.path()).unwrap_err();
        assert!(matches!(error, Error::Corrupt { offset, .. } if offset == at as u64), "{error}");
    }
    erase(disk.path(), Some(3 << 20))?;
    options().open(disk.path())?.close()?;
    Ok(())
}

/// The size of its segments was looked for at the wrong places.
fn a_log_without_its_first_header_is_found(dir: TestDir) -> TrialResult {
    let disk = disk(&dir, 64 << 20)?;
    for segment_bytes in [64 << 10, 128 << 10, 1 << 20, 8 << 20] {
        erase(disk.path(), None)?;
        let log = LogOptions::new().segment_bytes(segment_bytes).open(disk.path())?;
        let record = vec![1; segment_bytes as usize / 3];
        while log.stats().segments < 3 {
            log.append(&record)?;
        }
        log.truncate_front(log.next_lsn())?;
        log.close()?;
        // As a torn first write of the next part would leave it.
        OpenOptions::new().write(true).open(disk.path())?.write_all_at(&[7; 512], 1024)?;
        let log = LogOptions::new().open(disk.path())?;
        assert!(records(&log).is_empty() && log.report().closed);
    }
    Ok(())
}

/// The device did not open any more, and a directory did.
fn an_interrupted_creation_is_repeated(dir: TestDir) -> TrialResult {
    let disk = disk(&dir, 64 << 20)?;
    options().open(disk.path())?.close()?;
    let mut header = [0; 4096];
    File::open(disk.path())?.read_exact_at(&mut header, 0)?;
    for sectors in [0..0, 0..1, 7..8, 0..7, 1..8] {
        erase(disk.path(), None)?;
        let part = sectors.start * 512..sectors.end * 512;
        let file = OpenOptions::new().write(true).open(disk.path())?;
        file.write_all_at(&header[part.clone()], part.start as u64)?;
        let log = options().open(disk.path())?;
        assert!(records(&log).is_empty() && !log.report().closed);
        log.close()?;
    }
    Ok(())
}

/// Threads that append and truncate for ever. Each acknowledgement is an LSN, the number of its
/// thread, and 1 for a truncation of the front to it.
fn append_for_ever(acks: &Acks, args: &[String]) {
    let log = options().open(&args[0]).expect("it opens");
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let log = &log;
            scope.spawn(move || {
                for number in 0u64.. {
                    let record = [thread, number].map(u64::to_le_bytes).concat().repeat(40);
                    let lsn = log.append(&record).expect("it is appended");
                    acks.send([lsn.0, thread, 0]);
                    if thread == 0 && number % 50 == 49 {
                        let front = lsn.0.saturating_sub(200);
                        log.truncate_front(Lsn(front)).expect("it is truncated");
                        acks.send([front, thread, 1]);
                    }
                }
            });
        }
    });
}

const LOGS: u64 = 8;

fn set_options() -> LogOptions {
    options().spare_segments(3)
}

/// Threads that append to the logs of a set for ever, and truncate them. Each acknowledgement is
/// the number of a log, an LSN, and 1 for a truncation of the front to it.
fn append_to_a_set_for_ever(acks: &Acks, args: &[String]) {
    let set = set_options().open_set(&args[0]).expect("it opens");
    thread::scope(|scope| {
        for number in 0..LOGS {
            let set = &set;
            scope.spawn(move || {
                let log = set.log(&number.to_string()).expect("it opens");
                loop {
                    let lsn = log.append(&record_of(number, log.next_lsn())).expect("appended");
                    acks.send([number, lsn.0, 0]);
                    // So the logs give and take segments at different times.
                    if lsn.0.is_multiple_of(100 + 20 * number) {
                        log.truncate_front(Lsn(lsn.0 - 50)).expect("it is truncated");
                        acks.send([number, lsn.0 - 50, 1]);
                    }
                }
            });
        }
    });
}

fn record_of(number: u64, lsn: Lsn) -> Vec<u8> {
    [number, lsn.0].map(u64::to_le_bytes).concat().repeat(300)
}

fn a_killed_process_loses_nothing_of_a_set(dir: TestDir) -> TrialResult {
    let path = dir.join("set");
    for round in 0..5 {
        let mut child = child::spawn("append-to-set", &[path.to_str().expect("a name")])?;
        child.wait_for_acks(2000 + 500 * round, LIMIT)?;
        let refused = set_options().open_set(&path);
        assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
        let acks = child.kill_9()?;
        let set = set_options().open_set(&path)?;
        assert!(set.stats().free_segments <= 3, "{:?}", set.stats());
        for number in 0..LOGS {
            let of_log = || acks.iter().filter(|ack| ack[0] == number);
            let log = set.log(&number.to_string())?;
            let (first, next) = (log.first_lsn(), log.next_lsn());
            let front = of_log().filter(|ack| ack[2] == 1).map(|ack| ack[1]).max();
            let last = of_log().map(|ack| ack[1]).max();
            assert!(first.0 >= front.unwrap_or(1) && next.0 > last.unwrap_or(0));
            let mut lsn = first;
            for record in log.iter_from(first) {
                let (found, record) = record?;
                assert_eq!((found, record), (lsn, record_of(number, lsn)));
                lsn = lsn.next();
            }
            assert_eq!(lsn, next, "an acknowledged record is lost");
        }
        set.close()?;
    }
    Ok(())
}

fn a_killed_process_loses_nothing_acknowledged(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let mut next = 1;
    for round in 0..5 {
        let mut child = child::spawn("append", &[path.to_str().expect("a name")])?;
        child.wait_for_acks(500 * (round + 1), LIMIT)?;
        // It follows the other process.
        let mut reader = LogReader::open(&path)?;
        let mut seen = Vec::new();
        while seen.len() < 300 {
            match reader.next_within(LIMIT) {
                Ok(record) => {
                    let record = record.ok_or("the child appends")?;
                    seen.push((record.lsn, record.payload.to_vec()));
                }
                // The child truncated the front meanwhile.
                Err(Error::OutOfRange { first, .. }) => reader.seek(first),
                Err(error) => return Err(error.into()),
            }
        }
        let acks = child.kill_9()?;
        let log = options().open(&path)?;
        for (lsn, record) in seen.into_iter().filter(|(lsn, _)| *lsn >= log.first_lsn()) {
            assert_eq!(log.read(lsn)?, Some(record), "a reader saw a record that is lost");
        }
        assert!(!log.report().closed);
        let first = log.first_lsn();
        let fronts = acks.iter().filter(|ack| ack[2] == 1).map(|ack| ack[0]);
        assert!(first.0 >= fronts.max().unwrap_or(1));
        // A truncation may have been in flight.
        for [lsn, thread, front] in acks {
            if front == 0 && lsn >= first.0 {
                assert!(lsn >= next, "{lsn} was given twice");
                let record = log.read(Lsn(lsn))?.ok_or("an acknowledged record is lost")?;
                assert_eq!(record[..8], thread.to_le_bytes());
                assert_eq!(record, record[..16].repeat(40));
            }
        }
        next = log.next_lsn().0;
        log.close()?;
    }
    Ok(())
}

/// Threads that append to streams and truncate them for ever. The first stream rests: it has some
/// records, which are copied again and again. Each acknowledgement is a stream, an LSN, and 1 for a
/// truncation of the front to it.
fn append_to_streams_for_ever(acks: &Acks, args: &[String]) {
    let log = options().open_streams(&args[0]).expect("it opens");
    let record_of = |stream: u64, lsn: u64| [stream, lsn].map(u64::to_le_bytes).concat().repeat(60);
    let resting = log.stream(0);
    while resting.next_lsn() <= Lsn(20) {
        let lsn = resting.next_lsn().0;
        resting.append(&record_of(0, lsn)).expect("it is appended");
        acks.send([0, lsn, 0]);
    }
    thread::scope(|scope| {
        for id in 1..5u64 {
            let stream = log.stream(id);
            scope.spawn(move || {
                loop {
                    let lsn = stream.next_lsn().0;
                    stream.append(&record_of(id, lsn)).expect("it is appended");
                    acks.send([id, lsn, 0]);
                    if lsn.is_multiple_of(50) {
                        stream.truncate_front(Lsn(lsn - 10 * id)).expect("it is truncated");
                        acks.send([id, lsn - 10 * id, 1]);
                    }
                }
            });
        }
    });
}

fn a_killed_process_loses_nothing_of_its_streams(dir: TestDir) -> TrialResult {
    let path = dir.join("streams");
    let mut fronts = [1; 5];
    for round in 0..5 {
        let mut child = child::spawn("append-to-streams", &[path.to_str().expect("a name")])?;
        child.wait_for_acks(1000 * (round + 1), LIMIT)?;
        let acks = child.kill_9()?;
        let log = options().open_streams(&path)?;
        for [id, lsn, truncated] in &acks {
            if *truncated == 1 {
                fronts[*id as usize] = fronts[*id as usize].max(*lsn);
            }
        }
        for [id, lsn, truncated] in acks {
            let stream = log.stream(id);
            assert!(stream.first_lsn().0 >= fronts[id as usize]);
            if truncated == 0 && lsn >= stream.first_lsn().0 {
                let record = stream.read(Lsn(lsn))?.ok_or("an acknowledged record is lost")?;
                assert_eq!(record, [id, lsn].map(u64::to_le_bytes).concat().repeat(60));
            }
        }
        let resting = log.stream(0).iter_from(Lsn(1)).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(resting.len(), 20);
        log.close()?;
    }
    // Segments were used again.
    assert!(fs::read_dir(&path)?.count() < 60);
    Ok(())
}

/// A device of a log. Processes are killed.
struct Disk {
    disk: AttachedFile,
}

impl Medium for Disk {
    fn open(&self) -> dioxide_log::Result<Arc<dyn Storage>> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let file = loop {
            match dioxide::OpenOptions::new().write(true).open(self.disk.path()) {
                // A program that another trial starts keeps the device until its exec.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Busy(_)) && Instant::now() < deadline => {}
                opened => break opened?,
            }
        };
        Ok(Arc::new(Device::new(file, self.disk.path(), 64 << 10)?))
    }
}

fn a_device_keeps_the_rules(dir: TestDir) -> TrialResult {
    let extent = Extent { programs: 3, ..Extent::default() };
    run_with(extent, || {
        let _ = fs::remove_file(dir.join("image"));
        Disk { disk: disk(&dir, 4 << 20).expect("a loop device") }
    })?;
    Ok(())
}

fn trials() -> Vec<Trial> {
    let killed = lab_trials(
        "a_killed_process_loses_nothing_acknowledged",
        a_killed_process_loses_nothing_acknowledged,
    );
    let on_devices = vec![
        lab_trial(
            "an_interrupted_creation_is_repeated",
            Fs::Ext4,
            an_interrupted_creation_is_repeated,
        ),
        lab_trial("a_device_keeps_the_rules", Fs::Ext4, a_device_keeps_the_rules),
        lab_trial("a_full_device_works_again", Fs::Ext4, a_full_device_works_again),
        lab_trial(
            "a_log_without_its_first_header_is_found",
            Fs::Ext4,
            a_log_without_its_first_header_is_found,
        ),
        lab_trial("a_position_kept_a_closed_device", Fs::Ext4, a_position_kept_a_closed_device),
        lab_trial(
            "a_task_of_a_child_waits_for_a_record",
            Fs::Ext4,
            a_task_of_a_child_waits_for_a_record,
        ),
        lab_trial("a_second_writer_is_refused", Fs::Ext4, a_second_writer_is_refused),
        lab_trial("an_older_log_behind_zeros_is_gone", Fs::Ext4, an_older_log_behind_zeros_is_gone),
        lab_trial("other_content_is_not_overwritten", Fs::Ext4, other_content_is_not_overwritten),
        lab_trial(
            "the_ring_of_segments_is_used_again",
            Fs::Ext4,
            the_ring_of_segments_is_used_again,
        ),
    ];
    let of_streams = lab_trials(
        "a_killed_process_loses_nothing_of_its_streams",
        a_killed_process_loses_nothing_of_its_streams,
    );
    let of_a_set = lab_trials(
        "a_killed_process_loses_nothing_of_a_set",
        a_killed_process_loses_nothing_of_a_set,
    );
    on_devices.into_iter().chain(killed).chain(of_streams).chain(of_a_set).collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run(
        &[
            ("append", append_for_ever),
            ("append-to-streams", append_to_streams_for_ever),
            ("append-to-set", append_to_a_set_for_ever),
        ],
        trials,
    )
}
