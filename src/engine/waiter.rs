//! Blocks a caller until it gets a task, for itself and others, or its outcome.

use super::core::{LeaderTask, Outcome, Request};
use super::token::Token;
use crate::rules::flush::Turn;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, futex, thread_local, yield_now};
use std::cell::RefCell;
use std::sync::Arc;

/// How often a caller yields before it sleeps, if it waits for no flush. A thread that is ready to
/// run often completes its operation, and a sleep with its wake-up costs more than a yield.
const YIELDS_MAX: u32 = if cfg!(loom) { 1 } else { 8 };

const NOTHING: u32 = 0;
const ASLEEP: u32 = 1;
const NEWS: u32 = 2;

/// The state of a blocked caller. One operation at a time.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    state: AtomicU32,
    slot: Mutex<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    work: Vec<Task>,
    outcome: Option<Outcome>,
}

/// Work for a caller, for itself and others.
#[derive(Debug)]
pub(super) enum Task {
    Request(Request<Token>),
    /// A flush that waited for its turn.
    Flush(Turn, Request<Token>),
    Lead(LeaderTask),
}

/// The reason of a wake-up.
#[derive(Debug)]
pub(super) enum News {
    Work(Task),
    Done(Outcome),
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Returns the waiter of the calling thread, for its next operation; a new one while it ends.
pub(super) fn mine() -> Arc<Waiter> {
    thread_local!(static MINE: RefCell<Arc<Waiter>> = RefCell::default());
    let own = MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        // Another thread may be about to drop the request of the last operation.
        if Arc::strong_count(&mine) > 1 {
            *mine = Arc::default();
        }
        // The last operation's wake-up may have come after its outcome was taken.
        mine.state.store(NOTHING, Ordering::Relaxed);
        mine.clone()
    });
    own.unwrap_or_default()
}

impl Waiter {
    /// Gives the caller a task.
    pub fn assign(&self, task: Task) {
        self.slot.lock().work.push(task);
        self.wake();
    }

    /// Ends the operation.
    pub fn finish(&self, outcome: Outcome) {
        self.slot.lock().outcome = Some(outcome);
        self.wake();
    }

    fn wake(&self) {
        if self.state.swap(NEWS, Ordering::AcqRel) == ASLEEP {
            futex::wake(&self.state);
        }
    }

    /// Waits for a task or the outcome; tasks first, since others wait for them. A caller that
    /// waits for a flush sleeps at once: a flush takes long.
    pub fn next(&self, durable: bool) -> News {
        loop {
            if let Some(news) = self.take() {
                return news;
            }
            self.sleep(if durable { 0 } else { YIELDS_MAX });
        }
    }

    fn take(&self) -> Option<News> {
        let mut slot = self.slot.lock();
        match slot.work.pop() {
            Some(task) => Some(News::Work(task)),
            None => slot.outcome.take().map(News::Done),
        }
    }

    fn sleep(&self, yields: u32) {
        for _ in 0..yields {
            if self.state.load(Ordering::Acquire) != NOTHING {
                break;
            }
            yield_now();
        }
        if self.state.compare_exchange(NOTHING, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            while self.state.load(Ordering::Acquire) == ASLEEP {
                futex::wait(&self.state, ASLEEP);
            }
        }
        self.state.store(NOTHING, Ordering::Release);
    }
}

/// Every interleaving of a few threads (see `scripts/loom`).
#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::explore;
    use loom::thread;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn call(news: News) -> LeaderTask {
        match news {
            News::Work(Task::Lead(call)) => call,
            _ => panic!("no call"),
        }
    }

    fn outcome(news: News) -> Outcome {
        match news {
            News::Done(outcome) => outcome,
            News::Work(_) => panic!("work behind the outcome"),
        }
    }

    /// Runs `act` on the waiter in another thread, which then drops it.
    fn beside(waiter: &Arc<Waiter>, act: fn(&Waiter)) -> thread::JoinHandle<()> {
        let waiter = waiter.clone();
        thread::spawn(move || act(&waiter))
    }

    #[test]
    fn loom_work_comes_before_the_outcome_that_follows_it() {
        for durable in [false, true] {
            explore(None, move || {
                let me = mine();
                let other = beside(&me, |waiter| {
                    waiter.assign(Task::Lead(LeaderTask::Extend));
                    waiter.finish(Ok(7));
                });
                assert_eq!(call(me.next(durable)), LeaderTask::Extend);
                assert_eq!(outcome(me.next(durable)), Ok(7));
                other.join().unwrap();
            });
        }
    }

    #[test]
    fn loom_no_work_of_two_is_lost() {
        for durable in [false, true] {
            explore(4, move || {
                let me = mine();
                let others = [
                    beside(&me, |waiter| waiter.assign(Task::Lead(LeaderTask::Extend))),
                    beside(&me, |waiter| waiter.assign(Task::Lead(LeaderTask::Flush))),
                ];
                let calls = [call(me.next(durable)), call(me.next(durable))];
                assert!(calls.contains(&LeaderTask::Extend) && calls.contains(&LeaderTask::Flush));
                me.finish(Ok(0));
                assert_eq!(outcome(me.next(durable)), Ok(0));
                others.into_iter().for_each(|other| other.join().unwrap());
            });
        }
    }

    #[test]
    fn loom_the_next_operation_gets_no_news_of_the_last() {
        let reused = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let counts = reused.clone();
        explore(5, move || {
            let first = mine();
            let last = beside(&first, |waiter| waiter.finish(Ok(1)));
            assert_eq!(outcome(first.next(true)), Ok(1));
            let was = Arc::as_ptr(&first);
            drop(first);
            let second = mine();
            counts[usize::from(Arc::as_ptr(&second) == was)].fetch_add(1, Relaxed);
            let next = beside(&second, |waiter| {
                waiter.assign(Task::Lead(LeaderTask::Flush));
                waiter.finish(Ok(2));
            });
            assert_eq!(call(second.next(true)), LeaderTask::Flush);
            assert_eq!(outcome(second.next(true)), Ok(2));
            last.join().unwrap();
            next.join().unwrap();
        });
        assert!(
            reused.iter().all(|count| count.load(Relaxed) > 0),
            "both a waiter used again and another one"
        );
    }
}
