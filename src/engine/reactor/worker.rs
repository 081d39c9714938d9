//! Takes what is listed into a queue, and tells what came of it. Of one thread.

use super::{Listed, Presence, Reactor};
use crate::backend::ring::Bell;
use crate::buffer::Memory;
use crate::engine::queue::{Driver, OpKind};
use crate::error::{ErrorKind, Result};
use crate::sync::{now, yield_now};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// If nobody comes back for so long, what has come begins: little against what a flush takes, and
/// long enough for a thread to wake.
const STRAGGLE_MAX: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 20 });

/// See the module. What is borrowed is given back before anybody is told anything: a waker may come
/// back here.
#[derive(Debug)]
pub(crate) struct Worker {
    driver: Rc<RefCell<Driver>>,
    /// What was begun and not answered, by the tags of the queue.
    begun: RefCell<Slab<Arc<Listed>>>,
    /// How often it was asked to let go of closed files, and up to which time it did.
    asked: Cell<u64>,
    answered: Cell<u64>,
    /// How many were told since it last took what is listed.
    told: Cell<usize>,
    spare: RefCell<Vec<Arc<Listed>>>,
    /// Last, so that files are let go of when it is given up.
    reactor: Place,
}

/// The place of the worker of a reactor, until dropped.
#[derive(Debug)]
struct Place(Arc<Reactor>);

impl Deref for Place {
    type Target = Reactor;

    fn deref(&self) -> &Reactor {
        &self.0
    }
}

impl Worker {
    pub fn new(reactor: Arc<Reactor>) -> Self {
        let driver = Driver::new(reactor.process, &reactor.settings, reactor.pool.clone());
        driver.borrow_mut().belong_to(reactor.clone());
        reactor.state().worker = Presence::There(driver.borrow().bell().clone());
        let (begun, spare) = (RefCell::default(), RefCell::default());
        let (asked, answered, told) = (Cell::default(), Cell::default(), Cell::default());
        Self { driver, begun, asked, answered, told, spare, reactor: Place(reactor) }
    }

    /// What ends a [turn](Self::turn).
    pub fn bell(&self) -> Arc<Bell> {
        self.driver.borrow().bell().clone()
    }

    /// Begins what is listed, waits until something has finished or the bell rings, and tells who
    /// waits. False if nobody will list anything any more, and all has finished.
    pub fn turn(&self) -> bool {
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

    /// Lets go of closed files. What was taken up of them meanwhile, and kept out, is refused
    /// first.
    pub fn let_go_of_closed(&self) {
        // In the child of a fork the lock may be held for ever.
        if self.reactor.is_current() {
            let given_up = self.reactor.state().take_given_up();
            drop(given_up);
            self.driver.borrow_mut().reap(0);
            self.answer();
            self.driver.borrow_mut().let_go_of_closed();
        }
    }

    /// Does so, and says so.
    fn let_go(&self) {
        self.let_go_of_closed();
        self.answered.set(self.asked.get());
        self.reactor.state().answered = self.answered.get();
        self.reactor.let_go.notify_all();
    }

    /// The same without waiting.
    pub fn try_turn(&self) {
        if self.take_up() {
            self.driver.borrow_mut().reap(0);
            self.answer();
        }
    }

    /// Gives way to those who were told together, as long as more and more of them come back: what
    /// begins together goes out in one request and shares a flush.
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

    /// Queues what is listed, as far as there is room. False if there is nothing left to be done,
    /// ever.
    fn take_up(&self) -> bool {
        loop {
            let outstanding = self.driver.borrow().outstanding();
            let room = self.driver.borrow().depth() - outstanding;
            let (mut batch, mut given_up) = (self.spare.take(), VecDeque::new());
            {
                let mut state = self.reactor.state();
                self.asked.set(state.asked);
                if state.is_left || state.asked > self.answered.get() {
                    // Dropped without the lock, as in `gave_up`.
                    given_up = state.take_given_up();
                }
                if state.is_left && outstanding == 0 && state.listed.is_empty() {
                    return false;
                }
                let count = room.min(state.listed.len());
                batch.extend(state.listed.drain(..count));
            }
            drop(given_up);
            let unwanted = batch.drain(..).filter(|slot| !self.begin(slot)).count();
            self.spare.replace(batch);
            // Nobody rings for what is left in the list, so it is left only for want of room.
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

    /// Tells who waits for what has finished.
    fn answer(&self) {
        loop {
            // One at a time: meanwhile whoever was woken may finish more.
            let Some(done) = self.driver.borrow_mut().next() else { break };
            let slot = self.begun.borrow_mut().remove(done.tag as usize);
            if !matches!(slot.what, OpKind::Read(_)) {
                self.told.set(self.told.get() + 1);
            }
            tell(slot, done.result);
        }
    }
}

/// Nothing of the worker is borrowed here: what wakers and memory do as they are woken and dropped
/// is theirs.
fn tell(slot: Arc<Listed>, result: Result<u64>) {
    let telling = move || {
        if let Some(waker) = slot.finish(result) {
            waker.wake();
        }
    };
    if catch_unwind(AssertUnwindSafe(telling)).is_err() {
        log::error!("dioxide: a waker panicked, or what it dropped; its task may never be woken");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.reactor.is_current() {
            // The kernel has this memory for the parent.
            std::mem::forget(self.begun.take());
            return;
        }
        while self.driver.borrow().outstanding() > 0 {
            self.driver.borrow_mut().reap(usize::MAX);
            self.answer();
        }
    }
}

impl Drop for Place {
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
            let error =
                slot.target.error(slot.what.operation(), None, ErrorKind::Os(libc::ECANCELED));
            tell(slot, Err(error));
        }
    }
}
