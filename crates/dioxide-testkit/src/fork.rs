//! Runs code in a forked child of the test's own process, with the state that it inherits.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether `work` holds in a forked child, which then ends without running destructors.
pub fn holds_in_a_fork(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `work` and _exit. Such tests check exactly its use of inherited
    // memory and locks. An alarm ends the child if it hangs.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: an alarm has no preconditions.
            unsafe { libc::alarm(20) };
            let held = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!held)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
            waited == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}
