//! What a queue gives back of an operation.

use super::OpKind;
use crate::buffer::{Buffer, Memory};
use crate::error::{Operation, Result};

/// What became of an operation.
#[derive(Debug)]
pub struct Completion {
    /// As it was given with the operation.
    pub tag: u64,
    /// What it was: [`Append`](Operation::Append), [`Write`](Operation::Write),
    /// [`Read`](Operation::Read) or [`Flush`](Operation::Flush).
    pub operation: Operation,
    /// The buffer of the operation; none for `sync_data`.
    pub buffer: Option<Buffer>,
    /// The offset of an append, the bytes that were written or read, 0 for `sync_data`; or the
    /// error, as the call of the same name of [`File`](crate::File) would have returned it.
    pub result: Result<u64>,
}

impl Completion {
    pub(crate) fn new(tag: u64, what: OpKind, memory: Option<Memory>, result: Result<u64>) -> Self {
        Self {
            tag,
            operation: what.operation(),
            buffer: memory.and_then(Memory::into_buffer),
            result,
        }
    }
}
