//! The queues of the calling thread, which finish what they began before the thread waits for
//! others.

use super::Driver;
use crate::sync::{is_simulated, nap, thread_local};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// How long a thread sleeps between turns of two queues that both wait: little against what a disk
/// takes.
pub(super) const NAP: Duration = Duration::from_micros(50);

// Never dropped: while a thread ends, and in what a program does at its exit, the queues are as
// they were.
thread_local!(static OWN: ManuallyDrop<RefCell<Vec<Weak<RefCell<Driver>>>>> = ManuallyDrop::default());

/// Waits until everything that the queues of this thread have begun is finished, before the thread
/// waits for others, who may wait for that. Nobody waits for what is shut out; and whoever keeps it
/// out may wait for this thread, which can be counted in already for what it is about to do.
pub(crate) fn settle_own() {
    each_own(Driver::settle);
}

/// The queues of this thread let go of files that were closed.
pub(in crate::engine) fn let_go_of_closed() {
    each_own(Driver::let_go_of_closed);
}

/// Before a queue sleeps: gives the others of its thread a turn, since what it waits for may wait
/// for them. True if it is not to sleep now. While two of them wait for the disk, they take turns
/// with naps between.
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

fn each_own(act: impl Fn(&mut Driver)) {
    let nth = |index: usize| OWN.with(|own| own.borrow().get(index).map(Weak::upgrade));
    let mut index = 0;
    while let Some(driver) = nth(index) {
        index += 1;
        let Some(driver) = driver else { continue };
        // Not one at work: it waits for nobody. Nor one that the parent of this process goes on
        // with; nor one of the simulation that is being watched from here.
        let is_here =
            |driver: &Driver| driver.process.is_current() && driver.simulated == is_simulated();
        match driver.try_borrow_mut() {
            Ok(mut driver) if is_here(&driver) => act(&mut driver),
            _ => {}
        }
    }
}

/// The thread has one more queue.
pub(super) fn add(driver: &Rc<RefCell<Driver>>) {
    OWN.with(|own| own.borrow_mut().push(Rc::downgrade(driver)));
}

/// Forgets the queues of the thread that are no more.
pub(super) fn forget_dropped() {
    OWN.with(|own| {
        let mut own = own.borrow_mut();
        own.retain(|driver| driver.strong_count() > 0);
        own.shrink_to_fit();
    });
}
