//! raft-log: the log of a raft group. A lock orders its records, and its own thread flushes those
//! that wait together. Of many groups, each has a log.

use super::{Peer, Site, Visit};
use anyhow::{Result, anyhow};
use raft_log::api::raft_log_writer::RaftLogWriter;
use raft_log::{Config, RaftLog, Types};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io};

const TERM: u64 = 1;
/// The thread that flushes takes what waits only if it may wait for more.
const SHARED_WAIT: Duration = Duration::from_micros(50);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Records;

impl Types for Records {
    type LogId = (u64, u64);
    type LogPayload = Vec<u8>;
    type Vote = (u64, u64);
    type UserData = String;
    type Callback = SyncSender<io::Result<()>>;

    fn log_index(id: &(u64, u64)) -> u64 {
        id.1
    }

    fn payload_size(record: &Vec<u8>) -> u64 {
        record.len() as u64
    }
}

pub struct Group {
    log: Mutex<State>,
    dir: PathBuf,
}

struct State {
    log: RaftLog<Records>,
    last: u64,
}

fn open(dir: &Path, flush_batch_wait: Duration) -> Result<RaftLog<Records>> {
    let mut config = Config::new(dir.display());
    config.wal.flush_batch_wait = Some(flush_batch_wait);
    Ok(RaftLog::open(Arc::new(config))?)
}

impl Group {
    pub fn open(site: &Site) -> Result<Self> {
        let wait = if site.lanes == 1 { Duration::ZERO } else { SHARED_WAIT };
        Self::in_dir(site.dir.clone(), wait)
    }

    fn in_dir(dir: PathBuf, wait: Duration) -> Result<Self> {
        let log = Mutex::new(State { log: open(&dir, wait)?, last: 0 });
        Ok(Self { log, dir })
    }
}

impl Peer for Group {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        self.append_batch(&[record])
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let (sender, flushed) = sync_channel(1);
        let mut state = self.log.lock().map_err(|_| anyhow!("a writer panicked"))?;
        let first = state.last + 1;
        state.last += records.len() as u64;
        let ids = (first..).map(|index| (TERM, index));
        state.log.append(ids.zip(records.iter().map(|record| record.to_vec())))?;
        state.log.flush(true, Some(sender))?;
        drop(state);
        Ok(flushed.recv()??)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        let State { log, last } = self.log.into_inner()?;
        drop(log);
        open(&self.dir, Duration::ZERO)?.read(1, last + 1).try_for_each(|record| visit(&record?.1))
    }
}

/// A log for each lane.
pub struct Groups(Vec<Group>);

impl Groups {
    pub fn open(site: &Site) -> Result<Self> {
        let group = |lane: usize| {
            let dir = site.dir.join(lane.to_string());
            fs::create_dir(&dir)?;
            Group::in_dir(dir, Duration::ZERO)
        };
        Ok(Self((0..site.lanes).map(group).collect::<Result<_>>()?))
    }
}

impl Peer for Groups {
    fn append(&self, lane: usize, record: &[u8]) -> Result<()> {
        self.0[lane].append(lane, record)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        self.0[0].append_batch(records)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        self.0.into_iter().try_for_each(|group| Box::new(group).read_back(visit))
    }
}
