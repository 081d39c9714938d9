//! The common part of the async libraries: a task for each outstanding operation, which writes its
//! block repeatedly.

use crate::case::Flush;
use crate::run::Task;
use crate::tickets::Tickets;
use anyhow::{Context, Result, ensure};
use dioxide::Durability;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;

/// A file of a library.
pub trait AsyncFile {
    /// A buffer, moved into a write and returned.
    type Block;
    async fn write(&self, block: Self::Block, offset: u64) -> (io::Result<usize>, Self::Block);
    async fn sync_data(&self) -> io::Result<()>;
}

/// All tasks of a run. They share it by `Rc`, because they run on one thread.
pub struct Crew<F> {
    file: F,
    tickets: Arc<Tickets>,
    bs_bytes: u64,
    flush: Option<SharedFlush>,
}

impl<F: AsyncFile> Crew<F> {
    pub fn new(task: &Task<'_>, file: F, tickets: &Arc<Tickets>) -> Rc<Self> {
        let shares =
            task.case.durability == Durability::EveryWrite && task.case.flush == Flush::Shared;
        let flush = shares.then(SharedFlush::default);
        Rc::new(Self { file, tickets: tickets.clone(), bs_bytes: task.bs_bytes, flush })
    }

    /// One task.
    pub async fn work(self: Rc<Self>, job: usize, mut block: F::Block) -> Result<()> {
        while let Some(offset) = self.tickets.take(job) {
            let (written, returned) = self.file.write(block, offset).await;
            ensure!(written.context("write")? as u64 == self.bs_bytes, "short write at {offset}");
            block = returned;
            if let Some(flush) = &self.flush {
                flush.cover(&self.file).await.context("fdatasync")?;
            }
        }
        Ok(())
    }

    /// After the last task.
    pub async fn finish(&self) -> Result<()> {
        self.file.sync_data().await.context("fdatasync")
    }
}

/// An fdatasync for all writes that were complete before it began, as a user writes who shares
/// flushes. Writes are numbered in the order of completion.
#[derive(Default)]
struct SharedFlush {
    written: Cell<u64>,
    stable: Cell<u64>,
    is_running: Cell<bool>,
    ended: Notify,
}

impl SharedFlush {
    /// Returns when all writes that are complete now are stable.
    async fn cover(&self, file: &impl AsyncFile) -> io::Result<()> {
        let own = self.written.get() + 1;
        self.written.set(own);
        while self.stable.get() < own {
            if self.is_running.get() {
                // All at once, so that their next writes are submitted together.
                self.ended.notified().await;
                continue;
            }
            let covered = self.written.get();
            self.is_running.set(true);
            let outcome = file.sync_data().await;
            self.is_running.set(false);
            if outcome.is_ok() {
                self.stable.set(covered);
            }
            self.ended.notify_waiters();
            outcome?;
        }
        Ok(())
    }
}
