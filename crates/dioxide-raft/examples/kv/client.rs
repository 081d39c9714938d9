//! A client: it finds the leader, and does not repeat a change that may have happened.

use crate::machine::{Change, Changed};
use crate::network::{Connection, Reply, Request};
use serde::de::DeserializeOwned;
use std::error::Error;
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a node may take for a request. A leader that lost the others answers never.
const REPLY_MAX: Duration = Duration::from_secs(5);
/// How long a client looks for a leader.
const LEADER_MAX: Duration = Duration::from_secs(30);
/// Between two nodes that do not lead.
const PAUSE: Duration = Duration::from_millis(50);

/// The reason why a request has no result. A read may be repeated.
#[derive(Debug)]
pub enum Failure {
    /// It is unknown whether a change happened, or will happen.
    Unknown(String),
    /// Each node refused the request, or did not listen. Nothing happened.
    NoLeader,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(reason) => {
                write!(f, "{reason}; it is unknown whether the change happened")
            }
            Self::NoLeader => write!(f, "no node leads; nothing happened"),
        }
    }
}

impl Error for Failure {}

pub type Result<T> = std::result::Result<T, Failure>;

/// A client of all nodes.
pub struct Client {
    addresses: Vec<String>,
    connections: Vec<Connection>,
    /// The node that may lead.
    at: usize,
}

impl Client {
    pub fn new(addresses: Vec<String>) -> Self {
        let connections = addresses.iter().cloned().map(Connection::new).collect();
        Self { addresses, connections, at: 0 }
    }

    /// Makes a cluster of new nodes.
    pub async fn init(&mut self) -> Result<()> {
        self.ask(Request::Init(self.addresses.clone())).await
    }

    pub async fn put(&mut self, key: String, value: String) -> Result<()> {
        let changed: Changed = self.ask(Request::Change(Change::Put { key, value })).await?;
        changed.map_err(|_| Failure::Unknown("a put was refused".into()))
    }

    /// Sets a key if its value is `from`. Otherwise returns its value as an error.
    pub async fn swap(
        &mut self,
        key: String,
        from: Option<String>,
        value: String,
    ) -> Result<Changed> {
        self.ask(Request::Change(Change::Swap { key, from, value })).await
    }

    pub async fn get(&mut self, key: String) -> Result<Option<String>> {
        self.ask(Request::Get(key)).await
    }

    /// Asks one node after the other until one is the leader.
    async fn ask<T: DeserializeOwned>(&mut self, request: Request) -> Result<T> {
        let deadline = Instant::now() + LEADER_MAX;
        while Instant::now() < deadline {
            let node = &mut self.connections[self.at];
            if node.ready().await.is_ok() {
                let reply = timeout(REPLY_MAX, node.call(&request)).await;
                match reply.unwrap_or_else(|elapsed| Err(elapsed.into())) {
                    Ok(Reply::Done(done)) => return Ok(done),
                    Ok(Reply::NotLeader(Some(leader))) => {
                        match self.addresses.iter().position(|address| *address == leader) {
                            Some(leader) => self.at = leader,
                            // A later leader may be one of these nodes.
                            None => self.next(),
                        }
                    }
                    Ok(Reply::NotLeader(None)) => self.next(),
                    Ok(Reply::Unknown(reason)) => {
                        self.next();
                        return Err(Failure::Unknown(reason));
                    }
                    Err(error) => {
                        self.next();
                        return Err(Failure::Unknown(error.to_string()));
                    }
                }
            } else {
                self.next();
            }
            sleep(PAUSE).await;
        }
        Err(Failure::NoLeader)
    }

    fn next(&mut self) {
        self.at = (self.at + 1) % self.connections.len();
    }
}
