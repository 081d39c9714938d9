//! One run of one case: a new log, the records, and a look at what it has afterwards.

use super::case::Case;
use super::ledger::Ledger;
use super::peers::{self, Peer, Site};
use crate::bench::latency::Timings;
use crate::bench::place::BenchTarget;
use crate::bench::schedule::Schedule;
use crate::meter::{Meter, Usage};
use crate::rounds::{self, Rated};
use anyhow::{Context, Result, anyhow};
use rustix::fs::syncfs;
use rustix::thread::set_current_timer_slack;
use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Maximum lateness of timers with a given rate. The kernel's default is 50 us.
const TIMER_SLACK_NS: u64 = 1;

/// The target, and the common parts of its runs.
pub struct Course {
    pub place: BenchTarget,
    pub dir: PathBuf,
    pub size_bytes: u64,
    pub runtime: Duration,
    /// Records per second, of all lanes. None: as many as possible.
    pub rate: Option<u64>,
}

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Durable records per second.
    pub rate: f64,
    /// CPU time of the process per record, in microseconds.
    pub cpu_us_per_record: f64,
    /// Of the device, by all processes. None if it does not count them.
    pub flushes_per_record: Option<f64>,
    /// The 99th percentile of the calls that append, in microseconds. With a given rate they count
    /// from the time when they were due.
    pub p99_us: f64,
    /// Likewise.
    pub p99_9_us: f64,
}

/// A case with its results.
pub type Row = rounds::Row<Case, Figures>;

impl Rated for Figures {
    fn rate(&self) -> f64 {
        self.rate
    }
}

/// The appends of a thread.
pub struct Lane {
    pub records: u64,
    timings: Timings,
}

impl Course {
    pub fn run(&self, case: Case) -> Result<Figures> {
        self.measure(case).with_context(|| format!("{}, {:?}", case.kind, case.shape))
    }

    fn measure(&self, case: Case) -> Result<Figures> {
        let dir = tempfile::Builder::new().prefix("bench-peers-").tempdir_in(&self.dir)?;
        let (dir_path, lanes) = (dir.path().to_owned(), case.shape.lanes());
        let site = Site { dir: dir_path, lanes, size_bytes: self.size_bytes };
        let peer = peers::open(case.kind, case.shape, &site)?;
        // Preparation is stable, and earlier runs disturb no more.
        syncfs(File::open(&self.dir)?)?;

        let ledger = Ledger::new(case.record_bytes);
        let meter = Meter::start(self.place.disk.as_ref());
        let began = Instant::now();
        let deadline = began + self.runtime;
        let schedule = self.rate.map(|rate| schedule(case, rate));
        let goes_on = |_| Instant::now() < deadline;
        let lanes = append(peer.as_ref(), case, &ledger, schedule, goes_on)?;
        let elapsed = began.elapsed();
        let usage = meter.stop();

        let counts: Vec<_> = lanes.iter().map(|lane| lane.records).collect();
        let mut check = ledger.check(lanes.len());
        peer.read_back(&mut |record| check.see(record)).context("read it back")?;
        check.finish(&counts)?;
        empty(&site.dir)?;
        Ok(figures(&lanes, elapsed, &usage))
    }
}

/// The calls of this many records per second.
fn schedule(case: Case, rate: u64) -> Schedule {
    Schedule::new((rate / case.shape.at_once() as u64).max(1), case.shape.lanes())
}

/// Each lane appends while it should go on, given the number of records that it has appended.
pub fn append(
    peer: &dyn Peer,
    case: Case,
    ledger: &Ledger,
    schedule: Option<Schedule>,
    goes_on: impl Fn(u64) -> bool + Sync,
) -> Result<Vec<Lane>> {
    let began = Instant::now();
    let due = |lane, call| schedule.map(|schedule| began + schedule.due(lane, call));
    let work = &|lane| -> Result<Lane> {
        let (mut records, mut timings) = (0, Timings::new(schedule.is_some()));
        let mut batch = vec![ledger.record(lane); case.shape.at_once()];
        let mut call = 1;
        if schedule.is_some() {
            set_current_timer_slack(NonZero::new(TIMER_SLACK_NS)).context("set the timer slack")?;
        }
        while goes_on(records) {
            let due = due(lane, call);
            if let Some(due) = due {
                sleep(due.saturating_duration_since(Instant::now()));
                if !goes_on(records) {
                    break;
                }
            }
            for record in &mut batch {
                records += 1;
                ledger.stamp(lane, records, record);
            }
            let called = Instant::now();
            match &batch[..] {
                [record] => peer.append(lane, record)?,
                batch => peer.append_batch(&batch.iter().map(Vec::as_slice).collect::<Vec<_>>())?,
            }
            timings.record(due.unwrap_or(called), called);
            call += 1;
        }
        // Calls for which the earlier ones left no time.
        if let Some(schedule) = schedule {
            let elapsed = began.elapsed();
            schedule.missed(lane, call, elapsed).for_each(|due| timings.miss(elapsed - due));
        }
        Ok(Lane { records, timings })
    };
    thread::scope(|scope| {
        let lanes = (0..case.shape.lanes()).map(|lane| scope.spawn(move || work(lane)));
        let lanes: Vec<_> = lanes.collect();
        lanes.into_iter().map(|lane| lane.join().map_err(|_| anyhow!("panicked"))?).collect()
    })
}

fn figures(lanes: &[Lane], elapsed: Duration, usage: &Usage) -> Figures {
    let records = lanes.iter().map(|lane| lane.records).sum::<u64>() as f64;
    let mut timings = Timings::new(lanes.iter().any(|lane| lane.timings.lat.is_some()));
    lanes.iter().for_each(|lane| timings.add(&lane.timings));
    let percentile = |nth| timings.seen().value_at_percentile(nth) as f64 / 1e3;
    Figures {
        rate: records / elapsed.as_secs_f64(),
        cpu_us_per_record: (usage.cpu.user + usage.cpu.system).as_secs_f64() * 1e6 / records,
        flushes_per_record: usage.disk.and_then(|it| Some(it.counted_flushes()? as f64 / records)),
        p99_us: percentile(99.0),
        p99_9_us: percentile(99.9),
    }
}

/// Frees the space of files that some library keeps open.
fn empty(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.is_dir() {
            true => empty(&path)?,
            false => File::options().write(true).open(path)?.set_len(0)?,
        }
    }
    Ok(())
}
