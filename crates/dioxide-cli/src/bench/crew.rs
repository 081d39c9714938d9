//! The crew: N threads that do one operation over and over behind a common start, and the clock over them.

use super::figures::{Clat, Run, new_clat};
use super::ledger::Ledger;
use super::stamp::{Stamp, fill_with_noise};
use crate::interrupt;
use crate::meter::Meter;
use crate::meter::disk::Disk;
use anyhow::{Context, Result, anyhow};
use dioxide::Buffer;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

/// How soon a Ctrl-C is noticed.
const ATTENTION: Duration = Duration::from_millis(50);

/// See the module.
pub struct Crew<'a> {
    pub numjobs: usize,
    pub bs_bytes: u64,
    pub runtime: Duration,
    pub ledger: &'a Ledger,
    pub disk: Option<&'a Disk>,
}

/// The threads have finished; the clock still runs.
pub struct Shift<'a> {
    began: Instant,
    meter: Meter<'a>,
    ops: u64,
    clat: Clat,
}

/// What one thread did.
struct Tally {
    began: Instant,
    ops: u64,
    clat: Clat,
}

/// What the threads of a crew share with the one that waits for them.
struct Floor {
    /// Held for writing until everyone is ready.
    gate: RwLock<()>,
    stop: AtomicBool,
}

impl<'a> Crew<'a> {
    /// Runs `op` in every thread until the time is over or an `op` returns None (no space left for it).
    /// `op` is given the number of its thread and a stamped block, and returns the offset where it wrote.
    ///
    /// The clock starts when the first thread does, and is still running on return: the caller ends
    /// what belongs to the route, a flush or a close, and then calls [`Shift::clock_out`].
    pub fn work(&self, op: impl Fn(usize, &[u8]) -> Result<Option<u64>> + Sync) -> Result<Shift<'a>> {
        let floor = Floor { gate: RwLock::new(()), stop: AtomicBool::new(false) };
        scope(|scope| {
            let closed = floor.gate.write().expect("nobody panics with the gate");
            let (ready, events) = channel();
            let jobs: Result<Vec<_>> =
                (0..self.numjobs).map(|job| self.hire(scope, job, &floor, ready.clone(), &op)).collect();
            drop(ready);
            // Without a full crew, those hired go home before their first operation.
            floor.stop.store(jobs.is_err(), Relaxed);
            let jobs = jobs?;
            events.iter().take(self.numjobs).for_each(drop);
            let meter = Meter::start(self.disk);
            drop(closed);
            let interrupted = self.wait(&events);
            floor.stop.store(true, Relaxed);
            let tallies: Result<Vec<Tally>> = jobs.into_iter().map(join).collect();
            interrupted?;
            Ok(Shift::of(tallies?, meter))
        })
    }

    fn hire<'scope, 'env, Op>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        job: usize,
        floor: &'env Floor,
        ready: Sender<()>,
        op: &'env Op,
    ) -> Result<ScopedJoinHandle<'scope, Result<Tally>>>
    where
        Op: Fn(usize, &[u8]) -> Result<Option<u64>> + Sync,
    {
        let thread = Builder::new().name(format!("job {job}"));
        thread.spawn_scoped(scope, move || self.job(job, floor, &ready, op)).context("start a thread")
    }

    /// One thread. Dropping `ready` on return tells that it is done.
    fn job(
        &self,
        job: usize,
        floor: &Floor,
        ready: &Sender<()>,
        op: &impl Fn(usize, &[u8]) -> Result<Option<u64>>,
    ) -> Result<Tally> {
        let mut block = Buffer::zeroed(self.bs_bytes as usize);
        fill_with_noise(job as u64 + 1, &mut block);
        let mut clat = new_clat();
        let _ = ready.send(());
        drop(floor.gate.read());
        let outcome = self.repeat(job, &floor.stop, &mut block, &mut clat, op);
        if outcome.is_err() {
            floor.stop.store(true, Relaxed);
        }
        outcome.map(|(began, ops)| Tally { began, ops, clat })
    }

    /// The measured loop: the start of the first operation, and how many there were.
    fn repeat(
        &self,
        job: usize,
        stop: &AtomicBool,
        block: &mut [u8],
        clat: &mut Clat,
        op: impl Fn(usize, &[u8]) -> Result<Option<u64>>,
    ) -> Result<(Instant, u64)> {
        let began = Instant::now();
        let mut stamp = Stamp { job: job as u32, sequence: 1 };
        while !stop.load(Relaxed) {
            self.ledger.stamp(stamp, block);
            let submitted = Instant::now();
            let Some(offset) = op(job, block)? else { break };
            clat.saturating_record(submitted.elapsed().as_nanos() as u64);
            self.ledger.acknowledge(stamp, offset)?;
            stamp.sequence += 1;
        }
        Ok((began, stamp.sequence - 1))
    }

    /// Until the time is over, every thread is done, or the user has had enough.
    fn wait(&self, events: &Receiver<()>) -> Result<()> {
        let end = Instant::now() + self.runtime;
        loop {
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if events.recv_timeout(left.min(ATTENTION)) == Err(RecvTimeoutError::Disconnected) {
                return Ok(());
            }
        }
    }
}

fn join(job: ScopedJoinHandle<'_, Result<Tally>>) -> Result<Tally> {
    job.join().unwrap_or_else(|_| Err(anyhow!("a thread of the bench panicked")))
}

impl<'a> Shift<'a> {
    fn of(tallies: Vec<Tally>, meter: Meter<'a>) -> Self {
        let mut tallies = tallies.into_iter();
        let Tally { mut began, mut ops, mut clat } = tallies.next().expect("a crew has at least one thread");
        for tally in tallies {
            began = began.min(tally.began);
            ops += tally.ops;
            clat.add(&tally.clat).expect("all histograms have the same range");
        }
        Self { began, meter, ops, clat }
    }

    /// Stops the clock.
    pub fn clock_out(self) -> Run {
        let elapsed = self.began.elapsed();
        Run::new(self.ops, elapsed, self.clat, self.meter.stop())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Places;
    use super::*;
    use std::sync::atomic::AtomicU64;

    const BS: u64 = 4096;
    const LONG: Duration = Duration::from_secs(3600);

    fn crew(ledger: &Ledger, runtime: Duration) -> Crew<'_> {
        Crew { numjobs: 8, bs_bytes: BS, runtime, ledger, disk: None }
    }

    #[test]
    fn works_until_the_time_is_over() {
        let ledger = Ledger::new(1, BS, 8, Places::Rewritten);
        let runtime = Duration::from_millis(30);
        let work = |job: usize, _: &[u8]| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(Some(job as u64 * BS))
        };
        let run = crew(&ledger, runtime).work(work).unwrap().clock_out();
        assert!(run.figures.elapsed >= runtime);
        assert_eq!(run.figures.ops, run.clat.len());
        assert!(run.figures.ops >= 8 && run.clat.min() >= 900_000);
    }

    #[test]
    fn works_until_there_is_no_space() {
        let ledger = Ledger::new(1, BS, 100, Places::OnceEach);
        let next = AtomicU64::new(0);
        let work = |_: usize, block: &[u8]| {
            assert_eq!(block.len() as u64, BS);
            let number = next.fetch_add(1, Relaxed);
            Ok((number < 100).then_some(number * BS))
        };
        let run = crew(&ledger, LONG).work(work).unwrap().clock_out();
        assert_eq!(run.figures.ops, 100);
    }

    #[test]
    fn one_failure_stops_all() {
        let ledger = Ledger::new(1, BS, 8, Places::Rewritten);
        let work = |job: usize, _: &[u8]| match job {
            3 => Err(anyhow!("broken")),
            _ => Ok(Some(job as u64 * BS)),
        };
        let error = crew(&ledger, LONG).work(work).err().unwrap();
        assert_eq!(error.to_string(), "broken");
    }

    #[test]
    fn the_clock_runs_until_clock_out() {
        let ledger = Ledger::new(1, BS, 8, Places::Rewritten);
        let shift = crew(&ledger, LONG).work(|_, _| Ok(None)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(shift.clock_out().figures.elapsed >= Duration::from_millis(20));
    }
}
