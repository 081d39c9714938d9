//! Power cuts of workloads on a recording disk ([`dioxide_testkit::fuse_disk`]). For each power cut
//! the disk is replayed to its state at that moment. It is mounted, recovered, and compared with
//! the workload's marks up to then.
//!
//! - [`workload`]: the workloads, as functions of a file.
//! - [`shared`]: workloads of plain programs with one flush for many files.
//! - [`commits`]: forces commits of the journal between the steps of a growth.
//! - [`blocks`]: compares these files with their marks.
//! - [`write_ahead`]: logs of `dioxide-log`.
//! - [`parts`]: writes of parts of blocks.
//! - [`mark`]: a workload's marks.
//! - [`history`]: the records that must, may and must not survive a power cut.
//! - [`check`]: compares files with their history.
//! - [`recording`]: one run of a workload and its power cuts.
//! - [`campaign`]: many recordings.

pub mod blocks;
pub mod campaign;
pub mod check;
pub mod commits;
pub mod history;
pub mod mark;
pub mod parts;
pub mod recording;
pub mod shared;
pub mod workload;
pub mod write_ahead;

use dioxide_testkit::child::Scenario;

/// The scenarios that the `main` of a user of this crate must serve
/// ([`dioxide_testkit::serve_if_asked`]).
pub const SCENARIOS: &[Scenario] = &[(workload::SCENARIO, workload::play)];

/// The unit of records in bytes: no disk tears one.
pub const SECTOR: usize = 512;

/// Records are multiples of the append unit of all the file systems.
pub const BLOCK: usize = 4096;
