//! The request ring below a queue: requests are submitted together and complete in any order. A
//! ring has no logic beyond that, like a backend, and belongs to one thread.

use super::Backend;
#[cfg(any(test, feature = "sim"))]
use super::sim::Sim;
use super::striped::Split;
use crate::buffer::Segment;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::futex;
use smallvec::SmallVec;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

/// A request. The memory that it names stays valid and in place until the request completes.
#[derive(Debug)]
pub(crate) enum Io {
    /// Writes segments in order, with O_DSYNC semantics if `dsync`. May be short.
    Write { segments: SmallVec<[Segment; 1]>, offset: u64, dsync: bool },
    /// Reads into segments in order, with exclusive access to them. May be short.
    Read { into: SmallVec<[Segment; 1]>, offset: u64 },
    /// Makes earlier writes durable (fdatasync); with `all`, size and attributes too (fsync).
    Flush { all: bool },
}

impl Io {
    /// Performs the request as a plain call.
    pub fn perform(self, backend: &dyn Backend) -> io::Result<u64> {
        match self {
            Self::Write { segments, offset, dsync } => backend.write(&segments, offset, dsync),
            Self::Read { into, offset } => backend.read(&into, offset),
            Self::Flush { all: false } => backend.flush().map(|()| 0),
            Self::Flush { all: true } => backend.sync_all().map(|()| 0),
        }
    }
}

/// A file for a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingFile<'a> {
    /// A descriptor of the kernel.
    Descriptor(BorrowedFd<'a>),
    /// A file of the simulated disk.
    #[cfg(any(test, feature = "sim"))]
    Simulated(&'a Sim),
}

/// How often an attached file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uses {
    /// By one operation, which keeps it open. It stays unknown to the kernel's ring.
    One,
    /// By many, and the ring may keep it open until it is detached.
    Many,
}

/// The requests that replace a call in a ring.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for one call, and a box would be allocated for each"
)]
pub(crate) enum Division {
    /// One request to the only file.
    Whole(Io),
    /// Requests to several files.
    Parts(Split),
    /// No request: the caller makes the call.
    Call(Io),
}

/// A queue of requests to attached files.
pub(crate) trait Ring: Debug {
    /// Attaches a file and returns its number; `None` if the ring does not support it.
    fn attach(&mut self, file: RingFile<'_>, uses: Uses) -> Option<u32>;
    /// Detaches a file, which has no more requests.
    fn detach(&mut self, file: u32);
    /// Returns whether `push` is allowed. If not, the ring has ended for good; it still wakes a
    /// sleeping queue.
    fn is_usable(&self) -> bool {
        true
    }
    /// Takes a request for the next `enter`, or starts it. A request that cannot start completes as
    /// interrupted.
    fn push(&mut self, file: u32, id: u64, io: Io);
    /// Starts the pushed requests and waits for `wanted` completions; with 1, the bell also ends
    /// the wait. With 0 it does not wait. Returns an error if a started request may never complete.
    fn enter(&mut self, wanted: usize) -> io::Result<()>;
    /// Takes a completion: the bytes moved (0 for a flush) or the error.
    fn next(&mut self) -> Option<(u64, io::Result<u64>)>;
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const RUNG: u32 = 2;

/// Wakes a sleeping queue that has something to handle.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Bell {
    state: AtomicU32,
    /// Becomes readable when the bell rings while the queue sleeps. For rings that sleep on
    /// descriptors.
    event: Option<OwnedFd>,
}

impl Bell {
    /// A bell for a ring that sleeps on descriptors.
    pub fn with_event(event: OwnedFd) -> Self {
        Self { event: Some(event), ..Self::default() }
    }

    /// Rings. The caller publishes the news before.
    pub fn ring(&self) {
        if self.state.swap(RUNG, Ordering::AcqRel) != ASLEEP {
            return;
        }
        match &self.event {
            Some(event) => {
                let written = rustix::io::write(event, &1u64.to_ne_bytes());
                debug_assert!(written.is_ok());
            }
            None => futex::wake(&self.state, futex::ANY),
        }
    }

    /// Clears the bell and returns whether it rang. The caller looks for news after this.
    pub fn has_rung(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel) == RUNG
    }

    /// Makes the next ring wake the sleeper. Returns false if the bell rang since the last
    /// `has_rung`.
    pub fn may_sleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sleeps until it rings. Only for a bell without a descriptor.
    pub fn sleep(&self) {
        while self.is_silent() {
            futex::wait(&self.state, ASLEEP, futex::ANY);
        }
    }

    /// Returns whether the sleeper may go on sleeping.
    #[cfg_attr(
        not(any(test, feature = "sim")),
        allow(dead_code, reason = "the simulated ring sleeps by itself")
    )]
    pub fn is_silent(&self) -> bool {
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    /// The word on which a ring without a descriptor sleeps.
    #[cfg(any(test, feature = "sim"))]
    #[cfg_attr(loom, allow(dead_code))]
    pub fn word(&self) -> &AtomicU32 {
        &self.state
    }

    /// The descriptor on which other rings sleep.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
