//! The checkpoint scenario: a block of each file is written, then all files are made durable
//! together, again and again.
//!
//! The workload of a database that flushes its data files at a checkpoint. Only the flushes are
//! timed.

use super::blocks::Places;
use super::figures::RouteRun;
use super::latency::Timings;
use super::ledger::Ledger;
use super::set::{self, Set};
use super::stamp::{Stamp, fill_as_job};
use super::task::Task;
use super::work::{Route, Space};
use crate::interrupt;
use crate::meter::parts::Parts;
use anyhow::{Context, Result};
use dioxide::{Buffer, Durability, Growth, OpenOptions};
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::{Builder, scope};
use std::time::Instant;

/// One run. The files are made before, and closed after it.
pub fn run(task: &Task<'_>) -> Result<RouteRun> {
    let set = Set::make(task)?;
    let ledger = task.ledger(Places::Rewritten);
    let run = match task.route {
        Route::Dioxide => through_dioxide(task, &set, &ledger),
        Route::Syncfs { .. } => through_kernel(task, &set, &ledger, || set.sync_file_system()),
        Route::Kernel => by_threads(task, &set, &ledger),
        _ => through_kernel(task, &set, &ledger, || one_by_one(set.files())),
    }?;
    set.verify(&ledger)?;
    Ok(run)
}

fn through_kernel(
    task: &Task<'_>,
    set: &Set,
    ledger: &Ledger,
    flush: impl FnMut() -> Result<()>,
) -> Result<RouteRun> {
    repeat(task, set, ledger, |block, offset| set.write(block, offset).map(drop), flush)
}

fn one_by_one(files: &[File]) -> Result<()> {
    for file in files {
        interrupt::check()?;
        file.sync_data().context("fdatasync")?;
    }
    Ok(())
}

/// The threads exist all the time. Each takes the next file until there is none.
fn by_threads(task: &Task<'_>, set: &Set, ledger: &Ledger) -> Result<RouteRun> {
    let taken = AtomicUsize::new(0);
    scope(|scope| {
        let (done, outcomes) = channel();
        let hire = |number| {
            let (begin, begun) = channel::<()>();
            let (done, taken) = (done.clone(), &taken);
            let work = move || {
                while begun.recv().is_ok() && done.send(take_turns(set.files(), taken)).is_ok() {}
            };
            let thread = Builder::new().name(format!("job {number}"));
            thread.spawn_scoped(scope, work).context("start a thread")?;
            Ok(begin)
        };
        // They end when these are gone.
        let threads = (0..task.point.numjobs).map(hire).collect::<Result<Vec<_>>>()?;
        let flush = || {
            taken.store(0, Relaxed);
            for begin in &threads {
                begin.send(()).context("a thread of the bench ended")?;
            }
            outcomes.iter().take(threads.len()).collect()
        };
        through_kernel(task, set, ledger, flush)
    })
}

fn take_turns(files: &[File], taken: &AtomicUsize) -> Result<()> {
    while let Some(file) = files.get(taken.fetch_add(1, Relaxed)) {
        interrupt::check()?;
        file.sync_data().context("fdatasync")?;
    }
    Ok(())
}

fn through_dioxide(task: &Task<'_>, set: &Set, ledger: &Ledger) -> Result<RouteRun> {
    let mut options = OpenOptions::new();
    options.write(true).durability(Durability::OnSync).growth(Growth::None);
    let files = set.open_with(&options)?;
    let touch = |block: &[u8], offset| {
        let (nth, position) = set.position(offset);
        Ok(files[nth].write_at(block, position)?)
    };
    let run = repeat(task, set, ledger, touch, || Ok(dioxide::sync_all(&files)?))?;
    set::close(files)?;
    Ok(run)
}

/// Touches every file and flushes all of them, until the time is over or the space is used up. At
/// least once.
///
/// `touch` writes a block at an offset of all blocks. `flush` makes all files durable. The time of
/// the run, its CPU time and its requests are those of the flushes alone.
fn repeat(
    task: &Task<'_>,
    set: &Set,
    ledger: &Ledger,
    mut touch: impl FnMut(&[u8], u64) -> Result<()>,
    mut flush: impl FnMut() -> Result<()>,
) -> Result<RouteRun> {
    let mut touches = Touches::new(task, set);
    let mut flushes = Timings::new(false);
    let (mut parts, begun) = (Parts::start(task.place.disk.as_ref()), Instant::now());
    let mut is_full = false;
    while flushes.clat.is_empty() || begun.elapsed() < task.runtime {
        is_full = !touches.begin(flushes.clat.len());
        if is_full {
            break;
        }
        touches.of_all(|stamp, block, offset| {
            ledger.stamp(stamp, block);
            touch(block, offset)
        })?;
        parts.time(|| {
            let submitted = Instant::now();
            flush()?;
            flushes.record(submitted, submitted);
            anyhow::Ok(())
        })?;
        touches.of_all(|stamp, _, offset| ledger.acknowledge(stamp, offset))?;
    }
    let bytes = flushes.clat.len() * set.files().len() as u64 * task.point.sizes.max_bytes;
    let elapsed = parts.elapsed();
    let mut run = RouteRun::new(elapsed, Timings::new(false), flushes, bytes, parts.stop());
    run.figures.is_cut_short = is_full;
    Ok(run)
}

/// One block of each file: in written space one after the other, again and again, in unwritten
/// space each once.
struct Touches {
    block: Buffer,
    files: u64,
    rows: u64,
    space: Space,
    /// The number of checkpoints so far.
    earlier: u64,
}

impl Touches {
    fn new(task: &Task<'_>, set: &Set) -> Self {
        let mut block = Buffer::zeroed(task.point.sizes.max_bytes as usize);
        fill_as_job(0, &mut block);
        let space = task.point.space.unwrap_or(Space::Written);
        Self { block, files: set.files().len() as u64, rows: set.rows(), space, earlier: 0 }
    }

    /// Begins the next checkpoint. False if the space is used up.
    fn begin(&mut self, earlier: u64) -> bool {
        self.earlier = earlier;
        self.space == Space::Written || earlier < self.rows
    }

    /// Calls `each` with the stamp and the offset of the block of each file.
    fn of_all(&mut self, mut each: impl FnMut(Stamp, &mut [u8], u64) -> Result<()>) -> Result<()> {
        let row = self.earlier % self.rows;
        for nth in 0..self.files {
            interrupt::check()?;
            let stamp = Stamp { job: 0, sequence: self.earlier * self.files + nth + 1 };
            let offset = (row * self.files + nth) * self.block.len() as u64;
            each(stamp, &mut self.block, offset)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::examples::checkpoint_point;
    use super::super::place::BenchTarget;
    use super::super::set::examples::task;
    use super::super::work::Point;
    use super::*;
    use anyhow::bail;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    const ROUTES: [Route; 4] =
        [Route::OneThread, Route::Kernel, Route::Syncfs { iodepth: 1 }, Route::Dioxide];

    fn place() -> BenchTarget {
        BenchTarget::directory(&std::env::temp_dir()).unwrap()
    }

    fn point(space: Space) -> Point {
        Point { numjobs: 3, space: Some(space), ..checkpoint_point(5) }
    }

    #[test]
    fn every_path_makes_all_files_durable() {
        let place = place();
        for space in [Space::Written, Space::Unwritten] {
            for route in ROUTES {
                let task = task(&place, point(space), route);
                let run = run(&task).unwrap_or_else(|error| panic!("{route:?}: {error:#}"));
                let figures = run.figures;
                assert!(figures.ops > 0 && run.writes.clat.len() == figures.ops, "{route:?}");
                // 16 blocks are three for each of five files.
                assert!(space == Space::Written || figures.ops <= 3, "{route:?}");
                let is_full = space == Space::Unwritten && figures.ops == 3;
                assert!(is_full || !figures.is_cut_short, "{route:?}");
                let bytes = figures.bw_bytes * figures.elapsed.as_secs_f64();
                assert_eq!(bytes.round() as u64, figures.ops * 5 * 4096);
            }
        }
    }

    #[test]
    fn only_the_flushes_are_timed() {
        const TOUCH: Duration = Duration::from_millis(2);
        let place = place();
        let task = task(&place, point(Space::Written), Route::OneThread);
        let (set, ledger) = (Set::make(&task).unwrap(), task.ledger(Places::Rewritten));
        let touch = |block: &[u8], offset| {
            std::thread::sleep(TOUCH);
            set.write(block, offset).map(drop)
        };
        let begun = Instant::now();
        let run = repeat(&task, &set, &ledger, touch, || Ok(())).unwrap();
        assert!(begun.elapsed() >= task.runtime && run.figures.ops >= 1);
        let touches = run.figures.ops as u32 * set.files().len() as u32;
        let not_timed = begun.elapsed() - run.figures.elapsed;
        assert!(not_timed >= TOUCH * touches, "{not_timed:?}, {touches} touches");
        set.verify(&ledger).unwrap();
    }

    #[test]
    fn one_checkpoint_is_made_in_any_time() {
        let place = place();
        let task =
            Task { runtime: Duration::ZERO, ..task(&place, point(Space::Written), ROUTES[0]) };
        assert_eq!(run(&task).unwrap().figures.ops, 1);
    }

    #[test]
    fn a_failed_flush_ends_the_run_and_acknowledges_nothing() {
        let place = place();
        let task = task(&place, point(Space::Written), Route::Kernel);
        let (set, ledger) = (Set::make(&task).unwrap(), task.ledger(Places::Rewritten));
        let error = through_kernel(&task, &set, &ledger, || bail!("broken")).err().unwrap();
        assert_eq!(error.to_string(), "broken");
        set.files()[1].write_all_at(&Buffer::zeroed(4096), 0).unwrap();
        set.verify(&ledger).unwrap();
    }

    /// A touch that goes to the file of its neighbour.
    #[test]
    fn a_touch_of_another_file_is_found() {
        let place = place();
        let task = task(&place, point(Space::Written), Route::Kernel);
        let (set, ledger) = (Set::make(&task).unwrap(), task.ledger(Places::Rewritten));
        let touch = |block: &[u8], offset: u64| {
            let offset = if offset == 3 * 4096 { 4 * 4096 } else { offset };
            set.write(block, offset).map(drop)
        };
        repeat(&task, &set, &ledger, touch, || set.sync_file_system()).unwrap();
        let complaint = set.verify(&ledger).unwrap_err().to_string();
        assert!(complaint.contains("was acknowledged at 12288 and is not there"), "{complaint}");
    }
}
