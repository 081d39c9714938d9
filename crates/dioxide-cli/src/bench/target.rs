//! What one operation of a bench is, and where it goes. Values only.

use super::stamp::Stamp;

/// One operation, drawn by a scenario for whichever path carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub direction: Direction,
    /// For an append, where the kernel's paths write whole blocks; others are only allowed one more record, and say
    /// themselves where it stands.
    pub offset: u64,
    pub bytes: u64,
    /// Of an append: its number among those of all threads, from 1 on.
    pub record: Option<u64>,
}

/// Which way the bytes go.
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

    /// As `job` writes it, whose operation with this number it is.
    pub fn stamp(&self, job: usize, sequence: u64) -> Stamp {
        Stamp { job: job as u32, sequence: self.record.unwrap_or(sequence) }
    }
}
