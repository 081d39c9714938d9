//! A conformance suite for media of logs, for authors of a [`Storage`].
//!
//! ```
//! use dioxide_log::storage::{Storage, memory::Memory};
//! use dioxide_log::suite::{self, Medium};
//! use std::sync::Arc;
//!
//! struct Mine(Memory);
//!
//! impl Medium for Mine {
//!     fn open(&self) -> dioxide_log::Result<Arc<dyn Storage>> {
//!         Ok(Arc::new(self.0.clone()))
//!     }
//! }
//!
//! suite::run(|| Mine(Memory::default())).unwrap();
//! ```

mod failing;
mod programs;
mod rules;

use crate::error::Result;
use crate::storage::Storage;
use std::fmt;
use std::sync::Arc;

/// A medium under test. It begins empty.
pub trait Medium {
    /// Opens the medium for its one writer, as a new process does. Storages that were opened before
    /// are dropped then.
    ///
    /// # Errors
    ///
    /// The medium's error.
    fn open(&self) -> Result<Arc<dyn Storage>>;

    /// The power fails. Writes that are not stable may be lost, whole or by sectors of 512 bytes,
    /// as the seed decides. Returns false if the medium cannot lose them. Then processes are killed
    /// where the power would fail.
    fn cut_power(&self, _seed: u64) -> bool {
        false
    }
}

/// A rule that a medium breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The rule.
    pub rule: &'static str,
    /// What happened.
    pub reason: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken: {}: {}", self.rule, self.reason)
    }
}

impl std::error::Error for Broken {}

/// How much the suite does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The number of random programs. Each has some lives of a log.
    pub programs: u64,
    /// The seed of the first program.
    pub seed: u64,
    /// The size of the segments. For a fixed medium, that which makes at least 8 of them.
    pub segment_bytes: u64,
}

impl Default for Extent {
    fn default() -> Self {
        Self { programs: 100, seed: 0, segment_bytes: 64 << 10 }
    }
}

/// Checks the rules of [`Storage`] and [`Segment`](crate::storage::Segment), and then logs on the
/// medium: programs of appends and truncations, which crash in any call. `empty` makes a medium
/// that no other one shares.
///
/// # Errors
///
/// The first rule that the medium breaks.
pub fn run<M: Medium>(empty: impl Fn() -> M) -> std::result::Result<(), Broken> {
    run_with(Extent::default(), empty)
}

/// As [`run`], with another extent.
///
/// # Errors
///
/// As [`run`].
pub fn run_with<M: Medium>(
    extent: Extent,
    empty: impl Fn() -> M,
) -> std::result::Result<(), Broken> {
    for (rule, check) in rules::RULES {
        check(&empty(), extent.segment_bytes).map_err(|reason| Broken { rule, reason })?;
    }
    let last = extent.seed + extent.programs;
    (extent.seed..last).try_for_each(|seed| play(&empty(), seed, extent.segment_bytes))
}

/// Plays one program of a log on an empty medium: appends and truncations over several lives. Each
/// life ends in any call, with a kill or a power cut.
///
/// # Errors
///
/// The log lost records, or showed others.
pub fn play(medium: &dyn Medium, seed: u64, segment_bytes: u64) -> std::result::Result<(), Broken> {
    programs::play(medium, seed, segment_bytes).map_err(|reason| Broken {
        rule: "a log loses nothing acknowledged, and shows nothing else",
        reason: format!("seed {seed}: {reason}"),
    })
}
