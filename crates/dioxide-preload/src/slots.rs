//! The state of each descriptor, by its number.
//!
//! Every call looks here first. For an unknown descriptor that costs two loads. The engine's
//! transfers hold the slot's lock for reading. A change of how a file is served takes all slots of
//! the file for writing, and so waits for these transfers. Threads that read a slot write to
//! different cache lines.

use crate::files::{Description, Taken};
use std::cell::Cell;
use std::ffi::c_int;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{array, ptr};

/// The copies of each state.
const SHARDS: usize = 8;

const PAGE: usize = 1024;
const PAGES: usize = 1024;

/// How the library treats the descriptor.
#[derive(Clone, Default)]
pub enum State {
    /// Unknown: the kernel serves it.
    #[default]
    Empty,
    /// A descriptor of the engine or of this library.
    Engine,
    /// The kernel serves it, until two threads write to the file at the same time.
    Watched(Arc<Description>),
    /// The engine serves it.
    Taken(Arc<Description>, Arc<Taken>),
}

impl State {
    /// Returns the description of a known descriptor of the program.
    pub fn description(&self) -> Option<&Arc<Description>> {
        match self {
            Self::Watched(description) | Self::Taken(description, _) => Some(description),
            Self::Empty | Self::Engine => None,
        }
    }
}

/// A copy of the state, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Shard(RwLock<State>);

/// Returns the shard of this thread. Without a lock: a child of a fork could not take it.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.get().unwrap_or_else(|| {
        let own = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
        OWN.set(Some(own));
        own
    })
}

/// One descriptor number.
#[derive(Default)]
pub struct Slot {
    /// A reader locks the one of its thread, a writer all in order.
    shards: [Shard; SHARDS],
    /// The kernel's description may lack the program's O_APPEND. It is outside the lock: a signal
    /// handler that interrupted the engine cannot wait for a lock of its own thread.
    hides_append: AtomicBool,
    /// A signal handler that interrupted the engine has closed the number, so the state is that of
    /// an earlier file. Also outside the lock.
    is_lost: AtomicBool,
    /// The [`Kind`] of the state. A load waits for no lock, so a signal handler may use it.
    kind: AtomicU8,
}

/// A state without its contents.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Empty,
    Engine,
    Watched,
    Taken,
}

/// A slot, locked for writing.
pub struct Changing {
    slot: &'static Slot,
    states: [RwLockWriteGuard<'static, State>; SHARDS],
}

impl Changing {
    /// Replaces the state of the same file.
    pub fn set(&mut self, state: State) {
        self.states.iter_mut().for_each(|copy| **copy = state.clone());
    }

    /// Replaces the state, for another file of the number or none.
    pub fn set_anew(&mut self, state: State) {
        self.set(state);
        self.slot.is_lost.store(false, Ordering::Relaxed);
    }

    /// Before a change of the kernel's O_APPEND. Until the drop, an append of a signal handler uses
    /// RWF_APPEND, which does no harm beside O_APPEND.
    pub fn hide_append(&self) {
        let appends = self
            .description()
            .is_some_and(|description| description.append.load(Ordering::Relaxed));
        self.slot.hides_append.store(appends, Ordering::Relaxed);
    }
}

impl Deref for Changing {
    type Target = State;

    fn deref(&self) -> &State {
        &self.states[0]
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let (kind, hides) = match &**self {
            State::Empty => (Kind::Empty, false),
            State::Engine => (Kind::Engine, false),
            State::Watched(_) => (Kind::Watched, false),
            State::Taken(description, _) => {
                (Kind::Taken, description.append.load(Ordering::Relaxed))
            }
        };
        self.slot.hides_append.store(hides, Ordering::Relaxed);
        self.slot.kind.store(kind as u8, Ordering::Release);
    }
}

impl Slot {
    fn is(&self, kind: Kind) -> bool {
        self.kind.load(Ordering::Acquire) == kind as u8
    }

    /// Whether the number has a state other than [`State::Empty`].
    pub fn is_known(&self) -> bool {
        !self.is(Kind::Empty)
    }

    /// Whether the descriptor belongs to the engine or to this library.
    pub fn is_engines(&self) -> bool {
        self.is(Kind::Engine)
    }

    /// Whether the engine serves it.
    pub fn is_taken(&self) -> bool {
        self.is(Kind::Taken)
    }

    /// For a transfer: the state cannot change until the drop of the guard.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.shards[own_shard()].0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a change: waits for the transfers.
    pub fn write(&'static self) -> Changing {
        let lock = |shard: &'static Shard| shard.0.write().unwrap_or_else(PoisonError::into_inner);
        Changing { slot: self, states: array::from_fn(|shard| lock(&self.shards[shard])) }
    }

    /// Records that the number is closed, from a signal handler that interrupted the engine.
    pub fn lose(&self) {
        self.is_lost.store(!self.is(Kind::Empty) && !self.is(Kind::Engine), Ordering::Relaxed);
    }

    /// Whether the state is that of an earlier file of the number.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether a write that bypasses the engine must use RWF_APPEND.
    pub fn hides_append(&self) -> bool {
        self.hides_append.load(Ordering::Relaxed)
    }
}

type Page = [AtomicPtr<Slot>; PAGE];

static TABLE: [AtomicPtr<Page>; PAGES] = [const { AtomicPtr::new(ptr::null_mut()) }; PAGES];

fn place(fd: c_int) -> Option<(usize, usize)> {
    let number = usize::try_from(fd).ok()?;
    (number < PAGE * PAGES).then_some((number / PAGE, number % PAGE))
}

/// Returns the slot of a number, if it ever had a state.
#[inline]
pub fn find(fd: c_int) -> Option<&'static Slot> {
    let (page, index) = place(fd)?;
    // SAFETY: null, or a page, which this library never frees.
    let page = unsafe { TABLE[page].load(Ordering::Acquire).as_ref() }?;
    // SAFETY: null, or a slot, which this library never frees.
    unsafe { page[index].load(Ordering::Acquire).as_ref() }
}

/// Returns the slot of a number, and makes it if needed. None beyond the size of the table.
pub fn make(fd: c_int) -> Option<&'static Slot> {
    let (page, index) = place(fd)?;
    let page = get_or_leak(&TABLE[page], || [const { AtomicPtr::new(ptr::null_mut()) }; PAGE]);
    Some(get_or_leak(&page[index], Slot::default))
}

/// Returns the value behind the pointer, and allocates it for ever if needed.
fn get_or_leak<T>(pointer: &AtomicPtr<T>, make: impl FnOnce() -> T) -> &'static T {
    let mut found = pointer.load(Ordering::Acquire);
    if found.is_null() {
        let made = Box::into_raw(Box::new(make()));
        found = match pointer.compare_exchange(
            ptr::null_mut(),
            made,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: this call allocated it, and no other thread has its address.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
    }
    // SAFETY: not null, and this library never frees it.
    unsafe { &*found }
}

/// Marks a descriptor of the engine, which the program cannot close.
pub fn keep(fd: c_int) {
    if let Some(slot) = make(fd) {
        slot.write().set_anew(State::Engine);
    }
}

/// Returns the known numbers from `first` to `last`, in order.
pub fn numbers_between(first: c_int, last: c_int) -> Vec<c_int> {
    let pages = (0..PAGES).filter(|page| !TABLE[*page].load(Ordering::Acquire).is_null());
    let numbers = pages
        .flat_map(|page| page * PAGE..(page + 1) * PAGE)
        .filter_map(|n| c_int::try_from(n).ok());
    let is_known = |fd: &c_int| find(*fd).is_some_and(Slot::is_known);
    numbers.filter(|fd| (first..=last).contains(fd)).filter(is_known).collect()
}

/// In the child of a fork: drops all slots. Threads of the parent may hold their locks, and the
/// states are the parent's.
pub fn forget_all() {
    for page in &TABLE {
        page.store(ptr::null_mut(), Ordering::Release);
    }
}
