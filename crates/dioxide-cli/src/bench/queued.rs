//! The measured loop of a thread with a queue: many operations outstanding, each in its own lane.
//!
//! A lane corresponds to a thread on the blocking paths: it has its own blocks, and one operation
//! at a time. Verification is therefore the same.

use super::job::{Done, Job};
use super::ledger::Ledger;
use super::stamp::{Stamp, fill_as_job};
use super::target::{Direction, Target};
use anyhow::{Result, ensure};
use dioxide::{Buffer, Completion, Full, Operation, Queue, QueueOptions};
use fastrand::Rng;
use std::collections::VecDeque;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// Interval of polling while the next operation is not due yet. A queue can wait for its
/// operations, but not for a time.
const LOOK_EVERY: Duration = Duration::from_micros(20);

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
    /// completions, and queues as many operations, which are submitted together. `queue_it` queues
    /// an operation.
    pub fn many_at_a_time(
        &self,
        iodepth: usize,
        aim: impl Fn(usize, &mut Rng) -> Option<Target>,
        queue_it: impl Fn(&Queue, Target, Buffer, u64) -> Result<(), Full>,
    ) -> Result<Done> {
        // Buffers that are adjacent in memory and in the file form one segment.
        let queue = QueueOptions::new()
            .depth(iodepth)
            .buffers(iodepth, self.crew.bs_max_bytes as usize)
            .open();
        let first = self.number * iodepth;
        let mut lanes: Vec<Lane> =
            (first..first + iodepth).map(|lane| Lane::new(lane, &queue)).collect();
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
                queue_it(&queue, target, block, nth as u64)
                    .expect("the queue has room for each lane");
                (_, next) = (idle.pop_front(), Some(sequence + 1));
            }
            if queue.outstanding() == 0 {
                match not_due {
                    Some(due) if self.is_awaited(due) => continue,
                    _ => break,
                }
            }
            let before = idle.len();
            for completion in queue.reap(if not_due.is_some() { 0 } else { 1 }) {
                let nth = completion.tag as usize;
                lanes[nth].finish(completion, &mut done, self.crew.ledger)?;
                idle.push_back(nth);
            }
            if let Some(due) = not_due.filter(|_| idle.len() == before) {
                park_timeout(due.saturating_duration_since(Instant::now()).min(LOOK_EVERY));
            }
        }
        done.next = next;
        Ok(done)
    }
}

impl Lane {
    fn new(number: usize, queue: &Queue) -> Self {
        let mut outgoing = queue.buffer().expect("the queue has one for each lane");
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
    fn finish(&mut self, completion: Completion, done: &mut Done, ledger: &Ledger) -> Result<()> {
        let Outstanding { target, stamp, due, queued } =
            self.current.take().expect("it is outstanding until it is reaped");
        let Target { direction, offset, .. } = target;
        let result = completion.result?;
        done.record(target, due.unwrap_or(queued), queued);
        let block = completion.buffer.expect("buffers come back");
        match direction {
            Direction::Write => {
                // A shorter one was a copy.
                self.outgoing.get_or_insert(block);
                let is_append = completion.operation == Operation::Append;
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
