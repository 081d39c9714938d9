//! The result of a queue's operation.

use super::OpKind;
use crate::buffer::{Buffer, Memory};
use crate::error::{Operation, Result};

/// A finished operation.
#[derive(Debug)]
pub struct Completion {
    /// The tag that was given with the operation.
    pub tag: u64,
    /// The kind of operation: [`Append`](Operation::Append), [`Write`](Operation::Write),
    /// [`Read`](Operation::Read) or [`Flush`](Operation::Flush).
    pub operation: Operation,
    /// The buffer of the operation; none for flushes.
    pub buffer: Option<Buffer>,
    /// The offset of an append, the bytes written or read, or 0 for flushes. On failure the error
    /// that the call of the same name of [`File`](crate::File) returns.
    pub result: Result<u64>,
}

/// The completion to which the result of an operation belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    /// One of its own, with the caller's tag.
    Own(u64),
    /// That of a group, of which it is the member with this number.
    Member { group: usize, nth: usize },
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
