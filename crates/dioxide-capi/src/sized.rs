//! Structs that grow: each begins with the size that the program knows, as with the kernel's
//! openat2(2). A program and a library of different versions are then compatible.

use crate::error::{Failure, Result, invalid};
use std::mem::size_of;

/// Above any real size, so a larger value is not a size.
const SIZE_MAX: usize = 4096;

/// A struct that begins with its size, a `u32`.
///
/// # Safety
///
/// It is `repr(C)`, has no padding and no pointer that would be followed, and any bytes are a value
/// of it.
pub(crate) unsafe trait CStruct: Copy {
    /// Its name in C.
    const NAME: &str;
    /// The size of its first version.
    const SIZE_FIRST: usize;
    /// Zeros, which mean the default.
    const ZERO: Self;
}

/// Reads a struct: members that the program does not know are zero; members that the library does
/// not know must be.
///
/// # Safety
///
/// It has as many bytes as its first four say.
pub(crate) unsafe fn take<T: CStruct>(from: *const T) -> Result<T> {
    // SAFETY: as the caller promises.
    let given = unsafe { given_size(from)? };
    let mut value = T::ZERO;
    let known = given.min(size_of::<T>());
    // SAFETY: both have that many bytes, and any bytes are a value.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast(), known) };
    // SAFETY: the struct has `given` bytes.
    let unknown = |at| unsafe { *from.cast::<u8>().add(at) } != 0;
    match (known..given).any(unknown) {
        true => Err(Failure::Here(
            libc::E2BIG,
            format!("struct {} asks for what this version of the library does not know", T::NAME),
        )),
        false => Ok(value),
    }
}

/// Writes a struct: as much of it as the program knows, then zeros for members that the library
/// does not know. Its size is unchanged.
///
/// # Safety
///
/// As [`take`], and the bytes are exclusive to the caller.
pub(crate) unsafe fn give<T: CStruct>(
    into: *mut T,
    value: impl FnOnce() -> Result<T>,
) -> Result<()> {
    const MEMBER: usize = size_of::<u32>();
    // SAFETY: as the caller promises.
    let given = unsafe { given_size(into)? };
    let value = value()?;
    let known = given.min(size_of::<T>());
    // SAFETY: `into` has that many bytes, `known` of them are also in `value`; the size itself is
    // unchanged.
    unsafe {
        let (from, into) = ((&raw const value).cast::<u8>(), into.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(MEMBER), into.add(MEMBER), known - MEMBER);
        into.add(known).write_bytes(0, given - known);
    }
    Ok(())
}

/// The size in the struct.
///
/// # Safety
///
/// As [`take`].
unsafe fn given_size<T: CStruct>(from: *const T) -> Result<usize> {
    let name = T::NAME;
    if from.is_null() {
        return Err(invalid(format!("struct {name} is NULL")));
    }
    // SAFETY: there are at least these four bytes.
    let size = unsafe { from.cast::<u32>().read_unaligned() } as usize;
    match size {
        size if (T::SIZE_FIRST..=SIZE_MAX).contains(&size) => Ok(size),
        _ => Err(invalid(format!(
            "the member size of struct {name} is {size}: set it to sizeof(struct {name})"
        ))),
    }
}
