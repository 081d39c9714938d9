//! The state machine: a map in memory, whose snapshot is a durable file. A log that was purged
//! begins behind that snapshot.

use dioxide_raft::DurableSnapshots;
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{
    AnyError, BasicNode, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Cursor, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, result};

openraft::declare_raft_types!(
    /// The types of the store.
    pub Kv: D = Change, R = Changed
);

type Result<T> = result::Result<T, StorageError<u64>>;

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Sets it.
    Put { key: String, value: String },
    /// Sets it if it has this value.
    Swap { key: String, from: Option<String>, value: String },
}

/// The result of a change: `Err` with the value of the key if that was not the one to swap.
pub type Changed = result::Result<(), Option<String>>;

/// A state machine. Clones are the same.
#[derive(Clone)]
pub struct Machine {
    state: Arc<Mutex<State>>,
    file: Arc<File>,
}

/// The file of the snapshot, and the last entry in it.
struct File {
    path: PathBuf,
    last: Mutex<Option<LogId<u64>>>,
    durable: DurableSnapshots,
}

/// What a snapshot has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    last: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
    map: BTreeMap<String, String>,
}

impl State {
    fn apply(&mut self, change: Change) -> Changed {
        match change {
            Change::Put { key, value } => self.map.insert(key, value),
            Change::Swap { key, from, value } => {
                let found = self.map.get(&key);
                if found != from.as_ref() {
                    return Err(found.cloned());
                }
                self.map.insert(key, value)
            }
        };
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        rmp_serde::to_vec_named(self).expect("maps, numbers and strings")
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        rmp_serde::from_slice(bytes).map_err(io::Error::other)
    }

    fn snapshot(&self, bytes: Vec<u8>) -> Snapshot<Kv> {
        let meta = SnapshotMeta {
            last_log_id: self.last,
            last_membership: self.membership.clone(),
            snapshot_id: self.last.map(|last| last.to_string()).unwrap_or_default(),
        };
        Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }
    }
}

impl File {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Makes a snapshot durable. One that was built stays behind one that came meanwhile.
    fn replace(&self, last: Option<LogId<u64>>, bytes: &[u8]) -> io::Result<()> {
        let mut newest = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last > *newest {
            dioxide::replace(&self.path, |writer| writer.write_all(bytes))?;
            *newest = last;
            last.iter().for_each(|last| self.durable.add(last.index));
        }
        Ok(())
    }
}

fn failed(error: impl Error + 'static) -> StorageError<u64> {
    StorageIOError::write_state_machine(AnyError::new(&error)).into()
}

impl Machine {
    /// Begins with the snapshot in a file, if there is one. The log gets to know each snapshot.
    pub fn open(path: PathBuf, durable: DurableSnapshots) -> io::Result<Self> {
        let file = File { path, last: Mutex::default(), durable };
        let state = file.read()?.map(|bytes| State::decode(&bytes)).transpose()?;
        let state = state.unwrap_or_default();
        state.last.iter().for_each(|last| file.durable.add(last.index));
        let file = File { last: Mutex::new(state.last), ..file };
        Ok(Self { state: Arc::new(Mutex::new(state)), file: Arc::new(file) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        self.state().map.get(key).cloned()
    }

    async fn save(&self, last: Option<LogId<u64>>, bytes: Vec<u8>) -> Result<()> {
        let file = self.file.clone();
        let save = tokio::task::spawn_blocking(move || file.replace(last, &bytes));
        let saved = save.await.map_err(failed)?.map_err(failed);
        if saved.is_err() {
            self.file.durable.fail();
        }
        saved
    }
}

impl RaftSnapshotBuilder<Kv> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Kv>> {
        let state = self.state().clone();
        let bytes = state.encode();
        self.save(state.last, bytes.clone()).await?;
        Ok(state.snapshot(bytes))
    }
}

impl RaftStateMachine<Kv> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        let state = self.state();
        Ok((state.last, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Changed>>
    where
        I: IntoIterator<Item = openraft::Entry<Kv>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut state = self.state();
        let apply = |entry: openraft::Entry<Kv>| {
            state.last = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Normal(change) => return state.apply(change),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
                EntryPayload::Blank => {}
            }
            Ok(())
        };
        Ok(entries.into_iter().map(apply).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<()> {
        let bytes = snapshot.into_inner();
        let state = State::decode(&bytes).map_err(failed)?;
        self.save(meta.last_log_id, bytes).await?;
        *self.state() = state;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Kv>>> {
        let Some(bytes) = self.file.read().map_err(failed)? else { return Ok(None) };
        Ok(Some(State::decode(&bytes).map_err(failed)?.snapshot(bytes)))
    }
}
