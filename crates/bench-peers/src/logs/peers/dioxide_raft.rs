//! `dioxide-raft`: the log store of openraft, with a group for each lane in one log.

use super::dioxide_log::segments;
use super::openraft_group::{Group, Types, runtime};
use super::{Peer, Site, Visit};
use crate::interrupt;
use anyhow::{Result, anyhow};
use dioxide_raft::{GroupLog, RaftLogs};
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The group that fills the segments beforehand.
const FILLER: u64 = dioxide_raft::GROUP_MAX;
/// Between two looks at the thread that frees segments.
const PAUSE: Duration = Duration::from_millis(1);

pub struct Groups {
    groups: Vec<Mutex<Group<GroupLog<Types>>>>,
    logs: RaftLogs,
    runtime: Runtime,
    dir: PathBuf,
}

impl Groups {
    /// Logs that have used all of their segments once, and are empty.
    pub fn open(site: &Site) -> Result<Self> {
        let (segments, runtime) = (segments(site.size_bytes), runtime()?);
        let logs = RaftLogs::open_with(&segments.options(), &site.dir)?;
        let (mut group, filler) = (Group::new(logs.group(FILLER)?), segments.filler());
        while logs.stats().log.segments < segments.count {
            runtime.block_on(group.append(&[&filler]))?;
        }
        drop(group);
        logs.remove(FILLER)?;
        // The last one is in use.
        while logs.stats().log.segments > 1 {
            interrupt::check()?;
            sleep(PAUSE);
        }
        let logs_of = (0..site.lanes as u64).map(|lane| logs.group(lane));
        let groups = logs_of.map(|log| Ok(Mutex::new(Group::new(log?))));
        let groups = groups.collect::<Result<_>>()?;
        Ok(Self { groups, logs, runtime, dir: site.dir.clone() })
    }
}

impl Peer for Groups {
    fn append(&self, lane: usize, record: &[u8]) -> Result<()> {
        let mut group = self.groups[lane].lock().map_err(|_| anyhow!("a writer panicked"))?;
        self.runtime.block_on(group.append(&[record]))
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let mut group = self.groups[0].lock().map_err(|_| anyhow!("a writer panicked"))?;
        self.runtime.block_on(group.append(records))
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        let groups = self.groups.into_iter().map(Mutex::into_inner);
        let ends = groups.map(|group| group.map(|group| group.next));
        let ends: Vec<u64> =
            ends.collect::<Result<_, _>>().map_err(|_| anyhow!("a writer panicked"))?;
        self.logs.close()?;
        let logs = RaftLogs::open(&self.dir)?;
        for (lane, end) in ends.into_iter().enumerate() {
            let mut group = Group::new(logs.group(lane as u64)?);
            self.runtime.block_on(group.read_back(end, visit))?;
        }
        Ok(logs.close()?)
    }
}
