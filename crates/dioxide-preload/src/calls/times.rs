//! Times that the program sets. The files first go back, because a hand-back sets the times.

use super::hand_back_at;
use crate::files;
use crate::next::interpose;
use libc::{c_char, c_int, timespec, timeval, utimbuf};

const WHY: &str = "the program sets its times";

/// Hands back the file of a path. Without a path the descriptor is the file.
fn of_path(dir: c_int, path: *const c_char, flags: c_int) {
    if !files::any_taken() {
        return;
    }
    match path.is_null() {
        true => files::hand_back_descriptor(dir, WHY),
        false => hand_back_at(dir, path, flags, WHY),
    }
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
