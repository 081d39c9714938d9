//! A file and what is done with it, one call at a time.

use crate::args::{bytes, bytes_mut, file_bytes, give_handle, shared, signed, take_handle};
use crate::error::{Result, answer};
use dioxide::{File, Growth};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};

/// A file that is open for direct I/O. Threads share it.
pub struct dioxide_file(pub(crate) File);

/// What the handle is of.
///
/// # Safety
///
/// It is NULL, or a handle that is not closed as long as the file is used.
pub(crate) unsafe fn file_of<'a>(file: *const dioxide_file) -> Result<&'a File> {
    // SAFETY: as the caller promises.
    unsafe { shared(file, "file").map(|file| &file.0) }
}

/// Appends `length` bytes of `data`, any number and anywhere in memory.
///
/// Concurrent appends get disjoint offsets without gaps, in the order in which they are taken (with DIOXIDE_PAD, gaps of zeros up
/// to the next block). They are merged into few requests, and durable ones share flushes. Many small appends by one thread
/// cost a write of a block each: from many threads, or in a queue, they share one.
///
/// On return every byte below the end of `data` is written; with DIOXIDE_EVERY_WRITE it is stable as well, and every crash from
/// now on leaves it in the file. Without, a crash may take any part of what no `dioxide_fdatasync` covered, from some
/// point to the end. What is found after a crash may include appends that were never acknowledged, and ends where a block does,
/// in zeros or part of a record: records must tell by themselves whether they are whole. `data` is not used any more on return.
///
/// # Return value
///
/// The offset in bytes at which `data` stands; without any bytes, the length of the file. Or a negative errno.
///
/// # Errors
///
/// - ENOSPC, EDQUOT or EFBIG: no space. Nothing was written, and the same call works once there is.
/// - EIO: the device failed; or an append below this one did, so that this one is not part of the file. `dioxide_ftruncate` to
///   `dioxide_size` gives up what lies beyond, and allows appending again. Where that fails with EIO as well, a flush has
///   failed: mount the file system anew.
/// - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
/// - EINVAL: `file` is NULL, or `data` is with a length above 0.
/// - EOPNOTSUPP: a device, which has no end to append to.
///
/// # Thread safety
///
/// Any number of threads at the same time, while none closes the handle.
///
/// # Safety
///
/// `file` is open; `data` has `length` bytes that nobody changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_append(file: *mut dioxide_file, data: *const c_void, length: usize) -> i64 {
    answer("dioxide_append", || {
        // SAFETY: as the caller promises.
        let (file, data) = unsafe { (file_of(file)?, &*bytes(data.cast(), length)?) };
        Ok(signed(file.append(data)?))
    })
}

/// Writes `length` bytes of `data` at `offset`: all of them or an error, never short.
///
/// `offset`, `length` and the address of `data` are multiples of what `dioxide_alignment` says; `dioxide_alloc` gives such
/// memory. Beyond the end it extends the file, and what it leaves out is a hole that reads as zeros. Concurrent writes of the
/// same bytes have no order.
///
/// On return the bytes are written, and with DIOXIDE_EVERY_WRITE stable. After an error, or a crash before they were stable, any
/// part of the range may hold old or new bytes.
///
/// # Return value
///
/// `length`, or a negative errno.
///
/// # Errors
///
/// As `dioxide_append`, and:
/// - EINVAL: not aligned (the message says what must be a multiple of what), or `offset` is negative.
/// - ENOSPC: also beyond the end of a device.
/// - EOPNOTSUPP: a gap over recycled space, which would show what was there.
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

/// Reads up to `length` bytes at `offset` into `into`.
///
/// Any memory, offset and length will do; what is aligned costs least. It sees every write that was acknowledged before the call,
/// and never space that was only grown.
///
/// # Return value
///
/// The number of bytes read: `length`, or fewer up to the end of the file, 0 at the end; or a negative errno. Memory behind the
/// bytes read may have been set to zero; after an error it may hold anything.
///
/// # Errors
///
/// - EINVAL: `file` is NULL, `into` is with a length above 0, or `offset` is negative.
/// - EBADF: the handle was opened for writing by the process that this one was forked from.
/// - EIO and others: what the device answers.
/// - EAGAIN: the process that writes the file changes it so fast that no two looks agree; only for a reader beside it.
///
/// # Thread safety
///
/// As `dioxide_append`.
///
/// # Safety
///
/// `file` is open; `into` has `length` bytes that are the caller's alone.
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

/// Makes everything stable that was acknowledged before the call, through whatever handle of the file. Callers that wait
/// together share a flush.
///
/// On return every crash leaves it in the file.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - EIO: the flush failed. That is final: every file of the process on the same file system fails from now on, until the file
///   system is mounted (or the device opened) anew, because the kernel may have dropped what it could not write.
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

/// Cuts the file to `length` bytes, or extends it by a hole. Waits for operations in flight.
///
/// On return the length is durable, as is everything written before; space grown ahead is given back, and appending that had
/// ended with a failure is possible again.
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
/// - EIO, EFBIG, ENOSPC and others: what the kernel answers.
///
/// # Thread safety
///
/// As `dioxide_append`. What other threads have in a queue must be let go on: they wait for it or reap it.
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

/// Makes an empty file of this one that keeps its space, as a new log: written space is the fastest to append to durably. Waits
/// for operations in flight.
///
/// On return the length is 0, and the file never shows what it held. Nothing is erased: until the file is closed, a crash leaves
/// it undecided (see `dioxide_recovery`) with the old content behind what was appended. Old records look as valid there as
/// new ones, so each must tell in which life of the file it was written.
///
/// # Return value
///
/// 0, or a negative errno; the file is then as it was.
///
/// # Errors
///
/// - EOPNOTSUPP: the file does not grow ahead, or its blocks are not written over where they lie.
/// - EUCLEAN: another program changed the size.
/// - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
/// - EINVAL: `file` is NULL.
/// - What the kernel answers.
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

/// The length in bytes: the end of what is written, without space that was only grown.
///
/// Exact in the process that writes the file. Read-only in another process it goes by what the writer noted and what the file
/// system tells: to the block, with appends that were not yet acknowledged; with DIOXIDE_ZEROED, the last durable end noted.
///
/// # Return value
///
/// The length, or a negative errno.
///
/// # Errors
///
/// - EINVAL: `file` is NULL.
/// - For a reader beside another process: what the kernel answers, and EAGAIN if the file changes so fast that no two looks
///   agree.
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

/// How space is really prepared ahead of the end: DIOXIDE_NOT_AHEAD where the file system could not undo it after a crash
/// (`dioxide_set_log` tells why), for a handle that only reads, and in the child of a fork.
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
        let number = [Growth::Unwritten, Growth::Zeroed, Growth::None].iter().position(|one| *one == growth);
        Ok(number.expect("there are no others") as c_int)
    })
}

/// The descriptor, to inspect the file with: fstat(2), for instance. It is the library's: closing it, or writing through it,
/// breaks what the library promises. Of a striped volume it is that of the first member.
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

/// One more handle of the file, with the same rights and options, to be closed by itself.
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
pub unsafe extern "C" fn dioxide_dup(file: *mut dioxide_file, another: *mut *mut dioxide_file) -> c_int {
    answer("dioxide_dup", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(another, "another", || Ok(dioxide_file(file_of(file)?.try_clone()?)))?;
        }
        Ok(0)
    })
}

/// Gives a handle up, and waits for what is in flight. With the last one of a file that may write, the file becomes what any other
/// program would leave, durably: its size is its length, without space grown ahead and without a marker.
///
/// Operations on the file that a queue has submitted are waited for; those that were only queued fail with EBADF.
///
/// # Return value
///
/// 0, or a negative errno. The handle is gone in either case, and must not be used again, not even to be closed.
///
/// # Errors
///
/// - EBUSY: another process has the file open for writing. The file stays grown, and the next open recovers it.
/// - EUCLEAN: another program changed the size of the file, so it was not truncated; or wrote above the end, and the file is
///   truncated behind that.
/// - EBADF: the handle was opened for writing by the process that this one was forked from. Nothing happened to the file.
/// - EINVAL: `file` is NULL.
/// - EIO and others: what the kernel answers. The next open recovers the file.
///
/// # Thread safety
///
/// Any thread, while no other one is in a call with this handle.
///
/// # Safety
///
/// `file` is open, and nobody else uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_close(file: *mut dioxide_file) -> c_int {
    answer("dioxide_close", || {
        // SAFETY: as the caller promises.
        let dioxide_file(file) = *unsafe { take_handle(file, "file")? };
        file.close()?;
        Ok(0)
    })
}
