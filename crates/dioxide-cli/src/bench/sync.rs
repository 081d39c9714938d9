//! The sync scenario: N threads rewrite a region of their own each, every write stable before the
//! next.
//!
//! The workload of a regression of block devices in 2009. It runs on a device, on a prewritten
//! file, or on several of them as a striped volume. It also runs on one thread with a queue, with a
//! region for each of its operations.

use super::blocks::Places;
use super::figures::RouteRun;
use super::ledger::{End, Ledger};
use super::members::Members;
use super::place::RunFile;
use super::target::{Direction, Target};
use super::task::Task;
use super::work::Route;
use anyhow::{Context, Result};
use dioxide::{Durability, Growth, OpenOptions};
use fastrand::Rng;
use rustix::fs::OFlags;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// One run.
pub fn run(task: &Task<'_>) -> Result<RouteRun> {
    let ground = task.place.prepare()?;
    let regions_bytes = task.point.numjobs as u64 * task.point.sizes.max_bytes;
    ground.fill(regions_bytes).context("write the regions beforehand")?;
    let ledger = task.ledger(Places::Rewritten);
    let run = match task.route {
        Route::Serialised => under_a_lock(task, &ground, &ledger),
        Route::Dioxide => through_dioxide(task, &ground, &ledger),
        Route::Queue { iodepth } => through_a_queue(task, iodepth, &ground, &ledger),
        _ => through_kernel(task, &ground, &ledger),
    }?;
    task.conclude(run, &ground, &ledger, End::Anywhere)
}

/// As the kernel did: one flush at a time, each for its own write only.
fn under_a_lock(task: &Task<'_>, ground: &RunFile, ledger: &Ledger) -> Result<RouteRun> {
    let file = ground.open_members(OFlags::empty())?;
    let flush = Mutex::new(());
    let shift = task.crew(ledger).work(aim(task), |Target { offset, .. }, block| {
        pwrite(&file, block, offset)?;
        let _alone = flush.lock().unwrap_or_else(PoisonError::into_inner);
        file.sync_data().context("fdatasync")?;
        Ok(offset)
    })?;
    Ok(shift.clock_out())
}

fn through_kernel(task: &Task<'_>, ground: &RunFile, ledger: &Ledger) -> Result<RouteRun> {
    let file = with_flushes(task, ground)?;
    let flushes_apart = task.flushes_apart();
    let shift = task.crew(ledger).work(aim(task), |Target { offset, .. }, block| {
        pwrite(&file, block, offset)?;
        if flushes_apart {
            file.sync_data().context("fdatasync")?;
        }
        Ok(offset)
    })?;
    Ok(shift.clock_out())
}

/// With O_DSYNC, unless each write has an fdatasync: the other paths make no timestamps durable.
fn with_flushes(task: &Task<'_>, ground: &RunFile) -> Result<Members> {
    ground.open_members(task.flags())
}

fn through_dioxide(task: &Task<'_>, ground: &RunFile, ledger: &Ledger) -> Result<RouteRun> {
    let file = ground.open_with(&options())?;
    let shift = task.crew(ledger).work(aim(task), |Target { offset, .. }, block| {
        file.write_at(block, offset)?;
        Ok(offset)
    })?;
    shift.close(file)
}

fn through_a_queue(
    task: &Task<'_>,
    iodepth: usize,
    ground: &RunFile,
    ledger: &Ledger,
) -> Result<RouteRun> {
    let file = ground.open_with(&options())?;
    let shift = task.crew(ledger).work_through_queues(
        iodepth,
        aim(task),
        |queue, target, block, tag| queue.write_at(&file, block, target.offset, tag),
    )?;
    shift.close(file)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).durability(Durability::EveryWrite).growth(Growth::None);
    options
}

/// A thread's own region, every time. In a queue each operation has one.
fn aim(task: &Task<'_>) -> impl Fn(usize, &mut Rng) -> Option<Target> {
    let bs_bytes = task.point.sizes.max_bytes;
    move |job, _| Some(Target::block(Direction::Write, job as u64 * bs_bytes, bs_bytes))
}

fn pwrite(file: &Members, block: &[u8], offset: u64) -> Result<()> {
    file.write_all_at(block, offset).with_context(|| format!("pwrite at {offset}"))
}

#[cfg(test)]
mod tests {
    use super::super::figures::examples::sync_point;
    use super::super::place::BenchTarget;
    use super::super::set::examples::task;
    use super::*;
    use rustix::fs::fcntl_getfl;

    #[test]
    fn the_kernel_made_timestamps_durable_alone() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let ground = place.prepare().unwrap();
        let members = with_flushes(&task(&place, sync_point(), Route::Kernel), &ground).unwrap();
        let flags = fcntl_getfl(&members.files()[0]).unwrap().bits();
        assert_eq!(flags & libc::O_SYNC as u32, libc::O_DSYNC as u32);
    }
}
