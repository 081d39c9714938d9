//! Shows why direct I/O does not scale: samples a program's threads, and judges the samples.
//!
//! Sampling and judging are separate. [`watch`] gathers [`evidence`], which can be saved, and read
//! again on another machine. [`judge`] derives each [`finding`] from it, [`waits`] the wait table,
//! [`usl`] the scaling.

pub mod channels;
pub mod evidence;
pub mod finding;
pub mod host;
pub mod judge;
pub mod usl;
pub mod waits;
pub mod watch;
pub mod words;

/// The parsers of untrusted text, for fuzzing.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    use crate::watch;

    /// The text of `/proc` and tracefs about a thread. It contains names chosen by programs.
    pub fn kernel_text(text: &[u8]) {
        watch::parse(text);
    }
}
