//! Drives futures: a list of operations that have not begun, and a [`Worker`] that moves them into
//! a queue of its own. The tasks that poll share the list with the worker. The worker has a thread
//! of its own, or runs in a thread of the program.
//!
//! A future lists its operation when it is first polled. If it is dropped before the worker begins
//! the operation, it takes its memory back and the operation never happens. The list holds at most
//! as many dropped operations as live ones (or 16). The worker takes as many as its queue has room
//! for.
//!
//! # Which thread waits for which
//!
//! - Futures wait for nothing: polling and dropping hold a lock for a moment.
//! - The worker's thread waits in its ring only. Its operations may wait for those of other threads
//!   (an append for one below it, a flush for one beside it). Those never wait for a future.
//! - A blocking call in another thread may wait for operations that the worker has begun. Those
//!   continue by themselves, since the worker waits for nothing else.
//! - A close waits until the worker releases the file. On a worker's thread it does not: two of
//!   those could wait for each other.
//! - The worker wakes tasks without a lock and without a borrow of the queue. So a waker may list
//!   more, drop files and make blocking calls. Such a call may wait for the worker's own queue,
//!   which it [settles](super::queue::settle_own) first. A waker must not wait for a future of the
//!   same reactor, nor for a lock whose holder waits for one.
//!
//! # The life of a future
//!
//! One of many tasks runs `log.append(record).await`.
//!
//! 1. `AsyncFile::append` (`api/future.rs`) makes a future that owns the memory. Its first poll
//!    moves both into a [`Slot`] and lists that. The first entry of an empty list rings the
//!    worker's bell.
//! 2. The worker marks the slot as begun and lends its bytes to the queue. From here on it is an
//!    operation of a queue. If the future was dropped before, the worker finds the slot given up.
//! 3. The worker sleeps in the ring until an operation finishes or the bell rings. It reports
//!    finished operations one by one. It catches and logs a panic of a waker.
//! 4. Tasks that were woken together are about to return. The worker yields while more and more of
//!    them do (`Worker::gather`). Calls to submit a batch wait for that (`Driver::wait`). So the
//!    tasks of one batch form one batch again. Two halves would wait for each other's flush.
//! 5. The task polls, and takes the result and the memory out of the slot. If the future was
//!    dropped meanwhile, the worker has the last share of the slot and frees the memory.
//!
//! Close waits until the reactors that work on the file release it, because their threads may sleep
//! for long. The child of a fork gets its own shared reactor. It answers futures of its parent
//! without a lock, since the memory of a slot never moves.

mod slot;
#[cfg(test)]
pub(super) mod tests;
mod worker;

pub(crate) use slot::{Listed, Slot};
pub(crate) use worker::Worker;

use super::process::Process;
use super::queue::QueueSettings;
use crate::backend::ring::Bell;
use crate::buffer::{Buffer, Pool};
use crate::error::ErrorKind;
use crate::os_error;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, spawn, thread_local};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

thread_local!(static IS_WORKERS: Cell<bool> = Cell::default());

/// A reactor: the list, and its worker's state.
pub(crate) struct Reactor {
    process: &'static Process,
    settings: QueueSettings,
    pool: Option<Arc<Pool>>,
    /// The worker has a thread of its own, not one of the program.
    has_thread: bool,
    /// Its worker uses a ring, or did not start yet.
    has_ring: AtomicBool,
    state: Mutex<ReactorState>,
    let_go: Condvar,
}

#[derive(Debug, Default)]
struct ReactorState {
    /// Not begun yet, in order.
    listed: VecDeque<Arc<Listed>>,
    /// Approximate number of these that were given up.
    given_up: usize,
    worker: Presence,
    /// No handle is left that could list an operation.
    has_no_handle: bool,
    /// Number of requests to release closed files, and the last one that was answered.
    asked: u64,
    answered: u64,
}

#[derive(Debug, Default)]
enum Presence {
    /// It has no thread yet.
    #[default]
    Absent,
    /// It reads the list before it waits.
    Coming,
    /// The bell wakes it.
    There(Arc<Bell>),
    Gone,
}

/// A handle that may list operations. Dropping the last clone ends the reactor and its thread.
#[derive(Clone, Debug)]
pub(crate) struct Handle(Arc<Held>);

#[derive(Debug)]
struct Held(Arc<Reactor>);

impl Handle {
    /// A handle of the reactor that a process shares.
    pub fn of_process(process: &'static Process) -> Self {
        Self::with_thread(process, &QueueSettings::of_shared_reactor())
    }

    /// A handle of a reactor that starts a thread with its first operation.
    pub fn with_thread(process: &'static Process, settings: &QueueSettings) -> Self {
        Self(Arc::new(Held(Arc::new(Reactor::new(process, settings, true)))))
    }

    /// A handle of a reactor whose worker the caller runs.
    pub fn with_worker(process: &'static Process, settings: &QueueSettings) -> (Self, Worker) {
        let reactor = Arc::new(Reactor::new(process, settings, false));
        (Self(Arc::new(Held(reactor.clone()))), Worker::new(reactor))
    }
}

impl Deref for Handle {
    type Target = Arc<Reactor>;

    fn deref(&self) -> &Arc<Reactor> {
        &self.0.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Reactor {
    fn new(process: &'static Process, settings: &QueueSettings, has_thread: bool) -> Self {
        let pool = settings.pool();
        let (state, let_go) = (Mutex::default(), Condvar::default());
        let (settings, has_ring) = (settings.clone(), AtomicBool::new(true));
        Self { process, settings, pool, has_thread, has_ring, state, let_go }
    }

    /// Whether it belongs to this process, and not to its parent.
    pub fn is_current(&self) -> bool {
        self.process.is_current()
    }

    /// Whether its worker uses a ring.
    pub fn has_ring(&self) -> bool {
        self.has_ring.load(Ordering::Relaxed)
    }

    /// Whether its worker has ended.
    pub fn is_gone(&self) -> bool {
        // In the child of a fork the lock may be held forever.
        !self.is_current() || matches!(self.state().worker, Presence::Gone)
    }

    pub fn buffer(&self) -> Option<Buffer> {
        self.pool.as_ref()?.take()
    }

    fn state(&self) -> MutexGuard<'_, ReactorState> {
        self.state.lock()
    }

    /// Starts the thread, unless it has one.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        self.start_in(&mut self.state())
    }

    fn start_in(self: &Arc<Self>, state: &mut ReactorState) -> io::Result<()> {
        if !matches!(state.worker, Presence::Absent) || !self.has_thread {
            return Ok(());
        }
        let reactor = self.clone();
        spawn("dioxide-reactor", move || serve(reactor))?;
        state.worker = Presence::Coming;
        Ok(())
    }

    /// Lists an operation. The error says why it cannot happen.
    ///
    /// Must not be called in the child of a fork: its copy of the lock may be held forever.
    pub fn list(self: &Arc<Self>, slot: Arc<Listed>) -> Result<(), ErrorKind> {
        let mut state = self.state();
        if matches!(state.worker, Presence::Gone) {
            return Err(ErrorKind::Os(libc::ECANCELED));
        }
        self.start_in(&mut state).map_err(|error| os_error::kind(&error))?;
        state.listed.push_back(slot);
        // If the list was not empty, the bell has rung or is about to.
        let bell = if state.listed.len() == 1 { state.bell() } else { None };
        drop(state);
        if let Some(bell) = bell {
            bell.ring();
        }
        Ok(())
    }

    /// Counts a listed operation that was given up. Compacts the list once half of it is given up.
    pub fn on_given_up(&self) {
        let mut state = self.state();
        state.given_up += 1;
        if state.given_up <= 16 || state.given_up <= state.listed.len() / 2 {
            return;
        }
        let given_up = state.take_given_up();
        drop(state);
        // Without the lock: this may drop the last handle of a device, which waits for the worker.
        drop(given_up);
    }

    /// Ends the thread: no handle is left that could list an operation.
    fn leave(&self) {
        if !self.is_current() {
            return;
        }
        let mut state = self.state();
        state.has_no_handle = true;
        let bell = state.bell();
        drop(state);
        if let Some(bell) = bell {
            bell.ring();
        }
    }

    /// Whether a thread that waits for an operation does not keep it from its end: the worker has
    /// a thread, which is another one.
    pub fn can_be_awaited(&self) -> bool {
        self.has_thread && !IS_WORKERS.try_with(Cell::get).unwrap_or(true)
    }

    /// Waits until the worker has released the closed files.
    pub fn let_go_of_closed(&self) {
        if !self.can_be_awaited() || !self.is_current() {
            return;
        }
        let mut state = self.state();
        if matches!(state.worker, Presence::Absent | Presence::Gone) {
            return;
        }
        state.asked += 1;
        let asked = state.asked;
        if let Some(bell) = state.bell() {
            bell.ring();
        }
        while state.answered < asked && !matches!(state.worker, Presence::Gone) {
            state = self.let_go.wait(state);
        }
    }
}

impl fmt::Debug for Reactor {
    /// Omits the process, which shows the reactor that it shares.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor")
            .field("settings", &self.settings)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl ReactorState {
    fn bell(&self) -> Option<Arc<Bell>> {
        match &self.worker {
            Presence::There(bell) => Some(bell.clone()),
            Presence::Absent | Presence::Coming | Presence::Gone => None,
        }
    }

    fn take_given_up(&mut self) -> VecDeque<Arc<Listed>> {
        let (wanted, given_up) =
            std::mem::take(&mut self.listed).into_iter().partition(|slot| slot.is_wanted());
        (self.listed, self.given_up) = (wanted, 0);
        given_up
    }
}

/// The main loop of a reactor's thread.
fn serve(reactor: Arc<Reactor>) {
    // After a panic here, its waiters would wait forever.
    let _all_or_nothing = super::abort::AbortOnPanic::armed();
    IS_WORKERS.with(|is_workers| is_workers.set(true));
    let worker = Worker::new(reactor);
    while worker.turn() {}
}
