//! `dioxide copy` and `dioxide bench copy`.

use super::bench::{Outputs, rounds, runtime};
use super::examples;
use crate::units::parse_bytes;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct Copy {
    /// The file.
    #[arg(value_name = "SRC", value_hint = ValueHint::FilePath)]
    pub from: PathBuf,
    /// The copy, or an existing directory for it.
    #[arg(value_name = "DST", value_hint = ValueHint::AnyPath)]
    pub to: PathBuf,
}

/// One thread writes, copies and reads a long file from front to back.
///
/// The files are nameless. The source is written before the clock starts, past the page cache. A
/// run passes whole files until its time is over. One operation is 1 MiB.
///
/// Paths:
///
/// `one-thread` is a read and a write with O_DIRECT of 1 MiB, one after the other, and an fdatasync
/// at the end.
///
/// `kernel` is a read and a write of std::fs of 1 MiB through the page cache, and an fdatasync at
/// the end. Before each pass the source leaves the page cache.
///
/// `unsynced` is the same without the fdatasync: the data is in memory at the end.
///
/// `dioxide` is Reader and Writer. They keep eight requests of 1 MiB in flight each. The reader
/// lends its memory (BufRead::fill_buf). Writer::finish makes the file stable, and File::close is
/// timed as well.
///
/// Each copy is compared with its source, after the clock.
///
/// `a (b..c)` is the median and the range of the ratios of all rounds. `cpu us/MiB` is the CPU time
/// of this process, without kernel threads. `requests/MiB` counts the writes that the device
/// completed and the calls for a flush, by all processes.
#[derive(Args)]
#[command(after_long_help = examples::BENCH_COPY)]
pub struct BenchCopy {
    /// Directory for the scratch files.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// What to do with the file.
    #[arg(long, value_enum, value_name = "RW", value_delimiter = ',')]
    #[arg(default_value = "write,copy,read")]
    pub rw: Vec<Stream>,
    /// Time of one run [default: at most 2s, chosen by a short trial of each path, so that all of
    /// it takes under a minute]. A run passes one file at least.
    #[arg(long, value_name = "TIME", value_parser = runtime)]
    pub runtime: Option<Duration>,
    /// Rounds; each runs every path once, in an order that changes [default: at most 9, chosen as
    /// well].
    #[arg(long, value_name = "N", value_parser = rounds())]
    pub rounds: Option<u32>,
    /// Size of the file, in whole MiB [default: at most 256m or an eighth of the free space, chosen
    /// as well].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub output: Outputs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Stream {
    /// Write a new file.
    Write,
    /// Copy a file to a new one.
    Copy,
    /// Read a file.
    Read,
}
