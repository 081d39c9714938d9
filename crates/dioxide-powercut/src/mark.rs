//! A workload's marks of its own operations, in one order with the requests of its disk.

use dioxide_testkit::fuse_disk;

/// The identity of a record. It is also in every sector of the record, or in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Unique for each thread of each life of a file.
    pub writer: u64,
    /// Counts from 0.
    pub number: u64,
}

/// An operation that is about to begin, or is complete and promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The append of a record of this many bytes begins.
    Append(Name, u64),
    /// The append of a frame ([`Frame`](dioxide_testkit::records::Frame)) of this many bytes
    /// begins.
    AppendFrame(Name, u64),
    /// The write of a record of this many bytes at this offset begins.
    WriteAt(Name, u64, u64),
    /// The record is durable at this offset.
    Durable(Name, u64),
    /// The truncation of the file to this length begins.
    Cut(u64),
    /// The file has been truncated to this length.
    WasCut(u64),
    /// The recycle of the file for this life begins.
    Recycle(u64),
    /// The file has been recycled for this life.
    WasRecycled(u64),
    /// The write of this version of a block begins ([`shared`](crate::shared)).
    Begin {
        /// The index of the block in the file.
        block: u64,
        /// Counts from 1.
        version: u64,
    },
    /// An atomic batch of records of this many bytes each is given to a log
    /// ([`write_ahead`](crate::write_ahead)).
    LogAppend {
        /// The first. The others have the next numbers.
        first: Name,
        /// The number of records.
        count: u64,
        /// The length of each.
        bytes: u64,
    },
    /// The batch is stable in its log.
    Logged {
        /// As above.
        first: Name,
        /// The LSN of the first record.
        lsn: u64,
    },
    /// The truncation of the front of a log to this LSN begins.
    Front(u64),
    /// The front of a log has been truncated to this LSN.
    WasFront(u64),
    /// The front of a log was seen at this LSN. Its options of retention move it.
    Retained(u64),
    /// The truncation of the back of a log to this LSN begins.
    Back(u64),
    /// The back of a log has been truncated to this LSN.
    WasBack(u64),
    /// A follower of a log was shown this record.
    Shown(Name, u64),
    /// This version of a block is stable.
    Stable {
        /// As above.
        block: u64,
        /// As above.
        version: u64,
    },
    /// The write of this version of a part begins ([`parts`](crate::parts)).
    BeginPart {
        /// The index of the part in the file.
        part: u64,
        /// Counts from 1.
        version: u64,
    },
    /// This version of a part is stable.
    StablePart {
        /// As above.
        part: u64,
        /// As above.
        version: u64,
    },
}

/// An act on one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number of the file.
    pub file: u64,
    /// The act.
    pub act: Act,
}

impl Mark {
    /// The mark in the disk's format.
    pub fn encode(self) -> fuse_disk::Mark {
        let name = |Name { writer, number }| writer << 32 | number;
        let (kind, first, second, third) = match self.act {
            Act::Append(record, bytes) => (0, name(record), bytes, 0),
            Act::WriteAt(record, bytes, offset) => (1, name(record), bytes, offset),
            Act::Durable(record, offset) => (2, name(record), offset, 0),
            Act::Cut(len) => (3, len, 0, 0),
            Act::WasCut(len) => (4, len, 0, 0),
            Act::Recycle(life) => (5, life, 0, 0),
            Act::WasRecycled(life) => (6, life, 0, 0),
            Act::AppendFrame(record, bytes) => (7, name(record), bytes, 0),
            Act::Begin { block, version } => (8, block, version, 0),
            Act::Stable { block, version } => (9, block, version, 0),
            Act::LogAppend { first, count, bytes } => (10, name(first), count, bytes),
            Act::Logged { first, lsn } => (11, name(first), lsn, 0),
            Act::Front(lsn) => (12, lsn, 0, 0),
            Act::WasFront(lsn) => (13, lsn, 0, 0),
            Act::BeginPart { part, version } => (14, part, version, 0),
            Act::StablePart { part, version } => (15, part, version, 0),
            Act::Retained(lsn) => (16, lsn, 0, 0),
            Act::Back(lsn) => (17, lsn, 0, 0),
            Act::WasBack(lsn) => (18, lsn, 0, 0),
            Act::Shown(record, lsn) => (19, name(record), lsn, 0),
        };
        [kind | self.file << 8, first, second, third]
    }

    /// The inverse of [`Mark::encode`].
    ///
    /// # Panics
    ///
    /// If the numbers encode no mark.
    pub fn decode([head, first, second, third]: fuse_disk::Mark) -> Mark {
        let record = Name { writer: first >> 32, number: first & 0xFFFF_FFFF };
        let act = match head & 0xFF {
            0 => Act::Append(record, second),
            1 => Act::WriteAt(record, second, third),
            2 => Act::Durable(record, second),
            3 => Act::Cut(first),
            4 => Act::WasCut(first),
            5 => Act::Recycle(first),
            6 => Act::WasRecycled(first),
            7 => Act::AppendFrame(record, second),
            8 => Act::Begin { block: first, version: second },
            9 => Act::Stable { block: first, version: second },
            10 => Act::LogAppend { first: record, count: second, bytes: third },
            11 => Act::Logged { first: record, lsn: second },
            12 => Act::Front(first),
            13 => Act::WasFront(first),
            14 => Act::BeginPart { part: first, version: second },
            15 => Act::StablePart { part: first, version: second },
            16 => Act::Retained(first),
            17 => Act::Back(first),
            18 => Act::WasBack(first),
            19 => Act::Shown(record, second),
            kind => panic!("no mark is of kind {kind}"),
        };
        Mark { file: head >> 8, act }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_survives_the_disk() {
        let record = Name { writer: 70_000, number: 9 };
        let acts = [
            Act::Append(record, 4096),
            Act::AppendFrame(record, 90),
            Act::WriteAt(record, 4096, 1 << 40),
            Act::Durable(record, 8192),
            Act::Cut(12288),
            Act::WasCut(12288),
            Act::Recycle(3),
            Act::WasRecycled(3),
            Act::Begin { block: 1 << 40, version: 7 },
            Act::Stable { block: 1 << 40, version: 7 },
            Act::LogAppend { first: record, count: 3, bytes: 1 << 40 },
            Act::Logged { first: record, lsn: 1 << 60 },
            Act::Front(1 << 60),
            Act::WasFront(1 << 60),
            Act::BeginPart { part: 1 << 40, version: 7 },
            Act::StablePart { part: 1 << 40, version: 7 },
            Act::Retained(1 << 60),
            Act::Back(1 << 60),
            Act::WasBack(1 << 60),
            Act::Shown(record, 1 << 60),
        ];
        for act in acts {
            let mark = Mark { file: 1, act };
            assert_eq!(Mark::decode(mark.encode()), mark);
        }
    }
}
