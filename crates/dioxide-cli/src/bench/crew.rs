//! The crew: N threads that do one operation over and over behind a common start, and the clock over them.

use super::figures::Run;
use super::latency::Timings;
use super::ledger::Ledger;
use super::schedule::Schedule;
use super::stamp::{Stamp, fill_as_job};
use crate::interrupt;
use crate::meter::Meter;
use crate::meter::disk::Disk;
use anyhow::{Context, Result, anyhow};
use dioxide::Buffer;
use rustix::thread::set_current_timer_slack;
use std::num::NonZero;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle, park_timeout, scope};
use std::time::{Duration, Instant};

/// How soon a Ctrl-C is noticed, and how often the machine is looked at.
const ATTENTION: Duration = Duration::from_millis(50);
/// How late a thread may be woken for its next operation, where the load is given. The kernel's own is 50 us.
const TIMER_SLACK_NS: u64 = 1;

/// See the module.
pub struct Crew<'a> {
    pub numjobs: usize,
    pub bs_bytes: u64,
    pub runtime: Duration,
    /// When each operation begins. None for as soon as the one before has ended.
    pub schedule: Option<Schedule>,
    pub ledger: &'a Ledger,
    pub disk: Option<&'a Disk>,
}

/// The threads have finished; the clock still runs.
pub struct Shift<'a> {
    began: Instant,
    meter: Meter<'a>,
    runtime: Duration,
    schedule: Option<Schedule>,
    done: Vec<Done>,
}

/// What one thread did.
struct Done {
    timings: Timings,
    /// The number of the first operation that it did not begin for want of time. None if there was no space for it.
    next: Option<u64>,
}

/// What the threads of a crew share with the one that waits for them.
struct Floor {
    /// When it was opened; held for writing until everyone is ready.
    gate: RwLock<Instant>,
    stop: AtomicBool,
}

impl<'a> Crew<'a> {
    /// Runs `op` in every thread until the time is over or an `op` returns None (no space left for it).
    /// `op` is given the number of its thread and a stamped block, and returns the offset where it wrote.
    ///
    /// The clock starts when the threads may, and is still running on return: the caller ends
    /// what belongs to the route, a flush or a close, and then calls [`Shift::clock_out`].
    pub fn work(&self, op: impl Fn(usize, &[u8]) -> Result<Option<u64>> + Sync) -> Result<Shift<'a>> {
        let floor = Floor { gate: RwLock::new(Instant::now()), stop: AtomicBool::new(false) };
        scope(|scope| {
            let mut closed = floor.gate.write().expect("nobody panics with the gate");
            let (ready, events) = channel();
            let jobs: Result<Vec<_>> =
                (0..self.numjobs).map(|job| self.hire(scope, job, &floor, ready.clone(), &op)).collect();
            drop(ready);
            // Without a full crew, those hired go home before their first operation.
            floor.stop.store(jobs.is_err(), Relaxed);
            let jobs = jobs?;
            events.iter().take(self.numjobs).for_each(drop);
            let mut meter = Meter::start(self.disk);
            let began = Instant::now();
            *closed = began;
            drop(closed);
            let interrupted = self.wait(&events, &mut meter);
            floor.stop.store(true, Relaxed);
            jobs.iter().for_each(|job| job.thread().unpark());
            let done: Result<Vec<Done>> = jobs.into_iter().map(join).collect();
            interrupted?;
            Ok(Shift { began, meter, runtime: self.runtime, schedule: self.schedule, done: done? })
        })
    }

    fn hire<'scope, 'env, Op>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        job: usize,
        floor: &'env Floor,
        ready: Sender<()>,
        op: &'env Op,
    ) -> Result<ScopedJoinHandle<'scope, Result<Done>>>
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
    ) -> Result<Done> {
        let mut block = Buffer::zeroed(self.bs_bytes as usize);
        fill_as_job(job as u32, &mut block);
        if self.schedule.is_some() {
            set_current_timer_slack(NonZero::new(TIMER_SLACK_NS)).context("set the timer slack")?;
        }
        let _ = ready.send(());
        let began = *floor.gate.read().expect("nobody panics with the gate");
        let outcome = self.repeat(job, began, &floor.stop, &mut block, op);
        if outcome.is_err() {
            floor.stop.store(true, Relaxed);
        }
        outcome
    }

    /// The measured loop.
    fn repeat(
        &self,
        job: usize,
        began: Instant,
        stop: &AtomicBool,
        block: &mut [u8],
        op: impl Fn(usize, &[u8]) -> Result<Option<u64>>,
    ) -> Result<Done> {
        let mut timings = Timings::new(self.schedule.is_some());
        let mut stamp = Stamp { job: job as u32, sequence: 1 };
        while !stop.load(Relaxed) {
            self.ledger.stamp(stamp, block);
            let due = self.schedule.map(|schedule| began + schedule.due(job, stamp.sequence));
            if due.is_some_and(|due| !is_awaited(due, stop)) {
                break;
            }
            let submitted = Instant::now();
            let Some(offset) = op(job, block)? else { return Ok(Done { timings, next: None }) };
            timings.record(due.unwrap_or(submitted), submitted);
            self.ledger.acknowledge(stamp, offset)?;
            stamp.sequence += 1;
        }
        Ok(Done { timings, next: Some(stamp.sequence) })
    }

    /// Until the time is over, every thread is done, or the user has had enough.
    fn wait(&self, events: &Receiver<()>, meter: &mut Meter<'_>) -> Result<()> {
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
            meter.sample();
        }
    }
}

/// Sleeps until an operation is due. False if the crew stops before.
fn is_awaited(due: Instant, stop: &AtomicBool) -> bool {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        park_timeout(left.min(ATTENTION));
        if stop.load(Relaxed) {
            return false;
        }
    }
}

fn join(job: ScopedJoinHandle<'_, Result<Done>>) -> Result<Done> {
    job.join().unwrap_or_else(|_| Err(anyhow!("a thread of the bench panicked")))
}

impl Shift<'_> {
    /// Stops the clock, and then does the sums.
    pub fn clock_out(self) -> Run {
        let elapsed = self.began.elapsed();
        let usage = self.meter.stop();
        let mut timings = Timings::new(self.schedule.is_some());
        self.done.iter().for_each(|done| timings.add(&done.timings));
        let ops = timings.clat.len();
        if let Some(schedule) = self.schedule {
            let missed = missed(schedule, &self.done, elapsed.min(self.runtime));
            missed.for_each(|due| timings.miss(elapsed - due));
        }
        Run::new(ops, elapsed, timings, usage)
    }
}

/// When those operations were due, before `end`, that were never begun.
fn missed(schedule: Schedule, done: &[Done], end: Duration) -> impl Iterator<Item = Duration> {
    done.iter().enumerate().flat_map(move |(job, done)| {
        let due = done
            .next
            .into_iter()
            .flat_map(move |next| (next..).map(move |sequence| schedule.due(job, sequence)));
        due.take_while(move |due| *due < end)
    })
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Places;
    use super::*;
    use std::sync::atomic::AtomicU64;

    const BS: u64 = 4096;
    const LONG: Duration = Duration::from_secs(3600);

    fn crew(ledger: &Ledger, runtime: Duration) -> Crew<'_> {
        Crew { numjobs: 8, bs_bytes: BS, runtime, schedule: None, ledger, disk: None }
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
        assert!(run.figures.ops >= 8 && run.timings.clat.min() >= 900_000);
    }

    #[test]
    fn a_given_load_is_kept_and_lateness_counted() {
        let ledger = Ledger::new(1, BS, 8, Places::Rewritten);
        let schedule = Some(Schedule::new(1000, 8));
        let crew = Crew { schedule, ..crew(&ledger, Duration::from_millis(200)) };
        let stalled = AtomicBool::new(false);
        let work = |job: usize, _: &[u8]| {
            if job == 0 && !stalled.swap(true, Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(Some(job as u64 * BS))
        };
        let run = crew.work(work).unwrap().clock_out();
        let (ops, elapsed) = (run.figures.ops, run.figures.elapsed);
        assert!(u128::from(ops) <= elapsed.as_millis() + 8, "{ops} operations in {elapsed:?}");
        // One call was slow, and made the operations late that were due meanwhile: one each 8 ms.
        let lat = run.timings.lat.unwrap();
        let late = |from_ms: u64| lat.count_between(from_ms * 1_000_000, u64::MAX);
        assert!(late(99) >= 1 && late(20) >= 9, "{} of {} were late", late(20), lat.len());
    }

    #[test]
    fn what_is_never_begun_counts_as_late() {
        let ledger = Ledger::new(1, BS, 8, Places::Rewritten);
        let schedule = Some(Schedule::new(1000, 1));
        let crew = Crew { schedule, numjobs: 1, ..crew(&ledger, Duration::from_millis(50)) };
        let work = |_: usize, _: &[u8]| {
            std::thread::sleep(Duration::from_millis(100));
            Ok(Some(0))
        };
        let shift = crew.work(work).unwrap();
        let counted = shift.done[0].timings.lat.as_ref().unwrap().len();
        assert_eq!(counted, 1, "the clock runs: what was missed is counted later");
        let run = shift.clock_out();
        assert_eq!((run.figures.ops, run.timings.clat.len()), (1, 1));
        let lat = run.timings.lat.unwrap();
        assert_eq!(lat.len(), 50);
        assert!(lat.min() >= 50_000_000, "{}", lat.min());
    }

    #[test]
    fn a_full_file_misses_nothing() {
        let ledger = Ledger::new(1, BS, 8, Places::Rewritten);
        let schedule = Some(Schedule::new(1000, 1));
        let crew = Crew { schedule, numjobs: 1, ..crew(&ledger, LONG) };
        let shift = crew.work(|_, _| Ok(None)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(shift.clock_out().timings.lat.unwrap().len(), 0);
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
