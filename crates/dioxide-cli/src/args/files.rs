//! The scenarios of `dioxide bench` with several files.

use super::bench::{Outputs, PaceArgs, iodepth, numjobs, rounds, runtime};
use super::examples;
use crate::sizes::Sizes;
use crate::units::parse_bytes;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// More than the shards of a program. Each takes two descriptors.
const FILES_MAX: i64 = 16_384;

/// N threads write blocks of many files, durably: one flush for each write, or for many.
///
/// The files are nameless. Before the clock starts their blocks are written, or only allocated
/// (--space), and one flush makes that durable. In written space, each thread or queued operation
/// rewrites random blocks of its own, as in `bench mixed`. In unwritten space each block is written
/// once, in order, and the run ends when all are written. Adjacent blocks are on different files.
///
/// Paths:
///
/// `one-thread` is a pwrite with O_DIRECT, then an fdatasync of that file, by one thread. It is
/// measured once for each number of files.
///
/// `kernel` is the same by each of --numjobs threads.
///
/// `kernel-uring` is one thread with one io_uring, which has --iodepth writes outstanding. An
/// fdatasync of the file is linked to each write.
///
/// `syncfs` is one thread: --iodepth writes in flight together, then one syncfs for all of them.
/// Without io_uring the writes follow each other.
///
/// `dioxide` is File::write_at with Durability::EveryWrite.
///
/// `dioxide-queue` is the same with one thread and one Queue for all files, which has --iodepth
/// writes outstanding. As `kernel-uring` and `syncfs`, it is compared with as many threads.
///
/// Opening and closing the files is not timed. Then every acknowledged block is read and compared.
///
/// `a (b..c)` is the median and the range of the ratios of all rounds. `cpu us/op` is the CPU time
/// of this process, without kernel threads. `requests/op` counts the writes that the device
/// completed and the calls for a flush, by all processes. `flushes/op` counts the flushes that it
/// did, for all processes; one may serve several calls.
#[derive(Args)]
#[command(after_long_help = examples::FILES)]
pub struct Files {
    /// Directory for the scratch files.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Numbers of files.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16,256,1024")]
    #[arg(value_parser = files())]
    pub files: Vec<u32>,
    /// The blocks before they are written.
    #[arg(long, value_enum, default_value_t)]
    pub space: SpaceArg,
    /// Block size: the bytes of one write.
    #[arg(long, value_name = "BYTES", default_value = "4k", value_parser = Sizes::parse_block)]
    pub bs: Sizes,
    /// Numbers of threads.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = numjobs())]
    pub numjobs: Vec<u32>,
    /// Outstanding writes of a ring, batch or queue (paths `kernel-uring`, `syncfs` and
    /// `dioxide-queue`), compared with as many threads.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = iodepth())]
    pub iodepth: Vec<u32>,
    #[command(flatten)]
    pub pace: PaceArgs,
    /// Size of all files together.
    ///
    /// By default 64m for written space; more if threads or files have no block then, less if the
    /// device takes long to fill them. For unwritten space 512m or a quarter of the free space, the
    /// smaller.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub output: Outputs,
}

/// Make all of many files durable together, after a write to each: the flushes of a checkpoint.
///
/// One operation is one checkpoint. First, one thread writes a block of each file with O_DIRECT,
/// without a flush. Then all files are made durable. Only that is timed, and only its requests are
/// counted. `iops` is checkpoints per second of that time, `clat` the time of one.
///
/// The files are nameless. Before the run their blocks are written, or only allocated (--space). In
/// written space the blocks of a file are rewritten in turn. In unwritten space each block is
/// written once, and the run ends when all are written.
///
/// Paths:
///
/// `one-thread` is an fdatasync of each file, one after the other.
///
/// `kernel` is the same by --numjobs threads, which share the files.
///
/// `syncfs` is one syncfs.
///
/// `dioxide` is sync_all of all files, whose blocks are written by File::write_at.
///
/// Opening and closing the files is not timed. Then every acknowledged block is read and compared.
///
/// `a (b..c)` is the median and the range of the ratios of all rounds. `requests/op` counts the
/// writes that the device completed during the flushes and the calls for a flush, by all processes.
/// `flushes/op` counts the flushes that it did, for all processes; one may serve several calls.
#[derive(Args)]
#[command(after_long_help = examples::CHECKPOINT)]
pub struct Checkpoint {
    /// Directory for the scratch files.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Numbers of files.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "256,1024")]
    #[arg(value_parser = files())]
    pub files: Vec<u32>,
    /// The blocks before they are written.
    #[arg(long, value_enum, default_value_t)]
    pub space: SpaceArg,
    /// Block size: the bytes written to each file before a checkpoint.
    #[arg(long, value_name = "BYTES", default_value = "4k", value_parser = Sizes::parse_block)]
    pub bs: Sizes,
    /// Number of threads of the path `kernel`.
    #[arg(long, value_name = "N", default_value = "64", value_parser = numjobs())]
    pub numjobs: u32,
    /// Time of one run [default: at most 2s, chosen by a short trial of each path, so that all of
    /// it takes under a minute].
    ///
    /// It includes the writes between checkpoints. A run makes one checkpoint at least.
    #[arg(long, value_name = "TIME", value_parser = runtime)]
    pub runtime: Option<Duration>,
    /// Rounds; each runs every path once, in an order that changes [default: at most 9, chosen as
    /// well].
    #[arg(long, value_name = "N", value_parser = rounds())]
    pub rounds: Option<u32>,
    /// Size of all files together.
    ///
    /// By default 64m for written space; more if files have no block then, less if the device takes
    /// long to fill them. For unwritten space 512m or a quarter of the free space, the smaller. It
    /// limits the number of checkpoints there.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub output: Outputs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SpaceArg {
    /// Written before and durable, so that a durable write needs no journal commit.
    #[default]
    Written,
    /// Allocated (fallocate), and written once. A durable write needs a journal commit.
    Unwritten,
}

fn files() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=FILES_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command, ScenarioArgs};
    use super::*;
    use clap::{CommandFactory, Parser};

    fn scenario(line: &str) -> Result<ScenarioArgs, clap::Error> {
        let words = ["dioxide", "bench"].into_iter().chain(line.split_whitespace());
        let Command::Bench(bench) = Cli::try_parse_from(words)?.command else { panic!("a bench") };
        Ok(bench.scenario.expect("a scenario"))
    }

    #[test]
    fn files_and_defaults() {
        let Ok(ScenarioArgs::Files(files)) = scenario("files") else { panic!("files") };
        assert_eq!((files.files, files.space), (vec![1, 16, 256, 1024], SpaceArg::Written));
        assert_eq!((files.bs, files.size), (Sizes::one(4096), None));
        assert_eq!((files.numjobs, files.iodepth), (vec![64], vec![64]));
        let line = "files --files 16384 --space unwritten --bs 8k --numjobs 1,2 --rate 5";
        let Ok(ScenarioArgs::Files(files)) = scenario(line) else { panic!("files") };
        assert_eq!((files.files, files.space), (vec![16_384], SpaceArg::Unwritten));
        assert_eq!((files.bs, files.pace.rate), (Sizes::one(8192), Some(5)));
    }

    #[test]
    fn checkpoints_and_defaults() {
        let Ok(ScenarioArgs::Checkpoint(it)) = scenario("checkpoint") else { panic!("checkpoint") };
        assert_eq!((it.files, it.space, it.numjobs), (vec![256, 1024], SpaceArg::Written, 64));
        assert_eq!((it.bs, it.size, it.runtime), (Sizes::one(4096), None, None));
    }

    #[test]
    fn refused() {
        for line in [
            "files --files 0",
            "files --files 16385",
            "files --bs 512-4k",
            "files --bs 4k,8k",
            "files --space zeroed",
            "files --device /dev/x",
            "checkpoint --rate 5",
            "checkpoint --iodepth 5",
            "checkpoint --numjobs 1,2",
            "checkpoint --files 1,",
        ] {
            assert!(scenario(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_help_describes_every_path() {
        let mut command = Cli::command();
        let bench = command.find_subcommand_mut("bench").expect("a command");
        for (name, paths) in [
            (
                "files",
                &["one-thread", "kernel", "kernel-uring", "syncfs", "dioxide", "dioxide-queue"][..],
            ),
            ("checkpoint", &["one-thread", "kernel", "syncfs", "dioxide"]),
        ] {
            let scenario = bench.find_subcommand_mut(name).expect("a scenario");
            let help = scenario.render_long_help().to_string();
            for path in paths {
                assert!(help.contains(&format!("`{path}` is ")), "{path} in {help}");
            }
        }
    }
}
