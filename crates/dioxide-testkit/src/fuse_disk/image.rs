//! The content of a disk: what reads see, and below it what is stable.

use std::collections::BTreeMap;
use std::ops::Range;

pub(super) const BLOCK: usize = 4096;
pub(super) const SECTOR: usize = 512;

/// What an unwritten place of the disk holds, so that stale data shows.
const OLD_CONTENT: u8 = 0xA5;

pub(super) struct Image {
    bytes: Vec<u8>,
    /// The stable content of the blocks that differ from it, by their number.
    stable: BTreeMap<usize, [u8; BLOCK]>,
}

impl Image {
    pub(super) fn new(size: usize) -> Image {
        Image { bytes: vec![OLD_CONTENT; size.next_multiple_of(BLOCK)], stable: BTreeMap::new() }
    }

    /// Becomes what it was when it was made.
    pub(super) fn erase(&mut self) {
        self.stable.clear();
        self.bytes.fill(OLD_CONTENT);
    }

    pub(super) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// To be written; what is stable stays as it is.
    pub(super) fn cached_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let content = &self.bytes[block * BLOCK..][..BLOCK];
            self.stable.entry(block).or_insert_with(|| content.try_into().expect("one block"));
        }
        &mut self.bytes[range]
    }

    /// To be written and stable at once; only while all is stable.
    pub(super) fn stable_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        debug_assert!(self.stable.is_empty());
        &mut self.bytes[range]
    }

    /// Makes everything stable.
    pub(super) fn settle(&mut self) {
        self.stable.clear();
    }

    /// Goes back to what is stable.
    pub(super) fn go_back(&mut self) {
        for (block, content) in std::mem::take(&mut self.stable) {
            self.bytes[block * BLOCK..][..BLOCK].copy_from_slice(&content);
        }
    }
}
