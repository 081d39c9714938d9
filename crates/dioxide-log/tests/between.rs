//! Calls that another thread makes between two steps of a call.

#[path = "common/hooked.rs"]
mod hooked;

use dioxide_log::storage::Storage;
use dioxide_log::storage::memory::Faults;
use dioxide_log::{Durability, Error, Log, LogOptions, Lsn, Record};
use hooked::{Call, Hooked, await_that};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

/// A log of nine records.
fn nine(disk: &Hooked) -> Log {
    let log = small().open_storage(Arc::new(disk.clone())).unwrap();
    for _ in 1..=9 {
        log.append(b"old").unwrap();
    }
    log
}

/// Whether a truncation of the back has begun.
fn is_truncation(call: &Call) -> bool {
    matches!(call, Call::Publish(mark) if mark.truncations == 1)
}

/// The truncation of the back went below the front. Then no record was found, and no open worked.
#[test]
fn a_front_amid_a_truncation_of_the_back_made_the_log_unopenable() {
    for front in [Lsn(8), Lsn(20)] {
        let disk = Hooked::default();
        let log = nine(&disk);
        let (begun, other) = (OnceLock::new(), log.clone());
        disk.hook(move |call| {
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
    let disk = Hooked::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    for _ in 1..=3 {
        log.append(b"a record").unwrap();
    }
    let (begun, other, faulty) = (OnceLock::new(), log.clone(), disk.disk.clone());
    disk.hook(move |call| {
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
    let disk = Hooked::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"a record").unwrap();
    let (begun, other, released) = (OnceLock::new(), log.clone(), Arc::<AtomicBool>::default());
    let has_released = released.clone();
    disk.hook(move |call| match call {
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

/// The flush opened it, and its failure ended the log.
#[test]
fn a_flush_met_a_segment_that_was_removed() {
    let disk = Hooked::default();
    let options = small().durability(Durability::OnSync).spare_segments(0);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    log.append(&[1; 40_000]).unwrap();
    let (begun, other) = (OnceLock::new(), log.clone());
    disk.hook(move |call| {
        if call == Call::Sync && begun.set(()).is_ok() {
            let other = other.clone();
            let frees = move || {
                let last = other.append(&[1; 40_000]).unwrap();
                // The next segment is made ahead, so the one that is being flushed is surplus.
                await_that(|| other.stats().free_segments == 1);
                other.truncate_front(last).unwrap();
            };
            thread::spawn(frees).join().unwrap();
            // Longer than a removal takes that does not wait.
            for _ in 0..200 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    log.sync().unwrap();
    await_that(|| log.stats().free_segments == 1);
}

/// It returned none, as at the end of the log, because it looked for its record twice.
#[test]
fn a_follower_ended_at_a_truncation() {
    let disk = Hooked::default();
    let log = small().open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"a record").unwrap();
    let (begun, other) = (OnceLock::new(), log.clone());
    disk.hook(move |call| {
        if matches!(call, Call::Read(_)) && begun.set(()).is_ok() {
            let truncating = other.clone();
            thread::spawn(move || truncating.truncate_back(Lsn(1)).unwrap()).join().unwrap();
        }
    });
    let mut follower = log.follow(Lsn(1));
    let record = follower.next().unwrap().expect("the log is open");
    assert_eq!((record.lsn, record.payload), (Lsn(1), &b"a record"[..]));
    assert_eq!(log.next_lsn(), Lsn(1));
}

/// It read on behind the last record that stays, where the old ones still lay.
#[test]
fn an_iterator_returned_records_that_were_removed() {
    let disk = Hooked::default();
    let log = nine(&disk);
    let (iter, in_hook) = (Arc::new(Mutex::new(log.iter_from(Lsn(1)))), Arc::new(OnceLock::new()));
    let (behind, begun) = (iter.clone(), in_hook.clone());
    disk.hook(move |call| {
        if is_truncation(&call) && begun.set(()).is_ok() {
            assert_eq!(behind.lock().unwrap().by_ref().count(), 4);
        }
    });
    log.truncate_back(Lsn(5)).unwrap();
    assert!(in_hook.get().is_some());
    log.append(b"new").unwrap();
    let mut iter = iter.lock().unwrap();
    let record = Some(Record { lsn: Lsn(5), payload: b"new" });
    assert_eq!(iter.next().unwrap(), record);
}

/// The wait led an empty batch, which wrote the last block again.
#[test]
fn a_wait_for_a_record_that_is_being_removed_wrote() {
    let disk = Hooked::default();
    let log = nine(&disk);
    let (begun, other, writes) = (OnceLock::new(), log.clone(), Arc::new(AtomicU64::new(0)));
    let written = writes.clone();
    disk.hook(move |call| {
        written.fetch_add(u64::from(matches!(call, Call::Write(_))), SeqCst);
        if is_truncation(&call) && begun.set(()).is_ok() {
            let waiting = other.clone();
            let wait = thread::spawn(move || waiting.wait(Lsn(9)).unwrap());
            while !wait.is_finished() && written.load(SeqCst) == 0 {
                thread::yield_now();
            }
        }
    });
    log.truncate_back(Lsn(5)).unwrap();
    assert_eq!(writes.load(SeqCst), 1);
}

/// A front above it was on its way, in the same batch. It failed, and the record was lost.
#[test]
fn a_wait_returned_before_a_record_was_written() {
    let disk = Hooked::default();
    let log = small().open_storage(Arc::new(disk.clone())).unwrap();
    let (writes, other, faulty) = (AtomicU64::new(0), log.clone(), disk.disk.clone());
    disk.hook(move |call| {
        if !matches!(call, Call::Write(_)) {
            return;
        }
        if writes.fetch_add(1, SeqCst) > 0 {
            let failed_call = Some(faulty.calls() + 1);
            return faulty.set_faults(Faults { failed_call, ..Faults::default() });
        }
        // The write of the first record is in flight.
        assert_eq!(other.submit(b"second").unwrap(), Lsn(2));
        let truncating = other.clone();
        thread::spawn(move || truncating.truncate_front(Lsn(3)).unwrap_err());
        while other.first_lsn() != Lsn(3) {
            thread::yield_now();
        }
    });
    log.append(b"first").unwrap();
    assert!(log.wait(Lsn(2)).is_err());
}

/// The log was closed amid the truncation, which did not publish that it was given up.
#[test]
fn a_close_amid_a_truncation_of_the_back_left_its_mark() {
    for _ in 0..50 {
        let disk = Hooked::default();
        let log = nine(&disk);
        let (begun, other) = (OnceLock::new(), log.clone());
        disk.hook(move |call| {
            if is_truncation(&call) && begun.set(()).is_ok() {
                let closing = other.clone();
                thread::spawn(move || closing.close().unwrap());
                while other.truncate_front(Lsn(1)).is_ok() {
                    thread::yield_now();
                }
            }
        });
        assert!(matches!(log.truncate_back(Lsn(5)), Err(Error::Closed)));
        log.close().unwrap();
        assert_eq!(disk.disk.mark().unwrap().expect("it was published").next, Lsn(10));
    }
}
