//! Three processes of the example `kv`, killed under load.

#[allow(dead_code, reason = "the test uses a part")]
#[path = "../examples/kv/client.rs"]
mod client;
mod history;
#[allow(dead_code, reason = "the test uses a part")]
#[path = "../examples/kv/machine.rs"]
mod machine;
#[allow(dead_code, reason = "the test uses a part")]
#[path = "../examples/kv/network.rs"]
mod network;
mod work;

use client::Client;
use futures::{SinkExt as _, StreamExt as _};
use network::Reply;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;
use work::{Work, init};

const KILLS: usize = 20;
/// Changes between two kills.
const CHANGES: u64 = 40;
/// Snapshots are made, and logs purged, many times in a run.
const SNAPSHOT_EVERY: &str = "100";

/// Builds the example, as the test was built.
fn kv() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", "kv"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo").success());
    let test = std::env::current_exe().expect("the test has a path");
    test.ancestors().nth(2).expect("target/debug/deps/test").join("examples/kv")
}

/// A node in a process of its own.
struct Process {
    id: u64,
    dir: PathBuf,
    address: String,
    child: Child,
}

fn spawn(id: u64, dir: &Path, listen: &str) -> (Child, String) {
    let mut node = Command::new(dir.parent().expect("a directory for all").join("kv"));
    node.args(["node", "--snapshot-every", SNAPSHOT_EVERY, "--listen", listen]);
    node.args(["--id", &id.to_string()]).arg("--dir").arg(dir);
    let mut child = node.stdout(Stdio::piped()).spawn().expect("the example starts");
    let mut address = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut address).expect("a line");
    assert!(!address.is_empty(), "node {id} ended");
    (child, address.trim().into())
}

impl Process {
    fn start(id: u64, dir: PathBuf) -> Self {
        // Connections come from 127.0.0.1, so none of them occupies the port while it is free.
        let (child, address) = spawn(id, &dir, &format!("127.0.0.{}:0", id + 1));
        Self { id, dir, address, child }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        let status = self.child.wait().expect("it ended");
        assert_eq!(status.code(), None, "node {} ended by itself", self.id);
    }

    fn restart(&mut self) {
        self.child = spawn(self.id, &self.dir, &self.address).0;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_change_is_lost_when_nodes_are_killed() {
    let dir = tempfile::tempdir_in(".").unwrap();
    // Another build does not change the example of this run.
    std::fs::copy(kv(), dir.path().join("kv")).unwrap();
    let node = |id: u64| Process::start(id, dir.path().join(id.to_string()));
    let mut nodes: Vec<_> = (1..=3).map(node).collect();
    let addresses: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
    init(&addresses).await;

    let work = Work::start(addresses);
    for kill in 0..KILLS {
        work.goes_on(CHANGES).await;
        match kill % 5 {
            4 => {
                nodes.iter_mut().for_each(Process::kill);
                nodes.iter_mut().for_each(Process::restart);
            }
            one => {
                let node = &mut nodes[(kill / 5 + one) % 3];
                node.kill();
                // The others go on without it, if one of them leads.
                work.goes_on(CHANGES).await;
                node.restart();
            }
        }
    }
    work.goes_on(CHANGES).await;
    let verdict = work.finish().await;
    assert!(verdict.is_good(), "{verdict:#?}");
    assert!(verdict.operations as u64 > KILLS as u64 * CHANGES, "{}", verdict.operations);
    for node in &nodes {
        assert!(node.dir.join("snapshot").exists(), "node {} has no snapshot", node.id);
    }
}

/// The defect: the client asked the same node until its deadline if it did not know the leader.
#[tokio::test]
async fn a_client_that_does_not_know_the_leader_asks_the_next_node() {
    let other = Reply::NotLeader(Some("127.0.0.1:1".into()));
    let mut addresses = Vec::new();
    for reply in [other, Reply::Done(Some(String::from("value")))] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap().to_string());
        tokio::spawn(async move {
            let mut frames = network::frames(listener.accept().await.unwrap().0).unwrap();
            while let Some(Ok(_)) = frames.next().await {
                frames.send(network::encode(&reply)).await.unwrap();
            }
        });
    }
    let mut client = Client::new(addresses);
    let got = tokio::time::timeout(Duration::from_secs(20), client.get("key".into())).await;
    assert_eq!(got.expect("the next node replies").unwrap().as_deref(), Some("value"));
}
