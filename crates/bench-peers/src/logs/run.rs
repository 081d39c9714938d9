//! One run of one case: a new log, the records, and a look at what it has afterwards.

use super::case::Case;
use super::ledger::Ledger;
use super::peers::{self, Peer, Site};
use crate::bench::latency::Timings;
use crate::bench::place::BenchTarget;
use crate::meter::{Meter, Usage};
use crate::rounds::{self, Rated};
use anyhow::{Context, Result, anyhow};
use rustix::fs::syncfs;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const PERCENTILE: f64 = 99.0;

/// The target, and the common parts of its runs.
pub struct Course {
    pub place: BenchTarget,
    pub dir: PathBuf,
    pub size_bytes: u64,
    pub runtime: Duration,
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
    /// The 99th percentile of the calls that append, in microseconds.
    pub p99_us: f64,
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
        let peer = peers::open(case.kind, &site)?;
        // Preparation is stable, and earlier runs disturb no more.
        syncfs(File::open(&self.dir)?)?;

        let ledger = Ledger::new(case.record_bytes);
        let meter = Meter::start(self.place.disk.as_ref());
        let began = Instant::now();
        let deadline = began + self.runtime;
        let lanes = append(peer.as_ref(), case, &ledger, |_| Instant::now() < deadline)?;
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

/// Each lane appends while it should go on, given the number of records that it has appended.
pub fn append(
    peer: &dyn Peer,
    case: Case,
    ledger: &Ledger,
    goes_on: impl Fn(u64) -> bool + Sync,
) -> Result<Vec<Lane>> {
    let work = &|lane| -> Result<Lane> {
        let (mut records, mut timings) = (0, Timings::new(false));
        let mut batch = vec![ledger.record(lane); case.shape.at_once()];
        while goes_on(records) {
            for record in &mut batch {
                records += 1;
                ledger.stamp(lane, records, record);
            }
            let called = Instant::now();
            match &batch[..] {
                [record] => peer.append(lane, record)?,
                batch => peer.append_batch(&batch.iter().map(Vec::as_slice).collect::<Vec<_>>())?,
            }
            timings.record(called, called);
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
    let mut timings = Timings::new(false);
    lanes.iter().for_each(|lane| timings.add(&lane.timings));
    Figures {
        rate: records / elapsed.as_secs_f64(),
        cpu_us_per_record: (usage.cpu.user + usage.cpu.system).as_secs_f64() * 1e6 / records,
        flushes_per_record: usage.disk.map(|counts| counts.flushes as f64 / records),
        p99_us: timings.clat.value_at_percentile(PERCENTILE) as f64 / 1e3,
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
