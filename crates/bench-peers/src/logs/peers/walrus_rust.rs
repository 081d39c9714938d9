//! walrus-rust: one instance, with a topic for each lane, because the writers of a topic exclude
//! each other. Its files are sparse.

use super::{Peer, Site, Visit};
use anyhow::{Context, Result};
use std::env;
use walrus_rust::{FsyncSchedule, ReadConsistency, Walrus};

const READ_BYTES: usize = 1 << 20;

pub struct Topics {
    log: Walrus,
    key: String,
    topics: Vec<String>,
}

fn open(key: &str) -> Result<Walrus> {
    // Positions of readers need no flush here.
    let reads = ReadConsistency::AtLeastOnce { persist_every: u32::MAX };
    let flushes = FsyncSchedule::SyncEach;
    Ok(Walrus::with_consistency_and_schedule_for_key(key, reads, flushes)?)
}

impl Topics {
    pub fn open(site: &Site) -> Result<Self> {
        let parent = site.dir.parent().context("a parent")?;
        let key = site.dir.file_name().and_then(|name| name.to_str()).context("a name")?.to_owned();
        // SAFETY: the environment is changed here only, by one thread at a time, and the standard
        // library locks it for those that read it. No C code of this process reads it.
        unsafe {
            env::set_var("WALRUS_DATA_DIR", parent);
            env::set_var("WALRUS_QUIET", "1");
        }
        let topics = (0..site.lanes).map(|lane| lane.to_string()).collect();
        Ok(Self { log: open(&key)?, key, topics })
    }
}

impl Peer for Topics {
    fn append(&self, lane: usize, record: &[u8]) -> Result<()> {
        Ok(self.log.append_for_topic(&self.topics[lane], record)?)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        Ok(self.log.batch_append_for_topic(&self.topics[0], records)?)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        drop(self.log);
        let log = open(&self.key)?;
        for topic in &self.topics {
            loop {
                let entries = log.batch_read_for_topic(topic, READ_BYTES, true)?;
                if entries.is_empty() {
                    break;
                }
                entries.iter().try_for_each(|entry| visit(&entry.data))?;
            }
        }
        Ok(())
    }
}
