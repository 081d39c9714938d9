//! Conclusions from evidence: bottlenecks, each with its evidence and advice.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The bottleneck.
    pub wall: Wall,
    /// The share of I/O time that it accounts for, from 0 to 1. Of `stopped`, the share of all
    /// samples.
    pub share: f64,
    /// The path of the file. None for several files, or a device.
    pub file: Option<String>,
    /// The verdict in one or two sentences: how much, where, why.
    pub verdict: String,
    /// The evidence for it, one line each.
    pub evidence: Vec<String>,
    /// Advice, one line each.
    pub advice: Vec<String>,
}

/// The objects for which direct I/O waits when it does not scale.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// The lock of the inode, held for writes that move the end of the file.
    ExtendingWrites,
    /// The lock of the inode, held for writes into holes.
    Holes,
    /// The lock of the inode, held for unaligned writes.
    UnalignedWrites,
    /// The lock of the inode, held for writes through the page cache.
    BufferedWrites,
    /// The lock of the inode, held for something else: reads against writes, allocation,
    /// truncation.
    FileLock,
    /// Flushes of the device's cache.
    Flush,
    /// One flush or commit for each of many files on one device.
    FileFlushes,
    /// The commit of the file system's journal or log, or space in it.
    JournalCommit,
    /// Operations that io_uring hands to its workers, which wait in place of the program.
    RingWorkers,
    /// A lock of the program itself, held during a flush or write.
    ProgramLock,
    /// Another thread of the program, which is in a flush or write.
    ProgramQueue,
    /// The device itself is saturated. Not a software bottleneck.
    Device,
    /// The limit of a cgroup, for I/O or processors.
    CgroupLimit,
    /// None known: the program was stopped, by a signal, a debugger or the freezer.
    Stopped,
    /// The page cache, without a lock: missing pages, or writeback of dirty ones.
    PageCache,
    /// Processors: the threads are running or runnable. Not a software bottleneck.
    Processor,
    /// Nothing serialises.
    Nothing,
    /// Waits in unrecognised functions.
    Unknown,
}

impl Wall {
    /// In a word or two, for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExtendingWrites => "extending writes",
            Self::Holes => "writes into holes",
            Self::UnalignedWrites => "unaligned writes",
            Self::BufferedWrites => "buffered writes",
            Self::FileLock => "file lock",
            Self::Flush => "flushes",
            Self::FileFlushes => "one flush per file",
            Self::JournalCommit => "journal commits",
            Self::RingWorkers => "io_uring workers",
            Self::ProgramLock => "a lock of the program",
            Self::ProgramQueue => "another thread of the program",
            Self::Device => "none: the device",
            Self::CgroupLimit => "limit of the cgroup",
            Self::Stopped => "stopped",
            Self::PageCache => "none: the page cache",
            Self::Processor => "none: processors",
            Self::Nothing => "none",
            Self::Unknown => "unknown",
        }
    }
}
