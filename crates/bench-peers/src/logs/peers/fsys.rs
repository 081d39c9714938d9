//! fsys: its journal, in the page cache, with preallocated space.

use super::{Peer, Site, Visit};
use anyhow::Result;
use fsys::{JournalHandle, JournalOptions, JournalReader, builder};
use std::path::PathBuf;

pub struct Journal {
    journal: JournalHandle,
    path: PathBuf,
}

impl Journal {
    pub fn open(site: &Site) -> Result<Self> {
        let path = site.dir.join("journal");
        // Without a window a thread does not wait for others; they share the flush all the same.
        let options = JournalOptions::new().group_commit_window(None);
        let journal = builder().build()?.journal_with(&path, options)?;
        journal.preallocate(0, site.size_bytes)?;
        Ok(Self { journal, path })
    }
}

impl Peer for Journal {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        Ok(self.journal.sync_through(self.journal.append(record)?)?)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        Ok(self.journal.sync_through(self.journal.append_batch(records)?)?)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        self.journal.close()?;
        let mut reader = JournalReader::open(&self.path)?;
        reader.iter().try_for_each(|record| visit(&record?.payload))
    }
}
