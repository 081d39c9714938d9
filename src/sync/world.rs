//! Simulated time and a scheduler for the threads that share it. One thread runs at a time. When it
//! yields, the scheduler draws the next one from a seed. So a run is repeatable, however the system
//! schedules it.
//!
//! A thread yields where it waits: for a lock, a condition, a futex, another thread or simulated
//! time. It also yields on request, and sometimes before it takes a lock. When no thread can run,
//! time jumps to the earliest deadline.
//!
//! Threads that were not started here take no part. They wait as the system does, for each other
//! and for short locks that they share with worlds.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The rate of preemptions before a lock: one in this many.
const PREEMPTED_ONE_IN: u64 = 4;

/// The most simulated time of one turn, so that sleepers wake between the turns of others.
const TURN_MAX_NANOS: u64 = 2_000;

thread_local!(static HERE: RefCell<Option<WorldTask>> = const { RefCell::new(None) });

/// A thread of a world.
#[derive(Clone, Debug)]
pub(crate) struct WorldTask {
    world: Arc<World>,
    id: usize,
}

/// The state that the threads of a world share.
#[derive(Debug)]
struct World {
    state: Mutex<WorldState>,
}

#[derive(Debug)]
struct WorldState {
    seed: u64,
    random: fastrand::Rng,
    now_nanos: u64,
    tasks: Vec<WorldEntry>,
    running: usize,
    /// The addresses of the locks that tasks hold.
    held: HashSet<usize>,
    digest: u64,
    /// The main thread has panicked: waiting threads wait forever.
    broken: bool,
    /// A panic with which the run ends, whatever else happens.
    found: Option<Box<dyn Any + Send>>,
}

#[derive(Debug)]
struct WorldEntry {
    turn: Arc<Condvar>,
    status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ready,
    /// Until a wake of this address.
    Waiting(usize),
    /// Until this time, in nanoseconds.
    Asleep(u64),
    /// Until a wake of this address, at most until this time.
    WaitingUntil(usize, u64),
    Ended,
}

/// The result of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorldResult {
    pub elapsed: Duration,
    /// A digest of all events, in order.
    pub digest: u64,
}

/// A thread of this world that can be joined.
#[derive(Debug)]
pub(crate) struct WorldThread<T> {
    id: usize,
    result: Arc<Mutex<Option<std::thread::Result<T>>>>,
}

/// The seeds of a test: `count`, or the part that `DIOXIDE_SHARE` asks for.
#[cfg(test)]
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let share = std::env::var("DIOXIDE_SHARE").ok().and_then(|share| share.parse().ok());
    0..(count / share.unwrap_or(1)).max(1)
}

/// Runs `main`, and the threads that it spawns, to their end.
///
/// # Panics
///
/// With the first panic that was [found](WorldTask::found), or that of `main`; and if all threads
/// wait for each other. The panic of a thread is found if its handle is dropped.
pub(crate) fn run<R>(seed: u64, main: impl FnOnce() -> R) -> (R, WorldResult) {
    assert!(current().is_none(), "a world inside a world");
    let state = WorldState {
        seed,
        random: fastrand::Rng::with_seed(seed),
        now_nanos: 0,
        tasks: vec![WorldEntry { turn: Arc::default(), status: Status::Ready }],
        running: 0,
        held: HashSet::new(),
        digest: seed,
        broken: false,
        found: None,
    };
    let me = WorldTask { world: Arc::new(World { state: Mutex::new(state) }), id: 0 };
    HERE.set(Some(me.clone()));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let result = main();
        // Remaining threads may spawn more.
        let mut id = 1;
        while id < me.tasks() {
            me.join(id);
            id += 1;
        }
        result
    }));
    HERE.set(None);
    let mut state = me.state();
    match state.found.take().map_or(result, Err) {
        Ok(result) => {
            let elapsed = Duration::from_nanos(state.now_nanos);
            (result, WorldResult { elapsed, digest: state.digest })
        }
        Err(panic) => {
            state.broken = true;
            drop(state);
            resume_unwind(panic)
        }
    }
}

/// The task of the calling thread, if it belongs to a world.
pub(crate) fn current() -> Option<WorldTask> {
    // Other thread-locals may be dropped after `HERE`.
    HERE.try_with(|here| here.borrow().clone()).ok().flatten()
}

/// Runs `work` as if the calling thread were in no world.
pub(crate) fn outside<R>(work: impl FnOnce() -> R) -> R {
    struct Back(Option<WorldTask>);
    impl Drop for Back {
        fn drop(&mut self) {
            HERE.set(self.0.take());
        }
    }
    let _back = Back(HERE.take());
    work()
}

impl WorldTask {
    fn state(&self) -> MutexGuard<'_, WorldState> {
        self.world.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of tasks started, the main one included.
    fn tasks(&self) -> usize {
        self.state().tasks.len()
    }

    /// Simulated time since the world began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.state().now_nanos)
    }

    /// Adds an event to the digest. The same seed must repeat it.
    pub fn note(&self, what: u64) {
        self.state().note(what);
    }

    /// Records a panic that must not unwind the current code.
    pub fn found(&self, panic: Box<dyn Any + Send>) {
        self.state().found.get_or_insert(panic);
    }

    /// Lets other tasks run.
    pub fn yield_now(&self) {
        self.give_way(Status::Ready);
    }

    /// Sleeps in simulated time.
    pub fn sleep(&self, nanos: u64) {
        let until = self.state().now_nanos + nanos;
        self.give_way(Status::Asleep(until));
    }

    /// Waits for a wake of `address`.
    pub fn wait(&self, address: usize) {
        self.give_way(Status::Waiting(address));
    }

    /// Waits for a wake of `address`, at most until this time.
    pub fn wait_until(&self, address: usize, until: Duration) {
        self.give_way(Status::WaitingUntil(address, until.as_nanos() as u64));
    }

    /// Wakes the tasks that wait for `address`.
    pub fn wake(&self, address: usize) {
        self.state().wake(address);
    }

    /// Yields at random, like a preempted thread.
    pub fn may_be_preempted(&self) {
        let preempted = self.state().random.u64(..PREEMPTED_ONE_IN) == 0;
        if preempted {
            self.yield_now();
        }
    }

    /// Records that a task took the lock at this address.
    pub fn took(&self, lock: usize) {
        self.state().held.insert(lock);
    }

    /// Records that a task released the lock at this address, and wakes its waiters.
    pub fn gave_back(&self, lock: usize) {
        let mut state = self.state();
        state.held.remove(&lock);
        state.wake(lock);
    }

    /// Returns whether a task holds the lock at this address.
    pub fn is_held(&self, lock: usize) -> bool {
        self.state().held.contains(&lock)
    }

    /// Starts one more task.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<WorldThread<T>> {
        let id = {
            let mut state = self.state();
            state.tasks.push(WorldEntry { turn: Arc::default(), status: Status::Ready });
            state.tasks.len() - 1
        };
        let new = Self { world: self.world.clone(), id };
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let body = move || {
            HERE.set(Some(new.clone()));
            new.await_turn(new.state());
            let result = catch_unwind(AssertUnwindSafe(work));
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            // Without a joiner the result is dropped here, and not in parallel with other tasks.
            let left = Arc::into_inner(place).map(Mutex::into_inner);
            match left.and_then(|left| left.unwrap_or_else(PoisonError::into_inner)) {
                Some(Err(panic)) => new.found(panic),
                other => drop(other),
            }
            HERE.set(None);
            new.end();
        };
        // The status marks the end of the task: the thread itself may live a little longer.
        std::thread::Builder::new().name(name.into()).spawn(body).inspect_err(|_| {
            self.state().tasks[id].status = Status::Ended;
        })?;
        Ok(WorldThread { id, result })
    }

    /// Waits until a task has ended.
    fn join(&self, id: usize) {
        while self.state().tasks[id].status != Status::Ended {
            self.wait(ended(id));
        }
    }

    fn end(&self) {
        let mut state = self.state();
        state.wake(ended(self.id));
        state.tasks[self.id].status = Status::Ended;
        self.pass_on(&mut state);
    }

    /// Passes the turn on, and returns when this task gets it back.
    fn give_way(&self, status: Status) {
        let mut state = self.state();
        state.tasks[self.id].status = status;
        self.pass_on(&mut state);
        self.await_turn(state);
    }

    /// Draws the next task to run.
    fn pass_on(&self, state: &mut WorldState) {
        state.now_nanos += state.random.u64(..TURN_MAX_NANOS);
        let next = state.draw().or_else(|| {
            let asleep = state.tasks.iter().filter_map(|entry| match entry.status {
                Status::Asleep(until) | Status::WaitingUntil(_, until) => Some(until),
                _ => None,
            });
            state.now_nanos = asleep.min()?;
            state.draw()
        });
        let Some(next) = next else {
            if state.tasks.iter().any(|entry| entry.status != Status::Ended) && !state.broken {
                self.dead_lock(state);
            }
            return;
        };
        state.tasks[next].status = Status::Ready;
        state.running = next;
        state.note(next as u64);
        if next != self.id {
            state.tasks[next].turn.notify_one();
        }
    }

    fn await_turn(&self, mut state: MutexGuard<'_, WorldState>) {
        let turn = state.tasks[self.id].turn.clone();
        while state.running != self.id || state.broken {
            if state.broken && self.id == 0 {
                drop(state);
                assert!(!std::thread::panicking(), "waits for ever while it unwinds");
                panic!("all threads of the simulation wait for one another");
            }
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reports a deadlock: the main thread panics, the others stay blocked.
    fn dead_lock(&self, state: &mut WorldState) {
        // The main thread may not get to report it: the values that it drops while unwinding may
        // also wait.
        eprintln!(
            "simulation of seed {}: all threads wait for one another: {:?}",
            state.seed, state.tasks
        );
        state.broken = true;
        state.tasks[0].turn.notify_one();
    }
}

/// The address on which joiners of a task wait. No lock has it.
fn ended(id: usize) -> usize {
    usize::MAX - id
}

impl WorldState {
    fn draw(&mut self) -> Option<usize> {
        let now = self.now_nanos;
        let can_go_on = |entry: &WorldEntry| match entry.status {
            Status::Ready => true,
            Status::Asleep(until) | Status::WaitingUntil(_, until) => until <= now,
            Status::Waiting(_) | Status::Ended => false,
        };
        let count = self.tasks.iter().filter(|entry| can_go_on(entry)).count();
        let drawn = if count > 0 { self.random.usize(..count) } else { return None };
        self.tasks
            .iter()
            .enumerate()
            .filter(|(_, entry)| can_go_on(entry))
            .nth(drawn)
            .map(|(id, _)| id)
    }

    fn wake(&mut self, address: usize) {
        let waits_for_it = |entry: &&mut WorldEntry| match entry.status {
            Status::Waiting(on) | Status::WaitingUntil(on, _) => on == address,
            Status::Ready | Status::Asleep(_) | Status::Ended => false,
        };
        self.tasks.iter_mut().filter(waits_for_it).for_each(|entry| entry.status = Status::Ready);
    }

    fn note(&mut self, what: u64) {
        let mixed = (self.digest ^ what).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        self.digest = mixed ^ self.now_nanos;
    }
}

impl<T> WorldThread<T> {
    /// Waits until the thread has ended, and returns its result or its panic.
    ///
    /// # Panics
    ///
    /// Outside of the world.
    pub fn join(self) -> Result<T, Box<dyn Any + Send>> {
        current().expect("only the threads of a simulation can wait for one another").join(self.id);
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.take().expect("a thread that ended left its result")
    }
}

impl<T> Drop for WorldThread<T> {
    /// A panic that is not taken ends the run, unless this thread unwinds already.
    fn drop(&mut self) {
        let left = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(panic)) = left
            && let Some(task) = current()
            && !std::thread::panicking()
        {
            task.found(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Condvar, Mutex, yield_now};
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> WorldThread<T> {
        current().expect("in a world").spawn("test", work).expect("a thread")
    }

    /// The observations of some threads that take a lock in turn, and the digest.
    fn race(seed: u64) -> (Vec<u64>, WorldResult) {
        run(seed, || {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..4)
                .map(|id| {
                    let seen = seen.clone();
                    spawn(move || {
                        for _ in 0..5 {
                            let mut seen = seen.lock();
                            current().unwrap().sleep(100);
                            seen.push(id);
                            drop(seen);
                            yield_now();
                        }
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            seen.lock().clone()
        })
    }

    #[test]
    fn the_same_seed_gives_the_same_run_and_others_do_not() {
        let runs: Vec<_> = (0..20).map(race).collect();
        let digests: HashSet<_> = runs.iter().map(|(_, ended)| ended.digest).collect();
        assert_eq!(digests.len(), 20);
        let orders: HashSet<_> = runs.iter().map(|(seen, _)| seen.clone()).collect();
        assert!(orders.len() > 15, "{}", orders.len());
        for (seed, run) in runs.iter().enumerate() {
            assert_eq!(race(seed as u64), *run);
        }
    }

    #[test]
    fn time_passes_only_where_it_is_waited_for() {
        let ((), ended) = run(1, || {
            let slow = spawn(|| current().unwrap().sleep(3_000_000_000));
            let quick = spawn(|| current().unwrap().sleep(1_000_000));
            quick.join().unwrap();
            assert!(current().unwrap().now() < Duration::from_millis(2));
            slow.join().unwrap();
        });
        assert!(ended.elapsed >= Duration::from_secs(3) && ended.elapsed < Duration::from_secs(4));
    }

    #[test]
    fn a_condition_wakes_those_who_wait_for_it() {
        for seed in seeds(50) {
            let (sum, _) = run(seed, || {
                let shared = Arc::new((Mutex::new(0), Condvar::default()));
                let tasks: Vec<_> = (0..3)
                    .map(|id| {
                        let shared = shared.clone();
                        spawn(move || {
                            let mut turn = shared.0.lock();
                            while *turn != id {
                                turn = shared.1.wait(turn);
                            }
                            *turn += 1;
                            shared.1.notify_all();
                        })
                    })
                    .collect();
                tasks.into_iter().for_each(|task| task.join().unwrap());
                *shared.0.lock()
            });
            assert_eq!(sum, 3);
        }
    }

    #[test]
    fn a_wait_for_a_wake_or_a_time_ends_with_the_first_of_them() {
        for seed in seeds(50) {
            let woken_after = |micros: u64| {
                let main = move || {
                    let waiter = spawn(|| {
                        let me = current().unwrap();
                        me.wait_until(4, me.now() + Duration::from_millis(1));
                        me.now()
                    });
                    current().unwrap().sleep(micros * 1000);
                    current().unwrap().wake(4);
                    waiter.join().unwrap()
                };
                run(seed, main)
            };
            let ((early, _), (late, ended)) = (woken_after(500), woken_after(5000));
            assert!(
                early >= Duration::from_micros(500) && early < Duration::from_millis(1),
                "{early:?}"
            );
            assert!(
                late >= Duration::from_millis(1) && late < Duration::from_micros(1100),
                "{late:?}"
            );
            assert_eq!(woken_after(5000), (late, ended));
        }
    }

    #[test]
    #[should_panic(expected = "wait for one another")]
    fn threads_that_wait_for_one_another_are_found() {
        run(7, || {
            let forks = Arc::new((Mutex::new(()), Mutex::new(())));
            let other = forks.clone();
            let left = spawn(move || {
                let _one = other.0.lock();
                current().unwrap().sleep(1000);
                let _two = other.1.lock();
            });
            let _two = forks.1.lock();
            current().unwrap().sleep(1000);
            let _one = forks.0.lock();
            let _ = left.join();
        });
    }

    /// It was lost, with what the thread had found.
    #[test]
    fn a_panic_of_a_thread_that_no_thread_joins_ends_the_run() {
        for sleeps in [false, true] {
            let ended = catch_unwind(|| {
                run(3, || {
                    let thread = spawn(|| panic!("no thread joins me, on purpose"));
                    if sleeps {
                        current().unwrap().sleep(1_000_000);
                    }
                    drop(thread);
                })
            });
            let panic = ended.expect_err("the panic is lost");
            assert_eq!(panic.downcast_ref(), Some(&"no thread joins me, on purpose"));
        }
    }

    #[test]
    fn a_panic_of_a_thread_reaches_the_thread_that_joins_it() {
        run(3, || assert!(spawn(|| panic!("on purpose")).join().is_err()));
    }

    #[test]
    fn what_main_leaves_running_still_ends() {
        let done = Arc::new(AtomicU64::new(0));
        let count = done.clone();
        run(5, move || {
            spawn(move || {
                current().unwrap().sleep(1_000_000);
                count.fetch_add(1, SeqCst);
            });
        });
        assert_eq!(done.load(SeqCst), 1);
    }
}
