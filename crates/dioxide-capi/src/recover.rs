//! The state of a file after a crash, and its recovery.

use crate::args::{path as path_of, paths as paths_of};
use crate::error::{Result, answer, invalid, text};
use crate::file::{dioxide_file, file_of};
use crate::sized::{self, CStruct};
use dioxide::{Recover, Recovery, Verdict};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::mem::size_of;
use std::ptr::null;

/// Only inspect. Nothing is changed, nothing is locked.
pub const DIOXIDE_INSPECT: u32 = 0;
/// Truncate where the end is certain, as opening does.
pub const DIOXIDE_TRUNCATE: u32 = 1;
/// Truncate at the end of the written data even if another program changed the file since. For the
/// owner, who knows the other program.
pub const DIOXIDE_FORCE: u32 = 2;

/// The file was closed, or never preallocated: nothing to do.
pub const DIOXIDE_CLEAN: u32 = 0;
/// It carries the marker of the file that it was copied from: left alone.
pub const DIOXIDE_FOREIGN: u32 = 1;
/// It was left preallocated; the end of the written data is known.
pub const DIOXIDE_END_KNOWN: u32 = 2;
/// After its records the file has zeros, or its content before it was recycled. The end is between
/// `floor` and `ceiling`. Only the program that knows the records can find it, and truncate there
/// with `dioxide_ftruncate`.
pub const DIOXIDE_END_UNKNOWN: u32 = 3;
/// It was left preallocated, and another program changed it since. Only force truncates it.
pub const DIOXIDE_MODIFIED_EXTERNALLY: u32 = 4;

/// The state of a file. Set `size` before it is filled in.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_recovery {
    /// sizeof(struct dioxide_recovery).
    pub size: u32,
    /// DIOXIDE_CLEAN, DIOXIDE_FOREIGN, DIOXIDE_END_KNOWN, DIOXIDE_END_UNKNOWN or
    /// DIOXIDE_MODIFIED_EXTERNALLY. Later versions may have more.
    pub verdict: u32,
    /// The file's size as found, in bytes.
    pub physical_size: u64,
    /// Everything below this offset certainly belongs to the file.
    pub floor: u64,
    /// Nothing was written above this offset. Equal to `floor` if the end is known.
    pub ceiling: u64,
    /// A description in English. It belongs to the library. It is valid until the next call by the
    /// same thread that fills such a struct, and until the thread ends.
    pub text: *const c_char,
}

// SAFETY: numbers, and an address that is never read, without padding.
unsafe impl CStruct for dioxide_recovery {
    const NAME: &str = "dioxide_recovery";
    const SIZE_FIRST: usize = 32 + size_of::<*const c_char>();
    const ZERO: Self = Self {
        size: size_of::<Self>() as u32,
        verdict: 0,
        physical_size: 0,
        floor: 0,
        ceiling: 0,
        text: null(),
    };
}

thread_local!(static TEXT: RefCell<CString> = RefCell::default());

impl From<&Recovery> for dioxide_recovery {
    fn from(found: &Recovery) -> Self {
        let verdict = match &found.verdict {
            Verdict::Clean => DIOXIDE_CLEAN,
            Verdict::Foreign => DIOXIDE_FOREIGN,
            Verdict::EndKnown => DIOXIDE_END_KNOWN,
            Verdict::EndUnknown => DIOXIDE_END_UNKNOWN,
            // People must inspect an unknown verdict.
            _ => DIOXIDE_MODIFIED_EXTERNALLY,
        };
        let keep = |kept: &RefCell<CString>| {
            *kept.borrow_mut() = text(found.to_string());
            kept.borrow().as_ptr()
        };
        // An ending thread cannot store anything.
        let text = TEXT.try_with(keep).unwrap_or(c"".as_ptr());
        let Recovery { physical_size, floor, ceiling, .. } = *found;
        Self { verdict, physical_size, floor, ceiling, text, ..Self::ZERO }
    }
}

/// Reports the state of a file after a crash, as opening it for writing found it, and its recovery.
///
/// With DIOXIDE_END_UNKNOWN the length is the ceiling. Read from the floor on, find the last of the
/// records, and truncate there with `dioxide_ftruncate`. Until then each open reports
/// DIOXIDE_END_UNKNOWN again.
///
/// Truncate before the first append. An append lands at the length, behind zeros or old records. A
/// later search for the end stops before it, and the next truncate destroys it.
///
/// # Return value
///
/// 1 with `recovery` filled in; 0 if the file needed no recovery, with DIOXIDE_CLEAN there and the
/// rest 0; or a negative errno.
///
/// # Errors
///
/// - EINVAL: a pointer is NULL, or the member `size` was not set.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open; `recovery` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_recovery(
    file: *mut dioxide_file,
    recovery: *mut dioxide_recovery,
) -> c_int {
    answer("dioxide_recovery", || {
        let mut said = false;
        let tell = |found: &Recovery| {
            said = true;
            found.into()
        };
        let nothing = dioxide_recovery { text: c"".as_ptr(), ..CStruct::ZERO };
        // SAFETY: as the caller promises.
        unsafe { sized::give(recovery, || Ok(file_of(file)?.recovery().map_or(nothing, tell)))? };
        Ok(said.into())
    })
}

/// Inspects a file after a crash, and recovers it with DIOXIDE_TRUNCATE or DIOXIDE_FORCE in `how`.
/// Opening for writing does the same. This function is for inspection, and for files that opening
/// refuses.
///
/// On return the new length of a truncated file is durable.
///
/// # Return value
///
/// 0 with the state before the recovery in `found`, or a negative errno.
///
/// # Errors
///
/// - EINVAL: a pointer is NULL, the member `size` was not set, or `how` is none of the three.
/// - EAGAIN: a process, this one or another, has the file open for writing. With DIOXIDE_INSPECT:
///   it changes the file so fast that there is no consistent view.
/// - EBUSY: another process has the file open for writing, so it is not truncated.
/// - EIO: a flush failed on that file system before; mount it anew.
/// - EOPNOTSUPP: a block device, which does not grow, or no direct I/O.
/// - Others: errors of the kernel.
///
/// # Thread safety
///
/// Any thread. It opens and closes the file, which releases the POSIX locks that the process has on
/// it.
///
/// # Safety
///
/// `path` is a string; `found` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_recover(
    path: *const c_char,
    how: u32,
    found: *mut dioxide_recovery,
) -> c_int {
    answer("dioxide_recover", || {
        // SAFETY: as the caller promises.
        unsafe {
            sized::give(found, || {
                let (path, how) = (path_of(path, "path")?, manner(how)?);
                Ok((&dioxide::recover(path, how)?).into())
            })?;
        }
        Ok(0)
    })
}

/// As `dioxide_recover`, for a striped volume of files: `paths` and `chunk_bytes` as with
/// `dioxide_open_striped`.
///
/// # Return value
///
/// As `dioxide_recover`.
///
/// # Errors
///
/// As `dioxide_recover`, and those of the arguments of `dioxide_open_striped`:
/// - EINVAL: an invalid chunk, or more than 64 paths.
/// - EOPNOTSUPP: files and devices mixed, a chunk longer than 1 TiB, or no member.
/// - EUCLEAN: these are not the members of one volume, in this order.
///
/// # Thread safety
///
/// Any thread.
///
/// # Safety
///
/// `paths` has `count` strings; `found` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_recover_striped(
    paths: *const *const c_char,
    count: usize,
    chunk_bytes: u64,
    how: u32,
    found: *mut dioxide_recovery,
) -> c_int {
    answer("dioxide_recover_striped", || {
        // SAFETY: as the caller promises.
        unsafe {
            sized::give(found, || {
                let (paths, how) = (paths_of(paths, count)?, manner(how)?);
                Ok((&dioxide::recover_striped(&paths, chunk_bytes, how)?).into())
            })?;
        }
        Ok(0)
    })
}

fn manner(how: u32) -> Result<Recover> {
    match how {
        DIOXIDE_INSPECT => Ok(Recover::Inspect),
        DIOXIDE_TRUNCATE => Ok(Recover::Truncate),
        DIOXIDE_FORCE => Ok(Recover::Force),
        _ => Err(invalid(format!(
            "how is {how}: DIOXIDE_INSPECT, DIOXIDE_TRUNCATE or DIOXIDE_FORCE"
        ))),
    }
}
