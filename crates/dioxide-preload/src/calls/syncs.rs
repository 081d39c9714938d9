//! Syncs. The engine performs `fdatasync` of a taken file. The kernel performs all others, in the
//! ledger of flushes.

use crate::flushes::{self, Effect, How};
use crate::next::interpose;
use crate::transfer;
use libc::{c_int, c_uint, c_void, off64_t, size_t};

interpose! {
    |next| fn [fdatasync](fd: c_int) -> c_int {
        transfer::sync_data(fd, || next(fd))
    }
    // By the kernel, because it also makes time stamps and rights durable.
    |next| fn [fsync](fd: c_int) -> c_int {
        transfer::sync_by_kernel(fd, || next(fd))
    }
    |next| fn [syncfs](fd: c_int) -> c_int {
        transfer::sync_by_kernel(fd, || next(fd))
    }
    // It flushes no device.
    |next| fn [sync_file_range](fd: c_int, offset: off64_t, len: off64_t, flags: c_uint) -> c_int {
        How::of(fd, Effect::FlushUnseen).perform(|| next(fd, offset, len, flags) as isize) as c_int
    }
    |next| fn [sync]() -> () {
        flushes::before_sync_of_all();
        next()
    }
    |next| fn [msync](start: *mut c_void, len: size_t, flags: c_int) -> c_int {
        let kernel = || next(start, len, flags);
        match flags & libc::MS_SYNC {
            0 => kernel(),
            _ => flushes::sync_mapping(start.addr(), len, kernel),
        }
    }
}
