//! Moves listed operations into a queue, and delivers their results. Used by one thread.

use super::{Listed, Presence, Reactor};
use crate::backend::ring::Bell;
use crate::buffer::Memory;
use crate::engine::queue::{Driver, OpKind};
use crate::error::{ErrorKind, Result};
use crate::sync::atomic::Ordering;
use crate::sync::{now, yield_now};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The worker begins what has come if no task comes back for this long. That is short against a
/// flush, and long enough for a thread to wake.
const STRAGGLE_MAX: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 20 });

/// The worker of a reactor. It ends its borrows before it wakes a task: a waker may call back.
#[derive(Debug)]
pub(crate) struct Worker {
    driver: Rc<RefCell<Driver>>,
    /// Begun and not answered, by the tags of the queue.
    begun: RefCell<Slab<Arc<Listed>>>,
    /// Number of requests to release closed files, and the last one that was answered.
    asked: Cell<u64>,
    answered: Cell<u64>,
    /// Number of tasks woken since it last took listed operations, without reads.
    told: Cell<usize>,
    spare: RefCell<Vec<Arc<Listed>>>,
    /// Last, so that files are released when it is dropped.
    reactor: CurrentReactor,
}

/// The role of a reactor's worker, until dropped.
#[derive(Debug)]
struct CurrentReactor(Arc<Reactor>);

impl Deref for CurrentReactor {
    type Target = Reactor;

    fn deref(&self) -> &Reactor {
        &self.0
    }
}

impl Worker {
    pub fn new(reactor: Arc<Reactor>) -> Self {
        let driver = Driver::new(reactor.process, &reactor.settings, reactor.pool.clone());
        driver.borrow_mut().belong_to(reactor.clone());
        reactor.has_ring.store(driver.borrow().uses_io_uring(), Ordering::Relaxed);
        reactor.state().worker = Presence::There(driver.borrow().bell().clone());
        let (begun, spare) = (RefCell::default(), RefCell::default());
        let (asked, answered, told) = (Cell::default(), Cell::default(), Cell::default());
        Self { driver, begun, asked, answered, told, spare, reactor: CurrentReactor(reactor) }
    }

    /// The bell that ends a [turn](Self::turn).
    pub fn bell(&self) -> Arc<Bell> {
        self.driver.borrow().bell().clone()
    }

    /// Begins listed operations, waits until one has finished or the bell rings, and delivers
    /// results. False if none can be listed any more, and all have finished.
    pub fn turn(&self) -> bool {
        if !self.reactor.is_current() {
            self.driver.borrow_mut().wait();
            self.answer_in_child();
            return true;
        }
        self.gather();
        if !self.take_up() {
            return false;
        }
        match self.asked.get() > self.answered.get() {
            true => self.let_go(),
            false => self.driver.borrow_mut().wait(),
        }
        self.answer();
        true
    }

    /// Releases closed files. First refuses the operations on them that were taken meanwhile and
    /// shut out.
    pub fn let_go_of_closed(&self) {
        // In the child of a fork the lock may be held forever.
        if self.reactor.is_current() {
            let given_up = self.reactor.state().take_given_up();
            drop(given_up);
            self.driver.borrow_mut().reap(0);
            self.answer();
            self.driver.borrow_mut().let_go_of_closed();
        }
    }

    /// Releases closed files, and reports that.
    fn let_go(&self) {
        self.let_go_of_closed();
        self.answered.set(self.asked.get());
        self.reactor.state().answered = self.answered.get();
        self.reactor.let_go.notify_all();
    }

    /// Like [`turn`](Self::turn), without waiting.
    pub fn try_turn(&self) {
        if !self.reactor.is_current() {
            self.driver.borrow_mut().reap(0);
            self.answer_in_child();
        } else if self.take_up() {
            self.driver.borrow_mut().reap(0);
            self.answer();
        }
    }

    /// Refuses the parent's operations in the child of a fork, and wakes their tasks.
    fn answer_in_child(&self) {
        // Another thread of the parent may hold a lock forever. Then a future fails when it is
        // polled.
        let listed =
            self.reactor.state.try_lock().map(|mut state| std::mem::take(&mut state.listed));
        for slot in listed.into_iter().flatten().filter(|slot| !slot.is_locked()) {
            if slot.begin() {
                refuse(slot, ErrorKind::Forked);
            }
        }
        loop {
            let Some(done) = self.driver.borrow_mut().next() else { break };
            let slot = self.begun.borrow_mut().remove(done.tag as usize);
            if !slot.is_locked() {
                tell(slot, done.result);
            }
        }
    }

    /// Yields to tasks that were woken together, as long as more of them come back. Operations that
    /// begin together share a request and a flush.
    fn gather(&self) {
        let told = self.told.replace(0);
        let (mut came, mut last) = (0, now());
        while came < told && now().saturating_sub(last) < STRAGGLE_MAX {
            yield_now();
            let listed = self.reactor.state().listed.len();
            if listed > came {
                (came, last) = (listed, now());
            }
        }
    }

    /// Queues listed operations, as far as there is room. False once nothing will ever be left to
    /// do.
    fn take_up(&self) -> bool {
        loop {
            let outstanding = self.driver.borrow().outstanding();
            let room = self.driver.borrow().depth() - outstanding;
            let (mut batch, mut given_up) = (self.spare.take(), VecDeque::new());
            {
                let mut state = self.reactor.state();
                self.asked.set(state.asked);
                if state.has_no_handle || state.asked > self.answered.get() {
                    // Dropped without the lock, as in `on_given_up`.
                    given_up = state.take_given_up();
                }
                if state.has_no_handle && outstanding == 0 && state.listed.is_empty() {
                    return false;
                }
                let count = room.min(state.listed.len());
                batch.extend(state.listed.drain(..count));
            }
            drop(given_up);
            let unwanted = batch.drain(..).filter(|slot| !self.begin(slot)).count();
            self.spare.replace(batch);
            // No bell rings for entries that stay in the list, so they stay only for lack of room.
            if unwanted == 0 {
                return true;
            }
        }
    }

    /// Queues an operation. False if it was given up.
    fn begin(&self, slot: &Arc<Listed>) -> bool {
        if !slot.begin() {
            return false;
        }
        let mut begun = self.begun.borrow_mut();
        let place = begun.vacant_entry();
        let (memory, tag) = (slot.lent().map(Memory::Lent), place.key() as u64);
        let queued = self.driver.borrow_mut().queue(&slot.target, slot.what, memory, tag);
        queued.expect("there is room");
        place.insert(slot.clone());
        true
    }

    /// Delivers the results of finished operations.
    fn answer(&self) {
        loop {
            // One at a time: a woken task may finish more meanwhile.
            let Some(done) = self.driver.borrow_mut().next() else { break };
            let slot = self.begun.borrow_mut().remove(done.tag as usize);
            if !matches!(slot.what, OpKind::Read(_)) {
                self.told.set(self.told.get() + 1);
            }
            tell(slot, done.result);
        }
    }
}

/// Refuses an operation that the queue never had.
fn refuse(slot: Arc<Listed>, kind: ErrorKind) {
    let error = slot.target.error(slot.what.operation(), slot.what.offset(), kind);
    tell(slot, Err(error));
}

/// Stores a result and wakes its task. Borrows nothing of the worker, since wakers and dropped
/// memory may run any code.
fn tell(slot: Arc<Listed>, result: Result<u64>) {
    let telling = move || {
        if let Some(waker) = slot.finish(result) {
            waker.wake();
        }
    };
    if catch_unwind(AssertUnwindSafe(telling)).is_err() {
        log::error!("dioxide: a waker or a dropped value panicked; its task may never wake");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.reactor.is_current() {
            // The kernel uses this memory for the parent.
            std::mem::forget(self.begun.take());
            return;
        }
        while self.driver.borrow().outstanding() > 0 {
            self.driver.borrow_mut().reap(usize::MAX);
            self.answer();
        }
    }
}

impl Drop for CurrentReactor {
    fn drop(&mut self) {
        if !self.is_current() {
            return;
        }
        let left = {
            let mut state = self.state();
            state.worker = Presence::Gone;
            std::mem::take(&mut state.listed)
        };
        self.let_go.notify_all();
        for slot in left.into_iter().filter(|slot| slot.begin()) {
            refuse(slot, ErrorKind::Os(libc::ECANCELED));
        }
    }
}
