//! Whether operations of one kind on one file or device run in parallel. Compares the rates of 1, 2
//! and 8 threads, and counts how many of the 8 wait for a lock.

use super::document::{Concurrency, WriteTarget};
use super::site::Site;
use super::turns::{ROUNDS, in_turn};
use super::verdict::verdict;
use super::waits::Looks;
use crate::bench::progress::Progress;
use crate::bench::ratio::{Ratio, median};
use anyhow::{Context, Result};
use rustix::fs::OFlags;
use rustix::thread::{Pid, gettid};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{RwLock, mpsc};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

const SLICE: Duration = Duration::from_millis(70);
const CREWS: [usize; 3] = [1, 2, 8];
/// Interval of sampling where threads wait.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The number of turns for one kind of operation.
pub const TURNS: u64 = ROUNDS as u64 * CREWS.len() as u64;

/// One number of threads for one kind of operation, with its results so far.
struct ProbeCrew<'a> {
    site: &'a Site,
    threads: usize,
    iops: Vec<f64>,
    looks: Looks,
}

/// Compares 1, 2 and 8 threads at each of the sites.
pub fn of(sites: &[Site], progress: &Progress) -> Result<Vec<Concurrency>> {
    let crews = |site| {
        CREWS.map(|threads| ProbeCrew { site, threads, iops: Vec::new(), looks: Looks::default() })
    };
    let mut all: Vec<_> = sites.iter().flat_map(crews).collect();
    in_turn(&mut all, ROUNDS, |crew| {
        progress.tell("writers side by side");
        let iops = crew.slice()?;
        crew.iops.push(iops);
        progress.advance();
        Ok(())
    })?;
    Ok(all.chunks(CREWS.len()).filter_map(compare).collect())
}

impl ProbeCrew<'_> {
    /// Operations per second of all threads together.
    fn slice(&mut self) -> Result<f64> {
        self.site.lay_out()?;
        let shift = ProbeShift { site: self.site, gate: RwLock::new(()), is_over: false.into() };
        let (shift, (sender, receiver)) = (&shift, mpsc::channel());
        let done = thread::scope(|scope| {
            let closed = shift.gate.write().expect("no worker panics with the gate");
            let start = |number| {
                let sender = sender.clone();
                let work = move || shift.work(number, sender);
                Builder::new().spawn_scoped(scope, work).context("start a thread")
            };
            let workers: Result<Vec<_>> = (0..self.threads as u64).map(start).collect();
            drop(sender);
            // If a thread could not be created, the others end before their first operation.
            shift.is_over.store(workers.is_err(), Relaxed);
            let workers = workers?;
            let tasks: Vec<_> = receiver.iter().collect();
            drop(closed);
            let begun = Instant::now();
            while begun.elapsed() < SLICE && !workers.iter().all(|worker| worker.is_finished()) {
                thread::sleep(LOOK_EVERY);
                // A single thread waits for its own operation.
                if self.threads > 1 {
                    self.looks.look(&tasks);
                }
            }
            shift.is_over.store(true, Relaxed);
            let done = workers.into_iter().map(|worker| worker.join().expect("no worker panics"));
            done.collect::<Result<Vec<_>>>()
        })?;
        let longest =
            done.iter().map(|(_, elapsed)| *elapsed).max().context("a crew has threads")?;
        let count: u64 = done.iter().map(|(count, _)| count).sum();
        Ok(count as f64 / longest.as_secs_f64())
    }
}

/// The shared state of a crew for one slice of time.
struct ProbeShift<'a> {
    site: &'a Site,
    /// Held for writing until all threads are ready.
    gate: RwLock<()>,
    is_over: AtomicBool,
}

impl ProbeShift<'_> {
    /// The number of operations of a thread, and their time. Sends its ID first, even on failure,
    /// because the caller waits for it.
    fn work(&self, number: u64, task: mpsc::Sender<Pid>) -> Result<(u64, Duration)> {
        let opened = self.site.open(OFlags::empty(), number);
        // The receiver waits for the IDs of all threads.
        let _ = task.send(gettid());
        drop(task);
        drop(self.gate.read().expect("the start does not panic with the gate"));
        let mut opened = opened?;
        let (begun, mut count) = (Instant::now(), 0);
        while !self.is_over.load(Relaxed) && opened.step()? {
            count += 1;
        }
        Ok((count, begun.elapsed()))
    }
}

/// The result for one kind of operation, from its crews.
fn compare(crews: &[ProbeCrew<'_>]) -> Option<Concurrency> {
    let [one, two, eight] = crews else { return None };
    let ratios = |crew: &ProbeCrew<'_>| -> Vec<f64> {
        crew.iops.iter().zip(&one.iops).map(|(many, one)| many / one).collect()
    };
    let (ratios_8, waiters) = (ratios(eight), eight.looks.waiters());
    Some(Concurrency {
        target: one.site.target,
        iops_1: median(one.iops.clone())?,
        iops_2: median(two.iops.clone())?,
        iops_8: median(eight.iops.clone())?,
        ratio_2: Ratio::of(ratios(two))?,
        verdict: verdict(&ratios_8, waiters),
        ratio_8: Ratio::of(ratios_8)?,
        lock_waiters_8: waiters.map(|it| it.lock),
        device_waiters_8: waiters.map(|it| it.device),
        overlap_share_8: waiters.map(|it| it.overlap),
        wait_channel: eight.looks.most_frequent(),
    })
}

/// The kinds that are compared if files can be written.
pub const TARGETS: [WriteTarget; 5] = [
    WriteTarget::Append,
    WriteTarget::Hole,
    WriteTarget::Unwritten,
    WriteTarget::Overwrite,
    WriteTarget::PartialOverwrite,
];
