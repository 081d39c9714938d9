//! The header of a segment.

use super::{BLOCK_BYTES, LogId, array, is_segment_size, u32_at, u64_at};
use crate::lsn::Lsn;

const MAGIC: [u8; 8] = *b"DIOXLOG\0";
const VERSION: u32 = 1;
/// The largest number of a segment. No log lives long enough for it.
const NUMBER_MAX: u64 = i64::MAX as u64;
pub const CHECKSUM_AT: usize = BLOCK_BYTES as usize - 4;

/// The kind of records that a log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Content {
    /// Records of the user.
    #[default]
    Records = 0,
    /// Records of streams, and bounds of streams.
    Streams = 1,
}

impl Content {
    fn parse(number: u32) -> Option<Self> {
        [Self::Records, Self::Streams].into_iter().find(|content| *content as u32 == number)
    }
}

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub content: Content,
    pub log: LogId,
    /// The number of the segment.
    pub number: u64,
    /// The size of every segment of the log.
    pub segment_bytes: u64,
    /// The LSN of the next record when the segment began.
    pub first: Lsn,
    /// The lowest LSN of the log when the segment began.
    pub front: Lsn,
    /// The time when the segment began, in seconds since 1970.
    pub begun: u64,
}

/// The content of the first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Header(Header),
    /// Zeros: the segment was never used.
    Blank,
    /// The checksum is wrong: a torn first write, or damage.
    Invalid,
    /// A valid header of another version of the format.
    Version(u32),
    /// A valid header of a log with a content that this version does not know.
    Content(u32),
}

/// Whether a block may have been a header, and was then torn by a write of another header.
pub fn may_be_header(block: &[u8]) -> bool {
    block[..8] == MAGIC
}

impl Header {
    /// Writes the header into the first block of a segment.
    pub fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&(self.content as u32).to_le_bytes());
        block[16..32].copy_from_slice(&self.log.0);
        let numbers = [self.number, self.segment_bytes, self.first.0, self.front.0, self.begun];
        for (into, number) in block[32..72].chunks_exact_mut(8).zip(numbers) {
            into.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&block[..CHECKSUM_AT]);
        block[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Parses the first block of a segment.
    pub fn parse(block: &[u8]) -> Found {
        if block.iter().all(|byte| *byte == 0) {
            return Found::Blank;
        }
        if !may_be_header(block)
            || crc32c::crc32c(&block[..CHECKSUM_AT]) != u32_at(block, CHECKSUM_AT)
        {
            return Found::Invalid;
        }
        let version = u32_at(block, 8);
        if version != VERSION {
            return Found::Version(version);
        }
        let content = u32_at(block, 12);
        let Some(content) = Content::parse(content) else { return Found::Content(content) };
        let number = |at: usize| u64_at(block, 32 + 8 * at);
        let header = Self {
            content,
            log: LogId(array(block, 16..32)),
            number: number(0),
            segment_bytes: number(1),
            first: Lsn(number(2)),
            front: Lsn(number(3)),
            begun: number(4),
        };
        match header.is_sound() {
            true => Found::Header(header),
            false => Found::Invalid,
        }
    }

    fn is_sound(&self) -> bool {
        is_segment_size(self.segment_bytes)
            && (1..=NUMBER_MAX).contains(&self.number)
            && self.first <= Lsn::LAST
            && (Lsn::FIRST..=self.first).contains(&self.front)
    }

    /// The life of the frames of this segment.
    pub fn life(&self) -> u32 {
        self.number as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            content: Content::Streams,
            log: LogId(*b"0123456789abcdef"),
            number: 7,
            segment_bytes: 1 << 20,
            first: Lsn(1000),
            front: Lsn(12),
            begun: 1_700_000_000,
        }
    }

    #[test]
    fn a_header_is_parsed_as_it_was_written() {
        let mut block = [0xAA; BLOCK_BYTES as usize];
        header().encode(&mut block);
        assert_eq!(Header::parse(&block), Found::Header(header()));
        assert_eq!(Header::parse(&[0; BLOCK_BYTES as usize]), Found::Blank);
    }

    #[test]
    fn no_changed_bit_of_a_header_is_accepted() {
        let mut block = [0; BLOCK_BYTES as usize];
        header().encode(&mut block);
        for bit in 0..block.len() * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(&block), Found::Invalid, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// The number of the next segment or record overflowed.
    #[test]
    fn a_number_without_a_next_one_was_accepted() {
        let last = i64::MAX as u64;
        let with = |number, first, front| {
            let mut block = [0; BLOCK_BYTES as usize];
            let header = Header { number, first: Lsn(first), front: Lsn(front), ..header() };
            header.encode(&mut block);
            (Header::parse(&block), Found::Header(header))
        };
        let (parsed, header) = with(last, last, last);
        assert_eq!(parsed, header);
        for (number, first, front) in
            [(last + 1, 1, 1), (u64::MAX, 1, 1), (7, last + 1, 1), (7, u64::MAX, u64::MAX)]
        {
            assert_eq!(with(number, first, front).0, Found::Invalid, "{number} {first} {front}");
        }
    }

    #[test]
    fn another_version_or_content_is_named() {
        for (at, found) in [(8, Found::Version(2)), (12, Found::Content(2))] {
            let mut block = [0; BLOCK_BYTES as usize];
            header().encode(&mut block);
            block[at] = 2;
            let checksum = crc32c::crc32c(&block[..CHECKSUM_AT]);
            block[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(Header::parse(&block), found);
        }
    }
}
