//! compio.

use super::crew::{AsyncFile, Crew};
use crate::blocks::Block;
use crate::run::{Figures, Task};
use anyhow::{Result, anyhow};
use compio::driver::ProactorBuilder;
use compio::fs::File;
use compio::io::AsyncWriteAt;
use compio::runtime::RuntimeBuilder;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};

struct Peer(File);

impl AsyncFile for Peer {
    type Block = Block;

    async fn write(&self, block: Block, offset: u64) -> (io::Result<usize>, Block) {
        (&self.0).write_at(block, offset).await.into()
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().await
    }
}

pub fn run(task: &Task<'_>) -> Result<Figures> {
    let depth = task.case.iodepth;
    let mut ring = ProactorBuilder::new();
    ring.capacity(depth as u32).single_issuer(true).defer_taskrun(true).taskrun_flag(true);
    let mut builder = RuntimeBuilder::new();
    // All runnable tasks run before the ring is entered again, so that their writes are submitted
    // together.
    builder.with_proactor(ring).event_interval(depth + 1).local_queue_size(depth + 1);
    builder.build()?.block_on(async {
        let blocks: Vec<_> = (0..depth).map(|job| Block::of_job(job, task.bs_bytes)).collect();
        // SAFETY: the descriptor is open, and has no other owner.
        let file = Peer(unsafe { File::from_raw_fd(task.open()?.into_raw_fd()) });
        let mut clock = task.start();
        let crew = Crew::new(task, file, &clock.tickets);
        let start = |(job, block)| compio::runtime::spawn(crew.clone().work(job, block));
        let jobs: Vec<_> = blocks.into_iter().enumerate().map(start).collect();
        for job in jobs {
            job.await.map_err(|_| anyhow!("a task panicked"))??;
        }
        clock.acked();
        crew.finish().await?;
        Ok(clock.stop())
    })
}
