//! The sync scenario: N threads rewrite a region of their own each, every write stable before the next.
//!
//! The workload of a regression of block devices in 2009, on a device or on a file written beforehand.

use super::figures::Run;
use super::ledger::{End, Ledger, Places};
use super::place::Ground;
use super::stamp::fill_as_old;
use super::task::Task;
use super::work::Route;
use anyhow::{Context, Result};
use dioxide::{Buffer, Durability, Growth, OpenOptions};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// One run.
pub fn run(task: &Task<'_>) -> Result<Run> {
    let ground = task.place.prepare()?;
    write_beforehand(task, &ground)?;
    let ledger = task.ledger(Places::Rewritten);
    let run = match task.route {
        Route::Serialised => under_a_lock(task, &ground, &ledger),
        Route::Dioxide => through_dioxide(task, &ground, &ledger),
        _ => through_kernel(task, &ground, &ledger),
    }?;
    task.conclude(run, &ground, &ledger, End::Anywhere)
}

/// The regions exist, written and stable, before the clock starts.
fn write_beforehand(task: &Task<'_>, ground: &Ground) -> Result<()> {
    let file = ground.open(OFlags::empty())?;
    let mut block = Buffer::zeroed(task.point.bs_bytes as usize);
    fill_as_old(&mut block);
    for job in 0..task.point.numjobs {
        pwrite(&file, &block, region(task, job))?;
    }
    file.sync_all().context("fsync")
}

/// As the kernel did it once: one flush at a time, each for its own write only.
fn under_a_lock(task: &Task<'_>, ground: &Ground, ledger: &Ledger) -> Result<Run> {
    let file = ground.open(OFlags::empty())?;
    let flush = Mutex::new(());
    let shift = task.crew(ledger).work(|job, block| {
        let offset = region(task, job);
        pwrite(&file, block, offset)?;
        let _alone = flush.lock().unwrap_or_else(PoisonError::into_inner);
        file.sync_data().context("fdatasync")?;
        Ok(Some(offset))
    })?;
    Ok(shift.clock_out())
}

fn through_kernel(task: &Task<'_>, ground: &Ground, ledger: &Ledger) -> Result<Run> {
    let file = ground.open(OFlags::SYNC)?;
    let shift = task.crew(ledger).work(|job, block| {
        let offset = region(task, job);
        pwrite(&file, block, offset)?;
        Ok(Some(offset))
    })?;
    Ok(shift.clock_out())
}

fn through_dioxide(task: &Task<'_>, ground: &Ground, ledger: &Ledger) -> Result<Run> {
    let file = OpenOptions::new()
        .write(true)
        .durability(Durability::EveryWrite)
        .growth(Growth::None)
        .open(ground.path())?;
    let shift = task.crew(ledger).work(|job, block| {
        let offset = region(task, job);
        file.write_at(block, offset)?;
        Ok(Some(offset))
    })?;
    file.close()?;
    Ok(shift.clock_out())
}

/// Where a thread's own region begins.
fn region(task: &Task<'_>, job: usize) -> u64 {
    job as u64 * task.point.bs_bytes
}

fn pwrite(file: &File, block: &[u8], offset: u64) -> Result<()> {
    file.write_all_at(block, offset).with_context(|| format!("pwrite at {offset}"))
}
