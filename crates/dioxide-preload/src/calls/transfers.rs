//! Reads, writes and seeks.

use crate::next::interpose;
use crate::transfer::{self, Place, piece, pieces};
use libc::{c_int, c_void, iovec, off64_t, size_t, ssize_t};

/// Returns the segments of a call.
fn named<'a>(at: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    // SAFETY: by the contract of the call, `at` points to `count` segments.
    unsafe { pieces(at, count) }
}

/// In the calls with flags, the offset -1 means the position.
fn place_or_position(offset: off64_t) -> Option<Place> {
    if offset == -1 { Some(Place::Position) } else { Place::at(offset) }
}

interpose! {
    |next| fn [write, __write](fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        transfer::write(fd, &piece(from, len), Place::Position, 0, || next(fd, from, len))
    }
    |next| fn [pwrite, pwrite64, __pwrite64](
        fd: c_int,
        from: *const c_void,
        len: size_t,
        offset: off64_t,
    ) -> ssize_t {
        let kernel = || next(fd, from, len, offset);
        let Some(place) = Place::at(offset) else { return kernel() };
        transfer::write(fd, &piece(from, len), place, 0, kernel)
    }
    |next| fn [writev](fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
        let kernel = || next(fd, from, count);
        let Some(data) = named(from, count) else { return kernel() };
        transfer::write(fd, data, Place::Position, 0, kernel)
    }
    |next| fn [pwritev, pwritev64](
        fd: c_int,
        from: *const iovec,
        count: c_int,
        offset: off64_t,
    ) -> ssize_t {
        let kernel = || next(fd, from, count, offset);
        let Some(data) = named(from, count) else { return kernel() };
        let Some(place) = Place::at(offset) else { return kernel() };
        transfer::write(fd, data, place, 0, kernel)
    }
    |next| fn [pwritev2, pwritev64v2](
        fd: c_int,
        from: *const iovec,
        count: c_int,
        offset: off64_t,
        flags: c_int,
    ) -> ssize_t {
        let kernel = || next(fd, from, count, offset, flags);
        let Some(data) = named(from, count) else { return kernel() };
        let Some(place) = place_or_position(offset) else { return kernel() };
        transfer::write(fd, data, place, flags, kernel)
    }
    |next| fn [read, __read](fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
        transfer::read(fd, &piece(into, len), Place::Position, 0, || next(fd, into, len))
    }
    |next| fn [__read_chk](fd: c_int, into: *mut c_void, len: size_t, space: size_t) -> ssize_t {
        let kernel = || next(fd, into, len, space);
        if len > space {
            return kernel();
        }
        transfer::read(fd, &piece(into, len), Place::Position, 0, kernel)
    }
    |next| fn [pread, pread64, __pread64](
        fd: c_int,
        into: *mut c_void,
        len: size_t,
        offset: off64_t,
    ) -> ssize_t {
        let kernel = || next(fd, into, len, offset);
        let Some(place) = Place::at(offset) else { return kernel() };
        transfer::read(fd, &piece(into, len), place, 0, kernel)
    }
    |next| fn [__pread_chk, __pread64_chk](
        fd: c_int,
        into: *mut c_void,
        len: size_t,
        offset: off64_t,
        space: size_t,
    ) -> ssize_t {
        let kernel = || next(fd, into, len, offset, space);
        let Some(place) = Place::at(offset).filter(|_| len <= space) else { return kernel() };
        transfer::read(fd, &piece(into, len), place, 0, kernel)
    }
    |next| fn [readv](fd: c_int, into: *const iovec, count: c_int) -> ssize_t {
        let kernel = || next(fd, into, count);
        let Some(data) = named(into, count) else { return kernel() };
        transfer::read(fd, data, Place::Position, 0, kernel)
    }
    |next| fn [preadv, preadv64](
        fd: c_int,
        into: *const iovec,
        count: c_int,
        offset: off64_t,
    ) -> ssize_t {
        let kernel = || next(fd, into, count, offset);
        let Some(data) = named(into, count) else { return kernel() };
        let Some(place) = Place::at(offset) else { return kernel() };
        transfer::read(fd, data, place, 0, kernel)
    }
    |next| fn [preadv2, preadv64v2](
        fd: c_int,
        into: *const iovec,
        count: c_int,
        offset: off64_t,
        flags: c_int,
    ) -> ssize_t {
        let kernel = || next(fd, into, count, offset, flags);
        let Some(data) = named(into, count) else { return kernel() };
        let Some(place) = place_or_position(offset) else { return kernel() };
        transfer::read(fd, data, place, flags, kernel)
    }
    |next| fn [lseek, lseek64, __lseek, llseek](
        fd: c_int,
        offset: off64_t,
        whence: c_int,
    ) -> off64_t {
        transfer::seek(fd, offset, whence, || next(fd, offset, whence))
    }
}
