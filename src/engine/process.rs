//! State that all files of the process share: the growth budget, and for each file system the
//! flushes in flight and the first failed one.

use crate::backend::journal::Journal;
use crate::engine::core::Request;
use crate::engine::reactor::Handle;
use crate::engine::registry::Registry;
use crate::engine::token::Token;
use crate::engine::waiter::Task;
use crate::error::Error;
use crate::observe::{self, Event};
use crate::os_error;
use crate::rules::flush::{Domain, Election, Reach, SHARERS_MIN, Turn};
use crate::rules::growth::{BUDGET_DEFAULT_BYTES, Budget};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{CachePadded, Condvar, Mutex, MutexGuard, OnceLock, enlist, futex};
use crate::sys;
use crate::sys::journal::Order;
use crate::sys::probe::Through;
use crate::sys::process::Inherited;
use smallvec::{SmallVec, smallvec};
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::ops::BitOr;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// The file systems that were wedged in this process, or in its parent before the fork. A child has
/// the parent's list in its memory; it must not touch the locks of [`Process`].
static WEDGES: Inherited<Wedge> = Inherited::new();

/// The state of a file system. The newest entry of a `dev` is valid.
#[derive(Debug)]
struct Wedge {
    dev: u64,
    /// The first failure, and the mounts known then; `None` once the file system was mounted anew.
    failed: Option<(Arc<Error>, Mounts)>,
}

/// Whether a file system was ever wedged in this process, or in its parent before the fork. Costs
/// one load.
pub(crate) fn any_was_wedged() -> bool {
    !WEDGES.is_empty()
}

/// A value that a module above the engine keeps for each process. The engine knows nothing of it.
pub(crate) trait Attached: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> Attached for T {}

/// State that all files of the process share.
#[derive(Debug)]
pub(crate) struct Process {
    pub registry: Registry,
    attached: OnceLock<Box<dyn Attached>>,
    reactor: OnceLock<Handle>,
    budget: Mutex<Budget>,
    file_systems: Mutex<HashMap<u64, Arc<FileSystemState>>>,
    /// Number of closes, of files that queues may have to release.
    closes: AtomicU64,
}

/// A file system, or a device used without one.
#[derive(Debug, Default)]
pub(crate) struct FileSystemState {
    domain: CachePadded<Mutex<Domain<Request<Token>>>>,
    /// Copy of [`Domain::flushes`], readable without its lock.
    flushes: AtomicUsize,
    /// Copy of [`Domain::has_ended_sharing`]. A child of a fork reads it, and must not wait for the
    /// lock.
    has_ended_sharing: AtomicBool,
    /// Copies of the numbers of the last flush that began, and of the last that has committed.
    begun: AtomicU64,
    committed_to: AtomicU64,
    /// Copy of the number of the last shared flush that counts.
    flushed_to: AtomicU64,
    /// The futex on which threads wait for their turn. It counts the wake-ups.
    wakeups: AtomicU32,
    /// Number of threads in a durable positional write, or in `sync_data`.
    durable: CachePadded<AtomicU64>,
    flush_ended: Condvar,
    /// Wakers of queues that wait for the end of a flush. Locked with the domain held.
    sleepers: Mutex<Vec<Waker>>,
    journal: Mutex<KnownJournal>,
    /// The order in which its journal commits changes; or why it is not known.
    order: OnceLock<Result<Order, String>>,
    wedged: OnceLock<Arc<Error>>,
    /// Its device number, as in [`Facts`](crate::sys::probe::Facts); 0 on the simulated disk.
    dev: u64,
    mounts: Mutex<Mounts>,
}

/// The journal of a file system, as far as it is known.
#[derive(Debug, Default)]
enum KnownJournal {
    #[default]
    Unknown,
    /// Why its files share no flushes.
    Unfit(String),
    /// Files that are open have it. It keeps the file system mounted, so none is kept here.
    Fit(Option<Weak<dyn Journal>>),
}

/// The file systems of a file: one, or those of all members of a striped volume, which fails as
/// one.
#[derive(Clone, Debug)]
pub(crate) struct FileSystems(SmallVec<[Arc<FileSystemState>; 1]>);

/// A running flush: its number on each file system.
#[derive(Debug)]
#[must_use]
pub(crate) struct Flushing(SmallVec<[u64; 1]>);

/// A flush that has ended, with the last flush begun until then on each file system.
#[derive(Debug)]
pub(crate) struct EndedFlush(SmallVec<[u64; 1]>);

/// A thread in a durable positional write, or in `sync_data`.
#[derive(Debug)]
pub(crate) struct CountedDurable<'a> {
    fs: Option<&'a FileSystemState>,
    others: usize,
}

/// The result of a flush, and what it made durable if it succeeded.
type Reached<'a> = (&'a std::io::Result<()>, Reach);

/// The known mounts of a file system.
#[derive(Clone, Debug, Default)]
struct Mounts {
    /// Their unique mount ids.
    known: Vec<u64>,
    /// A file was opened through a mount without a unique id.
    unnumbered: bool,
    /// The parent had the device open before the fork, and may still have it.
    of_the_parent: bool,
}

impl Process {
    /// The state of the calling process. The child of a fork has nothing open, and knows which file
    /// systems were wedged in the parent. It reads and syncs the same caches, which lost the same
    /// data.
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
                    Arc::new(FileSystemState::inherited(wedge.dev, cause.clone(), mounts.clone())),
                );
            }
        }
    }

    /// A process with nothing open, and this growth budget in bytes.
    pub fn new(budget_bytes: u64) -> Self {
        Self {
            registry: Registry::default(),
            attached: OnceLock::default(),
            reactor: OnceLock::default(),
            budget: Mutex::new(Budget::new(budget_bytes)),
            file_systems: Mutex::default(),
            closes: AtomicU64::new(0),
        }
    }

    /// Whether the calling process made it; false in a child of that process.
    pub fn is_current(&'static self) -> bool {
        // A model never forks: each execution has a process of its own.
        cfg!(loom) || sys::process::is_of_this_process(self)
    }

    /// Returns the attached value, made at the first call. Panics if its type differs from the
    /// first.
    pub fn attached<T: Attached + Default>(&self) -> &T {
        let attached: &dyn Any = &**self.attached.get_or_init(|| Box::new(T::default()));
        attached.downcast_ref().expect("one type is attached")
    }

    /// The reactor that the whole process shares.
    pub fn reactor(&'static self) -> &'static Handle {
        self.reactor.get_or_init(|| Handle::of_process(self))
    }

    /// Number of closes until now.
    pub fn closes(&self) -> u64 {
        self.closes.load(Ordering::Acquire)
    }

    /// Counts a close, after the engine refuses operations.
    pub fn count_close(&self) {
        self.closes.fetch_add(1, Ordering::Release);
    }

    pub fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock()
    }

    /// The file system `dev`, for a file about to be opened. Fails with the first failed flush, if
    /// it is wedged and was not mounted anew.
    pub fn file_system(
        &self,
        dev: u64,
        through: Through,
    ) -> Result<Arc<FileSystemState>, Arc<Error>> {
        let fs = self.file_system_as_it_is(dev, through);
        match fs.wedged() {
            Some(cause) => {
                // Under no lock: a logger may open its own file by this library.
                let unnumbered = fs.mounts.lock().unnumbered;
                if unnumbered {
                    log::error!(
                        "dioxide: Linux before 6.8 does not show whether a file system was mounted \
                         anew: refused until this process and its children end"
                    );
                }
                Err(cause.clone())
            }
            None => Ok(fs),
        }
    }

    /// The file system `dev`, wedged or not.
    pub fn file_system_as_it_is(&self, dev: u64, through: Through) -> Arc<FileSystemState> {
        let mut known = self.file_systems.lock();
        known.retain(|_, fs| Arc::strong_count(fs) > 1 || fs.wedged().is_some());
        if let Some(fs) = known.get(&dev)
            && fs.wedged().is_some()
        {
            // Called in any case: it also records mounts.
            let still_mounted = fs.may_still_be_mounted(through);
            if Arc::strong_count(fs) > 1 || still_mounted {
                return fs.clone();
            }
            known.remove(&dev);
            WEDGES.add(Wedge { dev, failed: None });
        }
        let fs = known
            .entry(dev)
            .or_insert_with(|| Arc::new(FileSystemState { dev, ..FileSystemState::default() }));
        fs.mounts.lock().record(through);
        fs.clone()
    }
}

impl FileSystemState {
    /// The first failed flush, if the file system is wedged.
    pub fn wedged(&self) -> Option<&Arc<Error>> {
        self.wedged.get()
    }

    /// A file system that was wedged in the parent of a fork.
    fn inherited(dev: u64, cause: Arc<Error>, mounts: Mounts) -> Self {
        let of_the_parent = mounts.known.is_empty() && !mounts.unnumbered;
        let mounts = Mutex::new(Mounts { of_the_parent, ..mounts });
        let fs = Self { dev, mounts, ..Self::default() };
        let _ = fs.wedged.set(cause);
        fs
    }

    /// Wedges the file system after a failed flush. The first failure is the one reported. It
    /// enters the list for children first: a child forked after a caller saw the failure must know
    /// it.
    pub fn wedge(&self, cause: Arc<Error>) {
        if self.wedged().is_some() {
            return;
        }
        let mut mounts = self.mounts.lock();
        mounts.find_all(self.dev);
        self.pass_on(&cause, &mounts);
        drop(mounts);
        let is_first = self.wedged.set(cause).is_ok();
        // Flushes that ask later see the failure under the same lock.
        let (waiting, sleepers) = self.change(|domain| (domain.release_all(), self.rouse()));
        self.wake(futex::ANY);
        waiting.into_iter().for_each(|request| hand_back((Turn::Refused, request)));
        sleepers.into_iter().for_each(Waker::wake);
        if is_first {
            let cause = self.wedged().expect("just set");
            log::error!("dioxide: {cause}; every file on this file system fails from now on");
            observe::report(&Event::Wedge { error: cause });
        }
    }

    /// Records the failure for later children. The simulated file system (0) is in no other
    /// process.
    fn pass_on(&self, cause: &Arc<Error>, mounts: &Mounts) {
        if self.dev != 0 {
            WEDGES.add(Wedge { dev: self.dev, failed: Some((cause.clone(), mounts.clone())) });
        }
    }

    /// The journal, for a file about to be opened. `check` says why the files share no flushes;
    /// `make` makes the journal if no open file has one.
    pub fn journal(
        &self,
        check: impl FnOnce() -> Result<(), String>,
        make: impl FnOnce() -> Result<Arc<dyn Journal>, String>,
    ) -> Result<Arc<dyn Journal>, String> {
        let mut known = self.journal.lock();
        if let KnownJournal::Unknown = *known {
            *known = check().map_or_else(KnownJournal::Unfit, |()| KnownJournal::Fit(None));
        }
        match &mut *known {
            KnownJournal::Unfit(why) => Err(why.clone()),
            KnownJournal::Fit(held) => {
                if let Some(journal) = held.as_ref().and_then(Weak::upgrade) {
                    return Ok(journal);
                }
                let journal = make()?;
                *held = Some(Arc::downgrade(&journal));
                Ok(journal)
            }
            KnownJournal::Unknown => unreachable!("just checked"),
        }
    }

    /// Begins a flush of one file, or a write that carries one. Returns its number.
    fn begin_flush(&self) -> u64 {
        self.change(|domain| domain.begin())
    }

    /// Ends a flush. Returns the number of the last flush begun until then. With `ends_sharing`,
    /// files share no flushes any more.
    fn end_flush(&self, flush: u64, reached: Option<Reach>, ends_sharing: bool) -> u64 {
        let (ended, sleepers, released) = self.change(|domain| {
            let ended = domain.end(flush, reached);
            if ends_sharing {
                domain.end_sharing();
            }
            let sleepers = self.rouse();
            (ended, sleepers, domain.release())
        });
        // The next leader first: the device is busy before finished operations are woken.
        if let Some(ticket) = released.leader {
            self.wakeups.fetch_add(1, Ordering::Release);
            futex::wake_one(&self.wakeups, mask_of(ticket));
        }
        released.flushes.into_iter().rev().for_each(hand_back);
        self.wake(released.tickets.into_iter().map(mask_of).fold(0, BitOr::bitor));
        sleepers.into_iter().for_each(Waker::wake);
        ended
    }

    /// Lets the threads look again that wait for the end of a flush. Returns the wakers of the
    /// queues that do. With the domain held.
    fn rouse(&self) -> Vec<Waker> {
        self.flush_ended.notify_all();
        std::mem::take(&mut *self.sleepers.lock())
    }

    fn change<R>(&self, change: impl FnOnce(&mut Domain<Request<Token>>) -> R) -> R {
        let mut domain = self.domain.lock();
        let result = change(&mut domain);
        self.has_ended_sharing.store(domain.has_ended_sharing(), Ordering::Relaxed);
        self.flushes.store(domain.flushes(), Ordering::Relaxed);
        self.begun.store(domain.ledger().begun(), Ordering::Release);
        self.committed_to.store(domain.ledger().committed_to(), Ordering::Release);
        self.flushed_to.store(domain.ledger().flushed_to(), Ordering::Release);
        result
    }

    /// Decides about a flush that may be shared, as [`Domain::share`].
    fn share(
        &self,
        request: Request<Token>,
        needs: Reach,
        others: usize,
    ) -> Option<(Turn, Request<Token>)> {
        self.change(|domain| match self.wedged() {
            Some(_) => Some((Turn::Refused, request)),
            None => domain.share(request, needs, others),
        })
    }

    /// Waits for the turn of the calling thread's flush, which [`Domain::ask`] decides.
    fn turn(&self, needs: Reach, is_among_many: bool) -> Turn {
        let mut waiting = None;
        loop {
            let wakeups = self.wakeups.load(Ordering::Acquire);
            let (turn, flush) = self.change(|domain| {
                let flush = waiting.unwrap_or_else(|| domain.flush_of_thread(needs, is_among_many));
                let turn = match self.wedged() {
                    Some(_) => Some(Turn::Refused),
                    None => domain.ask(flush, waiting.is_some()),
                };
                (turn, flush)
            });
            if let Some(turn) = turn {
                return turn;
            }
            futex::wait(&self.wakeups, wakeups, mask_of(flush.ticket()));
            if flush.ticket() <= self.reached(needs) {
                return Turn::Covered;
            }
            waiting = Some(flush);
        }
    }

    /// The last shared flush that counts, with at least that reach.
    fn reached(&self, needs: Reach) -> u64 {
        let to = if needs == Reach::FileSystem { &self.committed_to } else { &self.flushed_to };
        to.load(Ordering::Acquire)
    }

    /// Wakes the threads that wait with a bit of the mask.
    fn wake(&self, mask: u32) {
        if mask != 0 {
            self.wakeups.fetch_add(1, Ordering::Release);
            futex::wake(&self.wakeups, mask);
        }
    }

    /// Waits until all flushes up to `ended` have ended, or one has failed.
    fn await_others(&self, ended: u64) {
        let mut domain = self.domain.lock();
        while self.wedged().is_none() && domain.ledger().any_out_up_to(ended) {
            domain = self.flush_ended.wait(domain);
        }
    }

    /// Whether all flushes up to `ended` have ended. If not, wakes `waker` when the next one ends.
    fn is_settled(&self, ended: u64, waker: &Waker) -> bool {
        let domain = self.domain.lock();
        let settled = self.wedged().is_some() || !domain.ledger().any_out_up_to(ended);
        if !settled {
            enlist(&mut self.sleepers.lock(), waker);
        }
        settled
    }

    /// Whether the file system may still be mounted as when it was wedged. A bare device counts as
    /// opened anew once no file uses it. A file system counts as mounted anew once all its known
    /// mounts are gone. A refused mount becomes known, and so do all others found with it.
    fn may_still_be_mounted(&self, through: Through) -> bool {
        let mut mounts = self.mounts.lock();
        let known_before = mounts.known.clone();
        mounts.known.retain(|mount| sys::probe::mount_exists(*mount));
        let still = mounts.unnumbered || mounts.of_the_parent || !mounts.known.is_empty();
        if still {
            mounts.record(through);
            mounts.find_all(self.dev);
        }
        if let Some(cause) = self.wedged().filter(|_| still && mounts.known != known_before) {
            self.pass_on(cause, &mounts);
        }
        still
    }
}

impl FileSystems {
    /// The file systems of several files.
    pub fn joined(all: &[Self]) -> Self {
        Self::of(all.iter().flat_map(|each| each.0.iter().cloned()))
    }

    /// Each file system once.
    fn of(all: impl IntoIterator<Item = Arc<FileSystemState>>) -> Self {
        let mut each = SmallVec::<[Arc<FileSystemState>; 1]>::new();
        for fs in all {
            if !each.iter().any(|known| Arc::ptr_eq(known, &fs)) {
                each.push(fs);
            }
        }
        Self(each)
    }

    /// The first failed flush, if one of them is wedged.
    pub fn wedged(&self) -> Option<&Arc<Error>> {
        self.0.iter().find_map(|fs| fs.wedged())
    }

    /// Wedges all of them: a flush failed on one, and none is trusted.
    pub fn wedge(&self, cause: Arc<Error>) {
        self.0.iter().for_each(|fs| fs.wedge(cause.clone()));
    }

    /// Performs a flush, or a write that carries one. Its success counts only if no concurrent
    /// flush on these file systems failed. `cause` makes the error of a [failed
    /// flush](os_error::is_failed_flush). No other error wedges the file system.
    pub fn flushing(
        &self,
        perform: impl FnOnce() -> std::io::Result<()>,
        cause: impl FnOnce(&std::io::Error) -> Arc<Error>,
    ) -> std::io::Result<()> {
        let flush = self.begin_flush();
        let result = perform();
        let ended = self.end_flush(flush, (&result, Reach::File), cause);
        self.awaited(ended, result)
    }

    /// The order in which the journal of a file's only file system commits changes, or the reason
    /// in words why it is not known. `find` finds out, once.
    pub fn order(&self, find: impl FnOnce() -> Result<Order, String>) -> Result<Order, String> {
        match &self.0[..] {
            [fs] => fs.order.get_or_init(find).clone(),
            _ => Err("its members have a journal each".into()),
        }
    }

    /// The journal of a file's only file system, as [`FileSystemState::journal`].
    pub fn journal(
        &self,
        check: impl FnOnce() -> Result<(), String>,
        make: impl FnOnce() -> Result<Arc<dyn Journal>, String>,
    ) -> Result<Arc<dyn Journal>, String> {
        match &self.0[..] {
            [fs] => fs.journal(check, make),
            _ => Err("its members have a journal each".into()),
        }
    }

    /// The number of the next flush to begin, on a file's only file system.
    pub fn ticket(&self) -> u64 {
        self.0.first().map_or(0, |fs| fs.begun.load(Ordering::Acquire)) + 1
    }

    /// The last flush that has committed for all files of a file's only file system.
    pub fn committed_to(&self) -> u64 {
        self.0.first().map_or(0, |fs| fs.committed_to.load(Ordering::Acquire))
    }

    /// Whether files share no flushes any more.
    pub fn has_ended_sharing(&self) -> bool {
        self.0.iter().any(|fs| fs.has_ended_sharing.load(Ordering::Relaxed))
    }

    /// Whether so many flushes are in flight or waiting that files share them, or so many threads
    /// are about to need one.
    pub fn is_busy(&self) -> bool {
        self.0.iter().any(|fs| {
            fs.flushes.load(Ordering::Relaxed) >= SHARERS_MIN
                || fs.durable.load(Ordering::Relaxed) as usize >= SHARERS_MIN
        })
    }

    /// Decides about a flush that may be shared and `needs` that reach. `others` on the same file
    /// system are about to ask as well. Without a turn it waits, and its owner gets it back with
    /// one.
    pub(in crate::engine) fn share(
        &self,
        request: Request<Token>,
        needs: Reach,
        others: usize,
    ) -> Option<(Turn, Request<Token>)> {
        match &self.0[..] {
            [fs] => fs.share(request, needs, others),
            // Each member of a striped volume has other sharers.
            _ => Some((Turn::Alone, request)),
        }
    }

    /// Waits for the turn of the calling thread's flush, which may be shared. Many threads need one
    /// now if `is_among_many`.
    pub fn turn(&self, needs: Reach, is_among_many: bool) -> Turn {
        match &self.0[..] {
            [fs] => fs.turn(needs, is_among_many),
            _ => Turn::Alone,
        }
    }

    /// Counts a thread in a durable positional write, or in `sync_data`, until the drop.
    pub fn count_durable(&self) -> CountedDurable<'_> {
        let fs = self.0.first().map(|fs| &**fs);
        let others = fs.map_or(0, |fs| fs.durable.fetch_add(1, Ordering::Relaxed) as usize);
        CountedDurable { fs, others }
    }

    /// Begins a flush of one file, or a write that carries one.
    pub fn begin_flush(&self) -> Flushing {
        Flushing(self.0.iter().map(|fs| fs.begin_flush()).collect())
    }

    /// Begins a shared flush. Returns it with the reach that it needs. None if another one has
    /// taken the lead.
    pub fn lead(&self, election: Election) -> Option<(Flushing, Reach)> {
        let [fs] = &self.0[..] else { unreachable!("members share no flushes") };
        let (flush, needs) = fs.change(|domain| domain.lead(election))?;
        Some((Flushing(smallvec![flush]), needs))
    }

    /// Ends a shared flush that committed some files only, so that it covers none. Files share no
    /// flushes any more if `ends_sharing`.
    pub fn end_in_vain(&self, flush: Flushing, ends_sharing: bool) {
        for (fs, flush) in self.0.iter().zip(flush.0) {
            fs.end_flush(flush, None, ends_sharing);
        }
    }

    /// Ends a flush. Its result is final once all concurrent flushes have ended.
    pub fn end_flush(
        &self,
        flush: Flushing,
        (result, reach): Reached<'_>,
        cause: impl FnOnce(&std::io::Error) -> Arc<Error>,
    ) -> EndedFlush {
        if let Err(error) = result
            && os_error::is_failed_flush(error)
        {
            self.wedge(cause(error));
        }
        let reached = result.is_ok().then_some(reach);
        let flushes = self.0.iter().zip(flush.0);
        EndedFlush(flushes.map(|(fs, flush)| fs.end_flush(flush, reached, false)).collect())
    }

    /// Waits until the result of a flush is final, and returns it.
    pub fn awaited(&self, ended: EndedFlush, result: std::io::Result<()>) -> std::io::Result<()> {
        if result.is_ok() {
            self.0.iter().zip(ended.0).for_each(|(fs, ended)| fs.await_others(ended));
        }
        self.believed(result)
    }

    /// Whether the result of a flush is final. If not, wakes `waker` when the next flush ends.
    pub fn is_settled(&self, ended: &EndedFlush, waker: &Waker) -> bool {
        self.wedged().is_some()
            || self.0.iter().zip(&ended.0).all(|(fs, ended)| fs.is_settled(*ended, waker))
    }

    /// The final result of a flush: EIO if a concurrent one failed.
    pub fn believed(&self, result: std::io::Result<()>) -> std::io::Result<()> {
        match self.wedged() {
            Some(_) if result.is_ok() => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            _ => result,
        }
    }
}

/// The bit of the threads that wait for this flush.
fn mask_of(ticket: u64) -> u32 {
    1 << (ticket % u64::from(u32::BITS))
}

impl CountedDurable<'_> {
    /// Whether there are so many such threads that they share flushes.
    pub fn is_among_many(&self) -> bool {
        self.others + 1 >= SHARERS_MIN
    }
}

impl Drop for CountedDurable<'_> {
    fn drop(&mut self) {
        if let Some(fs) = self.fs {
            fs.durable.fetch_sub(1, Ordering::Relaxed);
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
    /// A file system of its own.
    fn default() -> Self {
        Self::of([Arc::default()])
    }
}

impl From<Arc<FileSystemState>> for FileSystems {
    fn from(fs: Arc<FileSystemState>) -> Self {
        Self::of([fs])
    }
}

/// Gives a flush back to its owner, with its turn.
fn hand_back((turn, request): (Turn, Request<Token>)) {
    request.owner.clone().assign(Task::Flush(turn, request));
}

impl Mounts {
    fn record(&mut self, through: Through) {
        match through {
            Through::Device => {}
            Through::Unnumbered => self.unnumbered = true,
            Through::Mount(mount) if self.known.contains(&mount) => {}
            Through::Mount(mount) => self.known.push(mount),
        }
    }

    /// Records the mounts through which no file was opened. They keep the file system alive as
    /// well.
    fn find_all(&mut self, dev: u64) {
        // A bare device has no mounts, nor has the simulated file system (0).
        if dev != 0 && !self.known.is_empty() {
            sys::probe::mounts_of(dev)
                .into_iter()
                .for_each(|mount| self.record(Through::Mount(mount)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Operation};
    #[cfg(not(loom))]
    use std::sync::atomic::Ordering::SeqCst;

    /// No device has this number.
    const DEV: u64 = 0xFFFF_FFF0;

    fn failed_flush() -> Arc<Error> {
        let path = Arc::from(std::path::Path::new("log"));
        Arc::new(Error::new(Operation::Flush, &path, None, ErrorKind::Os(libc::EIO)))
    }

    /// Counts its wakes.
    #[cfg(not(loom))]
    #[derive(Default)]
    struct Counting(AtomicUsize);

    #[cfg(not(loom))]
    impl std::task::Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    /// The defect: while a flush hung, each ring of a queue's bell added the waker again.
    #[cfg(not(loom))]
    #[test]
    fn a_queue_that_rang_often_piled_up_wakers_of_a_flush() {
        let fs = FileSystemState::default();
        let hangs = fs.begin_flush();
        let bell = Arc::<Counting>::default();
        let waker = bell.clone().into();
        (0..100).for_each(|_| assert!(!fs.is_settled(hangs, &waker)));
        fs.end_flush(hangs, None, false);
        assert_eq!(bell.0.load(SeqCst), 1);
    }

    /// The defect: a failure that ended no flush, as of a write to a device that is gone, woke only
    /// flushes without a turn.
    #[cfg(not(loom))]
    #[test]
    fn a_wedge_left_flushes_waiting_for_one_that_hung() {
        let fs = Arc::new(FileSystemState::default());
        let hangs = fs.begin_flush();
        let woken = Arc::<Counting>::default();
        assert!(!fs.is_settled(hangs, &woken.clone().into()));
        let waiting = std::thread::spawn({
            let fs = fs.clone();
            move || fs.await_others(hangs)
        });
        fs.wedge(failed_flush());
        assert_eq!(woken.0.load(SeqCst), 1);
        waiting.join().expect("it returns");
    }

    /// A thread sleeps until a flush in flight ends. A failure elsewhere wakes it as well.
    #[cfg(not(loom))]
    #[test]
    fn a_wedge_wakes_a_thread_that_waits_for_its_turn() {
        let fs = Arc::new(FileSystemState::default());
        let Turn::Leads(election) = fs.turn(Reach::Device, true) else { panic!("it leads") };
        fs.change(|domain| domain.lead(election)).expect("none took the lead over");
        let waiting = std::thread::spawn({
            let fs = fs.clone();
            move || fs.turn(Reach::Device, true)
        });
        while fs.flushes.load(SeqCst) < 2 {
            std::thread::yield_now();
        }
        fs.wedge(failed_flush());
        assert_eq!(waiting.join().expect("it returns"), Turn::Refused);
    }

    /// The defect: a child of a fork waited for a lock that another thread of the parent had held.
    #[test]
    fn a_child_waited_for_the_lock_of_the_flushes() {
        let fs = FileSystems::default();
        let _held = fs.0[0].domain.lock();
        assert!(!fs.has_ended_sharing());
    }

    /// Whether a wedged file system is refused once no file of it is open.
    fn refused_after_a_wedge(through: Through) -> bool {
        let process = Process::new(0);
        let fs = process.file_system(DEV, through).expect("nothing failed yet");
        fs.wedge(failed_flush());
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
