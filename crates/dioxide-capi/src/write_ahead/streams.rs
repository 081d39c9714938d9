//! Many logs in one: streams of records, each with its own numbers.

use super::options::{dioxide_log_options, wanted};
use super::reader::{Reader, dioxide_log_iter};
use super::{check, hand_out, lsn_of};
use crate::args::{
    all_shared, bytes, bytes_mut, give_handle, path as path_of, shared, signed, slices, take_handle,
};
use crate::error::{Result, answer, invalid};
use ::dioxide_log::{Stream, StreamLog};
use dioxide::Owner;
use libc::iovec;
use std::ffi::{c_char, c_int, c_void};

/// A log of streams that is open. Threads share it.
pub struct dioxide_stream_log {
    log: StreamLog,
    owner: Owner,
}

/// A stream of an open log: a log of its own, with numbers of its own. Threads share it.
pub struct dioxide_stream {
    stream: Stream,
    owner: Owner,
}

/// The log of a handle, for the process that opened it.
///
/// # Safety
///
/// It is NULL, or a handle that is not closed while the log is used.
unsafe fn log_of<'a>(log: *const dioxide_stream_log) -> Result<&'a StreamLog> {
    // SAFETY: as the caller promises.
    let dioxide_stream_log { log, owner } = unsafe { shared(log, "log")? };
    check(*owner)?;
    Ok(log)
}

/// The stream of a handle, for the process that opened its log.
///
/// # Safety
///
/// It is NULL, or a handle that is not closed while the stream is used.
unsafe fn stream_of<'a>(stream: *const dioxide_stream) -> Result<&'a Stream> {
    // SAFETY: as the caller promises.
    let dioxide_stream { stream, owner } = unsafe { shared(stream, "stream")? };
    check(*owner)?;
    Ok(stream)
}

/// Opens the log of streams in the directory `path`, or on a block device, and creates it if it is
/// missing. `options` may be NULL for the defaults.
///
/// All streams share the segments of one log. So one write and one flush carry the records of all
/// that wait. Each stream is as a log of `dioxide_log_open`: for raft groups, shards and topics. A
/// stream that rests keeps no old segment, because a thread copies its records forward.
///
/// After a crash each stream has every acknowledged record, as with `dioxide_log_open`.
///
/// # Return value
///
/// 0 with a handle in `*log`, to be closed by `dioxide_stream_log_close`; or a negative errno with
/// NULL there.
///
/// # Errors
///
/// As `dioxide_log_open`. EINVAL: also for a log without streams, a device with fewer than 5
/// segments, and with `retain_bytes`, `retain_age_ms` or DIOXIDE_LOG_READ_UNSYNCED.
///
/// # Thread safety
///
/// As `dioxide_log_open`.
///
/// # Safety
///
/// As `dioxide_log_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_log_open(
    path: *const c_char,
    options: *const dioxide_log_options,
    log: *mut *mut dioxide_stream_log,
) -> c_int {
    answer("dioxide_stream_log_open", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(log, "log", || {
                let log = wanted(options)?.open_streams(path_of(path, "path")?)?;
                Ok(dioxide_stream_log { log, owner: Owner::current() })
            })?;
        }
        Ok(0)
    })
}

/// Makes a handle of the stream with the number `id`, any number. A stream begins with its first
/// record, so this writes nothing.
///
/// # Return value
///
/// 0 with a handle in `*stream`, to be closed by `dioxide_stream_close`; or a negative errno with
/// NULL there.
///
/// # Errors
///
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: a pointer is NULL.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open; `stream` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_open(
    log: *mut dioxide_stream_log,
    id: u64,
    stream: *mut *mut dioxide_stream,
) -> c_int {
    answer("dioxide_stream_open", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(stream, "stream", || {
                let stream = log_of(log)?.stream(id);
                Ok(dioxide_stream { stream, owner: Owner::current() })
            })?;
        }
        Ok(0)
    })
}

/// Writes the numbers of the streams that are in use to `ids`, in order, up to `count` of them. A
/// stream that was removed is not in use.
///
/// # Return value
///
/// The number of streams in use, which may be above `count`; or a negative errno.
///
/// # Errors
///
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: `log` is NULL, or `ids` is NULL with a `count` above 0.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open; `ids` has room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_log_ids(
    log: *mut dioxide_stream_log,
    ids: *mut u64,
    count: usize,
) -> i64 {
    answer("dioxide_stream_log_ids", || {
        // SAFETY: as the caller promises.
        let used = unsafe { log_of(log)? }.ids();
        if ids.is_null() && count > 0 {
            return Err(invalid("ids is NULL"));
        }
        for (number, id) in used.iter().take(count).enumerate() {
            // SAFETY: the number is below `count`, for which there is room.
            unsafe { ids.add(number).write(*id) };
        }
        Ok(signed(used.len() as u64))
    })
}

/// Appends `count` records to streams of the log as one atomic batch: after a crash all of them are
/// there, or none. Record `records[i]` belongs to `streams[i]`. Records of one stream have the
/// order of the list.
///
/// Everything else is as with `dioxide_log_append`.
///
/// # Return value
///
/// 0, with the LSN of each record in its stream in `lsns`, unless that is NULL. Or a negative
/// errno, with `lsns` unchanged.
///
/// # Errors
///
/// As `dioxide_log_append_all`. EINVAL: also for a stream that is NULL or of another log, and if
/// `streams` is NULL with a `count` above 0.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` and the streams are open. `streams`, `records` and, unless NULL, `lsns` have `count`
/// members. The memory of the records does not change during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_log_append_all(
    log: *mut dioxide_stream_log,
    streams: *const *mut dioxide_stream,
    records: *const iovec,
    count: usize,
    lsns: *mut i64,
) -> c_int {
    answer("dioxide_stream_log_append_all", || {
        // SAFETY: as the caller promises.
        let (log, records) = unsafe { (log_of(log)?, slices(records, count, "records")?) };
        // SAFETY: as above.
        let streams = unsafe { all_shared(streams, count, "streams")? };
        let batch: Vec<_> =
            streams.into_iter().zip(records).map(|(it, record)| (&it.stream, record)).collect();
        for (number, lsn) in log.append_all(&batch)?.into_iter().enumerate() {
            if !lsns.is_null() {
                // SAFETY: as above.
                unsafe { lsns.add(number).write(signed(lsn.0)) };
            }
        }
        Ok(0)
    })
}

/// Makes all records of all streams stable that were acknowledged before the call. For a log with
/// DIOXIDE_LOG_ON_SYNC; otherwise they are stable already.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_sync`.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_log_sync(log: *mut dioxide_stream_log) -> c_int {
    answer("dioxide_stream_log_sync", || {
        // SAFETY: as the caller promises.
        unsafe { log_of(log)? }.sync()?;
        Ok(0)
    })
}

/// Writes the records in flight, and closes the log for all of its streams, as `dioxide_log_close`.
/// Streams and iterators stay, and are closed separately.
///
/// # Return value
///
/// 0, or a negative errno. The handle is invalid in either case, and must not be used again, not
/// even to be closed.
///
/// # Errors
///
/// As `dioxide_log_close`.
///
/// # Thread safety
///
/// As `dioxide_log_close`.
///
/// # Safety
///
/// `log` is open, and has no other user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_log_close(log: *mut dioxide_stream_log) -> c_int {
    answer("dioxide_stream_log_close", || {
        // SAFETY: as the caller promises.
        let dioxide_stream_log { log, owner } = *unsafe { take_handle(log, "log")? };
        // In a child, dropping it frees the memory and does nothing else.
        check(owner)?;
        log.close()?;
        Ok(0)
    })
}

/// Appends `length` bytes of `data` as one record of a stream. Records of all streams that are
/// appended at the same time share a write and a flush. On return the record has the guarantees of
/// `dioxide_log_append`.
///
/// # Return value
///
/// The LSN of the record in its stream, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_append`. EBADF: also if the log was closed.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open; `data` has `length` bytes that do not change during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_append(
    stream: *mut dioxide_stream,
    data: *const c_void,
    length: usize,
) -> i64 {
    answer("dioxide_stream_append", || {
        // SAFETY: as the caller promises.
        let (stream, data) = unsafe { (stream_of(stream)?, &*bytes(data.cast(), length)?) };
        Ok(signed(stream.append(data)?.0))
    })
}

/// Appends `count` records to a stream as one atomic batch, as `dioxide_log_append_all`. For
/// records of several streams see `dioxide_stream_log_append_all`.
///
/// # Return value
///
/// As `dioxide_log_append_all`.
///
/// # Errors
///
/// As `dioxide_log_append_all`. EBADF: also if the log was closed.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open; `records` has `count` members, each with memory that does not change during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_append_all(
    stream: *mut dioxide_stream,
    records: *const iovec,
    count: usize,
) -> i64 {
    answer("dioxide_stream_append_all", || {
        // SAFETY: as the caller promises.
        let (stream, records) = unsafe { (stream_of(stream)?, slices(records, count, "records")?) };
        Ok(signed(stream.append_all(&records)?.0))
    })
}

/// Reads the record `lsn` of a stream into `into`, up to `length` bytes of it. A `length` of 0
/// returns the size of the record. Readers see a record once it is stable.
///
/// # Return value
///
/// As `dioxide_log_read`.
///
/// # Errors
///
/// As `dioxide_log_read`. ERANGE: the record was removed by `dioxide_stream_truncate_front`.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open; `into` has `length` bytes, exclusive to the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_read(
    stream: *mut dioxide_stream,
    lsn: i64,
    into: *mut c_void,
    length: usize,
) -> i64 {
    answer("dioxide_stream_read", || {
        // SAFETY: as the caller promises. The bytes are only written.
        let (stream, into) = unsafe { (stream_of(stream)?, &mut *bytes_mut(into.cast(), length)?) };
        hand_out(stream.read(lsn_of(lsn)?)?, lsn, into)
    })
}

/// Removes all records of a stream below `lsn`, as `dioxide_log_truncate_front`.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_truncate_front`. ENOSPC: two segments are in reserve for truncations, so this
/// works while the log is full.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_truncate_front(
    stream: *mut dioxide_stream,
    lsn: i64,
) -> c_int {
    answer("dioxide_stream_truncate_front", || {
        // SAFETY: as the caller promises.
        unsafe { stream_of(stream)? }.truncate_front(lsn_of(lsn)?)?;
        Ok(0)
    })
}

/// Removes the record `lsn` of a stream and all above it, as `dioxide_log_truncate_back`.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// As `dioxide_log_truncate_back`.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_truncate_back(
    stream: *mut dioxide_stream,
    lsn: i64,
) -> c_int {
    answer("dioxide_stream_truncate_back", || {
        // SAFETY: as the caller promises.
        unsafe { stream_of(stream)? }.truncate_back(lsn_of(lsn)?)?;
        Ok(0)
    })
}

/// Removes a stream with all of its records. Its next record has the LSN 1. On return the removal
/// is durable. After an error, or a crash before the return, the stream is as before or removed.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// As `dioxide_stream_truncate_front`.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_remove(stream: *mut dioxide_stream) -> c_int {
    answer("dioxide_stream_remove", || {
        // SAFETY: as the caller promises.
        unsafe { stream_of(stream)? }.remove()?;
        Ok(0)
    })
}

/// The lowest LSN that a stream has: that of the next record if it is empty.
///
/// # Return value
///
/// The LSN, or a negative errno.
///
/// # Errors
///
/// - EBADF: the log was opened by the process that this one was forked from.
/// - EINVAL: `stream` is NULL.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_first_lsn(stream: *mut dioxide_stream) -> i64 {
    answer("dioxide_stream_first_lsn", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { stream_of(stream)? }.first_lsn().0))
    })
}

/// The LSN that the next record of a stream gets.
///
/// # Return value
///
/// The LSN, or a negative errno.
///
/// # Errors
///
/// - EBADF: the log was opened by the process that this one was forked from.
/// - EINVAL: `stream` is NULL.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_next_lsn(stream: *mut dioxide_stream) -> i64 {
    answer("dioxide_stream_next_lsn", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { stream_of(stream)? }.next_lsn().0))
    })
}

/// The LSN behind the last stable record of a stream: all below it are stable.
///
/// # Return value
///
/// The LSN, or a negative errno.
///
/// # Errors
///
/// - EBADF: the log was opened by the process that this one was forked from.
/// - EINVAL: `stream` is NULL.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_stable_lsn(stream: *mut dioxide_stream) -> i64 {
    answer("dioxide_stream_stable_lsn", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { stream_of(stream)? }.stable_lsn().0))
    })
}

/// Makes an iterator over the records of a stream from `lsn` on, as `dioxide_log_iter_from`.
/// `dioxide_log_next` and `dioxide_log_iter_close` take it.
///
/// # Return value
///
/// As `dioxide_log_iter_from`.
///
/// # Errors
///
/// As `dioxide_log_iter_from`.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open; `iter` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_iter_from(
    stream: *mut dioxide_stream,
    lsn: i64,
    iter: *mut *mut dioxide_log_iter,
) -> c_int {
    answer("dioxide_stream_iter_from", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(iter, "iter", || {
                let reader = stream_of(stream)?.iter_from(lsn_of(lsn)?);
                Ok(dioxide_log_iter::new(Reader::OfStream(reader)))
            })?;
        }
        Ok(0)
    })
}

/// Makes an iterator over the records of a stream from `lsn` on that waits for each next one, as
/// `dioxide_log_follow`.
///
/// # Return value
///
/// As `dioxide_log_iter_from`.
///
/// # Errors
///
/// As `dioxide_log_iter_from`.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `stream` is open; `iter` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_follow(
    stream: *mut dioxide_stream,
    lsn: i64,
    iter: *mut *mut dioxide_log_iter,
) -> c_int {
    answer("dioxide_stream_follow", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(iter, "iter", || {
                let reader = stream_of(stream)?.follow(lsn_of(lsn)?);
                Ok(dioxide_log_iter::new(Reader::FollowStream(reader)))
            })?;
        }
        Ok(0)
    })
}

/// Closes a handle of a stream. The stream, its log and its iterators stay.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - EINVAL: `stream` is NULL.
///
/// # Thread safety
///
/// Any thread, while no other one is in a call with this handle. The child of a fork may close it,
/// to free the memory.
///
/// # Safety
///
/// `stream` is not closed, and has no other user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_stream_close(stream: *mut dioxide_stream) -> c_int {
    answer("dioxide_stream_close", || {
        // SAFETY: as the caller promises.
        drop(unsafe { take_handle(stream, "stream")? });
        Ok(0)
    })
}
