//! What the library has to say beside its answers, handed to the program.

use crate::error::{Failure, answer, text};
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// An error that no call can return any more.
pub const DIOXIDE_LOG_ERROR: u32 = 1;
/// Something does not work as it could: no growth ahead on this file system, no io_uring.
pub const DIOXIDE_LOG_WARNING: u32 = 2;
/// Everything else.
pub const DIOXIDE_LOG_INFO: u32 = 3;

/// Takes a message: a level, a text of one line without an end of line, which is valid during the call, and what
/// `dioxide_set_log` was given.
pub type dioxide_log =
    Option<unsafe extern "C" fn(level: u32, message: *const c_char, user_data: *mut c_void)>;

/// Who listens, from now on.
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
            log::Level::Error => DIOXIDE_LOG_ERROR,
            log::Level::Warn => DIOXIDE_LOG_WARNING,
            _ => DIOXIDE_LOG_INFO,
        };
        let message = text(record.args().to_string());
        // SAFETY: as the program promised.
        unsafe { (self.tell)(level, message.as_ptr(), self.user_data) };
    }

    fn flush(&self) {}
}

/// Has `log` called with what the library has to say beside its answers: why a file does not grow ahead, that there is no
/// io_uring, an error that came too late for any call. Without, nobody hears it: the library never prints.
///
/// Once for each process, before the first file is opened. `log` may be called by any thread, also by several at the same time,
/// and while the library has locks: it must not call the library, nor throw, nor leave by longjmp(3).
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - EALREADY: it was called before; the first one stays.
/// - EINVAL: `log` is NULL.
///
/// # Thread safety
///
/// Any thread. The child of a fork has the same.
///
/// # Safety
///
/// `log` may be called as described, with `user_data`, until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_set_log(log: dioxide_log, user_data: *mut c_void) -> c_int {
    answer("dioxide_set_log", || {
        let tell = log.ok_or_else(|| crate::error::invalid("log is NULL"))?;
        let again = || Failure::Here(libc::EALREADY, "there is one already".into());
        LISTENER.set(Listener { tell, user_data }).map_err(|_| again())?;
        log::set_logger(LISTENER.get().expect("just set")).map_err(|_| again())?;
        log::set_max_level(log::LevelFilter::Info);
        Ok(0)
    })
}
