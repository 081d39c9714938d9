//! One thread of a crew: its blocks, its measured loop, and its results.

use super::crew::Crew;
use super::latency::Timings;
use super::stamp::fill_as_job;
use super::target::{Direction, Target};
use anyhow::{Context, Result};
use dioxide::Buffer;
use fastrand::Rng;
use rustix::thread::set_current_timer_slack;
use std::num::NonZero;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// How soon a sleeping thread notices that the crew stops.
const ATTENTION: Duration = Duration::from_millis(50);
/// Maximum lateness of timers with an offered load. The kernel's default is 50 us.
const TIMER_SLACK_NS: u64 = 1;

/// The parameters of one thread.
pub struct Job<'a> {
    pub number: usize,
    pub crew: &'a Crew<'a>,
    pub floor: &'a Floor,
    /// Dropped when the job is done.
    pub ready: Sender<()>,
}

/// The state that a crew's threads share with the waiting one.
pub struct Floor {
    /// The time of its opening; held for writing until all threads are ready.
    pub gate: RwLock<Instant>,
    pub stop: AtomicBool,
}

/// The results of one thread.
pub struct Done {
    pub reads: Timings,
    pub writes: Timings,
    pub bytes: u64,
    /// The number of the first operation for which there was no time. None if there was no space
    /// for it.
    pub next: Option<u64>,
}

impl Job<'_> {
    /// The measured loop: each operation begins when the one before has ended, or when it is due.
    pub fn one_by_one(
        &self,
        aim: impl Fn(usize, &mut Rng) -> Option<Target>,
        op: impl Fn(Target, &mut [u8]) -> Result<u64>,
    ) -> Result<Done> {
        let ledger = self.crew.ledger;
        let mut blocks = JobBlocks::new(self.number, self.crew.bs_max_bytes);
        let mut done = Done::new(self.crew.schedule.is_some());
        let mut dice = Rng::with_seed(self.number as u64);
        let mut sequence = 1;
        let began = self.start()?;
        while !self.is_over() {
            let due = self.due(began, sequence);
            if due.is_some_and(|due| !self.is_awaited(due)) {
                break;
            }
            let Some(target) = aim(self.number, &mut dice) else { return Ok(done) };
            let block = blocks.of(target);
            let stamp = target.stamp(self.number, sequence);
            if target.direction == Direction::Write {
                ledger.stamp(stamp, block);
            }
            let submitted = Instant::now();
            let offset = op(target, block)?;
            done.record(target, due.unwrap_or(submitted), submitted);
            match target.direction {
                Direction::Write => ledger.acknowledge(stamp, offset)?,
                Direction::Read => ledger.check(block, offset)?,
            }
            sequence += 1;
        }
        done.next = Some(sequence);
        Ok(done)
    }

    /// Signals that this thread is ready, waits for the others, and returns the start time.
    pub fn start(&self) -> Result<Instant> {
        if self.crew.schedule.is_some() {
            set_current_timer_slack(NonZero::new(TIMER_SLACK_NS)).context("set the timer slack")?;
        }
        let _ = self.ready.send(());
        Ok(*self.floor.gate.read().expect("no thread panics with the gate"))
    }

    /// Stops the others, also those that wait for this thread.
    pub fn give_up(&self) {
        self.floor.stop.store(true, Relaxed);
        let _ = self.ready.send(());
    }

    pub fn is_over(&self) -> bool {
        self.floor.stop.load(Relaxed)
    }

    /// When an operation is to begin, with an offered load.
    pub fn due(&self, began: Instant, sequence: u64) -> Option<Instant> {
        self.crew.schedule.map(|schedule| began + schedule.due(self.number, sequence))
    }

    /// Sleeps until an operation is due. False if the crew stops before.
    pub fn is_awaited(&self, due: Instant) -> bool {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            park_timeout(left.min(ATTENTION));
            if self.is_over() {
                return false;
            }
        }
    }
}

impl Done {
    pub fn new(is_load_given: bool) -> Self {
        let none = || Timings::new(is_load_given);
        Self { reads: none(), writes: none(), bytes: 0, next: None }
    }

    /// Records an operation that ended just now.
    pub fn record(&mut self, target: Target, due: Instant, submitted: Instant) {
        let timings = match target.direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        };
        timings.record(due, submitted);
        self.bytes += target.bytes;
    }
}

/// A block to write, with the noise of its job, and one to read into, made on demand.
struct JobBlocks {
    outgoing: Buffer,
    incoming: Option<Buffer>,
}

impl JobBlocks {
    fn new(job: usize, bs_max_bytes: u64) -> Self {
        let mut outgoing = Buffer::zeroed(bs_max_bytes as usize);
        fill_as_job(job as u32, &mut outgoing);
        Self { outgoing, incoming: None }
    }

    fn of(&mut self, target: Target) -> &mut [u8] {
        let block = match target.direction {
            Direction::Write => &mut self.outgoing,
            Direction::Read => {
                self.incoming.get_or_insert_with(|| Buffer::zeroed(self.outgoing.len()))
            }
        };
        &mut block[..target.bytes as usize]
    }
}
