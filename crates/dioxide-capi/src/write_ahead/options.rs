//! The options of a program that opens a write-ahead log.

use crate::error::{Result, invalid};
use crate::sized::{self, CStruct};
use ::dioxide_log::{Durability, LogOptions};
use std::mem::size_of;
use std::time::Duration;

/// A missing log is not created.
pub const DIOXIDE_LOG_NO_CREATE: u32 = 1;
/// A record is acknowledged when it is written, and stable after the next `dioxide_log_sync` that
/// begins later. Without this flag it is stable when it is acknowledged.
pub const DIOXIDE_LOG_ON_SYNC: u32 = 2;
/// Readers of this process see records that are written and not yet stable. It makes a difference
/// only with DIOXIDE_LOG_ON_SYNC.
pub const DIOXIDE_LOG_READ_UNSYNCED: u32 = 4;

/// How a write-ahead log is opened. A member that is 0 means the default; so does NULL instead of
/// the struct. Initialise all of it, as a struct dioxide_options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_log_options {
    /// sizeof(struct dioxide_log_options).
    pub size: u32,
    /// DIOXIDE_LOG_NO_CREATE, DIOXIDE_LOG_ON_SYNC and DIOXIDE_LOG_READ_UNSYNCED, or 0.
    pub flags: u32,
    /// The size of the segments of a new log, in bytes: a power of two from 64 KiB to 1 GiB; 0 for
    /// 16 MiB. A log keeps the size that it was created with. It frees its space by whole segments.
    /// The largest record is 8 KiB and 24 bytes smaller than a segment; 8.25 KiB in a log of
    /// streams.
    pub segment_bytes: u64,
    /// The number of free segments that are kept for reuse; 0 for 4. More are removed.
    pub spare_segments: u64,
    /// The bytes of records that one write gathers at most; 0 for 1 MiB. A longer record is one
    /// write.
    pub batch_bytes: u64,
    /// The size of the log from which the oldest segments are freed, in bytes of segments; 0 for no
    /// limit. The last segment always stays.
    pub retain_bytes: u64,
    /// The age from which segments are freed, in milliseconds; 0 for no limit. A segment is freed
    /// when all its records are older.
    pub retain_age_ms: u64,
}

// SAFETY: numbers without padding.
unsafe impl CStruct for dioxide_log_options {
    const NAME: &str = "dioxide_log_options";
    const SIZE_FIRST: usize = 48;
    const ZERO: Self = Self {
        size: size_of::<Self>() as u32,
        flags: 0,
        segment_bytes: 0,
        spare_segments: 0,
        batch_bytes: 0,
        retain_bytes: 0,
        retain_age_ms: 0,
    };
}

/// The request of the program.
///
/// # Safety
///
/// The options are NULL or as [`sized::take`] requires.
pub(super) unsafe fn wanted(given: *const dioxide_log_options) -> Result<LogOptions> {
    let given = match given.is_null() {
        true => dioxide_log_options::ZERO,
        // SAFETY: as the caller promises.
        false => unsafe { sized::take(given)? },
    };
    let mut left = given.flags;
    let mut has = |flag: u32| {
        let has = left & flag != 0;
        left &= !flag;
        has
    };
    let mut options = LogOptions::new()
        .create(!has(DIOXIDE_LOG_NO_CREATE))
        .durability(match has(DIOXIDE_LOG_ON_SYNC) {
            true => Durability::OnSync,
            false => Durability::EveryWrite,
        })
        .read_unsynced(has(DIOXIDE_LOG_READ_UNSYNCED));
    if left != 0 {
        return Err(invalid(format!("flags {left:#x} are not known here")));
    }
    if given.segment_bytes > 0 {
        options = options.segment_bytes(given.segment_bytes);
    }
    if given.spare_segments > 0 {
        options = options.spare_segments(given.spare_segments.try_into().unwrap_or(usize::MAX));
    }
    if given.batch_bytes > 0 {
        options = options.batch_bytes(given.batch_bytes);
    }
    if given.retain_bytes > 0 {
        options = options.retain_bytes(given.retain_bytes);
    }
    if given.retain_age_ms > 0 {
        options = options.retain_age(Duration::from_millis(given.retain_age_ms));
    }
    Ok(options)
}
