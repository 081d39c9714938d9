//! `dioxide bench log`.

use super::bench::{Outputs, PaceArgs, iodepth, numjobs};
use super::examples;
use crate::sizes::Sizes;
use crate::units::parse_bytes;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// N threads append small records to a log, each durable when it is acknowledged: a write-ahead
/// log.
///
/// The file is nameless. Records stand byte to byte, and each length is the same on every path.
/// --space says what the file has before the first record, for all paths. The rivals of dioxide use
/// the page cache, and begin with the pages of their written space in memory.
///
/// Paths:
///
/// `mutex` is one lock around a pwrite and an fdatasync.
///
/// `buffered-group` is an optimised group commit. The first record of a group leads it: one pwrite
/// and one fdatasync for all, while the next group gathers.
///
/// `dioxide` is File::append with Durability::EveryWrite.
///
/// `buffered-batch` is one thread that writes --iodepth records by one pwrite and one fdatasync.
///
/// `gathered-tasks` is --iodepth tasks (futures) of one thread, which give their records to another
/// thread. That one writes as `buffered-batch` all that it was given meanwhile.
///
/// `dioxide-queue` is one thread with one Queue, which has --iodepth appends outstanding.
///
/// `dioxide-tasks` is --iodepth tasks of one thread, each with a future of AsyncFile::append.
///
/// `dioxide-log` is Log::append of the crate dioxide-log, in its segments.
///
/// `dioxide-log-batch` is one thread that appends --iodepth records by Log::append_all.
///
/// `dioxide-log-tasks` is --iodepth tasks of one thread, each with a future of Log::append_async.
///
/// Batches, queues and tasks are compared with as many threads.
///
/// With --files there are several logs, each with a thread of its own, and other paths:
///
/// `kernel` is a pwrite and an fdatasync by each thread, through the page cache.
///
/// `dioxide` is File::append by each thread.
///
/// `dioxide-log-set` is Log::append by each thread, to a log of its own in one LogSet of the crate
/// dioxide-log. Its directory is removed at the end.
///
/// `dioxide-queue` is one thread with one Queue for all logs, which has an append to each
/// outstanding.
///
/// Opening, filling and closing the files is not timed. Then every acknowledged record is read and
/// compared.
///
/// `a (b..c)` is the median and the range of the ratios of all rounds. `cpu us/op` is the CPU time
/// of this process, without kernel threads. `requests/op` counts the writes that the device
/// completed and the calls for a flush, by all processes. `flushes/op` counts the flushes that it
/// did, for all processes; one may serve several calls.
#[derive(Args)]
#[command(after_long_help = examples::LOG)]
pub struct Log {
    /// Directory for the scratch files.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Sizes of records: the bytes of one append. `100-1k` is a range that each length is drawn
    /// from.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "100")]
    #[arg(value_parser = Sizes::parse)]
    pub bs: Vec<Sizes>,
    /// The space of a log before its first record.
    #[arg(long, value_enum, value_name = "SPACE", value_delimiter = ',')]
    #[arg(default_value = "unwritten,recycled")]
    pub space: Vec<LogSpace>,
    /// Numbers of threads.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16,64")]
    #[arg(value_parser = numjobs())]
    pub numjobs: Vec<u32>,
    /// Records of a batch, outstanding records of a queue, or tasks.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = iodepth())]
    pub iodepth: Vec<u32>,
    /// Numbers of logs, each with a thread of its own [default: one log, with all threads].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = numjobs())]
    #[arg(conflicts_with_all = ["numjobs", "iodepth"])]
    pub files: Vec<u32>,
    #[command(flatten)]
    pub pace: PaceArgs,
    /// Size of all logs together [default: 256m or a quarter of the free space, the smaller].
    ///
    /// A run ends early when a log is full.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub output: Outputs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum LogSpace {
    /// None. It is allocated ahead of the records (fallocate).
    Unwritten,
    /// Zeros: dioxide writes them ahead of its records, the others before the clock starts.
    Zeroed,
    /// The content of an old log, which the records overwrite.
    Recycled,
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command, ScenarioArgs};
    use super::*;
    use clap::{CommandFactory, Parser};

    fn log(line: &str) -> Result<Log, clap::Error> {
        let words = ["dioxide", "bench", "log"].into_iter().chain(line.split_whitespace());
        let Command::Bench(bench) = Cli::try_parse_from(words)?.command else { panic!("a bench") };
        let Some(ScenarioArgs::Log(log)) = bench.scenario else { panic!("a log") };
        Ok(log)
    }

    #[test]
    fn one_log_and_defaults() {
        let it = log("").unwrap();
        assert_eq!(
            (it.bs, it.numjobs, it.iodepth),
            (vec![Sizes::one(100)], vec![1, 16, 64], vec![64])
        );
        assert_eq!(it.space, [LogSpace::Unwritten, LogSpace::Recycled]);
        assert!(it.files.is_empty() && it.size.is_none());
    }

    #[test]
    fn each_of_several_logs_has_a_thread() {
        assert_eq!(log("--files 64,256 --space zeroed").unwrap().files, [64, 256]);
        assert!(log("--files 64 --numjobs 2").is_err());
        assert!(log("--files 64 --iodepth 2").is_err());
        assert!(log("--files 1025").is_err() && log("--space written").is_err());
    }

    #[test]
    fn the_help_describes_every_path() {
        let mut command = Cli::command();
        let bench = command.find_subcommand_mut("bench").expect("a command");
        let help = bench.find_subcommand_mut("log").expect("a scenario").render_long_help();
        for path in
            ["mutex", "buffered-group", "buffered-batch", "gathered-tasks", "kernel", "dioxide"]
                .into_iter()
                .chain(["dioxide-log", "dioxide-log-batch", "dioxide-log-tasks", "dioxide-log-set"])
        {
            assert!(help.to_string().contains(&format!("`{path}` is ")), "{path} in {help}");
        }
    }
}
