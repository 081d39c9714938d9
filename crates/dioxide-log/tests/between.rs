//! Calls that another thread makes between two steps of a call.

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::storage::{Mark, Segment, Storage};
use dioxide_log::{Durability, Error, LogOptions, Lsn, Result};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// A call of a log to its disk.
enum Call {
    Publish(Mark),
    Read,
    Release,
    Sync,
}

type Watch = Box<dyn Fn(Call) + Send + Sync>;

/// A disk that shows each call to the test first.
#[derive(Clone, Default)]
struct Watched {
    disk: Memory,
    watch: Arc<OnceLock<Watch>>,
}

impl Watched {
    fn watch(&self, watch: impl Fn(Call) + Send + Sync + 'static) {
        assert!(self.watch.set(Box::new(watch)).is_ok(), "one for each disk");
    }

    fn show(&self, call: Call) {
        if let Some(watch) = self.watch.get() {
            watch(call);
        }
    }

    fn segment(&self, inner: Arc<dyn Segment>) -> Arc<dyn Segment> {
        Arc::new(WatchedSegment { disk: self.clone(), inner })
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Storage for Watched {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        Ok(self.disk.segments()?.into_iter().map(|segment| self.segment(segment)).collect())
    }

    fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>> {
        Ok(self.segment(self.disk.create(bytes)?))
    }

    fn remove(&self, segment: &dyn Segment) -> Result<()> {
        self.disk.remove(segment)
    }

    fn publish(&self, mark: Mark) {
        self.show(Call::Publish(mark));
        self.disk.publish(mark);
    }

    fn release(&self) {
        self.show(Call::Release);
        self.disk.release();
    }
}

#[derive(Debug)]
struct WatchedSegment {
    disk: Watched,
    inner: Arc<dyn Segment>,
}

impl Segment for WatchedSegment {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        self.inner.write(data, offset, durable)
    }

    fn sync(&self) -> Result<()> {
        self.disk.show(Call::Sync);
        self.inner.sync()
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.disk.show(Call::Read);
        self.inner.read(into, offset)
    }
}

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

/// Whether a truncation of the back has begun.
fn is_truncation(call: &Call) -> bool {
    matches!(call, Call::Publish(mark) if mark.truncations == 1)
}

/// The truncation of the back went below the front. Then no record was found, and no open worked.
#[test]
fn a_front_amid_a_truncation_of_the_back_made_the_log_unopenable() {
    for front in [Lsn(8), Lsn(20)] {
        let disk = Watched::default();
        let log = small().open_storage(Arc::new(disk.clone())).unwrap();
        for _ in 1..=9 {
            log.append(b"old").unwrap();
        }
        let (begun, other) = (OnceLock::new(), log.clone());
        disk.watch(move |call| {
            if is_truncation(&call) && begun.set(()).is_ok() {
                let truncating = other.clone();
                // It publishes as well, so this thread does not wait for its end.
                thread::spawn(move || truncating.truncate_front(front).unwrap());
                while other.first_lsn() != front {
                    thread::yield_now();
                }
            }
        });
        log.truncate_back(Lsn(5)).unwrap();
        assert_eq!((log.first_lsn(), log.next_lsn(), log.stable_lsn()), (front, front, front));
        assert_eq!(log.append(b"new").unwrap(), front);
        assert_eq!(log.read(front).unwrap(), Some(b"new".to_vec()));
        let again = small().open_storage(Arc::new(disk.disk.after_kill())).unwrap();
        let records: Vec<_> = again.iter_from(again.first_lsn()).map(Result::unwrap).collect();
        assert_eq!(records, [(front, b"new".to_vec())]);
    }
}

/// The end from before came back, although a flush had raised it meanwhile.
#[test]
fn a_failed_truncation_of_the_back_hid_records_that_were_stable() {
    let disk = Watched::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    for _ in 1..=3 {
        log.append(b"a record").unwrap();
    }
    let (begun, other, faulty) = (OnceLock::new(), log.clone(), disk.disk.clone());
    disk.watch(move |call| {
        if is_truncation(&call) && begun.set(()).is_ok() {
            let (syncing, truncating) = (other.clone(), other.clone());
            thread::spawn(move || syncing.sync().unwrap());
            while other.stable_lsn() != Lsn(2) {
                thread::yield_now();
            }
            let failed_call = Some(faulty.calls() + 1);
            faulty.set_faults(Faults { failed_call, ..Faults::default() });
            thread::spawn(move || truncating.truncate_front(Lsn(2)).unwrap_err());
            // Of a record that is not there.
            while !matches!(other.wait(Lsn(100)), Err(Error::Failed(_))) {
                thread::yield_now();
            }
        }
    });
    assert!(matches!(log.truncate_back(Lsn(2)), Err(Error::Failed(_))));
    assert_eq!(log.stable_lsn(), Lsn(4));
    assert_eq!(log.read(Lsn(3)).unwrap(), Some(b"a record".to_vec()));
}

/// The log was closed while the flush was on its way, which then opened a segment for writing.
#[test]
fn a_flush_came_after_the_close() {
    let disk = Watched::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"a record").unwrap();
    let (begun, other, released) = (OnceLock::new(), log.clone(), Arc::<AtomicBool>::default());
    let has_released = released.clone();
    disk.watch(move |call| match call {
        Call::Sync if begun.set(()).is_ok() => {
            let closing = other.clone();
            thread::spawn(move || closing.close().unwrap());
            // Longer than a close takes that does not wait.
            for _ in 0..200 {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(!has_released.load(SeqCst), "the log is closed");
        }
        Call::Release => has_released.store(true, SeqCst),
        _ => {}
    });
    log.sync().unwrap();
    log.close().unwrap();
    assert!(released.load(SeqCst));
}

/// It returned none, as at the end of the log, because it looked for its record twice.
#[test]
fn a_follower_ended_at_a_truncation() {
    let disk = Watched::default();
    let log = small().open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"a record").unwrap();
    let (begun, other) = (OnceLock::new(), log.clone());
    disk.watch(move |call| {
        if matches!(call, Call::Read) && begun.set(()).is_ok() {
            let truncating = other.clone();
            thread::spawn(move || truncating.truncate_back(Lsn(1)).unwrap()).join().unwrap();
        }
    });
    let mut follower = log.follow(Lsn(1));
    let record = follower.next().unwrap().expect("the log is open");
    assert_eq!((record.lsn, record.payload), (Lsn(1), &b"a record"[..]));
    assert_eq!(log.next_lsn(), Lsn(1));
}
