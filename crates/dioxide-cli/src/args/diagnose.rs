//! `dioxide diagnose`: of a path, or of a running process.

use super::bench::{Durability, numjobs, rounds, runtime};
use super::output::Output;
use crate::sizes::Sizes;
use crate::units::parse_bytes;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
#[command(override_usage = "dioxide diagnose [OPTIONS] <PATH|--pid <PID>>")]
pub struct Diagnose {
    /// Directory for a scratch file, or block device, to run a workload on. A DEVICE'S CONTENTS ARE
    /// DESTROYED, and --overwrite-device must name it again.
    #[arg(value_name = "PATH", required_unless_present = "pid")]
    pub path: Option<PathBuf>,
    /// Observe this process and its children instead. They run undisturbed.
    #[arg(long, value_name = "PID", conflicts_with_all = ["path", "Workload"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=PID_MAX))]
    pub pid: Option<u32>,
    /// How long to observe it. Ends earlier when the process ends, or with Ctrl-C; the verdict then
    /// covers the time so far.
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = runtime)]
    #[arg(requires = "pid", conflicts_with = "path")]
    pub seconds: Duration,
    #[command(flatten)]
    pub workload: Workload,
    /// Do not use the kernel's tracepoints, which need root.
    #[arg(long)]
    pub no_trace: bool,
    /// With several workloads, show each curve as a table with its fitted law.
    #[arg(long, short)]
    pub verbose: bool,
    #[command(flatten)]
    pub output: Output,
}

/// The workload to run on a path.
#[derive(Args)]
pub struct Workload {
    /// Workloads [default: all that apply to the directory or device].
    #[arg(long, value_name = "RW", value_enum, value_delimiter = ',')]
    pub rw: Vec<Rw>,
    /// Numbers of threads: the steps of the curve. The largest step is observed. With fewer than
    /// six steps, the Universal Scalability Law is not fitted.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    #[arg(value_parser = numjobs())]
    pub numjobs: Vec<u32>,
    /// Bytes of one operation [default: 4k, and 64k for sync].
    #[arg(long, value_name = "BYTES", value_parser = Sizes::parse_block)]
    pub bs: Option<Sizes>,
    /// When a write counts as done. Those of sync are always stable.
    #[arg(long, value_enum, default_value_t)]
    pub durability: Durability,
    /// Time of each step in each round [default: 500ms for one workload, 200ms for several].
    #[arg(long, value_name = "TIME", value_parser = runtime)]
    pub runtime: Option<Duration>,
    /// Rounds; each runs every step once [default: as many as fit into a minute, at most 5, or 3
    /// for several workloads].
    #[arg(long, value_name = "N", value_parser = rounds())]
    pub rounds: Option<u32>,
    /// Largest size of the scratch file, or the used part of the device. [default: 1g for append
    /// and hole, 32m for overwrite and mixed, or a quarter of the available space, the smaller].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// The device again, to confirm that its contents may be destroyed.
    #[arg(long, value_name = "DEVICE")]
    pub overwrite_device: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Rw {
    /// Each write begins at the end of the file.
    Append,
    /// Writes over written blocks, in random order.
    Overwrite,
    /// Writes into a hole, in order: the file was extended without allocating space.
    Hole,
    /// Each thread rewrites a region of its own, durably.
    Sync,
    /// As many reads as writes, of written blocks, in random order.
    Mixed,
}

/// The largest value that the kernel can be configured for.
const PID_MAX: i64 = 1 << 22;
