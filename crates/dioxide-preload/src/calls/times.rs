//! Times that the program sets. The files first go back, because a hand-back sets the times.

use crate::files;
use crate::next::interpose;
use crate::surroundings::key_of_path;
use libc::{c_char, c_int, timespec, timeval, utimbuf};
use std::ffi::CStr;

const WHY: &str = "the program sets its times";

/// Hands back the file of a path. Without a path the descriptor is the file.
fn of_path(dir: c_int, path: *const c_char, flags: c_int) {
    if !files::any_taken() {
        return;
    }
    if path.is_null() {
        return files::hand_back_descriptor(dir, WHY);
    }
    // SAFETY: by the contract of the call, a string that ends with a zero byte.
    let path = unsafe { CStr::from_ptr(path) };
    if path.is_empty() {
        return files::hand_back_descriptor(dir, WHY);
    }
    files::hand_back_path(key_of_path(dir, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0), WHY);
}

interpose! {
    |next| fn [futimens](fd: c_int, times: *const timespec) -> c_int {
        files::hand_back_descriptor(fd, WHY);
        next(fd, times)
    }
    |next| fn [futimes](fd: c_int, times: *const timeval) -> c_int {
        files::hand_back_descriptor(fd, WHY);
        next(fd, times)
    }
    |next| fn [utimensat](
        dir: c_int,
        path: *const c_char,
        times: *const timespec,
        flags: c_int,
    ) -> c_int {
        of_path(dir, path, flags);
        next(dir, path, times, flags)
    }
    |next| fn [futimesat](dir: c_int, path: *const c_char, times: *const timeval) -> c_int {
        of_path(dir, path, 0);
        next(dir, path, times)
    }
    |next| fn [utimes](path: *const c_char, times: *const timeval) -> c_int {
        of_path(libc::AT_FDCWD, path, 0);
        next(path, times)
    }
    |next| fn [lutimes](path: *const c_char, times: *const timeval) -> c_int {
        of_path(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
        next(path, times)
    }
    |next| fn [utime](path: *const c_char, times: *const utimbuf) -> c_int {
        of_path(libc::AT_FDCWD, path, 0);
        next(path, times)
    }
}
