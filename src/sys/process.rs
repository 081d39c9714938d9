//! Which process we are: an address that changes in the child of a fork, without a system call. And
//! what a child inherits.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A page that the kernel fills with zeros in the child of a fork (MADV_WIPEONFORK, Linux 4.14),
/// however it was forked. It holds one pointer, which so becomes null there.
fn wiped_on_fork() -> &'static AtomicPtr<()> {
    static PAGE: OnceLock<&'static AtomicPtr<()>> = OnceLock::new();
    PAGE.get_or_init(|| {
        let size = rustix::param::page_size();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing else.
        let page = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE)
        };
        let page = page.expect("one page of memory");
        // SAFETY: the advice concerns only the page mapped above.
        unsafe { rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork) }
            .expect("Linux 4.14 or later");
        // SAFETY: the page is never unmapped, aligned, and zero is a valid pointer value.
        unsafe { &*page.cast::<AtomicPtr<()>>() }
    })
}

/// The value of this process, made by `make` at the first call in it. A child of a fork gets its
/// own: what its parent held, locks included, is of no use to it.
pub(crate) fn of_this_process<T: Sync>(make: impl FnOnce() -> T) -> &'static T {
    let page = wiped_on_fork();
    let known = page.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: only this function stores here, and always the same type: there is one caller.
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
            // SAFETY: another thread was first, so nobody else knows `made`.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: as above.
            unsafe { &*other.cast::<T>() }
        }
    }
}

/// Whether `value` is this process's, and not its parent's.
pub(crate) fn is_of_this_process<T>(value: &'static T) -> bool {
    std::ptr::eq(wiped_on_fork().load(Ordering::Acquire).cast::<T>(), value)
}

/// Values that the child of a fork keeps. A fork may happen while any lock is held, so this has
/// none: values are only added, and are never changed, moved or freed.
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
        // SAFETY: null, or a node that is never freed, and never changed once it is here.
        unsafe { self.newest.load(Ordering::Acquire).as_ref() }
    }

    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Relaxed).is_null()
    }

    pub fn add(&self, value: T) {
        let node = Box::into_raw(Box::new(Node { value, older: None }));
        loop {
            let newest = self.newest.load(Ordering::Acquire);
            // SAFETY: the list has not got the node yet, so this thread alone uses it. For `newest`
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

    /// The newest value first.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> + use<T> {
        std::iter::successors(self.newest(), |node| node.older).map(|node| &node.value)
    }
}
