//! What ends the process where nothing else is safe.

/// A broken rule inside the core leaves nobody who could answer the callers that wait, and their
/// memory may be in use by the kernel: the process ends rather than hang or guess.
pub(super) struct AbortOnPanic {
    /// The caller's own panic, from before, is none of ours.
    pub unwinding: bool,
}

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            std::process::abort();
        }
    }
}
