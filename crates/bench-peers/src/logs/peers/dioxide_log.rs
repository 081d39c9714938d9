//! `dioxide-log`: one log, in segments that were used before.

use super::{Peer, Site, Visit};
use anyhow::Result;
use dioxide_log::{Log, LogOptions, Lsn};
use std::path::PathBuf;

/// A log, and its first record after those that filled its segments.
pub struct OneLog {
    log: Log,
    first: Lsn,
    dir: PathBuf,
}

impl OneLog {
    /// A log that has used all of its segments once, and is empty.
    pub fn open(site: &Site) -> Result<Self> {
        let segments = segments(site.size_bytes);
        let (log, filler) = (segments.options().open(&site.dir)?, segments.filler());
        while log.stats().segments < segments.count {
            log.append(&filler)?;
        }
        log.truncate_front(log.next_lsn())?;
        Ok(Self { first: log.next_lsn(), log, dir: site.dir.clone() })
    }
}

impl Peer for OneLog {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        Ok(self.log.append(record).map(drop)?)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        Ok(self.log.append_all(records).map(drop)?)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        self.log.close()?;
        let log = Log::open(&self.dir)?;
        log.iter_from(self.first).try_for_each(|record| visit(&record?.1))?;
        Ok(log.close()?)
    }
}

/// The segments of a log.
pub struct Segments {
    bytes: u64,
    pub count: u64,
}

/// The segments for this much space: four at least, of the default size at most.
pub fn segments(size_bytes: u64) -> Segments {
    let bytes = (size_bytes / 4).next_power_of_two().clamp(64 << 10, 16 << 20);
    Segments { bytes, count: size_bytes.div_ceil(bytes).max(4) }
}

impl Segments {
    /// All are kept.
    pub fn options(&self) -> LogOptions {
        LogOptions::new().segment_bytes(self.bytes).spare_segments(self.count as usize)
    }

    /// A record that fills segments fast.
    pub fn filler(&self) -> Vec<u8> {
        vec![0xA5; self.bytes as usize / 4]
    }
}
