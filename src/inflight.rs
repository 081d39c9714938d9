//! Operations in flight, counted without a shared cache line. Shared by all threads of a file.
//!
//! Whoever reads or writes counts itself in one of many counters, each on a cache line of its own;
//! whoever needs the file to itself (`set_len`, `close`) shuts the gate and pays for adding them all up.
//!
//! The order that makes it safe: an operation first counts itself, then looks at the gate; the other side
//! first shuts the gate, then looks at the counters. Both are sequentially consistent, so at least one
//! of the two sees the other.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::{Condvar, Mutex, thread_local};

/// More than the threads that run at one moment on most machines; two that share a counter are correct,
/// only slower.
const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };

/// 128 bytes: two cache lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

/// See the module.
#[derive(Debug)]
pub struct Gate {
    shards: Box<[Shard]>,
    shut: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

/// An operation in flight; it ends when this is dropped.
#[derive(Debug)]
pub struct Pass<'a> {
    gate: &'a Gate,
    shard: &'a Shard,
}

/// The file to oneself; until dropped, no operation begins.
#[derive(Debug)]
pub struct Alone<'a>(&'a Gate);

impl Default for Gate {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            shut: AtomicBool::new(false),
            lock: Mutex::new(()),
            changed: Condvar::default(),
        }
    }
}

impl Gate {
    /// Begins an operation; waits while somebody has the file alone.
    pub fn enter(&self) -> Pass<'_> {
        let shard = &self.shards[thread_number() % SHARDS];
        loop {
            shard.0.fetch_add(1, SeqCst);
            let pass = Pass { gate: self, shard };
            if !self.shut.load(SeqCst) {
                return pass;
            }
            drop(pass);
            let mut held = self.lock.lock();
            while self.shut.load(SeqCst) {
                held = self.changed.wait(held);
            }
        }
    }

    /// Waits until every operation has ended, and keeps new ones out. One at a time.
    pub fn shut(&self) -> Alone<'_> {
        let mut held = self.lock.lock();
        while self.shut.swap(true, SeqCst) {
            held = self.changed.wait(held);
        }
        while self.in_flight() > 0 {
            held = self.changed.wait(held);
        }
        Alone(self)
    }

    fn in_flight(&self) -> u64 {
        // Operations that come and go meanwhile found the gate shut, and did nothing. A sum may mix counts of
        // different moments, but an operation that got through is in its counter until it ends.
        self.shards.iter().map(|shard| shard.0.load(SeqCst)).sum()
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.shard.0.fetch_sub(1, SeqCst);
        if self.gate.shut.load(SeqCst) {
            drop(self.gate.lock.lock());
            self.gate.changed.notify_all();
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let held = self.0.lock.lock();
        self.0.shut.store(false, SeqCst);
        drop(held);
        self.0.changed.notify_all();
    }
}

/// A small number for the calling thread, so that threads spread over the counters.
fn thread_number() -> usize {
    use std::sync::atomic::AtomicUsize;
    #[cfg(not(loom))]
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Every execution of a model counts from 0.
    #[cfg(loom)]
    loom::lazy_static!(static ref NEXT: AtomicUsize = AtomicUsize::new(0););
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, SeqCst));
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI64;
    use std::time::Duration;

    #[test]
    fn nobody_is_inside_while_another_is_alone() {
        let gate = Gate::default();
        let inside = AtomicI64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let _pass = gate.enter();
                        inside.fetch_add(1, SeqCst);
                        inside.fetch_sub(1, SeqCst);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let _alone = gate.shut();
                        assert_eq!(inside.fetch_sub(1000, SeqCst), 0);
                        inside.fetch_add(1000, SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn whoever_wants_to_be_alone_waits_for_those_inside() {
        let gate = Gate::default();
        let left = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let pass = gate.enter();
            scope.spawn(|| {
                let _alone = gate.shut();
                assert!(left.load(SeqCst));
            });
            std::thread::sleep(Duration::from_millis(50));
            left.store(true, SeqCst);
            drop(pass);
        });
    }

    #[test]
    fn counters_do_not_share_cache_lines() {
        assert_eq!(size_of::<Shard>(), 128);
    }
}

/// Every order of steps of a few threads (see `scripts/loom`).
#[cfg(all(test, loom))]
mod loom_models {
    use super::Gate;
    use crate::sync::explore;
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Arc;

    /// A file that many may look at, and one may change alone. Loom reports who does so beside another.
    #[derive(Default)]
    struct Guarded {
        gate: Gate,
        file: UnsafeCell<()>,
    }

    impl Guarded {
        fn enter(&self) {
            let _pass = self.gate.enter();
            self.file.with(drop);
        }

        fn shut(&self) {
            let _alone = self.gate.shut();
            self.file.with_mut(drop);
        }
    }

    fn beside(guarded: &Arc<Guarded>, act: fn(&Guarded)) -> thread::JoinHandle<()> {
        let guarded = guarded.clone();
        thread::spawn(move || act(&guarded))
    }

    #[test]
    fn loom_nobody_is_inside_while_another_is_alone() {
        explore(3, || {
            let guarded = Arc::<Guarded>::default();
            let others = [beside(&guarded, Guarded::enter), beside(&guarded, Guarded::shut)];
            guarded.enter();
            guarded.enter();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    #[test]
    fn loom_two_who_want_the_file_alone_have_it_in_turn() {
        explore(4, || {
            let guarded = Arc::<Guarded>::default();
            let others = [beside(&guarded, Guarded::shut), beside(&guarded, Guarded::shut)];
            guarded.enter();
            others.into_iter().for_each(|other| other.join().unwrap());
            guarded.shut();
        });
    }
}
