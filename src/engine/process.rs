//! What all files of the process share: the growth budget, and per file system the flushes in flight and
//! whether one failed.

use crate::engine::registry::Registry;
use crate::error::Error;
use crate::flush::Ledger;
use crate::growth::{BUDGET_DEFAULT_BYTES, Budget};
use crate::sys;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Process {
    pub registry: Registry,
    budget: Mutex<Budget>,
    file_systems: Mutex<HashMap<u64, Arc<FileSystem>>>,
}

/// A file system, or a device used without one.
#[derive(Debug, Default)]
pub(crate) struct FileSystem {
    ledger: Mutex<Ledger>,
    flush_ended: Condvar,
    wedged: OnceLock<Arc<Error>>,
    /// The mounts through which our files were opened, by their unique numbers.
    mounts: Mutex<Vec<u64>>,
}

/// Locks; a panic elsewhere is no reason to stop, since no state here is left half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// That of the calling process.
    pub fn current() -> &'static Self {
        sys::process::of_this_process(|| Self {
            registry: Registry::default(),
            budget: Mutex::new(Budget::new(BUDGET_DEFAULT_BYTES)),
            file_systems: Mutex::default(),
        })
    }

    /// False in a child of the process that made it.
    pub fn is_current(&'static self) -> bool {
        sys::process::is_of_this_process(self)
    }

    pub fn budget(&self) -> MutexGuard<'_, Budget> {
        lock(&self.budget)
    }

    /// The file system `dev`, for a file about to be opened through `mount`; or the first failure, if it is wedged
    /// and has not been mounted anew. `mount` is unknown on older kernels, and for devices.
    pub fn file_system(&self, dev: u64, mount: Option<u64>) -> Result<Arc<FileSystem>, Arc<Error>> {
        let mut known = lock(&self.file_systems);
        known.retain(|_, fs| Arc::strong_count(fs) > 1 || fs.wedged().is_some());
        if let Some(fs) = known.get(&dev)
            && let Some(cause) = fs.wedged()
        {
            if Arc::strong_count(fs) > 1 || fs.may_still_be_mounted(mount) {
                return Err(cause.clone());
            }
            known.remove(&dev);
        }
        let fs = known.entry(dev).or_default();
        fs.seen_through(mount);
        Ok(fs.clone())
    }
}

impl FileSystem {
    /// Why nothing here can be trusted any more.
    pub fn wedged(&self) -> Option<&Arc<Error>> {
        self.wedged.get()
    }

    /// A flush failed. The first failure is the one to tell.
    pub fn wedge(&self, cause: Arc<Error>) {
        if self.wedged.set(cause).is_ok() {
            let cause = self.wedged().expect("just set");
            log::error!("dioxide: {cause}; every file on this file system fails from now on");
        }
    }

    /// Performs a flush (or a write that carries one), and believes its success only if no flush of this file
    /// system that ran beside it failed. `blame` makes the error of a failure, or nothing if that does not put the
    /// file system in doubt.
    pub fn flushing(
        &self,
        perform: impl FnOnce() -> std::io::Result<()>,
        blame: impl FnOnce(&std::io::Error) -> Option<Arc<Error>>,
    ) -> std::io::Result<()> {
        let flush = lock(&self.ledger).begin();
        let result = perform();
        if let Err(error) = &result
            && let Some(cause) = blame(error)
        {
            self.wedge(cause);
        }
        let mut ledger = lock(&self.ledger);
        let beside = ledger.end(flush);
        self.flush_ended.notify_all();
        while result.is_ok() && self.wedged().is_none() && ledger.any_out_up_to(beside) {
            ledger = self.flush_ended.wait(ledger).unwrap_or_else(PoisonError::into_inner);
        }
        result
    }

    fn seen_through(&self, mount: Option<u64>) {
        let mut mounts = lock(&self.mounts);
        if let Some(mount) = mount
            && !mounts.contains(&mount)
        {
            mounts.push(mount);
        }
    }

    /// A device was opened anew once nobody has it; a file system was mounted anew once none of the mounts is
    /// left that it was seen through. A refused mount counts as seen.
    fn may_still_be_mounted(&self, mount: Option<u64>) -> bool {
        let mut mounts = lock(&self.mounts);
        mounts.retain(|mount| sys::probe::mount_exists(*mount));
        match mount {
            Some(mount) if !mounts.is_empty() && !mounts.contains(&mount) => {
                mounts.push(mount);
                true
            }
            _ => !mounts.is_empty(),
        }
    }
}
