//! The files that are known, and how each comes to be served by the engine and by the kernel again.
//!
//! A file opened O_DIRECT is *watched*: the kernel serves it, and the writes in flight are counted.
//! When a write that the engine is good for begins beside another one, the file is *taken over*,
//! under a write lease on the program's own open file description; from then on its descriptors are
//! served by the engine, which works on a copy of one of them. So the file has one opener. What the
//! engine cannot carry, and every other opener, *hands it back*: the engine drains and closes it,
//! which truncates it to its length, the lease ends, and the kernel serves it for as long as the
//! program has it open. So whatever goes wrong here, the answer is the kernel's.
//!
//! A keeper ([`keeper`]) does all of that, while the thread that asked for it waits. That thread
//! holds no lock, so that a keeper can always hand back a file whose next opener waits in the
//! kernel. And no file is opened with a lock held. Each job has a keeper of its own: a file that
//! does not answer delays no other one.
//!
//! Locks, in this order: a file's `changes`, for a change of how it is served; its slots, in the
//! order of their numbers; NUMBERS; KNOWN, and what a file has `taken` or for `descriptors`, for a
//! moment. No two files are changed at the same time by one thread. The engine's threads call libc
//! as well, and never wait for a change.

use crate::keeper;
use crate::lease::{self, Ended};
use crate::process::{Inside, is_elsewhere, is_inside, is_own};
use crate::say::say;
use crate::settings::Settings;
use crate::slots::{self, Changing, Slot, State};
use crate::summary::{self, Event};
use crate::surroundings::{self, Found};
use dioxide::ledger::FileSystem;
use dioxide::text::shown;
use dioxide::{Durability, OpenOptions};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::process::Resource;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};
use std::thread;
use std::time::{Duration, Instant};

/// The attribute that a file carries while it is grown ahead, and after a crash.
const MARKER: &str = "user.dioxide";

/// A file that has another opener is tried again so often, after so long.
const TRIES_MAX: u32 = 20;
const TRY_AGAIN_MS: u64 = 50;

/// How long whoever takes a file over waits for what the kernel has in flight.
const TRANSFER_PATIENCE: Duration = Duration::from_millis(500);
const TRANSFER_NAP: Duration = Duration::from_micros(50);

const OPENED_ELSEWHERE: &str = "it was opened elsewhere too";

const LEASE_BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";

/// Higher numbers would make the kernel's table of descriptors long.
const NUMBERS_HIGH: u32 = 16 << 10;

/// What a file is known by, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The number of the file system, or of the device itself.
    pub dev: u64,
    /// None of a device.
    pub inode: Option<u64>,
}

impl Key {
    /// Of a regular file or a block device.
    pub fn of(stat: &Stat) -> Option<Self> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Some(Self { dev: stat.st_dev, inode: Some(stat.st_ino) }),
            FileType::BlockDevice => Some(Self { dev: stat.st_rdev, inode: None }),
            _ => None,
        }
    }
}

/// What descriptors share that were made from one another.
#[derive(Debug)]
pub struct Description {
    /// The file.
    pub inode: Arc<Inode>,
    /// It may be read.
    pub reads: bool,
    /// It may be written.
    pub writes: bool,
    /// O_DSYNC, or O_SYNC.
    pub durable: bool,
    /// O_APPEND, which can change.
    pub append: AtomicBool,
    /// Held by whoever uses the position, which the kernel keeps with the program's descriptor: the
    /// end of the last append that moved it, and how often the file had been cut then.
    pub position: Mutex<(u64, u64)>,
}

/// A file or device, watched or taken.
#[derive(Debug)]
pub struct Inode {
    key: Key,
    /// What it lies on, and whether a flush failed there.
    pub below: Option<FileSystem>,
    /// Held for a change of how it is served.
    changes: Mutex<()>,
    /// The kernel is to serve it as long as it is open.
    kernel_only: AtomicBool,
    /// A keeper hands it back because its lease is broken.
    broken: AtomicBool,
    /// Transfers in flight while it is watched, and writes among them.
    transfers: AtomicUsize,
    writers: AtomicUsize,
    /// When it may be tried again to take it over, in milliseconds since the first file was known,
    /// and how often it was.
    try_again: AtomicU64,
    tries: AtomicU32,
    /// How often its length was set.
    pub cuts: AtomicU64,
    /// A length that the kernel has told, to be asked again by what would go beyond it.
    len_told: AtomicU64,
    /// The program's descriptors. Changed with KNOWN held, so that a file without any is not known.
    descriptors: Mutex<BTreeSet<c_int>>,
    taken: RwLock<Option<Arc<Taken>>>,
    /// The engine could not put the file away: to be told once.
    failed: AtomicBool,
}

/// A file as the engine has it.
#[derive(Debug)]
pub struct Taken {
    /// Stable on sync.
    pub plain: dioxide::File,
    /// Stable on return.
    pub durable: dioxide::File,
    /// Of a regular file.
    lease: Option<Lease>,
}

/// The lease under which a file is taken.
#[derive(Debug)]
struct Lease {
    /// A copy of the program's descriptor, by which the lease ends when the engine has closed the
    /// file.
    held: OwnedFd,
    /// The one description that the file has.
    description: Arc<Description>,
}

impl Taken {
    /// The handle for writes of this kind.
    pub fn handle(&self, durable: bool) -> &dioxide::File {
        if durable { &self.durable } else { &self.plain }
    }

    /// The length of the file, as the program knows it.
    pub fn len(&self) -> u64 {
        self.plain.len().expect("only readers beside other processes can fail")
    }

    /// Numbers that are not the program's.
    fn descriptors(&self) -> impl Iterator<Item = c_int> {
        let held = self.lease.as_ref().map(|lease| lease.held.as_raw_fd());
        held.into_iter().chain([self.plain.as_fd().as_raw_fd()])
    }
}

static KNOWN: RwLock<BTreeMap<Key, Arc<Inode>>> = RwLock::new(BTreeMap::new());
/// Held for reading while the engine has descriptors that their slots do not tell: until a
/// take-over has put them there, and from when they leave until they are closed. Held for writing
/// while many numbers are closed.
static NUMBERS: RwLock<()> = RwLock::new(());
/// How many are taken: most calls need not look further.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Counts how often a file went back to the kernel, which is when its lease has ended.
static HANDED_BACK: AtomicU64 = AtomicU64::new(0);
/// How many threads fork, or change what the process may do: meanwhile nothing is taken over.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// The process ends, and nothing is taken over any more.
static OVER: AtomicBool = AtomicBool::new(false);
/// Some file was known at some time: programs that never open one are not held up.
static SEEN: AtomicBool = AtomicBool::new(false);
static BEGINNING: OnceLock<Instant> = OnceLock::new();
static SETTINGS: OnceLock<Settings> = OnceLock::new();

fn known() -> RwLockReadGuard<'static, BTreeMap<Key, Arc<Inode>>> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner)
}

fn known_to_change() -> RwLockWriteGuard<'static, BTreeMap<Key, Arc<Inode>>> {
    KNOWN.write().unwrap_or_else(PoisonError::into_inner)
}

/// While somebody has it for reading, and be it for ever, nothing queues behind this.
fn try_numbers_to_change() -> Option<RwLockWriteGuard<'static, ()>> {
    match NUMBERS.try_write() {
        Ok(numbers) => Some(numbers),
        Err(TryLockError::Poisoned(numbers)) => Some(numbers.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Does `work` at a time when the slots tell all numbers of the engine.
pub fn while_numbers_stay<R>(work: impl Fn() -> R) -> R {
    loop {
        // A handler that opens a file would wait for its lease, with this held.
        let done = dioxide::with_signals_blocked(|| try_numbers_to_change().map(|_numbers| work()));
        match done {
            Some(done) => return done,
            None => thread::sleep(TRANSFER_NAP),
        }
    }
}

/// From now on files are taken.
pub fn begin(settings: Settings) {
    let _ = SETTINGS.set(settings);
}

/// What the environment asked for, if that was understood.
pub fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// Whether any file is served by the engine.
#[inline]
pub fn any_taken() -> bool {
    TAKEN.load(Ordering::Acquire) > 0 && !is_inside()
}

/// The same for a thread that ends the process: in a signal handler it may be inside.
pub fn any_taken_even_inside() -> bool {
    TAKEN.load(Ordering::Acquire) > 0
}

/// Whether any file is known at all.
#[inline]
pub fn any_known() -> bool {
    SEEN.load(Ordering::Relaxed) && !is_inside()
}

/// Asks the kernel for something that only the engine knows of a file that is taken, and lets
/// `correct` mend the answer: again, if a file went back to the kernel meanwhile.
pub fn ask(kernel: impl Fn() -> c_int, correct: impl Fn()) -> c_int {
    loop {
        let before = HANDED_BACK.load(Ordering::Acquire);
        let result = kernel();
        if result == 0 && any_taken() {
            let _inside = Inside::begin();
            correct();
        }
        if result != 0 || is_inside() || before == HANDED_BACK.load(Ordering::Acquire) {
            return result;
        }
    }
}

/// Borrows a number that the program says is open. If it is not, what is asked of it fails.
pub fn borrowed(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: it is only handed to the kernel, which refuses what is not open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Inode {
    fn new(key: Key, fd: c_int) -> Self {
        Self {
            key,
            below: FileSystem::of(borrowed(fd)).ok(),
            changes: Mutex::default(),
            kernel_only: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            transfers: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            try_again: AtomicU64::new(0),
            tries: AtomicU32::new(0),
            cuts: AtomicU64::new(0),
            len_told: AtomicU64::new(0),
            descriptors: Mutex::default(),
            taken: RwLock::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// Whether the kernel is to serve it as long as it is open.
    pub fn is_kernel_only(&self) -> bool {
        self.kernel_only.load(Ordering::Acquire)
    }

    /// It is a block device.
    pub fn is_device(&self) -> bool {
        self.key.inode.is_none()
    }

    /// Counts a transfer while the file is watched, until the count is dropped; and tells whether
    /// it is a write beside another one.
    pub fn count(self: &Arc<Self>, is_write: bool) -> (Counted, bool) {
        self.transfers.fetch_add(1, Ordering::SeqCst);
        let beside = is_write && self.writers.fetch_add(1, Ordering::Relaxed) > 0;
        (Counted { inode: self.clone(), is_write }, beside)
    }

    /// Whether the file, as the kernel knows it by `fd`, ends below `end`. If it was cut since the
    /// kernel was asked last, that may be missed.
    pub fn ends_below(&self, fd: c_int, end: u64) -> bool {
        if end <= self.len_told.load(Ordering::Relaxed) {
            return false;
        }
        let Ok(stat) = rustix::fs::fstat(borrowed(fd)) else { return false };
        self.len_told.store(stat.st_size as u64, Ordering::Relaxed);
        end > stat.st_size as u64
    }

    /// Whether putting the file away has failed since this was asked last.
    pub fn take_failure(&self) -> bool {
        self.failed.load(Ordering::Relaxed) && self.failed.swap(false, Ordering::Relaxed)
    }

    fn changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn descriptors(&self) -> MutexGuard<'_, BTreeSet<c_int>> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_taken(&self) -> bool {
        self.taken.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether it is taken, once a change that has begun is done.
    fn is_taken_or_about_to_be(&self) -> bool {
        let _changes = self.changes();
        self.is_taken()
    }

    /// Waits for the kernel's transfers, when nobody can begin one. Not for ever: a signal handler
    /// may have left one behind.
    fn kernel_is_done(&self) -> bool {
        let deadline = Instant::now() + TRANSFER_PATIENCE;
        while self.transfers.load(Ordering::SeqCst) > 0 {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(TRANSFER_NAP);
        }
        true
    }

    /// The kernel serves it for good. A refusal that was to be tried again becomes final, so the
    /// summary has it.
    fn leave_to_kernel(&self) {
        if !self.kernel_only.swap(true, Ordering::AcqRel) && self.tries.load(Ordering::Relaxed) > 0
        {
            summary::note(Event::LeftAlone(Refusal::OtherOpener.to_string()));
        }
    }

    /// Whether another opener waits for the lease, or has got it. It does not wait: a file that is
    /// just being put away has this locked.
    fn has_broken_lease(&self) -> bool {
        let Ok(taken) = self.taken.try_read() else { return false };
        let lease = taken.as_ref().and_then(|taken| taken.lease.as_ref());
        lease.is_some_and(|lease| lease::is_broken(lease.held.as_raw_fd()))
    }

    /// All its slots, when the engine has no transfer under way any more.
    fn drained(&self) -> Vec<Drained> {
        let numbers: Vec<_> = self.descriptors().iter().copied().collect();
        let drained: Vec<_> =
            numbers.into_iter().filter_map(|fd| Some((fd, slots::find(fd)?.write()))).collect();
        drained.iter().for_each(|(_, state)| state.hide_append());
        drained
    }
}

/// A descriptor, and its slot, which no transfer holds.
type Drained = (c_int, Changing);

/// A transfer in flight.
pub struct Counted {
    inode: Arc<Inode>,
    is_write: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.inode.writers.fetch_sub(usize::from(self.is_write), Ordering::Relaxed);
        self.inode.transfers.fetch_sub(1, Ordering::SeqCst);
    }
}

// --- coming to know a file -----------------------------------------------------------------------

/// The kernel has opened a file.
pub fn opened(fd: c_int, flags: c_int) {
    let Some(settings) = settings().filter(|_| !is_inside() && !OVER.load(Ordering::Relaxed))
    else {
        return;
    };
    let is_direct = flags & libc::O_DIRECT != 0 && flags & libc::O_PATH == 0;
    if slots::find(fd).is_some() {
        // Should the number have been closed where nobody is told.
        let _ = close(fd, || 0);
    }
    if !is_direct && !any_taken() {
        return;
    }
    let Ok(stat) = rustix::fs::fstat(borrowed(fd)) else { return };
    let Some(key) = Key::of(&stat) else { return };
    let _inside = Inside::begin();
    if !is_direct {
        return opened_beside(key);
    }
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let is_known = known().contains_key(&key);
    let is_wanted = is_known || is_wanted(settings, key, fd);
    if writes && (key.inode.is_some() || settings.devices) {
        summary::note(if is_wanted { Event::Seen } else { Event::Unmatched });
    }
    if !is_wanted {
        return;
    }
    SEEN.store(true, Ordering::Relaxed);
    let inode = known().get(&key).cloned().unwrap_or_else(|| Arc::new(Inode::new(key, fd)));
    let description = Description {
        inode: inode.clone(),
        reads: flags & libc::O_ACCMODE != libc::O_WRONLY,
        writes,
        durable: flags & libc::O_DSYNC != 0,
        append: AtomicBool::new(flags & libc::O_APPEND != 0),
        position: Mutex::default(),
    };
    register(fd, Arc::new(description));
    if writes && (settings.eager || has_marker(fd)) {
        take_over(&inode);
    }
}

/// A second descriptor of a device was opened, whose cache does not know what the engine writes.
/// That of a regular file waits in the kernel until the file was handed back.
fn opened_beside(key: Key) {
    let inode = known().get(&key).cloned();
    if let Some(inode) =
        inode.filter(|inode| !inode.is_kernel_only() && inode.is_taken_or_about_to_be())
    {
        hand_back(&inode, "it was opened without O_DIRECT as well");
    }
}

fn is_wanted(settings: &Settings, key: Key, fd: c_int) -> bool {
    (key.inode.is_some() || settings.devices)
        && (!settings.has_globs()
            || surroundings::path_of(fd).is_ok_and(|path| settings.wants(&path)))
}

fn has_marker(fd: c_int) -> bool {
    rustix::fs::fgetxattr(borrowed(fd), MARKER, &mut [0_u8; 0]).is_ok()
}

fn register(fd: c_int, description: Arc<Description>) {
    let Some(slot) = slots::make(fd) else { return };
    let inode = description.inode.clone();
    release(fd);
    // A handler that opens the file would wait for its lease, with these locks held.
    let is_known = dioxide::with_signals_blocked(|| {
        {
            let mut known = known_to_change();
            let same = known.entry(inode.key).or_insert_with(|| inode.clone());
            if !Arc::ptr_eq(same, &inode) {
                // The last descriptor was closed meanwhile, and the file opened anew.
                return false;
            }
            inode.descriptors().insert(fd);
        }
        let _changes = inode.changes();
        let state = match &*inode.taken.read().unwrap_or_else(PoisonError::into_inner) {
            Some(taken) => State::Taken(description, taken.clone()),
            None => State::Watched(description),
        };
        *slot.write() = state;
        true
    });
    if is_known && fd <= libc::STDERR_FILENO {
        // libc has streams of these numbers, which it does not ask us for.
        hand_back(&inode, "it is a standard stream");
    }
}

// --- to the engine and back ----------------------------------------------------------------------

/// Lets the engine serve the file, unless something speaks against it. The caller holds no lock.
pub fn take_over(inode: &Arc<Inode>) {
    if now_ms() >= inode.try_again.load(Ordering::Relaxed) && !inode.is_kernel_only() {
        let inode = inode.clone();
        keeper::run(move || {
            take_over_now(&inode);
            // The listener did not find the file while it was just being taken.
            if inode.has_broken_lease() {
                hand_back_now(&inode, OPENED_ELSEWHERE);
            }
        });
    }
}

fn now_ms() -> u64 {
    BEGINNING.get_or_init(Instant::now).elapsed().as_millis() as u64
}

fn take_over_now(inode: &Arc<Inode>) {
    // Before any lock: it may have to be started.
    let listener = if keeper::is_keeper() { keeper::listener() } else { None };
    let _changes = inode.changes();
    if inode.is_kernel_only() || inode.is_taken() || !is_own() {
        return;
    }
    let Some(listener) = listener else {
        // Without it the signal of the lease would reach a thread of the program.
        inode.kernel_only.store(true, Ordering::Release);
        return summary::note(Event::LeftAlone("there is no thread to be had".into()));
    };
    // Before the look: a thread that opens the file in another way from now on sees this, and waits
    // for `changes`.
    TAKEN.fetch_add(1, Ordering::SeqCst);
    // A fork that begins after this look waits for `changes`.
    let may = FORKS.load(Ordering::SeqCst) == 0 && !OVER.load(Ordering::SeqCst);
    let mut drained = if may { inode.drained() } else { Vec::new() };
    let numbers = NUMBERS.read().unwrap_or_else(PoisonError::into_inner);
    let opened = if may { open_engine(inode, &drained, listener) } else { Err(Refusal::Forks) };
    if opened.is_err() {
        TAKEN.fetch_sub(1, Ordering::Release);
    }
    match opened {
        Ok(taken) => {
            let taken = Arc::new(taken);
            taken.descriptors().for_each(slots::keep);
            drop(numbers);
            for (_, state) in &mut drained {
                if let State::Watched(description) = &**state {
                    **state = State::Taken(description.clone(), taken.clone());
                }
            }
            *inode.taken.write().unwrap_or_else(PoisonError::into_inner) = Some(taken);
            inode.tries.store(0, Ordering::Relaxed);
            summary::note(Event::TakenOver);
            drop(drained);
            keeper::guard();
        }
        Err(Refusal::Forks) => {}
        // Most often it is just being opened, or closed, by another thread or process.
        Err(Refusal::OtherOpener | Refusal::Busy)
            if inode.tries.fetch_add(1, Ordering::Relaxed) < TRIES_MAX =>
        {
            inode.try_again.store(now_ms() + TRY_AGAIN_MS, Ordering::Relaxed);
        }
        Err(why) => {
            inode.kernel_only.store(true, Ordering::Release);
            summary::note(Event::LeftAlone(why.to_string()));
        }
    }
}

/// Why a file is left to the kernel.
enum Refusal {
    OtherOpener,
    Busy,
    Forks,
    Other(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherOpener => "it is open elsewhere too, in this process or another one",
            Self::Busy => "a read or write of it did not end",
            Self::Forks => "the process forked",
            Self::Other(why) => why,
        })
    }
}

impl From<lease::Refusal> for Refusal {
    fn from(refusal: lease::Refusal) -> Self {
        match refusal {
            lease::Refusal::OtherOpener => Self::OtherOpener,
            lease::Refusal::Other(why) => Self::Other(why),
        }
    }
}

/// Under the lease, which is taken first: without it the file is not touched. A block device has
/// none, nor does it need one: its length does not change, and the engine leaves no marker on it.
/// So the engine may have a description of its own there, without the program's O_DSYNC.
fn open_engine(inode: &Inode, drained: &[Drained], listener: c_int) -> Result<Taken, Refusal> {
    let writing = drained.iter().find_map(|(fd, state)| {
        let description = state.description().filter(|description| description.writes)?;
        Some((*fd, description.clone()))
    });
    // libc may have closed the number by itself, and another file have it.
    let is_same =
        |fd| rustix::fs::fstat(borrowed(fd)).is_ok_and(|stat| Key::of(&stat) == Some(inode.key));
    let (fd, description) =
        writing.filter(|(fd, _)| is_same(*fd)).ok_or_else(|| failed("it is closed"))?;
    if inode.is_device() {
        is_alone(inode)?;
        let open = |options: &mut OpenOptions, _| {
            Ok(options.descriptor_min(high_numbers()).open(format!("/proc/self/fd/{fd}"))?)
        };
        return open_handles(fd, open).map(|[plain, durable]| Taken {
            plain,
            durable,
            lease: None,
        });
    }
    lease::take(fd, listener)?;
    let copy =
        || rustix::io::fcntl_dupfd_cloexec(borrowed(fd), high_numbers() as c_int).map_err(failed);
    let open = |options: &mut OpenOptions, name| Ok(options.open_descriptor(copy()?, name)?);
    let take = || {
        let [plain, durable] = open_handles(fd, open)?;
        Ok(Taken { plain, durable, lease: Some(Lease { held: copy()?, description }) })
    };
    let opened = is_alone(inode).and_then(|()| without_append(fd, take));
    if opened.is_err() {
        let _ = lease::release(fd);
    }
    opened
}

/// Clears O_APPEND for as long as the file is taken: with it the kernel writes at the end that it
/// knows, wherever the engine wants to write. The program still sees the flag. The kernel has no
/// write of the program in flight, which needs the flag.
fn without_append(
    fd: c_int,
    open: impl FnOnce() -> Result<Taken, Refusal>,
) -> Result<Taken, Refusal> {
    let failed = |errno: rustix::io::Errno| failed(format!("O_APPEND cannot be cleared: {errno}"));
    let fd = borrowed(fd);
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    if !flags.contains(OFlags::APPEND) {
        return open();
    }
    rustix::fs::fcntl_setfl(fd, flags - OFlags::APPEND).map_err(failed)?;
    let opened = open();
    if opened.is_err() {
        // Setting it again is never refused.
        let _ = rustix::fs::fcntl_setfl(fd, flags);
    }
    opened
}

/// The kernel has no transfer in flight, and this process reaches the file in no way that is not
/// seen.
fn is_alone(inode: &Inode) -> Result<(), Refusal> {
    if !inode.kernel_is_done() {
        return Err(Refusal::Busy);
    }
    let descriptors = inode.descriptors().clone();
    // Asked for descriptors of this file only: the slots of another file may be locked for as long
    // as that is stuck.
    let is_known = |fd: c_int| descriptors.contains(&fd) || is_engines(fd);
    match surroundings::look(inode.key, is_known).map_err(failed)? {
        Some(Found::Descriptor) => Err(Refusal::OtherOpener),
        Some(Found::Other(why)) => Err(failed(why)),
        None => Ok(()),
    }
}

/// Makes the engine's handles, plain and durable.
fn open_handles(
    fd: c_int,
    open: impl FnOnce(&mut OpenOptions, PathBuf) -> Result<dioxide::File, Refusal>,
) -> Result<[dioxide::File; 2], Refusal> {
    let mut options = OpenOptions::new();
    options.write(true);
    if let Some(cap) = settings().and_then(|settings| settings.growth_cap) {
        options.growth_cap(cap);
    }
    let plain = open(&mut options, surroundings::path_of(fd).map_err(failed)?)?;
    let durable = plain.try_clone_as(Durability::EveryWrite)?;
    Ok([plain, durable])
}

impl From<dioxide::Error> for Refusal {
    fn from(error: dioxide::Error) -> Self {
        failed(error.kind())
    }
}

fn failed(why: impl fmt::Display) -> Refusal {
    Refusal::Other(why.to_string())
}

/// Where the engine's descriptors begin, so that the program gets the lowest numbers.
pub fn high_numbers() -> u32 {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    u32::try_from(limit / 2).unwrap_or(NUMBERS_HIGH).min(NUMBERS_HIGH)
}

/// Lets the kernel serve the file from now on, which is truncated to its length first. The caller
/// holds no lock.
pub fn hand_back(inode: &Arc<Inode>, why: &str) {
    let _inside = Inside::begin();
    {
        let _changes = inode.changes();
        if !inode.is_taken() {
            return inode.leave_to_kernel();
        }
    }
    let (inode, why) = (inode.clone(), why.to_owned());
    keeper::run(move || hand_back_now(&inode, &why));
}

fn hand_back_now(inode: &Inode, why: &str) {
    let _changes = inode.changes();
    if !inode.is_taken() {
        return inode.leave_to_kernel();
    }
    let mut drained = inode.drained();
    // Only now: a close of a descriptor of a file that the kernel has for good does not wait for a
    // change.
    inode.kernel_only.store(true, Ordering::Release);
    for (_, state) in &mut drained {
        if let State::Taken(description, _) = &**state {
            **state = State::Watched(description.clone());
        }
    }
    if put_away(inode) {
        summary::note(Event::HandedBack(why.into()));
    }
}

/// Closes the engine's file, which is not in use any more. Returns whether there was one. Under
/// `changes`.
///
/// The order matters to an opener that waits: the file is exact and without a marker, and has its
/// flags, before the lease ends. If the engine cannot put it away, the lease ends nevertheless.
fn put_away(inode: &Inode) -> bool {
    // The child of a fork that the library did not see has a copy. The file, its flags and its
    // lease are the parent's.
    if !is_own() {
        return false;
    }
    // Held until it is truncated: no thread asks for its length meanwhile.
    let mut taken = inode.taken.write().unwrap_or_else(PoisonError::into_inner);
    let Some(engine) = taken.take() else { return false };
    let _numbers = NUMBERS.read().unwrap_or_else(PoisonError::into_inner);
    for slot in engine.descriptors().filter_map(slots::find) {
        *slot.write() = State::Empty;
    }
    let Taken { plain, durable, lease } =
        Arc::into_inner(engine).expect("all slots have let go of it");
    summary::add(&plain.stats());
    let results = [durable.close(), plain.close()];
    if let Some(Lease { held, description }) = lease {
        if description.append.load(Ordering::Relaxed)
            && let Ok(flags) = rustix::fs::fcntl_getfl(&held)
        {
            let _ = rustix::fs::fcntl_setfl(&held, flags | OFlags::APPEND);
        }
        let wrong = match lease::release(held.as_raw_fd()) {
            Ended::Now => None,
            Ended::Earlier => Some(
                "another process has opened it before it was handed back, which took longer than",
            ),
            Ended::NotYet => Some(
                "the process has lost the right to end its lease, so other openers wait as long as",
            ),
        };
        if let Some(wrong) = wrong {
            let name = surroundings::path_of(held.as_raw_fd()).unwrap_or_default();
            say(&format!("{}: {wrong} {LEASE_BREAK_TIME}", shown(&name)));
        }
    }
    // In this order: who finds no file taken any more asks the kernel again.
    HANDED_BACK.fetch_add(1, Ordering::Release);
    TAKEN.fetch_sub(1, Ordering::Release);
    for error in results.into_iter().filter_map(Result::err) {
        inode.failed.store(true, Ordering::Relaxed);
        say(&error.to_string());
    }
    true
}

/// Has each file handed back that another opener waits for, or has open after the lease-break time.
/// It does not wait for that: one file may be stuck, while the lease-break time of another one
/// runs.
pub fn hand_back_broken() {
    if !any_taken() {
        return;
    }
    let _inside = Inside::begin();
    let inodes: Vec<_> = known().values().cloned().collect();
    for inode in inodes {
        // Once it is handed back, the kernel serves it for good. So this is set once.
        if inode.has_broken_lease() && !inode.broken.swap(true, Ordering::Relaxed) {
            keeper::run_apart(move || {
                let _inside = Inside::begin();
                hand_back_now(&inode, OPENED_ELSEWHERE);
            });
        }
    }
}

/// How often a file went back to the kernel.
pub fn handed_back() -> u64 {
    HANDED_BACK.load(Ordering::Acquire)
}

/// Lets the kernel serve every file for which `concerns` holds, which is asked with a descriptor of
/// it. A file whose last descriptor is just being closed may still be grown, and the descriptor
/// open: so it is waited for.
pub fn hand_back_those(why: &str, concerns: impl Fn(c_int) -> bool) {
    let _inside = Inside::begin();
    let inodes: Vec<_> = known().values().cloned().collect();
    for inode in inodes {
        let descriptors = inode.descriptors().clone();
        if descriptors.is_empty() || descriptors.into_iter().any(&concerns) {
            hand_back(&inode, why);
        }
    }
}

/// The process ends: the kernel serves all files, and those to come.
pub fn end() {
    OVER.store(true, Ordering::SeqCst);
    hand_back_those("the process ended", |_| true);
}

/// Lets the kernel serve whatever the descriptor belongs to, if it is known.
pub fn hand_back_descriptor(fd: c_int, why: &str) {
    if let Some(inode) = inode_of(fd) {
        hand_back(&inode, why);
    }
}

/// Lets the kernel serve the file of a path, if it is taken. Returns whether it is known.
pub fn hand_back_path(key: Option<Key>, why: &str) -> bool {
    let _inside = Inside::begin();
    let inode = key.and_then(|key| known().get(&key).cloned());
    let is_known = inode.is_some();
    if let Some(inode) = inode.filter(|inode| inode.is_taken_or_about_to_be()) {
        hand_back(&inode, why);
    }
    is_known
}

/// The file of a descriptor of the program, if it is known and may still be taken, or is.
pub fn inode_of(fd: c_int) -> Option<Arc<Inode>> {
    let slot = slots::find(fd).filter(|_| !is_inside() && !is_elsewhere())?;
    let _inside = Inside::begin();
    let state = slot.read();
    let inode = &state.description()?.inode;
    (!inode.is_kernel_only()).then(|| inode.clone())
}

/// Each file system of a file that is known, and a descriptor there.
pub fn one_of_each_file_system() -> Vec<(c_int, FileSystem)> {
    let _inside = Inside::begin();
    let mut each: Vec<(c_int, FileSystem)> = Vec::new();
    for inode in known().values().filter(|inode| !inode.is_device()) {
        if let (Some(fs), Some(fd)) = (&inode.below, inode.descriptors().first())
            && !each.iter().any(|(_, known)| known == fs)
        {
            each.push((*fd, fs.clone()));
        }
    }
    each
}

/// The length of the file, if it is taken: the kernel knows that of what was grown.
pub fn len_of(key: Key) -> Option<u64> {
    let inode = known().get(&key).cloned()?;
    let taken = inode.taken.read().unwrap_or_else(PoisonError::into_inner);
    taken.as_ref().filter(|_| !inode.is_device()).map(|taken| taken.len())
}

// --- descriptors that come and go ----------------------------------------------------------------

/// Whether the number is one that the engine uses, which is closed to the program.
pub fn is_engines(fd: c_int) -> bool {
    slots::find(fd).is_some_and(Slot::is_engines)
}

/// Closes a descriptor that is known: the last one of a file that is taken puts it away first.
/// `close` is the kernel's. Returns what the program is told.
pub fn close(fd: c_int, close: impl FnOnce() -> c_int) -> Result<c_int, c_int> {
    let _inside = Inside::begin();
    let failed = release(fd);
    match close() {
        0 if failed => Err(libc::EIO),
        result => Ok(result),
    }
}

/// Forgets a descriptor. Returns whether its file could not be put away.
fn release(fd: c_int) -> bool {
    let Some(slot) = slots::find(fd) else { return false };
    let _inside = Inside::begin();
    // A handler that opens the file would wait for its lease, with these locks held.
    let known = dioxide::with_signals_blocked(|| {
        let inode = {
            let mut state = slot.write();
            let inode = state.description().map(|description| description.inode.clone());
            // Under the lock: its share of what the engine has goes before a keeper has drained the
            // slot.
            *state = State::Empty;
            inode?
        };
        let is_last = {
            let mut descriptors = inode.descriptors();
            descriptors.remove(&fd);
            descriptors.is_empty()
        };
        Some((inode, is_last))
    });
    let Some((inode, is_last)) = known else { return false };
    if is_last {
        if inode.is_taken_or_about_to_be() {
            let inode = inode.clone();
            keeper::run(move || {
                let _changes = inode.changes();
                // A device was opened again meanwhile, or another thread had copied the descriptor:
                // it is in use.
                if inode.descriptors().is_empty() {
                    put_away(&inode);
                }
            });
        } else {
            inode.leave_to_kernel();
        }
        dioxide::with_signals_blocked(|| {
            let mut known = known_to_change();
            let is_same = known.get(&inode.key).is_some_and(|known| Arc::ptr_eq(known, &inode));
            if is_same && inode.descriptors().is_empty() {
                known.remove(&inode.key);
            }
        });
    }
    inode.take_failure()
}

/// Makes a descriptor from another one by `make`, which is the kernel's and returns its number, and
/// knows it as well. What had the number `over` before is closed by that.
pub fn duplicate(from: c_int, over: Option<c_int>, make: impl FnOnce() -> c_int) -> c_int {
    let _inside = Inside::begin();
    if let Some(over) = over {
        release(over);
    }
    let made = make();
    if made >= 0 && made != from {
        let description = || slots::find(from)?.read().description().cloned();
        // As in `register`.
        match dioxide::with_signals_blocked(description) {
            Some(description) => register(made, description),
            None => drop(release(made)),
        }
    }
    made
}

/// The flags of a description are changed by `change`, which is the kernel's.
pub fn set_flags(fd: c_int, flags: c_int, change: impl FnOnce(c_int) -> c_int) -> c_int {
    let Some(inode) = inode_of(fd) else { return change(flags) };
    if flags & libc::O_DIRECT == 0 {
        hand_back(&inode, "O_DIRECT was cleared");
    }
    let _inside = Inside::begin();
    // A handler that opens the file would wait for its lease, with these locks held.
    dioxide::with_signals_blocked(|| {
        let _changes = inode.changes();
        // All that were made from one another have the flags.
        let drained = inode.drained();
        let state = drained.iter().find(|(number, _)| *number == fd).map(|(_, state)| &**state);
        // The engine's writes must not become appends of the kernel's.
        let is_cleared = matches!(state, Some(State::Taken(_, taken)) if taken.lease.is_some());
        let result = change(if is_cleared { flags & !libc::O_APPEND } else { flags });
        if let (0, Some(description)) = (result, state.and_then(State::description)) {
            description.append.store(flags & libc::O_APPEND != 0, Ordering::Relaxed);
        }
        result
    })
}

/// The flags of a description, which `ask` gets from the kernel.
pub fn flags_of(fd: c_int, ask: impl FnOnce() -> c_int) -> c_int {
    let Some(slot) = slots::find(fd) else { return ask() };
    let _inside = Inside::begin();
    let state = slot.read();
    let flags = ask();
    match &*state {
        State::Taken(description, taken)
            if flags >= 0
                && taken.lease.is_some()
                && description.append.load(Ordering::Relaxed) =>
        {
            flags | libc::O_APPEND
        }
        _ => flags,
    }
}

// --- processes -----------------------------------------------------------------------------------

/// While it lives, no file is taken over.
pub struct Still(());

impl Still {
    pub fn begin() -> Self {
        FORKS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        FORKS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is held while the process divides: all that the child might wait for.
pub struct Divided {
    _still: Still,
    _numbers: RwLockWriteGuard<'static, ()>,
    known: RwLockWriteGuard<'static, BTreeMap<Key, Arc<Inode>>>,
    summary: summary::Held,
    _inside: Inside,
}

/// Before a fork: the child has copies of all descriptors, so the kernel serves all files from now
/// on, in both. Nothing is taken over until the process has divided.
pub fn before_fork() -> Divided {
    let (inside, still) = (Inside::begin(), Still::begin());
    hand_back_those("the process forked", |_| true);
    let numbers = loop {
        match try_numbers_to_change() {
            Some(numbers) => break numbers,
            None => thread::sleep(TRANSFER_NAP),
        }
    };
    let (known, summary) = (known_to_change(), summary::hold());
    Divided { _still: still, _numbers: numbers, known, summary, _inside: inside }
}

/// In the child, which knows nothing. If nothing is held, the fork was made where nothing could be.
pub fn in_child(divided: Option<Divided>, takes_files: bool) {
    slots::forget_all();
    TAKEN.store(0, Ordering::Relaxed);
    OVER.store(!takes_files, Ordering::Relaxed);
    if let Some(mut divided) = divided {
        // Other threads of the parent may have forked as well.
        FORKS.store(1, Ordering::Relaxed);
        // What they hold is the parent's.
        std::mem::forget(std::mem::take(&mut *divided.known));
        divided.summary.forget();
    }
}
