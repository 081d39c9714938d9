//! The crew: N threads that run operations in a loop behind a common start, with one clock.

use super::figures::RouteRun;
use super::job::{Done, Floor, Job};
use super::latency::Timings;
use super::ledger::Ledger;
use super::queued::{AnyQueue, Queued};
use super::schedule::Schedule;
use super::target::{Direction, Target};
use crate::interrupt;
use crate::meter::Meter;
use crate::meter::disk::Disk;
use anyhow::{Context, Result, anyhow};
use dioxide::{Buffer, Full, Queue};
use dioxide_diagnose::evidence::{Evidence, Subject};
use dioxide_diagnose::watch::{self, Watcher, Whom};
use fastrand::Rng;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

/// Interval of checking for Ctrl-C and of sampling the machine.
const ATTENTION: Duration = Duration::from_millis(50);
/// Prefix of the threads' names.
const JOB: &str = "job";

/// The parameters of a crew.
pub struct Crew<'a> {
    pub threads: usize,
    pub bs_max_bytes: u64,
    pub runtime: Duration,
    /// The start time of each operation. None for closed-loop operation.
    pub schedule: Option<Schedule>,
    /// Of every operation. None if they differ.
    pub direction: Option<Direction>,
    pub ledger: &'a Ledger,
    pub disk: Option<&'a Disk>,
    pub watching: Option<&'a Watching>,
}

/// Observes threads at work.
pub struct Watching {
    pub options: watch::Options,
    pub subject: Subject,
}

/// The threads have finished; the clock still runs.
pub struct Shift<'a> {
    began: Instant,
    meter: Meter<'a>,
    runtime: Duration,
    schedule: Option<Schedule>,
    direction: Option<Direction>,
    done: Vec<Done>,
    evidence: Option<Evidence>,
}

impl<'a> Crew<'a> {
    /// Runs every thread until the time is over or the space is used up.
    ///
    /// `aim` gives the next target of a thread, by its number; None if there is no space for it.
    /// Its random numbers are the thread's own, and the same in every run. `op` performs the
    /// operation, timed. It writes the stamped block, or reads into it, and returns the offset.
    ///
    /// The clock starts with the threads, and still runs on return. The caller ends the route with
    /// a flush or a close, and then calls [`Shift::clock_out`].
    pub fn work(
        &self,
        aim: impl Fn(usize, &mut Rng) -> Option<Target> + Sync,
        op: impl Fn(Target, &mut [u8]) -> Result<u64> + Sync,
    ) -> Result<Shift<'a>> {
        self.shift(|job| job.one_by_one(&aim, &op))
    }

    /// As [`work`](Self::work), with a queue in each thread and `iodepth` operations outstanding.
    ///
    /// `aim` is called with lanes instead of threads: each operation that may be outstanding has a
    /// number that is unique over all threads. `queue_it` queues an operation, with its block and
    /// its tag.
    pub fn work_through_queues(
        &self,
        iodepth: usize,
        aim: impl Fn(usize, &mut Rng) -> Option<Target> + Sync,
        queue_it: impl Fn(&Queue, Target, Buffer, u64) -> Result<(), Full> + Sync,
    ) -> Result<Shift<'a>> {
        self.work_through(iodepth, aim, || Ok(Queued::new(iodepth, self.bs_max_bytes, &queue_it)))
    }

    /// As [`work_through_queues`](Self::work_through_queues), with another kind of queue, which
    /// `make` makes in each thread.
    pub fn work_through<Q: AnyQueue>(
        &self,
        iodepth: usize,
        aim: impl Fn(usize, &mut Rng) -> Option<Target> + Sync,
        make: impl Fn() -> Result<Q> + Sync,
    ) -> Result<Shift<'a>> {
        self.shift(|job| job.many_at_a_time(iodepth, make()?, &aim))
    }

    /// As [`work`](Self::work), with `batch` operations of a thread ended by one `flush`. `aim` is
    /// called with lanes, as for queues. `write` only begins the operation.
    pub fn work_in_batches(
        &self,
        batch: usize,
        aim: impl Fn(usize, &mut Rng) -> Option<Target> + Sync,
        write: impl Fn(Target, &[u8]) -> Result<()> + Sync,
        flush: impl Fn() -> Result<()> + Sync,
    ) -> Result<Shift<'a>> {
        self.shift(|job| job.in_batches(batch, &aim, &write, &flush))
    }

    fn shift(&self, body: impl Fn(&Job<'_>) -> Result<Done> + Sync) -> Result<Shift<'a>> {
        let floor = Floor { gate: RwLock::new(Instant::now()), stop: AtomicBool::new(false) };
        scope(|scope| {
            let mut closed = floor.gate.write().expect("no thread panics with the gate");
            let (ready, events) = channel();
            let hire = |number| {
                let job = Job { number, crew: self, floor: &floor, ready: ready.clone() };
                hire(scope, job, &body)
            };
            let jobs: Result<Vec<_>> = (0..self.threads).map(hire).collect();
            drop(ready);
            // If a thread could not be created, the others end before their first operation.
            floor.stop.store(jobs.is_err(), Relaxed);
            let jobs = jobs?;
            events.iter().take(self.threads).for_each(drop);
            let mut meter = Meter::start(self.disk);
            let began = Instant::now();
            *closed = began;
            drop(closed);
            let evidence = self.watch(|| self.wait(&events, &mut meter));
            floor.stop.store(true, Relaxed);
            jobs.iter().for_each(|job| job.thread().unpark());
            let done: Result<Vec<Done>> = jobs.into_iter().map(join).collect();
            let evidence = evidence?;
            Ok(Shift {
                began,
                meter,
                runtime: self.runtime,
                schedule: self.schedule,
                direction: self.direction,
                done: done?,
                evidence,
            })
        })
    }

    /// Observes the threads, if requested, while `wait` waits.
    fn watch(&self, wait: impl FnOnce() -> Result<()>) -> Result<Option<Evidence>> {
        let whom = Whom::OwnThreads { name_prefix: JOB };
        let start = |watching: &Watching| Watcher::start(whom, watching.options);
        let watcher = self.watching.map(start).transpose()?;
        wait()?;
        let subject = self.watching.map(|watching| watching.subject.clone());
        Ok(watcher.zip(subject).map(|(watcher, subject)| watcher.stop(subject)))
    }

    /// Until the time is over, every thread is done, or Ctrl-C.
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

fn hire<'scope, 'env, Body>(
    scope: &'scope Scope<'scope, 'env>,
    job: Job<'scope>,
    body: &'scope Body,
) -> Result<ScopedJoinHandle<'scope, Result<Done>>>
where
    Body: Fn(&Job<'_>) -> Result<Done> + Sync,
{
    let thread = Builder::new().name(format!("{JOB} {}", job.number));
    let work = move || body(&job).inspect_err(|_| job.give_up());
    thread.spawn_scoped(scope, work).context("start a thread")
}

fn join(job: ScopedJoinHandle<'_, Result<Done>>) -> Result<Done> {
    job.join().unwrap_or_else(|_| Err(anyhow!("a thread of the bench panicked")))
}

impl Shift<'_> {
    /// Closes dioxide's file, and then stops the clock.
    pub fn close(self, file: dioxide::File) -> Result<RouteRun> {
        let stats = file.stats();
        file.close()?;
        let mut run = self.clock_out();
        run.figures.stats = Some(stats);
        Ok(run)
    }

    /// Stops the clock, then computes the figures.
    pub fn clock_out(self) -> RouteRun {
        let elapsed = self.began.elapsed();
        let usage = self.meter.stop();
        let sum = |of: fn(&Done) -> &Timings| {
            let mut sum = Timings::new(self.schedule.is_some());
            self.done.iter().for_each(|done| sum.add(of(done)));
            sum
        };
        let (mut reads, mut writes) = (sum(|done| &done.reads), sum(|done| &done.writes));
        let miss = |timings: &mut Timings| {
            let missed = self
                .schedule
                .into_iter()
                .flat_map(|schedule| missed(schedule, &self.done, elapsed.min(self.runtime)));
            missed.for_each(|due| timings.miss(elapsed - due));
        };
        match self.direction {
            Some(Direction::Read) => miss(&mut reads),
            Some(Direction::Write) => miss(&mut writes),
            None => {}
        }
        let bytes = self.done.iter().map(|done| done.bytes).sum();
        let mut run = RouteRun::new(elapsed, reads, writes, bytes, usage);
        if self.direction.is_none() {
            miss(&mut run.timings);
            run.figures.p99_ns = run.timings.p99_ns();
        }
        RouteRun { evidence: self.evidence, ..run }
    }
}

/// The due times, before `end`, of operations that were never begun.
fn missed(schedule: Schedule, done: &[Done], end: Duration) -> impl Iterator<Item = Duration> {
    done.iter().enumerate().flat_map(move |(job, done)| {
        done.next.into_iter().flat_map(move |next| schedule.missed(job, next, end))
    })
}

/// Crews for tests.
#[cfg(test)]
pub mod examples {
    use super::*;

    pub fn crew(threads: usize, bs_max_bytes: u64, ledger: &Ledger, runtime: Duration) -> Crew<'_> {
        let (schedule, direction, disk, watching) = (None, None, None, None);
        Crew { threads, bs_max_bytes, runtime, schedule, direction, ledger, disk, watching }
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::{Blocks, Places};
    use super::*;
    use std::sync::atomic::AtomicU64;

    const BS: u64 = 4096;
    const LONG: Duration = Duration::from_secs(3600);

    /// One block per thread.
    fn aim(job: usize, _: &mut Rng) -> Option<Target> {
        Some(Target::block(Direction::Write, job as u64 * BS, BS))
    }

    fn crew(ledger: &Ledger, runtime: Duration) -> Crew<'_> {
        examples::crew(8, BS, ledger, runtime)
    }

    #[test]
    fn works_until_the_time_is_over() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 8, Places::Rewritten));
        let runtime = Duration::from_millis(30);
        let performed = AtomicU64::new(0);
        let op = |target: Target, _: &mut [u8]| {
            performed.fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            Ok(target.offset)
        };
        let run = crew(&ledger, runtime).work(aim, op).unwrap().clock_out();
        let performed = performed.into_inner();
        assert!(run.figures.elapsed >= runtime);
        assert_eq!((run.figures.ops, run.timings.clat.len()), (performed, performed));
        // On a busy machine no thread may begin in time.
        assert!(performed == 0 || run.timings.clat.min() >= 900_000);
    }

    #[test]
    fn a_given_load_is_kept_and_lateness_counted() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 8, Places::Rewritten));
        let schedule = Some(Schedule::new(1000, 8));
        let crew = Crew { schedule, ..crew(&ledger, Duration::from_millis(200)) };
        let stalled = AtomicBool::new(false);
        let op = |target: Target, _: &mut [u8]| {
            if target.offset == 0 && !stalled.swap(true, Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(target.offset)
        };
        let run = crew.work(aim, op).unwrap().clock_out();
        let (ops, elapsed) = (run.figures.ops, run.figures.elapsed);
        assert!(u128::from(ops) <= elapsed.as_millis() + 8, "{ops} operations in {elapsed:?}");
        // One call was slow. It delayed one operation every 8 ms.
        let lat = run.timings.lat.unwrap();
        let late = |from_ms: u64| lat.count_between(from_ms * 1_000_000, u64::MAX);
        assert!(late(99) >= 1 && late(20) >= 9, "{} of {} were late", late(20), lat.len());
    }

    #[test]
    fn what_is_never_begun_counts_as_late() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 8, Places::Rewritten));
        let schedule = Some(Schedule::new(1000, 1));
        let runtime = Duration::from_millis(50);
        let crew = Crew { schedule, threads: 1, ..crew(&ledger, runtime) };
        // The crew unparks its threads once it stops.
        let op = |target: Target, _: &mut [u8]| {
            std::thread::park();
            Ok(target.offset)
        };
        let shift = crew.work(aim, op).unwrap();
        let counted = shift.done[0].writes.lat.as_ref().unwrap().len();
        // On a busy machine the thread may not begin in time.
        assert!(counted <= 1, "the clock runs: what was missed is counted later");
        std::thread::sleep(runtime);
        let run = shift.clock_out();
        assert_eq!((run.figures.ops, run.timings.clat.len()), (counted, counted));
        let lat = run.timings.lat.unwrap();
        assert_eq!(lat.len(), 50);
        assert!(lat.min() >= 50_000_000, "{}", lat.min());
    }

    /// Operations that a stall kept from beginning were only in the percentiles of all rounds, not
    /// in those of a round and of a direction.
    #[test]
    fn the_p99_of_a_round_forgot_what_was_never_begun() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 8, Places::Rewritten));
        let runtime = Duration::from_millis(50);
        for direction in [Some(Direction::Read), Some(Direction::Write), None] {
            let schedule = Some(Schedule::new(1000, 1));
            let crew = Crew { schedule, direction, threads: 1, ..crew(&ledger, runtime) };
            let way = direction.unwrap_or(Direction::Write);
            let aim = move |_: usize, _: &mut Rng| Some(Target::block(way, 0, BS));
            // The crew unparks its threads once it stops.
            let op = |target: Target, _: &mut [u8]| {
                std::thread::park();
                Ok(target.offset)
            };
            let shift = crew.work(aim, op).unwrap();
            std::thread::sleep(runtime);
            let run = shift.clock_out();
            assert!(run.figures.p99_ns >= 95_000_000, "{direction:?}: {}", run.figures.p99_ns);
            assert_eq!(run.figures.p99_ns, run.timings.p99_ns());
            let count = |timings: &Timings| timings.lat.as_ref().unwrap().len();
            let counts = (count(&run.reads), count(&run.writes));
            match direction {
                Some(Direction::Read) => assert_eq!(counts, (50, 0)),
                Some(Direction::Write) => assert_eq!(counts, (0, 50)),
                // No direction is known of the others.
                None => assert!(counts.1 <= 1 && count(&run.timings) == 50, "{counts:?}"),
            }
        }
    }

    #[test]
    fn a_full_file_misses_nothing() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 8, Places::Rewritten));
        let schedule = Some(Schedule::new(1000, 1));
        let crew = Crew { schedule, threads: 1, ..crew(&ledger, LONG) };
        let shift = crew.work(|_, _| None, |_, _| Ok(0)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(shift.clock_out().timings.lat.unwrap().len(), 0);
    }

    #[test]
    fn works_until_there_is_no_space() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 100, Places::OnceEach));
        let next = AtomicU64::new(0);
        let aim = |_: usize, _: &mut Rng| {
            let number = next.fetch_add(1, Relaxed);
            (number < 100).then_some(Target::append(number + 1, number * BS, BS))
        };
        let op = |target: Target, block: &mut [u8]| {
            assert_eq!(block.len() as u64, BS);
            Ok(target.offset)
        };
        let run = crew(&ledger, LONG).work(aim, op).unwrap().clock_out();
        assert_eq!(run.figures.ops, 100);
    }

    #[test]
    fn reads_and_writes_are_told_apart() {
        // Of each reading thread, and of each writing one.
        const READS: u64 = 3;
        const WRITES: u64 = 2;
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 8, Places::Rewritten));
        let begun = [const { AtomicU64::new(0) }; 8];
        let aim = |job: usize, _: &mut Rng| {
            let (direction, count) =
                if job < 4 { (Direction::Read, READS) } else { (Direction::Write, WRITES) };
            let is_left = begun[job].fetch_add(1, Relaxed) < count;
            is_left.then(|| Target::block(direction, job as u64 * BS, BS))
        };
        let op = |target: Target, _: &mut [u8]| {
            if target.direction == Direction::Write {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(target.offset)
        };
        let run = crew(&ledger, LONG).work(aim, op).unwrap().clock_out();
        let figures = &run.figures;
        assert_eq!((run.reads.clat.len(), run.writes.clat.len()), (4 * READS, 4 * WRITES));
        assert_eq!(figures.ops, 4 * (READS + WRITES));
        assert!(run.writes.clat.min() >= 5_000_000);
        let seconds = figures.elapsed.as_secs_f64();
        let counts = [figures.read_iops, figures.write_iops].map(|iops| (iops * seconds).round());
        assert_eq!(counts, [(4 * READS) as f64, (4 * WRITES) as f64]);
    }

    #[test]
    fn what_was_not_written_is_not_read() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 1, Places::Rewritten));
        let written = std::sync::Mutex::new(Vec::new());
        let aim = |_: usize, dice: &mut Rng| {
            let direction = if dice.bool() { Direction::Read } else { Direction::Write };
            Some(Target::block(direction, 0, BS))
        };
        // Stores two writes only.
        let op = |target: Target, block: &mut [u8]| {
            let mut written = written.lock().unwrap();
            match target.direction {
                Direction::Write => written.push(block.to_vec()),
                Direction::Read => match written.len() {
                    0 => {}
                    len => block.copy_from_slice(&written[len.min(2) - 1]),
                },
            }
            Ok(target.offset)
        };
        let crew = Crew { threads: 1, ..crew(&ledger, LONG) };
        let error = crew.work(aim, op).err().unwrap().to_string();
        assert!(error.contains("of thread 0 was acknowledged at 0 and is not there"), "{error}");
    }

    #[test]
    fn one_failure_stops_all() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 8, Places::Rewritten));
        let op = |target: Target, _: &mut [u8]| match target.offset / BS {
            3 => Err(anyhow!("broken")),
            _ => Ok(target.offset),
        };
        let error = crew(&ledger, LONG).work(aim, op).err().unwrap();
        assert_eq!(error.to_string(), "broken");
    }

    #[test]
    fn the_clock_runs_until_clock_out() {
        let ledger = Ledger::Blocks(Blocks::new(1, BS, 8, Places::Rewritten));
        let shift = crew(&ledger, LONG).work(|_, _| None, |_, _| Ok(0)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(shift.clock_out().figures.elapsed >= Duration::from_millis(20));
    }
}
