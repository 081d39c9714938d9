//! A thread that reads the next part of a segment while the reader works on the part before.

use crate::locked::locked;
use crate::storage::Segment;
use crate::threads;
use dioxide::{Buffer, Owner};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A part of a segment, in the memory of its reader.
#[derive(Debug)]
pub struct Part {
    pub segment: Arc<dyn Segment>,
    /// Its offset in the segment.
    pub start: u64,
    /// The number of its bytes.
    pub size: usize,
    pub buffer: Buffer,
    /// Where it begins in the buffer.
    pub head: usize,
    pub is_read: bool,
}

impl Part {
    fn read(&mut self) {
        let into = &mut self.buffer[self.head..self.head + self.size];
        let (segment, start) = (self.segment.as_ref(), self.start);
        // The reader reads a part that failed again, and meets the error or the panic itself.
        let read = catch_unwind(AssertUnwindSafe(|| segment.read(into, start)));
        // The drop of what a panic carries may panic.
        self.is_read = read.map_err(mem::forget).is_ok_and(|read| read.is_ok());
    }
}

/// Reads at most one part at a time. The thread starts with the first part, and ends when this is
/// dropped.
#[derive(Debug)]
pub struct Ahead {
    shared: Arc<SharedRead>,
    thread: Option<JoinHandle<()>>,
    /// The process of the thread. A child of a fork has no such thread.
    owner: Owner,
}

#[derive(Debug, Default)]
struct SharedRead {
    state: Mutex<ReadState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
enum ReadState {
    #[default]
    Idle,
    Begun(Part),
    Reading,
    Done(Part),
    Ended,
}

impl SharedRead {
    fn lock(&self) -> MutexGuard<'_, ReadState> {
        locked(&self.state)
    }

    fn set(&self, state: ReadState) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    fn serve(&self) {
        let is_waiting =
            |state: &mut ReadState| matches!(state, ReadState::Idle | ReadState::Done(_));
        loop {
            let state = self.changed.wait_while(self.lock(), is_waiting);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            let ReadState::Begun(mut part) = mem::replace(&mut *state, ReadState::Reading) else {
                return;
            };
            drop(state);
            part.read();
            self.set(ReadState::Done(part));
        }
    }

    fn take(&self) -> Option<Part> {
        let is_running =
            |state: &mut ReadState| matches!(state, ReadState::Begun(_) | ReadState::Reading);
        let state = self.changed.wait_while(self.lock(), is_running);
        match mem::take(&mut *state.unwrap_or_else(PoisonError::into_inner)) {
            ReadState::Done(part) => Some(part),
            _ => None,
        }
    }
}

impl Ahead {
    pub fn new() -> Self {
        Self { shared: Arc::default(), thread: None, owner: Owner::current() }
    }

    pub fn has_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Begins to read a part. The one before was taken. False if the system has no thread.
    pub fn begin(&mut self, part: Part) -> bool {
        if self.thread.is_none() {
            let shared = self.shared.clone();
            let run = move || shared.serve();
            self.thread = threads::spawn("dioxide-log-ahead", part.segment.path(), run).ok();
            self.owner = Owner::current();
        }
        if self.thread.is_some() {
            self.shared.set(ReadState::Begun(part));
        }
        self.thread.is_some()
    }

    /// Waits for the part that was begun. None if there is none.
    pub fn take(&mut self) -> Option<Part> {
        self.leave_in_child();
        self.shared.take()
    }

    /// Leaves a thread that only the parent of this process has.
    fn leave_in_child(&mut self) {
        if self.thread.is_some() && !self.owner.is_current() {
            // The thread may hold the lock of this copy for ever.
            mem::forget(mem::replace(self, Self::new()));
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.take();
        if let Some(thread) = self.thread.take() {
            self.shared.set(ReadState::Ended);
            // It does not panic.
            let _ = thread.join();
        }
    }
}
