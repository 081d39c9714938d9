//! Blocks a caller until it gets a task, for itself and others, or its outcome.

use super::core::{LeaderTask, Outcome, Request};
use super::token::Token;
use crate::rules::flush::Turn;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{CachePadded, Mutex, futex, thread_local, thread_number, yield_now};
use std::cell::RefCell;
use std::sync::Arc;

/// How often a caller yields before it sleeps, if it waits for no flush. A thread that is ready to
/// run often completes its operation, and a sleep with its wake-up costs more than a yield.
const YIELDS_MAX: u32 = if cfg!(loom) { 1 } else { 8 };

/// The state of a waiter is one of these; or, while it sleeps, the mask of its wake-up.
const NOTHING: u32 = 0;
const NEWS: u32 = u32::MAX;

/// A mask has one bit for the thread, and one for the group in which its operation goes out.
const THREAD_BITS: u32 = 28;
const GROUP_BITS: u32 = u32::BITS - THREAD_BITS;
const THREADS: u32 = u32::MAX >> GROUP_BITS;

/// So many threads of a group are woken as one: few of the others sleep meanwhile.
const WOKEN_APART_MAX: usize = 4;

/// The sleeping threads of a file. One system call wakes all of a group.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// The futex on which they sleep. It counts the wake-ups.
    wakeups: CachePadded<AtomicU32>,
}

/// The threads to wake, once each has its news.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    masks: u32,
    threads: usize,
}

/// The state of a blocked caller. One operation at a time.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    state: AtomicU32,
    slot: Mutex<NewsSlot>,
    sleepers: Arc<Sleepers>,
}

#[derive(Debug, Default)]
struct NewsSlot {
    tasks: Vec<Task>,
    outcome: Option<Outcome>,
}

/// Work for a caller, for itself and others.
#[derive(Debug)]
pub(super) enum Task {
    Request(Request<Token>),
    /// A flush of a queue that waited for its turn.
    Flush(Turn, Request<Token>),
    Lead(LeaderTask),
}

/// The reason of a wake-up.
#[derive(Debug)]
pub(super) enum News {
    Task(Task),
    Done(Outcome),
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Returns the waiter of the calling thread, for its next operation, on a file with these sleepers;
/// a new one while the thread ends.
pub(super) fn mine(sleepers: &Arc<Sleepers>) -> Arc<Waiter> {
    thread_local!(static MINE: RefCell<Arc<Waiter>> = RefCell::default());
    let own = MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        // Another thread may be about to drop the request of the last operation.
        if Arc::strong_count(&mine) > 1 {
            *mine = Waiter::of(sleepers);
        } else if !Arc::ptr_eq(&mine.sleepers, sleepers) {
            match Arc::get_mut(&mut mine) {
                Some(waiter) => waiter.sleepers = sleepers.clone(),
                None => *mine = Waiter::of(sleepers),
            }
        }
        // The last operation's wake-up may have come after its outcome was taken.
        mine.state.store(NOTHING, Ordering::Relaxed);
        mine.clone()
    });
    own.unwrap_or_else(|_| Waiter::of(sleepers))
}

impl Sleepers {
    /// Wakes threads that sleep here, and maybe others.
    pub fn wake(&self, wakeup: Wakeup) {
        if wakeup.masks == 0 {
            return;
        }
        let masks = match wakeup.threads {
            ..=WOKEN_APART_MAX => wakeup.masks & THREADS,
            _ => wakeup.masks & !THREADS,
        };
        self.wakeups.fetch_add(1, Ordering::Release);
        futex::wake(&self.wakeups, masks);
    }

    /// Sleeps with the mask, while it is the state.
    fn sleep(&self, state: &AtomicU32, mask: u32) {
        loop {
            let wakeups = self.wakeups.load(Ordering::Acquire);
            if state.load(Ordering::Acquire) != mask {
                break;
            }
            futex::wait(&self.wakeups, wakeups, mask);
        }
    }
}

impl Waiter {
    fn of(sleepers: &Arc<Sleepers>) -> Arc<Self> {
        Arc::new(Self { sleepers: sleepers.clone(), ..Self::default() })
    }

    /// Gives the caller a task.
    pub fn assign(&self, task: Task) {
        self.slot.lock().tasks.push(task);
        let mut wakeup = Wakeup::default();
        self.has_news(&mut wakeup);
        self.sleepers.wake(wakeup);
    }

    /// Ends the operation. The caller wakes its thread.
    pub fn finish(&self, outcome: Outcome, wakeup: &mut Wakeup) {
        self.slot.lock().outcome = Some(outcome);
        self.has_news(wakeup);
    }

    /// Ends the operation, and wakes its thread.
    #[cfg(test)]
    pub fn answer(&self, outcome: Outcome) {
        let mut wakeup = Wakeup::default();
        self.finish(outcome, &mut wakeup);
        self.sleepers.wake(wakeup);
    }

    fn has_news(&self, wakeup: &mut Wakeup) {
        let mask = self.state.swap(NEWS, Ordering::AcqRel);
        if ![NOTHING, NEWS].contains(&mask) {
            wakeup.masks |= mask;
            wakeup.threads += 1;
        }
    }

    /// Waits for a task or the outcome; tasks first, since others wait for them. A caller that
    /// waits for a flush sleeps at once: a flush takes long. `group` is the number of the group
    /// that its operation joined.
    pub fn next(&self, durable: bool, group: u32) -> News {
        loop {
            if let Some(news) = self.take() {
                return news;
            }
            self.sleep(if durable { 0 } else { YIELDS_MAX }, group);
        }
    }

    fn take(&self) -> Option<News> {
        let mut slot = self.slot.lock();
        match slot.tasks.pop() {
            Some(task) => Some(News::Task(task)),
            None => slot.outcome.take().map(News::Done),
        }
    }

    fn sleep(&self, yields: u32, group: u32) {
        for _ in 0..yields {
            if self.state.load(Ordering::Acquire) != NOTHING {
                break;
            }
            yield_now();
        }
        let thread = thread_number() as u32 % THREAD_BITS;
        let mask = 1 << thread | 1 << (THREAD_BITS + group % GROUP_BITS);
        if self.state.compare_exchange(NOTHING, mask, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.sleepers.sleep(&self.state, mask);
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
            News::Task(Task::Lead(call)) => call,
            _ => panic!("no call"),
        }
    }

    fn outcome(news: News) -> Outcome {
        match news {
            News::Done(outcome) => outcome,
            News::Task(_) => panic!("work behind the outcome"),
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
            explore(4, move || {
                let sleepers = Arc::default();
                let me = mine(&sleepers);
                let other = beside(&me, |waiter| {
                    waiter.assign(Task::Lead(LeaderTask::Extend));
                    waiter.answer(Ok(7));
                });
                assert_eq!(call(me.next(durable, 0)), LeaderTask::Extend);
                assert_eq!(outcome(me.next(durable, 0)), Ok(7));
                other.join().unwrap();
            });
        }
    }

    #[test]
    fn loom_no_work_of_two_is_lost() {
        for durable in [false, true] {
            explore(4, move || {
                let sleepers = Arc::default();
                let me = mine(&sleepers);
                let others = [
                    beside(&me, |waiter| waiter.assign(Task::Lead(LeaderTask::Extend))),
                    beside(&me, |waiter| waiter.assign(Task::Lead(LeaderTask::Flush))),
                ];
                let calls = [call(me.next(durable, 0)), call(me.next(durable, 0))];
                assert!(calls.contains(&LeaderTask::Extend) && calls.contains(&LeaderTask::Flush));
                me.answer(Ok(0));
                assert_eq!(outcome(me.next(durable, 0)), Ok(0));
                others.into_iter().for_each(|other| other.join().unwrap());
            });
        }
    }

    #[test]
    fn loom_the_next_operation_gets_no_news_of_the_last() {
        let reused = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let counts = reused.clone();
        explore(4, move || {
            let sleepers = Arc::default();
            let first = mine(&sleepers);
            let last = beside(&first, |waiter| waiter.answer(Ok(1)));
            assert_eq!(outcome(first.next(true, 0)), Ok(1));
            let was = Arc::as_ptr(&first);
            drop(first);
            let second = mine(&sleepers);
            counts[usize::from(Arc::as_ptr(&second) == was)].fetch_add(1, Relaxed);
            let next = beside(&second, |waiter| {
                waiter.assign(Task::Lead(LeaderTask::Flush));
                waiter.answer(Ok(2));
            });
            assert_eq!(call(second.next(true, 0)), LeaderTask::Flush);
            assert_eq!(outcome(second.next(true, 0)), Ok(2));
            last.join().unwrap();
            next.join().unwrap();
        });
        assert!(
            reused.iter().all(|count| count.load(Relaxed) > 0),
            "both a waiter used again and another one"
        );
    }

    /// Threads of two groups sleep on one word. A wake-up reaches all threads that it is for, one
    /// by one or as groups.
    #[test]
    fn loom_groups_wake_apart_or_together() {
        for (woken_at_once, others) in [(1, 0), (1, WOKEN_APART_MAX), (2, 0), (2, WOKEN_APART_MAX)]
        {
            explore(2, move || {
                let sleepers: Arc<Sleepers> = Arc::default();
                let waiters = [Waiter::of(&sleepers), Waiter::of(&sleepers)];
                let threads = [0, 1].map(|n: usize| {
                    let waiter = waiters[n].clone();
                    thread::spawn(move || outcome(waiter.next(true, n as u32)))
                });
                for waiters in waiters.chunks(woken_at_once) {
                    let mut wakeup = Wakeup { masks: 0, threads: others };
                    waiters.iter().for_each(|waiter| waiter.finish(Ok(3), &mut wakeup));
                    sleepers.wake(wakeup);
                }
                threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(3)));
            });
        }
    }
}
