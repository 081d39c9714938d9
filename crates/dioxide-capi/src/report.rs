//! Reports of a file: its alignment, and its counters.

use crate::error::answer;
use crate::file::{dioxide_file, file_of};
use crate::sized::{self, CStruct};
use std::ffi::c_int;
use std::mem::size_of;

/// The alignment with which operations cost least: memory, offsets and lengths, in bytes. Set
/// `size` before it is filled in.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_alignment {
    /// sizeof(struct dioxide_alignment).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Of memory addresses.
    pub memory: u64,
    /// Of offsets and lengths of positional writes.
    pub offset: u64,
    /// The block into which appends are packed. An append that begins and ends at multiples of it
    /// is written without a copy.
    pub append: u64,
}

// SAFETY: numbers without padding.
unsafe impl CStruct for dioxide_alignment {
    const NAME: &str = "dioxide_alignment";
    const SIZE_FIRST: usize = 32;
    const ZERO: Self =
        Self { size: size_of::<Self>() as u32, reserved: 0, memory: 0, offset: 0, append: 0 };
}

/// Reports the alignment with which operations cost least. None needs it.
///
/// # Return value
///
/// 0 with `alignment` filled in, or a negative errno.
///
/// # Errors
///
/// - EINVAL: a pointer is NULL, or the member `size` was not set.
///
/// # Thread safety
///
/// As dioxide_append.
///
/// # Safety
///
/// `file` is open; `alignment` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_alignment(
    file: *mut dioxide_file,
    alignment: *mut dioxide_alignment,
) -> c_int {
    answer("dioxide_alignment", || {
        // SAFETY: as the caller promises.
        unsafe {
            sized::give(alignment, || {
                let dioxide::Alignment { memory, offset, append, .. } = file_of(file)?.alignment();
                Ok(dioxide_alignment { memory, offset, append, ..CStruct::ZERO })
            })?;
        }
        Ok(0)
    })
}

/// Counters of a file over all its handles, since its first handle that may write was opened. All 0
/// for one that only reads. Set `size` before it is filled in.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_stats {
    /// sizeof(struct dioxide_stats).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Appends acknowledged.
    pub appends: u64,
    /// Bytes of these appends.
    pub append_bytes: u64,
    /// Requests sent to the kernel for appends, and for positional writes that are durable or
    /// extend the file. A striped volume also counts each further part of any write.
    pub requests: u64,
    /// Bytes of these requests.
    pub request_bytes: u64,
    /// Requests with RWF_DSYNC.
    pub dsync_requests: u64,
    /// Operations that shared their request with another one.
    pub merged: u64,
    /// Bytes copied to pack them into blocks, with their padding.
    pub copied_bytes: u64,
    /// Requests that rewrote a partial last block.
    pub tail_rewrites: u64,
    /// Flushes sent, without those of RWF_DSYNC.
    pub flushes: u64,
    /// Completed growth steps.
    pub growths: u64,
    /// Bytes of these steps.
    pub grown_bytes: u64,
    /// Number of times that an operation had to wait for growth.
    pub growth_waits: u64,
    /// Requests that wrote the metadata of a volume, for a file inside of it.
    pub metadata_requests: u64,
    /// Operations that did not join a request because they were not adjacent to it.
    pub refused_gap: u64,
    /// Operations that did not join because the request would have exceeded the device's largest,
    /// or because they are long themselves.
    pub refused_bytes: u64,
    /// Operations that did not join because the request would have had more segments than one call
    /// takes.
    pub refused_segments: u64,
    /// Operations that did not join because they are on another member of a striped volume.
    pub refused_member: u64,
    /// Writes that had to wait because they share bytes, or a block, with another one.
    pub refused_order: u64,
    /// Flushes not sent, because the flush of another file covered them.
    pub flushes_shared: u64,
}

// SAFETY: numbers without padding.
unsafe impl CStruct for dioxide_stats {
    const NAME: &str = "dioxide_stats";
    const SIZE_FIRST: usize = 152;
    const ZERO: Self = Self {
        size: size_of::<Self>() as u32,
        reserved: 0,
        appends: 0,
        append_bytes: 0,
        requests: 0,
        request_bytes: 0,
        dsync_requests: 0,
        merged: 0,
        copied_bytes: 0,
        tail_rewrites: 0,
        flushes: 0,
        growths: 0,
        grown_bytes: 0,
        growth_waits: 0,
        metadata_requests: 0,
        refused_gap: 0,
        refused_bytes: 0,
        refused_segments: 0,
        refused_member: 0,
        refused_order: 0,
        flushes_shared: 0,
    };
}

impl From<dioxide::Stats> for dioxide_stats {
    fn from(stats: dioxide::Stats) -> Self {
        Self {
            appends: stats.appends,
            append_bytes: stats.append_bytes,
            requests: stats.requests,
            request_bytes: stats.request_bytes,
            dsync_requests: stats.dsync_requests,
            merged: stats.merged,
            copied_bytes: stats.copied_bytes,
            tail_rewrites: stats.tail_rewrites,
            flushes: stats.flushes,
            growths: stats.growths,
            grown_bytes: stats.grown_bytes,
            growth_waits: stats.growth_waits,
            metadata_requests: stats.metadata_requests,
            refused_gap: stats.refused_gap,
            refused_bytes: stats.refused_bytes,
            refused_segments: stats.refused_segments,
            refused_member: stats.refused_member,
            refused_order: stats.refused_order,
            flushes_shared: stats.flushes_shared,
            ..Self::ZERO
        }
    }
}

/// Reports the counters of a file.
///
/// # Return value
///
/// 0 with `stats` filled in, or a negative errno.
///
/// # Errors
///
/// - EINVAL: a pointer is NULL, or the member `size` was not set.
///
/// # Thread safety
///
/// As dioxide_append.
///
/// # Safety
///
/// `file` is open; `stats` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stats(
    file: *mut dioxide_file,
    stats: *mut dioxide_stats,
) -> c_int {
    answer("dioxide_stats", || {
        // SAFETY: as the caller promises.
        unsafe { sized::give(stats, || Ok(file_of(file)?.stats().into()))? };
        Ok(0)
    })
}
