//! What follows from evidence: walls, each with what speaks for it and what to do.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Which wall.
    pub wall: Wall,
    /// The part of the time spent in I/O that it accounts for, from 0 to 1.
    pub share: f64,
    /// The file that it is about, as its path. None if it is about several, or a device.
    pub file: Option<String>,
    /// The verdict, in a sentence or two: how much, where, why.
    pub verdict: String,
    /// What was seen that speaks for it, a line each.
    pub evidence: Vec<String>,
    /// What to do, a line each.
    pub advice: Vec<String>,
}

/// What direct I/O waits for when it does not scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// The lock of the inode, held for writes that move the end of the file.
    ExtendingWrites,
    /// The lock of the inode, held for writes into holes.
    Holes,
    /// The lock of the inode, held for writes that are no whole blocks.
    UnalignedWrites,
    /// The lock of the inode, held for writes through the page cache.
    BufferedWrites,
    /// The lock of the inode, held for something else: reads against writes, allocation, truncation.
    FileLock,
    /// Flushes of the device's cache.
    Flush,
    /// The commit of the file system's journal or log, or room in it.
    JournalCommit,
    /// Operations that io_uring hands to its workers, which wait in place of the program.
    RingWorkers,
    /// A lock of the program itself, held while somebody flushes or writes.
    ProgramLock,
    /// The device itself: it has as much to do as it can. No wall.
    Device,
    /// Processors: the threads run, or could. No wall.
    Processor,
    /// Nothing serialises.
    Nothing,
    /// Waits that are not known here.
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
            Self::JournalCommit => "journal commits",
            Self::RingWorkers => "io_uring workers",
            Self::ProgramLock => "a lock of the program",
            Self::Device => "none: the device",
            Self::Processor => "none: processors",
            Self::Nothing => "none",
            Self::Unknown => "unknown",
        }
    }
}
