//! hiqlite-wal: a log store of openraft. One log has one writer, so the bench gathers records; of
//! many groups, each has a store.

use super::openraft_group::{Group, Types, runtime};
use super::{Peer, Site, Visit};
use crate::logs::gather::{Exclusive, Gather};
use anyhow::{Result, anyhow};
use hiqlite_wal::{LogStore, LogSync};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tokio::runtime::Runtime;

/// The size of a file. Each flush looks at all of its pages.
const FILE_BYTES: u32 = 16 << 20;
/// The same with many stores: the default of hiqlite.
const FILE_BYTES_OF_MANY: u32 = 2 << 20;

type Store = Group<LogStore<Types>>;

/// The store has threads of its own, and asks the runtime for one while it starts.
fn start(runtime: &Runtime, dir: &Path, file_bytes: u32) -> Result<Store> {
    let start = LogStore::start(dir.display().to_string(), LogSync::Immediate, file_bytes);
    Ok(Group::new(runtime.block_on(start)?))
}

/// Stops a store, starts it again, and passes its records.
fn read_back(
    runtime: &Runtime,
    store: Store,
    dir: &Path,
    file_bytes: u32,
    visit: Visit<'_>,
) -> Result<()> {
    let next = store.next;
    runtime.block_on(store.log.stop())?;
    let mut store = start(runtime, dir, file_bytes)?;
    runtime.block_on(store.read_back(next, visit))?;
    Ok(runtime.block_on(store.log.stop())?)
}

struct Writer {
    store: Store,
    runtime: Runtime,
}

impl Exclusive for Writer {
    fn append(&mut self, records: &[Vec<u8>]) -> Result<()> {
        let records: Vec<_> = records.iter().map(Vec::as_slice).collect();
        futures::executor::block_on(self.store.append(&records))
    }
}

pub struct HiqliteWal {
    writer: Gather<Writer>,
    dir: PathBuf,
}

impl HiqliteWal {
    pub fn open(site: &Site) -> Result<Self> {
        let runtime = runtime()?;
        let store = start(&runtime, &site.dir, FILE_BYTES)?;
        Ok(Self { writer: Gather::new(Writer { store, runtime }), dir: site.dir.clone() })
    }
}

impl Peer for HiqliteWal {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        self.writer.append(record)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let records: Vec<_> = records.iter().map(|record| record.to_vec()).collect();
        self.writer.append_all(&records)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        let Writer { store, runtime } = self.writer.into_inner();
        read_back(&runtime, store, &self.dir, FILE_BYTES, visit)
    }
}

/// A store for each lane.
pub struct Groups {
    groups: Vec<(Mutex<Store>, PathBuf)>,
    runtime: Runtime,
}

impl Groups {
    pub fn open(site: &Site) -> Result<Self> {
        let runtime = runtime()?;
        let group = |lane: usize| {
            let dir = site.dir.join(lane.to_string());
            Ok((Mutex::new(start(&runtime, &dir, FILE_BYTES_OF_MANY)?), dir))
        };
        let groups = (0..site.lanes).map(group).collect::<Result<_>>()?;
        Ok(Self { groups, runtime })
    }
}

impl Peer for Groups {
    fn append(&self, lane: usize, record: &[u8]) -> Result<()> {
        let mut store = self.groups[lane].0.lock().map_err(|_| anyhow!("a writer panicked"))?;
        self.runtime.block_on(store.append(&[record]))
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let mut store = self.groups[0].0.lock().map_err(|_| anyhow!("a writer panicked"))?;
        self.runtime.block_on(store.append(records))
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        for (store, dir) in self.groups {
            let store = store.into_inner().map_err(|_| anyhow!("a writer panicked"))?;
            read_back(&self.runtime, store, &dir, FILE_BYTES_OF_MANY, visit)?;
        }
        Ok(())
    }
}
