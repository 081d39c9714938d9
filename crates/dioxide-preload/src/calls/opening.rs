//! Opening files: the kernel does it, and the descriptor is remembered.

use crate::files;
use crate::next::interpose;
use crate::surroundings::key_of_path;
use libc::{FILE, c_char, c_int, mode_t};
use std::ffi::CStr;

/// An open of a file that is taken would wait for its lease. So it is handed back first: the process does not wait for
/// itself, and an open with O_NONBLOCK does not fail. A block device has no lease.
fn before(dir: c_int, path: *const c_char, flags: c_int) {
    const NEW: c_int = libc::O_CREAT | libc::O_EXCL;
    let opens_none = flags & libc::O_PATH != 0 || flags & NEW == NEW;
    if !files::any_taken() || path.is_null() || opens_none {
        return;
    }
    // SAFETY: the program says that it is a path.
    let path = unsafe { CStr::from_ptr(path) };
    let key = key_of_path(dir, path, flags & libc::O_NOFOLLOW == 0).filter(|key| key.inode.is_some());
    let truncated = flags & libc::O_TRUNC != 0;
    files::hand_back_path(key, if truncated { "it was opened with O_TRUNC" } else { "it was opened again" });
}

fn opened(fd: c_int, flags: c_int) -> c_int {
    if fd >= 0 {
        files::opened(fd, flags);
    }
    fd
}

const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

interpose! {
    |next| fn [open, open64, __open, __open64](path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        before(libc::AT_FDCWD, path, flags);
        opened(next(path, flags, mode), flags)
    }
    |next| fn [__open_2, __open64_2](path: *const c_char, flags: c_int) -> c_int {
        before(libc::AT_FDCWD, path, flags);
        opened(next(path, flags), flags)
    }
    |next| fn [openat, openat64](dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        before(dir, path, flags);
        opened(next(dir, path, flags, mode), flags)
    }
    |next| fn [__openat_2, __openat64_2](dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        before(dir, path, flags);
        opened(next(dir, path, flags), flags)
    }
    |next| fn [creat, creat64](path: *const c_char, mode: mode_t) -> c_int {
        before(libc::AT_FDCWD, path, CREAT);
        opened(next(path, mode), CREAT)
    }
    |next| fn [fopen, fopen64](path: *const c_char, mode: *const c_char) -> *mut FILE {
        before(libc::AT_FDCWD, path, flags_of_mode(mode));
        opened_stream(next(path, mode))
    }
    |next| fn [freopen, freopen64](path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        before(libc::AT_FDCWD, path, flags_of_mode(mode));
        closed(stream);
        opened_stream(next(path, mode, stream))
    }
    |next| fn [fclose](stream: *mut FILE) -> c_int {
        closed(stream);
        next(stream)
    }
    |next| fn [fcloseall]() -> c_int {
        if files::any_known() {
            files::hand_back_those("the program closes all its streams", |_| true);
        }
        next()
    }
    |next| fn [fdopen, _IO_fdopen](fd: c_int, mode: *const c_char) -> *mut FILE {
        files::hand_back_descriptor(fd, "a stream was made of it");
        next(fd, mode)
    }
}

/// What the mode of a stream means for the file.
fn flags_of_mode(mode: *const c_char) -> c_int {
    // SAFETY: the program says that it is a string.
    let truncates = !mode.is_null() && unsafe { *mode } == b'w' as c_char;
    if truncates { CREAT } else { 0 }
}

/// libc closes the descriptor of a stream by itself.
fn closed(stream: *mut FILE) {
    if files::any_known() && !stream.is_null() {
        // SAFETY: the program says that it is one.
        let fd = unsafe { libc::fileno(stream) };
        files::hand_back_descriptor(fd, "a stream was made of it");
        let _ = files::close(fd, || 0);
    }
}

/// Streams are left alone; but they show a file as the kernel has it.
fn opened_stream(stream: *mut FILE) -> *mut FILE {
    if !stream.is_null() && files::any_taken() {
        // SAFETY: it has just been opened.
        files::opened(unsafe { libc::fileno(stream) }, 0);
    }
    stream
}
