//! Moves a file from the kernel to the engine.

use super::fork::{may_take_over, not_in_exec};
use super::hand_back::{OTHER_OPENER, hand_back_if_broken};
use super::inode::{Drained, Inode, Key, Lease, Taken, borrowed};
use super::registry::{NAP, count_taken, is_engines, numbers, settings, uncount_taken};
use crate::keeper;
use crate::lease;
use crate::process::{is_own, pause};
use crate::slots::{self, State};
use crate::summary::{self, Event};
use crate::surroundings::{self, Found};
use dioxide::{Durability, OpenOptions};
use rustix::fs::OFlags;
use rustix::process::Resource;
use std::ffi::c_int;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Retries for a file with another opener, and the pause between two of them.
const TRIES_MAX: u32 = 20;
const TRY_AGAIN_MS: u64 = 50;
/// Attempts to recover a file at its open, with the same pause.
const RECOVERY_TRIES: u32 = 6;

/// How long a take-over waits for the kernel's transfers in flight.
const TRANSFER_PATIENCE: Duration = Duration::from_millis(500);

/// Higher numbers would make the kernel's table of descriptors long.
const NUMBERS_HIGH: u32 = 16 << 10;

static BEGINNING: OnceLock<Instant> = OnceLock::new();

/// Lets the engine serve the file, unless something prevents it. The caller holds no lock.
pub fn take_over(inode: &Arc<Inode>) {
    not_in_exec();
    if now_ms() >= inode.try_again.load(Ordering::Relaxed) && !inode.is_kernel_only() {
        take_over_by_a_keeper(inode);
    }
}

/// The same for a file with a marker. If another opener or a fork prevents it, tries again a few
/// times. Returns the reason of a refusal.
pub(super) fn recover_patiently(inode: &Arc<Inode>) -> Option<String> {
    let mut refusal = None;
    not_in_exec();
    for _ in 0..RECOVERY_TRIES {
        if inode.is_kernel_only() {
            break;
        }
        refusal = Some(take_over_by_a_keeper(inode)?);
        pause(Duration::from_millis(TRY_AGAIN_MS));
    }
    refusal
}

/// Returns the reason of a refusal.
fn take_over_by_a_keeper(inode: &Arc<Inode>) -> Option<String> {
    let inode = inode.clone();
    keeper::run(move || {
        let refusal = take_over_now(&inode);
        // The listener does not see a file during its take-over.
        hand_back_if_broken(&inode);
        refusal
    })
}

fn now_ms() -> u64 {
    BEGINNING.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// Returns the reason of a refusal.
fn take_over_now(inode: &Arc<Inode>) -> Option<String> {
    // Before any lock: the listener may have to start.
    let listener = if keeper::is_keeper() { keeper::listener() } else { None };
    let _changes = inode.changes();
    if inode.is_kernel_only() || inode.is_taken() || !is_own() {
        return None;
    }
    let Some(listener) = listener else {
        // Without it a thread of the program would get the signal of the lease.
        inode.kernel_only.store(true, Ordering::Release);
        let why = "no thread could be started";
        summary::note(Event::LeftAlone(why.into()));
        return Some(why.into());
    };
    // Before the look: a thread that later opens the file in another way sees this, and waits for
    // `changes`.
    count_taken();
    // A fork that begins after this look waits for `changes`.
    let may = may_take_over();
    let mut drained = if may { inode.drained() } else { Vec::new() };
    let numbers = numbers();
    let opened = if may { open_engine(inode, &drained, listener) } else { Err(NotTaken::Forks) };
    if opened.is_err() {
        uncount_taken();
    }
    let why = match opened {
        Ok(taken) => {
            let taken = Arc::new(taken);
            taken.descriptors().for_each(slots::keep);
            drop(numbers);
            for (_, state) in &mut drained {
                if let State::Watched(description) = &**state {
                    let description = description.clone();
                    state.set(State::Taken(description, taken.clone()));
                }
            }
            *inode.taken.write().unwrap_or_else(PoisonError::into_inner) = Some(taken);
            inode.tries.store(0, Ordering::Relaxed);
            summary::note(Event::TakenOver);
            drop(drained);
            keeper::guard();
            return None;
        }
        Err(why) => why,
    };
    let text = why.to_string();
    let try_later = || inode.try_again.store(now_ms() + TRY_AGAIN_MS, Ordering::Relaxed);
    match why {
        NotTaken::Forks => try_later(),
        // Most often another thread or process is opening or closing it.
        NotTaken::OtherOpener | NotTaken::Busy
            if inode.tries.fetch_add(1, Ordering::Relaxed) < TRIES_MAX =>
        {
            try_later();
        }
        _ => {
            inode.kernel_only.store(true, Ordering::Release);
            summary::note(Event::LeftAlone(text.clone()));
        }
    }
    Some(text)
}

/// Why a file is left to the kernel.
enum NotTaken {
    OtherOpener,
    Busy,
    Forks,
    Other(String),
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherOpener => OTHER_OPENER,
            Self::Busy => "a read or write of it did not end",
            Self::Forks => "the process forked",
            Self::Other(why) => why,
        })
    }
}

impl From<lease::Refusal> for NotTaken {
    fn from(refusal: lease::Refusal) -> Self {
        match refusal {
            lease::Refusal::OtherOpener => Self::OtherOpener,
            lease::Refusal::Other(why) => Self::Other(why),
        }
    }
}

impl From<dioxide::Error> for NotTaken {
    fn from(error: dioxide::Error) -> Self {
        failed(error.kind())
    }
}

fn failed(why: impl fmt::Display) -> NotTaken {
    NotTaken::Other(why.to_string())
}

/// Takes the lease first, and then opens the engine's file. Without a lease the library does not
/// touch a regular file.
///
/// A block device has no lease and needs none: its length does not change, and it has no marker. So
/// the engine opens a description of its own there, without the program's O_DSYNC.
fn open_engine(inode: &Inode, drained: &[Drained], listener: c_int) -> Result<Taken, NotTaken> {
    let writing = drained.iter().find_map(|(fd, state)| {
        let description = state.description().filter(|description| description.writes)?;
        Some((*fd, description.clone()))
    });
    // libc may have closed the number itself, and the number may be another file by now.
    let is_same =
        |fd| rustix::fs::fstat(borrowed(fd)).is_ok_and(|stat| Key::of(&stat) == Some(inode.key));
    let (fd, description) =
        writing.filter(|(fd, _)| is_same(*fd)).ok_or_else(|| failed("it is closed"))?;
    if inode.is_device() {
        is_alone(inode)?;
        let open =
            |options: &mut OpenOptions, _| Ok(options.open(format!("/proc/thread-self/fd/{fd}"))?);
        return open_handles(fd, open).map(|handles| Taken::of(handles, None));
    }
    lease::take(fd, listener)?;
    let copy =
        || rustix::io::fcntl_dupfd_cloexec(borrowed(fd), high_numbers() as c_int).map_err(failed);
    let open = |options: &mut OpenOptions, name| Ok(options.open_descriptor(copy()?, name)?);
    let take = || {
        let handles = open_handles(fd, open)?;
        Ok(Taken::of(handles, Some(Lease { held: copy()?, description })))
    };
    let opened = is_alone(inode).and_then(|()| without_append(fd, take));
    if opened.is_err() {
        let _ = lease::release(fd);
    }
    opened
}

/// Clears O_APPEND while the file is taken. With it the kernel would write at its own EOF, at any
/// offset that the engine asks for. The program still sees the flag. No write of the program is in
/// flight in the kernel, which would need the flag.
fn without_append(
    fd: c_int,
    open: impl FnOnce() -> Result<Taken, NotTaken>,
) -> Result<Taken, NotTaken> {
    let failed = |errno: rustix::io::Errno| failed(format!("O_APPEND cannot be cleared: {errno}"));
    let fd = borrowed(fd);
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    if !flags.contains(OFlags::APPEND) {
        return open();
    }
    rustix::fs::fcntl_setfl(fd, flags - OFlags::APPEND).map_err(failed)?;
    let opened = open();
    if opened.is_err() {
        // The kernel never refuses to set it again.
        let _ = rustix::fs::fcntl_setfl(fd, flags);
    }
    opened
}

/// Fails if the kernel has a transfer in flight, or if this process has access to the file that the
/// library does not see.
fn is_alone(inode: &Inode) -> Result<(), NotTaken> {
    if !kernel_is_done(inode) {
        return Err(NotTaken::Busy);
    }
    let descriptors = inode.descriptors().clone();
    // No slot lock: a file that does not answer keeps its slots locked.
    let is_known = |fd: c_int| descriptors.contains(&fd) || is_engines(fd);
    match surroundings::look(inode.key, is_known).map_err(failed)? {
        Some(Found::Descriptor) => Err(NotTaken::OtherOpener),
        Some(Found::Other(why)) => Err(failed(why)),
        None => Ok(()),
    }
}

/// Waits for the kernel's transfers, while no thread can begin one. The wait has a limit, because a
/// signal handler may have left a transfer for ever.
fn kernel_is_done(inode: &Inode) -> bool {
    let deadline = Instant::now() + TRANSFER_PATIENCE;
    while inode.transfers.load(Ordering::SeqCst) > 0 {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(NAP);
    }
    true
}

/// Opens the engine's handles, plain and durable.
fn open_handles(
    fd: c_int,
    open: impl FnOnce(&mut OpenOptions, PathBuf) -> Result<dioxide::File, NotTaken>,
) -> Result<[dioxide::File; 2], NotTaken> {
    let mut options = OpenOptions::new();
    options.write(true).descriptor_min(high_numbers());
    if let Some(cap) = settings().and_then(|settings| settings.growth_cap) {
        options.growth_cap(cap);
    }
    let plain = open(&mut options, surroundings::path_of(fd).map_err(failed)?)?;
    let durable = plain.try_clone_as(Durability::EveryWrite)?;
    Ok([plain, durable])
}

/// The lowest descriptor number of the engine. The program gets the lower ones.
fn high_numbers() -> u32 {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    u32::try_from(limit / 2).unwrap_or(NUMBERS_HIGH).min(NUMBERS_HIGH)
}
