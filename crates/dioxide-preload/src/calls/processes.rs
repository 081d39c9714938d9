//! Fork, exec and exit: a file goes back to the kernel before a child or another program gets it.

use crate::files;
use crate::keeper;
use crate::next::{Missing, Next, c_name, interpose};
use crate::process;
use libc::{
    FILE, c_char, c_int, c_long, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t,
};
use std::arch::naked_asm;

/// Hands back the files whose descriptors stay open across exec.
fn inherited() {
    let is_inherited = |fd| {
        let flags = rustix::io::fcntl_getfd(files::borrowed(fd));
        flags.is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
    };
    if files::any_known() && !process::is_elsewhere() {
        files::hand_back_those("a child inherits it", is_inherited);
    }
}

/// Hands back all files.
fn all() {
    if files::any_known() && !process::is_elsewhere() {
        files::hand_back_those("a child may get it", |_| true);
    }
}

/// Before a walk through directories, which reports the lengths of the kernel.
fn walk() {
    if files::any_taken() {
        files::hand_back_those("the program walks through directories", |_| true);
    }
}

/// Before libc writes to the descriptor, unseen by the library.
fn prints(fd: c_int) {
    files::hand_back_descriptor(fd, "libc prints to it");
}

type Arguments = *const *mut c_char;

/// The result of `posix_spawn`: 0 or an errno.
#[repr(transparent)]
pub struct Spawned(c_int);

/// `pidfd_spawn` is missing before glibc 2.39.
impl Missing for Spawned {
    fn missing() -> Self {
        Self(libc::ENOSYS)
    }
}

interpose! {
    |next| fn [system](command: *const c_char) -> c_int {
        inherited();
        next(command)
    }
    |next| fn [popen](command: *const c_char, mode: *const c_char) -> *mut FILE {
        inherited();
        next(command, mode)
    }
    |next| fn [posix_spawn, posix_spawnp, pidfd_spawn, pidfd_spawnp](
        child: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: Arguments,
        environment: Arguments,
    ) -> Spawned {
        // File actions may give any descriptor to the child.
        if actions.is_null() { inherited() } else { all() }
        next(child, path, actions, attributes, arguments, environment)
    }
    |next| fn [unshare](kinds: c_int) -> c_int {
        process::before_unshare(kinds);
        next(kinds)
    }
    |next| fn [_Fork]() -> pid_t {
        process::raw_fork(next)
    }
    |next| fn [wordexp](words: *const c_char, result: *mut c_void, flags: c_int) -> c_int {
        inherited();
        next(words, result, flags)
    }
    |next| fn [clone](
        function: *mut c_void,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent: c_long,
        thread: c_long,
        child: c_long,
    ) -> c_int {
        let _still = process::before_clone(flags);
        next(function, stack, flags, argument, parent, thread, child)
    }
}

/// Calls exec by `next`, which returns only after a failure.
fn execute(next: impl FnOnce() -> c_int) -> c_int {
    process::before_exec(true);
    let failed = next();
    process::after_failed_exec();
    failed
}

interpose! {
    |next| fn [execve, execvpe](
        path: *const c_char,
        arguments: Arguments,
        environment: Arguments,
    ) -> c_int {
        execute(|| next(path, arguments, environment))
    }
    |next| fn [execv, execvp](path: *const c_char, arguments: Arguments) -> c_int {
        execute(|| next(path, arguments))
    }
    |next| fn [fexecve](fd: c_int, arguments: Arguments, environment: Arguments) -> c_int {
        execute(|| next(fd, arguments, environment))
    }
    |next| fn [execveat](
        dir: c_int,
        path: *const c_char,
        arguments: Arguments,
        environment: Arguments,
        flags: c_int,
    ) -> c_int {
        execute(|| next(dir, path, arguments, environment, flags))
    }
}

/// Defines functions that jump to those behind with all arguments and an unchanged stack. The
/// expression before the names runs first, with the first argument.
macro_rules! pass_through {
    ($($before:expr => $($name:ident),+;)*) => {$($(
        /// Interposes the function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn behind(first: c_long) -> *mut c_void {
                // SAFETY: this function uses only the address.
                static NEXT: Next<unsafe extern "C" fn()> = unsafe { Next::new(c_name!($name)) };
                let before: fn(c_long) = $before;
                before(first);
                NEXT.address()
            }
            pass_on!(behind)
        }
    )+)*};
}

/// Saves the argument registers, calls `$behind`, restores them, and jumps to the returned address.
#[cfg(target_arch = "x86_64")]
macro_rules! pass_on {
    ($behind:ident) => {
        naked_asm!(
            "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
            "sub rsp, 128",
            "movups [rsp], xmm0", "movups [rsp + 16], xmm1",
            "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
            "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5",
            "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
            "call {behind}",
            "mov r11, rax",
            "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]",
            "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
            "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]",
            "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
            "add rsp, 128",
            "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
            "jmp r11",
            behind = sym behind,
        )
    };
}

/// Saves the argument registers, calls `$behind`, restores them, and jumps to the returned address.
#[cfg(target_arch = "aarch64")]
macro_rules! pass_on {
    ($behind:ident) => {
        naked_asm!(
            "stp x29, x30, [sp, #-208]!",
            "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
            "stp q0, q1, [sp, #80]", "stp q2, q3, [sp, #112]",
            "stp q4, q5, [sp, #144]", "stp q6, q7, [sp, #176]",
            "bl {behind}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
            "ldp q0, q1, [sp, #80]", "ldp q2, q3, [sp, #112]",
            "ldp q4, q5, [sp, #144]", "ldp q6, q7, [sp, #176]",
            "ldp x29, x30, [sp], #208",
            "br x16",
            behind = sym behind,
        )
    };
}

pass_through! {
    |_| process::before_exec(false) => execl, execlp, execle;
    |_| process::before_vfork() => vfork, __vfork;
    |_| process::before_raw_end() => _exit, _Exit;
    |_| keeper::thread_ends() => pthread_exit, thrd_exit;
    |_| walk() => ftw, ftw64, nftw, nftw64, fts_open, fts64_open;
    |fd| prints(fd as c_int) => dprintf, vdprintf, __dprintf_chk, __vdprintf_chk;
}
