//! The log of one raft group in a log store of openraft, used as a raft uses it.

use super::Visit;
use anyhow::{Result, anyhow, bail};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};
use serde_bytes::ByteBuf;
use std::io::Cursor;
use tokio::runtime::{Builder, Runtime};

openraft::declare_raft_types!(pub Types: D = ByteBuf, R = (), NodeId = u64, Node = ());

const TERM: u64 = 1;

/// The runtime of all groups.
pub fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().build()?)
}

/// A log with the index of its next entry. The first has index 0, as in openraft: a log that begins
/// later was purged.
pub struct Group<S> {
    pub log: S,
    pub next: u64,
}

impl<S: RaftLogStorage<Types>> Group<S> {
    pub fn new(log: S) -> Self {
        Self { log, next: 0 }
    }

    /// Appends records, and waits until the store calls back.
    pub async fn append(&mut self, records: &[&[u8]]) -> Result<()> {
        let first = self.next;
        self.next += records.len() as u64;
        let entries = (first..).zip(records).map(|(index, record)| Entry::<Types> {
            log_id: LogId::new(CommittedLeaderId::new(TERM, 1), index),
            payload: EntryPayload::Normal(ByteBuf::from(record.to_vec())),
        });
        let entries: Vec<_> = entries.collect();
        Ok(self.log.blocking_append(entries).await?)
    }

    /// Passes the records below an index.
    pub async fn read_back(&mut self, next: u64, visit: Visit<'_>) -> Result<()> {
        let entries = self.log.try_get_log_entries(..next).await;
        for entry in entries.map_err(|error| anyhow!("{error}"))? {
            let EntryPayload::Normal(record) = entry.payload else { bail!("not a record") };
            visit(&record)?;
        }
        Ok(())
    }
}
