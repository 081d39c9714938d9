//! nodedb-wal: its writer in the page cache, and its group commit.

use super::{Peer, Site, Visit};
use anyhow::{Result, anyhow};
use nodedb_wal::double_write::DwbMode;
use nodedb_wal::group_commit::{GroupCommitter, PendingWrite};
use nodedb_wal::reader::WalReader;
use nodedb_wal::record::RecordType;
use nodedb_wal::writer::{WalWriter, WalWriterConfig};
use std::path::PathBuf;
use std::sync::Mutex;

const PUT: u32 = RecordType::Put as u32;

pub struct NodedbWal {
    writer: Mutex<WalWriter>,
    committer: GroupCommitter,
    path: PathBuf,
}

impl NodedbWal {
    pub fn open(site: &Site) -> Result<Self> {
        let path = site.dir.join("wal");
        // With O_DIRECT its reader takes the padding behind the first flush for the end of the log.
        // The double-write buffer has a flush of its own.
        let (use_direct_io, dwb_mode) = (false, Some(DwbMode::Off));
        let config = WalWriterConfig { use_direct_io, dwb_mode, ..WalWriterConfig::default() };
        let writer = Mutex::new(WalWriter::open(&path, config)?);
        Ok(Self { writer, committer: GroupCommitter::new(), path })
    }
}

impl Peer for NodedbWal {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        let (record_type, payload) = (PUT, record.to_vec());
        let write =
            PendingWrite { record_type, tenant_id: 1, vshard_id: 0, database_id: 0, payload };
        Ok(self.committer.submit(&self.writer, write).map(drop)?)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let mut writer = self.writer.lock().map_err(|_| anyhow!("a writer panicked"))?;
        for record in records {
            writer.append(PUT, 1, 0, 0, record)?;
        }
        Ok(writer.sync()?)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        drop(self.writer);
        WalReader::open(&self.path)?.records().try_for_each(|record| visit(&record?.payload))
    }
}
