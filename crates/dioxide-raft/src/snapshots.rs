//! Which snapshots of a group are durable.

use crate::error::Error;
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// The durable snapshots of a group. The state machine adds them, and the log waits for them.
/// Clones are the same.
///
/// A follower that gets a snapshot beyond its log purges its log at the same time. If a crash came
/// between the two, the node would have neither the entries nor the snapshot, and could not start.
/// With this, the purge waits. Raft answers no other call meanwhile.
#[derive(Clone)]
pub struct DurableSnapshots {
    /// The number of entries that the newest one covers. None after a failure.
    covered: Arc<watch::Sender<Option<u64>>>,
}

/// The end of the log.
#[derive(Clone)]
pub(crate) struct Awaited(watch::Receiver<Option<u64>>);

impl DurableSnapshots {
    pub(crate) fn new() -> (Self, Awaited) {
        let (covered, awaited) = watch::channel(Some(0));
        (Self { covered: Arc::new(covered) }, Awaited(awaited))
    }

    /// A snapshot or a state whose last entry has this index is durable. Call it for the one with
    /// which the state machine begins, and for each that it builds or installs.
    pub fn add(&self, index: u64) {
        self.covered.send_modify(|covered| *covered = covered.map(|it| it.max(index + 1)));
    }

    /// A snapshot cannot be made durable. A purge that waits for it fails, and raft stops.
    pub fn fail(&self) {
        self.covered.send_replace(None);
    }
}

impl Awaited {
    /// Whether a state machine has the other end.
    pub fn can_come(&self) -> bool {
        self.0.has_changed().is_ok()
    }

    /// Waits for a snapshot with the entry of this index. Fails if none can come.
    pub async fn wait_for(mut self, index: u64) -> Result<(), Error> {
        let found = self.0.wait_for(|covered| covered.is_none_or(|covered| covered > index)).await;
        match found.is_ok_and(|covered| covered.is_some()) {
            true => Ok(()),
            false => Err(Error::Snapshot),
        }
    }
}

impl fmt::Debug for DurableSnapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableSnapshots").field("covered", &*self.covered.borrow()).finish()
    }
}
