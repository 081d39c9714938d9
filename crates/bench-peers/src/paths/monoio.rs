//! monoio.

use super::crew::{AsyncFile, Crew};
use crate::blocks::Block;
use crate::run::{Figures, Task};
use anyhow::Result;
use monoio::fs::File;
use monoio::{IoUringDriver, RuntimeBuilder};
use std::io;

struct Peer(File);

impl AsyncFile for Peer {
    type Block = Block;

    async fn write(&self, block: Block, offset: u64) -> (io::Result<usize>, Block) {
        self.0.write_at(block, offset).await
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().await
    }
}

pub fn run(task: &Task<'_>) -> Result<Figures> {
    let depth = task.case.iodepth;
    let mut ring = io_uring::IoUring::builder();
    ring.setup_single_issuer().setup_defer_taskrun();
    let builder =
        RuntimeBuilder::<IoUringDriver>::new().with_entries(depth as u32).uring_builder(ring);
    builder.build()?.block_on(async {
        let blocks: Vec<_> = (0..depth).map(|job| Block::of_job(job, task.bs_bytes)).collect();
        let file = Peer(File::from_std(task.open()?)?);
        let mut clock = task.start();
        let crew = Crew::new(task, file, &clock.tickets);
        let start = |(job, block)| monoio::spawn(crew.clone().work(job, block));
        let jobs: Vec<_> = blocks.into_iter().enumerate().map(start).collect();
        for job in jobs {
            job.await?;
        }
        clock.acked();
        crew.finish().await?;
        Ok(clock.stop())
    })
}
