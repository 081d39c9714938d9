//! The status of a writer, which its observers see.

use slatedb::wal::{WalError, WalEvent, WalObserver, WalStatus, WalStatusListener};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// Records that became stable, or are on their way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// The LSN and the sequence number of the last batch that ends in it.
    pub batch: Option<(u64, Option<u64>)>,
    pub rows: usize,
    pub bytes: usize,
}

impl Share {
    /// Adds the next one.
    pub fn add(&mut self, next: Self) {
        self.batch = next.batch.or(self.batch);
        self.rows += next.rows;
        self.bytes += next.bytes;
    }
}

#[derive(Debug)]
pub struct Status {
    state: watch::Sender<WalStatus>,
    /// Held while they are called, so no event follows the one of the end.
    listeners: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners(Vec<WalStatusListener>);

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listeners").field(&self.0.len()).finish()
    }
}

impl Status {
    /// The status of a log whose last record has this LSN.
    pub fn new(last_lsn: u64) -> Self {
        let state = WalStatus {
            closed_reason: None,
            estimated_bytes: 0,
            last_flushed_wal_id: last_lsn,
            last_flushed_seq: None,
            buffered_wal_entries_count: 0,
        };
        Self { state: watch::Sender::new(state), listeners: Mutex::default() }
    }

    /// The status. As an error once the writer has ended.
    pub fn get(&self) -> Result<WalStatus, WalStatus> {
        let status = self.state.borrow().clone();
        if status.closed_reason.is_some() { Err(status) } else { Ok(status) }
    }

    /// The share was added to the log.
    pub fn on_appended(&self, share: Share) {
        self.state.send_modify(|status| {
            status.estimated_bytes += share.bytes;
            status.buffered_wal_entries_count += share.rows;
        });
    }

    /// The share is stable. Without effect after the end.
    pub fn on_stable(&self, share: Share) {
        self.change(WalEvent::WalFlushed, |status| {
            status.estimated_bytes -= share.bytes;
            status.buffered_wal_entries_count -= share.rows;
            if let Some((lsn, seq)) = share.batch {
                status.last_flushed_wal_id = lsn;
                status.last_flushed_seq = seq.or(status.last_flushed_seq);
            }
        });
    }

    /// The writer ends. The first reason counts.
    pub fn close(&self, reason: WalError) {
        self.change(WalEvent::WalClosed, |status| {
            status.estimated_bytes = 0;
            status.buffered_wal_entries_count = 0;
            status.closed_reason = Some(reason);
        });
    }

    fn change(&self, event: fn(WalStatus) -> WalEvent, change: impl FnOnce(&mut WalStatus)) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.state.send_if_modified(|status| {
            let is_open = status.closed_reason.is_none();
            if is_open {
                change(status);
            }
            is_open
        });
        if changed {
            let status = self.state.borrow().clone();
            listeners.0.iter().for_each(|listener| listener(event(status.clone())));
        }
    }

    /// Waits until the status is such, or until the writer has ended, which is an error.
    pub async fn wait(&self, is_such: impl Fn(&WalStatus) -> bool) -> Result<(), WalError> {
        let mut state = self.state.subscribe();
        let found =
            state.wait_for(|status| status.closed_reason.is_some() || is_such(status)).await;
        let found = found.map_err(|_| WalError::Closed)?;
        if is_such(&found) { Ok(()) } else { Err(found.clone().into()) }
    }
}

/// An observer of a writer. It does not keep the log open.
pub struct Observer(pub Arc<Status>);

impl WalObserver for Observer {
    fn status(&self) -> Result<WalStatus, WalStatus> {
        self.0.get()
    }

    fn subscribe(&self, listener: WalStatusListener) -> Result<(), WalError> {
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner).0.push(listener);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_row_is_acknowledged_after_the_end() {
        let status = Arc::new(Status::new(3));
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = events.clone();
        let listener = move |event: WalEvent| heard.lock().unwrap().push(format!("{event:?}"));
        Observer(status.clone()).subscribe(Arc::new(listener)).unwrap();
        let share = |lsn| Share { batch: Some((lsn, Some(10 * lsn))), rows: 1, bytes: 100 };
        for lsn in 4..=6 {
            status.on_appended(share(lsn));
        }
        status.on_stable(share(4));
        let now = status.get().unwrap();
        assert_eq!((now.last_flushed_wal_id, now.last_flushed_seq), (4, Some(40)));
        assert_eq!((now.estimated_bytes, now.buffered_wal_entries_count), (200, 2));

        status.close(WalError::Fenced);
        status.on_stable(share(5));
        status.close(WalError::Closed);
        let last = status.get().expect_err("it has ended");
        assert_eq!(last.last_flushed_wal_id, 4);
        assert!(matches!(last.closed_reason, Some(WalError::Fenced)));
        let waited = status.wait(|now| now.last_flushed_wal_id >= 5).await;
        assert!(matches!(waited, Err(WalError::Fenced)));
        let events = events.lock().unwrap();
        assert_eq!(events.len(), 2, "{events:?}");
        assert!(events[0].contains("WalFlushed") && events[1].contains("WalClosed"), "{events:?}");
    }
}
