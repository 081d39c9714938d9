//! Opens: the kernel performs them, and the library registers the descriptors.

use crate::files;
use crate::next::interpose;
use crate::set_errno;
use crate::surroundings::key_of_path;
use libc::{FILE, c_char, c_int, mode_t};
use std::ffi::CStr;

/// Hands a taken file back before the program opens it again. Otherwise the process would wait for
/// its own lease. A block device has no lease.
fn before(dir: c_int, path: *const c_char, flags: c_int) {
    const NEW: c_int = libc::O_CREAT | libc::O_EXCL;
    let opens_none = flags & libc::O_PATH != 0 || flags & NEW == NEW;
    if files::any_taken() && !opens_none {
        hand_back(dir, path, flags);
    }
}

/// Hands back the file of a path. Returns whether it is known.
fn hand_back(dir: c_int, path: *const c_char, flags: c_int) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: by the contract of the call, a string that ends with a zero byte.
    let path = unsafe { CStr::from_ptr(path) };
    let key =
        key_of_path(dir, path, flags & libc::O_NOFOLLOW == 0).filter(|key| key.inode.is_some());
    let truncated = flags & libc::O_TRUNC != 0;
    files::hand_back_path(
        key,
        if truncated { "it was opened with O_TRUNC" } else { "it was opened again" },
    )
}

/// The most attempts of an open. Each repetition needs a take-over by another thread.
const ROUNDS_MAX: u32 = 100;

/// Opens a file by `kernel`. Without O_NONBLOCK the kernel waits for the end of a lease. With it
/// the kernel refuses the open, also after a take-over by another thread since `before`. The
/// program must not notice the library's lease, so this repeats the open. It returns a refusal for
/// the lease of another process on an unknown file.
fn open_by(dir: c_int, path: *const c_char, flags: c_int, kernel: impl Fn() -> c_int) -> c_int {
    before(dir, path, flags);
    let mut rounds = 0;
    let fd = loop {
        let handed_back = files::handed_back();
        let fd = kernel();
        rounds += 1;
        let is_refused = fd < 0
            && flags & libc::O_NONBLOCK != 0
            && files::any_known()
            && errno() == libc::EWOULDBLOCK
            && rounds < ROUNDS_MAX;
        if !is_refused {
            break fd;
        }
        // The lease may have ended with the last close of the file.
        if !hand_back(dir, path, flags) && files::handed_back() == handed_back {
            set_errno(libc::EWOULDBLOCK);
            break fd;
        }
    };
    if fd >= 0 {
        files::opened(fd, flags);
    }
    fd
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

interpose! {
    |next| fn [open, open64, __open, __open64](
        path: *const c_char,
        flags: c_int,
        mode: mode_t,
    ) -> c_int {
        open_by(libc::AT_FDCWD, path, flags, || next(path, flags, mode))
    }
    |next| fn [__open_2, __open64_2](path: *const c_char, flags: c_int) -> c_int {
        open_by(libc::AT_FDCWD, path, flags, || next(path, flags))
    }
    |next| fn [openat, openat64](
        dir: c_int,
        path: *const c_char,
        flags: c_int,
        mode: mode_t,
    ) -> c_int {
        open_by(dir, path, flags, || next(dir, path, flags, mode))
    }
    |next| fn [__openat_2, __openat64_2](dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_by(dir, path, flags, || next(dir, path, flags))
    }
    |next| fn [creat, creat64](path: *const c_char, mode: mode_t) -> c_int {
        open_by(libc::AT_FDCWD, path, CREAT, || next(path, mode))
    }
    |next| fn [fopen, fopen64](path: *const c_char, mode: *const c_char) -> *mut FILE {
        before(libc::AT_FDCWD, path, flags_of_mode(mode));
        opened_stream(next(path, mode))
    }
    |next| fn [freopen, freopen64](
        path: *const c_char,
        mode: *const c_char,
        stream: *mut FILE,
    ) -> *mut FILE {
        before(libc::AT_FDCWD, path, flags_of_mode(mode));
        // As in libc, a failed close is no failure.
        let _ = closed(stream);
        opened_stream(next(path, mode, stream))
    }
    |next| fn [fclose](stream: *mut FILE) -> c_int {
        let ended = closed(stream);
        let result = next(stream);
        match ended {
            Err(errno) => {
                set_errno(errno);
                libc::EOF
            }
            Ok(()) => result,
        }
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

/// Returns the open flags of a stream's mode that matter here.
fn flags_of_mode(mode: *const c_char) -> c_int {
    // SAFETY: by the contract of `fopen`, null or a string.
    let truncates = !mode.is_null() && unsafe { *mode } == b'w' as c_char;
    if truncates { CREAT } else { 0 }
}

/// Before libc closes the descriptor of a stream, unseen by the library. Fails if the engine did.
fn closed(stream: *mut FILE) -> Result<(), c_int> {
    if !files::any_known() || stream.is_null() {
        return Ok(());
    }
    // SAFETY: by the contract of `fclose`, an open stream.
    let fd = unsafe { libc::fileno(stream) };
    files::hand_back_descriptor(fd, "a stream was made of it");
    files::close(fd, || 0).map(drop)
}

/// Registers the open of a stream, which reads the kernel's state of a taken file.
fn opened_stream(stream: *mut FILE) -> *mut FILE {
    if !stream.is_null() && files::any_taken() {
        // SAFETY: the call has just opened it.
        files::opened(unsafe { libc::fileno(stream) }, 0);
    }
    stream
}
