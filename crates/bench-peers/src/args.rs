//! Command line arguments. Parsing only.

use crate::case::{Kind, Space};
use crate::units::{parse_bytes, parse_duration};
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

impl Args {
    pub fn output(&self) -> &Output {
        match &self.scenario {
            Scenario::Append(append) => &append.output,
            Scenario::Sync(sync) => &sync.output,
        }
    }
}

#[derive(Subcommand)]
pub enum Scenario {
    /// Appends of 4 KiB to one file.
    ///
    /// Libraries have one thread with --iodepth operations outstanding; `threads` and `dioxide`
    /// have the same number of threads, up to 64. Every run ends with its data stable, by an
    /// fdatasync or by dioxide's close. The time of that counts.
    Append(Append),
    /// 64 writers rewrite a region of 64 KiB each, O_DIRECT|O_SYNC.
    Sync(Sync),
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
    #[command(flatten)]
    pub output: Output,
}

/// Duration, rounds, paths.
#[derive(clap::Args)]
pub struct Pace {
    /// Time of one run.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub runtime: Duration,
    /// Rounds; each runs every path once, in an order that changes.
    #[arg(long, value_name = "N", default_value = "5")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=999))]
    pub rounds: u32,
    /// Only these paths.
    #[arg(long, value_enum, value_name = "PATH", value_delimiter = ',')]
    pub paths: Vec<Kind>,
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
    fn more_than_a_ring_takes_is_refused() {
        assert!(parse("bench-peers append --iodepth 1024").is_ok());
        assert!(parse("bench-peers append --iodepth 1025").is_err());
    }
}
