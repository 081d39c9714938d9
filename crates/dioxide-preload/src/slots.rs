//! What is known of each descriptor, by its number.
//!
//! Every call looks here first, so that costs two loads where nothing is known. Whoever transfers
//! holds the slot's lock for reading meanwhile; whoever changes how a file is served takes all
//! slots of the file for writing, and so waits for every transfer. Threads that read a slot write
//! to different cache lines.

use crate::files::{Description, Taken};
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, PoisonError};

const PAGE: usize = 1024;
const PAGES: usize = 1024;

/// How the descriptor is served.
#[derive(Clone, Default)]
pub enum State {
    /// By the kernel; nothing is known of it.
    #[default]
    Empty,
    /// It is not the program's, but the engine's, or this library's own.
    Engine,
    /// By the kernel, until two threads write to the file at the same time.
    Watched(Arc<Description>),
    /// By the engine.
    Taken(Arc<Description>, Arc<Taken>),
}

impl State {
    /// What is known of a descriptor of the program.
    pub fn description(&self) -> Option<&Arc<Description>> {
        match self {
            Self::Watched(description) | Self::Taken(description, _) => Some(description),
            Self::Empty | Self::Engine => None,
        }
    }
}

/// One descriptor number.
#[derive(Default)]
pub struct Slot {
    state: ShardedLock<State>,
    /// The kernel may not know of the program's O_APPEND. A signal handler that interrupted the
    /// engine in this thread reads it: the handler cannot wait for the lock, which its own thread
    /// may hold.
    hides_append: AtomicBool,
    /// The [`Kind`] of the state, for what needs no more: it waits for no lock, so a signal handler
    /// may ask.
    kind: AtomicU8,
}

/// What a state is, without what is known.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Empty,
    Engine,
    Watched,
    Taken,
}

/// A slot that no transfer holds.
pub struct Changing {
    slot: &'static Slot,
    state: ShardedLockWriteGuard<'static, State>,
}

impl Changing {
    /// The kernel's O_APPEND of the description is about to change. Until this ends, an append says
    /// so itself, which does no harm where the description has the flag.
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
        &self.state
    }
}

impl DerefMut for Changing {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let hides = matches!(&*self.state, State::Taken(description, _) if description.append.load(Ordering::Relaxed));
        self.slot.hides_append.store(hides, Ordering::Relaxed);
        let kind = match &*self.state {
            State::Empty => Kind::Empty,
            State::Engine => Kind::Engine,
            State::Watched(_) => Kind::Watched,
            State::Taken(..) => Kind::Taken,
        };
        self.slot.kind.store(kind as u8, Ordering::Release);
    }
}

impl Slot {
    fn is(&self, kind: Kind) -> bool {
        self.kind.load(Ordering::Acquire) == kind as u8
    }

    /// Whether anything is known of the number.
    pub fn is_known(&self) -> bool {
        !self.is(Kind::Empty)
    }

    /// Whether the number is not the program's, but ours.
    pub fn is_engines(&self) -> bool {
        self.is(Kind::Engine)
    }

    /// Whether the engine serves it.
    pub fn is_taken(&self) -> bool {
        self.is(Kind::Taken)
    }

    /// For a transfer: nothing changes until it ends.
    pub fn read(&self) -> ShardedLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a change, when all transfers have ended.
    pub fn write(&'static self) -> Changing {
        Changing { slot: self, state: self.state.write().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Whether a write that goes past the engine must say itself that it is an append.
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

/// The slot of a number, if it ever had a use.
#[inline]
pub fn find(fd: c_int) -> Option<&'static Slot> {
    let (page, index) = place(fd)?;
    // SAFETY: null, or a page that is never freed.
    let page = unsafe { TABLE[page].load(Ordering::Acquire).as_ref() }?;
    // SAFETY: null, or a slot that is never freed.
    unsafe { page[index].load(Ordering::Acquire).as_ref() }
}

/// The slot of a number, made if there is none yet. Nothing for numbers beyond any that are usual.
pub fn make(fd: c_int) -> Option<&'static Slot> {
    let (page, index) = place(fd)?;
    let page = get_or_leak(&TABLE[page], || [const { AtomicPtr::new(ptr::null_mut()) }; PAGE]);
    Some(get_or_leak(&page[index], Slot::default))
}

/// What is behind the pointer, for ever.
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
                // SAFETY: it was made here, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
    }
    // SAFETY: not null, and never freed.
    unsafe { &*found }
}

/// The program may not close the number: it is ours.
pub fn keep(fd: c_int) {
    if let Some(slot) = make(fd) {
        *slot.write() = State::Engine;
    }
}

/// Numbers from `first` to `last` that mean something here, in order.
pub fn numbers_between(first: c_int, last: c_int) -> Vec<c_int> {
    let pages = (0..PAGES).filter(|page| !TABLE[*page].load(Ordering::Acquire).is_null());
    let numbers = pages
        .flat_map(|page| page * PAGE..(page + 1) * PAGE)
        .filter_map(|n| c_int::try_from(n).ok());
    let means_something = |fd: &c_int| find(*fd).is_some_and(Slot::is_known);
    numbers.filter(|fd| (first..=last).contains(fd)).filter(means_something).collect()
}

/// In the child of a fork: locks that threads of the parent held would stay so, and nothing that
/// was known holds any more.
pub fn forget_all() {
    for page in &TABLE {
        page.store(ptr::null_mut(), Ordering::Release);
    }
}
