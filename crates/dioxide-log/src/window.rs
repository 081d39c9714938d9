//! A part of a segment in memory.

use crate::error::Result;
use crate::format::{BLOCK_BYTES, block_of};
use crate::storage::Segment;
use dioxide::Buffer;

/// A view of a segment that moves forward.
#[derive(Debug)]
pub struct Window {
    buffer: Buffer,
    /// The number of bytes to read at least.
    least: u64,
    /// The offset of the first byte in its segment.
    start: u64,
    /// The number of bytes that were read.
    filled: usize,
}

impl Window {
    /// An empty window that reads at least this many bytes at once.
    pub fn new(bytes: usize) -> Self {
        Self { buffer: Buffer::zeroed(bytes), least: bytes as u64, start: 0, filled: 0 }
    }

    /// The bytes from an offset on, as far as they are in memory.
    pub fn from(&self, offset: u64) -> &[u8] {
        let skipped =
            offset.checked_sub(self.start).map_or(self.filled, |skipped| skipped as usize);
        &self.buffer[skipped.min(self.filled)..self.filled]
    }

    /// Reads from an offset on: at least `bytes` bytes, or up to the end of the segment.
    pub fn load(&mut self, segment: &dyn Segment, offset: u64, bytes: u64) -> Result<()> {
        let start = block_of(offset);
        let left = segment.bytes().saturating_sub(start);
        let needed = (offset - start + bytes).next_multiple_of(BLOCK_BYTES).max(self.least);
        if needed.min(left) > self.buffer.len() as u64 {
            self.buffer = Buffer::zeroed(needed as usize);
        }
        let size = left.min(needed) as usize;
        self.filled = 0;
        segment.read(&mut self.buffer[..size], start)?;
        (self.start, self.filled) = (start, size);
        Ok(())
    }

    /// Forgets the content.
    pub fn clear(&mut self) {
        self.filled = 0;
    }
}
