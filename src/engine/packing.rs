//! Packs the data of a request into whole blocks, before it is submitted. The thread that performs
//! the request does this. The data stays in memory, because no operation is answered before.
//!
//! A positional write may begin and end inside a block. The rest of these blocks is read from the
//! file. The core allows one request at a time that writes a block.
//!
//! The content of a partial last block is kept here, since the next request rewrites it. The core
//! allows one such request at a time.

use super::core::{Edge, Fill, SmallVec1, Work};
use super::io::read_fully;
use crate::backend::Backend;
use crate::buffer::{Buffer, Segment};
use crate::rules::merge::{SEGMENTS_MAX, Span};
use crate::rules::pack::{self, PackedRun, Shape};
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

    /// Packs the data of a request into whole blocks, if it is not that already. Fails if the rest
    /// of its first or last block is not known and cannot be read; then nothing has changed.
    pub fn pack(
        &self,
        work: &mut Work,
        backend: &dyn Backend,
        counters: &Counters,
    ) -> io::Result<()> {
        let Work::Write { segments, offset, fill, edges, composed, .. } = work else {
            return Ok(());
        };
        let (shape, kept_to) = self.shape_of(*fill, *offset);
        let edges = std::mem::take(edges);
        let views = || segments.iter().map(|segment| (segment.addresses().start, segment.len()));
        if pack::fits(*offset, views(), shape) {
            return Ok(());
        }
        let block = shape.block;
        let runs = pack::runs(*offset, views(), shape, SEGMENTS_MAX);
        let bytes = runs
            .iter()
            .map(|run| if let PackedRun::Composed(len) = run { *len } else { 0 })
            .sum::<u64>();
        let end = *offset + segments.iter().map(Segment::len).sum::<u64>();
        let span = Span { start: *offset, end }.whole(block);
        let (before, behind) = (*offset - span.start, span.end - end);
        let mut memory = self.memory(bytes);
        let is_one = span.len() == block;
        if behind > 0 && (before == 0 || !is_one) {
            let last = &mut memory[(bytes - block) as usize..bytes as usize];
            self.fill(last, span.end - block, kept_to, &edges, backend)?;
        }
        if before > 0 {
            let first = &mut memory[..block as usize];
            self.fill(first, span.start, kept_to, &edges, backend)?;
            count(&counters.tail_rewrites, u64::from(*fill == Fill::Appended));
        }
        count(&counters.copied_bytes, bytes);

        let mut records = Records { segments, next: 0, done: 0 };
        let mut free = &mut memory[..bytes as usize];
        let mut blocks = SmallVec1::with_capacity(runs.len());
        let mut filled = before as usize;
        for run in &runs {
            blocks.push(match run {
                PackedRun::Direct(len) => records.take(*len),
                PackedRun::Composed(len) => {
                    let (part, rest) = free.split_at_mut(*len as usize);
                    free = rest;
                    records.copy(&mut part[filled..]);
                    filled = 0;
                    Segment::of(part)
                }
            });
        }
        if *fill == Fill::Appended && behind > 0 {
            let last = blocks.last().expect("there are records");
            let kept = last.len() - block..last.len() - behind;
            last.part(kept).show(|bytes| self.keep(span.end - block, bytes));
        }
        (*segments, *offset, *composed) = (blocks, span.start, Some(memory));
        Ok(())
    }

    /// The start and length in bytes of a block to read before a positional write is packed. None
    /// if the write has all that it needs.
    pub fn missing_edge(&self, work: &Work) -> Option<(u64, u64)> {
        let Work::Write { offset, fill: fill @ Fill::Kept(_), edges, .. } = work else {
            return None;
        };
        let (Shape { block, .. }, kept_to) = self.shape_of(*fill, *offset);
        let end = *offset + work.len();
        let span = Span { start: *offset, end }.whole(block);
        let ends = [(*offset > span.start, span.start), (end < span.end, span.end - block)];
        let missing =
            |start: &u64| *start < kept_to && !edges.iter().any(|edge: &Edge| edge.start == *start);
        let mut parts = ends.into_iter().filter_map(|(is_part, start)| is_part.then_some(start));
        parts.find(missing).map(|start| (start, block))
    }

    /// The units of a write at `offset`, and the end of what stays around it.
    fn shape_of(&self, fill: Fill, offset: u64) -> (Shape, u64) {
        match fill {
            // Records are appended at the end of the file.
            Fill::Appended => (self.shape, offset),
            Fill::Kept(kept_to) => (Shape { block: self.align, ..self.shape }, kept_to),
        }
    }

    /// Fills a block with what the file keeps there below `kept_to`, and zeros above.
    fn fill(
        &self,
        block: &mut [u8],
        start: u64,
        kept_to: u64,
        edges: &[Edge],
        backend: &dyn Backend,
    ) -> io::Result<()> {
        let kept = kept_to.saturating_sub(start).min(block.len() as u64) as usize;
        if kept > 0 && !self.copy_last(&mut block[..kept], start) {
            let read = match edges.iter().find(|edge| edge.start == start) {
                Some(edge) => {
                    block.copy_from_slice(&edge.memory[..block.len()]);
                    edge.read
                }
                None => read_fully(backend, block, start, self.align)?,
            };
            // After a short read, the file system has lost part of the file.
            if read < kept as u64 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        block[kept..].fill(0);
        Ok(())
    }

    /// Copies the kept block, if it is this one.
    fn copy_last(&self, into: &mut [u8], start: u64) -> bool {
        let last = self.last.lock();
        let is_it = last.start == start && last.bytes.len() == into.len();
        if is_it {
            into.copy_from_slice(&last.bytes);
        }
        is_it
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
