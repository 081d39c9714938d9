//! What all files of the process share: the growth budget, and per file system the flushes in
//! flight and whether one failed.

use crate::engine::reactor::Handle;
use crate::engine::registry::Registry;
use crate::error::Error;
use crate::os_error;
use crate::rules::flush::Ledger;
use crate::rules::growth::{BUDGET_DEFAULT_BYTES, Budget};
use crate::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use crate::sys;
use crate::sys::probe::Through;
use crate::sys::process::Inherited;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;

/// The file systems that were wedged in this process, or in its parent before the fork. The memory
/// of a child holds the list of its parent; the locks of [`Process`] it must not touch.
static WEDGES: Inherited<Wedge> = Inherited::new();

/// What became of a file system. The newest one of a `dev` is valid.
#[derive(Debug)]
struct Wedge {
    dev: u64,
    /// The first failure, and the mounts then known; or nothing once the file system was mounted
    /// anew.
    failed: Option<(Arc<Error>, Mounts)>,
}

/// Whether a file system was ever wedged in this process, or in its parent before the fork. One
/// load.
pub(crate) fn any_was_wedged() -> bool {
    !WEDGES.is_empty()
}

/// A value that a module above the engine keeps for each process. The engine knows nothing of it.
pub(crate) trait Attached: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> Attached for T {}

/// See the module.
#[derive(Debug)]
pub(crate) struct Process {
    pub registry: Registry,
    attached: OnceLock<Box<dyn Attached>>,
    reactor: OnceLock<Handle>,
    budget: Mutex<Budget>,
    file_systems: Mutex<HashMap<u64, Arc<FileSystem>>>,
}

/// A file system, or a device used without one.
#[derive(Debug, Default)]
pub(crate) struct FileSystem {
    ledger: Mutex<Ledger>,
    flush_ended: Condvar,
    /// Those who want to look again when a flush ends. Taken with the ledger held.
    sleepers: Mutex<Vec<Waker>>,
    wedged: OnceLock<Arc<Error>>,
    /// Its number, as [`Facts`](crate::sys::probe::Facts) have it; 0 on the simulated disk.
    dev: u64,
    mounts: Mutex<Mounts>,
}

/// What a file lies on: a file system; or those of all members of a striped volume, which fails as
/// one.
#[derive(Clone, Debug)]
pub(crate) struct FileSystems(SmallVec<[Arc<FileSystem>; 1]>);

/// A flush that runs, by its number on each file system.
#[derive(Debug)]
#[must_use]
pub(crate) struct Flushing(SmallVec<[u64; 1]>);

/// A flush that has ended, with those that ran beside it.
#[derive(Debug)]
pub(crate) struct Ended(SmallVec<[u64; 1]>);

/// The mounts of a file system that we know of.
#[derive(Clone, Debug, Default)]
struct Mounts {
    /// Their unique numbers.
    known: Vec<u64>,
    /// A file was opened through a mount that the kernel does not number for good.
    unnumbered: bool,
    /// The parent had the device open before the fork, and may have it still.
    of_the_parent: bool,
}

impl Process {
    /// That of the calling process. In the child of a fork it has nothing open, and knows which
    /// file systems were wedged in the parent: the child reads and syncs the same caches, which
    /// lost the same data.
    pub fn current() -> &'static Self {
        sys::process::of_this_process(|| {
            let process = Self::new(BUDGET_DEFAULT_BYTES);
            process.inherit();
            process
        })
    }

    fn inherit(&self) {
        let mut file_systems = self.file_systems.lock();
        let mut seen = HashSet::new();
        for wedge in WEDGES.iter().filter(|wedge| seen.insert(wedge.dev)) {
            if let Some((cause, mounts)) = &wedge.failed {
                file_systems.insert(
                    wedge.dev,
                    Arc::new(FileSystem::inherited(wedge.dev, cause.clone(), mounts.clone())),
                );
            }
        }
    }

    /// With nothing open, and this growth budget.
    pub fn new(budget_bytes: u64) -> Self {
        Self {
            registry: Registry::default(),
            attached: OnceLock::default(),
            reactor: OnceLock::default(),
            budget: Mutex::new(Budget::new(budget_bytes)),
            file_systems: Mutex::default(),
        }
    }

    /// False in a child of the process that made it.
    pub fn is_current(&'static self) -> bool {
        // Nobody forks in a model, where each execution has a process of its own.
        cfg!(loom) || sys::process::is_of_this_process(self)
    }

    /// The value that was attached, made at the first call. There is one type of it: another
    /// panics.
    pub fn attached<T: Attached + Default>(&self) -> &T {
        let attached: &dyn Any = &**self.attached.get_or_init(|| Box::new(T::default()));
        attached.downcast_ref().expect("one type is attached")
    }

    /// The one that all share.
    pub fn reactor(&'static self) -> &'static Handle {
        self.reactor.get_or_init(|| Handle::of_process(self))
    }

    pub fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock()
    }

    /// The file system `dev`, for a file about to be opened; or the first failure, if it is wedged
    /// and has not been mounted anew.
    pub fn file_system(&self, dev: u64, through: Through) -> Result<Arc<FileSystem>, Arc<Error>> {
        let fs = self.file_system_as_it_is(dev, through);
        match fs.wedged() {
            Some(cause) => Err(cause.clone()),
            None => Ok(fs),
        }
    }

    /// The file system `dev`, wedged or not.
    pub fn file_system_as_it_is(&self, dev: u64, through: Through) -> Arc<FileSystem> {
        let mut known = self.file_systems.lock();
        known.retain(|_, fs| Arc::strong_count(fs) > 1 || fs.wedged().is_some());
        if let Some(fs) = known.get(&dev)
            && fs.wedged().is_some()
        {
            // Asked in any case: it also learns of mounts.
            let still_mounted = fs.may_still_be_mounted(through);
            if Arc::strong_count(fs) > 1 || still_mounted {
                return fs.clone();
            }
            known.remove(&dev);
            WEDGES.add(Wedge { dev, failed: None });
        }
        let fs = known
            .entry(dev)
            .or_insert_with(|| Arc::new(FileSystem { dev, ..FileSystem::default() }));
        fs.mounts.lock().seen(through);
        fs.clone()
    }
}

impl FileSystem {
    /// Why nothing here can be trusted any more.
    pub fn wedged(&self) -> Option<&Arc<Error>> {
        self.wedged.get()
    }

    /// As it was in the parent of a fork.
    fn inherited(dev: u64, cause: Arc<Error>, mounts: Mounts) -> Self {
        let of_the_parent = mounts.known.is_empty() && !mounts.unnumbered;
        let mounts = Mutex::new(Mounts { of_the_parent, ..mounts });
        let fs = Self { dev, mounts, ..Self::default() };
        let _ = fs.wedged.set(cause);
        fs
    }

    /// A flush failed. The first failure is the one to tell. A child that is forked once a caller
    /// has seen the failure knows it as well, so the list of the children comes first.
    pub fn wedge(&self, cause: Arc<Error>) {
        if self.wedged().is_some() {
            return;
        }
        let mut mounts = self.mounts.lock();
        mounts.find_all(self.dev);
        self.pass_on(&cause, &mounts);
        drop(mounts);
        if self.wedged.set(cause).is_ok() {
            let cause = self.wedged().expect("just set");
            log::error!("dioxide: {cause}; every file on this file system fails from now on");
        }
    }

    /// Lets later children know. The simulated file system (0) is in no other process.
    fn pass_on(&self, cause: &Arc<Error>, mounts: &Mounts) {
        if self.dev != 0 {
            WEDGES.add(Wedge { dev: self.dev, failed: Some((cause.clone(), mounts.clone())) });
        }
    }

    /// A flush (or a write that carries one) is about to begin.
    fn begin_flush(&self) -> u64 {
        self.ledger.lock().begin()
    }

    /// It ended.
    fn end_flush(&self, flush: u64) -> u64 {
        let mut ledger = self.ledger.lock();
        let ended = ledger.end(flush);
        self.flush_ended.notify_all();
        let sleepers = std::mem::take(&mut *self.sleepers.lock());
        drop(ledger);
        sleepers.into_iter().for_each(Waker::wake);
        ended
    }

    /// Waits until those that ran beside a flush have ended, too; or one has failed.
    fn await_others(&self, ended: u64) {
        let mut ledger = self.ledger.lock();
        while self.wedged().is_none() && ledger.any_out_up_to(ended) {
            ledger = self.flush_ended.wait(ledger);
        }
    }

    /// Whether they have; if not, `waker` is told when the next one ends.
    fn is_settled(&self, ended: u64, waker: &Waker) -> bool {
        let ledger = self.ledger.lock();
        let settled = self.wedged().is_some() || !ledger.any_out_up_to(ended);
        if !settled {
            self.sleepers.lock().push(waker.clone());
        }
        settled
    }

    /// A device was opened anew once nobody has it; a file system was mounted anew once none of the
    /// mounts is left that it was known by. A refused mount is one of them, and so are all that are
    /// found beside it.
    fn may_still_be_mounted(&self, through: Through) -> bool {
        let mut mounts = self.mounts.lock();
        let known_before = mounts.known.clone();
        mounts.known.retain(|mount| sys::probe::mount_exists(*mount));
        let still = mounts.unnumbered || mounts.of_the_parent || !mounts.known.is_empty();
        if still {
            mounts.seen(through);
            mounts.find_all(self.dev);
        }
        if let Some(cause) = self.wedged().filter(|_| still && mounts.known != known_before) {
            self.pass_on(cause, &mounts);
        }
        if mounts.unnumbered {
            log::error!(
                "dioxide: this kernel (before Linux 6.8) cannot tell whether a file system was \
                 mounted anew: refused until this process and its children end"
            );
        }
        still
    }
}

impl FileSystems {
    /// Those of several files.
    pub fn joined(all: &[Self]) -> Self {
        Self::of(all.iter().flat_map(|each| each.0.iter().cloned()))
    }

    /// Each of them once.
    fn of(all: impl IntoIterator<Item = Arc<FileSystem>>) -> Self {
        let mut each = SmallVec::<[Arc<FileSystem>; 1]>::new();
        for fs in all {
            if !each.iter().any(|known| Arc::ptr_eq(known, &fs)) {
                each.push(fs);
            }
        }
        Self(each)
    }

    /// Why nothing here can be trusted any more.
    pub fn wedged(&self) -> Option<&Arc<Error>> {
        self.0.iter().find_map(|fs| fs.wedged())
    }

    /// A flush failed. Which of them it was is not asked: none is trusted.
    pub fn wedge(&self, cause: Arc<Error>) {
        self.0.iter().for_each(|fs| fs.wedge(cause.clone()));
    }

    /// Performs a flush (or a write that carries one), and believes its success only if no flush of
    /// these file systems that ran beside it failed. `cause` makes the error to tell of a [failed
    /// flush](os_error::is_failed_flush); no other error puts the file system in doubt.
    pub fn flushing(
        &self,
        perform: impl FnOnce() -> std::io::Result<()>,
        cause: impl FnOnce(&std::io::Error) -> Arc<Error>,
    ) -> std::io::Result<()> {
        let flush = self.begin_flush();
        let result = perform();
        let ended = self.end_flush(flush, &result, cause);
        self.awaited(ended, result)
    }

    /// A flush (or a write that carries one) is about to begin.
    pub fn begin_flush(&self) -> Flushing {
        Flushing(self.0.iter().map(|fs| fs.begin_flush()).collect())
    }

    /// It ended. What it says is to be believed once those that ran beside it have ended, too.
    pub fn end_flush(
        &self,
        flush: Flushing,
        result: &std::io::Result<()>,
        cause: impl FnOnce(&std::io::Error) -> Arc<Error>,
    ) -> Ended {
        if let Err(error) = result
            && os_error::is_failed_flush(error)
        {
            self.wedge(cause(error));
        }
        Ended(self.0.iter().zip(flush.0).map(|(fs, flush)| fs.end_flush(flush)).collect())
    }

    /// Waits until what a flush came to can be believed.
    pub fn awaited(&self, ended: Ended, result: std::io::Result<()>) -> std::io::Result<()> {
        if result.is_ok() {
            self.0.iter().zip(ended.0).for_each(|(fs, ended)| fs.await_others(ended));
        }
        self.believed(result)
    }

    /// Whether a flush that ended can be believed; if not, `waker` is told when the next one ends.
    pub fn is_settled(&self, ended: &Ended, waker: &Waker) -> bool {
        self.wedged().is_some()
            || self.0.iter().zip(&ended.0).all(|(fs, ended)| fs.is_settled(*ended, waker))
    }

    /// What a flush came to once those beside it have ended.
    pub fn believed(&self, result: std::io::Result<()>) -> std::io::Result<()> {
        match self.wedged() {
            Some(_) if result.is_ok() => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            _ => result,
        }
    }
}

impl PartialEq for FileSystems {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

impl Default for FileSystems {
    /// One of its own.
    fn default() -> Self {
        Self::of([Arc::default()])
    }
}

impl From<Arc<FileSystem>> for FileSystems {
    fn from(fs: Arc<FileSystem>) -> Self {
        Self::of([fs])
    }
}

impl Mounts {
    fn seen(&mut self, through: Through) {
        match through {
            Through::Device => {}
            Through::Unnumbered => self.unnumbered = true,
            Through::Mount(mount) if self.known.contains(&mount) => {}
            Through::Mount(mount) => self.known.push(mount),
        }
    }

    /// Learns of the mounts through which we have opened nothing: the file system outlives all
    /// others with them.
    fn find_all(&mut self, dev: u64) {
        // A device without a file system is not mounted, and the simulated one (0) nowhere.
        if dev != 0 && !self.known.is_empty() {
            sys::probe::mounts_of(dev)
                .into_iter()
                .for_each(|mount| self.seen(Through::Mount(mount)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Operation};

    /// No device has this number.
    const DEV: u64 = 0xFFFF_FFF0;

    /// Whether a wedged file system is refused when nobody has a file of it any more.
    fn refused_after_a_wedge(through: Through) -> bool {
        let process = Process::new(0);
        let fs = process.file_system(DEV, through).expect("nothing failed yet");
        let path = Arc::from(std::path::Path::new("log"));
        fs.wedge(Arc::new(Error::new(Operation::Flush, &path, None, ErrorKind::Os(libc::EIO))));
        assert!(process.file_system(DEV, through).is_err(), "somebody still has it");
        drop(fs);
        process.file_system(DEV, through).is_err()
    }

    #[test]
    fn a_wedged_device_can_be_opened_anew() {
        assert!(!refused_after_a_wedge(Through::Device));
    }

    #[test]
    fn a_wedged_file_system_is_refused_while_it_is_mounted() {
        if let Ok((_, through @ Through::Mount(_))) = sys::probe::place(std::path::Path::new("/")) {
            assert!(refused_after_a_wedge(through));
        }
    }

    #[test]
    fn on_an_old_kernel_a_wedged_file_system_is_refused_for_good() {
        assert!(refused_after_a_wedge(Through::Unnumbered));
    }
}
