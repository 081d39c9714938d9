//! The frames of a segment, from its header to the first invalid one.

use super::frame::{self, Frame, HEADER_BYTES, Home, Kind, Refused};
use super::header::Header;
use super::{BLOCK_BYTES, LogId};
use crate::index::Index;
use crate::lsn::Lsn;

/// The reason why the frames of a segment end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The last frame says so: the next segment follows.
    End,
    /// Nothing valid follows, or an atomic batch lacks its last frame.
    Open,
    /// The frame is valid, and wrong there.
    Contradiction(String),
    /// A later version wrote the frame.
    Unknown(String),
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// The scan needs at least this many bytes from [`Scan::offset`] on.
    More(u64),
    /// The scan is complete.
    Ended(Ending),
}

/// A record of an atomic batch, whose last frame was not seen yet.
#[derive(Debug)]
struct Begun {
    offset: u64,
    lsn: Lsn,
}

/// Reads a segment from its first frame on.
#[derive(Debug)]
pub struct Scan {
    home: Home,
    number: u64,
    bytes: u64,
    /// The offset of the next frame.
    offset: u64,
    /// The atomic batch that is incomplete.
    batch: Vec<Begun>,
    index: Index,
    records: u64,
    truncations: u64,
    closed: bool,
}

impl Scan {
    pub fn new(header: &Header) -> Self {
        Self {
            home: Home { log: header.log, life: header.life() },
            number: header.number,
            bytes: header.segment_bytes,
            offset: BLOCK_BYTES,
            batch: Vec::new(),
            index: Index::new(header.front, header.first),
            records: 0,
            truncations: 0,
            closed: false,
        }
    }

    /// Goes on behind the frames of a segment that are in an index.
    pub fn resume(header: &Header, offset: u64, index: Index) -> Self {
        Self { offset, index, ..Self::new(header) }
    }

    /// Goes on in the segment that follows the one that has ended. False if it does not follow.
    pub fn enter(&mut self, next: &Header) -> bool {
        let follows = next.number == self.number + 1 && next.first == self.index.next();
        if follows {
            (self.number, self.offset) = (next.number, BLOCK_BYTES);
            self.home = Home { log: next.log, life: next.life() };
        }
        follows
    }

    /// The number of the segment.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The offset of the next frame to check.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The offset behind the last frame that counts.
    pub fn end(&self) -> u64 {
        self.batch.first().map_or(self.offset, |begun| begun.offset)
    }

    /// The number of records that count, also of those that were truncated later.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The number of truncations of the back.
    pub fn truncations(&self) -> u64 {
        self.truncations
    }

    /// Whether the last frame that counts closed the log.
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// The records so far.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The records that the segment has, as a part of the log.
    pub fn into_index(self) -> Index {
        self.index
    }

    /// Checks the frames of `window`, which begins at [`offset`](Self::offset).
    pub fn step(&mut self, window: &[u8]) -> ScanStep {
        let mut rest = window;
        loop {
            let frame = match Frame::parse(rest, self.home, self.offset) {
                Ok(frame) => frame,
                Err(Refused::Longer(bytes)) if self.offset + bytes <= self.bytes => {
                    return ScanStep::More(bytes);
                }
                Err(Refused::Invalid | Refused::Longer(_)) => return ScanStep::Ended(Ending::Open),
                Err(Refused::Unknown { kind, flags }) => {
                    let reason = format!("a frame of kind {kind} with flags {flags:#x}");
                    return ScanStep::Ended(Ending::Unknown(reason));
                }
            };
            if let Err(reason) = self.take(&frame) {
                return ScanStep::Ended(Ending::Contradiction(reason));
            }
            if frame.kind == Kind::End {
                return ScanStep::Ended(Ending::End);
            }
            rest = &rest[frame.bytes() as usize..];
        }
    }

    fn take(&mut self, frame: &Frame<'_>) -> Result<(), String> {
        let Frame { kind, lsn, flags, .. } = *frame;
        if !self.batch.is_empty() || flags.more {
            let next = self.batch.last().map_or(self.index.next(), |begun| begun.lsn.next());
            if kind != Kind::Record || lsn != next {
                return Err(format!("{kind:?} {lsn} in an atomic batch that continues at {next}"));
            }
            self.batch.push(Begun { offset: self.offset, lsn });
            self.offset += frame.bytes();
            if !flags.more {
                for begun in std::mem::take(&mut self.batch) {
                    self.apply(Kind::Record, begun.lsn, begun.offset);
                }
            }
            return Ok(());
        }
        if kind == Kind::Flushed && lsn.0 > self.offset {
            return Err(format!("a flush up to {lsn} before what is there"));
        }
        if !self.index.may_follow(kind, lsn) {
            let (front, next) = (self.index.front(), self.index.next());
            return Err(format!("{kind:?} {lsn} in a log of {front} up to {next}"));
        }
        self.apply(kind, lsn, self.offset);
        self.offset += frame.bytes();
        Ok(())
    }

    fn apply(&mut self, kind: Kind, lsn: Lsn, offset: u64) {
        self.index.apply(kind, lsn, self.number, offset);
        self.records += u64::from(kind == Kind::Record);
        self.truncations += u64::from(kind == Kind::Back);
        self.closed = kind == Kind::Closed;
    }
}

/// A valid frame behind the end of a segment's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remnant {
    pub offset: u64,
    pub bytes: u64,
    pub life: u32,
    /// All bytes below this offset of the segment were stable when it was written.
    pub stable: u64,
}

/// Looks for valid frames at every possible offset.
///
/// Content may look like frames, at each offset, and each as long as the segment. So the search
/// passes over long frames when those that were not valid had a multiple of the segment's size
/// together. Frames that are damaged do not overlap, so they never have.
#[derive(Debug)]
pub struct Search {
    log: LogId,
    /// The first of the lives that frames may have, and the number of lives.
    lives: (u32, u32),
    /// The size of the segment.
    bytes: u64,
    /// What invalid frames may still have together, in bytes.
    left: u64,
    /// The offset of the first frame that it passed over.
    passed: Option<u64>,
}

/// The result of a step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    Found(Remnant),
    /// A frame may begin at the offset. It needs this many bytes.
    Longer {
        offset: u64,
        bytes: u64,
    },
    /// Nothing below this offset. There may be something from it on, but the window ends.
    Nothing {
        below: u64,
    },
}

impl Search {
    /// What invalid frames may have together, in sizes of the segment.
    const SEGMENTS_MAX: u64 = 2;

    /// A search for frames of some lives: the first one, and how many follow each other.
    pub fn new(log: LogId, lives: (u32, u32), bytes: u64) -> Self {
        Self { log, lives, bytes, left: Self::SEGMENTS_MAX * bytes, passed: None }
    }

    /// The offset from which on it may have missed a frame. None if it missed none.
    pub fn passed(&self) -> Option<u64> {
        self.passed
    }

    /// Looks from the start of `window`, which lies at `offset` of the segment.
    pub fn step(&mut self, window: &[u8], offset: u64) -> Looked {
        let ((first, lives), mut at) = (self.lives, 0);
        while window.len() - at >= HEADER_BYTES as usize {
            let (here, rest) = (offset + at as u64, &window[at..]);
            at += 8;
            let Some((life, size)) = frame::claimed(rest) else { continue };
            if life.wrapping_sub(first) >= lives || here + size > self.bytes {
                continue;
            }
            // Frames without a payload take little time. They show the most about the end.
            if size > self.left.max(HEADER_BYTES) {
                self.passed.get_or_insert(here);
                continue;
            }
            match Frame::parse(rest, Home { log: self.log, life }, here) {
                Ok(frame) => {
                    let stable = match frame.kind {
                        Kind::Flushed => frame.lsn.0,
                        _ if frame.flags.stable => here,
                        _ => 0,
                    };
                    let bytes = frame.bytes();
                    return Looked::Found(Remnant { offset: here, bytes, life, stable });
                }
                // A frame that this version does not know is as good a witness.
                Err(Refused::Unknown { flags, .. }) => {
                    let (bytes, stable) = (HEADER_BYTES, u64::from(flags & 1) * here);
                    return Looked::Found(Remnant { offset: here, bytes, life, stable });
                }
                Err(Refused::Longer(bytes)) => return Looked::Longer { offset: here, bytes },
                Err(Refused::Invalid) => self.left = self.left.saturating_sub(size),
            }
        }
        Looked::Nothing { below: offset + at as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Content;
    use crate::format::frame::{Flags, checksum_of, frame_bytes};

    const BYTES: u64 = 64 << 10;

    fn header() -> Header {
        Header {
            content: Content::Records,
            log: LogId([7; 16]),
            number: 3,
            segment_bytes: BYTES,
            first: Lsn(10),
            front: Lsn(4),
            begun: 0,
        }
    }

    /// A segment with these frames, and its end.
    fn segment(frames: &[(Kind, u64, bool, &[u8])]) -> (Vec<u8>, u64) {
        let mut bytes = vec![0; BYTES as usize];
        let mut at = BLOCK_BYTES as usize;
        let home = Home { log: header().log, life: header().life() };
        for (kind, lsn, more, payload) in frames {
            let flags = Flags { stable: false, more: *more };
            let frame = Frame { kind: *kind, flags, lsn: Lsn(*lsn), payload };
            let size = frame_bytes(payload.len()) as usize;
            frame.encode(&mut bytes[at..at + size], checksum_of(payload), home, at as u64);
            at += size;
        }
        (bytes, at as u64)
    }

    /// Scans with windows that begin small.
    fn scan(bytes: &[u8]) -> (Scan, Ending) {
        let mut scan = Scan::new(&header());
        let mut window = 8;
        loop {
            let from = scan.offset() as usize;
            match scan.step(&bytes[from..bytes.len().min(from + window)]) {
                ScanStep::More(bytes) => window = bytes as usize,
                ScanStep::Ended(ending) => return (scan, ending),
            }
        }
    }

    #[test]
    fn frames_are_followed_to_the_first_invalid_one() {
        let (bytes, end) = segment(&[
            (Kind::Record, 10, false, b"ten"),
            (Kind::Front, 6, false, b""),
            (Kind::Record, 11, false, &[1; 3000]),
            (Kind::Back, 11, false, b""),
            (Kind::Flushed, BLOCK_BYTES, false, b""),
            (Kind::Record, 11, false, b""),
        ]);
        let (scan, ending) = scan(&bytes);
        assert_eq!((scan.end(), ending), (end, Ending::Open));
        assert_eq!((scan.records(), scan.closed()), (3, false));
        let index = scan.into_index();
        assert_eq!((index.front(), index.next()), (Lsn(6), Lsn(12)));
    }

    #[test]
    fn a_batch_without_its_last_frame_does_not_count() {
        let frames: [(Kind, u64, bool, &[u8]); 4] = [
            (Kind::Record, 10, false, b"ten"),
            (Kind::Record, 11, true, b"eleven"),
            (Kind::Record, 12, true, b"twelve"),
            (Kind::Record, 13, false, b"thirteen"),
        ];
        let (bytes, end) = segment(&frames);
        let (whole, _) = scan(&bytes);
        assert_eq!((whole.end(), whole.into_index().next()), (end, Lsn(14)));
        let (bytes, _) = segment(&frames[..3]);
        let (torn, ending) = scan(&bytes);
        let before = BLOCK_BYTES + frame_bytes(3);
        assert_eq!((torn.end(), ending), (before, Ending::Open));
        assert_eq!(torn.into_index().next(), Lsn(11));
    }

    #[test]
    fn a_frame_with_another_lsn_is_a_contradiction() {
        for wrong in [
            (Kind::Record, 12),
            (Kind::End, 10),
            (Kind::Back, 12),
            (Kind::Front, 3),
            (Kind::Closed, 10),
            (Kind::Flushed, BLOCK_BYTES + 40),
        ] {
            let (bytes, _) =
                segment(&[(Kind::Record, 10, false, b"ten"), (wrong.0, wrong.1, false, b"")]);
            let (_, ending) = scan(&bytes);
            assert!(matches!(ending, Ending::Contradiction(_)), "{wrong:?}");
        }
    }

    /// Each word was summed as a frame of its own. With long segments an open took hours.
    #[test]
    fn content_like_frames_was_summed_once_for_each_word() {
        const BYTES: u64 = 1 << 20;
        // A frame of half a segment seems to begin at each word.
        let word = 3 | 1u64 << 32 | ((BYTES / 2) >> 16) << 48;
        let content = word.to_le_bytes().repeat(BYTES as usize / 8);
        let mut search = Search::new(header().log, (3, 1), BYTES);
        let looked = search.step(&content[BLOCK_BYTES as usize..], BLOCK_BYTES);
        assert_eq!(looked, Looked::Nothing { below: BYTES - 16 });
        assert_eq!(search.passed(), Some(BLOCK_BYTES + 3 * 8));
    }

    #[test]
    fn remnants_are_found_behind_an_invalid_frame() {
        let (mut bytes, _) = segment(&[
            (Kind::Record, 10, false, b"ten"),
            (Kind::Record, 11, false, b"eleven"),
            (Kind::Record, 12, false, &[1; 9000]),
        ]);
        let torn = BLOCK_BYTES + frame_bytes(3);
        bytes[torn as usize + 30] ^= 1;
        let (scan, ending) = scan(&bytes);
        assert_eq!((scan.end(), ending), (torn, Ending::Open));
        let mut search = Search::new(header().log, (3, 1), BYTES);
        let remnant = torn + frame_bytes(6);
        let Looked::Longer { offset, bytes: size } =
            search.step(&bytes[torn as usize..torn as usize + 100], torn)
        else {
            panic!("the remnant is long");
        };
        assert_eq!((offset, size), (remnant, frame_bytes(9000)));
        let found = Remnant { offset: remnant, bytes: size, life: 3, stable: 0 };
        assert_eq!(search.step(&bytes[torn as usize..], torn), Looked::Found(found));
        let mut other = Search::new(header().log, (4, 1), BYTES);
        assert_eq!(
            other.step(&bytes[torn as usize..], torn),
            Looked::Nothing { below: BYTES - 16 }
        );
    }
}
