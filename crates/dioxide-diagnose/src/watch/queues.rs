//! Threads that wait for a futex or a semaphore while another thread of the program writes or syncs
//! a file.
//!
//! A thread without work and a follower of a group commit sleep alike. But the follower wakes when
//! the flush of its leader ends, and not before. The kernel counts how often a thread has run
//! (`schedstat`). Two readings of it, a nap apart, show who has slept through.

use crate::evidence::{Pairs, Queue, Stack};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::tally::Tid;

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

/// What a sampled thread does with others, and how often it has run.
#[derive(Clone, Debug)]
pub struct Reading {
    pub thread: Tid,
    /// Without numbers.
    pub task: String,
    pub part: Part,
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
    before: Vec<Reading>,
    files: BTreeMap<usize, Led>,
    /// By the waiters' name and the leaders' file.
    queues: BTreeMap<(String, usize), Followed>,
    /// The idle threads of this pass.
    idle: Vec<Reading>,
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
pub enum Waits {
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

#[derive(Debug, Default)]
struct Followed {
    waits: u64,
    threads: HashSet<Tid>,
    short: Pairs,
    long: Pairs,
    stacks: Counts,
}

impl Queues {
    /// Whether a thread that waits has run lately.
    pub fn waits(&mut self, thread: Tid, runs: u64, now: Instant) -> Waits {
        let first = LastRun { runs, at: now, has_run: false };
        let last = self.last_run.entry(thread).or_insert(first);
        if last.runs != runs {
            *last = LastRun { runs, at: now, has_run: true };
        }
        match now.duration_since(last.at) < LATELY {
            true if last.has_run => Waits::RanLately,
            true => Waits::Unknown,
            false => Waits::Idle,
        }
    }

    /// Counts a pass: its leaders, its waiters that ran lately, and idle threads. Returns whether
    /// a second reading would show anything.
    pub fn look(&mut self, now: Vec<Reading>, idle: Vec<Reading>) -> bool {
        self.idle = idle;
        let runs = now.iter().map(|reading| (reading.thread, reading.runs)).collect();
        let before = std::mem::take(&mut self.before);
        self.compare(&before, &runs, |followed| &mut followed.long);
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
            for file in leaders.keys() {
                let followed = self.queues.entry((reading.task.clone(), *file)).or_default();
                followed.waits += 1;
                followed.threads.insert(reading.thread);
            }
        }
        self.before = now;
        !leaders.is_empty() && waiters > 0
    }

    /// Counts stacks of the pass: of its leaders, of some of its waiters, and of an idle thread.
    pub fn take_stacks(&mut self, mut stack: impl FnMut(&Reading) -> Option<Vec<usize>>) {
        let leads = |reading: &&Reading| reading.part != Part::Waits;
        let (leaders, mut waiters): (Vec<&Reading>, Vec<&Reading>) =
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
            for file in &files {
                let queue = self.queues.entry((reading.task.clone(), *file)).or_default();
                count(&mut queue.stacks, stack.clone());
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
        let leads = |reading: &Reading| reading.part != Part::Waits;
        let (leaders, waiters) = self.before.iter().cloned().partition::<Vec<_>, _>(leads);
        let still = |reading: &Reading| read(reading.thread) == Some(reading.runs);
        let mut both: Vec<Reading> = leaders.into_iter().chain(waiters).filter(still).collect();
        nap();
        both.reverse();
        let again = |reading: &Reading| Some((reading.thread, read(reading.thread)?));
        let runs = both.iter().filter_map(again).collect();
        self.compare(&both, &runs, |followed| &mut followed.short);
    }

    /// Between two readings a leader slept on, or all of a file moved. Who of their waiters ran?
    fn compare(
        &mut self,
        before: &[Reading],
        runs: &HashMap<Tid, u64>,
        pairs: fn(&mut Followed) -> &mut Pairs,
    ) {
        let slept = |reading: &Reading| runs.get(&reading.thread) == Some(&reading.runs);
        let mut held: BTreeMap<usize, bool> = BTreeMap::new();
        for reading in before {
            if let Part::Leads { file, .. } = reading.part {
                *held.entry(file).or_default() |= slept(reading);
            }
        }
        for (file, is_held) in held {
            let mut of_tasks: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
            for reading in before.iter().filter(|reading| reading.part == Part::Waits) {
                let (count, ran) = of_tasks.entry(&reading.task).or_default();
                *count += 1;
                *ran += u64::from(!slept(reading));
            }
            for (task, (count, ran)) in of_tasks {
                let followed = self.queues.entry((task.to_owned(), file)).or_default();
                pairs(followed).add(is_held, count, ran);
            }
        }
    }

    /// For each name of waiters, the file beside which they waited most.
    pub fn finish(self) -> Vec<Queue> {
        let mut of_tasks: BTreeMap<String, (usize, Followed)> = BTreeMap::new();
        for ((task, file), followed) in self.queues {
            let most = of_tasks.get(&task).map_or(0, |(_, known)| known.waits);
            if followed.waits > most {
                of_tasks.insert(task, (file, followed));
            }
        }
        let queue = |(task, (file, followed)): (String, (usize, Followed))| {
            let led = &self.files[&file];
            let idle = self.idle_stacks.get(&task).map(stacks).unwrap_or_default();
            let call = led.calls.iter().max_by_key(|(_, count)| **count);
            Queue {
                task,
                file,
                call: call.map(|(call, _)| call.clone()).unwrap_or_default(),
                looks: led.looks,
                looks_of_several: led.looks_of_several,
                waits: followed.waits,
                threads: followed.threads.len() as u64,
                leaders: led.threads.len() as u64,
                leading_waiters: followed.threads.intersection(&led.threads).count() as u64,
                short: followed.short,
                long: followed.long,
                waiting: stacks(&followed.stacks),
                leading: stacks(&led.stacks),
                idle,
            }
        };
        of_tasks.into_iter().map(queue).collect()
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

impl Pairs {
    fn add(&mut self, is_held: bool, count: u64, ran: u64) {
        if is_held {
            self.held += count;
            self.held_woken += ran;
        } else if ran > 0 {
            // Else the call went on to its next step: a sync writes first, and then flushes.
            self.ends += 1;
            self.ended += count;
            self.ended_woken += ran;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn waits(tid: u32, runs: u64) -> Reading {
        Reading { thread: (1, tid), task: "worker".into(), part: Part::Waits, runs }
    }

    fn leads(tid: u32, runs: u64) -> Reading {
        let part = Part::Leads { file: 0, call: "fdatasync".into() };
        Reading { part, ..waits(tid, runs) }
    }

    #[test]
    fn waiters_sleep_through_a_flush_and_wake_at_its_end() {
        let mut queues = Queues::default();
        assert!(queues.look(vec![leads(1, 10), waits(2, 20), waits(3, 30)], vec![]));
        let first = |(_, tid): Tid| Some(u64::from(tid) * 10);
        queues.nap(first, || ());
        let is_over = Cell::new(false);
        let then = |(_, tid): Tid| {
            let ran = is_over.get() && tid < 3;
            Some(u64::from(tid) * 10 + u64::from(ran))
        };
        queues.nap(then, || is_over.set(true));
        // A leader that goes on to its next step, and a thread that ran before the nap, are none.
        let steps_on = Cell::new(0);
        queues.nap(
            |(_, tid): Tid| Some(u64::from(tid) * 10 + if tid == 1 { steps_on.get() } else { 0 }),
            || steps_on.set(1),
        );
        queues.nap(|_| Some(99), || ());
        // The leaders take turns.
        assert!(queues.look(vec![leads(2, 22), waits(1, 12), waits(3, 30)], vec![]));
        let queue = queues.finish().remove(0);
        let short = Pairs { held: 2, held_woken: 0, ended: 2, ended_woken: 1, ends: 1 };
        assert_eq!((queue.short, queue.long.ended), (short, 2));
        assert_eq!((queue.threads, queue.leaders, queue.leading_waiters), (3, 2, 2));
        assert_eq!((queue.looks, queue.looks_of_several, queue.waits), (2, 0, 4));
        assert_eq!(queue.call, "fdatasync");
    }

    #[test]
    fn without_a_leader_or_a_waiter_there_is_no_queue() {
        let mut queues = Queues::default();
        assert!(!queues.look(vec![waits(2, 20)], vec![]));
        assert!(!queues.look(vec![leads(1, 10)], vec![]));
        assert!(queues.finish().is_empty());
    }

    #[test]
    fn a_thread_that_sleeps_for_long_has_not_run_lately() {
        let (mut queues, begun) = (Queues::default(), Instant::now());
        let after = |millis| begun + Duration::from_millis(millis);
        assert_eq!(queues.waits((1, 2), 7, begun), Waits::Unknown, "not seen to run");
        assert_eq!(queues.waits((1, 2), 8, after(10)), Waits::RanLately);
        assert_eq!(queues.waits((1, 2), 8, after(900)), Waits::RanLately);
        assert_eq!(queues.waits((1, 2), 8, after(1100)), Waits::Idle);
    }
}
