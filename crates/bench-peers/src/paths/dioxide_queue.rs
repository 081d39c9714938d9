//! dioxide's queue: one thread, with the queue's own buffers. Growth and close are timed.

use super::dioxide::open;
use crate::bench::stamp::fill_as_job;
use crate::case::Space;
use crate::run::{Figures, Task};
use anyhow::{Context, Result, ensure};
use dioxide::{Buffer, File, Queue, QueueOptions};

pub fn run(task: &Task<'_>) -> Result<Figures> {
    let depth = task.case.iodepth;
    let queue = QueueOptions::new().depth(depth).buffers(depth, task.bs_bytes as usize).open();
    ensure!(queue.uses_io_uring(), "no io_uring");
    let mut idle = Vec::with_capacity(depth);
    for job in 0..depth {
        let mut block = queue.buffer().context("a buffer of the queue's own")?;
        fill_as_job(job as u32, &mut block);
        idle.push((job, block));
    }
    let file = open(task)?;
    let mut clock = task.start();
    loop {
        // Without tickets no more operations begin, and those in flight are reaped.
        while let Some((job, block)) = idle.pop() {
            match clock.tickets.take(job) {
                Some(offset) => begin(task, &queue, &file, (job, block), offset)?,
                None => idle.clear(),
            }
        }
        if queue.outstanding() == 0 {
            break;
        }
        for done in queue.reap(1) {
            done.result?;
            idle.push((done.tag as usize, done.buffer.context("its buffer")?));
        }
    }
    clock.acked();
    file.close()?;
    Ok(clock.stop())
}

/// Queues one operation; `reap` submits it with others.
fn begin(
    task: &Task<'_>,
    queue: &Queue,
    file: &File,
    (job, block): (usize, Buffer),
    offset: u64,
) -> Result<()> {
    match task.case.space {
        Space::Regions => queue.write_at(file, block, offset, job as u64)?,
        _ => queue.append(file, block, job as u64)?,
    }
    Ok(())
}
