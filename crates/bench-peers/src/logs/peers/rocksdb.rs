//! RocksDB: one database, whose write-ahead log is the log. Its writers share flushes. A lane is a
//! prefix of keys, also for many logs and groups.

use super::{Peer, Site, Visit};
use anyhow::{Context, Result};
use rocksdb::{DB, IteratorMode, Options, WriteBatch, WriteOptions};
use std::path::{Path, PathBuf};

const FILLER_BYTES: usize = 1 << 20;
/// Behind the keys of all lanes.
const FILLER_KEY: [u8; 5] = [0xff; 5];
const KEY_BYTES: usize = 12;

pub struct Rocksdb {
    db: DB,
    dir: PathBuf,
}

/// The lane and the number of a record, in the order of keys.
fn key(record: &[u8]) -> Result<[u8; KEY_BYTES]> {
    let (number, lane) = record.get(..KEY_BYTES).context("a short record")?.split_at(8);
    let mut key = [0; KEY_BYTES];
    let (key_lane, key_number) = key.split_at_mut(4);
    key_lane.copy_from_slice(&u32::from_le_bytes(lane.try_into()?).to_be_bytes());
    key_number.copy_from_slice(&u64::from_le_bytes(number.try_into()?).to_be_bytes());
    Ok(key)
}

fn durable() -> WriteOptions {
    let mut options = WriteOptions::new();
    options.set_sync(true);
    options
}

/// The memory holds the records of a run, so that nothing is compacted beside it.
fn open(dir: &Path, size_bytes: u64) -> Result<DB> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_write_buffer_size(usize::try_from(size_bytes)?.saturating_mul(2));
    options.set_disable_auto_compactions(true);
    options.set_enable_pipelined_write(true);
    options.set_recycle_log_file_num(2);
    Ok(DB::open(&options, dir)?)
}

impl Rocksdb {
    /// A database that writes its log into a file that was full once: a file is reused when a later
    /// one is full.
    pub fn open(site: &Site) -> Result<Self> {
        let db = open(&site.dir, site.size_bytes)?;
        let filler = vec![0x5a; FILLER_BYTES];
        for _ in 0..site.size_bytes.div_ceil(FILLER_BYTES as u64) {
            db.put(FILLER_KEY, &filler)?;
        }
        db.flush()?;
        db.put_opt(FILLER_KEY, [], &durable())?;
        db.flush()?;
        Ok(Self { db, dir: site.dir.clone() })
    }
}

impl Peer for Rocksdb {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key(record)?, record, &durable())?)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for record in records {
            batch.put(key(record)?, record);
        }
        Ok(self.db.write_opt(batch, &durable())?)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        drop(self.db);
        let db = open(&self.dir, 0)?;
        for item in db.iterator(IteratorMode::Start) {
            let (key, record) = item?;
            if key.len() == KEY_BYTES {
                visit(&record)?;
            }
        }
        Ok(())
    }
}
