//! The append scenario: N threads, or one with a queue, append to one file, by several routes.
//!
//! All routes draw from the same tickets, so that none writes more than the size cap, and all end
//! stable inside the clock: dioxide by its close, the others by one fdatasync.

use super::figures::Run;
use super::growing::GrowthWatch;
use super::ledger::{End, Ledger, Places};
use super::place::Ground;
use super::target::Target;
use super::task::Task;
use super::work::{Backend, Route};
use anyhow::{Context, Result};
use dioxide::{Durability, Growth, OpenOptions};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One run.
pub fn run(task: &Task<'_>) -> Result<Run> {
    let ground = task.place.prepare()?;
    let ledger = task.ledger(Places::OnceEach);
    let tickets = Tickets::new(task);
    let (run, end) = match task.route {
        Route::Dioxide => (through_dioxide(task, &ground, &ledger, &tickets)?, End::AtLastBlock),
        Route::Queue { iodepth } => {
            (through_a_queue(task, iodepth, &ground, &ledger, &tickets)?, End::AtLastBlock)
        }
        Route::Recycled => (over_an_old_file(task, &ground, &ledger, &tickets)?, End::AtLastBlock),
        Route::Preallocated => {
            ground.preallocate(task.size_bytes).context("preallocate")?;
            (through_kernel(task, &ground, &ledger, &tickets)?, End::Anywhere)
        }
        _ => (through_kernel(task, &ground, &ledger, &tickets)?, End::AtLastBlock),
    };
    task.conclude(run, &ground, &ledger, end)
}

/// Appends as a program does them by hand: the ticket is the offset.
fn through_kernel(task: &Task<'_>, ground: &Ground, ledger: &Ledger, tickets: &Tickets) -> Result<Run> {
    let flags = match task.point.durability {
        Durability::EveryWrite => OFlags::DSYNC,
        Durability::OnSync => OFlags::empty(),
    };
    let file = ground.open(flags)?;
    let shift = task.crew(ledger).work(
        |_, _| tickets.take(),
        |Target { offset, .. }, block| {
            pwrite(&file, block, offset)?;
            Ok(offset)
        },
    )?;
    file.sync_data().context("fdatasync")?;
    Ok(shift.clock_out())
}

/// The ticket only allows an append; where it goes is for the library to say.
fn through_dioxide(task: &Task<'_>, ground: &Ground, ledger: &Ledger, tickets: &Tickets) -> Result<Run> {
    let file = ground.open_with(&options(task))?;
    if task.point.backend == Backend::Sim {
        return one_by_one(task, file, ledger, tickets);
    }
    let watch = GrowthWatch::new(&file, ground);
    let shift = task.crew(ledger).work(|_, _| tickets.take(), |_, block| watch.append(block))?;
    let growing = watch.result();
    file.close()?;
    let mut run = shift.clock_out();
    run.figures.growing = growing;
    Ok(run)
}

fn through_a_queue(
    task: &Task<'_>,
    iodepth: usize,
    ground: &Ground,
    ledger: &Ledger,
    tickets: &Tickets,
) -> Result<Run> {
    let file = ground.open_with(&options(task))?;
    let shift = task.crew(ledger).work_through_queues(
        iodepth,
        |_, _| tickets.take(),
        |queue, _, block, tag| queue.append(&file, block, tag),
    )?;
    file.close()?;
    Ok(shift.clock_out())
}

/// The file was written to the full before, and begins anew.
fn over_an_old_file(task: &Task<'_>, ground: &Ground, ledger: &Ledger, tickets: &Tickets) -> Result<Run> {
    ground.fill(task.whole_blocks_bytes()).context("fill the file to be recycled")?;
    let file = ground.open_with(&options(task))?;
    file.recycle()?;
    one_by_one(task, file, ledger, tickets)
}

fn one_by_one(task: &Task<'_>, file: dioxide::File, ledger: &Ledger, tickets: &Tickets) -> Result<Run> {
    let shift = task.crew(ledger).work(|_, _| tickets.take(), |_, block| Ok(file.append(block)?))?;
    file.close()?;
    Ok(shift.clock_out())
}

fn options(task: &Task<'_>) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).durability(task.point.durability).growth(task.point.growth.unwrap_or(Growth::None));
    if let Some(bytes) = task.growth_cap_bytes {
        options.growth_cap(bytes);
    }
    options
}

fn pwrite(file: &File, block: &[u8], offset: u64) -> Result<()> {
    file.write_all_at(block, offset).with_context(|| format!("pwrite at {offset}"))
}

/// One for each block that fits under the size cap.
struct Tickets {
    next: AtomicU64,
    bs_bytes: u64,
    size_bytes: u64,
}

impl Tickets {
    fn new(task: &Task<'_>) -> Self {
        Self { next: AtomicU64::new(0), bs_bytes: task.point.bs_bytes, size_bytes: task.size_bytes }
    }

    /// The next offset. None once the file is full.
    fn take(&self) -> Option<Target> {
        let offset = self.next.fetch_add(self.bs_bytes, Relaxed);
        (offset + self.bs_bytes <= self.size_bytes).then_some(Target::write(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_end_at_the_cap() {
        let tickets = Tickets { next: AtomicU64::new(0), bs_bytes: 4096, size_bytes: 10_000 };
        let taken = [tickets.take(), tickets.take(), tickets.take()];
        assert_eq!(taken, [Some(Target::write(0)), Some(Target::write(4096)), None]);
        assert_eq!(tickets.take(), None);
    }
}
