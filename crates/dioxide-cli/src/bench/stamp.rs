//! The content of written blocks: noise of their job, and in every sector a stamp with the writer
//! and the number of its write. Bytes only.
//!
//! Every write has a unique content, and verification compares all of it. A stamp does not name the
//! offset, because an appender learns it only afterwards. That weakens nothing: no two writes of a
//! run have the same job and number. The ledger records one offset for each, so a misplaced block
//! is missing at its own.

/// The stamped pieces of a block. No device writes less at once. A torn or misplaced request
/// therefore shows even over an earlier write of the same job.
const PIECE_BYTES: usize = 512;
const STAMP_BYTES: usize = 24;

/// The writer of a block. Sequence numbers of a job start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub job: u32,
    pub sequence: u64,
}

impl Stamp {
    /// Stamps `block`, of any length; a short piece has a part of the stamp. `salt` is unique for
    /// this run, because the disk may still have blocks of others.
    pub fn put(self, salt: u64, block: &mut [u8]) {
        for (piece, bytes) in block.chunks_mut(PIECE_BYTES).enumerate() {
            let len = bytes.len().min(STAMP_BYTES);
            bytes[..len].copy_from_slice(&self.encode(salt, piece)[..len]);
        }
    }

    /// Whether every sector of `block` has this stamp.
    pub fn is_on(self, salt: u64, block: &[u8]) -> bool {
        let mut pieces = block.chunks(PIECE_BYTES).enumerate();
        pieces.all(|(piece, bytes)| bytes.starts_with(&self.encode(salt, piece)))
    }

    fn encode(self, salt: u64, piece: usize) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        // The most distinctive bytes come first, for short pieces.
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.job.to_le_bytes());
        bytes[12..16].copy_from_slice(&(piece as u32).to_le_bytes());
        bytes[16..].copy_from_slice(&salt.to_le_bytes());
        bytes
    }
}

/// Fills a block with the noise of a job, before it is stamped.
pub fn fill_as_job(job: u32, block: &mut [u8]) {
    fill_with_noise(u64::from(job) + 1, block);
}

/// Fills a block with noise that no job has: the content before a run.
pub fn fill_as_old(block: &mut [u8]) {
    fill_with_noise(0, block);
}

/// Bytes that no device can compress, or deduplicate between seeds.
fn fill_with_noise(seed: u64, block: &mut [u8]) {
    // An odd factor separates seeds, and maps none of ours to 0, a fixed point of the generator.
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for word in block.chunks_mut(8) {
        // A xorshift generator: random enough for a disk.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

/// A number that is unique to this run, for its stamps.
pub fn salt() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { job: 7, sequence: 9 };

    fn stamped(stamp: Stamp, salt: u64) -> Vec<u8> {
        let mut block = vec![0; 3 * PIECE_BYTES];
        stamp.put(salt, &mut block);
        block
    }

    #[test]
    fn every_piece_is_marked_and_differs() {
        let block = stamped(STAMP, 1);
        let pieces: Vec<&[u8]> = block.chunks(PIECE_BYTES).collect();
        assert!(pieces[0] != pieces[1] && pieces[1] != pieces[2] && pieces[0] != pieces[2]);
        let later = stamped(Stamp { sequence: 10, ..STAMP }, 1);
        assert!(pieces.into_iter().zip(later.chunks(PIECE_BYTES)).all(|(one, other)| one != other));
    }

    #[test]
    fn short_pieces_are_marked_as_far_as_they_go() {
        for len in [1, 23, 24, 512, 513, 535, 536, 1000] {
            let marked = |stamp: Stamp| {
                let mut record = vec![0; len];
                stamp.put(1, &mut record);
                record
            };
            let record = marked(STAMP);
            assert_ne!(record, marked(Stamp { sequence: 10, ..STAMP }), "{len}");
            assert_eq!(record[..len.min(8)], 9u64.to_le_bytes()[..len.min(8)], "{len}");
        }
    }

    #[test]
    fn other_runs_writers_and_writes_differ() {
        let block = stamped(STAMP, 1);
        assert_ne!(block, stamped(STAMP, 2));
        assert_ne!(block, stamped(Stamp { job: 8, ..STAMP }, 1));
        assert_ne!(block, stamped(Stamp { sequence: 8, ..STAMP }, 1));
        assert_ne!(salt(), salt());
    }

    #[test]
    fn noise_differs_between_writers_and_from_what_was_there() {
        let noise = |fill: &dyn Fn(&mut [u8])| {
            let mut block = vec![0; 4096];
            fill(&mut block);
            assert!(block.windows(8).all(|bytes| bytes != [0; 8]));
            block
        };
        let mut all: Vec<_> = (0..8).map(|job| noise(&|block| fill_as_job(job, block))).collect();
        all.push(noise(&fill_as_old));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 9);
    }
}
