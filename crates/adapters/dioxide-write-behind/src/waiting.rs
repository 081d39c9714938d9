//! Disjoint ranges of bytes that wait to be written.

use dioxide::Buffer;
use std::collections::BTreeMap;

/// Pieces by their offset. They do not overlap.
#[derive(Debug, Default)]
pub struct Waiting {
    pieces: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Waiting {
    /// Adds a piece that overlaps none.
    pub fn add(&mut self, offset: u64, piece: Vec<u8>) {
        debug_assert!(!self.overlaps(offset, piece.len()));
        self.bytes += piece.len();
        self.pieces.insert(offset, piece);
    }

    /// Replaces bytes within one piece. Returns whether there is such a piece.
    pub fn patch(&mut self, offset: u64, data: &[u8]) -> bool {
        let Some((at, piece)) = self.pieces.range_mut(..=offset).next_back() else { return false };
        let within = piece.get_mut((offset - at) as usize..).and_then(|p| p.get_mut(..data.len()));
        within.map(|bytes| bytes.copy_from_slice(data)).is_some()
    }

    /// Copies bytes that lie within one piece. Returns whether there is such a piece.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some((at, piece)) = self.pieces.range(..=offset).next_back() else { return false };
        let within = piece.get((offset - at) as usize..).and_then(|piece| piece.get(..into.len()));
        within.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    /// Whether a piece has bytes of the range.
    pub fn overlaps(&self, offset: u64, len: usize) -> bool {
        let below = self.pieces.range(..offset.saturating_add(len as u64)).next_back();
        len > 0 && below.is_some_and(|(at, piece)| at + piece.len() as u64 > offset)
    }

    /// The end of the highest piece.
    pub fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(at, piece)| at + piece.len() as u64)
    }

    /// The bytes of all pieces.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Copies of the pieces, by offset. Neighbours are joined.
    pub fn runs(&self) -> Vec<(u64, Buffer)> {
        let mut runs = Vec::new();
        let mut pieces = self.pieces.iter().peekable();
        while let Some((at, first)) = pieces.next() {
            let mut run = vec![first];
            let mut len = first.len();
            while let Some((_, piece)) = pieces.next_if(|(next, _)| **next == at + len as u64) {
                len += piece.len();
                run.push(piece);
            }
            let mut joined = Buffer::zeroed(len);
            let mut rest = &mut joined[..];
            for piece in run {
                let (here, after) = rest.split_at_mut(piece.len());
                here.copy_from_slice(piece);
                rest = after;
            }
            runs.push((*at, joined));
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[(u64, &[u8])]) -> Waiting {
        let mut waiting = Waiting::default();
        pieces.iter().for_each(|(at, piece)| waiting.add(*at, piece.to_vec()));
        waiting
    }

    #[test]
    fn neighbours_are_joined() {
        let waiting = of(&[(12, b"cd"), (3, b"x"), (10, b"ab"), (14, b"efg")]);
        let runs = waiting.runs().into_iter().map(|(at, run)| (at, run.to_vec()));
        let joined = [(3, b"x".to_vec()), (10, b"abcdefg".to_vec())];
        assert_eq!(runs.collect::<Vec<_>>(), joined);
        assert_eq!((waiting.bytes(), waiting.end()), (8, 17));
    }

    #[test]
    fn ranges_overlap_by_bytes() {
        let waiting = of(&[(10, b"abc"), (20, b"d")]);
        for (offset, len, overlaps) in [
            (0, 10, false),
            (0, 11, true),
            (12, 1, true),
            (13, 7, false),
            (13, 8, true),
            (11, 0, false),
            (21, 9, false),
            (u64::MAX, 9, false),
        ] {
            assert_eq!(waiting.overlaps(offset, len), overlaps, "{offset}+{len}");
        }
    }

    #[test]
    fn a_patch_and_a_read_lie_within_one_piece() {
        let mut waiting = of(&[(10, b"abc"), (13, b"def")]);
        assert!(waiting.patch(11, b"XY") && waiting.patch(10, b"") && waiting.patch(13, b"Z"));
        assert!(!waiting.patch(12, b"--") && !waiting.patch(9, b"-") && !waiting.patch(16, b"-"));
        let mut read = [0; 3];
        assert!(waiting.read(10, &mut read));
        assert_eq!(&read, b"aXY");
        assert!(waiting.read(13, &mut read));
        assert_eq!(&read, b"Zef");
        assert!(!waiting.read(11, &mut read));
    }
}
