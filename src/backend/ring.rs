//! What a queue asks of the system below it: requests that are handed over together and come back
//! whenever they end. Rings are as dumb as backends, and belong to one thread.

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

/// What to do. The memory that it names stays in place until it came back.
#[derive(Debug)]
pub(crate) enum Io {
    /// Write segments one behind the other, with O_DSYNC semantics if `dsync`. May be short.
    Write { segments: SmallVec<[Segment; 1]>, offset: u64, dsync: bool },
    /// Read into segments, which nobody else looks at, one after the other. May be short.
    Read { into: SmallVec<[Segment; 1]>, offset: u64 },
    /// Make the data written before stable (fdatasync).
    Flush,
}

impl Io {
    /// Does it by a plain call.
    pub fn perform(self, backend: &dyn Backend) -> io::Result<u64> {
        match self {
            Self::Write { segments, offset, dsync } => backend.write(&segments, offset, dsync),
            Self::Read { into, offset } => backend.read(&into, offset),
            Self::Flush => backend.flush().map(|()| 0),
        }
    }
}

/// A file that a ring works on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingFile<'a> {
    /// Of the kernel.
    Descriptor(BorrowedFd<'a>),
    /// Of a simulation.
    #[cfg(any(test, feature = "sim"))]
    Simulated(&'a Sim),
}

/// What a call becomes in a ring.
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
    /// No request: it is to be made as a call.
    Call(Io),
}

/// See the module.
pub(crate) trait Ring: Debug {
    /// A number for a file, if the ring can work on such a one. It may be kept open until it is
    /// detached.
    fn attach(&mut self, file: RingFile<'_>) -> Option<u32>;
    /// Nothing is in flight on the file any more, nor will be.
    fn detach(&mut self, file: u32);
    /// Whether requests may be pushed. If not, the ring has ended for good; it still wakes who
    /// sleeps in it.
    fn is_usable(&self) -> bool {
        true
    }
    /// Takes a request for the next `enter`, or begins it. One that cannot be begun comes back as
    /// interrupted.
    fn push(&mut self, file: u32, id: u64, io: Io);
    /// Begins what was pushed, and waits until so many requests have come back; with 1, or until
    /// the bell rings. With 0 it does not wait. An error if what was begun may never come back.
    fn enter(&mut self, wanted: usize) -> io::Result<()>;
    /// A request that came back, with the bytes moved (0 for a flush) or why none were.
    fn next(&mut self) -> Option<(u64, io::Result<u64>)>;
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const RUNG: u32 = 2;

/// Wakes a queue that sleeps: there is something for it to look at.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Bell {
    state: AtomicU32,
    /// Readable once it has rung while the queue slept; for rings that sleep on descriptors.
    event: Option<OwnedFd>,
}

impl Bell {
    /// A bell for a ring that sleeps on descriptors.
    pub fn with_event(event: OwnedFd) -> Self {
        Self { event: Some(event), ..Self::default() }
    }

    /// After what is to be looked at is in its place.
    pub fn ring(&self) {
        if self.state.swap(RUNG, Ordering::AcqRel) != ASLEEP {
            return;
        }
        match &self.event {
            Some(event) => {
                let written = rustix::io::write(event, &1u64.to_ne_bytes());
                debug_assert!(written.is_ok());
            }
            None => futex::wake(&self.state),
        }
    }

    /// Whether it rang since this was last asked. What is to be looked at is looked at after this.
    pub fn has_rung(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel) == RUNG
    }

    /// From now on it wakes whoever sleeps; unless it rang since it was heard last.
    pub fn may_sleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sleeps until it rings. Only for a bell without a descriptor.
    pub fn sleep(&self) {
        while self.is_silent() {
            futex::wait(&self.state, ASLEEP);
        }
    }

    /// Whether somebody may go on sleeping.
    #[cfg_attr(
        not(any(test, feature = "sim")),
        allow(dead_code, reason = "the simulated ring sleeps by itself")
    )]
    pub fn is_silent(&self) -> bool {
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    /// What a ring that sleeps by itself sleeps on.
    #[cfg(any(test, feature = "sim"))]
    #[cfg_attr(loom, allow(dead_code))]
    pub fn word(&self) -> &AtomicU32 {
        &self.state
    }

    /// What a ring that sleeps on descriptors looks at.
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
