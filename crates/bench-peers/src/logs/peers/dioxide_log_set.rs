//! `dioxide-log`: the logs of one set, a log for each lane.

use super::dioxide_log::segments;
use super::{Peer, Site, Visit};
use anyhow::{Result, bail};
use dioxide_log::{Log, LogSet, Lsn};
use std::path::PathBuf;

pub struct Set {
    set: LogSet,
    /// Each log, and its first record after those that filled its segments.
    logs: Vec<(Log, Lsn)>,
    dir: PathBuf,
}

impl Set {
    /// Logs that have used all of their segments once, and are empty.
    pub fn open(site: &Site) -> Result<Self> {
        let segments = segments(site.size_bytes / site.lanes as u64);
        let (set, filler) = (segments.options().open_set(&site.dir)?, segments.filler());
        let open = |lane: usize| {
            let log = set.log(&lane.to_string())?;
            while log.stats().segments < segments.count {
                log.append(&filler)?;
            }
            log.truncate_front(log.next_lsn())?;
            let first = log.next_lsn();
            Ok((log, first))
        };
        let logs = (0..site.lanes).map(open).collect::<Result<_>>()?;
        Ok(Self { set, logs, dir: site.dir.clone() })
    }
}

impl Peer for Set {
    fn append(&self, lane: usize, record: &[u8]) -> Result<()> {
        Ok(self.logs[lane].0.append(record).map(drop)?)
    }

    fn append_batch(&self, _: &[&[u8]]) -> Result<()> {
        bail!("batches are of one log")
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        let Self { set, logs, dir } = *self;
        set.close()?;
        let set = LogSet::open(&dir)?;
        for (lane, (_, first)) in logs.into_iter().enumerate() {
            let log = set.log(&lane.to_string())?;
            log.iter_from(first).try_for_each(|record| visit(&record?.1))?;
        }
        Ok(set.close()?)
    }
}
