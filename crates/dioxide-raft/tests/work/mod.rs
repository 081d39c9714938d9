//! Clients that change and read a few keys of a cluster, record what they did, and check it.

use crate::client::Client;
use crate::history::{Effect, History, NotLinearizable, Value, check};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

const CLIENTS: u64 = 6;
/// Keys that all clients change.
const KEYS: [&str; 4] = ["a", "b", "c", "d"];
/// The longest wait for an event, on a busy machine.
const EVENT_MAX: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(5);

/// Clients at work.
pub struct Work {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
    addresses: Vec<String>,
}

#[derive(Default)]
struct Shared {
    history: History,
    /// Keys that were written once, with acknowledgement.
    once: Mutex<BTreeMap<String, u64>>,
    acknowledged: AtomicU64,
    stops: AtomicBool,
}

/// What does not fit together.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Acknowledged writes that are not there.
    pub lost: Vec<String>,
    /// Keys whose operations have no order.
    pub without_order: Vec<(String, NotLinearizable)>,
    pub operations: usize,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.lost.is_empty() && self.without_order.is_empty()
    }
}

/// Makes a cluster of new nodes.
pub async fn init(addresses: &[String]) {
    if let Err(error) = Client::new(addresses.into()).init().await {
        // It may have happened nevertheless. Otherwise no change follows.
        eprintln!("init: {error}");
    }
}

/// Waits until an event has happened.
pub async fn until(event: impl Display, happened: impl Fn() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < EVENT_MAX, "{event}: not within {EVENT_MAX:?}");
        sleep(PAUSE).await;
    }
}

fn parse(value: Option<String>) -> Value {
    value.map(|value| value.parse().expect("the clients write numbers"))
}

impl Work {
    /// Starts the clients.
    pub fn start(addresses: Vec<String>) -> Self {
        let shared = Arc::<Shared>::default();
        let mut clients = JoinSet::new();
        for client in 1..=CLIENTS {
            clients.spawn(shared.clone().work(Client::new(addresses.clone()), client));
        }
        Self { shared, clients, addresses }
    }

    /// Waits until so many more changes are acknowledged.
    pub async fn goes_on(&self, changes: u64) {
        let enough = self.shared.acknowledged.load(SeqCst) + changes;
        let event = format!("{changes} more changes");
        until(event, || self.shared.acknowledged.load(SeqCst) >= enough).await;
    }

    /// Stops the clients, reads all keys, and checks the history.
    pub async fn finish(mut self) -> Verdict {
        self.shared.stops.store(true, SeqCst);
        while let Some(client) = self.clients.join_next().await {
            client.expect("a client");
        }
        let mut client = Client::new(self.addresses.clone());
        for key in KEYS {
            let called = self.shared.history.now();
            let value = read(&mut client, key).await;
            self.shared.history.add(key, called, Effect::Got(value));
        }
        let once = self.shared.once.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut verdict = Verdict { operations: once.len(), ..Verdict::default() };
        for (key, written) in once {
            if read(&mut client, &key).await != Some(written) {
                verdict.lost.push(key);
            }
        }
        for (key, operations) in self.shared.history.keys() {
            verdict.operations += operations.len();
            if let Err(error) = check(&operations) {
                verdict.without_order.push((key, error));
            }
        }
        verdict
    }
}

/// A read that succeeds in the end.
async fn read(client: &mut Client, key: &str) -> Value {
    let began = Instant::now();
    loop {
        match client.get(key.into()).await {
            Ok(value) => return parse(value),
            Err(error) => assert!(began.elapsed() < EVENT_MAX, "reading {key}: {error}"),
        }
    }
}

impl Shared {
    async fn work(self: Arc<Self>, mut client: Client, number: u64) {
        let mut rng = fastrand::Rng::with_seed(number);
        let mut seen: [Value; KEYS.len()] = [None; KEYS.len()];
        for change in 0.. {
            if self.stops.load(SeqCst) {
                return;
            }
            let at = rng.usize(..KEYS.len());
            let (key, from) = (KEYS[at], seen[at]);
            let value = number * 1_000_000 + change;
            let called = self.history.now();
            match rng.u8(..4) {
                0 => {
                    // A read that failed shows nothing.
                    let Ok(got) = client.get(key.into()).await else { continue };
                    seen[at] = parse(got);
                    self.history.add(key, called, Effect::Got(seen[at]));
                    continue;
                }
                1 => {
                    if client.put(key.into(), value.to_string()).await.is_err() {
                        self.history.add_unknown(key, called, Effect::Put(value));
                        continue;
                    }
                    seen[at] = Some(value);
                    self.history.add(key, called, Effect::Put(value));
                }
                2 => {
                    let old = from.map(|from| from.to_string());
                    match client.swap(key.into(), old, value.to_string()).await {
                        Ok(Ok(())) => {
                            seen[at] = Some(value);
                            self.history.add(key, called, Effect::Swapped(from, value));
                        }
                        Ok(Err(found)) => {
                            seen[at] = parse(found);
                            self.history.add(key, called, Effect::Kept(from, seen[at]));
                        }
                        Err(_) => {
                            self.history.add_unknown(key, called, Effect::Swapped(from, value));
                            continue;
                        }
                    }
                }
                _ => {
                    let key = format!("once {value}");
                    if client.put(key.clone(), value.to_string()).await.is_err() {
                        continue;
                    }
                    let mut once = self.once.lock().unwrap_or_else(PoisonError::into_inner);
                    once.insert(key, value);
                }
            }
            self.acknowledged.fetch_add(1, SeqCst);
        }
    }
}
