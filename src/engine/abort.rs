//! Aborts the process where no error return is safe.

/// Aborts the process if a panic unwinds through it: of a broken invariant, or of the program's
/// logger. Other threads would wait for ever for this one. The core and the kernel may still use
/// the memory of its caller.
#[must_use = "it protects until it is dropped"]
pub(super) struct AbortOnPanic {
    /// The thread unwinds already: that panic is the caller's own.
    unwinding: bool,
}

impl AbortOnPanic {
    /// Protects from here to the end of the scope.
    pub fn armed() -> Self {
        Self { unwinding: std::thread::panicking() }
    }
}

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            std::process::abort();
        }
    }
}
