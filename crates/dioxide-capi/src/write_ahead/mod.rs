//! A write-ahead log: records with numbers, durable and in order, in segments that are used again.

pub mod options;
pub mod reader;
pub mod stats;
pub mod streams;

use self::options::{dioxide_log_options, wanted};
use crate::args::{
    bytes, bytes_mut, give_handle, path as path_of, shared, signed, slices, take_handle,
};
use crate::error::{Failure, Result, answer, invalid};
use ::dioxide_log::{Log, Lsn};
use dioxide::Owner;
use libc::iovec;
use std::ffi::{c_char, c_int, c_void};

/// A write-ahead log that is open. Threads share it.
pub struct dioxide_log {
    log: Log,
    owner: Owner,
}

/// Fails in a child of the process that opened a log. It has its memory, but not its threads.
fn check(owner: Owner) -> Result<()> {
    match owner.is_current() {
        true => Ok(()),
        false => Err(Failure::Here(
            libc::EBADF,
            "the log was opened by the parent process; open it again in this one".into(),
        )),
    }
}

/// The log of a handle, for the process that opened it.
///
/// # Safety
///
/// It is NULL, or a handle that is not closed while the log is used.
unsafe fn log_of<'a>(log: *const dioxide_log) -> Result<&'a Log> {
    // SAFETY: as the caller promises.
    let dioxide_log { log, owner } = unsafe { shared(log, "log")? };
    check(*owner)?;
    Ok(log)
}

/// The number of a record.
fn lsn_of(number: i64) -> Result<Lsn> {
    match u64::try_from(number) {
        Ok(number) if number > 0 => Ok(Lsn(number)),
        _ => Err(invalid(format!("lsn is {number}: the first record of a log has 1"))),
    }
}

/// Copies a record as far as there is room. Returns its size.
fn hand_out(record: Option<Vec<u8>>, lsn: i64, into: &mut [u8]) -> Result<i64> {
    let later = || Failure::Here(libc::EAGAIN, format!("record {lsn} is not stable yet"));
    let record = record.ok_or_else(later)?;
    let copied = record.len().min(into.len());
    into[..copied].copy_from_slice(&record[..copied]);
    Ok(signed(record.len() as u64))
}

/// Opens the write-ahead log in the directory `path`, or on a block device, and creates it if it is
/// missing. `options` may be NULL for the defaults.
///
/// A record has a number, its LSN: the first record of a log has 1, and each next record the next
/// number. A log has one writer: a process with one handle, which any number of threads share.
///
/// After a crash this call finds every acknowledged record, and possibly whole records behind them
/// that were in flight. It never finds a torn record, an old one of a reused segment, or a part of
/// a batch. Damage of acknowledged records is an error, never a shorter log. docs/log.md has the
/// limits of that.
///
/// A log on a device begins at its first block. For a new one the first MiB must be zeros, so that
/// no file system is overwritten.
///
/// # Return value
///
/// 0 with a handle in `*log`, to be closed by `dioxide_log_close`; or a negative errno with NULL
/// there.
///
/// # Errors
///
/// - EBUSY: another process, or this one, has the log open.
/// - ENOENT: there is no log, and `options` has DIOXIDE_LOG_NO_CREATE.
/// - EUCLEAN: the log is damaged: restore it from a copy. Or the device has other content: clear
///   its first MiB. Nothing was changed; the message has path and offset.
/// - EPROTONOSUPPORT: a later version of the library wrote the log.
/// - E2BIG: `options` has members that this version of the library does not know.
/// - EINVAL: a pointer is NULL, options are invalid, or it is a log of streams.
/// - Others: errors of `dioxide_open` and of the kernel.
///
/// # Thread safety
///
/// Any thread. After a fork, calls of the child fail with EBADF, and it opens other logs. It keeps
/// the lock of this one until it ends or calls exec: fork before this call.
///
/// # Safety
///
/// `path` is a string; `options` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_open(
    path: *const c_char,
    options: *const dioxide_log_options,
    log: *mut *mut dioxide_log,
) -> c_int {
    answer("dioxide_log_open", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(log, "log", || {
                let log = wanted(options)?.open(path_of(path, "path")?)?;
                Ok(dioxide_log { log, owner: Owner::current() })
            })?;
        }
        Ok(0)
    })
}

/// Appends `length` bytes of `data` as one record. Records of threads that append at the same time
/// share a write and a flush.
///
/// On return the record is stable, as are all before it, and survives every crash. In a log with
/// DIOXIDE_LOG_ON_SYNC it is written, and the next `dioxide_log_sync` makes it stable.
///
/// After an error the record may be there when the log is opened again, unless noted below.
///
/// # Return value
///
/// The LSN of the record, or a negative errno.
///
/// # Errors
///
/// - EMSGSIZE: the record does not fit into a segment. Nothing was appended.
/// - ENOSPC: there is no space for a segment. Nothing was appended, and the same call succeeds
///   after `dioxide_log_truncate_front`, or once there is space.
/// - EIO: an earlier write or flush failed, so the log takes no more. Close it and open it again;
///   after a failed flush, mount the file system first.
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: `log` is NULL, or `data` is NULL with a length above 0.
/// - Others: the error of the write, after which the log takes no more. That may be ENOSPC too, on
///   copy-on-write and thin media; the next append is EIO then. Or the reason why a segment could
///   not be made, for example EMFILE. Nothing was appended then, and the log takes more.
///
/// # Thread safety
///
/// Any number of threads at the same time, while none closes the handle.
///
/// # Safety
///
/// `log` is open; `data` has `length` bytes that do not change during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_append(
    log: *mut dioxide_log,
    data: *const c_void,
    length: usize,
) -> i64 {
    answer("dioxide_log_append", || {
        // SAFETY: as the caller promises.
        let (log, data) = unsafe { (log_of(log)?, &*bytes(data.cast(), length)?) };
        Ok(signed(log.append(data)?.0))
    })
}

/// Appends `count` records as one atomic batch: after a crash all of them are there, or none. Each
/// member of `records` is one record.
///
/// Everything else is as with `dioxide_log_append`.
///
/// # Return value
///
/// The LSN of the first record; the others have the next numbers. For a `count` of 0, the LSN of
/// the next record. Or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_append`, and:
/// - EMSGSIZE: the whole batch must fit into a segment.
/// - EINVAL: `records` is NULL with a `count` above 0, or a member is NULL with a length above 0.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open; `records` has `count` members, each with memory that does not change during the
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_append_all(
    log: *mut dioxide_log,
    records: *const iovec,
    count: usize,
) -> i64 {
    answer("dioxide_log_append_all", || {
        // SAFETY: as the caller promises.
        let (log, records) = unsafe { (log_of(log)?, slices(records, count, "records")?) };
        Ok(signed(log.append_all(&records)?.0))
    })
}

/// Adds `length` bytes of `data` to the log as one record, and does not wait until it is written.
/// A thread of the library writes it soon. So one thread keeps thousands of records in flight.
///
/// Waits only while the batch that is being composed is full. `dioxide_log_wait` waits for the
/// record; a crash before its return may lose it. The library does not use `data` after the return.
///
/// # Return value
///
/// The LSN of the record, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_append`, without those of the write. `dioxide_log_wait` returns these.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// As `dioxide_log_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_submit(
    log: *mut dioxide_log,
    data: *const c_void,
    length: usize,
) -> i64 {
    answer("dioxide_log_submit", || {
        // SAFETY: as the caller promises.
        let (log, data) = unsafe { (log_of(log)?, &*bytes(data.cast(), length)?) };
        Ok(signed(log.submit(data)?.0))
    })
}

/// Waits until the record `lsn`, and all before it, have the guarantees of `dioxide_log_append` on
/// its return. For records of `dioxide_log_submit`.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - ERANGE: there is no such record yet.
/// - EIO: an earlier write or flush failed, so the record is not acknowledged. It may be there when
///   the log is opened again.
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: `log` is NULL, or `lsn` is below 1.
/// - Others: the error of the write of the record.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_wait(log: *mut dioxide_log, lsn: i64) -> c_int {
    answer("dioxide_log_wait", || {
        // SAFETY: as the caller promises.
        unsafe { log_of(log)? }.wait(lsn_of(lsn)?)?;
        Ok(0)
    })
}

/// Makes all records stable that were acknowledged before the call. For a log with
/// DIOXIDE_LOG_ON_SYNC; otherwise they are stable already.
///
/// On return they survive every crash.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - EIO: the flush, or an earlier write or flush, failed. That is final: the log takes no more.
///   Close it and open it again; after a failed flush, mount the file system first.
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: `log` is NULL.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_sync(log: *mut dioxide_log) -> c_int {
    answer("dioxide_log_sync", || {
        // SAFETY: as the caller promises.
        unsafe { log_of(log)? }.sync()?;
        Ok(0)
    })
}

/// Reads the record `lsn` into `into`, up to `length` bytes of it. A `length` of 0 returns the size
/// of the record.
///
/// Readers see a record once it is stable, or with DIOXIDE_LOG_READ_UNSYNCED once it is written.
///
/// # Return value
///
/// The bytes of the record. If they are more than `length`, `into` has the first `length` of them.
/// Or a negative errno, with `into` unchanged.
///
/// # Errors
///
/// - EAGAIN: the record is not there yet, or not yet stable.
/// - ERANGE: the record was removed by `dioxide_log_truncate_front`, or by `retain_bytes` or
///   `retain_age_ms`.
/// - EUCLEAN: the record was damaged since it was written.
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: `log` is NULL, `into` is NULL with a length above 0, or `lsn` is below 1.
/// - EIO and others: errors of the device.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open; `into` has `length` bytes, exclusive to the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_read(
    log: *mut dioxide_log,
    lsn: i64,
    into: *mut c_void,
    length: usize,
) -> i64 {
    answer("dioxide_log_read", || {
        // SAFETY: as the caller promises. The bytes are only written.
        let (log, into) = unsafe { (log_of(log)?, &mut *bytes_mut(into.cast(), length)?) };
        hand_out(log.read(lsn_of(lsn)?)?, lsn, into)
    })
}

/// Removes all records below `lsn`. Segments that have no other records are used again.
///
/// `lsn` may be above the next record: the log is then empty, and the next record has that number.
/// An `lsn` at or below the first record removes nothing.
///
/// On return the removal is durable. After an error, or a crash before the return, either all of
/// these records are there or none.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_append`, and:
/// - ENOSPC: while the log is full, this works as long as it frees a segment, and some dozen times
///   without.
/// - ERANGE: `lsn` is above 2^62.
/// - EINVAL: `lsn` is below 1.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_truncate_front(log: *mut dioxide_log, lsn: i64) -> c_int {
    answer("dioxide_log_truncate_front", || {
        // SAFETY: as the caller promises.
        unsafe { log_of(log)? }.truncate_front(lsn_of(lsn)?)?;
        Ok(0)
    })
}

/// Removes `lsn` and all records above it; the next record gets this number. Waits for the appends
/// in flight.
///
/// On return the removal is durable. After an error, or a crash before the return, either all of
/// these records are there or none. Iterators that are behind `lsn` return the new records there.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_append`, and:
/// - ERANGE: `lsn` is below the first record, or above the next one.
/// - EINVAL: `lsn` is below 1.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_truncate_back(log: *mut dioxide_log, lsn: i64) -> c_int {
    answer("dioxide_log_truncate_back", || {
        // SAFETY: as the caller promises.
        unsafe { log_of(log)? }.truncate_back(lsn_of(lsn)?)?;
        Ok(0)
    })
}

/// The lowest LSN that the log has: that of the next record if it is empty.
///
/// # Return value
///
/// The LSN, or a negative errno.
///
/// # Errors
///
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: `log` is NULL.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_first_lsn(log: *mut dioxide_log) -> i64 {
    answer("dioxide_log_first_lsn", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { log_of(log)? }.first_lsn().0))
    })
}

/// The LSN that the next record gets.
///
/// # Return value
///
/// The LSN, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_first_lsn`.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_next_lsn(log: *mut dioxide_log) -> i64 {
    answer("dioxide_log_next_lsn", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { log_of(log)? }.next_lsn().0))
    })
}

/// The LSN behind the last stable record: all below it are stable.
///
/// # Return value
///
/// The LSN, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_first_lsn`.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_stable_lsn(log: *mut dioxide_log) -> i64 {
    answer("dioxide_log_stable_lsn", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { log_of(log)? }.stable_lsn().0))
    })
}

/// Writes the records in flight, and closes the log. On return all of its records are stable, no
/// thread of the log runs, and another process can open it. Iterators stay, and are closed
/// separately.
///
/// # Return value
///
/// 0, or a negative errno. The handle is invalid in either case, and must not be used again, not
/// even to be closed.
///
/// # Errors
///
/// - EBADF: `log` was opened by the process that this one was forked from. The log is unchanged.
///   Its descriptors stay open until the calling process ends or calls exec.
/// - EINVAL: `log` is NULL.
/// - EIO and others: the error of a write. The log is closed nevertheless, and the next open
///   recovers it.
///
/// # Thread safety
///
/// Any thread, while no other one is in a call with this handle. Threads that wait in
/// `dioxide_log_next` return.
///
/// # Safety
///
/// `log` is open, and has no other user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_close(log: *mut dioxide_log) -> c_int {
    answer("dioxide_log_close", || {
        // SAFETY: as the caller promises.
        let dioxide_log { log, owner } = *unsafe { take_handle(log, "log")? };
        // In a child, dropping it frees the memory and does nothing else.
        check(owner)?;
        log.close()?;
        Ok(0)
    })
}
