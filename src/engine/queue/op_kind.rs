//! The kind of a queue's operation.

use crate::error::Operation;

/// The kind of an operation, with its offset.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpKind {
    Append,
    Write(u64),
    Read(u64),
    Sync,
}

impl OpKind {
    pub fn operation(self) -> Operation {
        match self {
            Self::Append => Operation::Append,
            Self::Write(_) => Operation::Write,
            Self::Read(_) => Operation::Read,
            Self::Sync => Operation::Flush,
        }
    }

    pub fn offset(self) -> Option<u64> {
        match self {
            Self::Write(offset) | Self::Read(offset) => Some(offset),
            Self::Append | Self::Sync => None,
        }
    }
}
