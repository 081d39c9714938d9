//! A read of any range into any memory, in progress: piece by piece, each a transfer of whole
//! blocks.

use super::io::{self, RequestIo};
use crate::backend::Backend;
use crate::buffer::Buffer;
use crate::rules::bounce::{self, Aligned, Left, Piece};
use crate::sys::probe::Alignment;
use std::io::{ErrorKind, Result};

/// A read in progress. Blocking calls and queues move its pieces.
///
/// The last block below the end may be rewritten during the read, with bytes behind the
/// acknowledged ones. No lock prevents that, and none is needed. The acknowledged bytes are the
/// same before and after, so any mixture of both has them. The bytes behind lie above the end,
/// which was taken before the read began.
#[derive(Debug)]
pub(super) struct Reading {
    offset: u64,
    /// Bytes to read, and bytes read so far.
    bytes: u64,
    done: u64,
    aligned: Aligned,
    piece: Piece,
    bounce: Option<Buffer>,
}

impl Reading {
    /// A read of `bytes` bytes, at least one, to the beginning of `into`.
    pub fn of(into: &[u8], offset: u64, bytes: u64, alignment: Alignment) -> Self {
        let aligned = Aligned { memory: alignment.memory, block: alignment.offset };
        let piece = bounce::next(left(into, offset, bytes, 0), aligned);
        Self { offset, bytes, done: 0, aligned, piece, bounce: None }
    }

    /// The transfer of the current piece.
    pub fn transfer(&self) -> RequestIo {
        RequestIo::of_read(self.piece.len, self.aligned.block)
    }

    /// The memory of the piece without its first `skip` bytes, and the file offset to fill it from.
    /// Its address is valid until the next piece, and no longer than this and `into`.
    pub fn target<'a>(&'a mut self, into: &'a mut [u8], skip: u64) -> (&'a mut [u8], u64) {
        let len = self.piece.len as usize;
        let memory = if self.piece.bounces {
            // The first piece that bounces is the longest.
            &mut self.bounce.get_or_insert_with(|| Buffer::zeroed(len))[..len]
        } else {
            &mut into[self.done as usize..][..len]
        };
        (&mut memory[skip as usize..], self.piece.start + skip)
    }

    /// Takes the result of the piece's transfer, in bytes. Returns the result of the read, or
    /// `None` if there is another piece. Fewer bytes than expected are an error.
    pub fn on_result(&mut self, into: &mut [u8], read: Result<u64>) -> Option<Result<u64>> {
        let Piece { len, skip, bytes, bounces, .. } = self.piece;
        match read {
            Err(error) => return Some(Err(error)),
            Ok(read) if read < skip + bytes => return Some(Err(ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
        }
        let (wanted, rest) = into[self.done as usize..].split_at_mut(bytes as usize);
        match self.bounce.as_ref().filter(|_| bounces) {
            Some(bounce) => wanted.copy_from_slice(&bounce[skip as usize..][..bytes as usize]),
            // Bytes of the last block above the end must not be visible yet.
            None => rest[..(len - bytes) as usize].fill(0),
        }
        self.done += bytes;
        if self.done == self.bytes {
            return Some(Ok(self.bytes));
        }
        self.piece = bounce::next(left(into, self.offset, self.bytes, self.done), self.aligned);
        None
    }
}

/// The rest of a read after `done` bytes.
fn left(into: &[u8], offset: u64, bytes: u64, done: u64) -> Left {
    let address = into.as_ptr().addr() as u64 + done;
    Left { address, offset: offset + done, bytes: bytes - done, room: into.len() as u64 - done }
}

/// Reads at `offset` the bytes below `len`. Returns their number; fewer bytes are an error.
pub(crate) fn read_up_to(
    backend: &dyn Backend,
    into: &mut [u8],
    offset: u64,
    len: u64,
    alignment: Alignment,
) -> Result<u64> {
    let bytes = len.saturating_sub(offset).min(into.len() as u64);
    if bytes == 0 {
        return Ok(0);
    }
    let mut reading = Reading::of(into, offset, bytes, alignment);
    loop {
        let (memory, start) = reading.target(into, 0);
        let read = io::read_fully(backend, memory, start, alignment.offset);
        if let Some(result) = reading.on_result(into, read) {
            return result;
        }
    }
}
