//! What futures wait with: a list of operations that have not begun, and a [`Worker`] that takes
//! them from there into a queue of its own. Shared by all who poll, and by the worker, which has a
//! thread of its own or lives in one of the program's.
//!
//! A future lists its operation when it is first polled. If it is dropped before the worker came to
//! it, it takes its memory along and the operation never happens; so no more is listed than there
//! are futures. The worker takes as much as its queue has room for.
//!
//! # Who waits for whom
//!
//! - Futures wait for nobody: polling and dropping take a lock for a moment.
//! - The worker's thread waits in its ring only. Its operations may wait for those of other threads
//!   (an append for one below it, a flush for one beside it), which never wait for a future.
//! - A blocking call in another thread may wait for operations that the worker has begun. Those go
//!   on by themselves, since the worker waits for nothing else.
//! - Whoever closes a file waits for the worker to let go of it, unless it is on a worker's thread
//!   itself: two of those could wait for one another.
//! - Tasks are woken with no lock and no borrow of the queue held. So a waker may list more, drop
//!   files and make blocking calls: what such a call waits for may be in the worker's own queue,
//!   which it [settles](super::queue::settle_own) first. What it may not do is wait for a future of
//!   the same reactor, nor for a lock of somebody who does.
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
//!    them do (`Worker::gather`). The core's calls to send a group wait for that (`Driver::wait`).
//!    So the tasks of one group form one group again. Two halves would wait for each other's flush.
//! 5. The task polls, and takes the result and the memory out of the slot. If it gave the future up
//!    meanwhile, the worker has the last share of the slot and frees the memory.
//!
//! The engine waits on close until the reactors that work on the file let go, because their threads
//! may sleep for long. The child of a fork gets its own shared reactor. It answers for its parent's
//! without a lock, since the memory of a slot never moves.

mod slot;
#[cfg(test)]
pub(super) mod tests;
mod worker;

pub(crate) use slot::{Listed, Slot};
pub(crate) use worker::Worker;

use super::process::Process;
use super::queue::Settings;
use crate::backend::ring::Bell;
use crate::buffer::{Buffer, Pool};
use crate::error::ErrorKind;
use crate::os_error;
use crate::sync::{Condvar, Mutex, MutexGuard, spawn, thread_local};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

thread_local!(static IS_WORKERS: Cell<bool> = Cell::default());

/// See the module.
pub(crate) struct Reactor {
    process: &'static Process,
    settings: Settings,
    pool: Option<Arc<Pool>>,
    /// Not driven by a thread of the program.
    has_thread: bool,
    state: Mutex<State>,
    let_go: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Not begun yet, in their order.
    listed: VecDeque<Arc<Listed>>,
    /// How many of these were given up, about.
    given_up: usize,
    worker: Presence,
    /// Nobody will list anything any more.
    is_left: bool,
    /// How often it was asked to let go of closed files, and up to which time it did.
    asked: u64,
    answered: u64,
}

#[derive(Debug, Default)]
enum Presence {
    /// It has no thread yet.
    #[default]
    Absent,
    /// It looks at the list before it waits.
    Coming,
    /// The bell wakes it.
    There(Arc<Bell>),
    Gone,
}

/// One who may list operations. With the last clone the reactor is left, and its thread ends.
#[derive(Clone, Debug)]
pub(crate) struct Handle(Arc<Held>);

#[derive(Debug)]
struct Held(Arc<Reactor>);

impl Handle {
    /// Of the reactor that a process shares.
    pub fn of_process(process: &'static Process) -> Self {
        Self::with_thread(process, &Settings::of_shared_reactor())
    }

    /// Of a reactor that gets a thread with its first operation.
    pub fn with_thread(process: &'static Process, settings: &Settings) -> Self {
        Self(Arc::new(Held(Arc::new(Reactor::new(process, settings, true)))))
    }

    /// Of a reactor whose worker is the caller's.
    pub fn with_worker(process: &'static Process, settings: &Settings) -> (Self, Worker) {
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
    fn new(process: &'static Process, settings: &Settings, has_thread: bool) -> Self {
        let pool = settings.pool();
        let (state, let_go) = (Mutex::default(), Condvar::default());
        Self { process, settings: settings.clone(), pool, has_thread, state, let_go }
    }

    /// Whether it is this process's, and not its parent's.
    pub fn is_current(&self) -> bool {
        self.process.is_current()
    }

    /// Whether its worker is no more.
    pub fn is_gone(&self) -> bool {
        matches!(self.state().worker, Presence::Gone)
    }

    pub fn buffer(&self) -> Option<Buffer> {
        self.pool.as_ref()?.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Starts the thread, unless it has one.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        self.start_in(&mut self.state())
    }

    fn start_in(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if !matches!(state.worker, Presence::Absent) || !self.has_thread {
            return Ok(());
        }
        let reactor = self.clone();
        spawn("dioxide-reactor", move || serve(reactor))?;
        state.worker = Presence::Coming;
        Ok(())
    }

    /// Takes an operation. Why not, if it is not going to happen.
    ///
    /// Not in the child of a fork, whose copy of the lock may be held for ever.
    pub fn list(self: &Arc<Self>, slot: Arc<Listed>) -> Result<(), ErrorKind> {
        let mut state = self.state();
        if matches!(state.worker, Presence::Gone) {
            return Err(ErrorKind::Os(libc::ECANCELED));
        }
        self.start_in(&mut state).map_err(|error| os_error::kind(&error))?;
        state.listed.push_back(slot);
        // Whoever listed the one before has rung, or is about to.
        let bell = if state.listed.len() == 1 { state.bell() } else { None };
        drop(state);
        if let Some(bell) = bell {
            bell.ring();
        }
        Ok(())
    }

    /// One that is listed was given up. What is left of those takes no more place than the others.
    pub fn gave_up(&self) {
        let mut state = self.state();
        state.given_up += 1;
        if state.given_up <= 16 || state.given_up <= state.listed.len() / 2 {
            return;
        }
        let given_up = state.take_given_up();
        drop(state);
        // Without the lock: the last handle of a device may go with them, and wait for the worker.
        drop(given_up);
    }

    /// Nobody will list anything any more: the thread ends.
    fn leave(&self) {
        if !self.is_current() {
            return;
        }
        let mut state = self.state();
        state.is_left = true;
        let bell = state.bell();
        drop(state);
        if let Some(bell) = bell {
            bell.ring();
        }
    }

    /// Waits until the worker has let go of the files that are closed.
    pub fn let_go_of_closed(&self) {
        let is_workers = IS_WORKERS.try_with(Cell::get).unwrap_or(true);
        if !self.has_thread || is_workers || !self.is_current() {
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
    /// Without its process, which shows the reactor that it shares.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor")
            .field("settings", &self.settings)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl State {
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

/// The life of a reactor's thread.
fn serve(reactor: Arc<Reactor>) {
    // Who waits for it would wait for ever.
    let _all_or_nothing = super::abort::AbortOnPanic { unwinding: false };
    IS_WORKERS.with(|is_workers| is_workers.set(true));
    let worker = Worker::new(reactor);
    while worker.turn() {}
}
