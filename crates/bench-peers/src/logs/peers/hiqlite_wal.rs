//! hiqlite-wal: a log store of openraft. It has one writer, so the bench gathers records.

use super::{Peer, Site, Visit};
use crate::logs::gather::{Exclusive, Gather};
use anyhow::{Result, anyhow, bail};
use hiqlite_wal::{LogStore, LogSync};
use openraft::storage::{RaftLogReader, RaftLogStorageExt};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use tokio::runtime::{Builder, Runtime};

openraft::declare_raft_types!(Types: D = Vec<u8>, R = (), NodeId = u64, Node = ());

/// The size of a file. Each flush looks at all of its pages.
const FILE_BYTES: u32 = 16 << 20;

struct Store {
    store: LogStore<Types>,
    /// The store has threads of its own, and asks the runtime for one while it starts.
    runtime: Runtime,
    last: u64,
}

impl Store {
    fn start(dir: &Path, last: u64) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).build()?;
        let start = LogStore::start(dir.display().to_string(), LogSync::Immediate, FILE_BYTES);
        let store = runtime.block_on(start)?;
        Ok(Self { store, runtime, last })
    }

    fn stop(self) -> Result<()> {
        Ok(self.runtime.block_on(self.store.stop())?)
    }
}

impl Exclusive for Store {
    fn append(&mut self, records: &[Vec<u8>]) -> Result<()> {
        let first = self.last + 1;
        self.last += records.len() as u64;
        let entries = records.iter().zip(first..).map(|(record, index)| Entry::<Types> {
            log_id: LogId::new(CommittedLeaderId::new(1, 1), index),
            payload: EntryPayload::Normal(record.clone()),
        });
        let entries: Vec<_> = entries.collect();
        Ok(futures::executor::block_on(self.store.blocking_append(entries))?)
    }
}

pub struct HiqliteWal {
    store: Gather<Store>,
    dir: PathBuf,
}

impl HiqliteWal {
    pub fn open(site: &Site) -> Result<Self> {
        Ok(Self { store: Gather::new(Store::start(&site.dir, 0)?), dir: site.dir.clone() })
    }
}

impl Peer for HiqliteWal {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        self.store.append(record)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let records: Vec<_> = records.iter().map(|record| record.to_vec()).collect();
        self.store.append_all(&records)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        let store = self.store.into_inner();
        let last = store.last;
        store.stop()?;
        let mut store = Store::start(&self.dir, last)?;
        let entries = store.runtime.block_on(store.store.try_get_log_entries(1..=last));
        for entry in entries.map_err(|error| anyhow!("{error}"))? {
            let EntryPayload::Normal(record) = entry.payload else { bail!("not a record") };
            visit(&record)?;
        }
        store.stop()
    }
}
