//! A file and its blocking operations.

use crate::args::{
    all_shared, bytes, bytes_mut, file_bytes, give_handle, shared, signed, slices, slices_mut,
    take_handle,
};
use crate::error::{Result, answer, invalid};
use dioxide::{File, Growth};
use libc::iovec;
use std::ffi::{c_int, c_void};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};

/// A file that is open for direct I/O. Threads share it.
pub struct dioxide_file(pub(crate) File);

/// The file of a handle.
///
/// # Safety
///
/// It is NULL, or a handle that is not closed while the file is used.
pub(crate) unsafe fn file_of<'a>(file: *const dioxide_file) -> Result<&'a File> {
    // SAFETY: as the caller promises.
    unsafe { shared(file, "file").map(|file| &file.0) }
}

/// Appends `length` bytes of `data`, of any length and alignment.
///
/// Concurrent appends get disjoint offsets without gaps, in the order in which they are accepted
/// (with DIOXIDE_PAD, gaps of zeros up to the next block). They are merged into few requests, and
/// durable ones share flushes. Small appends by one thread cost a block write each. From many
/// threads, or in a queue, they share one.
///
/// On return every byte below the end of `data` is written. With DIOXIDE_EVERY_WRITE all of it is
/// also stable, and survives every crash. Otherwise a crash may lose any part of the data that no
/// `dioxide_fdatasync` covered, from some point to the end.
///
/// After a crash the file may include appends that were never acknowledged. It ends at a block
/// boundary, in zeros or part of a record. Records must therefore show whether they are complete.
/// The library does not use `data` after the return.
///
/// # Return value
///
/// The offset of `data` in bytes; for a `length` of 0, the length of the file. Or a negative errno.
///
/// # Errors
///
/// - ENOSPC, EDQUOT or EFBIG: no space. Nothing was written, and the same call works once there is
///   space. On copy-on-write and thin media, ENOSPC and EDQUOT may also be a failed write or flush;
///   the next append then fails with EIO.
/// - EIO: the device failed; or an append below this one failed, so that this one is not part of
///   the file. `dioxide_ftruncate` to `dioxide_size` discards the rest, and allows appending again.
///   If that fails with EIO as well, a flush has failed: mount the file system anew.
/// - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
/// - EINVAL: `file` is NULL, or `data` is NULL with a length above 0.
/// - EOPNOTSUPP: a device, which has no end to append to.
///
/// # Thread safety
///
/// Any number of threads at the same time, while none closes the handle.
///
/// # Safety
///
/// `file` is open; `data` has `length` bytes that do not change during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_append(
    file: *mut dioxide_file,
    data: *const c_void,
    length: usize,
) -> i64 {
    answer("dioxide_append", || {
        // SAFETY: as the caller promises.
        let (file, data) = unsafe { (file_of(file)?, &*bytes(data.cast(), length)?) };
        Ok(signed(file.append(data)?))
    })
}

/// Appends the bytes of `count` slices, one behind the other, as one `dioxide_append`: no append of
/// another thread comes between them. They are first copied together, unless there is only one.
///
/// Everything else is as with `dioxide_append`. A crash can leave a part of them, as it can leave
/// a part of one append.
///
/// # Return value
///
/// The offset of the first byte; for no bytes, the length of the file. Or a negative errno.
///
/// # Errors
///
/// As `dioxide_append`, and EINVAL: `slices` is NULL with a `count` above 0, or a member is NULL
/// with a length above 0. Or the slices have more bytes than any memory.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open; `slices` has `count` members, each with memory that does not change during the
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_appendv(
    file: *mut dioxide_file,
    slices: *const iovec,
    count: usize,
) -> i64 {
    answer("dioxide_appendv", || {
        // SAFETY: as the caller promises.
        let (file, slices) = unsafe { (file_of(file)?, to_write(slices, count)?) };
        Ok(signed(file.append_vectored(&slices)?))
    })
}

/// Writes `length` bytes of `data` at `offset`: all of them or an error, never short.
///
/// Any memory, offset and length will do. Multiples of the values of `dioxide_alignment` cost
/// least; `dioxide_alloc` returns such memory. A write beyond the end extends the file, and leaves
/// a hole in between that reads as zeros. Concurrent writes of the same bytes have no order.
///
/// On return the bytes are written, and with DIOXIDE_EVERY_WRITE stable. After an error, or a crash
/// before they were stable, any part of the range may hold old or new bytes.
///
/// # Return value
///
/// `length`, or a negative errno.
///
/// # Errors
///
/// As `dioxide_append`, and:
/// - EINVAL: `offset` is negative.
/// - ENOSPC: also beyond the end of a device.
/// - EOPNOTSUPP: a gap over recycled space, which would expose its old content.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// As `dioxide_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_pwrite(
    file: *mut dioxide_file,
    data: *const c_void,
    length: usize,
    offset: i64,
) -> i64 {
    answer("dioxide_pwrite", || {
        // SAFETY: as the caller promises.
        let (file, data) = unsafe { (file_of(file)?, &*bytes(data.cast(), length)?) };
        file.write_at(data, file_bytes(offset, "offset")?)?;
        Ok(signed(length as u64))
    })
}

/// Writes the bytes of `count` slices, one behind the other, at `offset`, as one `dioxide_pwrite`.
/// They are first copied together, unless there is only one.
///
/// # Return value
///
/// The number of bytes of all slices, or a negative errno.
///
/// # Errors
///
/// As `dioxide_pwrite`, and EINVAL as `dioxide_appendv`.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// As `dioxide_appendv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_pwritev(
    file: *mut dioxide_file,
    slices: *const iovec,
    count: usize,
    offset: i64,
) -> i64 {
    answer("dioxide_pwritev", || {
        // SAFETY: as the caller promises.
        let (file, slices) = unsafe { (file_of(file)?, to_write(slices, count)?) };
        file.write_vectored_at(&slices, file_bytes(offset, "offset")?)?;
        Ok(signed(slices.iter().map(|slice| slice.len() as u64).sum()))
    })
}

/// Reads up to `length` bytes at `offset` into `into`.
///
/// Any memory, offset and length will do; aligned reads cost least. A read sees every write that
/// was acknowledged before the call, and never preallocated space.
///
/// # Return value
///
/// The number of bytes read: `length`, or fewer up to the end of the file, 0 at the end; or a
/// negative errno. Memory after the bytes read may have been set to zero; after an error it may
/// hold anything.
///
/// # Errors
///
/// - EINVAL: `file` is NULL, `into` is NULL with a length above 0, or `offset` is negative.
/// - EBADF: the handle was opened for writing by the process that this one was forked from.
/// - EIO and others: errors of the device.
/// - EAGAIN: another process writes the file so fast that a reader beside it gets no consistent
///   view.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open; `into` has `length` bytes, exclusive to the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_pread(
    file: *mut dioxide_file,
    into: *mut c_void,
    length: usize,
    offset: i64,
) -> i64 {
    answer("dioxide_pread", || {
        // SAFETY: as the caller promises. The library only writes there, or has the kernel do so.
        let (file, into) = unsafe { (file_of(file)?, &mut *bytes_mut(into.cast(), length)?) };
        Ok(signed(file.read_at(into, file_bytes(offset, "offset")?)? as u64))
    })
}

/// Fills `count` slices, one after the other, from `offset` on, as one `dioxide_pread`. They are
/// filled by a copy, unless there is only one.
///
/// # Return value
///
/// The number of bytes read: that of all slices, or fewer up to the end of the file. Or a negative
/// errno.
///
/// # Errors
///
/// As `dioxide_pread`, and EINVAL as `dioxide_appendv`.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open; `slices` has `count` members. Their memory is exclusive to the caller, and no
/// byte is in two of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_preadv(
    file: *mut dioxide_file,
    slices: *const iovec,
    count: usize,
    offset: i64,
) -> i64 {
    answer("dioxide_preadv", || {
        // SAFETY: as the caller promises.
        let (file, mut into) = unsafe { (file_of(file)?, slices_mut(slices, count, "slices")?) };
        fit(into.iter().map(|slice| slice.len()))?;
        Ok(signed(file.read_vectored_at(&mut into, file_bytes(offset, "offset")?)? as u64))
    })
}

/// The slices of an array of iovec.
///
/// # Safety
///
/// As for [`slices`].
unsafe fn to_write<'a>(members: *const iovec, count: usize) -> Result<Vec<IoSlice<'a>>> {
    // SAFETY: as the caller promises.
    let slices = unsafe { slices(members, count, "slices")? };
    fit(slices.iter().map(|slice| slice.len()))?;
    Ok(slices.into_iter().map(IoSlice::new).collect())
}

/// Refuses lengths with a sum above that of any memory.
fn fit(mut lengths: impl Iterator<Item = usize>) -> Result<()> {
    let sum = lengths.try_fold(0, usize::checked_add);
    match sum.is_some_and(|sum| isize::try_from(sum).is_ok()) {
        true => Ok(()),
        false => Err(invalid("slices have more bytes than any memory has")),
    }
}

/// Makes everything stable that was acknowledged before the call, through any handle of the file.
/// Callers that wait together share a flush.
///
/// On return it survives every crash.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - EIO, ENOSPC or EDQUOT: the flush failed. That is final, because the kernel may have dropped
///   data that it could not write. Every file of the process on the same file system fails from now
///   on, until the file system is mounted (or the device opened) anew.
/// - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
/// - EINVAL: `file` is NULL.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_fdatasync(file: *mut dioxide_file) -> c_int {
    answer("dioxide_fdatasync", || {
        // SAFETY: as the caller promises.
        unsafe { file_of(file)? }.sync_data()?;
        Ok(0)
    })
}

/// Makes everything stable that was acknowledged before the call in any of `count` files, as
/// `dioxide_fdatasync` of each. Files of one ext4 or XFS file system share one flush, however many
/// they are. Elsewhere each file has its own flush.
///
/// # Return value
///
/// 0, or a negative errno: that of the first file that failed. The others are flushed nevertheless.
///
/// # Errors
///
/// As `dioxide_fdatasync`. EINVAL: a file is NULL, or `files` is with a `count` above 0; then
/// nothing is flushed.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `files` has `count` files, and they are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_sync_files(
    files: *const *mut dioxide_file,
    count: usize,
) -> c_int {
    answer("dioxide_sync_files", || {
        // SAFETY: as the caller promises.
        let files = unsafe { all_shared(files, count, "files")? };
        let files: Vec<&File> = files.into_iter().map(|file| &file.0).collect();
        dioxide::sync_all(&files)?;
        Ok(0)
    })
}

/// Truncates the file to `length` bytes, or extends it by a hole. Waits for operations in flight.
///
/// On return the length is durable, as is everything written before. Preallocated space is
/// released. Appending is possible again after it had ended with a failure.
///
/// # Return value
///
/// 0, or a negative errno; the length is then the old or the new one.
///
/// # Errors
///
/// - EINVAL: `file` is NULL, or `length` is negative.
/// - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
/// - EOPNOTSUPP: a device.
/// - EBUSY: another process has the file open for writing; the length is the old one.
/// - EUCLEAN: another program has written above the end; the length is the old one.
/// - EIO, EFBIG, ENOSPC and others: errors of the kernel.
///
/// # Thread safety
///
/// As `dioxide_append`. Other threads must keep waiting for or reaping their queues, so that
/// operations in flight can complete.
///
/// # Safety
///
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_ftruncate(file: *mut dioxide_file, length: i64) -> c_int {
    answer("dioxide_ftruncate", || {
        // SAFETY: as the caller promises.
        unsafe { file_of(file)? }.set_len(file_bytes(length, "length")?)?;
        Ok(0)
    })
}

/// Resets the length to 0 and keeps the allocated blocks for reuse, as a new log: written space is
/// the fastest for durable appends. Waits for operations in flight.
///
/// On return the length is 0, and the file never exposes its old content. The old content is not
/// erased. Until the file is closed, a crash leaves it undecided (see `dioxide_recovery`), with the
/// old content after the new records. Old records look as valid there as new ones, so each record
/// must identify its life of the file.
///
/// # Return value
///
/// 0, or a negative errno; the file is then unchanged.
///
/// # Errors
///
/// - EOPNOTSUPP: the file is not preallocated, or its blocks are not overwritten in place.
/// - EUCLEAN: another program changed the size.
/// - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
/// - EINVAL: `file` is NULL.
/// - Others: errors of the kernel.
///
/// # Thread safety
///
/// As `dioxide_ftruncate`.
///
/// # Safety
///
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_recycle(file: *mut dioxide_file) -> c_int {
    answer("dioxide_recycle", || {
        // SAFETY: as the caller promises.
        unsafe { file_of(file)? }.recycle()?;
        Ok(0)
    })
}

/// The length in bytes: the end of the written data, without preallocated space.
///
/// Exact in the process that writes the file. A read-only handle in another process uses the
/// writer's marker and the file system. It then sees the end of the last block, with appends that
/// were not yet acknowledged. With DIOXIDE_ZEROED it sees the last durable end in the marker.
///
/// # Return value
///
/// The length, or a negative errno.
///
/// # Errors
///
/// - EINVAL: `file` is NULL.
/// - For a reader beside another process: errors of the kernel, and EAGAIN if the file changes so
///   fast that there is no consistent view.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_size(file: *mut dioxide_file) -> i64 {
    answer("dioxide_size", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { file_of(file)? }.len()?))
    })
}

/// How the file is actually preallocated. DIOXIDE_NOT_AHEAD for a handle that only reads, and in
/// the child of a fork. The same if the file system could not undo preallocation after a crash;
/// `dioxide_set_listener` reports the reason.
///
/// # Return value
///
/// DIOXIDE_UNWRITTEN, DIOXIDE_ZEROED or DIOXIDE_NOT_AHEAD; or a negative errno.
///
/// # Errors
///
/// - EINVAL: `file` is NULL.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_growth(file: *mut dioxide_file) -> c_int {
    answer("dioxide_growth", || {
        // SAFETY: as the caller promises.
        let growth = unsafe { file_of(file)? }.growth();
        let number =
            [Growth::Unwritten, Growth::Zeroed, Growth::None].iter().position(|one| *one == growth);
        Ok(number.expect("there are no others") as c_int)
    })
}

/// The file descriptor, for inspection with fstat(2), for instance. It belongs to the library:
/// closing it, or writing through it, breaks the library's promises. Of a striped volume it is that
/// of the first member, and of a file in an image that of the image.
///
/// # Return value
///
/// A descriptor that is valid until the handle is closed, or a negative errno.
///
/// # Errors
///
/// - EINVAL: `file` is NULL.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_fileno(file: *mut dioxide_file) -> c_int {
    answer("dioxide_fileno", || {
        // SAFETY: as the caller promises.
        Ok(unsafe { file_of(file)? }.as_fd().as_raw_fd())
    })
}

/// Duplicates a handle of the file, with the same rights and options. Each handle is closed
/// separately.
///
/// # Return value
///
/// 0 with a handle in `*another`, or a negative errno with NULL there.
///
/// # Errors
///
/// - EBADF: `file` was opened for writing by the process that this one was forked from.
/// - EINVAL: a pointer is NULL.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_dup(
    file: *mut dioxide_file,
    another: *mut *mut dioxide_file,
) -> c_int {
    answer("dioxide_dup", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(another, "another", || Ok(dioxide_file(file_of(file)?.try_clone()?)))?;
        }
        Ok(0)
    })
}

/// Closes a handle, and waits for operations in flight. The last handle of a file that may write
/// restores it durably to the state that any other program would leave. Its size is then its
/// length, without preallocated space and without a marker.
///
/// Waits for operations on the file that a queue has submitted; those that were only queued fail
/// with EBADF.
///
/// # Return value
///
/// 0, or a negative errno. The handle is invalid in either case, and must not be used again, not
/// even to be closed.
///
/// # Errors
///
/// - EBUSY: another process has the file open for writing. The file stays preallocated, and the
///   next open recovers it.
/// - EUCLEAN: another program changed the size of the file, so it was not truncated. Or it wrote
///   above the end, and the file is truncated after that.
/// - EBADF: the handle was opened for writing by the process that this one was forked from. The
///   file is unchanged.
/// - EINVAL: `file` is NULL.
/// - EIO and others: errors of the kernel. The next open recovers the file.
///
/// # Thread safety
///
/// Any thread, while no other one is in a call with this handle.
///
/// # Safety
///
/// `file` is open, and has no other user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_close(file: *mut dioxide_file) -> c_int {
    answer("dioxide_close", || {
        // SAFETY: as the caller promises.
        let dioxide_file(file) = *unsafe { take_handle(file, "file")? };
        file.close()?;
        Ok(0)
    })
}
