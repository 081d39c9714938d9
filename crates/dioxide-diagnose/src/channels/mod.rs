//! What a kernel function says about a thread that waits in it.
//!
//! The table has the functions that a thread can be seen in when it waits: its wait channel (`/proc/PID/task/TID/wchan`), which
//! anybody can read for his own processes, and the innermost function of its stack, which is for root. Both leave out the
//! functions of the scheduler and of the locks themselves, so a thread that waits for the lock of an inode is seen in the function
//! that takes it. Where one function waits for several things, the functions around it decide, and without a stack the system
//! call. Names are those of Linux 5.10 to 6.18; what a compiler appends to them (`.constprop.0`, `.isra.0`) is cut off.
//!
//! A function that is not here is [`Kind::Unknown`], whatever stands around it: to say more would be a guess.

mod table;

use crate::evidence::{Call, SeenFile, Sighting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The lock of an inode, or, while holding it, the direct I/O in flight that it excludes.
    InodeLock,
    /// The lock of a descriptor's position, which `read` and `write` take and `pread` and `pwrite` do not.
    PositionLock,
    /// Another lock of a file system: of the map of a file, of its trees, for allocation.
    FileSystemLock,
    /// The commit of a journal or log, or space in it.
    JournalCommit,
    /// A flush of the device's cache.
    Flush,
    /// Data from or to the device, or room in its queue.
    Device,
    /// A page of the cache that is read or written, or room for more of them.
    PageCache,
    /// A lock of the program that others hold while they are in I/O.
    ProgramLock,
    /// Completions of io_uring or libaio.
    Completions,
    /// Nothing: it runs, or could.
    Processor,
    /// Work, time, the network, another thread or process.
    Idle,
    /// Not known here.
    Unknown,
}

impl Surroundings<'_> {
    fn hold(&self, place: Place) -> bool {
        let is_on =
            |fs: &str| self.outer.is_empty() && self.file.is_some_and(|file| file.fs.as_deref() == Some(fs));
        let is_durable = || {
            self.file.is_some_and(|file| file.is_durable)
                && self.call.is_some_and(|call| does(&call.name) == Some(Does::Writes))
        };
        match place {
            Place::Anywhere => true,
            Place::Within(outer) => self.outer.iter().any(|frame| plain(frame) == outer),
            Place::Unseen => self.outer.is_empty(),
            Place::InSync => self.outer.is_empty() && self.call.is_some_and(|call| syncs(&call.name)),
            Place::On(fs) => is_on(fs),
            Place::DurableOn(fs) => is_on(fs) && is_durable(),
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
            Kind::Completions => "completions",
            Kind::Processor => "nothing: it runs, or could",
            Kind::Idle => "nothing to do with I/O",
            Kind::Unknown => "not known",
        }
    }

    /// Whether a thread that waits for this is in I/O, whatever call it is in.
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
        )
    }
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// The function that is waited in.
    pub function: &'static str,
    /// Where that has to be.
    pub place: Place,
    /// What is waited for.
    pub kind: Kind,
    /// In which way, and where that is in the kernel.
    pub meaning: &'static str,
}

/// What has to stand around a function for an entry to hold.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Whatever does.
    Anywhere,
    /// This function, further out in the stack.
    Within(&'static str),
    /// No stack is known.
    Unseen,
    /// The same, in a system call that makes a file durable.
    InSync,
    /// No stack is known, and the file is on a file system of this kind, or a device.
    On(&'static str),
    /// The same, in a write that is durable when it returns.
    DurableOn(&'static str),
}

/// What is known of the place of a sighting.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The functions further out.
    pub outer: &'a [String],
    /// The system call.
    pub call: Option<&'a Call>,
    /// Its file.
    pub file: Option<&'a SeenFile>,
}

/// The entry for a function that is waited in.
pub fn entry(function: &str, around: Surroundings<'_>) -> Option<&'static Channel> {
    let function = plain(function);
    table::CHANNELS.iter().find(|entry| entry.function == function && around.hold(entry.place))
}

/// The function that a thread waited in, and what stood around it. None if it did not wait.
pub fn waited_in(sighting: &Sighting) -> Option<(&str, &[String])> {
    if sighting.state == 'R' {
        return None;
    }
    let stack = innermost(&sighting.stack);
    match &sighting.channel {
        // Channel and stack are read one after the other, and the thread may have gone on between.
        Some(channel) => {
            let place = stack.iter().position(|frame| plain(frame) == plain(channel));
            Some((channel, place.map_or(&[], |place| &stack[place + 1..])))
        }
        None => stack.split_first().map(|(function, outer)| (function.as_str(), outer)),
    }
}

/// The stack without the scheduler's functions and those of the locks, as wait channels have it.
pub fn innermost(stack: &[String]) -> &[String] {
    let outer = stack.iter().position(|frame| !table::OF_LOCKS.contains(&plain(frame)));
    outer.map_or(&[], |outer| &stack[outer..])
}

/// Whether any of these functions is one of a file system, of the page cache or of the block layer.
pub fn is_in_io(stack: &[String]) -> bool {
    stack.iter().any(|frame| table::OF_IO.iter().any(|prefix| frame.starts_with(prefix)))
}

/// What a call does with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Reads, if it is one.
    Reads,
    /// Writes, if it is one.
    Writes,
    /// Makes it durable.
    Syncs,
    /// Changes its size or its space.
    Shapes,
    /// Hands over reads and writes to be done later.
    Submits,
}

/// What a system call does with files. None for others.
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

/// Whether a call with this name can only be for a file, and not for a pipe or a socket.
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

/// Without what a compiler appends.
pub fn plain(function: &str) -> &str {
    function.split('.').next().unwrap_or(function)
}
