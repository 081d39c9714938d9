//! Whole transfers out of short ones.

use crate::backend::Backend;
use crate::buffer::Segment;
use smallvec::SmallVec;
use std::io;

/// How often a transfer that the kernel puts off (EAGAIN) is tried again before it fails.
const AGAIN_MAX: u32 = 100;

/// A transfer on its way: how far it got, and whether it goes on.
#[derive(Debug)]
pub(super) struct Transfer {
    kind: Kind,
    total: u64,
    done: u64,
    align: u64,
    again: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Flush,
}

impl Transfer {
    /// A write of so many bytes. A short one is resumed where it is aligned, so part of it may be written twice; an error
    /// means that any part may have been written.
    pub fn of_write(total: u64, align: u64) -> Self {
        Self { kind: Kind::Write, total, done: 0, align, again: 0 }
    }

    /// A read of so many bytes, or up to where the file ends.
    pub fn of_read(total: u64, align: u64) -> Self {
        Self { kind: Kind::Read, ..Self::of_write(total, align) }
    }

    /// A flush.
    pub fn of_flush() -> Self {
        Self { kind: Kind::Flush, ..Self::of_write(0, 1) }
    }

    /// How many bytes need not be moved again.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// A call moved so many bytes, or failed. Returns what it came to, or nothing if the rest is to be moved.
    pub fn took(&mut self, result: io::Result<u64>) -> Option<io::Result<u64>> {
        match (self.kind, result) {
            (Kind::Flush, Err(error)) if error.kind() != io::ErrorKind::Interrupted => Some(Err(error)),
            (_, Err(error)) if is_transient(&error, &mut self.again) => None,
            (_, Err(error)) => Some(Err(error)),
            (_, Ok(moved)) if self.done + moved >= self.total => Some(Ok(self.total)),
            (Kind::Write, Ok(moved)) if moved < self.align => Some(Err(io::ErrorKind::WriteZero.into())),
            (Kind::Write, Ok(moved)) => {
                self.done = (self.done + moved) / self.align * self.align;
                None
            }
            (Kind::Flush, Ok(_)) => Some(Ok(0)),
            (Kind::Read, Ok(moved)) if moved == 0 || (moved % self.align) != 0 => Some(Ok(self.done + moved)),
            (Kind::Read, Ok(moved)) => {
                self.done += moved;
                None
            }
        }
    }
}

/// Writes all segments, one behind the other.
pub(super) fn write_fully(
    backend: &dyn Backend,
    segments: &[Segment],
    offset: u64,
    dsync: bool,
    align: u64,
) -> io::Result<()> {
    let mut transfer = Transfer::of_write(segments.iter().map(Segment::len).sum(), align);
    loop {
        let result = match transfer.done() {
            0 => backend.write(segments, offset, dsync),
            done => backend.write(&skip(segments, done), offset + done, dsync),
        };
        if let Some(result) = transfer.took(result) {
            return result.map(drop);
        }
    }
}

/// Reads until `into` is full or the file ends, and says how much that was.
pub(super) fn read_fully(backend: &dyn Backend, into: &mut [u8], offset: u64, align: u64) -> io::Result<u64> {
    let mut transfer = Transfer::of_read(into.len() as u64, align);
    loop {
        let done = transfer.done();
        if let Some(result) = transfer.took(backend.read(&mut into[done as usize..], offset + done)) {
            return result;
        }
    }
}

/// Calls until the kernel is not interrupted.
pub(super) fn uninterrupted<R>(mut call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn is_transient(error: &io::Error, again: &mut u32) -> bool {
    match error.kind() {
        io::ErrorKind::Interrupted => true,
        io::ErrorKind::WouldBlock => {
            *again += 1;
            *again <= AGAIN_MAX
        }
        _ => false,
    }
}

/// The same segments without their first `count` bytes.
pub(super) fn skip(segments: &[Segment], mut count: u64) -> SmallVec<[Segment; 1]> {
    let mut rest = SmallVec::with_capacity(segments.len());
    for segment in segments {
        if count >= segment.len() {
            count -= segment.len();
        } else {
            rest.push(segment.skip(count));
            count = 0;
        }
    }
    rest
}
