//! The ledger: what was acknowledged where, and whether it is there. Shared by all threads.

use super::blocks::Blocks;
use super::members::Members;
use super::records::Records;
use super::stamp::{Stamp, fill_as_job};
use anyhow::Result;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Read back in requests of about this size.
pub const CHUNK_BYTES: u64 = 4 << 20;

/// By what is written.
pub enum Ledger {
    Blocks(Blocks),
    Records(Records),
    /// A file that keeps nothing.
    Nothing,
}

/// Where the file must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Right behind what was written last.
    AtLast,
    /// Somewhere behind it.
    Anywhere,
}

/// What was written, to be read back.
pub trait Written: FileExt {
    /// Where it ends.
    fn len(&self) -> io::Result<u64>;
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
}

impl Ledger {
    /// The memory that is needed to note so many writes.
    pub fn memory_bytes(writes: u64) -> u64 {
        writes.saturating_mul(size_of::<u64>() as u64)
    }

    /// Marks what is about to be written.
    pub fn stamp(&self, stamp: Stamp, bytes: &mut [u8]) {
        match self {
            Self::Blocks(blocks) => blocks.stamp(stamp, bytes),
            Self::Records(records) => records.stamp(stamp, bytes),
            Self::Nothing => {}
        }
    }

    /// Notes that what carries this stamp was acknowledged at `offset`.
    pub fn acknowledge(&self, stamp: Stamp, offset: u64) -> Result<()> {
        match self {
            Self::Blocks(blocks) => blocks.acknowledge(stamp, offset),
            Self::Records(records) => records.acknowledge(stamp, offset),
            Self::Nothing => Ok(()),
        }
    }

    /// Whether a block, read at `offset` by the one who writes there, is what was acknowledged last.
    pub fn check(&self, block: &[u8], offset: u64) -> Result<()> {
        match self {
            Self::Blocks(blocks) => blocks.check(block, offset),
            Self::Records(_) | Self::Nothing => Ok(()),
        }
    }

    /// Reads everything back and compares. `file` is open with O_DIRECT, so that the page cache is not asked.
    pub fn verify(&self, file: &dyn Written, end: End) -> Result<()> {
        match self {
            Self::Blocks(blocks) => blocks.verify(file, end),
            Self::Records(records) => records.verify(file, end),
            Self::Nothing => Ok(()),
        }
    }
}

/// What was written, made once more.
pub struct Expected {
    salt: u64,
    max_bytes: u64,
    /// The noise of each job, with the stamp that it was last asked for.
    by_job: HashMap<u32, Vec<u8>>,
}

impl Expected {
    pub fn new(salt: u64, max_bytes: u64) -> Self {
        Self { salt, max_bytes, by_job: HashMap::new() }
    }

    /// So many bytes, written with this stamp.
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

pub fn is_not_there(Stamp { job, sequence }: Stamp, offset: u64) -> String {
    wrong(&format!("write {sequence} of thread {job} was acknowledged at {offset} and is not there"))
}

pub fn wrong(what: &str) -> String {
    format!("verification failed: {what}")
}
