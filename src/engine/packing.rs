//! Packs the records of a request into whole blocks, before it is submitted. The thread that
//! performs the request does this. The records stay in memory, because none is answered before.
//!
//! The content of a partial last block is kept here, since the next request rewrites it. The core
//! allows one such request at a time.

use super::core::{SmallVec1, Work};
use super::io::read_fully;
use crate::backend::Backend;
use crate::buffer::{Buffer, Segment};
use crate::rules::merge::{SEGMENTS_MAX, Span};
use crate::rules::pack::{self, Run, Shape};
use crate::stats::{Counters, count};
use crate::sync::Mutex;
use crate::sys::probe::Alignment;
use std::io;

/// Number of spare buffers for the next requests, and the largest length in bytes of each. An idle
/// file must not keep much. A long request costs far more than its allocation.
const SPARE_MAX: usize = 2;
const SPARE_MAX_BYTES: usize = 256 << 10;

/// Packs records, with the kept last block and spare buffers.
#[derive(Debug)]
pub(super) struct Packer {
    shape: Shape,
    /// Alignment of reads in bytes.
    align: u64,
    last: Mutex<LastBlock>,
    spare: Mutex<Vec<Buffer>>,
}

/// Content of the block that was the partial last block of the file when it was written.
#[derive(Debug, Default)]
struct LastBlock {
    start: u64,
    bytes: Vec<u8>,
}

impl Packer {
    pub fn new(alignment: Alignment) -> Self {
        let Alignment { memory, offset: align, append: block } = alignment;
        Self {
            shape: Shape { block, memory },
            align,
            last: Mutex::default(),
            spare: Mutex::default(),
        }
    }

    /// Packs the data of a request into whole blocks, if it is not that already. Fails if its first
    /// block is not known and cannot be read; then nothing has changed.
    pub fn pack(
        &self,
        work: &mut Work,
        backend: &dyn Backend,
        counters: &Counters,
    ) -> io::Result<()> {
        let Work::Write { segments, offset, records: true, composed, .. } = work else {
            return Ok(());
        };
        let views = || segments.iter().map(|segment| (segment.addresses().start, segment.len()));
        if pack::fits(*offset, views(), self.shape) {
            return Ok(());
        }
        let block = self.shape.block;
        let runs = pack::runs(*offset, views(), self.shape, SEGMENTS_MAX);
        let bytes =
            runs.iter().map(|run| if let Run::Composed(len) = run { *len } else { 0 }).sum::<u64>();
        let end = *offset + segments.iter().map(Segment::len).sum::<u64>();
        let (start, before) = (*offset / block * block, *offset % block);
        let mut memory = self.memory(bytes);
        if before > 0 {
            self.begin_with(start, &mut memory[..block as usize], before as usize, backend)?;
            count(&counters.tail_rewrites, 1);
        }
        count(&counters.copied_bytes, bytes);

        let mut records = Records { segments, next: 0, done: 0 };
        let mut free = &mut memory[..bytes as usize];
        let mut blocks = SmallVec1::with_capacity(runs.len());
        let mut filled = before as usize;
        for run in &runs {
            blocks.push(match run {
                Run::Direct(len) => records.take(*len),
                Run::Composed(len) => {
                    let (part, rest) = free.split_at_mut(*len as usize);
                    free = rest;
                    let copied = records.copy(&mut part[filled..]);
                    part[filled + copied..].fill(0);
                    filled = 0;
                    Segment::of(part)
                }
            });
        }
        if !end.is_multiple_of(block) {
            let last = blocks.last().expect("there are records");
            let kept = last.len() - block..last.len() - block + end % block;
            last.part(kept).show(|bytes| self.keep(end / block * block, bytes));
        }
        (*segments, *offset, *composed) = (blocks, start, Some(memory));
        Ok(())
    }

    /// Copies the first `len` bytes of the block at `start` into `block`.
    fn begin_with(
        &self,
        start: u64,
        block: &mut [u8],
        len: usize,
        backend: &dyn Backend,
    ) -> io::Result<()> {
        let last = self.last.lock();
        if last.start == start && last.bytes.len() == len {
            block[..len].copy_from_slice(&last.bytes);
            return Ok(());
        }
        drop(last);
        // After a short read, the file system has lost part of the file.
        let read = read_fully(backend, block, start, self.align)?;
        if read < len as u64 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn keep(&self, start: u64, bytes: &[u8]) {
        let mut last = self.last.lock();
        last.start = start;
        last.bytes.clear();
        last.bytes.extend_from_slice(bytes);
    }

    /// Forgets the kept block if `span` overlaps it: another write makes it out of date.
    pub fn forget(&self, span: Span) {
        let mut last = self.last.lock();
        if span.overlaps(&Span::at(last.start, self.shape.block)) {
            last.bytes.clear();
        }
    }

    /// Returns a buffer of at least `bytes` bytes, with any content.
    fn memory(&self, bytes: u64) -> Buffer {
        let bytes = bytes as usize;
        let spare = self.spare.lock().pop().filter(|spare| spare.len() >= bytes);
        // A kept buffer should also serve slightly longer requests.
        let len = if bytes <= SPARE_MAX_BYTES { bytes.next_power_of_two() } else { bytes };
        spare.unwrap_or_else(|| Buffer::zeroed(len))
    }

    /// Takes back the buffer of a completed request, which no thread reads any more.
    pub fn take_back(&self, memory: Buffer) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX && memory.len() <= SPARE_MAX_BYTES {
            spare.push(memory);
        }
    }
}

/// Reads along the records of a request.
struct Records<'a> {
    segments: &'a [Segment],
    /// The record to read next, and how many bytes of it are done.
    next: usize,
    done: u64,
}

impl Records<'_> {
    /// Copies as much as is left, or as `into` takes. Returns the number of bytes.
    fn copy(&mut self, into: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < into.len()
            && let Some(len) = self.left()
        {
            let part = self.take(len.min((into.len() - copied) as u64));
            part.show(|bytes| into[copied..][..bytes.len()].copy_from_slice(bytes));
            copied += part.len() as usize;
        }
        copied
    }

    /// The next `len` bytes, all of one record.
    fn take(&mut self, len: u64) -> Segment {
        self.left();
        let part = self.segments[self.next].part(self.done..self.done + len);
        self.done += len;
        part
    }

    /// Bytes left of the next record, if there is one.
    fn left(&mut self) -> Option<u64> {
        while self.segments.get(self.next)?.len() == self.done {
            (self.next, self.done) = (self.next + 1, 0);
        }
        Some(self.segments[self.next].len() - self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_request_takes_no_more_memory_than_it_needs() {
        let packer = Packer::new(Alignment { memory: 512, offset: 512, append: 4096 });
        let long = SPARE_MAX_BYTES as u64 + 4096;
        for bytes in [long, long, 5 << 20] {
            let memory = packer.memory(bytes);
            assert_eq!(memory.len() as u64, bytes);
            packer.take_back(memory);
        }
        assert_eq!(packer.memory(4096).len(), 4096, "none of it is kept");
    }
}
