//! The append scenario: N threads, or one with a queue, append to one file, by several routes.
//!
//! All routes draw from the same tickets, so that none exceeds the size cap. All end with stable
//! data inside the clock: dioxide by its close, the others by one fdatasync.
//!
//! For direct write sizes, the kernel's routes write at the offset of the ticket, and dioxide packs
//! partial blocks. Records of any other length are packed on all routes.

use super::backing::{Ahead, Backing};
use super::blocks::Places;
use super::figures::RouteRun;
use super::group_commit::GroupCommit;
use super::growing::GrowthWatch;
use super::ledger::{End, Ledger};
use super::place::RunFile;
use super::tail_block::TailBlock;
use super::target::Target;
use super::task::Task;
use super::tickets::Tickets;
use super::work::{Backend, Route};
use anyhow::{Context, Result};
use dioxide::{Growth, OpenOptions};
use rustix::fs::OFlags;

/// One run.
pub fn run(task: &Task<'_>) -> Result<RouteRun> {
    let ground = task.place.prepare()?;
    let ledger = task.ledger(Places::OnceEach);
    let tickets = Tickets::new(task, &ledger);
    let is_direct = task.point.sizes.are_whole(task.units.write_bytes);
    match task.route {
        // Space that dioxide finds written is written for its rival as well.
        Route::Preallocated if task.point.growth == Some(Growth::Zeroed) => {
            ground.fill(task.whole_blocks_bytes()).context("write the space beforehand")?;
        }
        Route::Preallocated => ground.preallocate(task.size_bytes).context("preallocate")?,
        Route::Sparse => ground.lengthen(task.size_bytes).context("ftruncate")?,
        _ => {}
    }
    let is_within = matches!(task.route, Route::Preallocated | Route::Sparse);
    let end = if is_within && is_direct { End::Anywhere } else { End::AtLast };
    let run = match task.route {
        Route::Dioxide => through_dioxide(task, &ground, &ledger, &tickets),
        Route::Queue { iodepth } => through_a_queue(task, iodepth, &ground, &ledger, &tickets),
        Route::Positional => past_the_end(task, &ground, &ledger, &tickets),
        Route::Recycled => over_an_old_file(task, &ground, &ledger, &tickets),
        Route::BufferedGroup => through_groups(task, &ground, &ledger, &tickets),
        _ if is_direct => through_kernel(task, &ground, &ledger, &tickets),
        _ => through_a_tail_block(task, &ground, &ledger, &tickets),
    }?;
    task.conclude(run, &ground, &ledger, end)
}

/// Appends as programs do it themselves: the ticket is the offset.
fn through_kernel(
    task: &Task<'_>,
    ground: &RunFile,
    ledger: &Ledger,
    tickets: &Tickets<'_>,
) -> Result<RouteRun> {
    let file = ground.open(task.flags())?;
    let shift = task.crew(ledger).work(
        |_, _| tickets.take(),
        |Target { offset, .. }, block| {
            file.pwrite(block, offset).with_context(|| format!("pwrite at {offset}"))?;
            Ok(offset)
        },
    )?;
    file.sync_data().context("fdatasync")?;
    Ok(shift.clock_out())
}

/// Appends of any length, without dioxide.
fn through_a_tail_block(
    task: &Task<'_>,
    ground: &RunFile,
    ledger: &Ledger,
    tickets: &Tickets<'_>,
) -> Result<RouteRun> {
    let file = ground.open(OFlags::empty())?;
    let (durability, unit, max) =
        (task.point.durability, task.units.append_bytes, task.point.sizes.max_bytes);
    let log = TailBlock::new(file, durability, unit, max);
    let shift =
        task.crew(ledger).work(|_, _| tickets.take(), |_, record| Ok(log.append(record)?))?;
    log.finish()?;
    Ok(shift.clock_out())
}

/// The best known way without direct I/O.
fn through_groups(
    task: &Task<'_>,
    ground: &RunFile,
    ledger: &Ledger,
    tickets: &Tickets<'_>,
) -> Result<RouteRun> {
    let space = Ahead::within(task.size_bytes, 0);
    let log = GroupCommit::new(ground.open_cached()?, task.point.durability, space);
    let shift =
        task.crew(ledger).work(|_, _| tickets.take(), |_, record| Ok(log.append(record)?))?;
    log.finish()?;
    Ok(shift.clock_out())
}

/// The ticket only permits an append; the library chooses the offset.
fn through_dioxide(
    task: &Task<'_>,
    ground: &RunFile,
    ledger: &Ledger,
    tickets: &Tickets<'_>,
) -> Result<RouteRun> {
    let file = ground.open_with(&options(task))?;
    if task.point.backend == Backend::Sim {
        return one_by_one(task, file, ledger, tickets);
    }
    let watch = GrowthWatch::new(&file, ground);
    let shift = task.crew(ledger).work(|_, _| tickets.take(), |_, block| watch.append(block))?;
    let growing = watch.result();
    let mut run = shift.close(file)?;
    run.figures.growing = growing;
    Ok(run)
}

/// The ticket is the offset, as for the kernel.
fn past_the_end(
    task: &Task<'_>,
    ground: &RunFile,
    ledger: &Ledger,
    tickets: &Tickets<'_>,
) -> Result<RouteRun> {
    let file = ground.open_with(&options(task))?;
    let shift = task.crew(ledger).work(
        |_, _| tickets.take(),
        |Target { offset, .. }, block| {
            file.write_at(block, offset)?;
            Ok(offset)
        },
    )?;
    shift.close(file)
}

fn through_a_queue(
    task: &Task<'_>,
    iodepth: usize,
    ground: &RunFile,
    ledger: &Ledger,
    tickets: &Tickets<'_>,
) -> Result<RouteRun> {
    let file = ground.open_with(&options(task))?;
    let shift = task.crew(ledger).work_through_queues(
        iodepth,
        |_, _| tickets.take(),
        |queue, _, block, tag| queue.append(&file, block, tag),
    )?;
    shift.close(file)
}

/// The file was filled beforehand and is recycled.
fn over_an_old_file(
    task: &Task<'_>,
    ground: &RunFile,
    ledger: &Ledger,
    tickets: &Tickets<'_>,
) -> Result<RouteRun> {
    ground.fill(task.whole_blocks_bytes()).context("fill the file to be recycled")?;
    let file = ground.open_with(&options(task))?;
    file.recycle()?;
    one_by_one(task, file, ledger, tickets)
}

fn one_by_one(
    task: &Task<'_>,
    file: dioxide::File,
    ledger: &Ledger,
    tickets: &Tickets<'_>,
) -> Result<RouteRun> {
    let shift =
        task.crew(ledger).work(|_, _| tickets.take(), |_, block| Ok(file.append(block)?))?;
    shift.close(file)
}

fn options(task: &Task<'_>) -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .write(true)
        .durability(task.point.durability)
        .growth(task.point.growth.unwrap_or(Growth::None));
    options.tail(task.point.tail.unwrap_or_default());
    if let Some(bytes) = task.growth_cap_bytes {
        options.growth_cap(bytes);
    }
    options
}
