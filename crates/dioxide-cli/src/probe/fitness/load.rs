//! The load of a system: its durable writes by several threads, and its other writes beside them.

use super::system::{Beside, RecordSpace, RecordSync, System};
use crate::bench::crew::Crew;
use crate::bench::figures::RouteRun;
use crate::bench::ledger::Ledger;
use crate::bench::place::{BenchTarget, O_DSYNC, RunFile};
use crate::bench::progress::Progress;
use crate::bench::target::{Direction, Target};
use crate::units;
use anyhow::{Context, Result, anyhow, ensure};
use fastrand::Rng;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// A growing file starts anew at this size.
const GROWN_MAX_BYTES: u64 = 64 << 20;
/// The file that is written beside the log.
const BESIDE_BYTES: u64 = 64 << 20;
/// Interval of checking whether the load has ended.
const ATTENTION: Duration = Duration::from_millis(20);

/// The log of one writer.
struct WriterLog {
    ground: RunFile,
    file: File,
    space: RecordSpace,
    sync: RecordSync,
    /// Nothing was written yet.
    is_new: AtomicBool,
    /// The offset of the next record.
    next: AtomicU64,
}

/// Runs the load, and shows the elapsed time.
pub fn run(
    place: &BenchTarget,
    system: &System,
    runtime: Duration,
    progress: &Progress,
) -> Result<RouteRun> {
    let log_bytes = match system.space {
        RecordSpace::Growing => GROWN_MAX_BYTES,
        RecordSpace::Allocated { segment_bytes } | RecordSpace::Recycled { segment_bytes } => {
            segment_bytes
        }
    };
    let beside_bytes = system.beside.map_or(0, |_| BESIDE_BYTES);
    let (room, needed) = (place.room_bytes()?, system.writers as u64 * log_bytes + beside_bytes);
    let about = units::about_bytes;
    ensure!(needed <= room, "{} are free, and {} are needed", about(room), about(needed));
    let log = |_| WriterLog::new(place.prepare()?, system);
    let logs = (0..system.writers).map(log).collect::<Result<Vec<_>>>()?;
    let beside =
        system.beside.map(|beside| anyhow::Ok((beside, other_file(place)?))).transpose()?;
    let ledger = Ledger::Nothing;
    let crew = Crew {
        threads: system.writers,
        bs_max_bytes: system.record_bytes,
        runtime,
        schedule: None,
        direction: Some(Direction::Write),
        ledger: &ledger,
        disk: place.disk.as_ref(),
        watching: None,
    };
    let began = Instant::now();
    // An offset names its log too.
    let aim = |job: usize, _: &mut Rng| {
        progress.pass(began.elapsed());
        let start = logs[job].advance(system.record_bytes, log_bytes);
        Some(Target::block(Direction::Write, job as u64 * log_bytes + start, system.record_bytes))
    };
    let op = |target: Target, record: &mut [u8]| {
        logs[(target.offset / log_bytes) as usize].write(record, target.offset % log_bytes)?;
        Ok(target.offset)
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = beside
            .as_ref()
            .map(|(beside, (_, file))| scope.spawn(|| write_beside(*beside, file, &is_over)));
        let shift = crew.work(aim, op);
        is_over.store(true, Relaxed);
        let other = other.map(|it| it.join().map_err(|_| anyhow!("the load beside panicked")));
        other.transpose()?.transpose()?;
        Ok(shift?.clock_out())
    })
}

impl WriterLog {
    fn new(ground: RunFile, system: &System) -> Result<Self> {
        if let RecordSpace::Recycled { segment_bytes } = system.space {
            ground.fill(segment_bytes)?;
        }
        let flags = if system.sync == RecordSync::Dsync { O_DSYNC } else { OFlags::empty() };
        let file = if system.is_direct { ground.open(flags)? } else { ground.open_cached()? };
        let (is_new, next) = (AtomicBool::new(true), AtomicU64::new(0));
        let log = Self { ground, file, space: system.space, sync: system.sync, is_new, next };
        log.renew()?;
        Ok(log)
    }

    /// Makes the space of the next segment.
    fn renew(&self) -> Result<()> {
        match self.space {
            RecordSpace::Growing => self.file.set_len(0).context("ftruncate"),
            RecordSpace::Allocated { segment_bytes } => {
                self.file.set_len(0).context("ftruncate")?;
                self.ground.preallocate(segment_bytes).context("fallocate")
            }
            RecordSpace::Recycled { .. } => Ok(()),
        }
    }

    /// The offset of the next record; only one thread has this log.
    fn advance(&self, record_bytes: u64, log_bytes: u64) -> u64 {
        let next = self.next.load(Relaxed);
        let start = if next + record_bytes > log_bytes { 0 } else { next };
        self.next.store(start + record_bytes, Relaxed);
        start
    }

    /// Writes a record, and makes it durable. The first one of a later segment waits for its space.
    fn write(&self, record: &[u8], offset: u64) -> Result<()> {
        if !self.is_new.swap(false, Relaxed) && offset == 0 {
            self.renew()?;
        }
        self.file.write_all_at(record, offset).context("pwrite")?;
        match self.sync {
            RecordSync::Fdatasync => self.file.sync_data().context("fdatasync"),
            RecordSync::Fsync => self.file.sync_all().context("fsync"),
            RecordSync::Dsync => Ok(()),
        }
    }
}

/// A written file, and its descriptor.
fn other_file(place: &BenchTarget) -> Result<(RunFile, File)> {
    let ground = place.prepare()?;
    ground.fill(BESIDE_BYTES)?;
    let file = ground.open_cached()?;
    Ok((ground, file))
}

/// Until the load is over.
fn write_beside(beside: Beside, file: &File, is_over: &AtomicBool) -> Result<()> {
    let Beside { blocks, block_bytes, every } = beside;
    let block = vec![1; block_bytes as usize];
    let mut dice = Rng::with_seed(1);
    let mut due = Instant::now();
    while !is_over.load(Relaxed) {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left.min(ATTENTION));
            continue;
        }
        due = Instant::now() + every;
        for _ in 0..blocks {
            let offset = dice.u64(0..BESIDE_BYTES / block_bytes) * block_bytes;
            file.write_all_at(&block, offset).context("pwrite beside the log")?;
        }
        file.sync_data().context("fdatasync beside the log")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::system::SYSTEMS;
    use super::*;

    /// The defect: a bar of one run, which stayed empty.
    #[test]
    fn a_minute_of_load_showed_no_progress() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let jetstream = SYSTEMS.iter().find(|system| system.name == "jetstream").unwrap();
        let runtime = Duration::from_millis(30);
        let progress = Progress::of_time(runtime);
        run(&place, jetstream, runtime, &progress).unwrap();
        assert!(progress.passed() > Duration::ZERO);
    }
}
