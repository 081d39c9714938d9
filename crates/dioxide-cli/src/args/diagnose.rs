//! `dioxide diagnose`: of a path, or of a running process.

use super::bench::{Durability, numjobs, rounds, runtime};
use super::output::Output;
use crate::sizes::Sizes;
use crate::units::parse_bytes;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
#[command(
    override_usage = "dioxide diagnose [OPTIONS] <PATH|--pid <PID>|--name <COMM>|--cgroup <PATH>|\
                      --unit <NAME>>"
)]
pub struct Diagnose {
    /// Directory for a scratch file, or block device, to run a workload on. A DEVICE'S CONTENTS ARE
    /// DESTROYED, and --overwrite-device must name it again.
    #[arg(value_name = "PATH", required_unless_present = "Observed")]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub observed: Observed,
    /// How long to observe. Ends earlier when the processes end, or with Ctrl-C; the verdict then
    /// covers the time so far.
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = runtime)]
    #[arg(requires = "Observed", conflicts_with = "path")]
    pub seconds: Duration,
    /// Also show what changed since this earlier observation, which --json wrote.
    #[arg(long, value_name = "BEFORE.json", value_hint = ValueHint::FilePath)]
    #[arg(requires = "Observed")]
    pub compare: Option<PathBuf>,
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

/// The processes to observe. With several options, all that match any of them.
#[derive(Args)]
#[group(multiple = true, conflicts_with_all = ["path", "Workload"])]
pub struct Observed {
    /// Observe this process and its children instead. They run undisturbed. Several are allowed.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=PID_MAX))]
    pub pid: Vec<u32>,
    /// Observe the processes of this name, as `ps -o comm` shows it.
    #[arg(long, value_name = "COMM", value_delimiter = ',')]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub name: Vec<String>,
    /// Observe the processes of this cgroup and of those below it, later ones too: a directory, or
    /// the path in /proc/PID/cgroup.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub cgroup: Vec<String>,
    /// Observe the processes of this systemd unit. Without a suffix, it is a service.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub unit: Vec<String>,
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
    /// Largest size of the scratch file, or the used part of the device. sync has none. [default:
    /// 1g for append and hole, 32m for overwrite and mixed, or a quarter of the available space,
    /// the smaller].
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
