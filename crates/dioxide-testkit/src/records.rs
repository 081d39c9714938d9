//! Self-describing bytes. Each unit of a record (a block, a sector) has a stamp from which all its
//! bytes follow. So does a record of any length as a whole.

/// The identity of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The writer of the record.
    pub writer: u64,
    /// The index of the record among the writer's.
    pub number: u64,
    /// The index of the unit in the record.
    pub part: u64,
}

/// Above any record; keeps garbage from overflowing.
const PARTS_MAX: u64 = 1 << 32;

impl Stamp {
    fn words(self, unit_len: usize) -> impl Iterator<Item = u64> {
        let parts = scramble(self.part + 7) ^ scramble(unit_len as u64);
        let key = scramble(self.writer) ^ scramble(self.number).rotate_left(21) ^ parts;
        let filler =
            (3..unit_len as u64 / 8).map(move |i| key.wrapping_mul(2 * i + 1) ^ (key >> (i % 32)));
        [self.writer, self.number, self.part].into_iter().chain(filler)
    }

    /// Fills `unit`, whose length is a multiple of 8 bytes.
    pub fn fill(self, unit: &mut [u8]) {
        let words = self.words(unit.len());
        for (bytes, word) in unit.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// The stamp of a unit if every byte of it is right. Zeros, old content and partial units have
    /// none.
    pub fn of(unit: &[u8]) -> Option<Stamp> {
        let word =
            |i: usize| Some(u64::from_le_bytes(unit.get(i * 8..i * 8 + 8)?.try_into().ok()?));
        let stamp = Stamp { writer: word(0)?, number: word(1)?, part: word(2)? };
        let whole =
            || unit.chunks_exact(8).zip(stamp.words(unit.len())).all(|(b, w)| b == w.to_le_bytes());
        (stamp.part < PARTS_MAX && whole()).then_some(stamp)
    }
}

/// A record of any length, as in logs: its length, a checksum, its writer, its number, and bytes
/// that follow from these. One shorter than [`Frame::HEADER`] has only such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    /// The writer of the record, below 2³².
    pub writer: u64,
    /// The index of the record among the writer's, below 2³².
    pub number: u64,
    /// Its length in bytes, below 2³².
    pub len: u64,
}

impl Frame {
    /// Minimum length that [`Frame::of`] finds.
    pub const HEADER: usize = 16;

    /// Its bytes in the file.
    pub fn bytes(self) -> Vec<u8> {
        let key =
            scramble(self.writer) ^ scramble(self.number).rotate_left(21) ^ scramble(self.len);
        let mut bytes = vec![0; self.len as usize];
        for (bytes, i) in bytes.chunks_mut(8).zip(3..) {
            let word: u64 = key.wrapping_mul(2 * i + 1) ^ (key >> (i % 32));
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        if bytes.len() >= Self::HEADER {
            bytes[8..12].copy_from_slice(&(self.writer as u32).to_le_bytes());
            bytes[12..16].copy_from_slice(&(self.number as u32).to_le_bytes());
            let sum = crc32fast::hash(&bytes[8..]);
            bytes[..4].copy_from_slice(&(self.len as u32).to_le_bytes());
            bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// The record at the start of `bytes` if it is whole, found by length and checksum as a log
    /// does after a crash.
    pub fn of(bytes: &[u8]) -> Option<Frame> {
        let word =
            |i: usize| Some(u32::from_le_bytes(bytes.get(i * 4..i * 4 + 4)?.try_into().ok()?));
        let frame =
            Frame { writer: word(2)?.into(), number: word(3)?.into(), len: word(0)?.into() };
        let rest =
            bytes.get(8..frame.len as usize).filter(|rest| rest.len() + 8 >= Self::HEADER)?;
        (crc32fast::hash(rest) == word(1)?).then_some(frame)
    }

    /// All records of a log with their offsets, found as its owner does after a crash. A record
    /// begins where the previous one ends or at the next block.
    pub fn find_all(log: &[u8], block: u64) -> Vec<(u64, Frame)> {
        let mut found = Vec::new();
        let mut at = 0u64;
        let first_of = |at: u64| Frame::of(log.get(at as usize..)?);
        loop {
            let next = [at, at.next_multiple_of(block)].map(|at| Some((at, first_of(at)?)));
            let Some((offset, frame)) = next.into_iter().flatten().next() else { return found };
            found.push((offset, frame));
            at = offset + frame.len;
        }
    }
}

fn scramble(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// Reproducible random numbers.
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(scramble(seed))
    }

    /// In `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = scramble(self.0);
        self.0 % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { writer: 3, number: 4, part: 5 };

    #[test]
    fn a_unit_tells_its_stamp_and_any_flipped_byte_spoils_it() {
        let mut unit = [0; 512];
        STAMP.fill(&mut unit);
        assert_eq!(Stamp::of(&unit), Some(STAMP));
        for i in 0..unit.len() {
            unit[i] ^= 1;
            assert_eq!(Stamp::of(&unit), None, "byte {i}");
            unit[i] ^= 1;
        }
    }

    #[test]
    fn what_is_not_a_unit_has_no_stamp() {
        let mut unit = [0; 4096];
        STAMP.fill(&mut unit);
        for other in [&unit[..512], &unit[..7], &[][..], &[0; 512], &[0xA5; 512]] {
            assert_eq!(Stamp::of(other), None);
        }
    }

    const FRAME: Frame = Frame { writer: 3, number: 4, len: 90 };

    #[test]
    fn a_frame_is_found_and_any_flipped_byte_spoils_it() {
        let mut bytes = FRAME.bytes();
        assert_eq!((bytes.len(), Frame::of(&bytes)), (90, Some(FRAME)));
        for i in 0..bytes.len() {
            bytes[i] ^= 1;
            assert_eq!(Frame::of(&bytes), None, "byte {i}");
            bytes[i] ^= 1;
        }
        assert_eq!(Frame::of(&bytes[..89]), None);
        assert_eq!(Frame::of(&[bytes, vec![7; 9]].concat()), Some(FRAME));
        assert_eq!([Frame::of(&[]), Frame::of(&[0; 512]), Frame::of(&[0xA5; 512])], [None; 3]);
    }

    #[test]
    fn frames_of_every_length_are_different_bytes() {
        for len in 1..100 {
            let bytes = Frame { len, ..FRAME }.bytes();
            assert_eq!(bytes.len() as u64, len);
            assert_eq!(Frame::of(&bytes).is_some(), len >= Frame::HEADER as u64);
            assert!(len < 8 || bytes != Frame { len, number: 5, ..FRAME }.bytes());
        }
    }

    #[test]
    fn the_frames_of_a_log_are_found_side_by_side_and_at_blocks() {
        let frame = |number| Frame { number, ..FRAME };
        let mut log = [frame(0).bytes(), frame(1).bytes()].concat();
        log.resize(512, 0);
        log.extend(frame(2).bytes());
        let mut found = vec![(0, frame(0)), (90, frame(1)), (512, frame(2))];
        assert_eq!(Frame::find_all(&log, 512), found);
        // A torn record ends the log, except for records that begin at the next block.
        log[100] ^= 1;
        found.remove(1);
        assert_eq!(Frame::find_all(&log, 512), found);
        log[520] ^= 1;
        assert_eq!(Frame::find_all(&log, 512), found[..1]);
    }
}
