//! Memory that is aligned for any device and file system.

use crate::error::{Failure, remember};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Enough for every file system and device: direct I/O never requires more than a page.
const ALIGN: usize = 4096;

/// Allocates `length` bytes of zeros, aligned to 4096 bytes. Every device and file system accepts
/// that for direct I/O.
///
/// # Return value
///
/// Memory to be freed with `dioxide_free` (or free(3)), never NULL for a `length` of 0. NULL with a
/// message in `dioxide_last_error` if there is no memory.
///
/// # Thread safety
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn dioxide_alloc(length: usize) -> *mut c_void {
    let mut memory = null_mut();
    // SAFETY: `memory` may be written.
    let errno = unsafe { libc::posix_memalign(&mut memory, ALIGN, length.max(1)) };
    if errno != 0 {
        remember("dioxide_alloc", Failure::Here(errno, format!("no memory for {length} bytes")));
        return null_mut();
    }
    // SAFETY: it has `length` bytes.
    unsafe { memory.cast::<u8>().write_bytes(0, length) };
    memory
}

/// Frees memory of `dioxide_alloc`. NULL does nothing. Not while an operation of a queue uses it.
///
/// # Thread safety
///
/// Any thread.
///
/// # Safety
///
/// As free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_free(memory: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { libc::free(memory) }
}

/// Sets the maximum of preallocated space over all files of the process, in bytes; 2 GiB by
/// default. Above it an append allocates only what it needs.
///
/// # Thread safety
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn dioxide_set_growth_budget(bytes: u64) {
    dioxide::set_growth_budget(bytes);
}
