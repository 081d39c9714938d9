//! Threads that perform calls beside the caller, so that the members of a volume work in parallel.
//! Shared by all users of the volume.
//!
//! A caller with several calls offers them to all pool threads. It also performs them itself, one
//! by one, while some are not taken. So no caller waits for a call that has not begun. Without pool
//! threads the caller performs all calls in order.

use crate::sync::{Condvar, JoinHandle, Mutex, spawn};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A pool of threads.
pub(super) struct ThreadPool {
    offers: Arc<Offers>,
    threads: Mutex<Vec<JoinHandle>>,
    threads_max: usize,
}

/// The batches that pool threads may take.
#[derive(Default)]
struct Offers {
    open: Mutex<OpenBatches>,
    changed: Condvar,
}

#[derive(Default)]
struct OpenBatches {
    batches: VecDeque<Arc<dyn Batch>>,
    ends: bool,
}

/// Calls for which a caller waits.
trait Batch: Send + Sync {
    /// Performs the next call that no thread has taken. False if there is none.
    fn perform_next(&self) -> bool;
}

pub(super) type PoolJob<R> = Box<dyn FnOnce() -> R + Send>;

struct Calls<R> {
    state: Mutex<BatchState<R>>,
    ended: Condvar,
}

struct BatchState<R> {
    /// The calls with their numbers, in reverse order, since threads take them from the end.
    left: Vec<(usize, PoolJob<R>)>,
    results: Vec<Option<std::thread::Result<R>>>,
}

impl ThreadPool {
    /// A pool of at most `threads_max` threads, started on demand.
    pub fn new(threads_max: usize) -> Self {
        Self { offers: Arc::default(), threads: Mutex::new(Vec::new()), threads_max }
    }

    /// Performs all calls, and returns their results in the same order.
    pub fn all<R: Send + 'static>(&self, mut calls: Vec<PoolJob<R>>) -> Vec<R> {
        if calls.len() < 2 || self.threads_max == 0 {
            return calls.into_iter().map(|call| call()).collect();
        }
        let beside = calls.len() - 1;
        let results = calls.iter().map(|_| None).collect();
        let left = calls.drain(..).enumerate().rev().collect();
        let calls = Arc::new(Calls {
            state: Mutex::new(BatchState { left, results }),
            ended: Condvar::default(),
        });
        self.offer(&calls, beside);
        while calls.perform_next() {}
        self.offers.withdraw(&calls);
        calls
            .await_all()
            .into_iter()
            .map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    }

    /// Ends the threads and joins them. No caller may have calls left.
    pub fn end(&self) {
        self.offers.open.lock().ends = true;
        self.offers.changed.notify_all();
        std::mem::take(&mut *self.threads.lock()).into_iter().for_each(JoinHandle::join);
    }

    fn offer<R: Send + 'static>(&self, calls: &Arc<Calls<R>>, count: usize) {
        self.start_threads();
        let mut open = self.offers.open.lock();
        for _ in 0..count.min(self.threads_max) {
            open.batches.push_back(calls.clone());
        }
        drop(open);
        self.offers.changed.notify_all();
    }

    fn start_threads(&self) {
        let mut threads = self.threads.lock();
        while threads.len() < self.threads_max {
            let offers = self.offers.clone();
            match spawn("dioxide-member", move || offers.serve()) {
                Ok(thread) => threads.push(thread),
                // The callers perform the rest.
                Err(_) => return,
            }
        }
    }
}

impl Offers {
    fn serve(&self) {
        while let Some(batch) = self.next() {
            batch.perform_next();
        }
    }

    fn next(&self) -> Option<Arc<dyn Batch>> {
        let mut open = self.open.lock();
        loop {
            if let Some(batch) = open.batches.pop_front() {
                return Some(batch);
            }
            if open.ends {
                return None;
            }
            open = self.changed.wait(open);
        }
    }

    /// Removes a batch without calls left. Pool threads that a stalled member blocks would leave it
    /// here.
    fn withdraw<R: Send + 'static>(&self, calls: &Arc<Calls<R>>) {
        let taken = Arc::as_ptr(calls).cast::<()>();
        self.open.lock().batches.retain(|batch| Arc::as_ptr(batch).cast() != taken);
    }
}

impl<R> Calls<R> {
    fn await_all(&self) -> Vec<std::thread::Result<R>> {
        let mut state = self.state.lock();
        while state.results.iter().any(Option::is_none) {
            state = self.ended.wait(state);
        }
        state.results.drain(..).flatten().collect()
    }
}

impl<R: Send> Batch for Calls<R> {
    fn perform_next(&self) -> bool {
        let Some((number, call)) = self.state.lock().left.pop() else { return false };
        let result = catch_unwind(AssertUnwindSafe(call));
        self.state.lock().results[number] = Some(result);
        self.ended.notify_all();
        true
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("threads_max", &self.threads_max).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn numbers(count: usize) -> Vec<PoolJob<usize>> {
        (0..count).map(|number| Box::new(move || number) as PoolJob<usize>).collect()
    }

    #[test]
    fn results_come_in_the_order_of_the_calls() {
        for threads in 0..3 {
            let pool = ThreadPool::new(threads);
            for count in 0..5 {
                assert_eq!(pool.all(numbers(count)), (0..count).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn calls_run_at_the_same_time() {
        let pool = ThreadPool::new(2);
        let barrier = Arc::new(Barrier::new(3));
        let meet = |barrier: Arc<Barrier>| {
            Box::new(move || {
                barrier.wait();
            }) as PoolJob<()>
        };
        // It hangs if one call waits for the other.
        pool.all((0..3).map(|_| meet(barrier.clone())).collect());
    }

    #[test]
    fn many_callers_share_the_threads() {
        let pool = ThreadPool::new(2);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for count in 0..200 {
                        assert_eq!(pool.all(numbers(count % 6)).len(), count % 6);
                    }
                });
            }
        });
    }

    #[test]
    fn nothing_is_left_on_offer_while_all_threads_are_held_up() {
        let pool = ThreadPool::new(1);
        // For the caller, the pool thread and the test; twice.
        let barrier = Arc::new(Barrier::new(3));
        let meet = |barrier: Arc<Barrier>| {
            Box::new(move || {
                barrier.wait();
                barrier.wait();
            }) as PoolJob<()>
        };
        std::thread::scope(|scope| {
            scope.spawn(|| pool.all(vec![meet(barrier.clone()), meet(barrier.clone())]));
            barrier.wait();
            for _ in 0..100 {
                pool.all(numbers(3));
            }
            let left = pool.offers.open.lock().batches.len();
            barrier.wait();
            assert_eq!(left, 0);
        });
    }

    /// Otherwise the child of a fork would wait forever when it drops a volume that its parent
    /// closed.
    #[test]
    fn a_pool_that_has_ended_leaves_no_thread_to_wait_for() {
        let pool = ThreadPool::new(2);
        pool.all(numbers(3));
        assert_eq!(pool.threads.lock().len(), 2);
        pool.end();
        assert!(pool.threads.lock().is_empty());
    }

    #[test]
    fn a_panic_reaches_the_caller_after_the_others_have_ended() {
        let pool = ThreadPool::new(1);
        let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = ended.clone();
        let calls: Vec<PoolJob<()>> = vec![
            Box::new(|| panic!("on purpose")),
            Box::new(move || flag.store(true, std::sync::atomic::Ordering::SeqCst)),
        ];
        assert!(catch_unwind(AssertUnwindSafe(|| pool.all(calls))).is_err());
        assert!(ended.load(std::sync::atomic::Ordering::SeqCst));
        assert_eq!(pool.all(numbers(3)), [0, 1, 2]);
    }
}

/// Models: every interleaving of callers and pool threads.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::explore;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    /// Calls that count themselves.
    fn counted(count: &Arc<AtomicUsize>) -> Vec<PoolJob<usize>> {
        let call = |number: usize| {
            let count = count.clone();
            Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
                number
            }) as PoolJob<usize>
        };
        (0..2usize).map(call).collect()
    }

    /// No thread waits forever, no call runs twice, and the pool thread ends with its last user.
    #[test]
    fn loom_two_callers_share_one_hand() {
        explore(2, || {
            let (pool, count) = (Arc::new(ThreadPool::new(1)), Arc::new(AtomicUsize::new(0)));
            let (other, calls) = (pool.clone(), counted(&count));
            let beside = loom::thread::spawn(move || other.all(calls));
            assert_eq!(pool.all(counted(&count)), [0, 1]);
            assert_eq!(beside.join().expect("no call panics"), [0, 1]);
            assert_eq!(count.load(Ordering::Relaxed), 4);
        });
    }

    /// The caller withdraws its batch before it goes on. A late pool thread finds nothing.
    #[test]
    fn loom_a_pool_ends_while_a_thread_comes_late() {
        explore(2, || {
            let (pool, count) = (ThreadPool::new(1), Arc::new(AtomicUsize::new(0)));
            assert_eq!(pool.all(counted(&count)), [0, 1]);
            assert!(pool.offers.open.lock().batches.is_empty());
            pool.end();
            assert_eq!(count.load(Ordering::Relaxed), 2);
        });
    }
}
