//! Whole transfers out of short ones.

use super::core::Work;
use crate::backend::Backend;
use crate::buffer::Segment;
use smallvec::SmallVec;
use std::io;
use std::ops::Range;

/// How often a transfer that the kernel puts off (EAGAIN) is tried again before it fails.
const AGAIN_MAX: u32 = 100;

/// A transfer on its way: how far it got, and whether it goes on.
#[derive(Debug)]
pub(crate) struct Transfer {
    kind: Kind,
    total: u64,
    /// So many of them go by themselves, first.
    head: u64,
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
        Self { kind: Kind::Write, total, head: 0, done: 0, align, again: 0 }
    }

    /// The write or flush that a request is.
    pub fn of_work(work: &Work, align: u64) -> Self {
        match work {
            Work::Flush => Self::of_flush(),
            Work::Write { head, .. } => Self { head: *head, ..Self::of_write(work.len(), align) },
        }
    }

    /// A read of so many bytes, or up to where the file ends.
    pub fn of_read(total: u64, align: u64) -> Self {
        Self { kind: Kind::Read, ..Self::of_write(total, align) }
    }

    /// A flush.
    pub fn of_flush() -> Self {
        Self { kind: Kind::Flush, ..Self::of_write(0, 1) }
    }

    /// Which bytes the next call is to move.
    pub fn part(&self) -> Range<u64> {
        self.done..if self.done < self.head { self.head } else { self.total }
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

/// Writes all segments, one behind the other, as `transfer` says.
pub(crate) fn write_fully(
    backend: &dyn Backend,
    segments: &[Segment],
    offset: u64,
    dsync: bool,
    mut transfer: Transfer,
) -> io::Result<()> {
    loop {
        let part = transfer.part();
        let result = if part == (0..transfer.total) {
            backend.write(segments, offset, dsync)
        } else {
            backend.write(&part_of(segments, &part), offset + part.start, dsync)
        };
        if let Some(result) = transfer.took(result) {
            return result.map(drop);
        }
    }
}

/// Reads until `into` is full or the file ends, and says how much that was.
pub(crate) fn read_fully(backend: &dyn Backend, into: &mut [u8], offset: u64, align: u64) -> io::Result<u64> {
    let mut transfer = Transfer::of_read(into.len() as u64, align);
    loop {
        let done = transfer.part().start;
        if let Some(result) =
            transfer.took(backend.read(&[Segment::of_mut(&mut into[done as usize..])], offset + done))
        {
            return result;
        }
    }
}

/// Calls until the kernel is not interrupted.
pub(crate) fn uninterrupted<R>(mut call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
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

/// What lies at these bytes of all segments together.
pub(crate) fn part_of(segments: &[Segment], part: &Range<u64>) -> SmallVec<[Segment; 1]> {
    let mut parts = SmallVec::with_capacity(segments.len());
    let mut start = 0;
    for segment in segments {
        let end = start + segment.len();
        let (from, to) = (part.start.max(start), part.end.min(end));
        if from < to {
            parts.push(segment.part(from - start..to - start));
        }
        start = end;
    }
    parts
}
