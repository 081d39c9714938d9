//! Blocking threads with pwrite, one for each outstanding operation, and the code they share with
//! those of dioxide.

use crate::blocks::Block;
use crate::run::{Clock, Figures, Task};
use anyhow::{Context, Result, anyhow};
use std::os::unix::fs::FileExt;

pub fn run(task: &Task<'_>) -> Result<Figures> {
    let file = task.open()?;
    let clock = crew(task, |block, offset| Ok(file.write_all_at(block, offset)?))?;
    file.sync_data().context("fdatasync")?;
    Ok(clock.stop())
}

/// Every thread writes its block until the tickets run out. The clock still runs on return.
pub fn crew<'a>(
    task: &Task<'a>,
    write: impl Fn(&Block, u64) -> Result<()> + Sync,
) -> Result<Clock<'a>> {
    let blocks: Vec<_> =
        (0..task.case.iodepth).map(|job| Block::of_job(job, task.bs_bytes)).collect();
    let mut clock = task.start();
    let (tickets, write) = (&clock.tickets, &write);
    std::thread::scope(|scope| {
        let start = |(job, block): (usize, Block)| {
            scope.spawn(move || -> Result<()> {
                while let Some(offset) = tickets.take(job) {
                    write(&block, offset)?;
                }
                Ok(())
            })
        };
        let jobs: Vec<_> = blocks.into_iter().enumerate().map(start).collect();
        jobs.into_iter().try_for_each(|job| job.join().map_err(|_| anyhow!("panicked"))?)
    })?;
    clock.acked();
    Ok(clock)
}
