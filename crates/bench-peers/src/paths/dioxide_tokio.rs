//! dioxide's futures: one tokio task for each outstanding operation. The runtime has a thread per
//! CPU; the process shares one reactor. Growth and close are timed.

use super::dioxide::open;
use crate::bench::stamp::fill_as_job;
use crate::case::Space;
use crate::run::{Figures, Task};
use crate::tickets::Tickets;
use anyhow::{Context, Result};
use dioxide::{AsyncFile, Buffer};
use std::sync::Arc;
use tokio::runtime::Builder;

pub fn run(task: &Task<'_>) -> Result<Figures> {
    let runtime = Builder::new_multi_thread().build()?;
    let file = Arc::new(AsyncFile::from(open(task)?));
    let mut clock = task.start();
    let tasks = (0..task.case.iodepth).map(|job| {
        let mut block = Buffer::zeroed(task.bs_bytes as usize);
        fill_as_job(job as u32, &mut block);
        runtime.spawn(work(file.clone(), clock.tickets.clone(), task.case.space, job, block))
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        runtime.block_on(task)??;
    }
    clock.acked();
    Arc::into_inner(file).context("its tasks have ended")?.into_inner().close()?;
    Ok(clock.stop())
}

async fn work(
    file: Arc<AsyncFile>,
    tickets: Arc<Tickets>,
    space: Space,
    job: usize,
    mut block: Buffer,
) -> Result<()> {
    while let Some(offset) = tickets.take(job) {
        let (written, returned) = match space {
            Space::Regions => file.write_at(block, offset).await,
            _ => file.append(block).await,
        };
        written?;
        block = returned;
    }
    Ok(())
}
