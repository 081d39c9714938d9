//! What a crash left of a file, and bringing it into order.

use crate::args::{path as path_of, paths as paths_of};
use crate::error::{Result, answer, invalid, text};
use crate::file::{dioxide_file, file_of};
use crate::sized::{self, CStruct};
use dioxide::{Recover, Recovery, Verdict};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::mem::size_of;
use std::ptr::null;

/// Only look. Nothing is changed, nothing is locked.
pub const DIOXIDE_INSPECT: u32 = 0;
/// Cut where the end is certain, as opening does.
pub const DIOXIDE_CUT: u32 = 1;
/// Cut even if another program changed the file since, at the end of what is written: for the owner, who knows by whom.
pub const DIOXIDE_FORCE: u32 = 2;

/// The file was closed, or never grew ahead: nothing to do.
pub const DIOXIDE_CLEAN: u32 = 0;
/// It carries the marker of the file that it was copied from: left alone.
pub const DIOXIDE_FOREIGN: u32 = 1;
/// It was left grown; the end of what was written is known.
pub const DIOXIDE_KNOWN: u32 = 2;
/// It was left with zeros, or what it held before it was recycled, behind its records. The end lies between `floor` and
/// `ceiling`, and only the program that knows the records can tell where, and cut there with `dioxide_ftruncate`.
pub const DIOXIDE_UNDECIDED: u32 = 3;
/// It was left grown, and changed since by another program. Nothing is cut, except by force.
pub const DIOXIDE_DOUBTFUL: u32 = 4;

/// What was found of a file. Set `size` before it is filled in.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct dioxide_recovery {
    /// sizeof(struct dioxide_recovery).
    pub size: u32,
    /// DIOXIDE_CLEAN, DIOXIDE_FOREIGN, DIOXIDE_KNOWN, DIOXIDE_UNDECIDED or DIOXIDE_DOUBTFUL. Later versions may know more.
    pub verdict: u32,
    /// The file's size as found, in bytes.
    pub physical_size: u64,
    /// Everything below was certainly meant to be kept.
    pub floor: u64,
    /// Nothing above was written. The same as `floor` where the end is known.
    pub ceiling: u64,
    /// The same for people, in English. The library's, and valid until the next call by the same thread that fills such a
    /// struct.
    pub text: *const c_char,
}

// SAFETY: numbers and an address that is only given, side by side.
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
            Verdict::Cut => DIOXIDE_KNOWN,
            Verdict::Undecided => DIOXIDE_UNDECIDED,
            // What is not known here is for people to look at.
            _ => DIOXIDE_DOUBTFUL,
        };
        let keep = |kept: &RefCell<CString>| {
            *kept.borrow_mut() = text(found.to_string());
            kept.borrow().as_ptr()
        };
        // While the thread ends nothing can be kept.
        let text = TEXT.try_with(keep).unwrap_or(c"".as_ptr());
        let Recovery { physical_size, floor, ceiling, .. } = *found;
        Self { verdict, physical_size, floor, ceiling, text, ..Self::ZERO }
    }
}

/// What a crash had left of a file when it was opened for writing, and what was made of it.
///
/// With DIOXIDE_UNDECIDED the length is the ceiling: read from the floor on, find the last of the records, and cut there with
/// `dioxide_ftruncate`. Until then the question comes again with each open.
///
/// # Return value
///
/// 1 with `recovery` filled in; 0 if the file was in order, with DIOXIDE_CLEAN there and the rest 0; or a negative errno.
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
pub unsafe extern "C" fn dioxide_recovery(file: *mut dioxide_file, recovery: *mut dioxide_recovery) -> c_int {
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

/// Looks at a file that a crash may have left open, and with DIOXIDE_CUT or DIOXIDE_FORCE in `how` brings it into order. Opening
/// for writing does the same; this is for looking, and for files that opening refuses.
///
/// On return a file that was cut has its new length durably.
///
/// # Return value
///
/// 0 with `found` filled in with what was found before anything was done, or a negative errno.
///
/// # Errors
///
/// - EINVAL: a pointer is NULL, the member `size` was not set, or `how` is none of the three.
/// - EAGAIN: a process, this one or another, has the file open for writing; with DIOXIDE_INSPECT, it changes the file so fast
///   that no two looks agree.
/// - EBUSY: another process has the file open for writing, so it is not truncated.
/// - EIO: a flush failed on that file system before; mount it anew.
/// - EOPNOTSUPP: a block device, which does not grow, or no direct I/O.
/// - What the kernel answers.
///
/// # Thread safety
///
/// Any thread. It opens and closes the file, which ends the POSIX locks that the process has on it.
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

/// As `dioxide_recover`, for a striped volume of files: `paths` and `chunk_bytes` as with `dioxide_open_striped`.
///
/// # Return value
///
/// As `dioxide_recover`.
///
/// # Errors
///
/// As `dioxide_recover`, and:
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
        DIOXIDE_CUT => Ok(Recover::Cut),
        DIOXIDE_FORCE => Ok(Recover::Force),
        _ => Err(invalid(format!("how is {how}: DIOXIDE_INSPECT, DIOXIDE_CUT or DIOXIDE_FORCE"))),
    }
}
