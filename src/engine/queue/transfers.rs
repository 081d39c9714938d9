//! The transfers of a queue: those in its ring, and those that plain calls performed.

use crate::backend::Backend;
use crate::backend::journal::Journal;
use crate::backend::ring::{Bell, Division, Io, Ring};
#[cfg(any(test, feature = "sim"))]
use crate::backend::sim::ring::SimRing;
use crate::backend::striped::{Gather, Split};
use crate::backend::uring::Uring;
use crate::buffer::Pool;
use crate::engine::Begun;
use crate::engine::abort::AbortOnPanic;
use crate::engine::core::{Edge, Request, Work};
use crate::engine::io::RequestIo;
use crate::engine::token::Token;
use crate::rules::flush::SyncMethod;
#[cfg(any(test, feature = "sim"))]
use crate::sync::is_simulated;
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// In the id of a request to a member, the transfer's number is below this bit, its own above.
const PART_SHIFT: u32 = 32;

/// A transfer in progress: bytes, or a flush.
#[derive(Debug)]
pub(super) struct Running {
    pub purpose: Purpose,
    pub transfer: RequestIo,
    /// The results of its requests to several members so far.
    gather: Option<Gather>,
}

/// The reason of a transfer; with the number of the file, except for an operation.
#[derive(Debug)]
pub(super) enum Purpose {
    /// An operation that bypasses the core.
    Operation(usize),
    /// A request of the core, with the flush that it is or carries.
    Request(usize, Request<Token>, Begun),
    /// The read of a block that a request of the core writes in part.
    Edge(usize, Request<Token>, Edge),
}

impl Running {
    pub fn new(purpose: Purpose, transfer: RequestIo) -> Self {
        Self { purpose, transfer, gather: None }
    }
}

/// The transfers of a queue.
#[derive(Debug)]
pub(super) struct Transfers {
    ring: Option<Box<dyn Ring>>,
    running: Slab<Running>,
    /// Results of calls that returned at once.
    performed: VecDeque<(usize, io::Result<u64>)>,
    /// The number of requests pushed into the ring since it was entered.
    pushed: usize,
}

impl Transfers {
    pub fn new(ring: Option<Box<dyn Ring>>) -> Self {
        Self { ring, running: Slab::new(), performed: VecDeque::new(), pushed: 0 }
    }

    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    pub fn uses_ring(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.is_usable())
    }

    /// The ring, to attach and detach files.
    pub fn ring(&mut self) -> &mut Option<Box<dyn Ring>> {
        &mut self.ring
    }

    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether requests were pushed since the ring was entered.
    pub fn any_pushed(&self) -> bool {
        self.pushed > 0
    }

    /// Whether the kernel has any: there are more than were pushed since the ring was entered.
    pub fn any_entered(&self) -> bool {
        self.running.len() > self.pushed
    }

    /// Whether one of them is a flush, or carries one.
    pub fn any_flushes(&self) -> bool {
        let flushes = |running: &Running| {
            matches!(running.purpose, Purpose::Request(_, _, Begun::Flush(_) | Begun::Shared(..)))
        };
        self.running.iter().any(|(_, running)| flushes(running))
    }

    /// The files of writes in flight that a flush will follow.
    pub fn before_flushes(&self) -> impl Iterator<Item = usize> {
        self.running.iter().filter_map(|(_, running)| match &running.purpose {
            Purpose::Request(file, Request { work: Work::Write { sync_method, .. }, .. }, _)
                if *sync_method == Some(SyncMethod::SharedFlush) =>
            {
                Some(*file)
            }
            _ => None,
        })
    }

    /// Submits pushed requests, and waits until `wanted` requests have completed; with 1, or until
    /// the bell rings.
    pub fn enter(&mut self, wanted: usize) {
        if let Some(ring) = &mut self.ring {
            // Unwinding would free buffers that the kernel still uses.
            let _all_or_nothing = AbortOnPanic::armed();
            ring.enter(wanted).expect("the kernel loses no completion");
            self.pushed = 0;
        }
    }

    pub fn insert(&mut self, running: Running) -> usize {
        self.running.insert(running)
    }

    pub fn get(&self, id: usize) -> &Running {
        &self.running[id]
    }

    pub fn get_mut(&mut self, id: usize) -> &mut Running {
        &mut self.running[id]
    }

    pub fn remove(&mut self, id: usize) -> Running {
        self.running.remove(id)
    }

    /// Takes the result of a transfer's call. Returns the result of the transfer, or `None` if more
    /// is to be moved.
    pub fn on_result(&mut self, id: usize, result: io::Result<u64>) -> Option<io::Result<u64>> {
        self.running[id].transfer.on_result(result)
    }

    /// Begins the next call of a transfer: in the ring if the file has slots there, or at once.
    pub fn begin(&mut self, id: usize, io: Io, backend: &dyn Backend, slots: &[u32]) {
        let ring = self.ring.as_mut().filter(|ring| ring.is_usable());
        let (ring, division) = match ring {
            Some(ring) if !slots.is_empty() => (ring, backend.divide(io)),
            _ => return self.performed.push_back((id, io.perform(backend))),
        };
        match division {
            Division::Whole(io) => {
                ring.push(slots[0], id as u64, io);
                self.pushed += 1;
            }
            Division::Parts(Split { parts, gather }) => {
                self.pushed += parts.len();
                for (part, (member, io)) in parts.into_iter().enumerate() {
                    ring.push(slots[member], id as u64 | (part as u64) << PART_SHIFT, io);
                }
                self.running[id].gather = Some(gather);
            }
            Division::Call(io) => self.performed.push_back((id, io.perform(backend))),
        }
    }

    /// Begins a commit of the journal: in the ring if that has the journal, or at once.
    pub fn begin_commit(&mut self, id: usize, slot: Option<u32>, journal: &dyn Journal) {
        let ring = self.ring.as_mut().filter(|ring| ring.is_usable());
        match ring.zip(slot) {
            Some((ring, slot)) => {
                ring.push(slot, id as u64, Io::Flush { all: true });
                self.pushed += 1;
            }
            None => self.performed.push_back((id, journal.commit().map(|()| 0))),
        }
    }

    /// Takes the result of a call that was performed already.
    pub fn on_performed(&mut self, id: usize, result: io::Result<u64>) {
        self.performed.push_back((id, result));
    }

    /// The next transfer whose call returned, with the result.
    pub fn next(&mut self) -> Option<(usize, io::Result<u64>)> {
        while let Some((id, result)) = self.ring.as_mut().and_then(|ring| ring.next()) {
            let (id, part) = (id as u32 as usize, (id >> PART_SHIFT) as usize);
            let Some(gather) = &mut self.running[id].gather else { return Some((id, result)) };
            if let Some(result) = gather.on_result(part, result) {
                self.running[id].gather = None;
                return Some((id, result));
            }
        }
        self.performed.pop_front()
    }

    /// Forgets the transfers in the child of a fork: the parent continues with them.
    pub fn disown(&mut self) {
        self.pushed = 0;
        self.running.clear();
    }

    /// Leaks the ring in the child of a fork: the parent has the same ring, and the kernel its
    /// memory.
    pub fn forget_ring(&mut self) {
        std::mem::forget(self.ring.take());
    }
}

/// Returns the kernel's ring if it may be used (in a simulation, a simulated one), and the bell
/// that wakes the queue. Logs once why there is no ring.
pub(super) fn ring(
    depth: usize,
    pool: Option<&Arc<Pool>>,
    may_use_io_uring: bool,
) -> (Option<Box<dyn Ring>>, Arc<Bell>) {
    // No lock: the logger may make a queue, or wait for one.
    static SAID: AtomicBool = AtomicBool::new(false);
    #[cfg(any(test, feature = "sim"))]
    if may_use_io_uring && is_simulated() {
        let bell = Arc::<Bell>::default();
        return (Some(Box::new(SimRing::new(bell.clone()))), bell);
    }
    if !may_use_io_uring {
        return (None, Arc::default());
    }
    match Uring::new(depth, pool.cloned()) {
        Ok((ring, bell)) => (Some(Box::new(ring)), bell),
        Err(error) => {
            if !SAID.swap(true, Ordering::Relaxed) {
                log::warn!(
                    "dioxide: no io_uring here ({error}); queues make plain calls, one at a time"
                );
            }
            (None, Arc::default())
        }
    }
}
