//! The counters of a write-ahead log.

use super::{dioxide_log, log_of};
use crate::error::answer;
use crate::sized::{self, CStruct};
use ::dioxide_log::Stats;
use std::ffi::c_int;
use std::mem::size_of;

/// Counters of a write-ahead log since it was opened. Set `size` before it is filled in.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_log_stats {
    /// sizeof(struct dioxide_log_stats).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Records that were written.
    pub records: u64,
    /// Writes. Each is a batch of records, and one flush without DIOXIDE_LOG_ON_SYNC.
    pub batches: u64,
    /// Bytes of these writes.
    pub bytes: u64,
    /// The time of all writes, in nanoseconds.
    pub write_ns: u64,
    /// Flushes by `dioxide_log_sync`.
    pub syncs: u64,
    /// Segments that were made.
    pub segments_created: u64,
    /// Segments that became free for reuse.
    pub segments_freed: u64,
    /// Segments in use now.
    pub segments: u64,
    /// Free segments now.
    pub free_segments: u64,
}

// SAFETY: numbers without padding.
unsafe impl CStruct for dioxide_log_stats {
    const NAME: &str = "dioxide_log_stats";
    const SIZE_FIRST: usize = 80;
    const ZERO: Self = Self {
        size: size_of::<Self>() as u32,
        reserved: 0,
        records: 0,
        batches: 0,
        bytes: 0,
        write_ns: 0,
        syncs: 0,
        segments_created: 0,
        segments_freed: 0,
        segments: 0,
        free_segments: 0,
    };
}

impl From<Stats> for dioxide_log_stats {
    fn from(stats: Stats) -> Self {
        Self {
            records: stats.records,
            batches: stats.batches,
            bytes: stats.bytes,
            write_ns: stats.write_ns,
            syncs: stats.syncs,
            segments_created: stats.segments_created,
            segments_freed: stats.segments_freed,
            segments: stats.segments,
            free_segments: stats.free_segments,
            ..Self::ZERO
        }
    }
}

/// Reports the counters of a write-ahead log.
///
/// # Return value
///
/// 0 with `stats` filled in, or a negative errno.
///
/// # Errors
///
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: a pointer is NULL, or the member `size` was not set.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open; `stats` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_stats(
    log: *mut dioxide_log,
    stats: *mut dioxide_log_stats,
) -> c_int {
    answer("dioxide_log_stats", || {
        // SAFETY: as the caller promises.
        unsafe { sized::give(stats, || Ok(log_of(log)?.stats().into()))? };
        Ok(0)
    })
}
