//! Three nodes on simulated disks, whose power fails in any call: of one node, or of all at once.
//! Stores that acknowledge too early must be found.

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
#[path = "../examples/kv/node.rs"]
mod node;
mod work;

use dioxide_log::LogOptions;
use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::storage::{Segment, Storage};
use dioxide_raft::{Error, RaftLogs};
use node::{Failure, Node};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use work::{Verdict, Work, init, until};

/// Power cuts of the real store.
const CUTS: usize = 20;
/// Changes between two power cuts.
const CHANGES: u64 = 40;
/// A power cut comes in one of the next calls of the disk.
const CALLS: u64 = 10;
/// Writes that a store acknowledges early.
const EARLY: usize = 20;
const SNAPSHOT_EVERY: u64 = 100;
/// Fewer than the changes between two power cuts.
const SNAPSHOT_OFTEN: u64 = 5;
/// Snapshots are durable by themselves, so the controls have none.
const NO_SNAPSHOTS: u64 = 1 << 40;

/// Runs of a store that loses something, and the longest.
const RUNS_MAX: u64 = 5;
const RUN_MAX: Duration = Duration::from_secs(60);

/// The rules of a run. They apply after the first power cut.
struct Rules {
    /// Writes are acknowledged before they are stable.
    is_early: bool,
    /// The disks lie about flushes.
    lies: bool,
    snapshot_every: u64,
}

impl Rules {
    /// Those of a store that loses nothing.
    fn good(snapshot_every: u64) -> Self {
        Self { is_early: false, lies: false, snapshot_every }
    }
}

/// A disk, or a segment of it, whose writes return before they reach it. The last ones wait, in
/// their order. So a power cut leaves a log without its last records, as after a plain write.
#[derive(Debug)]
struct Early<T> {
    to: T,
    waiting: Arc<Mutex<VecDeque<Write>>>,
}

#[derive(Debug)]
struct Write {
    segment: Arc<dyn Segment>,
    data: Vec<u8>,
    offset: u64,
}

impl<T> Early<T> {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Write>> {
        self.waiting.lock().expect("no panic")
    }

    fn segment(&self, to: Arc<dyn Segment>) -> Arc<dyn Segment> {
        Arc::new(Early { to, waiting: self.waiting.clone() })
    }
}

/// Writes all but the last ones.
fn write_out(waiting: &mut VecDeque<Write>, last: usize) -> dioxide_log::Result<()> {
    while waiting.len() > last {
        let Write { segment, data, offset } = waiting.pop_front().expect("there are more");
        segment.write(&data, offset, true)?;
    }
    Ok(())
}

impl Storage for Early<Memory> {
    fn path(&self) -> &Path {
        self.to.path()
    }

    fn segments(&self) -> dioxide_log::Result<Vec<Arc<dyn Segment>>> {
        let segments = self.to.segments()?.into_iter();
        Ok(segments.map(|segment| self.segment(segment)).collect())
    }

    fn create(&self, bytes: u64) -> dioxide_log::Result<Arc<dyn Segment>> {
        Ok(self.segment(self.to.create(bytes)?))
    }

    fn remove(&self, segment: &dyn Segment) -> dioxide_log::Result<()> {
        self.to.remove(segment)
    }
}

impl Segment for Early<Arc<dyn Segment>> {
    fn path(&self) -> &Path {
        self.to.path()
    }

    fn bytes(&self) -> u64 {
        self.to.bytes()
    }

    fn write(&self, data: &[u8], offset: u64, _: bool) -> dioxide_log::Result<()> {
        let (segment, data) = (self.to.clone(), data.to_vec());
        let mut waiting = self.waiting();
        waiting.push_back(Write { segment, data, offset });
        write_out(&mut waiting, EARLY)
    }

    fn sync(&self) -> dioxide_log::Result<()> {
        write_out(&mut self.waiting(), 0)?;
        self.to.sync()
    }

    fn read(&self, into: &mut [u8], offset: u64) -> dioxide_log::Result<()> {
        let waiting = self.waiting();
        self.to.read(into, offset)?;
        let end = offset + into.len() as u64;
        for write in waiting.iter().filter(|write| write.segment.path() == self.path()) {
            let from = write.offset.max(offset);
            let to = (write.offset + write.data.len() as u64).min(end);
            if from < to {
                into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(
                    &write.data[(from - write.offset) as usize..(to - write.offset) as usize],
                );
            }
        }
        Ok(())
    }
}

/// A node with its disk. The file of its snapshot is durable when it is replaced.
struct Machine {
    id: u64,
    disk: Memory,
    lies: bool,
    snapshot: PathBuf,
    address: String,
    serving: JoinHandle<Result<(), Failure>>,
}

impl Machine {
    async fn start(
        rules: &Rules,
        id: u64,
        disk: Memory,
        snapshot: PathBuf,
        listen: &str,
    ) -> dioxide_raft::Result<Self> {
        disk.set_faults(Faults { lies: rules.lies, ..Faults::default() });
        let storage: Arc<dyn Storage> = match rules.is_early {
            true => Arc::new(Early { to: disk.clone(), waiting: Arc::default() }),
            false => Arc::new(disk.clone()),
        };
        let options = LogOptions::new().segment_bytes(64 << 10);
        let logs = RaftLogs::open_storage_with(&options, storage)?;
        let node = Node::start(id, &logs, snapshot.clone(), rules.snapshot_every).await.unwrap();
        let listener = TcpListener::bind(listen).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move { node.serve(listener).await });
        Ok(Self { id, disk, lies: rules.lies, snapshot, address, serving })
    }

    /// The power fails soon. Nothing that the node does afterwards is stable, so it acknowledges
    /// nothing.
    fn cut(&self, rng: &mut fastrand::Rng) {
        let power_cut = Some(self.disk.calls() + rng.u64(1..=CALLS));
        self.disk.set_faults(Faults { power_cut, lies: self.lies, ..Faults::default() });
    }

    async fn ends(&self) {
        until(format!("the end of node {}", self.id), || self.serving.is_finished()).await;
    }

    /// Starts it again after the power failed.
    async fn restart(self, rules: &Rules, rng: &mut fastrand::Rng) -> dioxide_raft::Result<Self> {
        assert!(self.serving.await.expect("it does not panic").is_err());
        let disk = self.disk.after_power_cut(rng.u64(..));
        Self::start(rules, self.id, disk, self.snapshot, &self.address).await
    }
}

/// A run with these power cuts, each of some nodes. The error of a log that does not open.
async fn run(
    rules: &Rules,
    cuts: impl IntoIterator<Item = Range<usize>>,
    seed: u64,
) -> dioxide_raft::Result<Verdict> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir_in(".").unwrap();
    let (good, mut nodes) = (Rules::good(rules.snapshot_every), Vec::new());
    for id in 1..=3 {
        let snapshot = dir.path().join(format!("snapshot {id}"));
        // Connections come from 127.0.0.1, so none of them occupies the port while it is free.
        let listen = format!("127.0.0.{}:0", id + 1);
        nodes.push(Machine::start(&good, id, Memory::default(), snapshot, &listen).await?);
    }
    let addresses: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
    init(&addresses).await;

    let work = Work::start(addresses);
    for these in cuts {
        work.goes_on(CHANGES).await;
        nodes[these.clone()].iter().for_each(|node| node.cut(&mut rng));
        // A node that starts meets no node that is about to end.
        for node in &nodes[these.clone()] {
            node.ends().await;
        }
        for at in these {
            let node = nodes.remove(at);
            nodes.insert(at, node.restart(rules, &mut rng).await?);
        }
    }
    Ok(work.finish().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_change_is_lost_in_power_cuts() {
    let cuts = (0..CUTS).map(|cut| if cut % 3 == 2 { 0..3 } else { cut % 3..cut % 3 + 1 });
    let verdict = run(&Rules::good(SNAPSHOT_EVERY), cuts, 1).await.unwrap();
    assert!(verdict.is_good(), "{verdict:#?}");
    assert!(verdict.operations as u64 > CUTS as u64 * CHANGES, "{}", verdict.operations);
}

/// A node that was away needs a snapshot. Its file is durable whenever the power of the log fails.
/// So only a unit test of the log sees a purge that comes too early.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_get_snapshots_lose_nothing_in_power_cuts() {
    let cuts = (0..CUTS).map(|cut| cut % 3..cut % 3 + 1);
    let verdict = run(&Rules::good(SNAPSHOT_OFTEN), cuts, 4).await.unwrap();
    assert!(verdict.is_good(), "{verdict:#?}");
}

/// A control: a store that calls back before entries are stable. What it loses may stop raft for
/// good. So there are several runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_acknowledges_before_the_flush_is_found() {
    for seed in 2..2 + RUNS_MAX {
        let rules = Rules { is_early: true, ..Rules::good(NO_SNAPSHOTS) };
        let run = timeout(RUN_MAX, run(&rules, [0..3, 0..3], seed)).await;
        let Ok(Ok(verdict)) = run else { continue };
        if !verdict.lost.is_empty() && !verdict.without_order.is_empty() {
            return;
        }
    }
    panic!("{RUNS_MAX} runs have lost nothing");
}

/// Whether a log lacks what it had.
fn is_loss(error: &Error) -> bool {
    matches!(error, Error::Log(dioxide_log::Error::Corrupt { .. }) | Error::Corrupt(_))
}

/// A control: disks whose flushes do nothing. The check finds it, or a log when it is opened.
#[tokio::test(flavor = "multi_thread")]
async fn disks_that_lie_are_found() {
    let rules = Rules { lies: true, ..Rules::good(NO_SNAPSHOTS) };
    match run(&rules, [0..3, 0..3], 3).await {
        Ok(verdict) => {
            assert!(!verdict.lost.is_empty() && !verdict.without_order.is_empty(), "{verdict:#?}");
        }
        Err(error) => assert!(is_loss(&error), "{error}"),
    }
}
