//! Structs that grow: each begins with the size that the program knows, so that a program and a library of different
//! versions understand each other, as with the kernel's openat2(2).

use crate::error::{Failure, Result, invalid};
use std::mem::size_of;

/// No struct becomes that long, so a longer one has no size in its first member.
const SIZE_MAX: usize = 4096;

/// A struct that begins with its size, a `u32`.
///
/// # Safety
///
/// It is `repr(C)`, has no padding and no pointer that would be followed, and any bytes are a value of it.
pub(crate) unsafe trait CStruct: Copy {
    /// Its name in C.
    const NAME: &str;
    /// Its size in the first version that had it.
    const SIZE_FIRST: usize;
    /// Zeros, which stand for what a program does not say.
    const ZERO: Self;
}

/// Reads a struct: what the program does not know is zero; what the library does not know must be.
///
/// # Safety
///
/// There are as many bytes as it says in its first four.
pub(crate) unsafe fn take<T: CStruct>(from: *const T) -> Result<T> {
    // SAFETY: as the caller promises.
    let given = unsafe { given_size(from)? };
    let mut value = T::ZERO;
    let known = given.min(size_of::<T>());
    // SAFETY: both have so many bytes, and any bytes are a value.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast(), known) };
    // SAFETY: there are as many bytes.
    let unknown = |at| unsafe { *from.cast::<u8>().add(at) } != 0;
    match (known..given).any(unknown) {
        true => Err(Failure::Here(
            libc::E2BIG,
            format!("struct {} asks for what this version of the library does not know", T::NAME),
        )),
        false => Ok(value),
    }
}

/// Writes a struct: as much of it as the program knows, with zeros behind what the library knows, and its size as it was.
///
/// # Safety
///
/// As [`take`], and the bytes are the caller's alone.
pub(crate) unsafe fn give<T: CStruct>(into: *mut T, value: impl FnOnce() -> Result<T>) -> Result<()> {
    const MEMBER: usize = size_of::<u32>();
    // SAFETY: as the caller promises.
    let given = unsafe { given_size(into)? };
    let value = value()?;
    let known = given.min(size_of::<T>());
    // SAFETY: as many bytes are there, `known` of them in `value` too; the size itself is left alone.
    unsafe {
        let (from, into) = ((&raw const value).cast::<u8>(), into.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(MEMBER), into.add(MEMBER), known - MEMBER);
        into.add(known).write_bytes(0, given - known);
    }
    Ok(())
}

/// The size that the struct says it has.
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
