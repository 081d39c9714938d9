//! open-wal: it has one writer, so the bench gathers records.

use super::{Peer, Site, Visit};
use crate::logs::gather::{Exclusive, Gather};
use anyhow::Result;
use open_wal::{Lsn, Wal, WalConfig};
use std::path::PathBuf;

pub struct OpenWal {
    wal: Gather<Wal>,
    dir: PathBuf,
    config: WalConfig,
}

impl Exclusive for Wal {
    fn append(&mut self, records: &[Vec<u8>]) -> Result<()> {
        for record in records {
            Wal::append(self, record)?;
        }
        Ok(self.commit().map(drop)?)
    }
}

impl OpenWal {
    pub fn open(site: &Site) -> Result<Self> {
        // One segment, which is allocated beforehand.
        let config = WalConfig { segment_size: site.size_bytes, ..WalConfig::default() };
        let (wal, _) = Wal::open(&site.dir, config)?;
        Ok(Self { wal: Gather::new(wal), dir: site.dir.clone(), config })
    }
}

impl Peer for OpenWal {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        self.wal.append(record)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let records: Vec<_> = records.iter().map(|record| record.to_vec()).collect();
        self.wal.append_all(&records)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        drop(self.wal);
        let (wal, _) = Wal::open(&self.dir, self.config)?;
        let mut reader = wal.reader_from(Lsn(0))?;
        while let Some(record) = reader.next() {
            visit(record?.1)?;
        }
        Ok(())
    }
}
