//! The ledger: records acknowledged writes and verifies them. Shared by all threads.

use super::blocks::Blocks;
use super::members::Members;
use super::records::Records;
use super::stamp::{Stamp, fill_as_job};
use anyhow::Result;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Size of requests for reading back.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Accepted by O_DIRECT everywhere.
pub const BLOCK_BYTES: u64 = 4096;

/// By kind of write.
pub enum Ledger {
    Blocks(Blocks),
    Records(Records),
    Logs(Logs),
    /// A file that stores nothing.
    Nothing,
}

/// Where the file must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Right after the last write.
    AtLast,
    /// At or after the last write.
    Anywhere,
}

/// The written file, to be read back.
pub trait Written: FileExt {
    /// The end of the file.
    fn len(&self) -> io::Result<u64>;

    /// Whether adjacent blocks are on different files, so that each costs a read.
    fn are_blocks_apart(&self) -> bool {
        false
    }
}

impl Written for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Written for Members {
    fn len(&self) -> io::Result<u64> {
        self.len()
    }

    fn are_blocks_apart(&self) -> bool {
        self.are_blocks_apart()
    }
}

impl Ledger {
    /// The memory needed for this number of writes.
    pub fn memory_bytes(writes: u64) -> u64 {
        writes.saturating_mul(size_of::<u64>() as u64)
    }

    /// Stamps a block or record before it is written.
    pub fn stamp(&self, stamp: Stamp, bytes: &mut [u8]) {
        match self {
            Self::Blocks(blocks) => blocks.stamp(stamp, bytes),
            Self::Records(records) => records.stamp(stamp, bytes),
            Self::Logs(logs) => logs.of(stamp).stamp(stamp, bytes),
            Self::Nothing => {}
        }
    }

    /// Records that the write with this stamp was acknowledged at `offset`.
    pub fn acknowledge(&self, stamp: Stamp, offset: u64) -> Result<()> {
        match self {
            Self::Blocks(blocks) => blocks.acknowledge(stamp, offset),
            Self::Records(records) => records.acknowledge(stamp, offset),
            Self::Logs(logs) => logs.of(stamp).acknowledge(stamp, offset % logs.each_bytes),
            Self::Nothing => Ok(()),
        }
    }

    /// Whether a block, read at `offset` by its owner, is the last acknowledged one.
    pub fn check(&self, block: &[u8], offset: u64) -> Result<()> {
        match self {
            Self::Blocks(blocks) => blocks.check(block, offset),
            Self::Records(_) | Self::Logs(_) | Self::Nothing => Ok(()),
        }
    }

    /// Reads everything back and compares. `file` is open with O_DIRECT, to bypass the page cache.
    pub fn verify(&self, file: &dyn Written, end: End) -> Result<()> {
        match self {
            Self::Blocks(blocks) => blocks.verify(file, end),
            Self::Records(records) => records.verify(file, end),
            Self::Logs(_) => unreachable!("each log is verified in its own file"),
            Self::Nothing => Ok(()),
        }
    }
}

/// The ledgers of several logs. Job k writes log k, modulo their number.
pub struct Logs {
    each: Vec<Ledger>,
    /// The length of a log. Offsets are in all logs, one behind the other.
    each_bytes: u64,
}

impl Logs {
    pub fn new(each: Vec<Ledger>, each_bytes: u64) -> Self {
        Self { each, each_bytes }
    }

    pub fn each(&self) -> &[Ledger] {
        &self.each
    }

    fn of(&self, stamp: Stamp) -> &Ledger {
        &self.each[stamp.job as usize % self.each.len()]
    }
}

/// The expected content, generated again.
pub struct Expected {
    salt: u64,
    max_bytes: u64,
    /// The noise of each job, with its last stamp.
    by_job: HashMap<u32, Vec<u8>>,
}

impl Expected {
    pub fn new(salt: u64, max_bytes: u64) -> Self {
        Self { salt, max_bytes, by_job: HashMap::new() }
    }

    /// The bytes written with this stamp.
    pub fn bytes(&mut self, stamp: Stamp, len: usize) -> &[u8] {
        let noise = self.by_job.entry(stamp.job).or_insert_with(|| {
            let mut noise = vec![0; self.max_bytes as usize];
            fill_as_job(stamp.job, &mut noise);
            noise
        });
        stamp.put(self.salt, &mut noise[..len]);
        &noise[..len]
    }
}

/// Reads until `buffer` is full, or up to the end of the file, which is its only unaligned offset.
pub fn read_up_to(file: &dyn Written, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    let can_go_on = |filled| (offset + filled as u64).is_multiple_of(BLOCK_BYTES);
    while filled < buffer.len() && (filled == 0 || can_go_on(filled)) {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

pub fn is_not_there(Stamp { job, sequence }: Stamp, offset: u64) -> String {
    wrong(&format!(
        "write {sequence} of thread {job} was acknowledged at {offset} and is not there"
    ))
}

pub fn wrong(what: &str) -> String {
    format!("verification failed: {what}")
}
