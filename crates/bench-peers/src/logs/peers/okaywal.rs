//! OkayWAL: one segment of written zeros, and no checkpoint.

use super::{Peer, Site, Visit};
use anyhow::Result;
use okaywal::{Configuration, Entry, EntryId, LogManager, SegmentReader, WriteAheadLog};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

const BUFFER_BYTES: usize = 1 << 20;

pub struct OkayWal {
    log: WriteAheadLog,
    configuration: Configuration,
}

/// Keeps the records that a log recovers.
#[derive(Debug, Default)]
struct Recovered(Arc<Mutex<Vec<Vec<u8>>>>);

impl LogManager for Recovered {
    fn recover(&mut self, entry: &mut Entry<'_>) -> io::Result<()> {
        let records = entry.read_all_chunks()?.unwrap_or_default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(records);
        Ok(())
    }

    fn checkpoint_to(
        &mut self,
        _: EntryId,
        _: &mut SegmentReader,
        _: &WriteAheadLog,
    ) -> io::Result<()> {
        Ok(())
    }
}

impl OkayWal {
    pub fn open(site: &Site) -> Result<Self> {
        let configuration = Configuration::default_for(&site.dir)
            .preallocate_bytes(site.size_bytes.try_into()?)
            .checkpoint_after_bytes(u64::MAX)
            .buffer_bytes(BUFFER_BYTES);
        let log = configuration.clone().open(Recovered::default())?;
        Ok(Self { log, configuration })
    }
}

impl Peer for OkayWal {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        self.append_batch(&[record])
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let mut entry = self.log.begin_entry()?;
        for record in records {
            entry.write_chunk(record)?;
        }
        Ok(entry.commit().map(drop)?)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        self.log.shutdown()?;
        let recovered = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        self.configuration.open(Recovered(recovered.clone()))?.shutdown()?;
        let records = recovered.lock().unwrap_or_else(PoisonError::into_inner);
        records.iter().try_for_each(|record| visit(record))
    }
}
