//! A replicated key-value store: three processes, each with its log and its snapshot on disk.
//!
//! ```sh
//! cargo run --example kv -- node --id 1 --dir kv1 --listen 127.0.0.1:7001    # and 2, and 3
//! N=127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
//! cargo run --example kv -- init --nodes $N    # once: node 1 is the first, and so on
//! cargo run --example kv -- put --nodes $N KEY VALUE
//! cargo run --example kv -- get --nodes $N KEY
//! cargo run --example kv -- swap --nodes $N KEY --from OLD VALUE
//! ```
//!
//! A change that returned is on two disks at least. Reads are linearizable.

mod client;
mod machine;
mod network;
mod node;

use clap::{Args, Parser, Subcommand};
use client::Client;
use dioxide_raft::RaftLogs;
use node::{Failure, Node};
use std::path::PathBuf;
use tokio::net::TcpListener;

/// A replicated key-value store.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a node until it fails or is killed. It prints its address when it listens.
    Node {
        /// The number of the node in the cluster.
        #[arg(long)]
        id: u64,
        /// The directory with its log and its snapshot.
        #[arg(long)]
        dir: PathBuf,
        /// Its address, which other nodes use. Port 0: any.
        #[arg(long)]
        listen: String,
        /// The number of changes between two snapshots.
        #[arg(long, default_value = "10000")]
        snapshot_every: u64,
    },
    /// Makes a cluster of new nodes.
    Init(Nodes),
    /// Sets a key.
    Put {
        #[command(flatten)]
        nodes: Nodes,
        key: String,
        value: String,
    },
    /// Prints the value of a key. Exits with 1 if it has none.
    Get {
        #[command(flatten)]
        nodes: Nodes,
        key: String,
    },
    /// Sets a key if it has the value --from, or without it none. Exits with 1 if it has another.
    Swap {
        #[command(flatten)]
        nodes: Nodes,
        key: String,
        #[arg(long)]
        from: Option<String>,
        value: String,
    },
}

#[derive(Args)]
struct Nodes {
    /// The addresses of all nodes, in the order of their numbers.
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    match Arguments::parse().command {
        Command::Node { id, dir, listen, snapshot_every } => {
            let logs = RaftLogs::open(dir.join("log"))?;
            let node = Node::start(id, &logs, dir.join("snapshot"), snapshot_every).await?;
            let listener = TcpListener::bind(listen).await?;
            println!("{}", listener.local_addr()?);
            node.serve(listener).await?;
        }
        Command::Init(Nodes { nodes }) => Client::new(nodes).init().await?,
        Command::Put { nodes, key, value } => Client::new(nodes.nodes).put(key, value).await?,
        Command::Get { nodes, key } => match Client::new(nodes.nodes).get(key).await? {
            Some(value) => println!("{value}"),
            None => std::process::exit(1),
        },
        Command::Swap { nodes, key, from, value } => {
            if let Err(found) = Client::new(nodes.nodes).swap(key, from, value).await? {
                eprintln!("it is {}", found.as_deref().unwrap_or("not there"));
                std::process::exit(1);
            }
        }
    }
    Ok(())
}
