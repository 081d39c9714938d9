//! Iterators over a write-ahead log.

use super::{check, dioxide_log, log_of, lsn_of};
use crate::args::{exclusive, give, give_handle, signed, take_handle};
use crate::error::{Result, answer};
use ::dioxide_log::{Follow, Iter, Record, StreamFollow, StreamIter};
use dioxide::Owner;
use std::ffi::{c_int, c_void};

/// A position in a write-ahead log, or in a stream, that moves from record to record. One thread at
/// a time uses it.
pub struct dioxide_log_iter {
    reader: Reader,
    owner: Owner,
}

impl dioxide_log_iter {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, owner: Owner::current() }
    }
}

pub(super) enum Reader {
    Iter(Iter),
    Follow(Follow),
    OfStream(StreamIter),
    FollowStream(StreamFollow),
}

impl Reader {
    fn next(&mut self) -> ::dioxide_log::Result<Option<Record<'_>>> {
        match self {
            Self::Iter(iter) => Iter::next(iter),
            Self::Follow(follow) => follow.next(),
            Self::OfStream(iter) => StreamIter::next(iter),
            Self::FollowStream(follow) => follow.next(),
        }
    }
}

/// Makes an iterator over the records from `lsn` on. Where no record is stable yet,
/// `dioxide_log_next` returns 0, and later calls may return one. To begin with the first record,
/// pass `dioxide_log_first_lsn`.
///
/// # Return value
///
/// 0 with an iterator in `*iter`, to be closed by `dioxide_log_iter_close`; or a negative errno
/// with NULL there.
///
/// # Errors
///
/// - EBADF: `log` was opened by the process that this one was forked from.
/// - EINVAL: a pointer is NULL, or `lsn` is below 1.
///
/// # Thread safety
///
/// As `dioxide_log_append`.
///
/// # Safety
///
/// `log` is open; `iter` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_iter_from(
    log: *mut dioxide_log,
    lsn: i64,
    iter: *mut *mut dioxide_log_iter,
) -> c_int {
    answer("dioxide_log_iter_from", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(iter, "iter", || {
                let iter = log_of(log)?.iter_from(lsn_of(lsn)?);
                Ok(dioxide_log_iter::new(Reader::Iter(iter)))
            })?;
        }
        Ok(0)
    })
}

/// Makes an iterator over the records from `lsn` on that waits for each next one. So
/// `dioxide_log_next` returns 0 only after the log was closed.
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
/// As `dioxide_log_iter_from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_follow(
    log: *mut dioxide_log,
    lsn: i64,
    iter: *mut *mut dioxide_log_iter,
) -> c_int {
    answer("dioxide_log_follow", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(iter, "iter", || {
                let follow = log_of(log)?.follow(lsn_of(lsn)?);
                Ok(dioxide_log_iter::new(Reader::Follow(follow)))
            })?;
        }
        Ok(0)
    })
}

/// Lends the next record: its first byte in `*data`, and its bytes in `*length`. They belong to the
/// library, and are valid until the next call with this iterator.
///
/// An iterator sees a record once it is stable, or with DIOXIDE_LOG_READ_UNSYNCED once it is
/// written. It remains usable after the log was closed, until another writer opens the log.
///
/// # Return value
///
/// The LSN of the record. 0 if there is none, or a negative errno; then `*data` is NULL, `*length`
/// is 0, and the position is unchanged.
///
/// # Errors
///
/// - ERANGE: the record was removed by `dioxide_log_truncate_front`, or by `retain_bytes` or
///   `retain_age_ms`; or by `dioxide_stream_truncate_front`.
/// - EUCLEAN: the record was damaged since it was written.
/// - EBADF: the log was opened by the process that this one was forked from. Or it was closed, and
///   the record is not there any more.
/// - EINVAL: a pointer is NULL.
/// - EIO: an earlier write or flush failed, so an iterator that waits gets no more records.
/// - EIO and others: errors of the device.
///
/// # Thread safety
///
/// Any thread, one at a time for each iterator.
///
/// # Safety
///
/// `iter` is not closed; `data` and `length` have room for their values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_next(
    iter: *mut dioxide_log_iter,
    data: *mut *const c_void,
    length: *mut usize,
) -> i64 {
    answer("dioxide_log_next", || {
        // SAFETY: as the caller promises.
        unsafe {
            give(data, "data", || Ok(std::ptr::null()))?;
            give(length, "length", || Ok(0))?;
            let Some(record) = next(iter)? else { return Ok(0) };
            data.write(record.payload.as_ptr().cast());
            length.write(record.payload.len());
            Ok(signed(record.lsn.0))
        }
    })
}

/// The next record.
///
/// # Safety
///
/// It is NULL, or an iterator without any other use as long as the record is used.
unsafe fn next<'a>(iter: *mut dioxide_log_iter) -> Result<Option<Record<'a>>> {
    // SAFETY: as the caller promises.
    let dioxide_log_iter { reader, owner } = unsafe { exclusive(iter, "iter")? };
    check(*owner)?;
    Ok(reader.next()?)
}

/// Closes an iterator. Its record is not valid any more. The log stays open.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - EINVAL: `iter` is NULL.
///
/// # Thread safety
///
/// Any thread, while no other one is in a call with this iterator. The child of a fork may close
/// it, to free the memory.
///
/// # Safety
///
/// `iter` is not closed, and has no other user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_log_iter_close(iter: *mut dioxide_log_iter) -> c_int {
    answer("dioxide_log_iter_close", || {
        // SAFETY: as the caller promises.
        drop(unsafe { take_handle(iter, "iter")? });
        Ok(0)
    })
}
