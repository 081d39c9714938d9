//! The conformance suite of openraft on a log store, with a state machine in memory.

use dioxide_raft::{GroupLog, RaftLogs};
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{
    EntryPayload, LogId, RaftLogId, RaftSnapshotBuilder, RaftTypeConfig, SnapshotMeta,
    StorageError, StoredMembership,
};
use std::io::Cursor;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

openraft::declare_raft_types!(
    /// The types of the tests.
    pub Types: D = String, R = String
);

type Id = <Types as RaftTypeConfig>::NodeId;
type Node = <Types as RaftTypeConfig>::Node;
type Entry = <Types as RaftTypeConfig>::Entry;

/// A state machine that keeps what it applied.
#[derive(Clone, Debug, Default)]
struct Machine(Arc<Mutex<Applied>>);

#[derive(Clone, Debug, Default)]
struct Applied {
    last: Option<LogId<Id>>,
    membership: StoredMembership<Id, Node>,
    values: Vec<String>,
    snapshots: u64,
    snapshot: Option<(SnapshotMeta<Id, Node>, Vec<u8>)>,
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<Id>> {
        let mut applied = self.0.lock().unwrap();
        applied.snapshots += 1;
        let meta = SnapshotMeta {
            last_log_id: applied.last,
            last_membership: applied.membership.clone(),
            snapshot_id: applied.snapshots.to_string(),
        };
        let bytes = applied.values.join("\n").into_bytes();
        applied.snapshot = Some((meta.clone(), bytes.clone()));
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<Id>>, StoredMembership<Id, Node>), StorageError<Id>> {
        let applied = self.0.lock().unwrap();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<String>, StorageError<Id>>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let mut applied = self.0.lock().unwrap();
        let mut apply = |entry: Entry| {
            applied.last = Some(*entry.get_log_id());
            match entry.payload {
                EntryPayload::Normal(value) => applied.values.push(value),
                EntryPayload::Membership(membership) => {
                    applied.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
                EntryPayload::Blank => {}
            }
            String::new()
        };
        Ok(entries.into_iter().map(&mut apply).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError<Id>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<Id, Node>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<Id>> {
        let mut applied = self.0.lock().unwrap();
        let bytes = snapshot.into_inner();
        applied.values = String::from_utf8_lossy(&bytes).lines().map(String::from).collect();
        applied.last = meta.last_log_id;
        applied.membership = meta.last_membership.clone();
        applied.snapshot = Some((meta.clone(), bytes));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<Id>> {
        let applied = self.0.lock().unwrap();
        let snapshot = applied.snapshot.clone();
        Ok(snapshot.map(|(meta, bytes)| Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }))
    }
}

/// Each store is a group of its own in one log.
struct Groups {
    logs: RaftLogs,
    next: AtomicU64,
    _dir: TempDir,
}

impl StoreBuilder<Types, GroupLog<Types>, Machine> for Groups {
    async fn build(&self) -> Result<((), GroupLog<Types>, Machine), StorageError<Id>> {
        let group = self.next.fetch_add(1, Relaxed);
        Ok(((), self.logs.group(group).expect("a new group"), Machine::default()))
    }
}

#[test]
fn the_suite_of_openraft_passes() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let logs = RaftLogs::open(dir.path()).unwrap();
    let groups = Groups { logs: logs.clone(), next: AtomicU64::new(0), _dir: dir };
    Suite::test_all(groups).unwrap();
    assert!(logs.groups().len() > 20, "{:?}", logs.groups());
}
