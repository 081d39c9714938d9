//! The library's messages beside its results, for the program.

use crate::error::{Failure, answer, invalid, text};
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// An error that no call can return any more.
pub const DIOXIDE_MESSAGE_ERROR: u32 = 1;
/// Something does not work optimally: no preallocation on this file system, no io_uring.
pub const DIOXIDE_MESSAGE_WARNING: u32 = 2;
/// Everything else.
pub const DIOXIDE_MESSAGE_INFO: u32 = 3;

/// Receives a message: a level, one line of text without an end of line, and the argument of
/// `dioxide_set_listener`. The text is valid during the call.
pub type dioxide_listener =
    Option<unsafe extern "C" fn(level: u32, message: *const c_char, user_data: *mut c_void)>;

/// The receiver of messages.
struct Listener {
    tell: unsafe extern "C" fn(u32, *const c_char, *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the program that gives the pair promises that any thread may call it.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

static LISTENER: OnceLock<Listener> = OnceLock::new();

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let level = match record.level() {
            log::Level::Error => DIOXIDE_MESSAGE_ERROR,
            log::Level::Warn => DIOXIDE_MESSAGE_WARNING,
            _ => DIOXIDE_MESSAGE_INFO,
        };
        let message = text(record.args().to_string());
        // SAFETY: as the program promised.
        unsafe { (self.tell)(level, message.as_ptr(), self.user_data) };
    }

    fn flush(&self) {}
}

/// Sets `listener` as the receiver of messages that no call returns. Examples are the reason why a
/// file is not preallocated, the lack of io_uring, and errors that came too late for any call.
/// Without a receiver they are lost: the library never prints.
///
/// Call it once for each process, before the first file is opened. Any thread may call `listener`,
/// also several at the same time, and while the library holds locks. `listener` must not call the
/// library, nor throw, nor leave by longjmp(3).
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - EALREADY: it was called before; the first one stays.
/// - EINVAL: `listener` is NULL.
///
/// # Thread safety
///
/// Any thread. The child of a fork has the same.
///
/// # Safety
///
/// `listener` may be called as described, with `user_data`, until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_set_listener(
    listener: dioxide_listener,
    user_data: *mut c_void,
) -> c_int {
    answer("dioxide_set_listener", || {
        let tell = listener.ok_or_else(|| invalid("listener is NULL"))?;
        let again = || Failure::Here(libc::EALREADY, "there is one already".into());
        LISTENER.set(Listener { tell, user_data }).map_err(|_| again())?;
        log::set_logger(LISTENER.get().expect("just set")).map_err(|_| again())?;
        log::set_max_level(log::LevelFilter::Info);
        Ok(0)
    })
}
