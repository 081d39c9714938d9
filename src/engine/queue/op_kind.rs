//! What an operation of a queue is to do.

use crate::error::Operation;

/// What an operation is to do.
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
