//! Where a blocked caller waits: for work it is to do for itself and others, and for its outcome.

use super::core::{Call, Outcome, Request};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, futex, yield_now};
use std::cell::RefCell;
use std::sync::Arc;

/// How often a caller that waits for no flush lets others run before it goes to sleep. What it waits for is often done
/// by a thread that is ready to run, and a sleep and its wake-up cost more than a turn.
const YIELDS_MAX: u32 = 8;

const NOTHING: u32 = 0;
const ASLEEP: u32 = 1;
const NEWS: u32 = 2;

/// A caller's operation, as the core knows it.
pub(super) type Token = Arc<Waiter>;

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
pub(super) enum News {
    Work(Task),
    Done(Outcome),
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// The calling thread's own, for its next operation.
pub(super) fn mine() -> Token {
    thread_local!(static MINE: RefCell<Token> = RefCell::default());
    MINE.with_borrow_mut(|mine| {
        // Somebody may still be about to drop the request of the last operation.
        if Arc::strong_count(mine) > 1 {
            *mine = Token::default();
        }
        mine.clone()
    })
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

    /// Waits for work or the outcome; work first, since others wait for it. A flush takes long: whoever waits for one
    /// sleeps at once.
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
        if self.state.compare_exchange(NOTHING, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            while self.state.load(Ordering::Acquire) == ASLEEP {
                futex::wait(&self.state, ASLEEP);
            }
        }
        self.state.store(NOTHING, Ordering::Release);
    }
}
