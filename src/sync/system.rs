//! As the system has it.

pub(crate) use std::sync::atomic;

use self::atomic::AtomicU32;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// Mutual exclusion.
#[derive(Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

/// The value of a [`Mutex`], until dropped.
pub(crate) struct MutexGuard<'a, T>(std::sync::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Something that changes under a [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Gives the lock up until it is notified, or earlier.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard(self.0.wait(guard.0).unwrap_or_else(PoisonError::into_inner))
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Sleeping on a word of memory.
pub(crate) mod futex {
    use super::AtomicU32;
    use rustix::thread::futex;

    /// Sleeps while the word has this value, or shorter.
    pub fn wait(word: &AtomicU32, value: u32) {
        // EINTR and EAGAIN both mean: look again.
        let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
    }

    /// Wakes one who sleeps on the word.
    pub fn wake(word: &AtomicU32) {
        let woken = futex::wake(word, futex::Flags::PRIVATE, 1);
        debug_assert!(woken.is_ok());
    }
}

/// Lets others run.
pub(crate) fn yield_now() {
    std::thread::yield_now();
}

/// A thread that can be waited for.
#[derive(Debug)]
pub(crate) struct JoinHandle(std::thread::JoinHandle<()>);

impl JoinHandle {
    /// Waits until the thread has ended, also by a panic.
    pub fn join(self) {
        let _ = self.0.join();
    }
}

/// Starts a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(JoinHandle)
}
