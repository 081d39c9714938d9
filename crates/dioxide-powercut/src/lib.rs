//! Power cuts: workloads on a recording disk ([`dioxide_testkit::fuse_disk`]), which afterwards becomes, once for each
//! cut, what the power going just then would have left. That is mounted, recovered, and held against what the workload
//! had marked by then.
//!
//! - [`workload`]: what is done to the files, as functions of a file.
//! - [`mark`]: what a workload says of what it does.
//! - [`history`]: what must, may and must not be found after a cut.
//! - [`check`]: what is found.
//! - [`recording`]: one run of a workload and its cuts.
//! - [`campaign`]: many of them.

pub mod campaign;
pub mod check;
pub mod history;
pub mod mark;
pub mod recording;
pub mod workload;

use dioxide_testkit::child::Scenario;

/// What the main of whoever uses this crate must be able to serve as
/// ([`dioxide_testkit::serve_if_asked`]).
pub const SCENARIOS: &[Scenario] = &[(workload::SCENARIO, workload::play)];

/// The units of which records consist: no disk tears one.
pub const SECTOR: usize = 512;

/// Records are multiples of the append unit of all the file systems.
pub const BLOCK: usize = 4096;
