//! The protocol: frames with a length in front, a request and its reply, in MessagePack.

use crate::machine::{Change, Kv};
use futures::{SinkExt as _, StreamExt as _};
use openraft::BasicNode;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_util::bytes::Bytes;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// Between two calls of a node that does not listen.
const BACKOFF: Duration = Duration::from_millis(100);

/// A request of a client or of a node. The reply has the type of the call that handles it.
#[derive(Serialize, Deserialize)]
pub enum Request {
    Append(AppendEntriesRequest<Kv>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Kv>),
    /// The addresses of all nodes.
    Init(Vec<String>),
    Change(Change),
    Get(String),
}

/// The reply to a client.
#[derive(Serialize, Deserialize)]
pub enum Reply<T> {
    Done(T),
    /// Nothing happened. The address of the leader, if it is known.
    NotLeader(Option<String>),
    /// A change that may have happened, or may happen later.
    Unknown(String),
}

pub type Frames = Framed<TcpStream, LengthDelimitedCodec>;

pub fn frames(stream: TcpStream) -> io::Result<Frames> {
    stream.set_nodelay(true)?;
    Ok(Framed::new(stream, LengthDelimitedCodec::new()))
}

pub fn encode(message: &impl Serialize) -> Bytes {
    rmp_serde::to_vec_named(message).expect("maps, numbers, strings and bytes").into()
}

pub fn decode<T: DeserializeOwned>(frame: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(frame).map_err(io::Error::other)
}

/// A connection that is opened when it is needed.
pub struct Connection {
    address: String,
    frames: Option<Frames>,
}

impl Connection {
    pub fn new(address: String) -> Self {
        Self { address, frames: None }
    }

    /// Connects. An error means that the node got nothing.
    pub async fn ready(&mut self) -> io::Result<()> {
        if self.frames.is_none() {
            self.frames = Some(frames(TcpStream::connect(&self.address).await?)?);
        }
        Ok(())
    }

    /// After an error, the node may have got the request.
    pub async fn call<T: DeserializeOwned>(&mut self, request: &Request) -> io::Result<T> {
        self.ready().await?;
        // A call that is dropped takes its connection along, with the reply that may still come.
        let mut frames = self.frames.take().expect("it is connected");
        frames.send(encode(request)).await?;
        let reply = frames.next().await.ok_or(io::ErrorKind::UnexpectedEof)??;
        self.frames = Some(frames);
        decode(&reply)
    }
}

/// Makes the connections to other nodes.
pub struct Network;

/// Another node.
pub struct Peer {
    id: u64,
    connection: Connection,
}

impl RaftNetworkFactory<Kv> for Network {
    type Network = Peer;

    async fn new_client(&mut self, id: u64, node: &BasicNode) -> Peer {
        Peer { id, connection: Connection::new(node.addr.clone()) }
    }
}

type RpcResult<T, E> = Result<T, RPCError<u64, BasicNode, E>>;

impl Peer {
    async fn ask<T, E>(&mut self, request: Request) -> RpcResult<T, E>
    where
        T: DeserializeOwned,
        E: DeserializeOwned + Error,
    {
        match self.connection.call::<Result<T, E>>(&request).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(RPCError::RemoteError(RemoteError::new(self.id, error))),
            Err(error) => Err(RPCError::Unreachable(Unreachable::new(&error))),
        }
    }
}

impl RaftNetwork<Kv> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Kv>,
        _: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<u64>, RaftError<u64>> {
        self.ask(Request::Append(request)).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Kv>,
        _: RPCOption,
    ) -> RpcResult<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>> {
        self.ask(Request::Snapshot(request)).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _: RPCOption,
    ) -> RpcResult<VoteResponse<u64>, RaftError<u64>> {
        self.ask(Request::Vote(request)).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
