//! How far a log is stable, for readers of other processes.

use crate::format::{u32_at, u64_at};
use crate::lsn::Lsn;

const MAGIC: [u8; 8] = *b"DIOXMARK";
const CHECKSUM_AT: usize = 40;

/// The state of a log that other processes may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// A random number of the writer, another one after each open.
    pub epoch: u64,
    /// The number of frames that it has made stable.
    pub frames: u64,
    /// The number of truncations of the back that it has begun or given up.
    pub truncations: u64,
    /// The LSN behind the last stable record.
    pub next: Lsn,
}

impl Mark {
    /// The number of bytes of a mark.
    pub const BYTES: usize = 44;

    /// The bytes of the mark, with a checksum.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.frames.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.truncations.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.next.0.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The mark of these bytes. None if they are not one, or a part of two.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::BYTES)?;
        let is_whole = crc32c::crc32c(&bytes[..CHECKSUM_AT]) == u32_at(bytes, CHECKSUM_AT);
        let [epoch, frames, truncations, next] = [8, 16, 24, 32].map(|at| u64_at(bytes, at));
        let mark = Self { epoch, frames, truncations, next: Lsn(next) };
        (bytes[..8] == MAGIC && is_whole).then_some(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_two_marks_is_one() {
        let one = Mark { epoch: 7, frames: 0x100_0000, truncations: 0x1_0000, next: Lsn(1000) };
        let (frames, truncations, next) = (0xFF_FFFF, 0xFFFF, Lsn(0x1234_5678_9ABC));
        let other = Mark { frames, truncations, next, ..one }.encode();
        assert_eq!(Mark::decode(&one.encode()), Some(one));
        for at in 17..Mark::BYTES {
            let mut mixed = one.encode();
            mixed[..at].copy_from_slice(&other[..at]);
            assert_eq!(Mark::decode(&mixed), None, "{at}");
        }
        assert_eq!(Mark::decode(&[]), None);
    }
}
