//! The measured loop of a thread with a queue, dioxide's or another one: many operations
//! outstanding, each in its own lane.
//!
//! A lane corresponds to a thread on the blocking paths: it has its own blocks, and one operation
//! at a time. Verification is therefore the same.

use super::job::{Done, Job};
use super::ledger::Ledger;
use super::stamp::{Stamp, fill_as_job};
use super::target::{Direction, Target};
use anyhow::{Result, ensure};
use dioxide::{Buffer, Full, Operation, Queue, QueueOptions};
use fastrand::Rng;
use std::collections::VecDeque;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// Interval of polling while the next operation is not due yet. A queue can wait for its
/// operations, but not for a time.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Operations of one thread that are outstanding at the same time. Dropping it waits for them,
/// because the kernel uses their buffers until then.
pub trait AnyQueue {
    /// A buffer for a lane.
    fn buffer(&self) -> Buffer;

    /// Queues an operation. There is room for one of each lane.
    fn queue(&mut self, target: Target, block: Buffer, tag: u64);

    /// The number of operations that are queued, in flight, or finished and not reaped.
    fn count(&self) -> usize;

    /// Submits all queued operations, waits until at least `min` have finished, and passes on all
    /// finished ones. Ends at the first error.
    fn reap(&mut self, min: usize, each: impl FnMut(Finished) -> Result<()>) -> Result<()>;
}

/// A finished operation.
pub struct Finished {
    pub tag: u64,
    /// The offset of an append, the number of bytes read, otherwise arbitrary.
    pub result: Result<u64>,
    pub buffer: Buffer,
    pub is_append: bool,
}

/// dioxide's queue, and the call that queues an operation.
pub struct Queued<'a, F> {
    queue: Queue,
    queue_it: &'a F,
}

impl<'a, F> Queued<'a, F> {
    pub fn new(iodepth: usize, bs_max_bytes: u64, queue_it: &'a F) -> Self {
        // Buffers that are adjacent in memory and in the file form one segment.
        let queue =
            QueueOptions::new().depth(iodepth).buffers(iodepth, bs_max_bytes as usize).open();
        Self { queue, queue_it }
    }
}

impl<F: Fn(&Queue, Target, Buffer, u64) -> Result<(), Full>> AnyQueue for Queued<'_, F> {
    fn buffer(&self) -> Buffer {
        self.queue.buffer().expect("the queue has one for each lane")
    }

    fn queue(&mut self, target: Target, block: Buffer, tag: u64) {
        (self.queue_it)(&self.queue, target, block, tag).expect("the queue has room for each lane");
    }

    fn count(&self) -> usize {
        self.queue.outstanding()
    }

    fn reap(&mut self, min: usize, each: impl FnMut(Finished) -> Result<()>) -> Result<()> {
        let mut finished = self.queue.reap(min).map(|completion| Finished {
            tag: completion.tag,
            result: completion.result.map_err(Into::into),
            buffer: completion.buffer.expect("buffers come back"),
            is_append: completion.operation == Operation::Append,
        });
        finished.try_for_each(each)
    }
}

/// One outstanding operation at a time.
struct Lane {
    /// Unique over all threads.
    number: usize,
    /// With the noise of the lane. None while it is being written.
    outgoing: Option<Buffer>,
    /// Made on demand. None while it is being read into.
    incoming: Option<Buffer>,
    current: Option<Outstanding>,
}

struct Outstanding {
    target: Target,
    stamp: Stamp,
    due: Option<Instant>,
    queued: Instant,
}

impl Job<'_> {
    /// As [`one_by_one`](Job::one_by_one), with `iodepth` operations outstanding. It reaps all
    /// completions, and queues as many operations, which are submitted together.
    pub fn many_at_a_time(
        &self,
        iodepth: usize,
        mut queue: impl AnyQueue,
        aim: impl Fn(usize, &mut Rng) -> Option<Target>,
    ) -> Result<Done> {
        let first = self.number * iodepth;
        let mut lanes: Vec<Lane> =
            (first..first + iodepth).map(|lane| Lane::new(lane, queue.buffer())).collect();
        let mut idle: VecDeque<usize> = (0..iodepth).collect();
        let mut done = Done::new(self.crew.schedule.is_some());
        let mut dice = Rng::with_seed(self.number as u64);
        let mut next = Some(1);
        let began = self.start()?;
        loop {
            let mut not_due = None;
            while let Some((&nth, sequence)) = idle.front().zip(next)
                && !self.is_over()
            {
                let due = self.due(began, sequence);
                not_due = due.filter(|due| *due > Instant::now());
                if not_due.is_some() {
                    break;
                }
                let lane = &mut lanes[nth];
                let Some(target) = aim(lane.number, &mut dice) else {
                    next = None;
                    break;
                };
                let block = lane.begin(target, sequence, due, self);
                queue.queue(target, block, nth as u64);
                (_, next) = (idle.pop_front(), Some(sequence + 1));
            }
            if queue.count() == 0 {
                match not_due {
                    Some(due) if self.is_awaited(due) => continue,
                    _ => break,
                }
            }
            let before = idle.len();
            queue.reap(if not_due.is_some() { 0 } else { 1 }, |finished| {
                let nth = finished.tag as usize;
                idle.push_back(nth);
                lanes[nth].finish(finished, &mut done, self.crew.ledger)
            })?;
            if let Some(due) = not_due.filter(|_| idle.len() == before) {
                park_timeout(due.saturating_duration_since(Instant::now()).min(LOOK_EVERY));
            }
        }
        done.next = next;
        Ok(done)
    }
}

impl Lane {
    fn new(number: usize, mut outgoing: Buffer) -> Self {
        fill_as_job(number as u32, &mut outgoing);
        Self { number, outgoing: Some(outgoing), incoming: None, current: None }
    }

    /// Begins the next operation, and returns its block.
    fn begin(
        &mut self,
        target: Target,
        sequence: u64,
        due: Option<Instant>,
        job: &Job<'_>,
    ) -> Buffer {
        let stamp = target.stamp(self.number, sequence);
        let block = match target.direction {
            Direction::Write => {
                let mut block = self.outgoing.take().expect("nothing of this lane is outstanding");
                let record = &mut block[..target.bytes as usize];
                job.crew.ledger.stamp(stamp, record);
                if record.len() == job.crew.bs_max_bytes as usize {
                    block
                } else {
                    let record = Buffer::from(&*record);
                    // A shorter one was a copy.
                    self.outgoing.get_or_insert(block);
                    record
                }
            }
            Direction::Read => {
                let made = || Buffer::zeroed(target.bytes as usize);
                self.incoming.take().unwrap_or_else(made)
            }
        };
        self.current = Some(Outstanding { target, stamp, due, queued: Instant::now() });
        block
    }

    /// Ends a reaped operation.
    fn finish(&mut self, finished: Finished, done: &mut Done, ledger: &Ledger) -> Result<()> {
        let Outstanding { target, stamp, due, queued } =
            self.current.take().expect("it is outstanding until it is reaped");
        let Target { direction, offset, .. } = target;
        let Finished { result, buffer: block, is_append, .. } = finished;
        let result = result?;
        done.record(target, due.unwrap_or(queued), queued);
        match direction {
            Direction::Write => {
                // A shorter one was a copy.
                self.outgoing.get_or_insert(block);
                ledger.acknowledge(stamp, if is_append { result } else { offset })
            }
            Direction::Read => {
                ensure!(
                    result == block.len() as u64,
                    "{result} of {} bytes read at {offset}",
                    block.len()
                );
                ledger.check(&block, offset)?;
                self.incoming = Some(block);
                Ok(())
            }
        }
    }
}
