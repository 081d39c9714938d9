//! The queues of the calling thread. They finish what they began before the thread waits for
//! others.

use super::Driver;
use crate::engine::Engine;
use crate::sync::{is_simulated, nap, thread_local};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// How long a thread sleeps between turns of two queues that both wait: short against the latency
/// of a disk.
pub(super) const NAP: Duration = Duration::from_micros(50);

// Never dropped: the queues keep their state while a thread ends, and in exit handlers.
thread_local!(
    static OWN: ManuallyDrop<RefCell<Vec<Weak<RefCell<Driver>>>>> = ManuallyDrop::default()
);

// The files that this thread grows, since their growers found no thread.
thread_local!(
    static TO_GROW: ManuallyDrop<RefCell<Vec<Arc<Engine>>>> = ManuallyDrop::default()
);

/// Waits until everything that the queues of this thread have begun has finished. The thread is
/// about to wait for others, which may wait for that. Operations that are shut out need not finish.
/// The exclusive operation may wait for this thread, which may have entered the gate already.
pub(crate) fn settle_own() {
    each_own(Driver::settle);
}

/// Releases closed files in the queues of this thread.
pub(in crate::engine) fn let_go_of_closed() {
    each_own(Driver::let_go_of_closed);
}

/// Gives the other queues of the thread a turn before a queue sleeps: it may wait for them. True if
/// the queue must not sleep now. Two queues that wait for the disk take turns, with naps between.
pub(super) fn turn_others(driver: &mut Driver) -> bool {
    let (busy, worked) = (Cell::new(false), Cell::new(false));
    each_own(|other| {
        if other.is_busy() {
            worked.set(other.turn() || worked.get());
            busy.set(other.is_busy() || busy.get());
        }
    });
    if busy.get() && !driver.turn() && !worked.get() {
        nap(NAP);
    }
    busy.get() || worked.get()
}

/// Lets this thread grow a file at the end of the [work](Driver::work) of any of its queues.
pub(super) fn grow_later(engine: Arc<Engine>) {
    TO_GROW.with(|files| files.borrow_mut().push(engine));
}

/// Whether this thread is to grow a file.
pub(super) fn is_to_grow() -> bool {
    TO_GROW.with(|files| !files.borrow().is_empty())
}

/// Grows the files without a grower thread. False if a flush of this thread's queues is in flight.
/// Growth syncs, and would wait for that flush, whose end only this thread can handle. No queue of
/// the thread but `driver` is at work.
pub(super) fn grow(driver: &Driver) -> bool {
    let flushes = Cell::new(driver.transfers.any_flushes());
    each_own(|other| flushes.set(flushes.get() || other.transfers.any_flushes()));
    if flushes.get() {
        return false;
    }
    let files = TO_GROW.with(|files| files.take());
    files.into_iter().for_each(|engine| engine.grow());
    true
}

fn each_own(act: impl Fn(&mut Driver)) {
    let nth = |index: usize| OWN.with(|own| own.borrow().get(index).map(Weak::upgrade));
    let mut index = 0;
    while let Some(driver) = nth(index) {
        index += 1;
        let Some(driver) = driver else { continue };
        // Skips queues at work, which wait for nothing, and queues of the parent process. Inside or
        // outside of a simulation, skips those of the other side.
        let is_here =
            |driver: &Driver| driver.process.is_current() && driver.simulated == is_simulated();
        match driver.try_borrow_mut() {
            Ok(mut driver) if is_here(&driver) => act(&mut driver),
            _ => {}
        }
    }
}

/// Adds a queue of the thread.
pub(super) fn add(driver: &Rc<RefCell<Driver>>) {
    OWN.with(|own| own.borrow_mut().push(Rc::downgrade(driver)));
}

/// Forgets the dropped queues of the thread.
pub(super) fn forget_dropped() {
    OWN.with(|own| {
        let mut own = own.borrow_mut();
        own.retain(|driver| driver.strong_count() > 0);
        own.shrink_to_fit();
    });
}
