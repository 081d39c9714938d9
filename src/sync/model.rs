//! The primitives under the model checker: loom runs every interleaving that the memory model
//! allows, one after the other.
//!
//! Nothing here may outlive one execution of a model, so nothing is static.

pub(crate) use loom::thread_local;

use self::atomic::{AtomicBool, AtomicU32, Ordering};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

/// Atomics, with corrections for two errors of loom.
///
/// Loom treats a sequentially consistent access as acquire and release only, but supports such
/// fences: so a fence stands on both sides. It also lets a plain store come between the two halves
/// of another thread's swap: so a store is a swap.
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::Ordering;

    use loom::sync::atomic::fence;
    use loom::sync::{Condvar, Mutex};

    fn fenced<R>(orders: &[Ordering], access: impl FnOnce() -> R) -> R {
        let total = orders.contains(&Ordering::SeqCst);
        if total {
            fence(Ordering::SeqCst);
        }
        let result = access();
        if total {
            fence(Ordering::SeqCst);
        }
        result
    }

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug, Default)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            #[allow(dead_code, reason = "the same for all of them")]
            impl $name {
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub fn load(&self, order: Ordering) -> $value {
                    fenced(&[order], || self.0.load(order))
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    self.swap(value, order);
                }

                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    fenced(&[order], || self.0.swap(value, order))
                }
            }
        };
    }

    atomic!(AtomicBool, bool);
    atomic!(AtomicU64, u64);
    atomic!(AtomicUsize, usize);

    impl AtomicU64 {
        pub fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
            fenced(&[order], || self.0.fetch_add(by, order))
        }

        pub fn fetch_sub(&self, by: u64, order: Ordering) -> u64 {
            fenced(&[order], || self.0.fetch_sub(by, order))
        }

        pub fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
            fenced(&[order], || self.0.fetch_or(bits, order))
        }

        pub fn fetch_max(&self, other: u64, order: Ordering) -> u64 {
            fenced(&[order], || self.0.fetch_max(other, order))
        }
    }

    /// A futex word, with the kernel's queue of its sleepers.
    #[derive(Debug, Default)]
    pub(crate) struct AtomicU32 {
        value: loom::sync::atomic::AtomicU32,
        /// The masks of the sleepers. One of 0 was woken.
        pub(super) queue: Mutex<Vec<u32>>,
        pub(super) woken: Condvar,
    }

    impl AtomicU32 {
        pub fn load(&self, order: Ordering) -> u32 {
            fenced(&[order], || self.value.load(order))
        }

        pub fn store(&self, value: u32, order: Ordering) {
            self.swap(value, order);
        }

        pub fn swap(&self, value: u32, order: Ordering) -> u32 {
            fenced(&[order], || self.value.swap(value, order))
        }

        pub fn fetch_add(&self, by: u32, order: Ordering) -> u32 {
            fenced(&[order], || self.value.fetch_add(by, order))
        }

        pub fn compare_exchange(
            &self,
            current: u32,
            new: u32,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u32, u32> {
            fenced(&[success, failure], || {
                self.value.compare_exchange(current, new, success, failure)
            })
        }
    }
}

/// A mutex that is never poisoned.
#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, T>(loom::sync::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    /// A lock of `value`.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Takes the lock, and waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().expect("loom poisons nothing"))
    }

    /// Takes the lock, unless it is held.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(MutexGuard)
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

/// A condition variable of a [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// Releases the lock until it is notified.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard(self.0.wait(guard.0).expect("loom poisons nothing"))
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A value that is set once.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    is_set: AtomicBool,
    setting: Mutex<()>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self {
            value: std::sync::OnceLock::new(),
            is_set: AtomicBool::new(false),
            setting: Mutex::default(),
        }
    }
}

impl<T> OnceLock<T> {
    pub fn get(&self) -> Option<&T> {
        if self.is_set.load(Ordering::Acquire) { self.value.get() } else { None }
    }

    pub fn set(&self, value: T) -> Result<(), T> {
        let _setting = self.setting.lock();
        let result = self.value.set(value);
        self.is_set.store(true, Ordering::Release);
        result
    }

    pub fn get_or_init(&self, value: impl FnOnce() -> T) -> &T {
        if self.get().is_none() {
            // Another thread may have set it first.
            let _ = self.set(value());
        }
        self.get().expect("just set")
    }
}

/// Futex operations.
pub(crate) mod futex {
    use super::{AtomicU32, Ordering};

    /// The mask of a sleeper that any wake-up is for.
    pub const ANY: u32 = u32::MAX;

    /// Sleeps while the word has this value, until a wake-up with a bit of the mask. The kernel
    /// compares the value under the lock of its queue.
    pub fn wait(word: &AtomicU32, value: u32, mask: u32) {
        let mut queue = word.queue.lock().expect("loom poisons nothing");
        if word.load(Ordering::Acquire) != value {
            return;
        }
        let place = queue.len();
        queue.push(mask);
        while queue[place] != 0 {
            queue = word.woken.wait(queue).expect("loom poisons nothing");
        }
    }

    /// Wakes all sleepers of the word that have a bit of the mask.
    pub fn wake(word: &AtomicU32, mask: u32) {
        wake_some(word, mask, usize::MAX);
    }

    /// Wakes one of them.
    pub fn wake_one(word: &AtomicU32, mask: u32) {
        wake_some(word, mask, 1);
    }

    fn wake_some(word: &AtomicU32, mask: u32, count: usize) {
        let mut queue = word.queue.lock().expect("loom poisons nothing");
        let sleepers = queue.iter_mut().filter(|sleeper| **sleeper & mask != 0);
        sleepers.take(count).for_each(|sleeper| *sleeper = 0);
        word.woken.notify_all();
    }
}

/// Lets other threads run.
pub(crate) fn yield_now() {
    loom::thread::yield_now();
}

/// Yields: models have no time.
pub(crate) fn nap(_time: std::time::Duration) {
    yield_now();
}

/// Returns 0: models have no time.
pub(crate) fn now() -> std::time::Duration {
    std::time::Duration::ZERO
}

/// A small number for the calling thread. Every execution of a model counts from 0.
pub(crate) fn thread_number() -> usize {
    use std::sync::atomic::AtomicUsize;
    loom::lazy_static!(static ref NEXT: AtomicUsize = AtomicUsize::new(0););
    thread_local!(static MINE: usize = NEXT.fetch_add(1, Ordering::SeqCst));
    MINE.with(|mine| *mine)
}

/// Returns whether the calling thread belongs to a simulation.
pub(crate) fn is_simulated() -> bool {
    false
}

/// A thread that can be joined.
#[derive(Debug)]
pub(crate) struct JoinHandle(loom::thread::JoinHandle<()>);

impl JoinHandle {
    /// Waits until the thread has ended.
    pub fn join(self) {
        let _ = self.0.join();
    }
}

/// Starts a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    loom::thread::Builder::new().name(name.into()).spawn(work).map(JoinHandle)
}

/// Runs a model in every interleaving with at most `preemptions` preemptions. Returns the number of
/// interleavings. `LOOM_MAX_PREEMPTIONS` overrides the limit, `LOOM_MAX_DURATION` ends the search
/// after that many seconds.
#[cfg(test)]
pub(crate) fn explore(
    preemptions: impl Into<Option<usize>>,
    model: impl Fn() + Send + Sync + 'static,
) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions.into());
    builder.max_branches = 10_000;
    builder.checkpoint_interval = 1000;
    let executions = Arc::new(AtomicU64::new(0));
    let counted = executions.clone();
    let began = std::time::Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    let took = began.elapsed();
    println!(
        "{}: {} executions, {}{}, {:.1} s",
        std::thread::current().name().unwrap_or_default(),
        executions.load(Relaxed),
        builder.preemption_bound.map_or("any".into(), |bound| format!("up to {bound}"))
            + " preemptions",
        if builder.max_duration.is_some_and(|limit| took >= limit) { ", cut short" } else { "" },
        took.as_secs_f64()
    );
}
