//! The mixed scenario: N threads read and rewrite blocks of one file or device, in random order.
//!
//! Until 2015 the kernel counted running direct I/O per inode, also for block devices. Each
//! operation updated that atomic counter twice; threads shared nothing else.
//!
//! Thread k of N owns every N-th block, so its blocks are spread over the file. Every read then has
//! one correct result: the last write of its own thread. In a queue each outstanding operation owns
//! blocks as a thread does.

use super::blocks::Places;
use super::figures::RouteRun;
use super::ledger::{End, Ledger};
use super::place::RunFile;
use super::target::{Direction, Target};
use super::task::Task;
use super::work::{Backend, Route};
use anyhow::{Context, Result, ensure};
use dioxide::{Growth, OpenOptions, Queue};
use fastrand::Rng;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One run. The file is written before the clock starts.
pub fn run(task: &Task<'_>) -> Result<RouteRun> {
    let ground = task.place.prepare()?;
    let bytes = task.whole_blocks_bytes();
    match task.route {
        // Its blocks are in memory, as in a program that runs for long.
        Route::Buffered => ground.fill_cached(bytes),
        _ => ground.fill(bytes),
    }
    .context("write the blocks beforehand")?;
    let ledger = task.ledger(Places::Rewritten);
    let run = match task.route {
        Route::Serialised => counted(task, &ground, &ledger),
        Route::Buffered => through_the_page_cache(task, &ground, &ledger),
        Route::Dioxide => through_dioxide(task, &ground, &ledger),
        Route::Queue { iodepth } => through_queues(task, iodepth, &ground, &ledger),
        _ => through_kernel(task, &ground, &ledger),
    }?;
    task.conclude(run, &ground, &ledger, End::Anywhere)
}

fn through_kernel(task: &Task<'_>, ground: &RunFile, ledger: &Ledger) -> Result<RouteRun> {
    let file = ground.open(task.flags())?;
    let flushes_apart = task.flushes_apart();
    let shift = task.crew(ledger).work(aim(task), |target, block| {
        let offset = transfer(&file, target, block)?;
        if flushes_apart && target.direction == Direction::Write {
            file.sync_data().context("fdatasync")?;
        }
        Ok(offset)
    })?;
    file.sync_data().context("fdatasync")?;
    Ok(shift.clock_out())
}

/// As the kernel did: all operations update one counter.
fn counted(task: &Task<'_>, ground: &RunFile, ledger: &Ledger) -> Result<RouteRun> {
    let file = ground.open(task.flags())?;
    let count = Count::default();
    let shift = task.crew(ledger).work(aim(task), |target, block| {
        count.0.fetch_add(1, Relaxed);
        let outcome = transfer(&file, target, block);
        count.0.fetch_sub(1, Relaxed);
        outcome
    })?;
    file.sync_data().context("fdatasync")?;
    Ok(shift.clock_out())
}

/// Durable writes, each with a flush of its own.
fn through_the_page_cache(task: &Task<'_>, ground: &RunFile, ledger: &Ledger) -> Result<RouteRun> {
    let file = ground.open_cached()?;
    let shift = task.crew(ledger).work(aim(task), |target, block| {
        let offset = transfer(&file, target, block)?;
        if target.direction == Direction::Write {
            file.sync_data().context("fdatasync")?;
        }
        Ok(offset)
    })?;
    file.sync_data().context("fdatasync")?;
    Ok(shift.clock_out())
}

fn through_dioxide(task: &Task<'_>, ground: &RunFile, ledger: &Ledger) -> Result<RouteRun> {
    let file = open(task, ground)?;
    let shift = task.crew(ledger).work(aim(task), |Target { direction, offset, .. }, block| {
        match direction {
            Direction::Write => file.write_at(block, offset)?,
            Direction::Read => {
                let read = file.read_at(block, offset)?;
                ensure!(read == block.len(), "{read} of {} bytes read at {offset}", block.len());
            }
        }
        Ok(offset)
    })?;
    shift.close(file)
}

fn through_queues(
    task: &Task<'_>,
    iodepth: usize,
    ground: &RunFile,
    ledger: &Ledger,
) -> Result<RouteRun> {
    let file = open(task, ground)?;
    let queue_it = |queue: &Queue, Target { direction, offset, .. }, block, tag| match direction {
        Direction::Write => queue.write_at(&file, block, offset, tag),
        Direction::Read => queue.read_at(&file, block, offset, tag),
    };
    let shift = task.crew(ledger).work_through_queues(iodepth, aim(task), queue_it)?;
    shift.close(file)
}

fn open(task: &Task<'_>, ground: &RunFile) -> Result<dioxide::File> {
    let mut options = OpenOptions::new();
    options.write(true).durability(task.point.durability).growth(Growth::None);
    let file = ground.open_with(&options)?;
    // A simulated file stores no data, only its length.
    if task.point.backend == Backend::Sim {
        file.set_len(task.whole_blocks_bytes())?;
    }
    Ok(file)
}

/// Padded against false sharing, also of the pairs of lines that some processors fetch.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// A thread's next block, and whether it is read or written.
fn aim(task: &Task<'_>) -> impl Fn(usize, &mut Rng) -> Option<Target> {
    let (bs_bytes, lanes) = (task.point.sizes.max_bytes, task.point.lanes(task.route) as u64);
    let own_blocks = task.whole_blocks_bytes() / bs_bytes / lanes;
    let rwmixread = task.point.rwmixread.unwrap_or(0);
    move |lane, dice| {
        let direction =
            if dice.u32(0..100) < rwmixread { Direction::Read } else { Direction::Write };
        let block = dice.u64(0..own_blocks) * lanes + lane as u64;
        Some(Target::block(direction, block * bs_bytes, bs_bytes))
    }
}

fn transfer(file: &File, target: Target, block: &mut [u8]) -> Result<u64> {
    let Target { direction, offset, .. } = target;
    match direction {
        Direction::Write => {
            file.write_all_at(block, offset).with_context(|| format!("pwrite at {offset}"))?
        }
        Direction::Read => {
            file.read_exact_at(block, offset).with_context(|| format!("pread at {offset}"))?
        }
    }
    Ok(offset)
}
