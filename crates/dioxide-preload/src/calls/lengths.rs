//! The length of a file: `stat`, `truncate`, `fallocate`.

use crate::files::{self, Key};
use crate::next::interpose;
use crate::surroundings::key_of_path;
use crate::transfer;
use libc::{c_char, c_int, c_uint, off64_t};
use libc::{stat as Stat, statx as Statx};
use std::ffi::CStr;

/// Performs a `stat` with the program's length, because the kernel's includes growth.
fn with_len(into: *mut Stat, kernel: impl Fn() -> c_int) -> c_int {
    files::ask(kernel, || {
        // SAFETY: the call succeeded, so `into` is valid.
        let stat = unsafe { &mut *into };
        let key = Key { dev: stat.st_dev, inode: Some(stat.st_ino) };
        if let Some(len) =
            files::len_of(key).filter(|_| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
        {
            stat.st_size = len as i64;
        }
    })
}

interpose! {
    |next| fn [fstat, fstat64](fd: c_int, into: *mut Stat) -> c_int {
        with_len(into, || next(fd, into))
    }
    |next| fn [stat, stat64, lstat, lstat64](path: *const c_char, into: *mut Stat) -> c_int {
        with_len(into, || next(path, into))
    }
    |next| fn [fstatat, fstatat64](
        dir: c_int,
        path: *const c_char,
        into: *mut Stat,
        flags: c_int,
    ) -> c_int {
        with_len(into, || next(dir, path, into, flags))
    }
    // Programs linked with a glibc before 2.33 call these.
    |next| fn [__fxstat, __fxstat64](version: c_int, fd: c_int, into: *mut Stat) -> c_int {
        with_len(into, || next(version, fd, into))
    }
    |next| fn [__xstat, __xstat64, __lxstat, __lxstat64](
        version: c_int,
        path: *const c_char,
        into: *mut Stat,
    ) -> c_int {
        with_len(into, || next(version, path, into))
    }
    |next| fn [__fxstatat, __fxstatat64](
        version: c_int,
        dir: c_int,
        path: *const c_char,
        into: *mut Stat,
        flags: c_int,
    ) -> c_int {
        with_len(into, || next(version, dir, path, into, flags))
    }
    |next| fn [statx](
        dir: c_int,
        path: *const c_char,
        flags: c_int,
        mask: c_uint,
        into: *mut Statx,
    ) -> c_int {
        files::ask(|| next(dir, path, flags, mask, into), || {
            // SAFETY: the call succeeded, so `into` is valid.
            let statx = unsafe { &mut *into };
            let dev = rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor);
            let key = Key { dev, inode: Some(statx.stx_ino) };
            let is_file = c_uint::from(statx.stx_mode) & libc::S_IFMT == libc::S_IFREG;
            if let Some(len) = files::len_of(key).filter(|_| is_file) {
                statx.stx_size = len;
            }
        })
    }
    |next| fn [ftruncate, ftruncate64](fd: c_int, len: off64_t) -> c_int {
        transfer::set_len(fd, len, || next(fd, len))
    }
    |next| fn [truncate, truncate64](path: *const c_char, len: off64_t) -> c_int {
        if files::any_taken() && !path.is_null() {
            // SAFETY: by the contract of `truncate`, a string that ends with a zero byte.
            let path = unsafe { CStr::from_ptr(path) };
            let key = key_of_path(libc::AT_FDCWD, path, true);
            files::hand_back_path(key, "it was truncated by its path");
        }
        next(path, len)
    }
    |next| fn [fallocate, fallocate64](
        fd: c_int,
        mode: c_int,
        offset: off64_t,
        len: off64_t,
    ) -> c_int {
        files::hand_back_descriptor(fd, "fallocate");
        next(fd, mode, offset, len)
    }
    |next| fn [posix_fallocate, posix_fallocate64](
        fd: c_int,
        offset: off64_t,
        len: off64_t,
    ) -> c_int {
        files::hand_back_descriptor(fd, "fallocate");
        next(fd, offset, len)
    }
}
