//! Bytes that prove themselves: each unit of a record (a block, a sector) says what it is, and every byte of it
//! follows from that.

/// What a unit says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Who wrote the record.
    pub writer: u64,
    /// Which of the writer's records it is.
    pub number: u64,
    /// Which unit of the record it is.
    pub part: u64,
}

/// Reached by no record; keeps garbage from overflowing.
const PARTS_MAX: u64 = 1 << 32;

impl Stamp {
    fn words(self, unit_len: usize) -> impl Iterator<Item = u64> {
        let parts = scramble(self.part + 7) ^ scramble(unit_len as u64);
        let key = scramble(self.writer) ^ scramble(self.number).rotate_left(21) ^ parts;
        let filler = (3..unit_len as u64 / 8).map(move |i| key.wrapping_mul(2 * i + 1) ^ (key >> (i % 32)));
        [self.writer, self.number, self.part].into_iter().chain(filler)
    }

    /// Makes `unit`, of a multiple of 8 bytes, say this.
    pub fn fill(self, unit: &mut [u8]) {
        let words = self.words(unit.len());
        for (bytes, word) in unit.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// The stamp of a unit, if every byte of it is right. Zeros, old content and parts of units have none.
    pub fn of(unit: &[u8]) -> Option<Stamp> {
        let word = |i: usize| Some(u64::from_le_bytes(unit.get(i * 8..i * 8 + 8)?.try_into().ok()?));
        let stamp = Stamp { writer: word(0)?, number: word(1)?, part: word(2)? };
        let whole = || unit.chunks_exact(8).zip(stamp.words(unit.len())).all(|(b, w)| b == w.to_le_bytes());
        (stamp.part < PARTS_MAX && whole()).then_some(stamp)
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
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(scramble(seed))
    }

    /// From 0 to `end`, exclusive.
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
}
