//! The length of a file: told, and set.

use crate::files::{self, Key};
use crate::next::interpose;
use crate::surroundings::key_of_path;
use crate::transfer;
use libc::{c_char, c_int, c_uint, off64_t};
use libc::{stat as Stat, statx as Statx};
use std::ffi::CStr;

/// The kernel knows the length of what was grown; the program is told that of what it wrote.
fn told(into: *mut Stat, kernel: impl Fn() -> c_int) -> c_int {
    files::ask(kernel, || {
        // SAFETY: the kernel has filled it.
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
        told(into, || next(fd, into))
    }
    |next| fn [stat, stat64, lstat, lstat64](path: *const c_char, into: *mut Stat) -> c_int {
        told(into, || next(path, into))
    }
    |next| fn [fstatat, fstatat64](dir: c_int, path: *const c_char, into: *mut Stat, flags: c_int) -> c_int {
        told(into, || next(dir, path, into, flags))
    }
    // What programs call that were linked with a glibc before 2.33.
    |next| fn [__fxstat, __fxstat64](version: c_int, fd: c_int, into: *mut Stat) -> c_int {
        told(into, || next(version, fd, into))
    }
    |next| fn [__xstat, __xstat64, __lxstat, __lxstat64](
        version: c_int,
        path: *const c_char,
        into: *mut Stat,
    ) -> c_int {
        told(into, || next(version, path, into))
    }
    |next| fn [__fxstatat, __fxstatat64](
        version: c_int,
        dir: c_int,
        path: *const c_char,
        into: *mut Stat,
        flags: c_int,
    ) -> c_int {
        told(into, || next(version, dir, path, into, flags))
    }
    |next| fn [statx](dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut Statx) -> c_int {
        files::ask(|| next(dir, path, flags, mask, into), || {
            // SAFETY: the kernel has filled it.
            let statx = unsafe { &mut *into };
            let dev = rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor);
            let is_file = c_uint::from(statx.stx_mode) & libc::S_IFMT == libc::S_IFREG;
            if let Some(len) = files::len_of(Key { dev, inode: Some(statx.stx_ino) }).filter(|_| is_file) {
                statx.stx_size = len;
            }
        })
    }
    |next| fn [ftruncate, ftruncate64](fd: c_int, len: off64_t) -> c_int {
        transfer::set_len(fd, len, || next(fd, len))
    }
    |next| fn [truncate, truncate64](path: *const c_char, len: off64_t) -> c_int {
        if files::any_taken() && !path.is_null() {
            // SAFETY: the program says that it is a path.
            let path = unsafe { CStr::from_ptr(path) };
            files::hand_back_path(key_of_path(libc::AT_FDCWD, path, true), "it was truncated by \
                its path");
        }
        next(path, len)
    }
    |next| fn [fallocate, fallocate64](fd: c_int, mode: c_int, offset: off64_t, len: off64_t) -> c_int {
        files::hand_back_descriptor(fd, "fallocate");
        next(fd, mode, offset, len)
    }
    |next| fn [posix_fallocate, posix_fallocate64](fd: c_int, offset: off64_t, len: off64_t) -> c_int {
        files::hand_back_descriptor(fd, "fallocate");
        next(fd, offset, len)
    }
}
