//! raft-engine: one engine, with a region for each lane, because a region has one writer. Its files
//! are written beforehand, and small batches share a flush.

use super::{Peer, Site, Visit};
use anyhow::{Context, Result};
use protobuf::well_known_types::BytesValue;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

const FILE_BYTES_MAX: u64 = 64 << 20;

pub struct Regions {
    engine: Engine,
    config: Config,
    lanes: u64,
}

/// Entries of a region. The number of a record in its lane is its index.
struct Entries;

impl MessageExt for Entries {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        u64::from_le_bytes(entry.value[..8].try_into().expect("a record begins with its number"))
    }
}

impl Regions {
    pub fn open(site: &Site) -> Result<Self> {
        let file_bytes = (site.size_bytes / 4).min(FILE_BYTES_MAX);
        let config = Config {
            dir: site.dir.to_str().context("a directory in UTF-8")?.into(),
            target_file_size: ReadableSize(file_bytes),
            // Records are noise.
            batch_compression_threshold: ReadableSize(0),
            ..Config::default()
        };
        let prefilled = Config {
            prefill_for_recycle: true,
            prefill_limit: Some(ReadableSize(site.size_bytes)),
            ..config.clone()
        };
        let engine = Engine::open(prefilled)?;
        Ok(Self { engine, config, lanes: site.lanes as u64 })
    }

    fn write(&self, lane: usize, records: &[&[u8]]) -> Result<()> {
        let entry = |record: &&[u8]| BytesValue { value: record.to_vec(), ..BytesValue::default() };
        let entries: Vec<_> = records.iter().map(entry).collect();
        let mut batch = LogBatch::with_capacity(1);
        batch.add_entries::<Entries>(lane as u64, &entries)?;
        Ok(self.engine.write(&mut batch, true).map(drop)?)
    }
}

impl Peer for Regions {
    fn append(&self, lane: usize, record: &[u8]) -> Result<()> {
        self.write(lane, &[record])
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        self.write(0, records)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        drop(self.engine);
        let engine = Engine::open(self.config)?;
        for region in 0..self.lanes {
            let bounds = engine.first_index(region).zip(engine.last_index(region));
            let Some((first, last)) = bounds else { continue };
            let mut entries = Vec::new();
            engine.fetch_entries_to::<Entries>(region, first, last + 1, None, &mut entries)?;
            entries.iter().try_for_each(|entry| visit(&entry.value))?;
        }
        Ok(())
    }
}
