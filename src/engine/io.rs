//! Completes short reads and writes.

use super::core::Work;
use crate::backend::Backend;
use crate::buffer::Segment;
use crate::os_error::{self, OfWrite};
use crate::rules::flush::SyncMethod;
use smallvec::SmallVec;
use std::io;
use std::ops::Range;

/// How often a transfer is retried after EAGAIN before it fails.
const AGAIN_MAX: u32 = 100;

/// A transfer in progress.
#[derive(Debug)]
pub(crate) struct RequestIo {
    kind: Kind,
    total: u64,
    /// Length in bytes of the first, separately issued write.
    head: u64,
    done: u64,
    align: u64,
    again: u32,
    /// Its calls carry a flush.
    dsync: bool,
    /// Plain calls carry a flush as well (`Backend::flushes_each_write`).
    flushes_anyway: bool,
    /// A call or its flush failed for lack of space. The same call is repeated without a flush.
    unclear: Option<io::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Flush,
}

impl RequestIo {
    /// A write of `total` bytes. A short write resumes where it is aligned, so part of it may be
    /// written twice. After an error any part may have been written.
    pub fn of_write(total: u64, align: u64) -> Self {
        let (kind, dsync, flushes_anyway) = (Kind::Write, false, false);
        Self {
            kind,
            total,
            head: 0,
            done: 0,
            align,
            again: 0,
            dsync,
            flushes_anyway,
            unclear: None,
        }
    }

    /// The same as a durable write: each of its calls flushes if `dsync`.
    pub fn with_flush(self, dsync: bool) -> Self {
        Self { dsync, ..self }
    }

    /// The same, where plain writes flush as well if `flushes_anyway`.
    pub fn with_flushes_anyway(self, flushes_anyway: bool) -> Self {
        Self { flushes_anyway, ..self }
    }

    /// The transfer of a request.
    pub fn of_work(work: &Work, align: u64) -> Self {
        match work {
            Work::Flush => Self::of_flush(),
            Work::Write { head, sync_method, .. } => {
                let transfer = Self::of_write(work.len(), align)
                    .with_flush(*sync_method == Some(SyncMethod::Dsync));
                Self { head: *head, ..transfer }
            }
        }
    }

    /// A read of `total` bytes, or up to the end of the file.
    pub fn of_read(total: u64, align: u64) -> Self {
        Self { kind: Kind::Read, ..Self::of_write(total, align) }
    }

    /// A flush.
    pub fn of_flush() -> Self {
        Self { kind: Kind::Flush, ..Self::of_write(0, 1) }
    }

    /// The byte range of the next call.
    pub fn part(&self) -> Range<u64> {
        self.done..if self.done < self.head { self.head } else { self.total }
    }

    /// Whether the next call carries a flush.
    pub fn dsync(&self) -> bool {
        self.dsync && self.unclear.is_none()
    }

    /// Whether the next call [allocates the space](space_for) of its part in place of a write,
    /// which would flush.
    pub fn asks_for_space(&self) -> bool {
        self.flushes_anyway && self.unclear.is_some()
    }

    /// Takes the result of a call: bytes moved, or an error. Returns the result of the transfer, or
    /// `None` if more is to be moved. An error says whether a flush may have failed.
    pub fn on_result(&mut self, result: io::Result<u64>) -> Option<io::Result<u64>> {
        match (self.kind, result) {
            (Kind::Flush, Err(error)) if error.kind() != io::ErrorKind::Interrupted => {
                Some(Err(os_error::of_flush(error)))
            }
            (_, Err(error)) if is_transient(&error, &mut self.again) => None,
            (_, result) if self.unclear.is_some() => Some(Err(self.cleared(result))),
            (Kind::Write, Err(error)) if self.dsync || self.flushes_anyway => {
                match os_error::of_durable_write(error) {
                    OfWrite::Judged(error) => Some(Err(error)),
                    OfWrite::Unclear(error) => {
                        self.unclear = Some(error);
                        None
                    }
                }
            }
            (_, Err(error)) => Some(Err(error)),
            (_, Ok(moved)) if self.done + moved >= self.total => Some(Ok(self.total)),
            (Kind::Write, Ok(moved)) if moved < self.align => {
                Some(Err(io::ErrorKind::WriteZero.into()))
            }
            (Kind::Write, Ok(moved)) => {
                self.done = (self.done + moved) / self.align * self.align;
                None
            }
            (Kind::Flush, Ok(_)) => Some(Ok(0)),
            (Kind::Read, Ok(moved)) if moved == 0 || (moved % self.align) != 0 => {
                Some(Ok(self.done + moved))
            }
            (Kind::Read, Ok(moved)) => {
                self.done += moved;
                None
            }
        }
    }

    /// The error of a durable call, after the same call without a flush. If that finds no space
    /// either, the first call did not reach its flush. Otherwise the flush may have failed. Another
    /// program may also have freed space in between: a false error is better than lost data.
    fn cleared(&mut self, result: io::Result<u64>) -> io::Error {
        let first = self.unclear.take().expect("the caller looked");
        match result {
            Err(error) if os_error::is_no_space(&error) => error,
            _ => os_error::failed_flush(first),
        }
    }
}

/// Writes all segments contiguously, as `transfer` says.
pub(crate) fn write_fully(
    backend: &dyn Backend,
    segments: &[Segment],
    offset: u64,
    mut transfer: RequestIo,
) -> io::Result<()> {
    loop {
        let (part, dsync) = (transfer.part(), transfer.dsync());
        let result = if transfer.asks_for_space() {
            space_for(backend, offset, &part)
        } else if part == (0..transfer.total) {
            backend.write(segments, offset, dsync)
        } else {
            backend.write(&part_of(segments, &part), offset + part.start, dsync)
        };
        if let Some(result) = transfer.on_result(result) {
            return result.map(drop);
        }
    }
}

/// Allocates the space that a write at `offset` lacked, on a file where each write flushes. A write
/// that failed in its flush has the space already.
pub(crate) fn space_for(backend: &dyn Backend, offset: u64, part: &Range<u64>) -> io::Result<u64> {
    backend.allocate(offset + part.start, offset + part.end).map(|()| 0)
}

/// Reads until `into` is full or the file ends. Returns the number of bytes.
pub(crate) fn read_fully(
    backend: &dyn Backend,
    into: &mut [u8],
    offset: u64,
    align: u64,
) -> io::Result<u64> {
    let mut transfer = RequestIo::of_read(into.len() as u64, align);
    loop {
        let done = transfer.part().start;
        if let Some(result) = transfer
            .on_result(backend.read(&[Segment::of_mut(&mut into[done as usize..])], offset + done))
        {
            return result;
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

/// The given byte range of all segments together.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn os<T>(errno: i32) -> io::Result<T> {
        Err(io::Error::from_raw_os_error(errno))
    }

    /// The error of a durable write that finds no space, if its repetition returns `again`.
    fn after_no_space(again: io::Result<u64>) -> io::Error {
        let mut transfer = RequestIo::of_write(4096, 4096).with_flush(true);
        assert!(transfer.dsync());
        assert!(transfer.on_result(os(libc::ENOSPC)).is_none(), "the call is made again");
        assert!(!transfer.dsync(), "without a flush");
        transfer
            .on_result(again)
            .expect("that settles it")
            .expect_err("nothing durable was written")
    }

    #[test]
    fn no_space_of_a_durable_write_is_told_from_that_of_its_flush() {
        assert!(os_error::is_no_space(&after_no_space(os(libc::ENOSPC))));
        for again in [Ok(4096), Ok(0), os(libc::EIO)] {
            let error = after_no_space(again);
            assert!(os_error::is_failed_flush(&error) && !os_error::is_no_space(&error));
        }
    }

    /// A repeated write would flush again, and its flush would find as little space.
    #[test]
    fn no_space_where_each_write_flushes_is_told_apart_without_a_write() {
        for dsync in [false, true] {
            let mut transfer =
                RequestIo::of_write(4096, 4096).with_flush(dsync).with_flushes_anyway(true);
            assert!(!transfer.asks_for_space());
            assert!(transfer.on_result(os(libc::ENOSPC)).is_none());
            assert!(transfer.asks_for_space());
            let error =
                transfer.on_result(Ok(0)).expect("that settles it").expect_err("there was space");
            assert!(os_error::is_failed_flush(&error));
        }
    }

    #[test]
    fn a_write_put_off_while_it_is_told_apart_is_made_again() {
        let mut transfer = RequestIo::of_write(4096, 4096).with_flush(true);
        let results = [os(libc::ENOSPC), os(libc::EAGAIN), os(libc::EINTR)];
        assert!(results.into_iter().all(|result| transfer.on_result(result).is_none()));
        assert!(matches!(
            transfer.on_result(os(libc::EDQUOT)),
            Some(Err(error)) if os_error::is_no_space(&error)
        ));
    }

    #[test]
    fn a_flush_that_failed_is_not_tried_again() {
        for errno in [libc::EAGAIN, libc::ENOSPC, libc::EIO] {
            let error = RequestIo::of_flush()
                .on_result(os(errno))
                .expect("it ended")
                .expect_err("it failed");
            assert!(os_error::is_failed_flush(&error), "{errno}");
            let mut write = RequestIo::of_write(4096, 4096).with_flush(true);
            assert!(write.on_result(Err(error)).is_some(), "the flush behind a write");
        }
    }
}
