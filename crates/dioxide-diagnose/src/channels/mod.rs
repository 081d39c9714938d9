//! What a kernel function says about a thread that waits in it.
//!
//! The table has the functions in which a waiting thread is seen. The wait channel
//! (`/proc/PID/task/TID/wchan`) is readable by the owner of the process, the stack by root only.
//!
//! Both leave out the functions of the scheduler and of the locks themselves. A thread that waits
//! for the lock of an inode is therefore seen in the function that takes it. Where one function
//! waits for several things, the functions around it decide, and without a stack the system call.
//!
//! Names are those of Linux 5.10 to 6.18, without suffixes of the compiler (`.constprop.0`,
//! `.isra.0`).
//!
//! A function that is not in the table is [`Kind::Unknown`], whatever its callers: anything else
//! would be a guess.
//!
//! To add a function, find in the kernel source what it waits for. Add a line to the table: the
//! function, its context, the kind of wait, and its meaning with the place in the source. Functions
//! of locks (`down_write`, `mutex_lock`) are skipped.

mod table;

use crate::evidence::{Call, SeenFile, Sighting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The object of a wait.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The lock of an inode, or direct I/O in flight that its holder excludes.
    InodeLock,
    /// The lock of a descriptor's position, which `read` and `write` take and `pread` and `pwrite`
    /// do not.
    PositionLock,
    /// Another lock of a file system: of a file's mapping, of its trees, for allocation.
    FileSystemLock,
    /// The commit of a journal or log, or space in it.
    JournalCommit,
    /// A flush of the device's cache.
    Flush,
    /// Data from or to the device, or a slot in its queue.
    Device,
    /// I/O on a page of the cache, or room for more pages.
    PageCache,
    /// A lock of the program that its holders keep during I/O.
    ProgramLock,
    /// Another thread of the program, which is in a write or a flush.
    ProgramQueue,
    /// Completions of io_uring or libaio.
    Completions,
    /// Nothing: a signal, a debugger or the freezer has stopped the thread.
    Stopped,
    /// Nothing: the thread is running or runnable.
    Processor,
    /// Work, time, the network, another thread or process.
    Idle,
    /// Not in the table.
    Unknown,
}

impl Surroundings<'_> {
    fn hold(&self, place: Context) -> bool {
        let is_on = |fs: &str| {
            self.outer.is_empty() && self.file.is_some_and(|file| file.fs.as_deref() == Some(fs))
        };
        let is_durable = || {
            self.file.is_some_and(|file| file.is_durable)
                && self.call.is_some_and(|call| does(&call.name) == Some(Does::Writes))
        };
        match place {
            Context::Anywhere => true,
            Context::Within(outer) => self.outer.iter().any(|frame| plain(frame) == outer),
            Context::Unseen => self.outer.is_empty(),
            Context::InSync => {
                self.outer.is_empty() && self.call.is_some_and(|call| syncs(&call.name))
            }
            Context::On(fs) => is_on(fs),
            Context::DurableOn(fs) => is_on(fs) && is_durable(),
        }
    }
}

impl Kind {
    /// In words: "the lock of the inode".
    pub fn name(self) -> &'static str {
        match self {
            Kind::InodeLock => "the lock of the inode",
            Kind::PositionLock => "the lock of the descriptor's position",
            Kind::FileSystemLock => "another lock of the file system",
            Kind::JournalCommit => "the journal's commit",
            Kind::Flush => "a flush of the device's cache",
            Kind::Device => "the device",
            Kind::PageCache => "the page cache",
            Kind::ProgramLock => "a lock of the program",
            Kind::ProgramQueue => "another thread of the program",
            Kind::Completions => "completions",
            Kind::Stopped => "stopped",
            Kind::Processor => "running or runnable",
            Kind::Idle => "waiting outside I/O",
            Kind::Unknown => "not known",
        }
    }

    /// Whether a thread that waits for this is in I/O, whatever its system call.
    pub fn is_io(self) -> bool {
        use Kind::*;
        matches!(
            self,
            InodeLock
                | PositionLock
                | FileSystemLock
                | JournalCommit
                | Flush
                | Device
                | PageCache
                | ProgramLock
                | ProgramQueue
        )
    }
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// The innermost function.
    pub function: &'static str,
    /// The context that the entry requires.
    pub place: Context,
    /// The object of the wait.
    pub kind: Kind,
    /// The kind of wait, and its subsystem in the kernel.
    pub meaning: &'static str,
}

/// The context of a function that an entry requires.
#[derive(Clone, Copy, Debug)]
pub enum Context {
    /// Any.
    Anywhere,
    /// This function, further out in the stack.
    Within(&'static str),
    /// No stack is known.
    Unseen,
    /// No stack is known, and the system call makes a file durable.
    InSync,
    /// No stack is known, and the file is on a file system of this kind, or is a device.
    On(&'static str),
    /// As `On`, in a write that is durable when it returns.
    DurableOn(&'static str),
}

/// The known context of a sighting.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The functions further out.
    pub outer: &'a [String],
    /// The system call.
    pub call: Option<&'a Call>,
    /// Its file.
    pub file: Option<&'a SeenFile>,
}

/// The entry for the innermost function of a wait.
pub fn entry(function: &str, around: Surroundings<'_>) -> Option<&'static Channel> {
    let function = plain(function);
    table::CHANNELS.iter().find(|entry| entry.function == function && around.hold(entry.place))
}

/// The innermost function of a wait, and its callers. None if the thread did not wait.
pub fn waited_in(sighting: &Sighting) -> Option<(&str, &[String])> {
    place_of(sighting.state, sighting.channel.as_deref(), &sighting.stack)
}

/// The same, from the state, the wait channel and the stack of a thread.
pub fn place_of<'a>(
    state: char,
    channel: Option<&'a str>,
    stack: &'a [String],
) -> Option<(&'a str, &'a [String])> {
    if state == 'R' {
        return None;
    }
    let stack = innermost(stack);
    match channel {
        // Channel and stack are read one after the other; the thread may have moved between.
        Some(channel) => {
            let place = stack.iter().position(|frame| plain(frame) == plain(channel));
            Some((channel, place.map_or(&[], |place| &stack[place + 1..])))
        }
        None => stack.split_first().map(|(function, outer)| (function.as_str(), outer)),
    }
}

/// The stack without the functions of the scheduler and of locks, as wait channels have it.
pub fn innermost(stack: &[String]) -> &[String] {
    let outer = stack.iter().position(|frame| !table::OF_LOCKS.contains(&plain(frame)));
    outer.map_or(&[], |outer| &stack[outer..])
}

/// Whether any of these functions belongs to a file system, the page cache or the block layer.
pub fn is_in_io(stack: &[String]) -> bool {
    stack.iter().any(|frame| table::OF_IO.iter().any(|prefix| frame.starts_with(prefix)))
}

/// The effect of a system call on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Makes it durable.
    Syncs,
    /// Changes its size or allocation.
    Shapes,
    /// Submits asynchronous reads and writes.
    Submits,
}

/// The effect of a system call on files. None if it has none.
pub fn does(call: &str) -> Option<Does> {
    Some(match call {
        "read" | "readv" | "pread64" | "preadv" | "preadv2" => Does::Reads,
        "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => Does::Writes,
        "copy_file_range" | "sendfile" | "splice" => Does::Writes,
        "fsync" | "fdatasync" | "sync_file_range" | "syncfs" | "sync" | "msync" => Does::Syncs,
        "fallocate" | "ftruncate" | "truncate" => Does::Shapes,
        "io_submit" | "io_uring_enter" => Does::Submits,
        _ => return None,
    })
}

/// Whether a call with this name is always on a file, never on a pipe or a socket.
pub fn is_for_files(call: &str) -> bool {
    match does(call) {
        Some(Does::Reads | Does::Writes) => call.starts_with('p') || call == "copy_file_range",
        Some(_) => call != "io_uring_enter",
        None => false,
    }
}

/// Whether a call makes a file durable.
pub fn syncs(call: &str) -> bool {
    does(call) == Some(Does::Syncs)
}

/// Without suffixes of the compiler.
pub fn plain(function: &str) -> &str {
    function.split('.').next().unwrap_or(function)
}
