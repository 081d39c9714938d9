//! `dioxide diagnose`: of a place, or of a program.

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
    /// Directory for a scratch file, or block device, to do work on. A DEVICE'S CONTENTS ARE DESTROYED, and --overwrite-device must
    /// name it again.
    #[arg(value_name = "PATH", required_unless_present = "pid")]
    pub path: Option<PathBuf>,
    /// Watch this process instead, and its children, which go on undisturbed.
    #[arg(long, value_name = "PID", conflicts_with_all = ["path", "Workload"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=PID_MAX))]
    pub pid: Option<u32>,
    /// How long to watch it. It is over earlier when the process ends, or with Ctrl-C, and the verdict then is on what was seen.
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = runtime)]
    #[arg(requires = "pid", conflicts_with = "path")]
    pub seconds: Duration,
    #[command(flatten)]
    pub workload: Workload,
    /// Do without the kernel's tracepoints, which are for root only.
    #[arg(long)]
    pub no_trace: bool,
    /// With several kinds of work, show each curve as a table, and the law that is fitted to it.
    #[arg(long, short)]
    pub verbose: bool,
    #[command(flatten)]
    pub output: Output,
}

/// What to do on a place.
#[derive(Args)]
pub struct Workload {
    /// Kinds of work [default: all that a directory takes, or a device].
    #[arg(long, value_name = "RW", value_enum, value_delimiter = ',')]
    pub rw: Vec<Rw>,
    /// Numbers of threads: the steps of the curve. The largest is the one that is watched. With fewer than six, there is no
    /// fit of the Universal Scalability Law.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    #[arg(value_parser = numjobs())]
    pub numjobs: Vec<u32>,
    /// Bytes of one operation [default: 4k, and 64k for sync].
    #[arg(long, value_name = "BYTES", value_parser = Sizes::parse_block)]
    pub bs: Option<Sizes>,
    /// When a write counts as done. Those of sync are stable in any case.
    #[arg(long, value_enum, default_value_t)]
    pub durability: Durability,
    /// Time of each step in each round [default: 500ms for one kind of work, 200ms for several].
    #[arg(long, value_name = "TIME", value_parser = runtime)]
    pub runtime: Option<Duration>,
    /// Rounds; each runs every step once [default: as many as go into a minute, at most 5, or 3 for several kinds of work].
    #[arg(long, value_name = "N", value_parser = rounds())]
    pub rounds: Option<u32>,
    /// Largest size of the scratch file, or the part of the device that is used [default: 1g for append and hole, 32m for
    /// overwrite and mixed, or a quarter of what there is, the smaller].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    /// The same device again, to confirm that its contents may be destroyed.
    #[arg(long, value_name = "DEVICE")]
    pub overwrite_device: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Rw {
    /// Each write begins at the end of the file.
    Append,
    /// Writes over written blocks, in random order.
    Overwrite,
    /// Writes into a hole, in order: the file was made larger, and no space allocated.
    Hole,
    /// Each thread rewrites a region of its own, durably.
    Sync,
    /// As many reads as writes, of written blocks, in random order.
    Mixed,
}

/// What the kernel can be configured for.
const PID_MAX: i64 = 1 << 22;
