//! The primitives of the system. In a thread of a simulation they use its scheduler.

pub(crate) use std::sync::atomic;

use self::atomic::AtomicU32;
use super::signals::with_signals_blocked;
#[cfg(any(test, feature = "sim"))]
use super::world;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// A mutex that is never poisoned.
#[derive(Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, T> {
    /// Some until the drop.
    value: Option<std::sync::MutexGuard<'a, T>>,
    /// The task that holds the lock, and the lock.
    #[cfg(any(test, feature = "sim"))]
    held: Option<(world::WorldTask, &'a Mutex<T>)>,
}

impl<T> Mutex<T> {
    /// A lock of `value`.
    pub fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Takes the lock, and waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(any(test, feature = "sim"))]
        if let Some(task) = world::current() {
            return self.lock_in(task);
        }
        let value = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard {
            value: Some(value),
            #[cfg(any(test, feature = "sim"))]
            held: None,
        }
    }

    /// Takes the lock, unless it is held. Not for a simulation, whose scheduler does not see it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let value = match self.0.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(value)) => value.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard {
            value: Some(value),
            #[cfg(any(test, feature = "sim"))]
            held: None,
        })
    }

    #[cfg(any(test, feature = "sim"))]
    fn lock_in(&self, task: world::WorldTask) -> MutexGuard<'_, T> {
        task.may_be_preempted();
        let value = loop {
            match self.0.try_lock() {
                Ok(value) => break value,
                Err(TryLockError::Poisoned(value)) => break value.into_inner(),
                Err(TryLockError::WouldBlock) if task.is_held(self.address()) => {
                    task.wait(self.address())
                }
                // A thread outside the simulation holds it briefly, unseen by the scheduler.
                Err(TryLockError::WouldBlock) => {
                    break self.0.lock().unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        task.took(self.address());
        MutexGuard { value: Some(value), held: Some((task, self)) }
    }

    #[cfg(any(test, feature = "sim"))]
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
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
        self.value.as_ref().expect("held until dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("held until dropped")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        #[cfg(any(test, feature = "sim"))]
        if let Some((task, mutex)) = self.held.take() {
            task.gave_back(mutex.address());
        }
    }
}

/// A condition variable of a [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Releases the lock until it is notified; may return early.
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        #[cfg(any(test, feature = "sim"))]
        if let Some((task, mutex)) = guard.held.clone() {
            // No other task runs in between.
            drop(guard);
            task.wait(self.address());
            return mutex.lock();
        }
        let value = guard.value.take().expect("held until dropped");
        guard.value = Some(self.0.wait(value).unwrap_or_else(PoisonError::into_inner));
        guard
    }

    pub fn notify_all(&self) {
        #[cfg(any(test, feature = "sim"))]
        if let Some(task) = world::current() {
            task.wake(self.address());
        }
        self.0.notify_all();
    }

    #[cfg(any(test, feature = "sim"))]
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Futex operations.
pub(crate) mod futex {
    use super::AtomicU32;
    #[cfg(any(test, feature = "sim"))]
    use super::world;
    use rustix::thread::futex;
    use std::num::NonZeroU32;

    /// The mask of a sleeper that any wake-up is for.
    pub const ANY: u32 = u32::MAX;

    /// Sleeps while the word has this value, until a wake-up with a bit of the mask; may return
    /// early.
    pub fn wait(word: &AtomicU32, value: u32, mask: u32) {
        #[cfg(any(test, feature = "sim"))]
        if let Some(task) = world::current() {
            // No other task runs in between.
            if word.load(super::atomic::Ordering::SeqCst) == value {
                task.wait(word.as_ptr().addr());
            }
            return;
        }
        // EINTR and EAGAIN both mean that the caller checks again.
        let mask = NonZeroU32::new(mask).expect("a sleeper can be woken");
        let _ = futex::wait_bitset(word, futex::Flags::PRIVATE, value, None, mask);
    }

    /// Wakes all sleepers of the word that have a bit of the mask.
    pub fn wake(word: &AtomicU32, mask: u32) {
        wake_some(word, mask, i32::MAX as u32);
    }

    /// Wakes one of them. A simulation wakes all.
    pub fn wake_one(word: &AtomicU32, mask: u32) {
        wake_some(word, mask, 1);
    }

    fn wake_some(word: &AtomicU32, mask: u32, count: u32) {
        #[cfg(any(test, feature = "sim"))]
        if let Some(task) = world::current() {
            return task.wake(word.as_ptr().addr());
        }
        let mask = NonZeroU32::new(mask).expect("it is for a sleeper");
        let woken = futex::wake_bitset(word, futex::Flags::PRIVATE, count, mask);
        debug_assert!(woken.is_ok());
    }
}

/// Lets other threads run.
pub(crate) fn yield_now() {
    #[cfg(any(test, feature = "sim"))]
    if let Some(task) = world::current() {
        return task.yield_now();
    }
    std::thread::yield_now();
}

/// Returns whether the calling thread belongs to a simulation.
pub(crate) fn is_simulated() -> bool {
    #[cfg(any(test, feature = "sim"))]
    return world::current().is_some();
    #[cfg(not(any(test, feature = "sim")))]
    false
}

/// The time since a fixed moment.
pub(crate) fn now() -> Duration {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    #[cfg(any(test, feature = "sim"))]
    if let Some(task) = world::current() {
        return task.now();
    }
    BEGAN.get_or_init(Instant::now).elapsed()
}

/// Sleeps for a while.
pub(crate) fn nap(time: Duration) {
    #[cfg(any(test, feature = "sim"))]
    if let Some(task) = world::current() {
        return task.sleep(time.as_nanos() as u64);
    }
    std::thread::sleep(time);
}

/// A thread that can be joined.
#[derive(Debug)]
pub(crate) enum JoinHandle {
    System(std::thread::JoinHandle<()>),
    #[cfg(any(test, feature = "sim"))]
    Simulated(world::WorldThread<()>),
}

impl JoinHandle {
    /// Waits until the thread has ended, by a panic too.
    pub fn join(self) {
        let _ = match self {
            Self::System(thread) => thread.join(),
            #[cfg(any(test, feature = "sim"))]
            Self::Simulated(task) => task.join(),
        };
    }
}

/// Starts a thread in which no signal handler of the program runs.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    #[cfg(any(test, feature = "sim"))]
    if let Some(task) = world::current() {
        return task.spawn(name, work).map(JoinHandle::Simulated);
    }
    let thread = std::thread::Builder::new().name(name.into());
    with_signals_blocked(|| thread.spawn(work)).map(JoinHandle::System)
}

#[cfg(test)]
mod tests {
    /// A handler may call the library, which waits for this thread, or leave by a longjmp.
    #[test]
    fn no_signal_handler_runs_in_a_thread_of_ours() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
            u64::from_str_radix(mask, 16).unwrap()
        };
        let bit = |signal: i32| 1_u64 << (signal - 1);
        let before = blocked();
        let (told, mask) = std::sync::mpsc::channel();
        super::spawn("mask", move || told.send(blocked()).unwrap()).unwrap().join();
        let mask = mask.recv().unwrap();
        assert_ne!(mask & bit(libc::SIGTERM), 0, "a handler could run");
        assert_eq!(
            mask & bit(libc::SIGSYS),
            0,
            "what the thread does itself must reach its handler"
        );
        assert_eq!(blocked(), before, "the caller's own signals");
    }
}
