//! `dioxide-log`: a log for each lane.

use super::dioxide_log::{OneLog, segments};
use super::{Peer, Site, Visit};
use anyhow::{Result, bail};

pub struct ManyLogs(Vec<OneLog>);

impl ManyLogs {
    pub fn open(site: &Site) -> Result<Self> {
        let segments = segments(site.size_bytes / site.lanes as u64);
        let dirs = (0..site.lanes).map(|lane| site.dir.join(lane.to_string()));
        let logs = dirs.map(|dir| OneLog::recycled(&dir, &segments));
        Ok(Self(logs.collect::<Result<_>>()?))
    }
}

impl Peer for ManyLogs {
    fn append(&self, lane: usize, record: &[u8]) -> Result<()> {
        self.0[lane].append(record)
    }

    fn append_batch(&self, _: &[&[u8]]) -> Result<()> {
        bail!("batches are of one log")
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        self.0.into_iter().try_for_each(|log| log.read_back(visit))
    }
}
