//! Errors of the interface: a negative errno, and a message for the thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

/// Why a function of the interface failed.
pub(crate) enum Failure {
    /// The library's own error.
    Library(dioxide::Error),
    /// An error of a write-ahead log.
    Log(dioxide_log::Error),
    /// Detected by this crate: an errno, and the message.
    Here(c_int, String),
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl From<dioxide::Error> for Failure {
    fn from(error: dioxide::Error) -> Self {
        Self::Library(error)
    }
}

impl From<dioxide_log::Error> for Failure {
    fn from(error: dioxide_log::Error) -> Self {
        Self::Log(error)
    }
}

/// An invalid argument.
pub(crate) fn invalid(why: impl Into<String>) -> Failure {
    Failure::Here(libc::EINVAL, why.into())
}

thread_local!(static LAST: RefCell<CString> = RefCell::default());

/// The result of the C function `name`: that of `work`, or its errno as a negative number, with the
/// message stored.
pub(crate) fn answer<N: From<c_int>>(name: &str, work: impl FnOnce() -> Result<N>) -> N {
    work().unwrap_or_else(|failure| N::from(-remember(name, failure)))
}

/// Stores the message of a failure in the C function `name`, and returns its errno.
pub(crate) fn remember(name: &str, failure: Failure) -> c_int {
    let (errno, message) = match failure {
        Failure::Library(error) => (error.errno(), error.to_string()),
        Failure::Log(error) => (errno_of(&error), format!("{name}: {error}")),
        Failure::Here(errno, why) => (errno, format!("{name}: {why}")),
    };
    // An ending thread cannot read it any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text(message));
    errno
}

/// The kernel's errno, or the closest one for an error of a write-ahead log.
fn errno_of(error: &dioxide_log::Error) -> c_int {
    use dioxide_log::Error;
    match error {
        Error::File(error) => error.errno(),
        Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        Error::Corrupt { .. } => libc::EUCLEAN,
        Error::Version { .. } => libc::EPROTONOSUPPORT,
        Error::Locked { .. } => libc::EBUSY,
        Error::Missing { .. } => libc::ENOENT,
        Error::Options(_) => libc::EINVAL,
        Error::TooLong { .. } => libc::EMSGSIZE,
        Error::Full(_) | Error::DeviceFull(_) => libc::ENOSPC,
        Error::NoSegment(cause) => errno_of(cause),
        Error::OutOfRange { .. } => libc::ERANGE,
        Error::Closed => libc::EBADF,
        // `Failed`, or an error that this crate does not know: the log takes no more.
        _ => libc::EIO,
    }
}

/// For C, where a text ends at its first null byte.
pub(crate) fn text(message: String) -> CString {
    CString::new(message.replace('\0', "\u{fffd}")).expect("no null byte is left")
}

/// The message of the last error of the calling thread. It names the operation, the file, the
/// offset and the cause, in English. Functions that succeed leave it unchanged.
///
/// # Return value
///
/// A string in UTF-8, never NULL, empty if nothing has failed in this thread yet. It belongs to the
/// library. It is valid until the next call of any function of the library by the same thread, and
/// until the thread ends.
///
/// # Thread safety
///
/// Any thread; each has its own message. The child of a fork begins with that of the thread that
/// forked.
#[unsafe(no_mangle)]
pub extern "C" fn dioxide_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
