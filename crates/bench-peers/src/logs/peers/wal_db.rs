//! wal-db: one file. It has no preallocation.

use super::{Peer, Site, Visit};
use anyhow::Result;
use std::path::PathBuf;
use wal_db::Wal;

pub struct WalDb {
    wal: Wal,
    path: PathBuf,
}

impl WalDb {
    pub fn open(site: &Site) -> Result<Self> {
        let path = site.dir.join("wal");
        Ok(Self { wal: Wal::open(&path)?, path })
    }
}

impl Peer for WalDb {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        Ok(self.wal.append_and_sync(record).map(drop)?)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        records.iter().try_for_each(|record| self.wal.append(record).map(drop))?;
        Ok(self.wal.sync()?)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        drop(self.wal);
        Wal::open(&self.path)?.iter()?.try_for_each(|record| visit(record?.data()))
    }
}
