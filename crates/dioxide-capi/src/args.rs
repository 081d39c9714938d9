//! Converts C arguments to Rust: references, slices, paths, non-negative numbers.

use crate::error::{Failure, Result, invalid};
use libc::iovec;
use std::ffi::{CStr, OsStr, c_char};
use std::io::IoSliceMut;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, slice_from_raw_parts, slice_from_raw_parts_mut};

/// A volume has at most this number of members, so no more paths are read.
const PATHS_MAX: usize = 64;

/// The target of a pointer.
///
/// # Safety
///
/// It is null, or points to a `T` that does not change while the reference is used.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null(name))
}

/// The target of a pointer, to be changed.
///
/// # Safety
///
/// It is null, or points to a `T` without any other use while the reference is used.
pub(crate) unsafe fn exclusive<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_mut() }.ok_or_else(|| is_null(name))
}

/// Stores a result.
///
/// # Safety
///
/// It is null, or points to memory for a `T`, exclusive to the caller. The memory may be
/// uninitialised.
pub(crate) unsafe fn give<T>(
    into: *mut T,
    name: &str,
    value: impl FnOnce() -> Result<T>,
) -> Result<()> {
    let into = NonNull::new(into).ok_or_else(|| is_null(name))?;
    let value = value()?;
    // SAFETY: as the caller promises; the memory is neither read nor dropped.
    unsafe { into.write(value) };
    Ok(())
}

/// Returns a handle to C, NULL if there is none.
///
/// # Safety
///
/// As [`give`].
pub(crate) unsafe fn give_handle<T>(
    into: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Result<T>,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        give(into, name, || Ok(std::ptr::null_mut()))?;
        give(into, name, || make().map(|made| Box::into_raw(Box::new(made))))
    }
}

/// Takes back a handle of [`give_handle`].
///
/// # Safety
///
/// It is null, or such a handle without any other use, now or later.
pub(crate) unsafe fn take_handle<T>(handle: *mut T, name: &str) -> Result<Box<T>> {
    match handle.is_null() {
        true => Err(is_null(name)),
        // SAFETY: as the caller promises.
        false => Ok(unsafe { Box::from_raw(handle) }),
    }
}

/// The path in a string.
///
/// # Safety
///
/// It is null, or a null-terminated string that does not change while the path is used.
pub(crate) unsafe fn path<'a>(path: *const c_char, name: &str) -> Result<&'a Path> {
    if path.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// The paths in an array.
///
/// # Safety
///
/// It is null, or has `count` pointers, each as for [`path`].
pub(crate) unsafe fn paths<'a>(paths: *const *const c_char, count: usize) -> Result<Vec<&'a Path>> {
    if paths.is_null() {
        return Err(is_null("paths"));
    }
    if count > PATHS_MAX {
        return Err(invalid(format!("count is {count}: a volume has {PATHS_MAX} members at most")));
    }
    // SAFETY: as the caller promises.
    (0..count)
        .map(|number| unsafe { path(*paths.add(number), &format!("paths[{number}]")) })
        .collect()
}

/// The targets of an array of pointers. May be null if the count is 0.
///
/// # Safety
///
/// It is null, or has `count` pointers, each as for [`shared`].
pub(crate) unsafe fn all_shared<'a, T>(
    pointers: *const *mut T,
    count: usize,
    name: &str,
) -> Result<Vec<&'a T>> {
    array(pointers, count, name)?;
    // SAFETY: as the caller promises.
    (0..count)
        .map(|number| unsafe { shared(*pointers.add(number), &format!("{name}[{number}]")) })
        .collect()
}

/// The memory of an array of iovec. May be null if the count is 0.
///
/// # Safety
///
/// It is null, or has `count` members. Each has bytes that do not change while they are used.
pub(crate) unsafe fn slices<'a>(
    members: *const iovec,
    count: usize,
    name: &str,
) -> Result<Vec<&'a [u8]>> {
    // SAFETY: as the caller promises.
    let places = unsafe { places(members, count, name)? };
    // SAFETY: as above.
    let slice = |(start, length): (NonNull<u8>, usize)| unsafe {
        std::slice::from_raw_parts(start.as_ptr(), length)
    };
    Ok(places.into_iter().map(slice).collect())
}

/// As [`slices`], to write to.
///
/// # Safety
///
/// It is null, or has `count` members. Their memory is exclusive, and no byte is in two of them.
pub(crate) unsafe fn slices_mut<'a>(
    members: *const iovec,
    count: usize,
    name: &str,
) -> Result<Vec<IoSliceMut<'a>>> {
    // SAFETY: as the caller promises.
    let places = unsafe { places(members, count, name)? };
    // SAFETY: as above.
    let slice = |(start, length): (NonNull<u8>, usize)| unsafe {
        IoSliceMut::new(std::slice::from_raw_parts_mut(start.as_ptr(), length))
    };
    Ok(places.into_iter().map(slice).collect())
}

/// Start and length of each member.
///
/// # Safety
///
/// It is null, or has `count` members.
unsafe fn places(
    members: *const iovec,
    count: usize,
    name: &str,
) -> Result<Vec<(NonNull<u8>, usize)>> {
    array(members, count, name)?;
    let one = |number| {
        // SAFETY: as the caller promises.
        let iovec { iov_base, iov_len } = unsafe { members.add(number).read() };
        Ok((place(iov_base.cast(), iov_len, "iov_base")?, iov_len))
    };
    (0..count).map(one).collect()
}

/// Checks an array. It may be null if the count is 0.
fn array<T>(start: *const T, count: usize, name: &str) -> Result<()> {
    if count > isize::MAX as usize / size_of::<T>() {
        let why = format!("count is {count}, more than any memory has: a negative number?");
        return Err(invalid(why));
    }
    match start.is_null() && count > 0 {
        true => Err(is_null(name)),
        false => Ok(()),
    }
}

/// Bytes to read. May be null if the length is 0.
pub(crate) fn bytes(data: *const u8, length: usize) -> Result<*const [u8]> {
    let data = place(data.cast_mut(), length, "data")?;
    Ok(slice_from_raw_parts(data.as_ptr(), length))
}

/// Bytes to write.
pub(crate) fn bytes_mut(into: *mut u8, length: usize) -> Result<*mut [u8]> {
    let into = place(into, length, "into")?;
    Ok(slice_from_raw_parts_mut(into.as_ptr(), length))
}

fn place(start: *mut u8, length: usize, name: &str) -> Result<NonNull<u8>> {
    if length > isize::MAX as usize {
        return Err(invalid(format!(
            "length is {length}, more than any memory has: a negative number?"
        )));
    }
    match NonNull::new(start) {
        None if length > 0 => Err(is_null(name)),
        start => Ok(start.unwrap_or(NonNull::dangling())),
    }
}

/// A number of bytes in a file.
pub(crate) fn file_bytes(number: i64, name: &str) -> Result<u64> {
    u64::try_from(number)
        .map_err(|_| invalid(format!("{name} is {number}: it must not be negative")))
}

/// For C, where such a number is never negative: files and logs end below 2^63.
pub(crate) fn signed(number: u64) -> i64 {
    number.try_into().expect("no file or log is that long")
}

fn is_null(name: &str) -> Failure {
    invalid(format!("{name} is NULL"))
}
