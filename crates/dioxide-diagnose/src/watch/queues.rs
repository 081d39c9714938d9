//! Threads that wait for a futex or a semaphore while another thread of the program writes or syncs
//! a file.
//!
//! A thread without work and a follower of a group commit sleep alike. But the follower wakes when
//! the flush of its leader ends, and not before. The kernel counts how often a thread has run
//! (`schedstat`). Two readings of it, a nap apart, show who has slept through.

use super::tally::Tid;
use super::wakes::{Pair, Wakes};
use crate::evidence::{FutexStacks, Queue, Stack};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// The time between two readings of one pass. Flushes of protected drives are shorter.
pub const NAP: Duration = Duration::from_micros(300);
/// A thread that has not run for this time waits for work.
const LATELY: Duration = Duration::from_secs(1);
/// How many stacks are taken at a time.
const LEADER_STACKS: usize = 2;
const WAITER_STACKS: usize = 8;
const IDLE_STACKS: usize = 1;
/// Further stacks of a kind are not counted.
const STACKS_MAX: usize = 100;
/// The least share of followers among the threads that wait in the same functions.
const FOLLOWERS_MIN: f64 = 0.25;

/// What a sampled thread does with others, and how often it has run.
#[derive(Clone, Debug)]
pub struct ThreadReading {
    pub thread: Tid,
    /// Without numbers.
    pub task: String,
    pub part: Part,
    /// The address of the futex that it waits for.
    pub futex: Option<u64>,
    pub runs: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Waits for a futex or a semaphore.
    Waits,
    /// Writes or syncs this file by this call.
    Leads { file: usize, call: String },
}

impl Part {
    /// Whether a thread in this call may have this part.
    pub fn is_in(&self, call: &str) -> bool {
        match self {
            Self::Waits => matches!(call, "futex" | "semop" | "semtimedop"),
            Self::Leads { call: led, .. } => led == call,
        }
    }
}

#[derive(Debug, Default)]
pub struct Queues {
    last_run: HashMap<Tid, LastRun>,
    before: Vec<ThreadReading>,
    files: BTreeMap<usize, Led>,
    waiters: HashMap<Tid, Waiter>,
    /// By process and address, the threads with a stack, and their stacks.
    futexes: BTreeMap<(u32, u64), (HashSet<Tid>, Counts)>,
    wakes: Wakes,
    /// The idle threads of this pass.
    idle: Vec<ThreadReading>,
    /// Stacks of idle threads, by name.
    idle_stacks: BTreeMap<String, Counts>,
}

/// How often each stack was seen.
type Counts = BTreeMap<Vec<usize>, u64>;

#[derive(Debug)]
struct LastRun {
    runs: u64,
    /// When it was first seen to have run, or first seen.
    at: Instant,
    has_run: bool,
}

/// A thread that waits for a futex or a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingThread {
    /// It was seen to run within [`LATELY`].
    RanLately,
    /// It has not run for that time.
    Idle,
    /// It was first seen within that time, and has not run since.
    Unknown,
}

/// The leaders of one file.
#[derive(Debug, Default)]
struct Led {
    looks: u64,
    looks_of_several: u64,
    calls: BTreeMap<String, u64>,
    threads: HashSet<Tid>,
    stacks: Counts,
}

/// A thread that waits beside leaders.
#[derive(Debug, Default)]
struct Waiter {
    task: String,
    /// Its samples by the leaders' file.
    waits: BTreeMap<usize, u64>,
    /// Its stacks beside a leader with a stack, by that leader's file.
    stacks: BTreeMap<usize, Counts>,
}

impl Queues {
    /// Whether a thread that waits has run lately.
    pub fn waits(&mut self, thread: Tid, runs: u64, now: Instant) -> WaitingThread {
        let first = LastRun { runs, at: now, has_run: false };
        let last = self.last_run.entry(thread).or_insert(first);
        if last.runs != runs {
            *last = LastRun { runs, at: now, has_run: true };
        }
        match now.duration_since(last.at) < LATELY {
            true if last.has_run => WaitingThread::RanLately,
            true => WaitingThread::Unknown,
            false => WaitingThread::Idle,
        }
    }

    /// Counts a pass: its leaders, its waiters that ran lately, and idle threads. Returns whether
    /// a second reading would show anything.
    pub fn look(&mut self, now: Vec<ThreadReading>, idle: Vec<ThreadReading>) -> bool {
        self.idle = idle;
        // A waiter of the pass before may be idle now.
        let all = now.iter().chain(&self.idle);
        let runs = all.map(|reading| (reading.thread, reading.runs)).collect();
        let before = std::mem::take(&mut self.before);
        self.compare(&before, &runs, true);
        let mut leaders: BTreeMap<usize, u64> = BTreeMap::new();
        for reading in &now {
            if let Part::Leads { file, call } = &reading.part {
                *leaders.entry(*file).or_default() += 1;
                let led = self.files.entry(*file).or_default();
                *led.calls.entry(call.clone()).or_default() += 1;
                led.threads.insert(reading.thread);
            }
        }
        for (file, count) in &leaders {
            let led = self.files.entry(*file).or_default();
            led.looks += 1;
            led.looks_of_several += u64::from(*count > 1);
        }
        let mut waiters = 0;
        for reading in now.iter().filter(|reading| reading.part == Part::Waits) {
            waiters += 1;
            if leaders.is_empty() {
                continue;
            }
            let waiter = self.waiters.entry(reading.thread).or_default();
            waiter.task.clone_from(&reading.task);
            for file in leaders.keys() {
                *waiter.waits.entry(*file).or_default() += 1;
            }
        }
        self.before = now;
        !leaders.is_empty() && waiters > 0
    }

    /// Counts stacks of the pass: of its leaders, of some of its waiters, and of an idle thread.
    pub fn take_stacks(&mut self, mut stack: impl FnMut(&ThreadReading) -> Option<Vec<usize>>) {
        let leads = |reading: &&ThreadReading| reading.part != Part::Waits;
        let (leaders, mut waiters): (Vec<&ThreadReading>, Vec<&ThreadReading>) =
            self.before.iter().partition(leads);
        fastrand::shuffle(&mut waiters);
        fastrand::shuffle(&mut self.idle);
        let mut files = HashSet::new();
        for reading in leaders.into_iter().take(LEADER_STACKS) {
            let Part::Leads { file, .. } = reading.part else { continue };
            files.insert(file);
            let led = self.files.entry(file).or_default();
            stack(reading).into_iter().for_each(|stack| count(&mut led.stacks, stack));
        }
        for reading in waiters.into_iter().take(WAITER_STACKS) {
            let Some(stack) = stack(reading) else { continue };
            if let Some(futex) = reading.futex {
                let key = (reading.thread.0, futex);
                let (threads, stacks) = self.futexes.entry(key).or_default();
                threads.insert(reading.thread);
                count(stacks, stack.clone());
            }
            let Some(waiter) = self.waiters.get_mut(&reading.thread) else { continue };
            for file in &files {
                count(waiter.stacks.entry(*file).or_default(), stack.clone());
            }
        }
        for reading in self.idle.iter().take(IDLE_STACKS) {
            let stacks = self.idle_stacks.entry(reading.task.clone()).or_default();
            stack(reading).into_iter().for_each(|stack| count(stacks, stack));
        }
    }

    /// Counts two readings of the same threads, a nap apart. The first has the leaders first, and
    /// the second has them last: if a leader slept through both, it slept while its waiters were
    /// read.
    pub fn nap(&mut self, read: impl Fn(Tid) -> Option<u64>, nap: impl FnOnce()) {
        let leads = |reading: &ThreadReading| reading.part != Part::Waits;
        let (leaders, waiters) = self.before.iter().cloned().partition::<Vec<_>, _>(leads);
        let still = |reading: &ThreadReading| read(reading.thread) == Some(reading.runs);
        let mut both: Vec<ThreadReading> =
            leaders.into_iter().chain(waiters).filter(still).collect();
        nap();
        both.reverse();
        let again = |reading: &ThreadReading| Some((reading.thread, read(reading.thread)?));
        let runs = both.iter().filter_map(again).collect();
        self.compare(&both, &runs, false);
    }

    /// Between two readings a leader slept on, or all of a file moved. Who of their waiters ran?
    fn compare(&mut self, before: &[ThreadReading], runs: &HashMap<Tid, u64>, is_long: bool) {
        let slept = |reading: &ThreadReading| runs.get(&reading.thread) == Some(&reading.runs);
        let mut held: BTreeMap<usize, bool> = BTreeMap::new();
        for reading in before {
            if let Part::Leads { file, .. } = reading.part {
                *held.entry(file).or_default() |= slept(reading);
            }
        }
        for (file, is_held) in held {
            let waiters = before.iter().filter(|reading| reading.part == Part::Waits);
            let waiters = waiters.map(|reading| (reading.thread, !slept(reading))).collect();
            self.wakes.add(Pair { file, is_long, is_held, waiters });
        }
    }

    /// The stacks of each futex with several waiters: a lock has several.
    pub fn futexes(&self) -> Vec<FutexStacks> {
        let several = self.futexes.iter().filter(|(_, (threads, _))| threads.len() > 1);
        several
            .map(|((process, futex), (_, counts))| FutexStacks {
                process: *process,
                futex: *futex,
                stacks: stacks(counts),
            })
            .collect()
    }

    /// The queues, and the index of the queue of each of their waiters.
    pub fn finish(self) -> (Vec<Queue>, HashMap<Tid, usize>) {
        // The file beside whose calls a thread waited most.
        let mut of_threads: BTreeMap<Tid, (u64, usize)> = BTreeMap::new();
        for file in self.files.keys() {
            for thread in self.followers(*file) {
                let waits = self.waiters[&thread].waits[file];
                let most = of_threads.entry(thread).or_default();
                *most = (*most).max((waits, *file));
            }
        }
        let mut waiters: BTreeMap<(&str, usize), HashSet<Tid>> = BTreeMap::new();
        for (thread, (_, file)) in of_threads {
            waiters.entry((&self.waiters[&thread].task, file)).or_default().insert(thread);
        }
        let (mut queues, mut indices) = (Vec::new(), HashMap::new());
        for ((task, file), threads) in waiters {
            indices.extend(threads.iter().map(|thread| (*thread, queues.len())));
            queues.push(self.queue(task, file, &threads));
        }
        (queues, indices)
    }

    /// The threads that follow the calls on a file. Threads that wait in the same functions wait
    /// for the same. If few of them follow, those do so by chance.
    fn followers(&self, file: usize) -> HashSet<Tid> {
        let mut followers = self.wakes.followers(file);
        let mut in_stacks: HashMap<&Vec<usize>, (u64, u64)> = HashMap::new();
        for (thread, waiter) in &self.waiters {
            for stack in waiter.stacks.get(&file).into_iter().flat_map(BTreeMap::keys) {
                let (follow, all) = in_stacks.entry(stack).or_default();
                *follow += u64::from(followers.contains(thread));
                *all += 1;
            }
        }
        let is_of_many = |stack: &Vec<usize>| {
            let (follow, all) = in_stacks[stack];
            follow as f64 >= FOLLOWERS_MIN * all as f64
        };
        followers.retain(|thread| {
            let stacks = self.waiters.get(thread).and_then(|waiter| waiter.stacks.get(&file));
            stacks.is_none_or(|stacks| stacks.keys().any(is_of_many))
        });
        followers
    }

    fn queue(&self, task: &str, file: usize, threads: &HashSet<Tid>) -> Queue {
        let led = &self.files[&file];
        let call = led.calls.iter().max_by_key(|(_, count)| **count);
        let mut waiting = Counts::new();
        for (stack, count) in
            threads.iter().filter_map(|thread| self.waiters[thread].stacks.get(&file)).flatten()
        {
            *waiting.entry(stack.clone()).or_default() += count;
        }
        Queue {
            task: task.to_owned(),
            file,
            call: call.map(|(call, _)| call.clone()).unwrap_or_default(),
            looks: led.looks,
            looks_of_several: led.looks_of_several,
            waits: threads.iter().map(|thread| self.waiters[thread].waits[&file]).sum(),
            threads: threads.len() as u64,
            leaders: led.threads.len() as u64,
            leading_waiters: threads.intersection(&led.threads).count() as u64,
            short: self.wakes.count(file, false, threads),
            long: self.wakes.count(file, true, threads),
            waiting: stacks(&waiting),
            leading: stacks(&led.stacks),
            idle: self.idle_stacks.get(task).map(stacks).unwrap_or_default(),
        }
    }
}

fn count(stacks: &mut Counts, stack: Vec<usize>) {
    if stacks.len() < STACKS_MAX || stacks.contains_key(&stack) {
        *stacks.entry(stack).or_default() += 1;
    }
}

/// The most frequent first.
fn stacks(counts: &Counts) -> Vec<Stack> {
    let stack = |(functions, count): (&Vec<usize>, &u64)| Stack {
        count: *count,
        functions: functions.clone(),
    };
    let mut stacks: Vec<Stack> = counts.iter().map(stack).collect();
    stacks.sort_by_key(|stack| Reverse(stack.count));
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Pairs;
    use std::cell::Cell;

    fn waits(tid: u32, runs: u64) -> ThreadReading {
        let (thread, task) = ((1, tid), "worker".into());
        ThreadReading { thread, task, part: Part::Waits, futex: None, runs }
    }

    fn leads(tid: u32, runs: u64) -> ThreadReading {
        let part = Part::Leads { file: 0, call: "fdatasync".into() };
        ThreadReading { part, ..waits(tid, runs) }
    }

    /// Thread 2 runs at the end of each flush of thread 1, and thread 3 never.
    #[test]
    fn waiters_sleep_through_a_flush_and_wake_at_its_end() {
        let mut queues = Queues::default();
        for flush in 0..20 {
            let runs = 100 * flush;
            let both = vec![leads(1, runs), waits(2, runs), waits(3, 0)];
            assert!(queues.look(both, vec![]));
            let read = |ran: u64| move |(_, tid): Tid| Some(if tid == 3 { 0 } else { runs + ran });
            queues.nap(read(0), || ());
            // A leader that goes on to its next step is none, nor are threads that ran before.
            let steps = Cell::new(0);
            let step = |(_, tid): Tid| {
                Some(if tid == 1 { runs + steps.get() } else { read(0)((1, tid))? })
            };
            queues.nap(step, || steps.set(1));
            queues.nap(read(1), || ());
            let is_over = Cell::new(0);
            queues.nap(|thread| read(is_over.get())(thread), || is_over.set(1));
        }
        // The leaders take turns.
        assert!(queues.look(vec![leads(2, 9999), waits(1, 9999), waits(3, 0)], vec![]));
        let (queues, indices) = queues.finish();
        assert_eq!(indices, HashMap::from([((1, 2), 0)]));
        let queue = &queues[0];
        let short = Pairs { held: 20, held_woken: 0, ended: 20, ended_woken: 20, ends: 20 };
        let long = Pairs { held: 0, held_woken: 0, ended: 20, ended_woken: 20, ends: 20 };
        assert_eq!((queue.short, queue.long), (short, long));
        assert_eq!((queue.threads, queue.leaders, queue.leading_waiters), (1, 2, 1));
        assert_eq!((queue.looks, queue.looks_of_several, queue.waits), (21, 0, 20));
        assert_eq!(queue.call, "fdatasync");
    }

    /// The defect: a waiter that became idle counted as one that had run.
    #[test]
    fn a_waiter_that_is_idle_now_has_not_run() {
        let mut queues = Queues::default();
        queues.look(vec![leads(1, 100), waits(2, 100)], vec![]);
        queues.look(vec![leads(1, 100)], vec![waits(2, 100)]);
        let pairs = queues.wakes.count(0, true, &HashSet::from([(1, 2)]));
        assert_eq!((pairs.held, pairs.held_woken), (1, 0));
    }

    /// The defect: of a pool whose threads work in turn, one followed the flushes by chance.
    #[test]
    fn few_followers_of_many_that_wait_in_the_same_functions_are_chance() {
        let found = |followers: u32| {
            const WAITERS: u32 = 8;
            let mut queues = Queues::default();
            for flush in 0..20 {
                let runs = 100 * flush;
                let waiters = 2..2 + WAITERS;
                let follows = move |tid: u32| tid < 2 + followers;
                let waiting = waiters.map(|tid| waits(tid, if follows(tid) { runs } else { 0 }));
                assert!(queues.look([leads(1, runs)].into_iter().chain(waiting).collect(), vec![]));
                queues.take_stacks(|reading| Some(vec![usize::from(reading.part == Part::Waits)]));
                let is_over = Cell::new(0);
                let read =
                    |(_, tid): Tid| Some(if follows(tid) { runs + is_over.get() } else { 0 });
                queues.nap(read, || ());
                queues.nap(read, || is_over.set(1));
            }
            queues.finish().1.len()
        };
        assert_eq!((found(1), found(6)), (0, 6));
    }

    #[test]
    fn stacks_are_kept_of_futexes_with_several_waiters() {
        let mut queues = Queues::default();
        let on = |tid, futex| ThreadReading { futex: Some(futex), ..waits(tid, 0) };
        assert!(queues.look(vec![leads(1, 0), on(2, 64), on(3, 64), on(4, 128)], vec![]));
        queues.take_stacks(|reading| Some(vec![usize::from(reading.part == Part::Waits)]));
        let stacks = vec![Stack { count: 2, functions: vec![1] }];
        assert_eq!(queues.futexes(), [FutexStacks { process: 1, futex: 64, stacks }]);
    }

    #[test]
    fn without_a_leader_or_a_waiter_there_is_no_queue() {
        let mut queues = Queues::default();
        assert!(!queues.look(vec![waits(2, 20)], vec![]));
        assert!(!queues.look(vec![leads(1, 10)], vec![]));
        assert!(queues.finish().0.is_empty());
    }

    #[test]
    fn a_thread_that_sleeps_for_long_has_not_run_lately() {
        let (mut queues, begun) = (Queues::default(), Instant::now());
        let after = |millis| begun + Duration::from_millis(millis);
        assert_eq!(queues.waits((1, 2), 7, begun), WaitingThread::Unknown, "not seen to run");
        assert_eq!(queues.waits((1, 2), 8, after(10)), WaitingThread::RanLately);
        assert_eq!(queues.waits((1, 2), 8, after(900)), WaitingThread::RanLately);
        assert_eq!(queues.waits((1, 2), 8, after(1100)), WaitingThread::Idle);
    }
}
