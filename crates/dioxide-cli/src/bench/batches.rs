//! The measured loop of a thread that ends several writes by one flush, each in its own lane.

use super::job::{Done, Job};
use super::stamp::{Stamp, fill_as_job};
use super::target::Target;
use anyhow::Result;
use dioxide::Buffer;
use fastrand::Rng;
use std::time::Instant;

/// A write without its flush.
struct UnflushedWrite {
    target: Target,
    stamp: Stamp,
    due: Option<Instant>,
    submitted: Instant,
}

impl Job<'_> {
    /// As [`one_by_one`](Job::one_by_one), with one flush for `batch` writes, which then count as
    /// done. With an offered load a batch has the operations that are due.
    pub fn in_batches(
        &self,
        batch: usize,
        aim: impl Fn(usize, &mut Rng) -> Option<Target>,
        write: impl Fn(Target, &[u8]) -> Result<()>,
        flush: impl Fn() -> Result<()>,
    ) -> Result<Done> {
        let ledger = self.crew.ledger;
        let first = self.number * batch;
        let mut blocks: Vec<Buffer> =
            (first..first + batch).map(|lane| self.block_of(lane)).collect();
        let mut done = Done::new(self.crew.schedule.is_some());
        let mut dice = Rng::with_seed(self.number as u64);
        let mut next = Some(1);
        let mut written = Vec::with_capacity(batch);
        let began = self.start()?;
        loop {
            while let Some(sequence) = next.filter(|_| written.len() < batch && !self.is_over()) {
                let due = self.due(began, sequence);
                if due.is_some_and(|due| !self.is_time_for(due, written.is_empty())) {
                    break;
                }
                let nth = written.len();
                let Some(target) = aim(first + nth, &mut dice) else {
                    next = None;
                    break;
                };
                let stamp = target.stamp(first + nth, sequence);
                let block = &mut blocks[nth][..target.bytes as usize];
                ledger.stamp(stamp, block);
                let submitted = Instant::now();
                write(target, block)?;
                written.push(UnflushedWrite { target, stamp, due, submitted });
                next = Some(sequence + 1);
            }
            if written.is_empty() {
                break;
            }
            flush()?;
            for UnflushedWrite { target, stamp, due, submitted } in written.drain(..) {
                done.record(target, due.unwrap_or(submitted), submitted);
                ledger.acknowledge(stamp, target.offset)?;
            }
        }
        done.next = next;
        Ok(done)
    }

    fn block_of(&self, lane: usize) -> Buffer {
        let mut block = Buffer::zeroed(self.crew.bs_max_bytes as usize);
        fill_as_job(lane as u32, &mut block);
        block
    }

    /// Whether an operation is due. Waits for the first one of a batch.
    fn is_time_for(&self, due: Instant, is_first: bool) -> bool {
        if is_first { self.is_awaited(due) } else { due <= Instant::now() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::{Blocks, Places};
    use super::super::crew::Crew;
    use super::super::crew::examples;
    use super::super::ledger::Ledger;
    use super::super::schedule::Schedule;
    use super::super::target::Direction;
    use super::*;
    use anyhow::bail;
    use std::sync::Mutex;
    use std::time::Duration;

    const BS: u64 = 4096;

    fn crew(ledger: &Ledger, runtime: Duration) -> Crew<'_> {
        examples::crew(1, BS, ledger, runtime)
    }

    fn ledger() -> Ledger {
        Ledger::Blocks(Blocks::new(1, BS, 100, Places::OnceEach))
    }

    /// The lanes of the writes, and the number of writes before each flush.
    #[derive(Default)]
    struct Calls {
        lanes: Vec<usize>,
        flushed: Vec<usize>,
    }

    #[test]
    fn a_flush_ends_a_batch() {
        let (ledger, calls) = (ledger(), Mutex::new(Calls::default()));
        let aim = |lane: usize, _: &mut Rng| {
            let mut calls = calls.lock().unwrap();
            let number = calls.lanes.len() as u64;
            (number < 10).then(|| {
                calls.lanes.push(lane);
                Target::block(Direction::Write, number * BS, BS)
            })
        };
        let flush = || {
            let mut calls = calls.lock().unwrap();
            let count = calls.lanes.len();
            calls.flushed.push(count);
            Ok(())
        };
        let crew = crew(&ledger, Duration::from_secs(3600));
        let run = crew.work_in_batches(4, aim, |_, _| Ok(()), flush).unwrap().clock_out();
        let calls = calls.into_inner().unwrap();
        assert_eq!(calls.lanes, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]);
        assert_eq!((run.figures.ops, calls.flushed), (10, vec![4, 8, 10]));
    }

    #[test]
    fn writes_without_a_flush_are_not_acknowledged() {
        let (ledger, file) = (ledger(), tempfile::tempfile().unwrap());
        let aim =
            |lane: usize, _: &mut Rng| Some(Target::block(Direction::Write, lane as u64 * BS, BS));
        let crew = crew(&ledger, Duration::from_secs(3600));
        let error = crew.work_in_batches(4, aim, |_, _| Ok(()), || bail!("broken")).err().unwrap();
        assert_eq!(error.to_string(), "broken");
        ledger.verify(&file, super::super::ledger::End::AtLast).unwrap();
    }

    #[test]
    fn a_given_load_makes_smaller_batches() {
        let (ledger, taken) = (ledger(), Mutex::new(0));
        let aim = |_: usize, _: &mut Rng| {
            let mut taken = taken.lock().unwrap();
            *taken += 1;
            Some(Target::block(Direction::Write, (*taken - 1) * BS, BS))
        };
        let schedule = Some(Schedule::new(200, 1));
        let crew = Crew { schedule, ..crew(&ledger, Duration::from_millis(100)) };
        let run = crew.work_in_batches(64, aim, |_, _| Ok(()), || Ok(())).unwrap().clock_out();
        let most = 2 + (200.0 * run.figures.elapsed.as_secs_f64()) as u64;
        assert!((1..=most).contains(&run.figures.ops), "{} of {most}", run.figures.ops);
        assert!(run.timings.lat.is_some());
    }
}
