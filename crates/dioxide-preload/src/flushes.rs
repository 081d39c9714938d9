//! The kernel's flushes: syncs and durable writes that the engine does not perform.
//!
//! A failed flush may lose cached data of any file of the file system, and the kernel reports it
//! once. So the flushes of known files are in the engine's ledger ([`dioxide::ledger`]). A failure
//! wedges the file system. A success counts only if no concurrent flush failed. On a wedged file
//! system the library refuses every sync, every durable write, and every write of a known or
//! O_DIRECT file. That holds for the engine's files and for the kernel's.
//!
//! Other descriptors cost nothing until a wedge. The library records only their failures, and only
//! in a program that has opened files O_DIRECT.

use crate::files::{self, Description, borrowed};
use crate::process::{Inside, is_elsewhere, is_inside, uncancelled};
use crate::set_errno;
use crate::slots;
use crate::surroundings;
use dioxide::ledger::{self, FileSystem, ProgramFlush};
use libc::c_int;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// The effect of a kernel call on the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It acknowledges no write.
    None,
    /// It writes, with these RWF flags.
    Write(c_int),
    /// It makes written data durable.
    Flush,
    /// It flushes later, or flushes no device. Its failure puts no other file in doubt.
    FlushUnseen,
}

/// RWF flags of a write that is durable on return.
pub const RWF_DURABLE: c_int = libc::RWF_DSYNC | libc::RWF_SYNC;

/// How the kernel performs a call.
pub enum How {
    Plainly,
    /// Not at all: a flush has failed before.
    Refused,
    /// It flushes a known file.
    InTheLedger(c_int, FileSystem, ProgramFlush),
    /// It flushes another file.
    WithFailureNoted(c_int),
}

impl How {
    /// For a descriptor of a known file.
    pub fn of_known(fd: c_int, description: &Description, effect: Effect) -> Self {
        let Some(fs) = description.inode.below.as_ref().filter(|_| effect != Effect::None) else {
            return Self::Plainly;
        };
        if ledger::any_was_wedged() && fs.is_wedged() {
            return Self::Refused;
        }
        let flushes = match effect {
            Effect::Write(flags) => {
                description.writes && (description.durable || flags & RWF_DURABLE != 0)
            }
            Effect::Flush => true,
            Effect::None | Effect::FlushUnseen => false,
        };
        let call = if effect == Effect::Flush { ProgramFlush::Sync } else { ProgramFlush::Write };
        if flushes { Self::InTheLedger(fd, fs.clone(), call) } else { Self::Plainly }
    }

    /// For any other descriptor.
    #[inline]
    pub fn of_unknown(fd: c_int, effect: Effect) -> Self {
        match effect {
            Effect::None => Self::Plainly,
            // The kernel refuses a negative number.
            _ if fd < 0 => Self::Plainly,
            _ if ledger::any_was_wedged() => Self::beside_a_wedge(fd, effect),
            Effect::Flush if files::any_known() => Self::WithFailureNoted(fd),
            _ => Self::Plainly,
        }
    }

    /// Looks at the kernel's flags, because a child of a fork has no slots of its parent's
    /// descriptors.
    #[cold]
    fn beside_a_wedge(fd: c_int, effect: Effect) -> Self {
        if is_inside() || is_elsewhere() {
            return Self::Plainly;
        }
        let is_concerned = match effect {
            Effect::Write(flags) => {
                // SAFETY: F_GETFL changes nothing, and returns -1 for a number that is not open.
                let of_file = unsafe { libc::fcntl(fd, libc::F_GETFL) };
                of_file >= 0
                    && (flags & RWF_DURABLE != 0 || of_file & (libc::O_DIRECT | libc::O_DSYNC) != 0)
            }
            _ => true,
        };
        let _inside = Inside::begin();
        let fs = if is_concerned { FileSystem::of(borrowed(fd)).ok() } else { None };
        match fs {
            Some(fs) if fs.is_wedged() => Self::Refused,
            _ if effect == Effect::Flush => Self::WithFailureNoted(fd),
            _ => Self::Plainly,
        }
    }

    /// For any descriptor. The caller holds no lock.
    pub fn of(fd: c_int, effect: Effect) -> Self {
        let Some(slot) = slots::find(fd) else { return Self::of_unknown(fd, effect) };
        if is_inside() || is_elsewhere() {
            return Self::Plainly;
        }
        {
            let _inside = Inside::begin();
            let state = slot.read();
            if let Some(description) = state.description() {
                return Self::of_known(fd, description, effect);
            }
        }
        // After the drop of `_inside`: inside, the library ignores a call of the program.
        Self::of_unknown(fd, effect)
    }

    /// Performs the call. No cancellation ends the thread here, because the caller may hold the
    /// locks of a transfer.
    #[inline]
    pub fn perform(self, kernel: impl Fn() -> isize) -> isize {
        match self {
            Self::Plainly => kernel(),
            Self::Refused => {
                set_errno(libc::EIO);
                -1
            }
            Self::InTheLedger(fd, fs, call) => in_the_ledger(fd, &fs, call, kernel),
            Self::WithFailureNoted(fd) => {
                let result = kernel();
                if result < 0 {
                    let below = || {
                        FileSystem::of(borrowed(fd))
                            .map(|fs| (name_of(fd), fs))
                            .into_iter()
                            .collect()
                    };
                    note_failure(ProgramFlush::Sync, below, || kernel() >= 0);
                }
                result
            }
        }
    }
}

fn in_the_ledger(
    fd: c_int,
    fs: &FileSystem,
    call: ProgramFlush,
    kernel: impl FnOnce() -> isize,
) -> isize {
    let (mut result, mut errno) = (-1, libc::EIO);
    let outcome = undisturbed(|| {
        fs.flushing(
            call,
            || name_of(fd),
            || {
                result = kernel();
                if result >= 0 {
                    return Ok(());
                }
                let error = io::Error::last_os_error();
                errno = error.raw_os_error().unwrap_or(libc::EIO);
                Err(error)
            },
        )
    });
    match outcome {
        Ok(()) => result,
        Err(_) => {
            set_errno(errno);
            -1
        }
    }
}

/// Records a failed flush, and keeps `errno`. A call that the kernel refused before it flushed
/// wedges nothing. `again` repeats the call, and returns whether it succeeds.
#[cold]
fn note_failure(
    call: ProgramFlush,
    of: impl FnOnce() -> Vec<(PathBuf, FileSystem)>,
    again: impl Fn() -> bool,
) {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    if !(is_inside() || is_elsewhere()) {
        let error = || io::Error::from_raw_os_error(errno);
        let again = || if again() { Ok(()) } else { Err(io::Error::last_os_error()) };
        undisturbed(|| {
            of().into_iter().for_each(|(name, fs)| fs.blame(call, || name, error(), again))
        });
    }
    set_errno(errno);
}

/// Performs `msync`. The kernel serves mapped files, and some of them may be known.
pub fn sync_mapping(start: usize, len: usize, kernel: impl Fn() -> c_int) -> c_int {
    if !files::any_known() || is_elsewhere() {
        return kernel();
    }
    if ledger::any_was_wedged()
        && undisturbed(|| below_mapping(start, len).iter().any(|(_, fs)| fs.is_wedged()))
    {
        return How::Refused.perform(|| 0) as c_int;
    }
    let result = kernel();
    if result < 0 {
        note_failure(ProgramFlush::SyncMapping, || below_mapping(start, len), || kernel() >= 0);
    }
    result
}

/// Returns the mapped files of the range, with their file systems. Misses a file without a path.
fn below_mapping(start: usize, len: usize) -> Vec<(PathBuf, FileSystem)> {
    let found = surroundings::files_mapped_at(start, len).unwrap_or_default();
    let below = |path: PathBuf| {
        let file = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some((path, FileSystem::of(file.as_fd()).ok()?))
    };
    found.into_iter().filter_map(below).collect()
}

fn name_of(fd: c_int) -> PathBuf {
    surroundings::path_of(fd).unwrap_or_default()
}

/// Runs `work` to its end, for which every other flush waits. No signal handler may leave it by a
/// jump or end the process in it, and no cancellation may end the thread. Both are delivered right
/// afterwards. The kernel does not interrupt a flush for a signal either.
fn undisturbed<R>(work: impl FnOnce() -> R) -> R {
    dioxide::with_signals_blocked(|| {
        let _inside = Inside::begin();
        uncancelled(work)
    })
}

/// Calls `syncfs` for each file system of a known file, because `sync` reports no failure.
pub fn before_sync_of_all() {
    if !files::any_known() || is_elsewhere() {
        return;
    }
    for (fd, fs) in files::one_of_each_file_system() {
        if !fs.is_wedged() {
            in_the_ledger(fd, &fs, ProgramFlush::Sync, || match rustix::fs::syncfs(borrowed(fd)) {
                Ok(()) => 0,
                Err(errno) => {
                    set_errno(errno.raw_os_error());
                    -1
                }
            });
        }
    }
}
