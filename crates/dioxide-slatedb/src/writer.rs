//! The writer of a database: one record or more for each write batch. The number of the last is the
//! "WAL file ID" of SlateDB.

use crate::epoch::EpochFile;
use crate::error::{blocking, of_log};
use crate::rows;
use crate::status::{Observer, Share, Status};
use async_trait::async_trait;
use dioxide_log::{Append, Log, Lsn};
use slatedb::RowEntry;
use slatedb::wal::{WalError, WalFlushResult, WalObserver, WalStatus, WalWriter};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// An append waits while more bytes are on their way. One write of the log carries more.
const PENDING_BYTES: usize = 512 << 10;

/// How often a writer looks for a higher epoch.
const LOOK: Duration = Duration::from_millis(100);

/// A record on its way.
struct Pending {
    lsn: Lsn,
    append: Append,
    share: Share,
}

pub struct Writer {
    log: Arc<Log>,
    status: Arc<Status>,
    pending: UnboundedSender<Pending>,
    /// The last record that was added.
    last: u64,
}

impl Writer {
    /// Starts to write behind the last record. With the file, until that has a higher epoch.
    pub fn start(log: Arc<Log>, last: Lsn, epoch: u64, epochs: Option<EpochFile>) -> Self {
        let status = Arc::new(Status::new(last.0));
        let (pending, added) = unbounded_channel();
        tokio::spawn(acknowledge(log.clone(), status.clone(), added));
        if let Some(epochs) = epochs {
            tokio::spawn(watch(epochs, epoch, log.clone(), status.clone()));
        }
        Self { log, status, pending, last: last.0 }
    }

    fn check(&self) -> Result<(), WalError> {
        Ok(self.status.get().map(|_| ())?)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.status.close(WalError::Closed);
    }
}

/// Reports records in their order as they become stable.
async fn acknowledge(log: Arc<Log>, status: Arc<Status>, mut added: UnboundedReceiver<Pending>) {
    let mut pending = VecDeque::new();
    loop {
        if pending.is_empty() {
            let Some(next) = added.recv().await else { return };
            pending.push_back(next);
        }
        let Pending { append, mut share, .. } = pending.pop_front().expect("one was added");
        if let Err(error) = append.await {
            return status.close(of_log(error));
        }
        // One event for all that the same write has made stable.
        while let Ok(next) = added.try_recv() {
            pending.push_back(next);
        }
        let stable = log.stable_lsn();
        while pending.front().is_some_and(|next| next.lsn < stable) {
            share.add(pending.pop_front().expect("it is there").share);
        }
        status.on_stable(share);
    }
}

/// Ends the writer when another asks for the log.
async fn watch(epochs: EpochFile, epoch: u64, log: Arc<Log>, status: Arc<Status>) {
    // Without the file, the lock of the log still keeps the other out.
    while !matches!(epochs.highest(), Ok(found) if found > epoch) {
        if tokio::time::timeout(LOOK, status.wait(|_| false)).await.is_ok() {
            return;
        }
    }
    status.close(WalError::Fenced);
    if let Err(error) = close(&log).await {
        log::error!("closing the log for a writer of a higher epoch: {error}");
    }
}

async fn close(log: &Arc<Log>) -> Result<(), WalError> {
    let log = Log::clone(log);
    blocking(move || log.close().map_err(of_log)).await
}

#[async_trait]
impl WalWriter for Writer {
    async fn append(&mut self, batch: &[RowEntry]) -> Result<(), WalError> {
        let mut records = rows::records(batch).into_iter().peekable();
        while let Some(record) = records.next() {
            self.status.wait(|status| status.estimated_bytes <= PENDING_BYTES).await?;
            self.check()?;
            let append = self.log.append_async(&record);
            let Some(lsn) = append.lsn() else {
                append.await.map_err(of_log)?;
                return Err(WalError::Closed);
            };
            let mut share = Share { bytes: record.len(), ..Share::default() };
            if records.peek().is_none() {
                share.batch = Some((lsn.0, batch.iter().map(|row| row.seq).max()));
                share.rows = batch.len();
                self.last = lsn.0;
            }
            self.status.on_appended(share);
            // It ends only after an error, which the status has.
            let pending = Pending { lsn, append, share };
            if self.pending.send(pending).is_err() {
                self.check()?;
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<WalFlushResult, WalError> {
        self.check()?;
        // Each record is on its way already.
        let (status, wal_id) = (self.status.clone(), self.last);
        let completion = async move { status.wait(|now| now.last_flushed_wal_id >= wal_id).await };
        Ok(WalFlushResult { wal_id, completion: Box::pin(completion) })
    }

    fn observer(&self) -> Box<dyn WalObserver> {
        Box::new(Observer(self.status.clone()))
    }

    fn status(&self) -> Result<WalStatus, WalStatus> {
        self.status.get()
    }

    async fn close(&mut self) -> Result<(), WalError> {
        // A writer that has failed, or was fenced, acknowledges no more.
        let _ = self.status.wait(|now| now.last_flushed_wal_id >= self.last).await;
        self.status.close(WalError::Closed);
        close(&self.log).await
    }
}
