//! Aborts the process where no error return is safe.

/// Aborts the process if a panic unwinds through it. A broken invariant in the core leaves callers
/// without an answer, and the kernel may still use their memory.
pub(super) struct AbortOnPanic {
    /// The thread unwinds already: that panic is the caller's own.
    pub unwinding: bool,
}

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            std::process::abort();
        }
    }
}
