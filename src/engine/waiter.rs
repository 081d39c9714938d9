//! Where a blocked caller waits: for work it is to do for itself and others, and for its outcome.

use super::core::{Call, Outcome, Request};
use super::token::Token;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, futex, thread_local, yield_now};
use std::cell::RefCell;
use std::sync::Arc;

/// How often a caller that waits for no flush lets others run before it goes to sleep. What it
/// waits for is often done by a thread that is ready to run, and a sleep and its wake-up cost more
/// than a turn.
const YIELDS_MAX: u32 = if cfg!(loom) { 1 } else { 8 };

const NOTHING: u32 = 0;
const ASLEEP: u32 = 1;
const NEWS: u32 = 2;

/// See the module. One operation at a time.
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

/// What a caller is to do for itself and others.
#[derive(Debug)]
pub(super) enum Task {
    Request(Request<Token>),
    Call(Call),
}

/// What a caller is woken for.
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

/// The calling thread's own, for its next operation; while the thread ends, any.
pub(super) fn mine() -> Arc<Waiter> {
    thread_local!(static MINE: RefCell<Arc<Waiter>> = RefCell::default());
    let own = MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        // Somebody may still be about to drop the request of the last operation.
        if Arc::strong_count(&mine) > 1 {
            *mine = Arc::default();
        }
        // Whoever woke the last operation may have done so when its outcome was taken already.
        mine.state.store(NOTHING, Ordering::Relaxed);
        mine.clone()
    });
    own.unwrap_or_default()
}

impl Waiter {
    /// Gives the caller something to do.
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

    /// Waits for work or the outcome; work first, since others wait for it. A flush takes long:
    /// whoever waits for one sleeps at once.
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

/// Every order of steps of a few threads (see `scripts/loom`).
#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::explore;
    use loom::thread;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn call(news: News) -> Call {
        match news {
            News::Work(Task::Call(call)) => call,
            _ => panic!("no call"),
        }
    }

    fn outcome(news: News) -> Outcome {
        match news {
            News::Done(outcome) => outcome,
            News::Work(_) => panic!("work behind the outcome"),
        }
    }

    /// Does something to the waiter in another thread, which gives it up then.
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
                    waiter.assign(Task::Call(Call::Extend));
                    waiter.finish(Ok(7));
                });
                assert_eq!(call(me.next(durable)), Call::Extend);
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
                    beside(&me, |waiter| waiter.assign(Task::Call(Call::Extend))),
                    beside(&me, |waiter| waiter.assign(Task::Call(Call::Flush))),
                ];
                let calls = [call(me.next(durable)), call(me.next(durable))];
                assert!(calls.contains(&Call::Extend) && calls.contains(&Call::Flush));
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
                waiter.assign(Task::Call(Call::Flush));
                waiter.finish(Ok(2));
            });
            assert_eq!(call(second.next(true)), Call::Flush);
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
