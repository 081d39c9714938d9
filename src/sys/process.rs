//! The identity of this process: an address that changes in the child of a fork, without a system
//! call. And values that a child inherits.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A page that the kernel zeroes in the child of any fork (MADV_WIPEONFORK, Linux 4.14). It holds
/// one pointer, which becomes null there.
fn wiped_on_fork() -> &'static AtomicPtr<()> {
    // No lock: a fork may happen in the first call, and the child could not take it.
    static PAGE: AtomicPtr<AtomicPtr<()>> = AtomicPtr::new(ptr::null_mut());
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let made = map_wiped_on_fork();
        page =
            match PAGE.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => made,
                // Another thread was first. The page of this one stays, unused.
                Err(other) => other,
            };
    }
    // SAFETY: the page is never unmapped and is aligned. Zero is a valid pointer value.
    unsafe { &*page }
}

fn map_wiped_on_fork() -> *mut AtomicPtr<()> {
    let size = rustix::param::page_size();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address chosen by the kernel affects nothing else.
    let page =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, protection, MapFlags::PRIVATE) };
    let page = page.expect("one page of memory");
    // SAFETY: the advice affects only the page mapped above.
    unsafe { rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork) }
        .expect("Linux 4.14 or later");
    page.cast()
}

/// The value of this process, made by `make` at the first call in it. A child of a fork gets its
/// own: the value of its parent, with its locks, is unusable there.
pub(crate) fn of_this_process<T: Sync>(make: impl FnOnce() -> T) -> &'static T {
    let page = wiped_on_fork();
    let known = page.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: only this function stores here, and always the same type: it has one caller.
        return unsafe { &*known.cast::<T>() };
    }
    let made: *mut T = Box::into_raw(Box::new(make()));
    match page.compare_exchange(
        std::ptr::null_mut(),
        made.cast(),
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        // SAFETY: `made` is never freed.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: another thread was first, so no other code knows `made`.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: as above.
            unsafe { &*other.cast::<T>() }
        }
    }
}

/// Returns whether `value` belongs to this process, and not to its parent.
pub(crate) fn is_of_this_process<T>(value: &'static T) -> bool {
    std::ptr::eq(wiped_on_fork().load(Ordering::Acquire).cast::<T>(), value)
}

/// Values that the child of a fork keeps. A fork may happen while any lock is held, so this has
/// none: values are only added, and never changed, moved or freed.
#[derive(Debug)]
pub(crate) struct Inherited<T: 'static> {
    newest: AtomicPtr<Node<T>>,
}

#[derive(Debug)]
struct Node<T: 'static> {
    value: T,
    older: Option<&'static Node<T>>,
}

impl<T: Sync> Inherited<T> {
    pub const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    fn newest(&self) -> Option<&'static Node<T>> {
        // SAFETY: null, or a node that is never freed, nor changed once it is in the list.
        unsafe { self.newest.load(Ordering::Acquire).as_ref() }
    }

    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Relaxed).is_null()
    }

    pub fn add(&self, value: T) {
        let node = Box::into_raw(Box::new(Node { value, older: None }));
        loop {
            let newest = self.newest.load(Ordering::Acquire);
            // SAFETY: the node is not in the list yet, so this thread alone uses it. For `newest`
            // see `newest()`.
            unsafe { (*node).older = newest.as_ref() };
            if self
                .newest
                .compare_exchange(newest, node, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                return;
            }
        }
    }

    /// Iterates from the newest value to the oldest.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> + use<T> {
        std::iter::successors(self.newest(), |node| node.older).map(|node| &node.value)
    }
}
