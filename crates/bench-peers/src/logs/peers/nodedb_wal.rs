//! nodedb-wal: its writer in the page cache. Its own group commit flushes for almost each record,
//! so the bench gathers records.

use super::{Peer, Site, Visit};
use crate::logs::gather::{Exclusive, Gather};
use anyhow::Result;
use nodedb_wal::double_write::DwbMode;
use nodedb_wal::reader::WalReader;
use nodedb_wal::record::RecordType;
use nodedb_wal::writer::{WalWriter, WalWriterConfig};
use std::path::PathBuf;

const PUT: u32 = RecordType::Put as u32;
const TENANT: u64 = 1;

impl Exclusive for WalWriter {
    fn append(&mut self, records: &[Vec<u8>]) -> Result<()> {
        for record in records {
            WalWriter::append(self, PUT, TENANT, 0, 0, record)?;
        }
        Ok(self.sync()?)
    }
}

pub struct NodedbWal {
    writer: Gather<WalWriter>,
    path: PathBuf,
}

impl NodedbWal {
    pub fn open(site: &Site) -> Result<Self> {
        let path = site.dir.join("wal");
        // With O_DIRECT its reader takes the padding behind the first flush for the end of the log.
        // The double-write buffer has a flush of its own.
        let (use_direct_io, dwb_mode) = (false, Some(DwbMode::Off));
        let config = WalWriterConfig { use_direct_io, dwb_mode, ..WalWriterConfig::default() };
        Ok(Self { writer: Gather::new(WalWriter::open(&path, config)?), path })
    }
}

impl Peer for NodedbWal {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        self.writer.append(record)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let records: Vec<_> = records.iter().map(|record| record.to_vec()).collect();
        self.writer.append_all(&records)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        drop(self.writer);
        WalReader::open(&self.path)?.records().try_for_each(|record| visit(&record?.payload))
    }
}
