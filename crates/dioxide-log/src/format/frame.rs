//! Frames: the records of a segment, and the frames without payload that truncate, end or close.

use super::{LogId, u32_at, u64_at};
use crate::lsn::Lsn;

/// The bytes of a frame before its payload.
pub const HEADER_BYTES: u64 = 24;

const LENGTH_AT: usize = 4;
const LSN_AT: usize = 8;
const LIFE_AT: usize = 16;
const KIND_AT: usize = 20;
const ZERO_AT: usize = 21;
const FLAGS_AT: usize = 22;

/// The meaning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The payload is a record.
    Record = 1,
    /// The last frame of a segment.
    End = 2,
    /// Records below the LSN are removed.
    Front = 3,
    /// Records from the LSN on are removed.
    Back = 4,
    /// The writer closed the log.
    Closed = 5,
    /// A flush has made the frames below an offset of the segment stable. The LSN is the offset.
    Flushed = 6,
}

impl Kind {
    /// All meanings.
    pub const ALL: [Self; 6] =
        [Self::Record, Self::End, Self::Front, Self::Back, Self::Closed, Self::Flushed];
}

/// Facts about a frame and its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// Everything before the frame was stable when it was written.
    pub stable: bool,
    /// The next frame belongs to the same atomic batch.
    pub more: bool,
}

impl Flags {
    fn encode(self) -> u16 {
        u16::from(self.stable) | u16::from(self.more) << 1
    }

    fn parse(bits: u16) -> Option<Self> {
        (bits < 4).then_some(Self { stable: bits & 1 != 0, more: bits & 2 != 0 })
    }
}

/// The identity of a segment, which the checksum of each of its frames includes.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    pub log: LogId,
    pub life: u32,
}

/// A valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    pub flags: Flags,
    pub lsn: Lsn,
    pub payload: &'a [u8],
}

/// The reason why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nothing valid begins here.
    Invalid,
    /// The frame needs this many bytes, and there are fewer. Not yet checked.
    Longer(u64),
    /// A valid frame of a kind, or with flags, that this version does not know.
    Unknown { kind: u8, flags: u16 },
}

/// The size of a frame in bytes, by the length of its payload.
pub fn frame_bytes(payload: usize) -> u64 {
    (HEADER_BYTES + payload as u64).next_multiple_of(8)
}

/// The payload of a frame that was [parsed](Frame::parse) at the start of `bytes`.
pub fn payload_of(bytes: &[u8]) -> &[u8] {
    let length = u32_at(bytes, LENGTH_AT) as usize;
    &bytes[HEADER_BYTES as usize..][..length]
}

/// The checksum of a payload alone. It is the first part of the checksum of its frame, so that a
/// thread computes it before it knows LSN and offset.
pub fn checksum_of(payload: &[u8]) -> u32 {
    crc32c::crc32c(payload)
}

fn checksum(payload: u32, head: &[u8], offset: u64, log: LogId) -> u32 {
    let mut rest = [0; 40];
    rest[..20].copy_from_slice(head);
    rest[20..24].copy_from_slice(&(offset as u32).to_le_bytes());
    rest[24..].copy_from_slice(&log.0);
    crc32c::crc32c_append(payload, &rest)
}

impl Frame<'_> {
    /// Writes the frame into `into`, which has exactly its [size](frame_bytes). `offset` is that of
    /// the frame in its segment, `payload` the [checksum](checksum_of) of the payload.
    pub fn encode(&self, into: &mut [u8], payload: u32, home: Home, offset: u64) {
        let (head, body) = into.split_at_mut(HEADER_BYTES as usize);
        head[LENGTH_AT..LSN_AT].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        head[LSN_AT..LIFE_AT].copy_from_slice(&self.lsn.0.to_le_bytes());
        head[LIFE_AT..KIND_AT].copy_from_slice(&home.life.to_le_bytes());
        head[KIND_AT] = self.kind as u8;
        head[ZERO_AT] = 0;
        head[FLAGS_AT..].copy_from_slice(&self.flags.encode().to_le_bytes());
        let sum = checksum(payload, &head[LENGTH_AT..], offset, home.log);
        head[..LENGTH_AT].copy_from_slice(&sum.to_le_bytes());
        let (payload, padding) = body.split_at_mut(self.payload.len());
        payload.copy_from_slice(self.payload);
        padding.fill(0);
    }
}

impl<'a> Frame<'a> {
    /// The size of the frame in bytes.
    pub fn bytes(&self) -> u64 {
        frame_bytes(self.payload.len())
    }

    /// Parses the frame at the start of `bytes`, which lies at `offset` of its segment.
    pub fn parse(bytes: &'a [u8], home: Home, offset: u64) -> Result<Self, Refused> {
        let Some((head, body)) = bytes.split_at_checked(HEADER_BYTES as usize) else {
            return Err(Refused::Longer(HEADER_BYTES));
        };
        if u32_at(head, LIFE_AT) != home.life || head[ZERO_AT] != 0 || head[KIND_AT] == 0 {
            return Err(Refused::Invalid);
        }
        let length = u32_at(head, LENGTH_AT) as usize;
        let size = frame_bytes(length);
        if bytes.len() < size as usize {
            return Err(Refused::Longer(size));
        }
        let (payload, padding) = body[..size as usize - head.len()].split_at(length);
        let sum = checksum(checksum_of(payload), &head[LENGTH_AT..], offset, home.log);
        if sum != u32_at(head, 0) || padding.iter().any(|byte| *byte != 0) {
            return Err(Refused::Invalid);
        }
        let (kind, flags) = (head[KIND_AT], u16::from_le_bytes([head[22], head[23]]));
        let known = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
        let (Some(kind), Some(flags)) = (known, Flags::parse(flags)) else {
            return Err(Refused::Unknown { kind, flags });
        };
        if kind != Kind::Record && length > 0 {
            return Err(Refused::Invalid);
        }
        Ok(Self { kind, flags, lsn: Lsn(u64_at(head, LSN_AT)), payload })
    }
}

/// The life and the size of the frame that may begin at the start of `bytes`. They have its header.
/// None if no frame begins there.
pub fn claimed(bytes: &[u8]) -> Option<(u32, u64)> {
    let claims = bytes[ZERO_AT] == 0 && bytes[KIND_AT] != 0;
    claims.then(|| (u32_at(bytes, LIFE_AT), frame_bytes(u32_at(bytes, LENGTH_AT) as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOME: Home = Home { log: LogId(*b"0123456789abcdef"), life: 9 };

    fn encoded(frame: Frame<'_>, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0xAA; frame.bytes() as usize];
        frame.encode(&mut bytes, checksum_of(frame.payload), HOME, offset);
        bytes
    }

    fn record(payload: &[u8]) -> Frame<'_> {
        Frame { kind: Kind::Record, flags: Flags::default(), lsn: Lsn(5), payload }
    }

    proptest! {
        #[test]
        fn a_frame_is_parsed_as_it_was_written(
            payload: Vec<u8>, lsn: u64, kind in 0..6usize, stable: bool, more: bool, offset: u32,
        ) {
            let kind = Kind::ALL[kind];
            let payload = if kind == Kind::Record { &payload[..] } else { &[] };
            let frame = Frame { kind, flags: Flags { stable, more }, lsn: Lsn(lsn), payload };
            let mut bytes = encoded(frame, offset.into());
            prop_assert_eq!(bytes.len() % 8, 0);
            bytes.push(1);
            prop_assert_eq!(Frame::parse(&bytes, HOME, offset.into()), Ok(frame));
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes: Vec<u8>, offset: u32) {
            let _ = Frame::parse(&bytes, HOME, offset.into());
        }
    }

    #[test]
    fn no_changed_bit_of_a_frame_is_accepted() {
        let mut bytes = encoded(record(b"a record"), 4096);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::parse(&bytes, HOME, 4096).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let mut padded = encoded(record(b"a"), 4096);
        *padded.last_mut().expect("padding") = 1;
        assert_eq!(Frame::parse(&padded, HOME, 4096), Err(Refused::Invalid));
    }

    #[test]
    fn a_frame_is_valid_only_in_its_log_segment_and_offset() {
        let bytes = encoded(record(b"a record"), 4096);
        let invalid = Err(Refused::Invalid);
        assert_eq!(Frame::parse(&bytes, HOME, 4104), invalid);
        assert_eq!(Frame::parse(&bytes, Home { life: 10, ..HOME }, 4096), invalid);
        let other = LogId(*b"0123456789abcdeX");
        assert_eq!(Frame::parse(&bytes, Home { log: other, ..HOME }, 4096), invalid);
    }

    #[test]
    fn zeros_are_no_frame() {
        assert_eq!(Frame::parse(&[0; 64], HOME, 4096), Err(Refused::Invalid));
        assert_eq!(Frame::parse(&[0; 64], Home { life: 0, ..HOME }, 4096), Err(Refused::Invalid));
    }

    #[test]
    fn a_later_kind_or_flag_is_named() {
        for (at, value) in [(KIND_AT, 77), (FLAGS_AT, 4)] {
            let mut bytes = encoded(record(b"x"), 4096);
            bytes[at] = value;
            let sum = checksum(checksum_of(b"x"), &bytes[LENGTH_AT..24], 4096, HOME.log);
            bytes[..4].copy_from_slice(&sum.to_le_bytes());
            assert!(matches!(Frame::parse(&bytes, HOME, 4096), Err(Refused::Unknown { .. })));
        }
    }
}
