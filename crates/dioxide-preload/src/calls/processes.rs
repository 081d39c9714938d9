//! How processes come and go: before a child can have a file, or another program the descriptors, the kernel has them all.

use crate::files;
use crate::next::{Next, interpose};
use crate::process;
use crate::signals;
use libc::{FILE, c_char, c_int, c_long, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use std::arch::naked_asm;

/// What a child gets that is made to execute another program: the descriptors that are not closed by that.
fn inherited() {
    let is_inherited = |fd| {
        let flags = rustix::io::fcntl_getfd(files::borrowed(fd));
        flags.is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
    };
    if files::any_known() && !process::is_elsewhere() {
        files::hand_back_those("a child inherits it", is_inherited);
    }
}

fn all() {
    if files::any_known() && !process::is_elsewhere() {
        files::hand_back_those("a child may get it", |_| true);
    }
}

type Arguments = *const *mut c_char;

interpose! {
    |next| fn [system](command: *const c_char) -> c_int {
        inherited();
        next(command)
    }
    |next| fn [popen](command: *const c_char, mode: *const c_char) -> *mut FILE {
        inherited();
        next(command, mode)
    }
    |next| fn [posix_spawn, posix_spawnp](
        child: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: Arguments,
        environment: Arguments,
    ) -> c_int {
        // Actions may give it any descriptor.
        if actions.is_null() { inherited() } else { all() }
        next(child, path, actions, attributes, arguments, environment)
    }
    |next| fn [_Fork]() -> pid_t {
        process::before_raw_fork();
        next()
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
        if flags & libc::CLONE_THREAD == 0 {
            process::before_raw_fork();
        }
        next(function, stack, flags, argument, parent, thread, child)
    }
}

/// Defines functions that go on to the ones behind with all their arguments, however many, and leave no trace of having been
/// here: the first runs before.
macro_rules! pass_through {
    ($($before:path: $($name:ident),+;)*) => {$($(
        /// Stands before the function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn behind() -> *mut c_void {
                // SAFETY: only its address is used.
                static NEXT: Next<unsafe extern "C" fn()> = unsafe {
                    Next::new(match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    })
                };
                $before();
                NEXT.address()
            }
            pass_on!(behind)
        }
    )+)*};
}

/// Saves the registers that carry arguments, calls `$behind`, restores them and jumps to what that returned.
#[cfg(target_arch = "x86_64")]
macro_rules! pass_on {
    ($behind:ident) => {
        naked_asm!(
            "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
            "call {behind}",
            "mov r11, rax",
            "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
            "jmp r11",
            behind = sym behind,
        )
    };
}

/// Saves the registers that carry arguments, calls `$behind`, restores them and jumps to what that returned.
#[cfg(target_arch = "aarch64")]
macro_rules! pass_on {
    ($behind:ident) => {
        naked_asm!(
            "stp x29, x30, [sp, #-80]!",
            "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
            "bl {behind}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            "br x16",
            behind = sym behind,
        )
    };
}

pass_through! {
    process::before_exec: execve, execv, execvp, execvpe, execveat, fexecve, execl, execlp, execle;
    process::before_vfork: vfork;
    process::before_end: _exit, _Exit;
    signals::thread_ends: pthread_exit;
}
