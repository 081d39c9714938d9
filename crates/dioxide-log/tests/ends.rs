//! How a log ends: closed, dropped, failed, or left to a child.

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{Durability, Error, LogOptions, Lsn};
use dioxide_testkit::fork::holds_in_a_fork;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::pin::Pin;
use std::process;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

/// The thread that made segments ahead still worked when the next writer opened the log.
#[test]
fn a_closed_log_has_no_thread_that_changes_it() {
    let dir = tempfile::tempdir_in(".").unwrap();
    for _ in 0..50 {
        let log = small().spare_segments(0).open(dir.path()).unwrap();
        for _ in 0..30 {
            log.append(&[1; 3000]).unwrap();
        }
        log.truncate_front(log.next_lsn()).unwrap();
        log.close().unwrap();
        assert!(!dir.path().join("unfinished").exists(), "a segment is being made");
        let log = small().open(dir.path()).unwrap();
        log.append(b"a record").unwrap();
        log.close().unwrap();
    }
}

/// The second call returned at once, while the log was still locked.
#[test]
fn each_close_returns_when_the_log_is_closed() {
    let dir = tempfile::tempdir_in(".").unwrap();
    for _ in 0..50 {
        let log = small().open(dir.path()).unwrap();
        log.append(b"a record").unwrap();
        let closes = [log.clone(), log].map(|log| {
            let path = dir.path().to_owned();
            thread::spawn(move || {
                log.close().unwrap();
                match small().open(path) {
                    // By the other thread, which was faster.
                    Err(Error::Locked { .. }) => false,
                    opened => opened.unwrap().append(b"another").is_ok(),
                }
            })
        });
        assert!(closes.map(|close| close.join().unwrap()).contains(&true));
    }
}

/// A child that dropped its copy of the log unlocked that of its parent, or waited for ever.
#[test]
fn a_child_of_a_fork_does_not_close_the_log() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    log.append(b"before").unwrap();
    let mut shared = Some(log);
    assert!(holds_in_a_fork(|| {
        drop(shared.take());
        true
    }));
    assert!(matches!(small().open(dir.path()), Err(Error::Locked { .. })));
    shared.as_ref().unwrap().append(b"after").unwrap();
    shared.take().unwrap().close().unwrap();
    assert_eq!(small().open(dir.path()).unwrap().last_lsn(), Some(Lsn(2)));
}

/// Whether `work` holds in a child that is the first process of a PID namespace. True where the
/// system permits none.
fn holds_in_a_namespace(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the call changes only where the children of this process are.
    match unsafe { unshare_unsafe(UnshareFlags::NEWPID) } {
        Ok(()) => holds_in_a_fork(|| process::id() == 1 && work()),
        Err(_) => true,
    }
}

/// A parent and a child were the same by their number.
#[test]
fn a_child_with_the_number_of_its_parent_does_not_close_the_log() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let parent = || {
        let mut shared = Some(small().open(dir.path()).unwrap());
        let child = || {
            drop(shared.take());
            true
        };
        assert!(holds_in_a_namespace(child));
        let log = shared.take().unwrap();
        log.append(b"after").unwrap();
        matches!(small().open(dir.path()), Err(Error::Locked { .. }))
    };
    assert!(holds_in_a_fork(|| holds_in_a_namespace(parent)));
}

/// Drops what it holds when it is woken.
struct Holder<T>(Mutex<Option<T>>);

impl<T: Send> Wake for Holder<T> {
    fn wake(self: Arc<Self>) {
        let held = self.0.lock().unwrap().take();
        drop(held);
    }
}

/// The thread of the log that woke the task waited for itself.
#[test]
fn a_task_may_drop_the_log_when_it_is_woken() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open(dir.path()).unwrap();
    let mut follower = log.follow(Lsn(1));
    let mut next = Box::pin(follower.next_async());
    let holder = Arc::new(Holder(Mutex::new(Some(log.clone()))));
    let waker = Waker::from(holder);
    assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(log.append_async(b"a record"));
    drop(log);
    // The log is closed once the lock is free.
    while matches!(small().open(dir.path()), Err(Error::Locked { .. })) {
        thread::yield_now();
    }
    assert_eq!(small().open(dir.path()).unwrap().last_lsn(), Some(Lsn(1)));
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("by a waker, as it should");
    }
}

/// The thread that woke it ended. Later records waited for ever, and so did the close.
#[test]
fn a_waker_that_panics_ends_no_thread_of_the_log() {
    let log = small().open_storage(Arc::new(Memory::default())).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    let mut follower = log.follow(Lsn(1));
    let mut next = Box::pin(follower.next_async());
    assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    for lsn in 1..=20 {
        let mut append = Box::pin(log.append_async(&[1; 900]));
        let _ = append.as_mut().poll(&mut Context::from_waker(&waker));
        while log.stable_lsn() <= Lsn(lsn) {
            thread::yield_now();
        }
    }
    drop(next);
    log.close().unwrap();
}

/// The call returned at once, while the frame of the same front was still in flight.
#[test]
fn a_front_that_another_thread_sets_is_stable_on_return() {
    for seed in 0..100 {
        let disk = Memory::default();
        let log = small().open_storage(Arc::new(disk.clone())).unwrap();
        for _ in 0..20 {
            log.append(b"a record").unwrap();
        }
        for lsn in 2..20 {
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        log.truncate_front(Lsn(lsn)).unwrap();
                        let after = disk.after_power_cut(seed);
                        let after = small().open_storage(Arc::new(after)).unwrap();
                        assert_eq!(after.first_lsn(), Lsn(lsn));
                    });
                }
            });
        }
    }
}

/// Each poll of a follower was remembered until the next record.
#[test]
fn a_follower_is_remembered_once() {
    let log = small().open_storage(Arc::new(Memory::default())).unwrap();
    let held = Arc::new(());
    let holder = Arc::new(Holder(Mutex::new(Some(held.clone()))));
    let mut follower = log.follow(Lsn(1));
    let poll = |follower: &mut dioxide_log::Follow| {
        let waker = Waker::from(holder.clone());
        let next: Pin<&mut dyn Future<Output = _>> = std::pin::pin!(follower.next_async());
        assert!(next.poll(&mut Context::from_waker(&waker)).is_pending());
    };
    for _ in 0..100 {
        poll(&mut follower);
    }
    assert_eq!(Arc::strong_count(&holder), 2, "this function, and the log");
    drop(follower);
    assert_eq!(Arc::strong_count(&holder), 1);
    log.append(b"a record").unwrap();
    assert_eq!(Arc::strong_count(&held), 2, "nothing was woken");
}

/// The kernel reports a failed flush once, so the second one succeeded.
#[test]
fn no_sync_succeeds_after_one_that_failed() {
    let disk = Memory::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"a record").unwrap();
    disk.set_faults(Faults { failed_call: Some(disk.calls() + 1), ..Faults::default() });
    assert!(matches!(log.sync(), Err(Error::System { .. })));
    assert!(matches!(log.sync(), Err(Error::Failed(_))));
    assert_eq!(log.stable_lsn(), Lsn(1));
    assert!(log.close().is_err());
}

/// They returned none, as after a close.
#[test]
fn followers_took_a_failure_for_a_close() {
    let disk = Memory::default();
    let log = small().open_storage(Arc::new(disk.clone())).unwrap();
    let (mut follower, mut task) = (log.follow(Lsn(1)), log.follow(Lsn(1)));
    let waiting = thread::spawn(move || follower.next().map(drop));
    let context = &mut Context::from_waker(Waker::noop());
    let mut next = Box::pin(task.next_async());
    assert!(next.as_mut().poll(context).is_pending());
    disk.set_faults(Faults { failed_call: Some(disk.calls() + 1), ..Faults::default() });
    log.append(b"a record").unwrap_err();
    assert!(matches!(waiting.join().unwrap(), Err(Error::Failed(_))));
    assert!(matches!(next.as_mut().poll(context), Poll::Ready(Err(Error::Failed(_)))));
    drop(next);
    log.close().unwrap_err();
    assert!(matches!(task.next(), Err(Error::Failed(_))));
}
