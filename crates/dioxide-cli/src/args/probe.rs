//! `dioxide probe`.

use super::{Output, runtime};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct Probe {
    /// A directory; a file, for its directory; or a block device.
    #[arg(value_name = "PATH", default_value = ".")]
    pub path: PathBuf,
    /// Facts only: measure nothing.
    #[arg(long)]
    pub quick: bool,
    /// Judge whether PATH is fit for the log of this system: PASS or FAIL by the latencies of
    /// durable writes.
    ///
    /// Exits with 0 on PASS, with 1 on FAIL, with 2 if there is no result.
    #[arg(long = "for", value_name = "SYSTEM", value_enum, conflicts_with = "quick")]
    pub system: Option<SystemArg>,
    /// Time of the load with --for.
    #[arg(long, value_name = "TIME", default_value = "1m", requires = "system")]
    #[arg(value_parser = runtime)]
    pub runtime: Duration,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum SystemArg {
    Etcd,
    /// With a flush of every batch.
    Kafka,
    /// NATS JetStream with `sync_interval: always`.
    Jetstream,
    Postgres,
    /// A log of several Raft groups, by direct I/O.
    Raft,
    /// With synchronous writes.
    Rocksdb,
}
