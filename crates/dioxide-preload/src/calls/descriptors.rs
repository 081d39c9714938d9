//! Descriptors: duplicated and closed, `fcntl`, and locks.

use crate::files;
use crate::lease::ABOUT_SIGNALS;
use crate::next::{Next, interpose};
use crate::process;
use crate::set_errno;
use crate::slots;
use crate::surroundings;
use libc::{c_int, c_long, c_uint};

/// Whether the library knows the number.
fn is_known(fd: c_int) -> bool {
    files::forget_lost(fd);
    slots::find(fd).is_some_and(|slot| !process::is_inside() && slot.is_known())
        && !process::is_elsewhere()
}

pub fn bad_number() -> c_int {
    set_errno(libc::EBADF);
    -1
}

/// Closes a number by `close`, the kernel's call, in a signal handler that may have interrupted the
/// engine. Later calls outside the handler then forget its file.
fn close_in_a_handler(fd: c_int, close: impl Fn() -> c_int) -> c_int {
    let lost = slots::find(fd).filter(|_| process::is_inside() && !process::is_elsewhere());
    if let Some(slot) = lost {
        slot.lose();
    }
    close()
}

/// Duplicates the descriptor `from` to the number `to` by `make`, the kernel's call.
fn dup_to(from: c_int, to: c_int, make: impl Fn() -> c_int) -> c_int {
    if from == to || from < 0 || !(is_known(from) || is_known(to)) {
        return if from == to || from < 0 { make() } else { close_in_a_handler(to, make) };
    }
    if files::is_engines(to) || files::is_engines(from) {
        return bad_number();
    }
    // The kernel closes nothing if `from` is not open.
    if rustix::io::fcntl_getfd(files::borrowed(from)).is_err() {
        return make();
    }
    // Another thread may use the number at any step of this.
    if rustix::io::fcntl_getfd(files::borrowed(to)).is_ok() {
        for fd in [from, to] {
            files::hand_back_descriptor(fd, "its descriptor replaces another one, or is replaced");
        }
    }
    files::duplicate(from, Some(to), make)
}

/// Closes the program's descriptors from `first` to `last` by `close`, the kernel's call. Spares
/// those of the engine.
fn close_all(first: c_int, last: c_int, close: impl Fn(c_int, c_int) -> c_int) -> c_int {
    let close_unknown = || {
        let known = slots::numbers_between(first, last);
        let mut next = first;
        for fd in &known {
            if next < *fd && close(next, fd - 1) != 0 {
                return None;
            }
            next = fd + 1;
        }
        let programs: Vec<_> = known.into_iter().filter(|fd| !files::is_engines(*fd)).collect();
        (next > last || close(next, last) == 0).then_some(programs)
    };
    let Some(programs) = files::while_numbers_stay(close_unknown) else { return -1 };
    for fd in programs {
        let _ = files::close(fd, || close(fd, fd));
    }
    0
}

/// Performs `close_range`, called by its name or by its number.
pub fn close_range_by(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    kernel: impl Fn(c_uint, c_uint, c_int) -> c_int,
) -> c_int {
    if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
        process::before_unshare(libc::CLONE_FILES);
    }
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
    if !closes || first > last || !files::any_known() || !process::is_own() {
        return kernel(first, last, flags);
    }
    let Ok(first) = c_int::try_from(first) else { return kernel(first, last, flags) };
    close_all(first, last_number(last), |first, last| {
        kernel(first as c_uint, last as c_uint, flags)
    })
}

/// Closes the numbers from `first` to `last`. A sandbox, or Linux before 5.9, has no `close_range`.
fn close_behind(first: c_int, last: c_int) -> c_int {
    type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    // SAFETY: this is the type of libc's function.
    static NEXT: Next<CloseRange> = unsafe { Next::new(c"close_range") };
    // SAFETY: the program closes these numbers.
    let by_range = |next: CloseRange| unsafe { next(first as c_uint, last as c_uint, 0) == 0 };
    if NEXT.find().is_some_and(by_range) {
        return 0;
    }
    // SAFETY: as above. The slots do not change here, so the kernel closes it at once.
    let close = |fd| unsafe { rustix::io::close(fd) };
    if first == last {
        close(first);
        return 0;
    }
    match surroundings::numbers() {
        Ok(open) => open.into_iter().filter(|fd| (first..=last).contains(fd)).for_each(close),
        // Without /proc, or without a free number to look at it.
        Err(_) => (first..=last.min(number_max())).for_each(close),
    }
    0
}

/// The largest number that this process can open.
fn number_max() -> c_int {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| c_int::try_from(limit).ok()).unwrap_or(c_int::MAX)
}

/// Limits a number to those that descriptors can have.
fn last_number(last: c_uint) -> c_int {
    c_int::try_from(last).unwrap_or(c_int::MAX)
}

/// Interposes `closefrom`, which glibc before 2.34 lacks.
///
/// # Safety
///
/// As for that function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    type CloseFrom = unsafe extern "C-unwind" fn(c_int);
    // SAFETY: this is the type of libc's function.
    static NEXT: Next<CloseFrom> = unsafe { Next::new(c"closefrom") };
    if files::any_known() && process::is_own() {
        close_all(first.max(0), c_int::MAX, close_behind);
        return;
    }
    match NEXT.find() {
        // SAFETY: libc's function has the contract of this one.
        Some(next) => unsafe { next(first) },
        None => _ = close_behind(first.max(0), c_int::MAX),
    }
}

interpose! {
    |next| fn [close, __close](fd: c_int) -> c_int {
        if !is_known(fd) {
            return close_in_a_handler(fd, || next(fd));
        }
        if files::is_engines(fd) {
            return bad_number();
        }
        files::close(fd, || next(fd)).unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        })
    }
    |next| fn [close_range](first: c_uint, last: c_uint, flags: c_int) -> c_int {
        close_range_by(first, last, flags, next)
    }
    |next| fn [dup](fd: c_int) -> c_int {
        match is_known(fd) {
            true if files::is_engines(fd) => bad_number(),
            true => files::duplicate(fd, None, || next(fd)),
            false => next(fd),
        }
    }
    |next| fn [dup2, __dup2](from: c_int, to: c_int) -> c_int {
        dup_to(from, to, || next(from, to))
    }
    |next| fn [dup3](from: c_int, to: c_int, flags: c_int) -> c_int {
        let kernel = || next(from, to, flags);
        // The kernel refuses other flags, and closes nothing then.
        if flags & !libc::O_CLOEXEC == 0 { dup_to(from, to, kernel) } else { kernel() }
    }
    |next| fn [fcntl, fcntl64, __fcntl](fd: c_int, command: c_int, argument: c_long) -> c_int {
        let kernel = || next(fd, command, argument);
        if !is_known(fd) {
            return kernel();
        }
        match command {
            // The threads of the engine ask for its lease.
            _ if files::is_engines(fd) && command != libc::F_GETLEASE => bad_number(),
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => files::duplicate(fd, None, kernel),
            libc::F_SETFL => {
                files::set_flags(fd, argument as c_int, |flags| next(fd, command, flags.into()))
            }
            libc::F_GETFL => files::flags_of(fd, kernel),
            // The engine's lock must not conflict with the program's. And a close of the engine's
            // descriptor would release the program's locks.
            libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK
            | libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK
            | libc::F_SETLEASE | libc::F_GETLEASE => {
                files::hand_back_descriptor(fd, "the program locks it");
                kernel()
            }
            // The lease uses the owner and the signal of the description.
            about if ABOUT_SIGNALS.contains(&about) => {
                files::hand_back_descriptor(fd, "the program asks for its signals");
                kernel()
            }
            _ => kernel(),
        }
    }
    |next| fn [lockf, lockf64](fd: c_int, command: c_int, len: libc::off64_t) -> c_int {
        files::hand_back_descriptor(fd, "the program locks it");
        next(fd, command, len)
    }
}
