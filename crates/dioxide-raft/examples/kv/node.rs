//! A node: raft, its log and its state machine, behind a listener.

use crate::machine::{Change, Changed, Kv, Machine};
use crate::network::{Network, Reply, Request, decode, encode, frames};
use dioxide_raft::RaftLogs;
use futures::{SinkExt as _, StreamExt as _};
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{BasicNode, Config, Raft, SnapshotPolicy};
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::bytes::Bytes;

pub type Failure = Box<dyn Error + Send + Sync>;

/// The log could have those of other groups as well.
const GROUP: u64 = 0;

/// Milliseconds.
const HEARTBEAT: u64 = 100;
const ELECTION: Range<u64> = 400..800;

/// A node that runs. Clones are the same.
#[derive(Clone)]
pub struct Node {
    id: u64,
    raft: Raft<Kv>,
    machine: Machine,
}

impl Node {
    /// Starts with what the log and the file of the snapshot have.
    pub async fn start(
        id: u64,
        logs: &RaftLogs,
        snapshot: PathBuf,
        snapshot_every: u64,
    ) -> Result<Self, Failure> {
        let config = Config {
            heartbeat_interval: HEARTBEAT,
            election_timeout_min: ELECTION.start,
            election_timeout_max: ELECTION.end,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(snapshot_every),
            max_in_snapshot_log_to_keep: snapshot_every,
            ..Config::default()
        };
        let config = Arc::new(config.validate()?);
        let log = logs.group(GROUP)?;
        let machine = Machine::open(snapshot, log.wait_for_snapshots())?;
        let raft = Raft::new(id, config, Network, log, machine.clone()).await?;
        Ok(Self { id, raft, machine })
    }

    /// Answers requests until raft stops, for example because the disk failed.
    pub async fn serve(&self, listener: TcpListener) -> Result<(), Failure> {
        let mut metrics = self.raft.metrics();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    connections.spawn(self.clone().answer_all(accepted?.0));
                }
                Some(_) = connections.join_next() => {}
                stopped = metrics.wait_for(|metrics| metrics.running_state.is_err()) => {
                    return Ok(stopped?.running_state.clone()?);
                }
            }
        }
    }

    async fn answer_all(self, stream: TcpStream) -> io::Result<()> {
        let mut frames = frames(stream)?;
        while let Some(request) = frames.next().await {
            frames.send(self.answer(decode(&request?)?).await).await?;
        }
        Ok(())
    }

    async fn answer(&self, request: Request) -> Bytes {
        match request {
            Request::Append(request) => encode(&self.raft.append_entries(request).await),
            Request::Vote(request) => encode(&self.raft.vote(request).await),
            Request::Snapshot(request) => encode(&self.raft.install_snapshot(request).await),
            Request::Init(addresses) => encode(&self.init(addresses).await),
            Request::Change(change) => encode(&self.change(change).await),
            Request::Get(key) => encode(&self.get(&key).await),
        }
    }

    async fn init(&self, addresses: Vec<String>) -> Reply<()> {
        let nodes = (1..).zip(addresses.into_iter().map(BasicNode::new));
        let nodes: BTreeMap<u64, BasicNode> = nodes.collect();
        match self.raft.initialize(nodes).await {
            Ok(()) => Reply::Done(()),
            Err(error) => Reply::Unknown(error.to_string()),
        }
    }

    async fn change(&self, change: Change) -> Reply<Changed> {
        if self.raft.current_leader().await != Some(self.id) {
            return Reply::NotLeader(self.leader());
        }
        match self.raft.client_write(change).await {
            Ok(response) => Reply::Done(response.data),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                // A new leader has another entry there. Crashes of several nodes may undo that.
                Reply::Unknown("the leader changed".into())
            }
            Err(error) => Reply::Unknown(error.to_string()),
        }
    }

    async fn get(&self, key: &str) -> Reply<Option<String>> {
        match self.raft.ensure_linearizable().await {
            Ok(_) => Reply::Done(self.machine.get(key)),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to))) => {
                Reply::NotLeader(to.leader_node.map(|node| node.addr))
            }
            Err(error) => Reply::Unknown(error.to_string()),
        }
    }

    /// The address of the leader, if it is known.
    fn leader(&self) -> Option<String> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let nodes = metrics.membership_config.membership();
        metrics.current_leader.and_then(|id| nodes.get_node(&id)).map(|node| node.addr.clone())
    }
}
