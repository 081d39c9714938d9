//! The blocks that threads write: noise of their job, and in every sector a stamp that says who wrote the block, and
//! as which of its writes. Bytes only.
//!
//! So a write has one content, and what is read back is compared with all of it. A stamp does not name the offset,
//! since an appender learns it only afterwards. That takes nothing from it: no two writes of a run have the same job and
//! number, and the ledger notes at which one offset each was acknowledged, so a block that lies anywhere else is missing
//! there.

/// Pieces of a block that are stamped each. No device writes less at once, so that a request torn or misplaced inside a
/// block shows even if an earlier write of the same job lies below.
const PIECE_BYTES: usize = 512;
const STAMP_BYTES: usize = 24;

/// Who wrote a block. Sequence numbers of a job start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub job: u32,
    pub sequence: u64,
}

impl Stamp {
    /// Marks `block`, of any length: of a piece that is too short, as far as it goes. `salt` tells this run from all others, whose blocks may still lie on the disk.
    pub fn put(self, salt: u64, block: &mut [u8]) {
        for (piece, bytes) in block.chunks_mut(PIECE_BYTES).enumerate() {
            let len = bytes.len().min(STAMP_BYTES);
            bytes[..len].copy_from_slice(&self.encode(salt, piece)[..len]);
        }
    }

    /// Whether every sector of `block` is marked so.
    pub fn is_on(self, salt: u64, block: &[u8]) -> bool {
        let mut pieces = block.chunks(PIECE_BYTES).enumerate();
        pieces.all(|(piece, bytes)| bytes.starts_with(&self.encode(salt, piece)))
    }

    fn encode(self, salt: u64, piece: usize) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        // What tells most comes first, for pieces that have no room for all of it.
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.job.to_le_bytes());
        bytes[12..16].copy_from_slice(&(piece as u32).to_le_bytes());
        bytes[16..].copy_from_slice(&salt.to_le_bytes());
        bytes
    }
}

/// Fills a block with the noise of a job, for its stamps to be put on.
pub fn fill_as_job(job: u32, block: &mut [u8]) {
    fill_with_noise(u64::from(job) + 1, block);
}

/// Fills a block with noise that no job has: what lay there before a run.
pub fn fill_as_old(block: &mut [u8]) {
    fill_with_noise(0, block);
}

/// Bytes that no device can compress or share between seeds.
fn fill_with_noise(seed: u64, block: &mut [u8]) {
    // An odd factor keeps seeds apart, and makes none of ours 0, where the generator would stay.
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
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
