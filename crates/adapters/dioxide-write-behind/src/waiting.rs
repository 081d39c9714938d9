//! Disjoint ranges of bytes that wait to be written.

use dioxide::Buffer;
use std::collections::BTreeMap;
use std::ops::Range;

/// Offset and bytes.
type Piece<'a> = (&'a u64, &'a Vec<u8>);

/// A request of a small piece has so many bytes, because it covers whole blocks.
const REQUEST_BYTES_MIN: usize = 4096;

/// Pieces by their offset. They do not overlap.
#[derive(Debug, Default)]
pub struct Waiting {
    pieces: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

/// The bytes of a piece behind another one, and of its request.
fn cost(before: Option<Piece<'_>>, at: u64, piece: &[u8]) -> usize {
    match before.is_some_and(|(at_before, before)| at_before + before.len() as u64 == at) {
        // One request has both.
        true => piece.len(),
        false => piece.len().max(REQUEST_BYTES_MIN),
    }
}

impl Waiting {
    /// Adds a piece that overlaps none.
    pub fn add(&mut self, offset: u64, piece: Vec<u8>) {
        debug_assert!(!self.overlaps(offset, piece.len()));
        self.bytes += cost(self.pieces.range(..offset).next_back(), offset, &piece);
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

    /// The bytes of all pieces and their requests, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The pieces as requests, by offset. Pieces are joined if they are neighbours or have bytes of
    /// one block. A request covers whole blocks below `whole_end`, the end of the last whole block
    /// of the file.
    pub fn requests(&self, block_bytes: u64, whole_end: u64) -> Vec<Request> {
        let floor = |offset: u64| offset / block_bytes * block_bytes;
        let mut spans: Vec<(Range<u64>, Vec<Piece<'_>>)> = Vec::new();
        for (at, piece) in &self.pieces {
            let end = at + piece.len() as u64;
            let begin = if *at < whole_end { floor(*at) } else { *at };
            let end = if end <= whole_end { floor(end + block_bytes - 1) } else { end };
            match spans.last_mut().filter(|(span, _)| begin <= span.end) {
                Some((span, pieces)) => {
                    span.end = end.max(span.end);
                    pieces.push((at, piece));
                }
                None => spans.push((begin..end, vec![(at, piece)])),
            }
        }
        let request = |(span, pieces): (Range<u64>, Vec<Piece<'_>>)| {
            let mut data = Buffer::zeroed((span.end - span.start) as usize);
            let (mut missing, mut filled) = (Vec::new(), span.start);
            for (at, piece) in pieces {
                missing.extend((filled < *at).then_some(filled..*at));
                let within = (at - span.start) as usize;
                data[within..within + piece.len()].copy_from_slice(piece);
                filled = at + piece.len() as u64;
            }
            missing.extend((filled < span.end).then_some(filled..span.end));
            Request { offset: span.start, data, missing }
        };
        spans.into_iter().map(request).collect()
    }

    /// Keeps the pieces that have bytes of one of the ranges.
    pub fn retain(&mut self, ranges: &[Range<u64>]) {
        self.pieces.retain(|at, piece| {
            let end = *at + piece.len() as u64;
            ranges.iter().any(|range| *at < range.end && range.start < end)
        });
        let mut before = None;
        self.bytes = 0;
        for (at, piece) in &self.pieces {
            self.bytes += cost(before, *at, piece);
            before = Some((at, piece));
        }
    }

    /// Takes the pieces of another one. None of them overlaps.
    pub fn append(&mut self, other: Self) {
        other.pieces.into_iter().for_each(|(at, piece)| self.add(at, piece));
    }
}

/// A write of joined pieces.
#[derive(Debug)]
pub struct Request {
    /// The first byte.
    pub offset: u64,
    /// The bytes, zeros where they are missing.
    pub data: Buffer,
    /// Ranges of the file that no piece has.
    pub missing: Vec<Range<u64>>,
}

impl Request {
    /// The range of the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }

    /// The bytes of a range of the file that the request covers.
    pub fn bytes_mut(&mut self, range: &Range<u64>) -> &mut [u8] {
        &mut self.data[(range.start - self.offset) as usize..(range.end - self.offset) as usize]
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

    /// Offset, bytes with `.` for missing ones.
    fn requests(pieces: &[(u64, &[u8])], whole_end: u64) -> Vec<(u64, String)> {
        let shown = |mut request: Request| {
            for range in request.missing.clone() {
                request.bytes_mut(&range).fill(b'.');
            }
            (request.offset, String::from_utf8(request.data.to_vec()).unwrap())
        };
        of(pieces).requests(4, whole_end).into_iter().map(shown).collect()
    }

    #[test]
    fn neighbours_are_joined_and_blocks_below_the_end_are_whole() {
        let own = |list: &[(u64, &str)]| -> Vec<(u64, String)> {
            list.iter().map(|(at, text)| (*at, (*text).to_owned())).collect()
        };
        let pieces: &[(u64, &[u8])] = &[(14, b"efg"), (3, b"x"), (10, b"ab"), (12, b"cd")];
        assert_eq!(requests(pieces, 0), own(&[(3, "x"), (10, "abcdefg")]));
        assert_eq!(requests(pieces, 100), own(&[(0, "...x"), (8, "..abcdefg...")]));
        // The file has 13 bytes, so its last whole block ends at 12.
        assert_eq!(requests(pieces, 12), own(&[(0, "...x"), (8, "..abcdefg")]));
        // Two in one block, then a neighbour of that block.
        let pieces: &[(u64, &[u8])] = &[(4, b"a"), (7, b"b"), (8, b"c")];
        assert_eq!(requests(pieces, 12), own(&[(4, "a..bc...")]));
        assert_eq!(requests(pieces, 8), own(&[(4, "a..bc")]));
        assert_eq!(requests(&[(4, b"abcd"), (12, b"efgh")], 16), own(&[(4, "abcd"), (12, "efgh")]));
    }

    #[test]
    fn pieces_of_ranges_are_kept() {
        let mut waiting = of(&[(0, b"abc"), (10, b"de"), (20, b"f")]);
        waiting.retain(&[2..4, 12..20, 20..30]);
        assert_eq!((waiting.end(), waiting.pieces.len()), (21, 2));
        let mut other = of(&[(100, b"xyz")]);
        other.append(waiting);
        assert_eq!((other.bytes(), other.end()), (3 * REQUEST_BYTES_MIN, 103));
        assert!(other.overlaps(20, 1) && other.overlaps(2, 1) && !other.overlaps(10, 2));
    }

    /// The bug: small pieces counted their own bytes only, and each needed a block.
    #[test]
    fn a_scattered_piece_counts_as_a_block_and_a_neighbour_does_not() {
        let mut waiting = of(&[(10, b"abc"), (13, b"de"), (1 << 20, b"f")]);
        assert_eq!(waiting.bytes(), 2 * REQUEST_BYTES_MIN + 2);
        waiting.add(5 << 20, vec![0; 2 * REQUEST_BYTES_MIN]);
        assert_eq!(waiting.bytes(), 4 * REQUEST_BYTES_MIN + 2);
        waiting.retain(std::slice::from_ref(&(10..16)));
        assert_eq!(waiting.bytes(), REQUEST_BYTES_MIN + 2);
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
