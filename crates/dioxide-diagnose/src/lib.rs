//! Shows why direct I/O does not scale: samples a program's threads, and judges the samples.
//!
//! Sampling and judging are separate. [`watch`] gathers [`evidence`], which can be saved, and read
//! again on another machine. [`judge`] derives each [`finding`] from it, [`waits`] the wait table,
//! [`usl`] the scaling.
//!
//! # The life of a verdict
//!
//! `dioxide diagnose --pid 4711` observes a program that was not prepared for it.
//!
//! 1. [`watch::Watcher`] samples the threads. For a call that reads or writes, `watch/calls.rs`
//!    finds the file, the offset and the length. `watch/files.rs` has the length of the file in the
//!    sample before. So it is known whether a waiting write moves the end. `watch/queues.rs` reads
//!    twice how often waiting and flushing threads have run, and `watch/stacks` their functions. So
//!    it is known who waits for whom.
//! 2. With root, `watch/trace` adds the time of each lock wait and the direct writes. Its tracefs
//!    instance ends with the watcher. The next watcher removes the instance of a killed one.
//! 3. `watch/tally.rs` counts equal samples. The sum is [`evidence::Evidence`]. All later steps are
//!    pure, and are tested on evidence that was recorded on ext4, XFS, btrfs and devices.
//! 4. [`channels`] has the meaning of kernel functions, and [`waits`] decides which samples are
//!    time in I/O.
//! 5. [`judge`] has a file for each bottleneck. For the lock of an inode, `judge/cause.rs` finds
//!    the reason why it is exclusive. It prefers the wait itself, then traced writes, then sampled
//!    calls, then changes of the file's size.
//! 6. For a path, the bench runs the work with several numbers of threads, unobserved. Then it
//!    repeats the largest step under observation. [`usl`] fits the curve, and needs six.

pub mod activity;
pub mod channels;
pub mod contenders;
pub mod evidence;
pub mod finding;
mod followers;
pub mod host;
pub mod judge;
pub mod select;
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
