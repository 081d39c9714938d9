//! Making stable. Only `fdatasync` of a file that the engine has is the engine's; all else is the
//! kernel's, in the ledger of flushes.

use crate::flushes::{self, Effect, How};
use crate::next::interpose;
use crate::transfer;
use libc::{c_int, c_uint, c_void, off64_t, size_t};

interpose! {
    |next| fn [fdatasync](fd: c_int) -> c_int {
        transfer::sync_data(fd, || next(fd))
    }
    // Time stamps and rights too, which only the kernel knows.
    |next| fn [fsync](fd: c_int) -> c_int {
        transfer::sync_by_kernel(fd, || next(fd))
    }
    |next| fn [syncfs](fd: c_int) -> c_int {
        transfer::sync_by_kernel(fd, || next(fd))
    }
    // It flushes no disk.
    |next| fn [sync_file_range](fd: c_int, offset: off64_t, len: off64_t, flags: c_uint) -> c_int {
        How::of(fd, Effect::FlushUnseen).perform(|| next(fd, offset, len, flags) as isize) as c_int
    }
    |next| fn [sync]() -> () {
        flushes::before_sync_of_all();
        next()
    }
    |next| fn [msync](start: *mut c_void, len: size_t, flags: c_int) -> c_int {
        let kernel = || next(start, len, flags);
        if flags & libc::MS_SYNC == 0 { kernel() } else { flushes::sync_mapping(start.addr(), len, kernel) }
    }
}
