//! Command line arguments. Parsing only.

use crate::case::{Kind, Space};
use crate::logs;
use crate::units::{parse_bytes, parse_duration};
use clap::builder::RangedI64ValueParser;
use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Async I/O libraries and dioxide on the same work, interleaved.
#[derive(Parser)]
#[command(version, about)]
pub struct Args {
    #[command(subcommand)]
    pub scenario: Scenario,
}

#[derive(Subcommand)]
pub enum Scenario {
    /// Appends of 4 KiB to one file.
    ///
    /// Libraries have one thread with --iodepth operations outstanding; `threads` and `dioxide`
    /// have the same number of threads, up to 64. Every run ends with its data stable, by an
    /// fdatasync or by dioxide's close. The time of that counts.
    Append(Append),
    /// 64 writers rewrite a region of 64 KiB each, O_DIRECT|O_DSYNC.
    Sync(Sync),
    /// Durable records in write-ahead logs: `dioxide-log`, and published crates.
    ///
    /// Without --threads, --batch, --logs and --groups: 1, 16 and 64 threads, batches of 1024, and
    /// 256 logs.
    /// Afterwards each log is read with its own reader, and every record is compared.
    Log(Log),
}

#[derive(clap::Args)]
pub struct Append {
    /// Directory for the scratch files.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Outstanding operations.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64,1024")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub iodepth: Vec<u16>,
    /// When an append is complete.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "on-sync,every-write")]
    pub durability: Vec<Durability>,
    /// The space that the libraries and `threads` write to.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "extend,falloc,overwrite")]
    pub space: Vec<Space>,
    /// Size of preallocated or prewritten files, and the maximum of appended data [default: 1g, or
    /// a quarter of the free space if that is less].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub pace: Pace,
    /// Only these paths.
    #[arg(long, value_enum, value_name = "PATH", value_delimiter = ',')]
    pub paths: Vec<Kind>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(clap::Args)]
pub struct Sync {
    /// Directory for the scratch file.
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "device")]
    pub dir: PathBuf,
    /// Block device to run on instead of a file. ITS CONTENTS ARE DESTROYED.
    #[arg(long, value_name = "DEVICE", requires = "overwrite_device")]
    pub device: Option<PathBuf>,
    /// The device again, to confirm that its contents may be destroyed.
    #[arg(long, value_name = "DEVICE", requires = "device")]
    pub overwrite_device: Option<PathBuf>,
    #[command(flatten)]
    pub pace: Pace,
    /// Only these paths.
    #[arg(long, value_enum, value_name = "PATH", value_delimiter = ',')]
    pub paths: Vec<Kind>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(clap::Args)]
pub struct Log {
    /// Directory for the logs.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Threads that append to one log, a record at a time.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = lanes())]
    pub threads: Vec<u16>,
    /// Records that one thread appends at once.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = lanes())]
    pub batch: Vec<u16>,
    /// Logs of one process, with a thread each.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = lanes())]
    pub logs: Vec<u16>,
    /// Raft groups of one process, with a thread each.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = lanes())]
    pub groups: Vec<u16>,
    /// Sizes of records.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "100,1k,4k")]
    #[arg(value_parser = parse_bytes)]
    pub record_bytes: Vec<u64>,
    /// The space that a path may prepare before the clock starts, if it can.
    #[arg(long, value_name = "BYTES", default_value = "256m", value_parser = parse_bytes)]
    pub size: u64,
    /// Records per second of all threads together, evenly spaced [default: as many as possible].
    ///
    /// Latencies begin when a record is due then.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub pace: Pace,
    /// Only these paths.
    #[arg(long, value_enum, value_name = "PATH", value_delimiter = ',')]
    pub paths: Vec<logs::Kind>,
    #[command(flatten)]
    pub output: Output,
}

fn lanes() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=1024)
}

/// Duration, rounds.
#[derive(clap::Args)]
pub struct Pace {
    /// Time of one run.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub runtime: Duration,
    /// Rounds; each runs every path once, in an order that changes.
    #[arg(long, value_name = "N", default_value = "5")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=999))]
    pub rounds: u32,
}

#[derive(clap::Args)]
pub struct Output {
    /// Write the tables as Markdown to FILE as well.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Durability {
    /// When the write returns.
    OnSync,
    /// When it is stable.
    EveryWrite,
}

impl From<Durability> for dioxide::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::OnSync => Self::OnSync,
            Durability::EveryWrite => Self::EveryWrite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_device_is_named_twice() {
        assert!(parse("bench-peers sync --device /dev/x --overwrite-device /dev/x").is_ok());
        assert!(parse("bench-peers sync --device /dev/x").is_err());
        assert!(
            parse("bench-peers sync --dir . --device /dev/x --overwrite-device /dev/x").is_err()
        );
    }

    #[test]
    fn logs_have_three_shapes() {
        let line = "bench-peers log --threads 1,64 --batch 1024 --logs 256 --record-bytes 100,4k";
        let Scenario::Log(log) = parse(line).unwrap().scenario else { panic!("a log") };
        assert_eq!((log.threads, log.batch, log.logs), (vec![1, 64], vec![1024], vec![256]));
        assert_eq!((log.record_bytes, log.size), (vec![100, 4096], 256 << 20));
        assert!(parse("bench-peers log --threads 0").is_err());
        assert!(log.rate.is_none() && parse("bench-peers log --rate 0").is_err());
        assert!(parse("bench-peers log --paths okaywal,raft-engine").is_ok());
    }

    #[test]
    fn more_than_a_ring_takes_is_refused() {
        assert!(parse("bench-peers append --iodepth 1024").is_ok());
        assert!(parse("bench-peers append --iodepth 1025").is_err());
    }
}
