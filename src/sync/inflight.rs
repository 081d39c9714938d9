//! Counts operations in flight without a shared cache line. All threads of a file share the gate.
//!
//! Each operation increments a per-thread counter on its own cache line. An operation that needs
//! the file alone (`set_len`, `close`) shuts the gate and sums all counters.
//!
//! Memory order: an operation increments its counter, then loads the gate. The exclusive side
//! stores the gate, then loads the counters. Both are sequentially consistent, so at least one side
//! sees the other.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::{CachePadded, Condvar, Mutex, OnceLock, enlist, thread_number};
use std::array;
use std::task::Waker;

/// The counters of a block. The first thread that needs a block makes it, so that a file of few
/// threads stays small.
const BLOCK: usize = if cfg!(loom) { 2 } else { 64 };

/// `DrainGate::made` has one bit for each block. Threads beyond all counters share some: correct,
/// only slower.
const BLOCKS: usize = if cfg!(loom) { 2 } else { 64 };

type Shard = CachePadded<AtomicU64>;

/// A gate that lets operations pass, and drains them for an exclusive one.
#[derive(Debug)]
pub struct DrainGate {
    blocks: [OnceLock<Box<[Shard; BLOCK]>>; BLOCKS],
    /// A bit for each block that exists. An operation has seen the bit of its block before it loads
    /// the gate. The exclusive side loads the bits after it shut the gate, so it misses no relevant
    /// block.
    made: AtomicU64,
    shut: AtomicBool,
    /// The wakers to call when the gate opens.
    lock: Mutex<Vec<Waker>>,
    changed: Condvar,
}

/// An operation in flight. It ends on drop.
#[derive(Debug)]
pub struct InFlightGuard<'a> {
    gate: &'a DrainGate,
    shard: &'a Shard,
}

/// An operation in flight. It ends when the caller [gives it back](DrainGate::leave).
#[derive(Debug)]
#[must_use = "the operation is in flight until it leaves"]
pub(crate) struct InFlightTicket {
    /// Identifies its counter.
    number: usize,
}

/// Exclusive use of the file: no operation begins until it is dropped.
#[derive(Debug)]
pub struct ExclusiveGuard<'a>(&'a DrainGate);

impl Default for DrainGate {
    fn default() -> Self {
        Self {
            blocks: array::from_fn(|_| OnceLock::default()),
            made: AtomicU64::new(0),
            shut: AtomicBool::new(false),
            lock: Mutex::default(),
            changed: Condvar::default(),
        }
    }
}

impl DrainGate {
    /// Begins an operation; waits while the gate is shut.
    pub fn enter(&self) -> InFlightGuard<'_> {
        let shard = self.shard(thread_number());
        while !self.count_in(shard) {
            let mut held = self.lock.lock();
            while self.shut.load(SeqCst) {
                held = self.changed.wait(held);
            }
        }
        InFlightGuard { gate: self, shard }
    }

    /// Begins an operation, unless the gate is shut.
    pub(crate) fn try_pass(&self) -> Option<InFlightGuard<'_>> {
        let shard = self.shard(thread_number());
        // Lazy: a refused guard must not exist, since its drop would decrement.
        self.count_in(shard).then(|| InFlightGuard { gate: self, shard })
    }

    /// Like `try_pass`, for an operation that ends elsewhere.
    pub(crate) fn try_enter(&self) -> Option<InFlightTicket> {
        let number = thread_number();
        self.count_in(self.shard(number)).then(|| InFlightTicket { number })
    }

    /// Ends an operation that began with [`try_enter`](Self::try_enter) of this gate.
    pub(crate) fn leave(&self, ticket: InFlightTicket) {
        self.count_out(self.shard(ticket.number));
        std::mem::forget(ticket);
    }

    /// Calls `waker` once, when the gate opens. Returns false, without a call, if the gate is open.
    pub(crate) fn wake_when_open(&self, waker: &Waker) -> bool {
        // The lock keeps the gate from opening in between.
        let mut waiting = self.lock.lock();
        let is_shut = self.shut.load(SeqCst);
        if is_shut {
            enlist(&mut waiting, waker);
        }
        is_shut
    }

    /// Shuts the gate and waits until every operation has ended. One caller at a time.
    pub fn shut(&self) -> ExclusiveGuard<'_> {
        let mut held = self.lock.lock();
        while self.shut.swap(true, SeqCst) {
            held = self.changed.wait(held);
        }
        while self.in_flight() > 0 {
            held = self.changed.wait(held);
        }
        ExclusiveGuard(self)
    }

    /// Increments the counter. Returns whether the gate was open, and undoes it if not.
    fn count_in(&self, shard: &Shard) -> bool {
        shard.fetch_add(1, SeqCst);
        let is_open = !self.shut.load(SeqCst);
        if !is_open {
            self.count_out(shard);
        }
        is_open
    }

    fn count_out(&self, shard: &Shard) {
        shard.fetch_sub(1, SeqCst);
        if self.shut.load(SeqCst) {
            drop(self.lock.lock());
            self.changed.notify_all();
        }
    }

    fn in_flight(&self) -> u64 {
        // Operations that come and go meanwhile found the gate shut, and did nothing. The sum may
        // mix counts of different moments. An operation that passed stays in its counter until it
        // ends.
        let made = self.made.load(SeqCst);
        let blocks = self.blocks.iter().enumerate().filter(|(block, _)| made & (1 << block) != 0);
        let shards = blocks.flat_map(|(_, block)| block.get().expect("made").iter());
        shards.map(|shard| shard.load(SeqCst)).sum()
    }

    /// The counter of a thread. A lookup of an existing one writes nothing.
    fn shard(&self, number: usize) -> &Shard {
        let block = number / BLOCK % BLOCKS;
        let shards =
            self.blocks[block].get_or_init(|| Box::new(array::from_fn(|_| Shard::default())));
        if self.made.load(SeqCst) & (1 << block) == 0 {
            self.made.fetch_or(1 << block, SeqCst);
        }
        &shards[number % BLOCK]
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.gate.count_out(self.shard);
    }
}

impl Drop for InFlightTicket {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "an operation that never ends");
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.0.lock.lock();
        self.0.shut.store(false, SeqCst);
        let waiting = std::mem::take(&mut *held);
        drop(held);
        self.0.changed.notify_all();
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicI64, AtomicUsize};
    use std::sync::{Arc, Barrier};
    use std::task::Wake;
    use std::time::Duration;

    #[test]
    fn no_operation_runs_beside_the_exclusive_holder() {
        let gate = DrainGate::default();
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
    fn an_exclusive_holder_waits_for_the_operations_inside() {
        let gate = DrainGate::default();
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
    fn threads_that_live_at_one_time_share_no_counter() {
        const THREADS: usize = 3 * BLOCK;
        let gate = DrainGate::default();
        let all_inside = Barrier::new(THREADS);
        let enter = || {
            let pass = gate.enter();
            all_inside.wait();
            assert_eq!(pass.shard.load(SeqCst), 1);
            std::ptr::from_ref(pass.shard).addr() / 128
        };
        let lines: HashSet<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(enter)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(lines.len(), THREADS);
        assert_eq!(gate.in_flight(), 0);
    }

    #[test]
    fn a_file_has_counters_only_for_the_threads_that_use_it() {
        let gate = DrainGate::default();
        drop(gate.enter());
        drop(gate.enter());
        assert_eq!(gate.blocks.iter().filter(|block| block.get().is_some()).count(), 1);
        assert_eq!(gate.made.load(SeqCst).count_ones(), 1);
    }

    #[test]
    fn more_threads_than_counters_are_counted_all_the_same() {
        let gate = DrainGate::default();
        let shard = gate.shard(5);
        assert!(gate.count_in(shard));
        assert_eq!(std::ptr::from_ref(gate.shard(5 + BLOCK * BLOCKS)), std::ptr::from_ref(shard));
        assert_ne!(std::ptr::from_ref(gate.shard(5 + BLOCK)), std::ptr::from_ref(shard));
        assert_eq!(gate.in_flight(), 1);
    }

    /// Counts its wakes.
    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn an_operation_that_must_not_wait_is_refused_and_woken() {
        let gate = DrainGate::default();
        let bell = Arc::<Bell>::default();
        assert!(!gate.wake_when_open(&bell.clone().into()), "open");
        let alone = gate.shut();
        assert!(gate.try_enter().is_none());
        assert!(gate.wake_when_open(&bell.clone().into()));
        assert_eq!(bell.0.load(SeqCst), 0);
        drop(alone);
        assert_eq!(bell.0.load(SeqCst), 1);
        let ticket = gate.try_enter().expect("open");
        assert_eq!(gate.in_flight(), 1);
        gate.leave(ticket);
        assert_eq!(gate.in_flight(), 0);
        drop(gate.shut());
        assert_eq!(bell.0.load(SeqCst), 1, "once");
    }

    /// The defect: while the gate stayed shut, each ring of a queue's bell added the waker again.
    #[test]
    fn a_queue_that_rang_often_piled_up_wakers_at_the_gate() {
        let gate = DrainGate::default();
        let bell = Arc::<Bell>::default();
        let waker = bell.clone().into();
        let alone = gate.shut();
        (0..100).for_each(|_| assert!(gate.wake_when_open(&waker)));
        drop(alone);
        assert_eq!(bell.0.load(SeqCst), 1);
    }

    #[test]
    fn a_refused_operation_does_not_leave() {
        let gate = DrainGate::default();
        let alone = gate.shut();
        assert!(gate.try_pass().is_none() && gate.try_enter().is_none());
        drop(alone);
        assert_eq!(gate.in_flight(), 0);
        assert!(gate.try_pass().is_some());
        assert_eq!(gate.in_flight(), 0);
    }

    #[test]
    fn an_operation_may_end_in_another_thread() {
        let gate = DrainGate::default();
        let ticket = gate.try_enter().expect("open");
        std::thread::scope(|scope| drop(scope.spawn(|| gate.leave(ticket))));
        drop(gate.shut());
    }

    #[test]
    #[should_panic(expected = "never ends")]
    #[cfg(debug_assertions)]
    fn a_stay_that_is_lost_is_found() {
        drop(DrainGate::default().try_enter());
    }
}

/// Models: every interleaving of a few threads (see `scripts/loom`).
#[cfg(all(test, loom))]
mod loom_models {
    use super::DrainGate;
    use crate::sync::{Condvar, Mutex, explore};
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Arc;
    use std::task::Wake;

    /// A file with shared readers and one exclusive writer. Loom reports concurrent exclusive
    /// access.
    #[derive(Default)]
    struct Guarded {
        gate: DrainGate,
        file: UnsafeCell<()>,
    }

    impl Guarded {
        fn enter(&self) {
            let _pass = self.gate.enter();
            self.file.with(drop);
        }

        /// Reads long enough for other threads to run.
        fn enter_for_long(&self) {
            let _pass = self.gate.enter();
            let _looking = self.file.get();
            thread::yield_now();
        }

        fn try_enter(&self) -> bool {
            let Some(ticket) = self.gate.try_enter() else { return false };
            self.file.with(drop);
            self.gate.leave(ticket);
            true
        }

        /// Waits for a wake, not at the gate.
        fn enter_when_woken(&self) {
            while !self.try_enter() {
                let bell = Arc::<Bell>::default();
                if self.gate.wake_when_open(&bell.clone().into()) {
                    bell.wait();
                }
            }
        }

        fn shut(&self) {
            let _alone = self.gate.shut();
            self.file.with_mut(drop);
        }
    }

    /// A sleeper's condition. Loom reports a thread that sleeps forever.
    #[derive(Default)]
    struct Bell {
        has_rung: Mutex<bool>,
        rings: Condvar,
    }

    impl Bell {
        fn wait(&self) {
            let mut has_rung = self.has_rung.lock();
            while !*has_rung {
                has_rung = self.rings.wait(has_rung);
            }
        }
    }

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            *self.has_rung.lock() = true;
            self.rings.notify_all();
        }
    }

    fn beside(guarded: &Arc<Guarded>, act: fn(&Guarded)) -> thread::JoinHandle<()> {
        let guarded = guarded.clone();
        thread::spawn(move || act(&guarded))
    }

    /// A gate whose counters exist.
    fn used() -> Arc<Guarded> {
        let guarded = Arc::<Guarded>::default();
        guarded.enter();
        guarded
    }

    #[test]
    fn loom_no_operation_runs_beside_the_exclusive_holder() {
        explore(3, || {
            let guarded = used();
            let others = [beside(&guarded, Guarded::enter), beside(&guarded, Guarded::shut)];
            guarded.enter();
            guarded.enter();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    #[test]
    fn loom_counters_just_made_are_not_missed() {
        explore(2, || {
            let guarded = Arc::<Guarded>::default();
            let others =
                [beside(&guarded, Guarded::enter_for_long), beside(&guarded, Guarded::shut)];
            guarded.enter_for_long();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    #[test]
    fn loom_two_who_want_the_file_alone_have_it_in_turn() {
        explore(4, || {
            let guarded = used();
            let others = [beside(&guarded, Guarded::shut), beside(&guarded, Guarded::shut)];
            guarded.enter();
            others.into_iter().for_each(|other| other.join().unwrap());
            guarded.shut();
        });
    }

    #[test]
    fn loom_no_exclusive_holder_beside_one_who_did_not_wait() {
        explore(4, || {
            let guarded = used();
            let other = beside(&guarded, Guarded::shut);
            guarded.try_enter();
            guarded.try_enter();
            other.join().unwrap();
            assert!(guarded.try_enter(), "nobody has the file alone any more");
        });
    }

    #[test]
    fn loom_a_refused_operation_is_woken() {
        explore(3, || {
            let guarded = used();
            let others = [beside(&guarded, Guarded::shut), beside(&guarded, Guarded::shut)];
            guarded.enter_when_woken();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }
}
