//! Which snapshots of a group are durable.

use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// The durable snapshots of a group. The state machine adds them, and the log waits for them.
/// Clones are the same.
///
/// A follower that gets a snapshot beyond its log purges its log at the same time. If a crash came
/// between the two, the node would have neither the entries nor the snapshot, and could not start.
/// With this, the purge waits.
#[derive(Clone)]
pub struct DurableSnapshots {
    /// The number of entries that the newest one covers.
    covered: Arc<watch::Sender<u64>>,
}

impl DurableSnapshots {
    pub(crate) fn new() -> Self {
        Self { covered: Arc::new(watch::Sender::new(0)) }
    }

    /// A snapshot whose last entry has this index is durable. Call it for the snapshot with which
    /// the state machine begins, and for each that it builds or installs.
    pub fn add(&self, index: u64) {
        self.covered.send_if_modified(|covered| {
            let is_newer = index + 1 > *covered;
            *covered = (*covered).max(index + 1);
            is_newer
        });
    }

    /// Waits for a snapshot with the entry of this index.
    pub(crate) async fn wait_for(&self, index: u64) {
        let mut covered = self.covered.subscribe();
        covered.wait_for(|covered| *covered > index).await.expect("self has the sender");
    }
}

impl fmt::Debug for DurableSnapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableSnapshots").field("covered", &*self.covered.borrow()).finish()
    }
}
