//! The files that this process has open for writing: one engine for each device and inode, however
//! many handles.

use super::Engine;
use super::abort::AbortOnPanic;
use crate::error::Result;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::sys::probe::{Facts, Part};
use std::collections::HashMap;
use std::sync::Arc;

/// Device and inode; for a block device its own number, and no inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub dev: u64,
    pub inode: Option<u64>,
    pub part: Part,
}

impl Key {
    /// The key of an open file or device.
    pub fn of(facts: &Facts) -> Self {
        let inode = (!facts.is_device).then_some(facts.identity.inode);
        Self { dev: facts.dev, inode, part: facts.part }
    }
}

/// A file that is being opened for writing.
pub(crate) trait Opening: Sized {
    /// Checks that the caller may share a file that is already open. The kernel has not checked its
    /// right to write.
    fn admit(&self) -> Result<()> {
        Ok(())
    }

    /// Opens it.
    fn engine(self) -> Result<Engine>;
}

/// An opening without a check.
impl<F: FnOnce() -> Result<Engine>> Opening for F {
    fn engine(self) -> Result<Engine> {
        self()
    }
}

/// The files that this process has open for writing.
#[derive(Debug)]
pub(crate) struct Registry {
    files: Mutex<HashMap<Key, RegistryEntry>>,
    changed: Condvar,
    /// The opens of files, counted in the place of their key.
    opens: Box<[AtomicU64]>,
}

/// The number of counters of opens. If two files share one, an open of one costs a reader of the
/// other another attempt.
const OPENS_PLACES: u64 = if cfg!(loom) { 1 } else { 4096 };

#[derive(Debug)]
enum RegistryEntry {
    /// Being opened; or its engine has closed it, and is being dropped.
    Busy,
    Open {
        engine: Arc<Engine>,
        handles: usize,
    },
    /// The last handle is gone.
    Closing(Arc<Engine>),
}

impl Default for Registry {
    fn default() -> Self {
        let opens = (0..OPENS_PLACES).map(|_| AtomicU64::default()).collect();
        Self { files: Mutex::default(), changed: Condvar::default(), opens }
    }
}

impl Registry {
    /// Adds a handle to an open file. Waits while the file is being opened or closed.
    pub fn join(&self, key: Key) -> Option<Arc<Engine>> {
        let mut files = self.files.lock();
        loop {
            match files.get_mut(&key) {
                None => return None,
                Some(RegistryEntry::Open { engine, handles }) => {
                    *handles += 1;
                    return Some(engine.clone());
                }
                Some(RegistryEntry::Busy | RegistryEntry::Closing(_)) => {
                    files = self.changed.wait(files);
                }
            }
        }
    }

    /// The engine that has a file open, until it is closed. Adds no handle and does not wait.
    pub fn writer(&self, key: Key) -> Option<Arc<Engine>> {
        match self.files.lock().get(&key) {
            Some(RegistryEntry::Open { engine, .. } | RegistryEntry::Closing(engine))
                if !engine.is_closed() =>
            {
                Some(engine.clone())
            }
            _ => None,
        }
    }

    /// Whether a handle has a file open.
    pub fn is_open(&self, key: Key) -> bool {
        matches!(self.files.lock().get(&key), Some(RegistryEntry::Open { .. }))
    }

    /// A count that each open of a file raises, and opens of some other files too. An open counts
    /// when [`writer`](Self::writer) finds its engine, and before that engine can write.
    pub fn opens(&self, key: Key) -> u64 {
        self.opens_of(key).load(Ordering::SeqCst)
    }

    fn opens_of(&self, Key { dev, inode, .. }: Key) -> &AtomicU64 {
        let number = dev.rotate_left(32) ^ inode.unwrap_or_default();
        // By Fibonacci hashing, as inodes of one use are often multiples.
        let place = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % OPENS_PLACES;
        &self.opens[place as usize]
    }

    /// Opens a file, or shares it if it is open by now.
    pub fn open(&self, key: Key, opening: impl Opening) -> Result<Arc<Engine>> {
        while !self.reserve(key) {
            opening.admit()?;
            if let Some(engine) = self.join(key) {
                return Ok(engine);
            }
        }
        // The file would stay busy.
        let _all_or_nothing = AbortOnPanic::armed();
        let made = opening.engine().map(Arc::new);
        self.replace(
            key,
            made.as_ref()
                .ok()
                .map(|engine| RegistryEntry::Open { engine: engine.clone(), handles: 1 }),
        );
        made
    }

    /// Reserves a file for its opener. False if it is open, or being opened or closed.
    fn reserve(&self, key: Key) -> bool {
        let mut files = self.files.lock();
        let is_free = !files.contains_key(&key);
        if is_free {
            files.insert(key, RegistryEntry::Busy);
        }
        is_free
    }

    /// Removes a handle. Closes the file with the last one.
    pub fn leave(&self, key: Key) -> Result<()> {
        let mut files = self.files.lock();
        let Some(RegistryEntry::Open { engine, handles }) = files.get_mut(&key) else {
            unreachable!("a handle belongs to an open file")
        };
        *handles -= 1;
        if *handles > 0 {
            return Ok(());
        }
        let engine = engine.clone();
        files.insert(key, RegistryEntry::Closing(engine.clone()));
        drop(files);
        let _all_or_nothing = AbortOnPanic::armed();
        let result = engine.finish();
        // Before the next open: a device refuses it while this descriptor is open.
        drop(self.files.lock().insert(key, RegistryEntry::Busy));
        drop(engine);
        self.replace(key, None);
        result
    }

    fn replace(&self, key: Key, entry: Option<RegistryEntry>) {
        let mut files = self.files.lock();
        match entry {
            Some(entry) => {
                // Under the lock: a reader that meets the new count finds the engine.
                self.opens_of(key).fetch_add(1, Ordering::SeqCst);
                files.insert(key, entry)
            }
            None => files.remove(&key),
        };
        self.changed.notify_all();
    }
}
