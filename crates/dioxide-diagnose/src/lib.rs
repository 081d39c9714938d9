//! Why direct I/O does not scale: what is seen of a program's threads, and what follows from it.
//!
//! Seeing and judging are apart. [`evidence`] is what was seen, and nothing in it is an opinion; it can be written down, and
//! read again on another machine; [`watch`] gathers it. [`finding`] is what follows: [`judge`] says which walls there are,
//! [`waits`] where the time goes, [`usl`] how it scales.

pub mod channels;
pub mod evidence;
pub mod finding;
pub mod host;
pub mod judge;
pub mod usl;
pub mod waits;
pub mod watch;
pub mod words;

/// What reads text from outside, for fuzzing.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    use crate::watch;

    /// What `/proc` and tracefs say of a thread. The names in it come from programs.
    pub fn kernel_text(text: &[u8]) {
        watch::parse(text);
    }
}
