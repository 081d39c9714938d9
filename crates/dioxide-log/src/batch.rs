//! The frames of one write, composed in memory. A value, no I/O.

use crate::format::frame::{Flags, Frame, HEADER_BYTES, Kind, frame_bytes};
use crate::format::header::Header;
use crate::format::{BLOCK_BYTES, RESERVED_BYTES, block_of};
use crate::lsn::Lsn;
use crate::recover::Member;
use dioxide::Buffer;

/// The size of a frame without payload.
pub const EMPTY_FRAME_BYTES: u64 = HEADER_BYTES;

/// The purpose of frames that are to be added. It decides how much of the reserve they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Records,
    /// Bounds of streams, which make segments collectable.
    Bounds,
    /// Copies from the segment that is being collected.
    Copies,
    /// A new front. It frees a segment or not.
    Front {
        frees: bool,
    },
    Back,
    Closed,
}

impl Purpose {
    /// The bytes at the end of a segment that these frames leave to the others. A front that frees
    /// a segment lets a full log continue, so the others cannot use up its place.
    fn leaves(self) -> u64 {
        match self {
            Self::Records | Self::Bounds | Self::Copies => RESERVED_BYTES,
            Self::Front { frees: false } => RESERVED_BYTES / 2,
            Self::Back => RESERVED_BYTES / 4,
            Self::Front { frees: true } => 2 * EMPTY_FRAME_BYTES,
            Self::Closed => EMPTY_FRAME_BYTES,
        }
    }
}

/// Whether frames fit into a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Yes,
    /// Not with what is in the batch already.
    AfterThisBatch,
    /// Not in this segment.
    InNextSegment,
}

/// Frames that go out in one write to one segment.
#[derive(Debug)]
pub struct Batch {
    member: Member,
    buffer: Buffer,
    /// The offset of the buffer in the segment.
    start: u64,
    /// The offset where the frames of this batch begin.
    begin: u64,
    /// The offset behind the last frame.
    end: u64,
    /// The number of records.
    records: u64,
    /// Whether the segment ends with this batch.
    ended: bool,
}

impl Batch {
    /// A batch that continues a segment at `end`. `block` is the content of the block that contains
    /// `end`, up to there.
    pub fn resume(member: Member, end: u64, block: &[u8], mut buffer: Buffer) -> Self {
        let start = block_of(end);
        buffer[..block.len()].copy_from_slice(block);
        Self { member, buffer, start, begin: end, end, records: 0, ended: false }
    }

    /// The first batch of a segment, with its header.
    pub fn begin(member: Member, mut buffer: Buffer) -> Self {
        member.header.encode(&mut buffer[..BLOCK_BYTES as usize]);
        let end = BLOCK_BYTES;
        Self { member, buffer, start: 0, begin: end, end, records: 0, ended: false }
    }

    /// The batch behind this one in the same segment. Bytes of an incomplete block are in both.
    pub fn next(&self, buffer: Buffer) -> Self {
        let from = (block_of(self.end) - self.start) as usize;
        let block = &self.buffer[from..(self.end - self.start) as usize];
        Self::resume(self.member.clone(), self.end, block, buffer)
    }

    pub fn member(&self) -> &Member {
        &self.member
    }

    pub fn header(&self) -> &Header {
        &self.member.header
    }

    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    pub fn ended(&self) -> bool {
        self.ended
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// The length of the write: whole blocks.
    pub fn write_bytes(&self) -> u64 {
        self.end.next_multiple_of(BLOCK_BYTES) - self.start
    }

    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// The largest size of the frames with payload that fit into one segment.
    pub fn max_bytes(segment_bytes: u64) -> u64 {
        segment_bytes - BLOCK_BYTES - RESERVED_BYTES
    }

    /// Whether frames of this size fit. `batch_bytes` limits a batch with several frames.
    pub fn fit(&self, bytes: u64, batch_bytes: u64, purpose: Purpose) -> Fit {
        let limit = self.header().segment_bytes - purpose.leaves();
        if self.ended || (self.end + bytes > limit) {
            return Fit::InNextSegment;
        }
        match self.is_empty() || self.end + bytes - self.begin <= batch_bytes {
            true => Fit::Yes,
            false => Fit::AfterThisBatch,
        }
    }

    /// Adds a frame that [fits](Self::fit), and returns its offset in the segment. `checksum` is
    /// that of the payload.
    pub fn push(
        &mut self,
        kind: Kind,
        flags: Flags,
        lsn: Lsn,
        payload: &[u8],
        checksum: u32,
    ) -> u64 {
        let offset = self.end;
        let size = frame_bytes(payload.len());
        let at = (offset - self.start) as usize..(offset - self.start + size) as usize;
        self.reserve(at.end);
        let frame = Frame { kind, flags, lsn, payload };
        frame.encode(&mut self.buffer[at], checksum, self.member.home(), offset);
        self.end += size;
        self.records += u64::from(kind == Kind::Record);
        self.ended |= kind == Kind::End;
        offset
    }

    fn reserve(&mut self, bytes: usize) {
        let needed = bytes.next_multiple_of(BLOCK_BYTES as usize);
        if needed > self.buffer.len() {
            let mut larger = Buffer::zeroed(needed.max(2 * self.buffer.len()));
            larger[..self.buffer.len()].copy_from_slice(&self.buffer);
            self.buffer = larger;
        }
    }

    /// The blocks to write. Zeros follow the last frame.
    pub fn blocks(&mut self) -> &[u8] {
        let end = (self.end - self.start) as usize;
        let blocks = end.next_multiple_of(BLOCK_BYTES as usize);
        self.buffer[end..blocks].fill(0);
        &self.buffer[..blocks]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frame::checksum_of;
    use crate::format::scan::{Ending, Scan, ScanStep};
    use crate::format::{Content, LogId};
    use crate::storage::Storage;
    use crate::storage::memory::Memory;

    fn member() -> Member {
        let header = Header {
            content: Content::Records,
            log: LogId([3; 16]),
            number: 1,
            segment_bytes: 64 << 10,
            first: Lsn(1),
            front: Lsn(1),
            begun: 0,
        };
        Member { header, segment: Memory::default().create(64 << 10).expect("space") }
    }

    fn push(batch: &mut Batch, lsn: u64, payload: &[u8]) {
        let sum = checksum_of(payload);
        batch.push(Kind::Record, Flags::default(), Lsn(lsn), payload, sum);
    }

    #[test]
    fn batches_join_into_one_row_of_frames() {
        let mut disk = vec![0xEE; 64 << 10];
        let dirty = || {
            let mut buffer = Buffer::zeroed(4096);
            buffer.fill(0xDD);
            buffer
        };
        let mut batch = Batch::begin(member(), dirty());
        let mut lsn = 1;
        for size in [10, 5000, 3000, 0, 900, 4096 - 24, 1] {
            push(&mut batch, lsn, &vec![lsn as u8; size]);
            push(&mut batch, lsn + 1, b"x");
            lsn += 2;
            let next = batch.next(dirty());
            let (start, bytes) = (batch.start() as usize, batch.write_bytes());
            let blocks = batch.blocks();
            assert_eq!((start % 4096, blocks.len() % 4096), (0, 0));
            assert_eq!(blocks.len() as u64, bytes);
            disk[start..start + blocks.len()].copy_from_slice(blocks);
            assert!(!batch.is_empty() && next.is_empty());
            batch = next;
        }
        let mut scan = Scan::new(batch.header());
        assert_eq!(scan.step(&disk[4096..]), ScanStep::Ended(Ending::Open));
        assert_eq!((scan.end(), scan.into_index().next()), (batch.end(), Lsn(lsn)));
    }

    #[test]
    fn the_reserve_of_a_segment_is_for_frames_without_payload() {
        let mut batch = Batch::begin(member(), Buffer::zeroed(4096));
        let max = Batch::max_bytes(64 << 10);
        let records = Purpose::Records;
        assert_eq!(batch.fit(max, 1, records), Fit::Yes, "one record may be longer than a batch");
        assert_eq!(batch.fit(max + 8, u64::MAX, records), Fit::InNextSegment);
        push(&mut batch, 1, &vec![1; (max - 24) as usize]);
        assert_eq!(batch.fit(32, 1 << 20, records), Fit::InNextSegment);
        assert_eq!(batch.fit(32, 1 << 10, Purpose::Back), Fit::AfterThisBatch);
        // Each purpose has bytes that those before it leave.
        let (some, more) = (Purpose::Front { frees: false }, Purpose::Front { frees: true });
        for (purpose, count) in [(some, 85), (Purpose::Back, 43), (more, 40), (Purpose::Closed, 1)]
        {
            let mut frames = 0;
            while batch.fit(EMPTY_FRAME_BYTES, u64::MAX, purpose) == Fit::Yes {
                batch.push(Kind::Front, Flags::default(), Lsn(1), &[], checksum_of(&[]));
                frames += 1;
            }
            assert_eq!(frames, count, "{purpose:?}");
        }
        batch.push(Kind::End, Flags::default(), Lsn(2), &[], checksum_of(&[]));
        assert!(batch.end() <= 64 << 10 && batch.ended());
        assert_eq!(batch.fit(EMPTY_FRAME_BYTES, u64::MAX, Purpose::Closed), Fit::InNextSegment);
    }
}
