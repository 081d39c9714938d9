//! What an errno means: one table for the whole crate.
//!
//! A flush that failed may have lost data of every file of its file system, and the kernel reports
//! that once. So only a call that flushes can be blamed for it, and it is blamed for everything but
//! what the kernel answers before it flushes. Two kinds of call flush: fdatasync or fsync, and a
//! write with RWF_DSYNC, which begins its flush (`generic_write_sync`) only after all of its bytes
//! are written. A call that may have failed in its flush returns an error that [says
//! so](is_failed_flush). All others wedge nothing (a getxattr, FIEMAP or truncate that fails with
//! EIO, for example), but for one case: a write, growth, cut or close of a file system or device
//! that [is gone](is_gone).

use crate::error::ErrorKind;
use std::{fmt, io};

/// What the failure of a call that flushes says of its flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    /// The kernel refused the call before the flush began, or the device has dropped nothing.
    Harmless,
    /// The write failed, or its flush: the same write without a flush shows which.
    Unclear,
    /// The flush may have failed.
    Doubtful,
}
use Flush::{Doubtful, Harmless, Unclear};

/// What else an errno says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// There is no space, or none for this user or file.
    NoSpace,
    /// The file system or device is not there any more, or no longer takes writes.
    Gone,
    /// The kernel, the file system or a sandbox does not have the call.
    Missing,
    /// The process may not make the call.
    Denied,
    /// Nothing that matters here.
    Other,
}

struct Row {
    errno: i32,
    class: Class,
    /// Of a write with RWF_DSYNC.
    write: Flush,
    /// Of fdatasync and fsync.
    flush: Flush,
}

const fn row(errno: i32, class: Class, write: Flush, flush: Flush) -> Row {
    Row { errno, class, write, flush }
}

/// Each errno of which more is known than that a call failed; and where the kernel returns it. Read
/// in Linux 6.12 to 6.18. A flush returns what the block layer made of the device's answer
/// (`blk_status_to_errno`), and what an earlier writeback of the file left
/// (`file_check_and_advance_wb_err`, any errno): so nearly everything that it returns is doubtful.
const TABLE: &[Row] = &[
    // Write: `iomap_begin` finds no block, or the device none (a thin pool, BLK_STS_NOSPC); its
    // flush may say the same. Flush: a thin pool has no block for data that was acknowledged, so
    // data may be lost.
    row(libc::ENOSPC, Class::NoSpace, Unclear, Doubtful),
    row(libc::EDQUOT, Class::NoSpace, Unclear, Doubtful),
    // Write: `generic_write_checks`, before any I/O. A flush checks no size.
    row(libc::EFBIG, Class::NoSpace, Harmless, Doubtful),
    // Write: seccomp, or a kernel before 4.6; glibc makes EOPNOTSUPP of it. Flush: seccomp. No file
    // system returns it.
    row(libc::ENOSYS, Class::Missing, Harmless, Harmless),
    // Write: `kiocb_set_rw_flags` does not know the flag. A device that answers a flush so
    // (BLK_STS_NOTSUPP) has dropped nothing, and refuses the next one as well; `sys::write` makes
    // that one at once. Flush: nothing is stable.
    row(libc::EOPNOTSUPP, Class::Missing, Harmless, Doubtful),
    // Write: an immutable file (`ext4_write_checks`), a security module or seccomp. Flush: a server
    // of a network file system may refuse what it was given before.
    row(libc::EPERM, Class::Denied, Harmless, Doubtful),
    row(libc::EACCES, Class::Denied, Harmless, Doubtful),
    // Write: `import_iovec`, `__iomap_dio_rw` or a journal handle has no memory, before any I/O. A
    // flush request without memory (BLK_STS_RESOURCE) never reached the device, which has dropped
    // nothing; a journal without memory for its commit aborts, and the next flush returns EIO.
    // Flush: an earlier writeback may have had none, and its data is lost.
    row(libc::ENOMEM, Class::Other, Harmless, Doubtful),
    // Write: `generic_write_checks`, `iomap_dio_bio_iter` (alignment), `import_iovec`. No flush of
    // a device is invalid. Flush: an earlier writeback may have been (BLK_STS_INVAL).
    row(libc::EINVAL, Class::Other, Harmless, Doubtful),
    // Write: the memory of the caller cannot be read.
    row(libc::EFAULT, Class::Other, Harmless, Doubtful),
    // Write: put off before any I/O (RWF_NOWAIT inside io_uring, a busy swap-in).
    row(libc::EAGAIN, Class::Other, Harmless, Doubtful),
    // Write: the file became a swap file (`generic_write_checks`).
    row(libc::ETXTBSY, Class::Other, Harmless, Doubtful),
    // Both: the descriptor is not open, or not for writing: another part of the program closed it.
    row(libc::EBADF, Class::Other, Harmless, Harmless),
    // Both: the file system was made read-only after an error (`ext4_emergency_state`), or the
    // device went away.
    row(libc::EROFS, Class::Gone, Doubtful, Doubtful),
    row(libc::ENODEV, Class::Gone, Doubtful, Doubtful),
    row(libc::ENXIO, Class::Gone, Doubtful, Doubtful),
    // Both: the file system was shut down; and what a striped volume answers that cannot be used
    // any more.
    row(libc::ESHUTDOWN, Class::Gone, Doubtful, Doubtful),
];

/// Of every other errno: EIO, EUCLEAN, ETIMEDOUT, ENODATA, EREMOTEIO, ENOLINK, EILSEQ, EBUSY and
/// what is yet to come.
const ANY_OTHER: Row = row(0, Class::Other, Doubtful, Doubtful);

/// The call that failed may have failed in its flush.
#[derive(Debug)]
struct FailedFlush(io::Error);

impl fmt::Display for FailedFlush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for FailedFlush {}

/// An error of a durable write, judged.
#[derive(Debug)]
pub(crate) enum OfWrite {
    /// It says whether its flush may have failed.
    Judged(io::Error),
    /// The same write without a flush is to be made: if that is refused in the same way, no flush
    /// was.
    Unclear(io::Error),
}

/// Of fdatasync, fsync, or another call that does nothing but flush: says whether the flush may
/// have failed.
pub(crate) fn of_flush(error: io::Error) -> io::Error {
    match found(&error).map(|row| row.flush) {
        Some(Doubtful | Unclear) => failed_flush(error),
        // Found by the library itself, or judged before.
        Some(Harmless) | None => error,
    }
}

/// Of fdatasync, fsync or syncfs on a file of which nothing is known: whether there is no such call
/// of that file. The kernel answers EINVAL where the file has no method (`vfs_fsync_range`), as in
/// procfs and sysfs, and answers so each time. The errno that an earlier writeback left may be
/// EINVAL, too, but is reported once. So `again`, which makes the call a second time, decides. Of a
/// file that the engine or the ledger knows there is a method, and EINVAL is doubtful.
pub(crate) fn is_no_flush(error: &io::Error, again: impl FnOnce() -> io::Result<()>) -> bool {
    let is_invalid = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    is_invalid(error) && again().is_err_and(|error| is_invalid(&error))
}

/// Of a write with RWF_DSYNC.
pub(crate) fn of_durable_write(error: io::Error) -> OfWrite {
    match found(&error).map(|row| row.write) {
        Some(Doubtful) => OfWrite::Judged(failed_flush(error)),
        Some(Unclear) => OfWrite::Unclear(error),
        Some(Harmless) | None => OfWrite::Judged(error),
    }
}

/// Of a step of a durable operation that does not flush: what flushes in another step cannot be
/// blamed for it.
pub(crate) fn of_step(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => error,
        _ if error.raw_os_error().is_some() => io::Error::other(kind(&error)),
        _ => error,
    }
}

/// It is the flush that may have failed. Never of the kind that is tried again: the next flush
/// would be a success.
pub(crate) fn failed_flush(error: io::Error) -> io::Error {
    io::Error::other(FailedFlush(error))
}

/// A flush may have failed: nothing on its file system can be trusted any more.
pub(crate) fn is_failed_flush(error: &io::Error) -> bool {
    inside(error).is_some()
}

/// There is no space, and the same call can succeed later. Never of a flush: that has failed.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(kind(error), ErrorKind::NoSpace(_))
}

/// The file system or device is not there any more, or no longer takes writes.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    class(error) == Some(Class::Gone)
}

/// There is no such call here; another one does the same.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    class(error) == Some(Class::Missing)
}

/// The kernel, the file system or a sandbox does not do this here, nor will it later.
pub(crate) fn is_refusal(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Os(errno) => matches!(row_of(*errno).class, Class::Missing | Class::Denied),
        ErrorKind::Unsupported(_) => true,
        _ => false,
    }
}

/// As the caller of the library is given it.
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

/// Of a backend that finds out more than the kernel.
fn found_kind(error: &io::Error) -> Option<&ErrorKind> {
    error.get_ref().and_then(|error| error.downcast_ref::<ErrorKind>())
}

/// What the kernel answered, if it was asked.
fn errno(error: &io::Error) -> Option<i32> {
    match found_kind(error) {
        Some(ErrorKind::Os(errno) | ErrorKind::NoSpace(errno)) => Some(*errno),
        _ => inside(error).unwrap_or(error).raw_os_error(),
    }
}

fn class(error: &io::Error) -> Option<Class> {
    errno(error).map(|errno| row_of(errno).class)
}

/// What is known of an error that was not judged before. None if the kernel had no part in it.
fn found(error: &io::Error) -> Option<&'static Row> {
    error.raw_os_error().map(row_of)
}

fn row_of(errno: i32) -> &'static Row {
    TABLE.iter().find(|row| row.errno == errno).unwrap_or(&ANY_OTHER)
}

/// The error of a flush that may have failed.
fn inside(error: &io::Error) -> Option<&io::Error> {
    error
        .get_ref()
        .and_then(|error| error.downcast_ref::<FailedFlush>())
        .map(|FailedFlush(error)| error)
}

/// Calls until the kernel is not interrupted.
pub(crate) fn uninterrupted<R>(mut call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Flushes, until the kernel is not interrupted. An error says whether the flush may have failed.
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
