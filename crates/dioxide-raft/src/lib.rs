//! A log store for [openraft](https://docs.rs/openraft) 0.9 on `dioxide-log`.
//!
//! The groups of a process share one log, so one write and one flush carry the entries and votes of
//! all groups that wait.
//!
//! ```no_run
//! # use dioxide_raft::RaftLogs;
//! # use std::io::Cursor;
//! # openraft::declare_raft_types!(Types: D = String, R = String);
//! let logs = RaftLogs::open("raft")?;
//! let log_store = logs.group::<Types>(7)?; // for openraft::Raft::new
//! # Ok::<(), dioxide_raft::Error>(())
//! ```
//!
//! # After a crash
//!
//! Entries whose callback openraft got, and votes that it saved, are there. An entry that was
//! truncated stays truncated once a later entry or vote is acknowledged.
//!
//! A group that is opened has its vote without the mark `committed`. So a node that led before
//! leads again only after an election. openraft 0.9 would otherwise restore it at once, with the
//! saved committed id, which may be old. Its reads could then be stale, also after
//! `ensure_linearizable`.

#![forbid(unsafe_code)]

mod error;
mod group;
mod recent;
mod snapshots;

pub use error::{Error, Result};
pub use group::GroupLog;
pub use snapshots::DurableSnapshots;

use dioxide_log::storage::Storage;
use dioxide_log::{Durability, LogOptions, Stream, StreamLog, StreamStats};
use openraft::RaftTypeConfig;
use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The logs of the raft groups of a process, in one directory or on one device. Clones are the
/// same.
#[derive(Clone, Debug)]
pub struct RaftLogs {
    log: StreamLog,
    open: Arc<Mutex<Open>>,
}

/// The states of the groups that have handles, which these share.
type Open = BTreeMap<u64, Weak<dyn Any + Send + Sync>>;

/// The largest number of a group. Each has two streams.
pub const GROUP_MAX: u64 = u64::MAX / 2;

impl RaftLogs {
    /// Opens the logs in a directory, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// The error of dioxide-log, for example if another process has the logs open.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(&LogOptions::new(), path)
    }

    /// As [`open`](Self::open), with options of the log. Each append is durable, whatever they say:
    /// raft needs that.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with(options: &LogOptions, path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::of(durable(options).open_streams(path)?))
    }

    /// As [`open_with`](Self::open_with), on any medium.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_storage_with(options: &LogOptions, storage: Arc<dyn Storage>) -> Result<Self> {
        Ok(Self::of(durable(options).open_streams_storage(storage)?))
    }

    fn of(log: StreamLog) -> Self {
        Self { log, open: Arc::default() }
    }

    fn open_groups(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log of a group, to be passed to `openraft::Raft::new`. All handles of a group are the
    /// same log. One raft at a time uses it.
    ///
    /// # Errors
    ///
    /// [`Error::Group`] if the number is above [`GROUP_MAX`]. [`Error::Decode`] if the group was
    /// written with other types. [`Error::InUse`] if it has a handle of other types. Or the error
    /// of dioxide-log, also that of an earlier write of the group that failed.
    pub fn group<C: RaftTypeConfig>(&self, group: u64) -> Result<GroupLog<C>> {
        let [entries, facts] = self.streams(group)?;
        // Two that open a group at once get the same.
        let mut open = self.open_groups();
        // A use of the group before may have left writes in flight, which readers do not see. If
        // one failed, this fails as well: the handles of that use have a vote that is not stable.
        if [&entries, &facts].iter().any(|stream| stream.stable_lsn() < stream.next_lsn()) {
            self.log.sync()?;
        }
        if let Some(shared) = open.get(&group).and_then(Weak::upgrade) {
            return match shared.downcast() {
                Ok(shared) => Ok(GroupLog::again(shared)),
                Err(_) => Err(Error::InUse(group)),
            };
        }
        let log = GroupLog::open(entries, facts)?;
        let shared: Arc<dyn Any + Send + Sync> = log.shared().clone();
        open.insert(group, Arc::downgrade(&shared));
        Ok(log)
    }

    /// The stream of the entries of a group, and that of its vote and other facts.
    fn streams(&self, group: u64) -> Result<[Stream; 2]> {
        match group > GROUP_MAX {
            true => Err(Error::Group(group)),
            false => Ok([self.log.stream(2 * group), self.log.stream(2 * group + 1)]),
        }
    }

    /// The numbers of the groups that have a vote or an entry, in order.
    pub fn groups(&self) -> Vec<u64> {
        let mut groups: Vec<u64> = self.log.ids().into_iter().map(|id| id / 2).collect();
        groups.dedup();
        groups
    }

    /// Removes all that a group has. A crash meanwhile may leave its vote; then
    /// [`groups`](Self::groups) has it, and a second call removes it.
    ///
    /// # Errors
    ///
    /// [`Error::Group`] if the number is above [`GROUP_MAX`]. [`Error::InUse`] if it has a handle.
    /// Or the error of dioxide-log.
    pub fn remove(&self, group: u64) -> Result<()> {
        let [entries, facts] = self.streams(group)?;
        let mut open = self.open_groups();
        if open.get(&group).is_some_and(|shared| shared.strong_count() > 0) {
            return Err(Error::InUse(group));
        }
        open.remove(&group);
        entries.remove()?;
        Ok(facts.remove()?)
    }

    /// The counters of the log.
    pub fn stats(&self) -> StreamStats {
        self.log.stats()
    }

    /// Writes what is in flight, and closes the logs of all groups.
    ///
    /// # Errors
    ///
    /// The error of a write. The logs are closed nevertheless.
    pub fn close(self) -> Result<()> {
        Ok(self.log.close()?)
    }
}

fn durable(options: &LogOptions) -> LogOptions {
    options.clone().durability(Durability::EveryWrite)
}
