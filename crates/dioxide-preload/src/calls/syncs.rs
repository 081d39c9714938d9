//! Making stable. `sync`, `syncfs` and `sync_file_range` are the kernel's as they are: whatever a write has been acknowledged
//! for is the kernel's already.

use crate::next::interpose;
use crate::transfer;
use libc::c_int;

interpose! {
    |next| fn [fdatasync](fd: c_int) -> c_int {
        transfer::sync_data(fd, || next(fd))
    }
    // Time stamps and rights too, which only the kernel knows.
    |next| fn [fsync](fd: c_int) -> c_int {
        if transfer::failed_before(fd) { -1 } else { next(fd) }
    }
}
