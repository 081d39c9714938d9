//! The bytes of a log, as docs/log-format.md describes them. Values only, no I/O.

pub mod frame;
pub mod header;
pub mod scan;

pub use header::Content;

use std::ops::Range;

/// The unit of writes in bytes. The header of a segment fills one.
pub const BLOCK_BYTES: u64 = 4096;

/// The space at the end of a segment that only frames without payload use.
pub const RESERVED_BYTES: u64 = 4096;

/// The allowed sizes of a segment.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The largest size of a segment.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Whether a segment may have this size.
pub fn is_segment_size(bytes: u64) -> bool {
    (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) && bytes.is_power_of_two()
}

/// The random name of a log, chosen when it is created.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogId(pub [u8; 16]);

impl std::fmt::Display for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The start of the block that contains an offset.
pub fn block_of(offset: u64) -> u64 {
    offset - offset % BLOCK_BYTES
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at..at + 4))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at..at + 8))
}

fn array<const N: usize>(bytes: &[u8], range: Range<usize>) -> [u8; N] {
    bytes[range].try_into().expect("a range of N bytes")
}
