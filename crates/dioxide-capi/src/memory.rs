//! Memory that is aligned for any device and file system.

use crate::error::{Failure, remember};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Enough for every file system and device: direct I/O never asks for more than a page.
const ALIGN: usize = 4096;

/// `length` bytes of zeros, at a multiple of 4096 bytes, which every device and file system takes for direct I/O.
///
/// # Return value
///
/// Memory that `dioxide_free` (or free(3)) gives back, never NULL for a `length` of 0; or NULL with a message in
/// `dioxide_last_error` where there is no memory.
///
/// # Thread safety
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn dioxide_alloc(length: usize) -> *mut c_void {
    let mut memory = null_mut();
    // SAFETY: `memory` is there to be written.
    let errno = unsafe { libc::posix_memalign(&mut memory, ALIGN, length.max(1)) };
    if errno != 0 {
        remember("dioxide_alloc", Failure::Here(errno, format!("no memory for {length} bytes")));
        return null_mut();
    }
    // SAFETY: it has so many bytes.
    unsafe { memory.cast::<u8>().write_bytes(0, length) };
    memory
}

/// Gives back what `dioxide_alloc` gave. NULL does nothing. Not while an operation of a queue has it.
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

/// Sets what all files of the process together may have grown ahead, in bytes; 2 GiB by default. An append that needs more
/// gets just what it needs.
///
/// # Thread safety
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn dioxide_set_growth_budget(bytes: u64) {
    dioxide::set_growth_budget(bytes);
}
