//! Whole transfers out of short ones.

use crate::backend::Backend;
use crate::buffer::Segment;
use std::io;

/// How often a transfer that the kernel puts off (EAGAIN) is tried again before it fails.
const AGAIN_MAX: u32 = 100;

/// Writes all segments, one behind the other. A short write is resumed where it is aligned, so part of it may be
/// written twice; an error means that any part may have been written.
pub(super) fn write_fully(
    backend: &dyn Backend,
    segments: &[Segment],
    offset: u64,
    dsync: bool,
    align: u64,
) -> io::Result<()> {
    let total: u64 = segments.iter().map(Segment::len).sum();
    let mut done = 0;
    let mut again = 0;
    while done < total {
        let result = match done {
            0 => backend.write(segments, offset, dsync),
            _ => backend.write(&skip(segments, done), offset + done, dsync),
        };
        done = match result {
            Ok(written) if done + written >= total => total,
            Ok(written) if written >= align => (done + written) / align * align,
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if is_transient(&error, &mut again) => done,
            Err(error) => return Err(error),
        };
    }
    Ok(())
}

/// Reads until `into` is full or the file ends, and says how much that was.
pub(super) fn read_fully(backend: &dyn Backend, into: &mut [u8], offset: u64, align: u64) -> io::Result<u64> {
    let mut done = 0;
    let mut again = 0;
    while (done as usize) < into.len() {
        match backend.read(&mut into[done as usize..], offset + done) {
            Ok(0) => break,
            Ok(read) if (read % align) != 0 => return Ok(done + read),
            Ok(read) => done += read,
            Err(error) if is_transient(&error, &mut again) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
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

fn skip(segments: &[Segment], mut count: u64) -> Vec<Segment> {
    let mut rest = Vec::with_capacity(segments.len());
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
