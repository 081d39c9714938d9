//! Runs code in a forked child of the test's own process, with the state that it inherits.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

/// No child takes that long, also on a busy machine. It holds the files of all trials, so it ends
/// before these lose their patience.
const LIMIT_SECONDS: u32 = 50;

/// Whether `work` holds in a forked child, which then ends without running destructors.
pub fn holds_in_a_fork(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `work` and _exit. Such tests check exactly its use of inherited
    // memory and locks. An alarm ends the child if it hangs.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            // SAFETY: an alarm has no preconditions.
            unsafe { libc::alarm(LIMIT_SECONDS) };
            let held = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!held)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(waited, pid, "waitpid: {}", io::Error::last_os_error());
            let status = ExitStatus::from_raw(status);
            if !status.success() {
                // An alarm is a child that hangs.
                eprintln!("the forked child ended with {status}");
            }
            status.success()
        }
    }
}

/// Whether `work` holds in a forked child whose first thread has ended. Then /proc/self shows no
/// mounts and no descriptors.
pub fn holds_without_first_thread(work: fn() -> bool) -> bool {
    holds_in_a_fork(|| {
        std::thread::spawn(move || {
            while std::fs::read("/proc/self/mountinfo").is_ok() {
                std::thread::yield_now();
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!work())) }
        });
        // SAFETY: ends only this thread, without unwinding. The code counts if `work` panics.
        unsafe { libc::syscall(libc::SYS_exit, 1) };
        false
    })
}
