//! The files scenario: N threads write blocks of many files of a directory, and every write is
//! durable before the next one of its thread.
//!
//! The workload of a storage server with a file for each shard, topic or tenant. One fdatasync
//! flushes the device for one file, although a flush would serve all files.

use super::blocks::Places;
use super::crew::Shift;
use super::figures::RouteRun;
use super::ledger::Ledger;
use super::queued::{AnyQueue, Finished};
use super::set::{self, Set};
use super::target::{Direction, Target};
use super::task::Task;
use super::work::{Route, Space};
use crate::sync_ring::{FinishedWrite, RingWrites};
use anyhow::{Context, Result};
use dioxide::{Buffer, Durability, Growth, OpenOptions, Queue};
use fastrand::Rng;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One run. The files are made before the clock starts, and closed after it.
pub fn run(task: &Task<'_>) -> Result<RouteRun> {
    let set = Set::make(task)?;
    let ledger = task.ledger(Places::Rewritten);
    let mut run = match task.route {
        Route::Uring { iodepth } => through_a_ring(task, iodepth, &set, &ledger),
        Route::Syncfs { iodepth } => in_batches(task, iodepth, &set, &ledger),
        Route::Queue { iodepth } => through_a_queue(task, iodepth, &set, &ledger),
        Route::Dioxide => through_dioxide(task, &set, &ledger),
        _ => through_kernel(task, &set, &ledger),
    }?;
    set.verify(&ledger)?;
    run.figures.is_cut_short = run.figures.elapsed < task.runtime;
    Ok(run)
}

fn through_kernel(task: &Task<'_>, set: &Set, ledger: &Ledger) -> Result<RouteRun> {
    let shift = task.crew(ledger).work(aim(task, set), |Target { offset, .. }, block| {
        set.write(block, offset)?.sync_data().context("fdatasync")?;
        Ok(offset)
    })?;
    Ok(shift.clock_out())
}

/// Writes in flight together, and one flush of the file system for a batch. Without io_uring, one
/// write after the other.
fn in_batches(task: &Task<'_>, batch: usize, set: &Set, ledger: &Ledger) -> Result<RouteRun> {
    let crew = task.crew(ledger);
    let Ok(writes) = RingWrites::new(batch, false) else {
        let write = |Target { offset, .. }, block: &[u8]| set.write(block, offset).map(drop);
        let shift =
            crew.work_in_batches(batch, aim(task, set), write, || set.sync_file_system())?;
        return Ok(shift.clock_out());
    };
    let block_bytes = task.point.sizes.max_bytes as usize;
    let spare = (0..batch).map(|_| Buffer::zeroed(block_bytes)).collect();
    let gathered = Mutex::new(Gathered { writes, spare });
    let gathered = || gathered.lock().expect("no thread panics with it");
    let write = |Target { offset, .. }, block: &[u8]| {
        gathered().queue(set, offset, block);
        Ok(())
    };
    let flush = || {
        gathered().finish()?;
        set.sync_file_system()
    };
    Ok(crew.work_in_batches(batch, aim(task, set), write, flush)?.clock_out())
}

/// The writes of a batch, with the blocks that none of them uses.
struct Gathered<'a> {
    writes: RingWrites<'a>,
    spare: Vec<Buffer>,
}

impl<'a> Gathered<'a> {
    fn queue(&mut self, set: &'a Set, offset: u64, bytes: &[u8]) {
        let (slot, (nth, position)) = (self.writes.in_flight(), set.position(offset));
        let mut block = self.spare.pop().expect("there is one for each write of a batch");
        block.copy_from_slice(bytes);
        self.writes.queue(slot, &set.files()[nth], position, block);
    }

    fn finish(&mut self) -> Result<()> {
        let written = self.writes.reap(usize::MAX).context("io_uring_enter")?;
        for FinishedWrite { block, outcome, .. } in written {
            self.spare.push(block);
            outcome.context("a write on io_uring")?;
        }
        Ok(())
    }
}

fn through_a_ring(task: &Task<'_>, iodepth: usize, set: &Set, ledger: &Ledger) -> Result<RouteRun> {
    let make = || {
        let writes = RingWrites::new(iodepth, true).context("io_uring")?;
        Ok(RingQueue { writes, set, block_bytes: task.point.sizes.max_bytes })
    };
    Ok(task.crew(ledger).work_through(iodepth, aim(task, set), make)?.clock_out())
}

fn through_dioxide(task: &Task<'_>, set: &Set, ledger: &Ledger) -> Result<RouteRun> {
    let files = set.open_with(&options())?;
    let shift = task.crew(ledger).work(aim(task, set), |Target { offset, .. }, block| {
        let (nth, position) = set.position(offset);
        files[nth].write_at(block, position)?;
        Ok(offset)
    })?;
    end(shift, files)
}

fn through_a_queue(
    task: &Task<'_>,
    iodepth: usize,
    set: &Set,
    ledger: &Ledger,
) -> Result<RouteRun> {
    let files = set.open_with(&options())?;
    let queue_it = |queue: &Queue, Target { offset, .. }, block, tag| {
        let (nth, position) = set.position(offset);
        queue.write_at(&files[nth], block, position, tag)
    };
    let shift = task.crew(ledger).work_through_queues(iodepth, aim(task, set), queue_it)?;
    end(shift, files)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).durability(Durability::EveryWrite).growth(Growth::None);
    options
}

/// Stops the clock, and then closes dioxide's files: with many files that is no part of the work.
fn end(shift: Shift<'_>, files: Vec<dioxide::File>) -> Result<RouteRun> {
    let mut run = shift.clock_out();
    run.figures.stats = Some(set::refusals(&files));
    set::close(files)?;
    Ok(run)
}

/// The next block of a lane: in written space a random one of its own, in unwritten space the next
/// one of all. None once all are written.
fn aim(task: &Task<'_>, set: &Set) -> impl Fn(usize, &mut Rng) -> Option<Target> {
    let block_bytes = task.point.sizes.max_bytes;
    let blocks = BlockOrder {
        count: set.blocks(),
        lanes: task.point.lanes(task.route) as u64,
        space: task.point.space.unwrap_or(Space::Written),
        taken: AtomicU64::new(0),
    };
    move |lane, dice| {
        let block = blocks.next(lane, dice)?;
        Some(Target::block(Direction::Write, block * block_bytes, block_bytes))
    }
}

/// The order of blocks.
struct BlockOrder {
    count: u64,
    lanes: u64,
    space: Space,
    /// In unwritten space.
    taken: AtomicU64,
}

impl BlockOrder {
    /// Lane k of N owns every N-th block, so lanes write to different files as far as there are
    /// enough.
    fn next(&self, lane: usize, dice: &mut Rng) -> Option<u64> {
        let block = match self.space {
            Space::Written => dice.u64(0..self.count / self.lanes) * self.lanes + lane as u64,
            _ => self.taken.fetch_add(1, Relaxed),
        };
        (block < self.count).then_some(block)
    }
}

/// The kernel's ring as a queue.
struct RingQueue<'a> {
    writes: RingWrites<'a>,
    set: &'a Set,
    block_bytes: u64,
}

impl AnyQueue for RingQueue<'_> {
    fn buffer(&self) -> Buffer {
        Buffer::zeroed(self.block_bytes as usize)
    }

    fn queue(&mut self, target: Target, block: Buffer, tag: u64) {
        let (nth, position) = self.set.position(target.offset);
        self.writes.queue(tag as usize, &self.set.files()[nth], position, block);
    }

    fn count(&self) -> usize {
        self.writes.in_flight()
    }

    fn reap(&mut self, min: usize, each: impl FnMut(Finished) -> Result<()>) -> Result<()> {
        let written = self.writes.reap(min).context("io_uring_enter")?;
        let mut finished = written.into_iter().map(|written| Finished {
            tag: written.slot as u64,
            result: written.outcome.map(|()| 0).context("a write and its fdatasync on io_uring"),
            buffer: written.block,
            is_append: false,
        });
        finished.try_for_each(each)
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::examples::files_point;
    use super::super::place::BenchTarget;
    use super::super::set::examples::task;
    use super::super::work::Point;
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    const LANES: usize = 4;

    fn blocks(space: Space) -> BlockOrder {
        BlockOrder { count: 30, lanes: 4, space, taken: AtomicU64::new(0) }
    }

    fn routes() -> [Route; 6] {
        let iodepth = LANES;
        [
            Route::OneThread,
            Route::Kernel,
            Route::Uring { iodepth },
            Route::Syncfs { iodepth },
            Route::Dioxide,
            Route::Queue { iodepth },
        ]
    }

    #[test]
    fn each_lane_owns_every_nth_block() {
        let (blocks, mut dice) = (blocks(Space::Written), Rng::with_seed(1));
        for lane in 0..LANES {
            let own: BTreeSet<u64> =
                (0..200).map(|_| blocks.next(lane, &mut dice).unwrap()).collect();
            let expected = (0..7).map(|row| row * 4 + lane as u64);
            assert_eq!(own, expected.collect(), "the last two blocks are of no lane");
        }
    }

    #[test]
    fn unwritten_blocks_are_written_once_in_order() {
        let (blocks, mut dice) = (blocks(Space::Unwritten), Rng::with_seed(1));
        let taken: Vec<_> = (0..40).map(|nth| blocks.next(nth % LANES, &mut dice)).collect();
        assert_eq!(taken[..30], (0..30).map(Some).collect::<Vec<_>>());
        assert_eq!(taken[30..], [None; 10]);
    }

    #[test]
    fn every_path_writes_durably_on_all_files() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        for space in [Space::Written, Space::Unwritten] {
            let point = Point { space: Some(space), ..files_point(3, LANES) };
            for route in routes() {
                // A busy machine may begin nothing in 50 ms.
                let runtime = Duration::from_millis(500);
                let task = Task { runtime, ..task(&place, point, route) };
                let run = run(&task).unwrap_or_else(|error| panic!("{route:?}: {error:#}"));
                let (ops, elapsed) = (run.figures.ops, run.figures.elapsed);
                match space {
                    Space::Written => assert!(ops > 0 && elapsed >= task.runtime, "{route:?}"),
                    _ => assert!(ops <= 15, "{route:?}: {ops}"),
                }
                assert_eq!(run.figures.is_cut_short, elapsed < task.runtime);
            }
        }
    }

    #[test]
    fn a_given_load_is_kept_on_every_path() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let point = Point { rate_iops: Some(100), ..files_point(3, LANES) };
        for route in routes() {
            let task = Task { runtime: Duration::from_millis(100), ..task(&place, point, route) };
            let figures = run(&task).unwrap().figures;
            let most = 2 + (100.0 * figures.elapsed.as_secs_f64()) as u64;
            assert!((1..=most).contains(&figures.ops), "{route:?}: {} of {most}", figures.ops);
        }
    }

    /// A write that a path acknowledges and does not do, on one file of several.
    #[test]
    fn a_write_that_was_lost_is_found() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let task = task(&place, files_point(3, LANES), Route::Kernel);
        let set = Set::make(&task).unwrap();
        let ledger = task.ledger(Places::Rewritten);
        let shift = task.crew(&ledger).work(aim(&task, &set), |Target { offset, .. }, block| {
            set.write(block, offset)?;
            Ok(offset)
        });
        assert!(shift.unwrap().clock_out().figures.ops > 0);
        set.verify(&ledger).unwrap();
        let last = &set.files()[2];
        last.write_all_at(&Buffer::zeroed(5 * 4096), 0).unwrap();
        let complaint = set.verify(&ledger).unwrap_err().to_string();
        assert!(complaint.starts_with("verification failed: write "), "{complaint}");
        assert!(complaint.ends_with("is not there"), "{complaint}");
    }
}
