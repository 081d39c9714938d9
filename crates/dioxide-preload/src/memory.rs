//! The memory of the program, as the engine gets it.
//!
//! The kernel answers EFAULT for memory that is not mapped or not writable. A copy by this process
//! would end it by SIGSEGV instead. So the engine gets the memory itself only for a transfer that
//! it passes to the kernel as it is. All others use a buffer, and the kernel copies.

use crate::accepted::Accepted;
use dioxide::Buffer;
use libc::iovec;
use std::slice;

/// The longest part of a read that is copied at once.
const COPY_MAX_BYTES: usize = 1 << 20;

/// Why the memory of the program was not copied.
#[derive(Debug, PartialEq, Eq)]
pub enum NotCopied {
    /// The address is bad, or a sandbox refuses the call.
    BadAddress,
    /// There is no memory for the copy.
    NoMemory,
}

/// Passes the `len` bytes of all segments to `write` as one slice.
pub fn lend<T, E: From<NotCopied>>(
    pieces: &[iovec],
    len: usize,
    offset: u64,
    accepted: Accepted,
    write: impl FnOnce(&[u8]) -> Result<T, E>,
) -> Result<T, E> {
    let mut filled = pieces.iter().filter(|piece| piece.iov_len > 0);
    if let (Some(piece), None) = (filled.next(), filled.next())
        && accepted.is_whole(piece, offset)
    {
        // SAFETY: only the kernel uses the memory, and the call has not returned.
        return write(unsafe { slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) });
    }
    write(&copied(pieces, len)?)
}

/// Fills a segment by `read`, which gets memory and a file offset. Returns the number of bytes.
pub fn fill<E: From<NotCopied>>(
    piece: &iovec,
    offset: u64,
    accepted: Accepted,
    read: impl Fn(&mut [u8], u64) -> Result<usize, E>,
) -> Result<usize, E> {
    let len = piece.iov_len;
    if accepted.is_whole(piece, offset) {
        // SAFETY: only the kernel uses the memory, and the call has not returned.
        let bytes = unsafe { slice::from_raw_parts_mut(piece.iov_base.cast(), len) };
        return read(bytes, offset);
    }
    let mut copy = Buffer::try_zeroed(len.min(COPY_MAX_BYTES)).ok_or(NotCopied::NoMemory)?;
    let mut done = 0;
    while done < len {
        let wanted = copy.len().min(len - done);
        let found = read(&mut copy[..wanted], offset + done as u64)?;
        put(&copy[..found], piece.iov_base.wrapping_byte_add(done))?;
        done += found;
        if found < wanted {
            break;
        }
    }
    Ok(done)
}

/// A copy of the segments, which have `len` bytes.
fn copied(pieces: &[iovec], len: usize) -> Result<Buffer, NotCopied> {
    let mut copy = Buffer::try_zeroed(len).ok_or(NotCopied::NoMemory)?;
    let into = iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: len };
    // SAFETY: the kernel checks the memory of the program, and `copy` has `len` bytes.
    let read = unsafe {
        let count = pieces.len() as libc::c_ulong;
        libc::process_vm_readv(libc::getpid(), &into, 1, pieces.as_ptr(), count, 0)
    };
    if usize::try_from(read) == Ok(len) { Ok(copy) } else { Err(NotCopied::BadAddress) }
}

/// Copies bytes to memory of the program.
fn put(bytes: &[u8], into: *mut libc::c_void) -> Result<(), NotCopied> {
    let from = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let into = iovec { iov_base: into, ..from };
    // SAFETY: the kernel checks the memory of the program, and only reads `bytes`.
    let written = unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &into, 1, 0) };
    if usize::try_from(written) == Ok(bytes.len()) { Ok(()) } else { Err(NotCopied::BadAddress) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_address_is_an_error() {
        let mut memory = *b"0123456789";
        let mut piece =
            |at: usize, iov_len| iovec { iov_base: memory[at..].as_mut_ptr().cast(), iov_len };
        let (pieces, nothing) = ([piece(0, 3), piece(5, 0), piece(6, 4)], [piece(0, 0)]);
        assert_eq!(copied(&pieces, 7).map(|copy| copy[..7].to_vec()), Ok(b"0126789".to_vec()));
        assert!(copied(&nothing, 0).is_ok());
        let bad = iovec { iov_base: 4096 as *mut libc::c_void, iov_len: 4 };
        assert_eq!(copied(&[pieces[0], bad], 7).err(), Some(NotCopied::BadAddress));
        assert_eq!(put(b"ab", bad.iov_base), Err(NotCopied::BadAddress));
        put(b"ab", pieces[2].iov_base).unwrap();
        assert_eq!(&memory, b"012345ab89");
    }

    /// A copy of 1 GiB ended the program under a limit of its memory, and left the file grown.
    #[test]
    fn a_copy_without_memory_aborted_the_program() {
        let piece = iovec { iov_base: 4096 as *mut libc::c_void, iov_len: 1 };
        // Beyond the address space.
        assert_eq!(copied(&[piece], 1 << 62).err(), Some(NotCopied::NoMemory));
    }
}
