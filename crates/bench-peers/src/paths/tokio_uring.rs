//! tokio-uring, with its blocks registered.

use super::crew::{AsyncFile, Crew};
use crate::blocks::Block;
use crate::run::{Figures, Task};
use anyhow::{Context, Result};
use std::io;
use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::fs::File;

struct Peer(File);

impl AsyncFile for Peer {
    type Block = FixedBuf;

    async fn write(&self, block: FixedBuf, offset: u64) -> (io::Result<usize>, FixedBuf) {
        self.0.write_fixed_at(block, offset).await
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().await
    }
}

pub fn run(task: &Task<'_>) -> Result<Figures> {
    let depth = task.case.iodepth;
    let mut ring = tokio_uring::uring_builder();
    // Not DEFER_TASKRUN, which requires waiting in the ring. Here epoll waits for completions.
    ring.setup_single_issuer().setup_coop_taskrun();
    tokio_uring::builder().entries(depth as u32).uring_builder(&ring).start(async {
        let registry =
            FixedBufRegistry::new((0..depth).map(|job| Block::of_job(job, task.bs_bytes)));
        registry.register().context("register the blocks")?;
        let blocks: Vec<_> =
            (0..depth).map(|job| registry.check_out(job).expect("it is free")).collect();
        let file = Peer(File::from_std(task.open()?));
        let mut clock = task.start();
        let crew = Crew::new(task, file, &clock.tickets);
        let start = |(job, block)| tokio_uring::spawn(crew.clone().work(job, block));
        let jobs: Vec<_> = blocks.into_iter().enumerate().map(start).collect();
        for job in jobs {
            job.await.context("a task")??;
        }
        clock.acked();
        crew.finish().await?;
        Ok(clock.stop())
    })
}
