//! The content of a disk: what reads see, and the stable content below it.

use std::collections::BTreeMap;
use std::ops::Range;

pub(super) const BLOCK: usize = 4096;
pub(super) const SECTOR: usize = 512;

/// Content of a block never written, so that stale data shows.
const OLD_CONTENT: u8 = 0xA5;

pub(super) struct Image {
    bytes: Vec<u8>,
    /// Stable content of the blocks where it differs, by block number.
    stable: BTreeMap<usize, [u8; BLOCK]>,
}

impl Image {
    pub(super) fn new(size: usize) -> Image {
        Image { bytes: vec![OLD_CONTENT; size.next_multiple_of(BLOCK)], stable: BTreeMap::new() }
    }

    /// Resets it to its initial content.
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

    /// For a write to the cache; the stable content stays as it is.
    pub(super) fn cached_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let content = &self.bytes[block * BLOCK..][..BLOCK];
            self.stable.entry(block).or_insert_with(|| content.try_into().expect("one block"));
        }
        &mut self.bytes[range]
    }

    /// For a write that is stable at once; only while the cache is empty.
    pub(super) fn stable_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        debug_assert!(self.stable.is_empty());
        &mut self.bytes[range]
    }

    /// Makes everything stable.
    pub(super) fn settle(&mut self) {
        self.stable.clear();
    }

    /// Drops the cache.
    pub(super) fn go_back(&mut self) {
        for (block, content) in std::mem::take(&mut self.stable) {
            self.bytes[block * BLOCK..][..BLOCK].copy_from_slice(&content);
        }
    }
}
