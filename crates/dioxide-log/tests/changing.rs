//! A reader without the writer distinguishes a log that is damaged from one that changes too fast.

mod common;

use common::{Ends, LIMIT};
use dioxide_log::storage::memory::Memory;
use dioxide_log::storage::{Mark, Segment, Storage};
use dioxide_log::{Error, Log, LogOptions, LogReader, LogView, Lsn, Result, StreamLog, StreamView};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(2);

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10).spare_segments(2)
}

/// A disk for readers, whose writer works before each read, this often.
#[derive(Clone)]
struct Busy {
    disk: Memory,
    left: Arc<AtomicUsize>,
    work: Arc<dyn Fn() + Send + Sync>,
}

impl Busy {
    fn new(disk: &Memory, work: impl Fn() + Send + Sync + 'static) -> Self {
        Self { disk: disk.clone(), left: Arc::default(), work: Arc::new(work) }
    }

    fn work(&self, reads: usize) {
        self.left.store(reads, Relaxed);
    }
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Busy")
    }
}

impl Storage for Busy {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        let of =
            |segment| Arc::new(BusySegment { busy: self.clone(), segment }) as Arc<dyn Segment>;
        Ok(self.disk.segments()?.into_iter().map(of).collect())
    }

    fn create(&self, _: u64) -> Result<Arc<dyn Segment>> {
        unreachable!("it is only read")
    }

    fn remove(&self, _: &dyn Segment) -> Result<()> {
        unreachable!("it is only read")
    }

    fn mark(&self) -> Result<Option<Mark>> {
        self.disk.mark()
    }
}

#[derive(Debug)]
struct BusySegment {
    busy: Busy,
    segment: Arc<dyn Segment>,
}

impl Segment for BusySegment {
    fn path(&self) -> &Path {
        self.segment.path()
    }

    fn bytes(&self) -> u64 {
        self.segment.bytes()
    }

    fn write(&self, _: &[u8], _: u64, _: bool) -> Result<()> {
        unreachable!("it is only read")
    }

    fn sync(&self) -> Result<()> {
        unreachable!("it is only read")
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let less_by_one = |left: usize| left.checked_sub(1);
        if self.busy.left.fetch_update(Relaxed, Relaxed, less_by_one).is_ok() {
            (self.busy.work)();
        }
        self.segment.read(into, offset)
    }
}

fn append(log: &Log, count: usize) {
    for _ in 0..count {
        log.append(&[7; 9000]).unwrap();
    }
}

fn is_changing(error: &Error) -> bool {
    matches!(error, Error::Changing { .. })
}

/// A log with some segments, and a reader's disk during whose reads all of them are used again.
fn recycled() -> (Log, Busy) {
    let disk = Memory::default();
    let log = small().open_storage(Arc::new(disk.clone())).unwrap();
    append(&log, 30);
    let writer = log.clone();
    let busy = Busy::new(&disk, move || {
        append(&writer, 30);
        writer.truncate_front(Lsn(writer.next_lsn().0 - 10)).unwrap();
    });
    (log, busy)
}

/// Each look found another contradiction, and the last one was returned.
#[test]
fn a_log_that_changes_was_a_damaged_one_for_a_view() {
    let (log, busy) = recycled();
    busy.work(usize::MAX);
    let error = LogView::of(Arc::new(busy.clone())).unwrap_err();
    assert!(is_changing(&error), "{error}");
    // The writer goes on for a moment.
    busy.work(5);
    let view = LogView::of(Arc::new(busy.clone())).unwrap();
    assert!(view.next_lsn() <= log.next_lsn());
}

#[test]
fn a_log_that_changes_was_a_damaged_one_for_the_records_of_a_view() {
    let (_log, busy) = recycled();
    let view = LogView::of(Arc::new(busy.clone())).unwrap();
    (0..20).for_each(|_| (busy.work)());
    let errors: Vec<_> = view.iter_from(view.first_lsn()).filter_map(Result::err).collect();
    assert!(errors.len() == 1 && is_changing(&errors[0]), "{errors:?}");
}

#[test]
fn a_log_that_changes_was_a_damaged_one_for_a_reader() {
    let (log, busy) = recycled();
    let mut reader = LogReader::of(Arc::new(busy.clone())).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().lsn, Lsn(1));
    busy.work(usize::MAX);
    reader.seek(Lsn(15));
    let error = reader.next().unwrap_err();
    assert!(is_changing(&error), "{error}");
    busy.work(0);
    let error = reader.next().unwrap_err();
    assert!(matches!(error, Error::OutOfRange { lsn: Lsn(15), .. }), "{error}");
    reader.seek(log.first_lsn());
    assert_eq!(reader.next().unwrap().unwrap().lsn, log.first_lsn());
}

#[test]
fn a_log_that_changes_was_a_damaged_one_for_a_view_of_streams() {
    let disk = Memory::default();
    let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
    let stream = log.stream(1);
    let append = move || {
        for _ in 0..30 {
            let lsn = stream.append(&[7; 9000]).unwrap();
            stream.truncate_front(Lsn(lsn.0.saturating_sub(8)).max(stream.first_lsn())).unwrap();
        }
    };
    append();
    let busy = Busy::new(&disk, append);
    let view = StreamView::of(Arc::new(busy.clone())).unwrap();
    busy.work(usize::MAX);
    let error = StreamView::of(Arc::new(busy.clone())).unwrap_err();
    assert!(is_changing(&error), "{error}");
    let errors: Vec<_> = view.iter_from(1, view.first_lsn(1)).filter_map(Result::err).collect();
    assert!(errors.len() == 1 && is_changing(&errors[0]), "{errors:?}");
}

#[test]
fn damage_beside_a_busy_writer_is_damage() {
    let disk = Memory::default();
    let log = small().open_storage(Arc::new(disk.clone())).unwrap();
    append(&log, 30);
    let writer = log.clone();
    let busy = Busy::new(&disk, move || assert!(writer.append(b"a record").is_ok()));
    let view = LogView::of(Arc::new(busy.clone())).unwrap();
    let mut reader = LogReader::of(Arc::new(busy.clone())).unwrap();
    let name = disk.names()[0];
    disk.edit(name, |bytes| bytes[4096 + 24] ^= 1);
    busy.work(usize::MAX);
    let expect_damage = |error: Error, at: u64| match error {
        Error::Corrupt { path, offset, .. } => {
            assert_eq!((path, offset), (format!("memory/{name}").into(), at));
        }
        error => panic!("{error}"),
    };
    expect_damage(LogView::of(Arc::new(busy.clone())).unwrap_err(), 4096);
    expect_damage(LogReader::of(Arc::new(busy.clone())).unwrap_err(), 4096);
    expect_damage(reader.next().unwrap_err(), 4096);
    expect_damage(view.iter_from(Lsn(1)).next().unwrap().unwrap_err(), 4096);
}

fn expect_changing(error: Error) {
    assert!(is_changing(&error), "{error}");
}

/// Reads a log as it lies on its medium. An error means that no look has found it.
fn view(path: &Path) -> Result<()> {
    let view = LogView::open(path)?;
    view.iter_from(view.first_lsn()).filter_map(Result::err).for_each(expect_changing);
    if view.has_streams() {
        let view = StreamView::open(path)?;
        view.iter_from(1, view.first_lsn(1)).filter_map(Result::err).for_each(expect_changing);
    }
    Ok(())
}

/// Reads a log in a directory all the time, in each way, while a writer works. Only records that
/// were removed meanwhile may be missing.
fn read_beside(mut write: impl FnMut() + Send, path: &Path) {
    let mut reader = LogReader::open(path).unwrap();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                write();
            }
        });
        let _ends = Ends(&ends);
        let (begun, mut views) = (Instant::now(), 0);
        while begun.elapsed() < TIME || views == 0 {
            match view(path) {
                Ok(()) => views += 1,
                Err(error) => expect_changing(error),
            }
            assert!(views > 0 || begun.elapsed() < LIMIT, "no look has found the log");
            for _ in (0..50).take_while(|_| begun.elapsed() < TIME) {
                let lsn = reader.lsn();
                match reader.next() {
                    Ok(Some(record)) => assert_eq!(record.lsn, lsn),
                    Ok(None) => {}
                    Err(Error::OutOfRange { first, .. }) => reader.seek(first),
                    Err(error) => expect_changing(error),
                }
            }
        }
    });
}

#[test]
fn readers_beside_a_busy_writer_find_no_damage() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    log.append(b"the first").unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let write = || {
        let lsn = log.append(&vec![7; rng.usize(0..20_000)]).unwrap();
        if lsn.0 > log.first_lsn().0 + 20 {
            log.truncate_front(Lsn(lsn.0 - 3)).unwrap();
        }
        if rng.u8(..) < 20 {
            log.truncate_back(lsn).unwrap();
        }
    };
    read_beside(write, dir.path());
}

/// Free segments move between the directories of two logs.
#[test]
fn readers_beside_a_busy_set_find_no_damage() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let set = small().open_set(dir.path()).unwrap();
    let logs = [set.log("one").unwrap(), set.log("two").unwrap()];
    logs[0].append(b"the first").unwrap();
    let write = || {
        for log in &logs {
            append(log, 20);
            log.truncate_front(Lsn(log.next_lsn().0 - 1)).unwrap();
        }
    };
    read_beside(write, &dir.path().join("one"));
}

#[test]
fn readers_beside_busy_streams_find_no_damage() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log: StreamLog = small().open_streams(dir.path()).unwrap();
    let (rests, goes_on) = (log.stream(1), log.stream(2));
    rests.append_all(&[b"a record that is copied".as_slice(); 20]).unwrap();
    let write = || {
        let lsn = goes_on.append(&[9; 3000]).unwrap();
        if lsn.0 % 50 == 0 {
            goes_on.truncate_front(lsn).unwrap();
        }
    };
    read_beside(write, dir.path());
}
