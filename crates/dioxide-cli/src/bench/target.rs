//! The target of one operation. Values only.

use super::stamp::Stamp;

/// One operation, drawn by a scenario, to be performed on any path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub direction: Direction,
    /// The offset of the operation. For an append only the kernel's paths write there, and only
    /// whole blocks. Elsewhere the append itself returns its offset.
    pub offset: u64,
    pub bytes: u64,
    /// Of an append: its number over all threads, from 1.
    pub record: Option<u64>,
}

/// The direction of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

impl Target {
    pub fn block(direction: Direction, offset: u64, bytes: u64) -> Self {
        Self { direction, offset, bytes, record: None }
    }

    pub fn append(record: u64, offset: u64, bytes: u64) -> Self {
        Self { direction: Direction::Write, offset, bytes, record: Some(record) }
    }

    /// The stamp for this target as operation `sequence` of `job`.
    pub fn stamp(&self, job: usize, sequence: u64) -> Stamp {
        Stamp { job: job as u32, sequence: self.record.unwrap_or(sequence) }
    }
}
