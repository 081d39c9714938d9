//! The outcome of a batch, for everything that waits for it. One word for all threads that sleep,
//! one for the thread that writes the batch, and the wakers of tasks.

use crate::error::Error;
use crate::locked::locked;
use crate::threads;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

const PENDING: u32 = 0;
const LEAD: u32 = 1;
const DONE: u32 = 2;

/// The reason why a thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The batch has an outcome.
    Done,
    /// The thread must write the batch.
    Lead,
}

/// A batch that is being composed or written.
#[derive(Debug, Default)]
pub struct Ticket {
    /// The likely leader sleeps on it.
    leader: AtomicU32,
    /// All other threads sleep on it.
    others: AtomicU32,
    outcome: OnceLock<Result<(), Error>>,
    wakers: Mutex<Vec<Option<Waker>>>,
}

impl Ticket {
    /// That of a change which needs no write.
    pub fn done() -> Arc<Self> {
        let ticket = Self::default();
        ticket.decide(Ok(()));
        Arc::new(ticket)
    }

    /// The outcome, once there is one.
    pub fn outcome(&self) -> Option<&Result<(), Error>> {
        self.outcome.get()
    }

    /// Sleeps until the batch has an outcome. The likely leader may get the lead instead.
    pub fn wait(&self, is_leader: bool) -> Turn {
        let word = if is_leader { &self.leader } else { &self.others };
        loop {
            match word.load(Acquire) {
                PENDING => atomic_wait::wait(word, PENDING),
                LEAD => return Turn::Lead,
                _ => return Turn::Done,
            }
        }
    }

    /// Gives the lead to the thread that waits as the likely leader. The caller has the lock of
    /// the log, as for [`decide`](Self::decide): the thread gets the lead or an outcome.
    pub fn give_lead(&self) {
        self.leader.store(LEAD, Release);
    }

    /// Wakes the thread that got the lead.
    pub fn wake_leader(&self) {
        atomic_wait::wake_one(&self.leader);
    }

    /// Sets the outcome. A batch whose log failed has one already, which stays.
    pub fn decide(&self, outcome: Result<(), Error>) {
        let _ = self.outcome.set(outcome);
    }

    /// Ends all waits. There is an outcome.
    pub fn wake(&self) {
        // A thread that got the lead must take it, whatever the outcome.
        let _ = self.leader.compare_exchange(PENDING, DONE, Release, Relaxed);
        atomic_wait::wake_one(&self.leader);
        self.others.store(DONE, Release);
        atomic_wait::wake_all(&self.others);
        let wakers = std::mem::take(&mut *locked(&self.wakers));
        threads::wake(wakers.into_iter().flatten());
    }

    /// Polls for the outcome. `place` is that of the task's waker, once it has one.
    pub fn poll(&self, context: &mut Context<'_>, place: &mut Option<usize>) -> Poll<()> {
        if self.outcome.get().is_some() {
            return Poll::Ready(());
        }
        let mut wakers = locked(&self.wakers);
        // There is an outcome before `wake` takes the wakers.
        if self.outcome.get().is_some() {
            return Poll::Ready(());
        }
        let waker = Some(context.waker().clone());
        match *place {
            Some(place) => wakers[place] = waker,
            None => {
                *place = Some(wakers.len());
                wakers.push(waker);
            }
        }
        Poll::Pending
    }

    /// Forgets the waker of a task that waits no longer.
    pub fn forget(&self, place: usize) {
        // Without a wait, as in a child of a fork there may be no thread to unlock.
        if let Ok(mut wakers) = self.wakers.try_lock()
            && let Some(waker) = wakers.get_mut(place)
        {
            *waker = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flush failed after the lead was given. The thread did not take it, and all others waited.
    #[test]
    fn a_lead_is_taken_even_if_the_batch_has_failed() {
        let ticket = Ticket::default();
        ticket.give_lead();
        ticket.decide(Err(Error::Closed));
        ticket.wake();
        assert_eq!((ticket.wait(true), ticket.wait(false)), (Turn::Lead, Turn::Done));
        let failed = Ticket::default();
        failed.decide(Err(Error::Closed));
        failed.wake();
        assert_eq!((failed.wait(true), failed.wait(false)), (Turn::Done, Turn::Done));
    }
}
