//! The meaning of each errno: one table for the whole crate.
//!
//! A failed flush may have lost data of every file of its file system, and the kernel reports that
//! only once. So the table blames each call that flushes for every errno, except those that the
//! kernel returns before the flush.
//!
//! Two kinds of call flush. One is fdatasync or fsync. The other is a write with RWF_DSYNC, which
//! begins its flush (`generic_write_sync`) only after all of its bytes are written. A call that may
//! have failed in its flush returns an error that is [marked](is_failed_flush). All other calls
//! wedge nothing, such as a getxattr, FIEMAP or truncate that fails with EIO. The exception is a
//! write, growth, truncate or close of a file system or device that [is gone](is_gone).

use crate::error::ErrorKind;
use std::{fmt, io};

/// The state of the flush after a call that flushes has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    /// The kernel refused the call before the flush began, or the device has dropped nothing.
    Harmless,
    /// The write failed, or its flush. The same write without a flush shows which.
    Unclear,
    /// The flush may have failed.
    Doubtful,
}
use Flush::{Doubtful, Harmless, Unclear};

/// The class of an errno, apart from flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// There is no space, or none for this user or file.
    NoSpace,
    /// The file system or device is gone, or no longer takes writes.
    Gone,
    /// The kernel, the file system or a sandbox does not have the call.
    Missing,
    /// The process may not make the call.
    Denied,
    /// Not relevant here.
    Other,
}

struct Row {
    errno: i32,
    class: Class,
    /// For a write with RWF_DSYNC.
    write: Flush,
    /// For fdatasync and fsync.
    flush: Flush,
}

const fn row(errno: i32, class: Class, write: Flush, flush: Flush) -> Row {
    Row { errno, class, write, flush }
}

/// Each errno of which more is known than that the call failed, and its origin in the kernel. From
/// the sources of Linux 6.12 to 6.18. A flush returns the block layer's translation of the device's
/// answer (`blk_status_to_errno`), or the errno of an earlier writeback of the file. The latter
/// (`file_check_and_advance_wb_err`) may be any errno, so nearly every errno of a flush is
/// doubtful.
const TABLE: &[Row] = &[
    // Write: `iomap_begin` finds no block, or the device none (a thin pool, BLK_STS_NOSPC). Its
    // flush may return the same. Flush: a thin pool has no block for acknowledged data, so data may
    // be lost.
    row(libc::ENOSPC, Class::NoSpace, Unclear, Doubtful),
    row(libc::EDQUOT, Class::NoSpace, Unclear, Doubtful),
    // Write: `generic_write_checks`, before any I/O. A flush checks no size.
    row(libc::EFBIG, Class::NoSpace, Harmless, Doubtful),
    // Write: seccomp, or a kernel before 4.6; glibc turns it into EOPNOTSUPP. Flush: seccomp. No
    // file system returns it.
    row(libc::ENOSYS, Class::Missing, Harmless, Harmless),
    // Write: `kiocb_set_rw_flags` does not know the flag. A device that rejects a flush with this
    // errno (BLK_STS_NOTSUPP) has dropped nothing, and rejects the next one as well. `sys::write`
    // makes that one at once. Flush: nothing is stable.
    row(libc::EOPNOTSUPP, Class::Missing, Harmless, Doubtful),
    // Write: an immutable file (`ext4_write_checks`), a security module or seccomp. Flush: the
    // server of a network file system may reject earlier data.
    row(libc::EPERM, Class::Denied, Harmless, Doubtful),
    row(libc::EACCES, Class::Denied, Harmless, Doubtful),
    // Write: `import_iovec`, `__iomap_dio_rw` or a journal handle has no memory, before any I/O. A
    // flush request without memory (BLK_STS_RESOURCE) never reached the device, which has dropped
    // nothing. A journal without memory for its commit aborts, and the next flush returns EIO.
    // Flush: an earlier writeback may have failed so, and its data is lost.
    row(libc::ENOMEM, Class::Other, Harmless, Doubtful),
    // Write: `generic_write_checks`, `iomap_dio_bio_iter` (alignment), `import_iovec`. A flush of a
    // device is never invalid. Flush: an earlier writeback may have been (BLK_STS_INVAL).
    row(libc::EINVAL, Class::Other, Harmless, Doubtful),
    // Write: the memory of the caller cannot be read.
    row(libc::EFAULT, Class::Other, Harmless, Doubtful),
    // Write: deferred before any I/O (RWF_NOWAIT inside io_uring, a busy swap-in).
    row(libc::EAGAIN, Class::Other, Harmless, Doubtful),
    // Write: the file became a swap file (`generic_write_checks`).
    row(libc::ETXTBSY, Class::Other, Harmless, Doubtful),
    // Both: the descriptor is not open, or not for writing: other code of the program closed it.
    row(libc::EBADF, Class::Other, Harmless, Harmless),
    // Both: the file system became read-only after an error (`ext4_emergency_state`), or the device
    // is gone.
    row(libc::EROFS, Class::Gone, Doubtful, Doubtful),
    row(libc::ENODEV, Class::Gone, Doubtful, Doubtful),
    row(libc::ENXIO, Class::Gone, Doubtful, Doubtful),
    // Both: the file system was shut down. A striped volume that is no longer usable returns it
    // too.
    row(libc::ESHUTDOWN, Class::Gone, Doubtful, Doubtful),
];

/// For every other errno: EIO, EUCLEAN, ETIMEDOUT, ENODATA, EREMOTEIO, ENOLINK, EILSEQ, EBUSY and
/// future ones.
const ANY_OTHER: Row = row(0, Class::Other, Doubtful, Doubtful);

/// Marks an error of a call that may have failed in its flush.
#[derive(Debug)]
struct FailedFlush(io::Error);

impl fmt::Display for FailedFlush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for FailedFlush {}

/// A classified error of a durable write.
#[derive(Debug)]
pub(crate) enum OfWrite {
    /// The error is marked if its flush may have failed.
    Judged(io::Error),
    /// The caller repeats the write without a flush. If that fails in the same way, no flush has
    /// failed.
    Unclear(io::Error),
}

/// Marks the error of fdatasync, fsync, or another pure flush, if the flush may have failed.
pub(crate) fn of_flush(error: io::Error) -> io::Error {
    match found(&error).map(|row| row.flush) {
        Some(Doubtful | Unclear) => failed_flush(error),
        // Detected by the library itself, or marked before.
        Some(Harmless) | None => error,
    }
}

/// Returns whether an unknown file has no fdatasync, fsync or syncfs at all. The kernel then
/// returns EINVAL each time (`vfs_fsync_range`), as in procfs and sysfs. The errno of an earlier
/// writeback may be EINVAL too, but is reported once. So `again`, which repeats the call, decides.
/// A file that the engine or the ledger knows has the method, and its EINVAL is doubtful.
pub(crate) fn is_no_flush(error: &io::Error, again: impl FnOnce() -> io::Result<()>) -> bool {
    let is_invalid = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    is_invalid(error) && again().is_err_and(|error| is_invalid(&error))
}

/// Classifies the error of a write with RWF_DSYNC.
pub(crate) fn of_durable_write(error: io::Error) -> OfWrite {
    match found(&error).map(|row| row.write) {
        Some(Doubtful) => OfWrite::Judged(failed_flush(error)),
        Some(Unclear) => OfWrite::Unclear(error),
        Some(Harmless) | None => OfWrite::Judged(error),
    }
}

/// Converts the error of a step that does not flush, in a durable operation whose other steps do.
/// Such an error blames no flush.
pub(crate) fn of_step(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => error,
        _ if error.raw_os_error().is_some() => io::Error::other(kind(&error)),
        _ => error,
    }
}

/// Marks an error: the flush may have failed. Its kind is never one that is retried, since the next
/// flush would succeed.
pub(crate) fn failed_flush(error: io::Error) -> io::Error {
    io::Error::other(FailedFlush(error))
}

/// Returns whether a flush may have failed: no data of its file system is then known to be stable.
pub(crate) fn is_failed_flush(error: &io::Error) -> bool {
    inside(error).is_some()
}

/// Returns whether there is no space, so that the same call can succeed later. False for a flush,
/// which has failed.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(kind(error), ErrorKind::NoSpace(_))
}

/// Returns whether the file system or device is gone, or no longer takes writes.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    class(error) == Some(Class::Gone)
}

/// Returns whether the call is missing here; another one does the same.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    class(error) == Some(Class::Missing)
}

/// Returns whether the kernel, the file system or a sandbox permanently refuses the call.
pub(crate) fn is_refusal(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Os(errno) => matches!(row_of(*errno).class, Class::Missing | Class::Denied),
        ErrorKind::Unsupported(_) => true,
        _ => false,
    }
}

/// Returns the error kind for the caller of the library.
pub(crate) fn kind(error: &io::Error) -> ErrorKind {
    match (found_kind(error), errno(error), class(error)) {
        (Some(kind), ..) => kind.clone(),
        (None, Some(errno), Some(Class::NoSpace)) if !is_failed_flush(error) => {
            ErrorKind::NoSpace(errno)
        }
        (None, Some(errno), _) => ErrorKind::Os(errno),
        (None, None, _) => ErrorKind::Os(libc::EIO),
    }
}

/// Returns the kind of a backend that detects more than the kernel.
fn found_kind(error: &io::Error) -> Option<&ErrorKind> {
    error.get_ref().and_then(|error| error.downcast_ref::<ErrorKind>())
}

/// Returns the kernel's errno, if the kernel returned one.
fn errno(error: &io::Error) -> Option<i32> {
    match found_kind(error) {
        Some(ErrorKind::Os(errno) | ErrorKind::NoSpace(errno)) => Some(*errno),
        _ => inside(error).unwrap_or(error).raw_os_error(),
    }
}

fn class(error: &io::Error) -> Option<Class> {
    errno(error).map(|errno| row_of(errno).class)
}

/// Finds the row of an unmarked error. None if the kernel did not return it.
fn found(error: &io::Error) -> Option<&'static Row> {
    error.raw_os_error().map(row_of)
}

fn row_of(errno: i32) -> &'static Row {
    TABLE.iter().find(|row| row.errno == errno).unwrap_or(&ANY_OTHER)
}

/// Returns the error inside the mark of a failed flush.
fn inside(error: &io::Error) -> Option<&io::Error> {
    error
        .get_ref()
        .and_then(|error| error.downcast_ref::<FailedFlush>())
        .map(|FailedFlush(error)| error)
}

/// Repeats a call until it returns no EINTR.
pub(crate) fn uninterrupted<R>(mut call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Flushes, and repeats after EINTR. The error is marked if the flush may have failed.
pub(crate) fn flushed<R>(call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    uninterrupted(call).map_err(of_flush)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    fn wedges(errno: i32) -> (bool, bool) {
        let write = match of_durable_write(os(errno)) {
            OfWrite::Judged(error) => is_failed_flush(&error),
            OfWrite::Unclear(_) => panic!("{errno}"),
        };
        (write, is_failed_flush(&of_flush(os(errno))))
    }

    #[test]
    fn a_durable_write_refused_before_any_io_wedges_nothing() {
        for errno in
            [libc::ENOMEM, libc::EACCES, libc::EOPNOTSUPP, libc::EPERM, libc::EINVAL, libc::EFBIG]
        {
            assert_eq!(wedges(errno), (false, true), "{errno}");
        }
        for errno in [libc::ENOSYS, libc::EBADF] {
            assert_eq!(wedges(errno), (false, false), "{errno}");
        }
    }

    #[test]
    fn a_flush_that_a_file_does_not_have_is_refused_each_time() {
        assert!(is_no_flush(&os(libc::EINVAL), || Err(os(libc::EINVAL))));
        for again in [Ok(()), Err(libc::EIO)] {
            assert!(
                !is_no_flush(&os(libc::EINVAL), || again.map_err(os)),
                "a writeback failed, and was reported"
            );
        }
        assert!(!is_no_flush(&os(libc::EIO), || unreachable!("the answer is clear")));
    }

    #[test]
    fn an_errno_of_which_nothing_is_known_is_a_failed_flush() {
        for errno in [libc::EIO, libc::EUCLEAN, libc::ETIMEDOUT, libc::EROFS, libc::EBUSY, 4095] {
            assert_eq!(wedges(errno), (true, true), "{errno}");
        }
    }

    #[test]
    fn no_space_of_a_flush_is_a_failed_flush_and_not_to_be_tried_again() {
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            assert!(matches!(of_durable_write(os(errno)), OfWrite::Unclear(_)));
            assert!(is_no_space(&os(errno)));
            let failed = of_flush(os(errno));
            assert!(is_failed_flush(&failed) && !is_no_space(&failed));
            assert_eq!(kind(&failed), ErrorKind::Os(errno));
        }
    }

    #[test]
    fn what_the_library_finds_itself_is_no_failed_flush() {
        for error in
            [io::Error::other(ErrorKind::Corrupt("so".into())), io::ErrorKind::WriteZero.into()]
        {
            assert!(!is_failed_flush(&of_flush(error)));
        }
        assert_eq!(kind(&io::Error::other(ErrorKind::Locked)), ErrorKind::Locked);
    }

    #[test]
    fn a_step_that_does_not_flush_says_what_failed_and_blames_no_flush() {
        let (full, gone) = (of_step(os(libc::ENOSPC)), of_step(os(libc::EROFS)));
        assert!(is_no_space(&full) && is_gone(&gone));
        assert!(!is_failed_flush(&of_flush(full)) && !is_failed_flush(&of_flush(gone)));
        assert!(is_failed_flush(&of_step(of_flush(os(libc::EIO)))));
        assert_eq!(of_step(os(libc::EINTR)).kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn an_error_that_was_judged_stays_as_it_is() {
        let judged = of_flush(of_flush(os(libc::EROFS)));
        assert!(is_failed_flush(&judged) && is_gone(&judged));
        assert!(
            matches!(of_durable_write(judged), OfWrite::Judged(error) if is_failed_flush(&error))
        );
    }

    #[test]
    fn each_errno_stands_in_the_table_once() {
        for (place, row) in TABLE.iter().enumerate() {
            assert!(TABLE[..place].iter().all(|other| other.errno != row.errno), "{}", row.errno);
        }
    }
}
