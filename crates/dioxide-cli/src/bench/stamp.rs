//! Stamps: who wrote a block, and as which of its writes, in every 4 KiB piece of it. Bytes only.
//!
//! A stamp does not name the offset, since an appender learns it only afterwards; the ledger knows it.

/// Pieces of a block that are stamped each, so that a request torn or misplaced inside a block shows.
const PIECE_BYTES: usize = 4096;
const STAMP_BYTES: usize = 24;

/// Who wrote a block. Sequence numbers of a job start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub job: u32,
    pub sequence: u64,
}

impl Stamp {
    /// Marks `block`. `salt` tells this run from all others, whose blocks may still lie on the disk.
    pub fn put(self, salt: u64, block: &mut [u8]) {
        for (piece, bytes) in block.chunks_mut(PIECE_BYTES).enumerate() {
            bytes[..STAMP_BYTES].copy_from_slice(&self.encode(salt, piece));
        }
    }

    /// Whether all of `block` carries this stamp.
    pub fn is_on(self, salt: u64, block: &[u8]) -> bool {
        let mut pieces = block.chunks(PIECE_BYTES).enumerate();
        pieces.all(|(piece, bytes)| bytes.starts_with(&self.encode(salt, piece)))
    }

    fn encode(self, salt: u64, piece: usize) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&salt.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.job.to_le_bytes());
        bytes[12..16].copy_from_slice(&(piece as u32).to_le_bytes());
        bytes[16..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }
}

/// Fills a block with bytes that no device can compress or share between writers.
pub fn fill_with_noise(seed: u64, block: &mut [u8]) {
    let mut state = seed | 1;
    for word in block.chunks_mut(8) {
        // A xorshift generator: good enough to look random to a disk.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

/// A number that no other run has, to tell their stamps apart.
pub fn salt() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { job: 7, sequence: 9 };

    #[test]
    fn every_piece_is_marked() {
        let mut block = vec![0; 3 * PIECE_BYTES];
        STAMP.put(1, &mut block);
        assert!(STAMP.is_on(1, &block));
        block.copy_within(0..PIECE_BYTES, PIECE_BYTES);
        assert!(!STAMP.is_on(1, &block), "a piece in the wrong place");
    }

    #[test]
    fn other_runs_writers_and_writes_differ() {
        let mut block = vec![0; 512];
        STAMP.put(1, &mut block);
        assert!(!STAMP.is_on(2, &block));
        assert!(!Stamp { job: 8, ..STAMP }.is_on(1, &block));
        assert!(!Stamp { sequence: 8, ..STAMP }.is_on(1, &block));
        assert_ne!(salt(), salt());
    }

    #[test]
    fn noise_differs_between_writers() {
        let (mut one, mut two) = (vec![0; 4096], vec![0; 4096]);
        fill_with_noise(2, &mut one);
        fill_with_noise(4, &mut two);
        assert_ne!(one, two);
        assert!(one.windows(8).all(|bytes| bytes != [0; 8]));
    }
}
