//! What a file tells of itself: how it must be written, and what was done on it.

use crate::error::answer;
use crate::file::{dioxide_file, file_of};
use crate::sized::{self, CStruct};
use std::ffi::c_int;
use std::mem::size_of;

/// What the memory, offsets and lengths of writes must be multiples of, in bytes. Set `size` before it is filled in.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_alignment {
    /// sizeof(struct dioxide_alignment).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Addresses of memory.
    pub memory: u64,
    /// Offsets and lengths of positional writes.
    pub offset: u64,
    /// Appends are packed into blocks of this. One that begins and ends at multiples of it is written without a copy.
    pub append: u64,
}

// SAFETY: numbers, side by side.
unsafe impl CStruct for dioxide_alignment {
    const NAME: &str = "dioxide_alignment";
    const SIZE_FIRST: usize = 32;
    const ZERO: Self = Self { size: size_of::<Self>() as u32, reserved: 0, memory: 0, offset: 0, append: 0 };
}

/// What `dioxide_pwrite` wants to be aligned, and to what. Appends and reads take anything, and cost least if they are aligned.
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

/// What was done on a file, through all its handles, since its first handle that may write was opened; all 0 for one that only reads.
/// Set `size` before it is filled in.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_stats {
    /// sizeof(struct dioxide_stats).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Appends acknowledged.
    pub appends: u64,
    /// Bytes of these.
    pub append_bytes: u64,
    /// Requests sent to the kernel for appends, and for positional writes that are durable or extend the file.
    pub requests: u64,
    /// Bytes of these.
    pub request_bytes: u64,
    /// Requests that carried RWF_DSYNC.
    pub dsync_requests: u64,
    /// Operations that shared their request with another one.
    pub merged: u64,
    /// Bytes that were copied to be packed into blocks, with the zeros behind them.
    pub copied_bytes: u64,
    /// Requests that wrote the last block again, since it was not full.
    pub tail_rewrites: u64,
    /// Flushes sent, those behind RWF_DSYNC not included.
    pub flushes: u64,
    /// Growth steps done.
    pub growths: u64,
    /// Bytes of these.
    pub grown_bytes: u64,
    /// Times that an operation had to wait because the space ahead was used up.
    pub growth_waits: u64,
    /// Requests that wrote what a volume itself consists of, for a file inside of it.
    pub metadata_requests: u64,
    /// Operations that did not join a request because they were not adjacent to it.
    pub refused_gap: u64,
    /// Because the request would have been longer than the device's largest, or the operation is long by itself.
    pub refused_bytes: u64,
    /// Because the request would have had more segments than one call takes.
    pub refused_segments: u64,
    /// Because they lie on another member of a striped volume.
    pub refused_member: u64,
    /// Writes that had to wait because they share bytes, or a block, with another one.
    pub refused_order: u64,
}

// SAFETY: numbers, side by side.
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
            ..Self::ZERO
        }
    }
}

/// What was done on the file so far.
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
pub unsafe extern "C" fn dioxide_stats(file: *mut dioxide_file, stats: *mut dioxide_stats) -> c_int {
    answer("dioxide_stats", || {
        // SAFETY: as the caller promises.
        unsafe { sized::give(stats, || Ok(file_of(file)?.stats().into()))? };
        Ok(0)
    })
}
