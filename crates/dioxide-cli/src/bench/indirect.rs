//! The indirect scenario: one thread repeatedly writes 4096 KiB at offset 48 KiB of a file on ext3,
//! directly. An indirect block maps all of that range.
//!
//! The workload of a regression of ext3 in 2013, which sent a request for each block.

use super::blocks::Places;
use super::crew::Crew;
use super::figures::RouteRun;
use super::ledger::{End, Ledger};
use super::target::{Direction, Target};
use super::task::Task;
use super::volume::{BLOCK_BYTES, HEAD_BYTES, Volume};
use super::work::Route;
use anyhow::{Context, Result};
use dioxide::{Durability, Growth, OpenOptions};
use fastrand::Rng;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of one write.
pub const WRITE_BYTES: u64 = 4096 << 10;

/// One run.
pub fn run(task: &Task<'_>) -> Result<RouteRun> {
    let volume = Volume::make(task.place)?;
    let ledger = task.ledger(Places::Rewritten);
    let run = match task.route {
        Route::Kernel => through_a_mount(task, &volume, &ledger),
        _ => through_dioxide(task, &volume, &ledger),
    }?;
    ledger.verify(&volume.read_back()?, End::AtLast)?;
    Ok(run)
}

fn through_a_mount(task: &Task<'_>, volume: &Volume, ledger: &Ledger) -> Result<RouteRun> {
    let mounted = volume.mount()?;
    let file = mounted.open()?;
    let crew = Crew { disk: Some(&mounted.disk), ..task.crew(ledger) };
    let shift = crew.work(aim(task), |Target { offset, .. }, bytes| {
        if task.writes_afresh {
            file.set_len(HEAD_BYTES).context("ftruncate")?;
        }
        file.write_all_at(bytes, HEAD_BYTES + offset).context("pwrite")?;
        Ok(offset)
    })?;
    file.sync_data().context("fdatasync")?;
    let run = shift.clock_out();
    drop(file);
    mounted.unmount()?;
    Ok(run)
}

/// In one call, or block by block as in the regression.
fn through_dioxide(task: &Task<'_>, volume: &Volume, ledger: &Ledger) -> Result<RouteRun> {
    let mut options = OpenOptions::new();
    options.write(true).durability(Durability::OnSync).growth(Growth::None);
    let file = volume.open_with(&options)?;
    let call_bytes = if task.route == Route::Serialised { BLOCK_BYTES } else { WRITE_BYTES };
    let shift = task.crew(ledger).work(aim(task), |Target { offset, .. }, bytes| {
        if task.writes_afresh {
            file.set_len(HEAD_BYTES)?;
        }
        let starts = (HEAD_BYTES + offset..).step_by(call_bytes as usize);
        for (start, part) in starts.zip(bytes.chunks(call_bytes as usize)) {
            file.write_at(part, start)?;
        }
        Ok(offset)
    })?;
    file.sync_data()?;
    let stats = file.stats();
    let mut run = shift.clock_out();
    // The requests of the library correspond to those of the loop device on the other path.
    run.figures.requests = Some(stats.requests as f64);
    run.figures.flushes = Some(stats.flushes as f64);
    run.figures.stats = Some(stats);
    file.close()?;
    Ok(run)
}

/// The same offset every time. For the ledger the file begins after its head.
fn aim(task: &Task<'_>) -> impl Fn(usize, &mut Rng) -> Option<Target> {
    let left = AtomicU64::new(task.count.unwrap_or(0));
    move |_, _| {
        let is_left = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        is_left.then(|| Target::block(Direction::Write, 0, WRITE_BYTES))
    }
}
