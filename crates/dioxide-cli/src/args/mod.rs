//! Command line arguments. Parsing only, without access to the system. `bench::plan` validates
//! them.

mod bench;
mod compare;
mod copy;
mod diagnose;
mod examples;
mod files;
mod history;
mod log;
mod output;
mod plot;
mod probe;
mod records;

pub use bench::*;
pub use compare::*;
pub use copy::*;
pub use diagnose::*;
pub use files::*;
pub use history::*;
pub use log::*;
pub use output::*;
pub use plot::*;
pub use probe::*;
pub use records::*;

use crate::units::parse_bytes;
use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;

/// Direct I/O that stays concurrent: measure it on your own disk, recover files after a crash.
#[derive(Parser)]
#[command(name = "dioxide", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Show where direct I/O stops scaling, and what dioxide makes of the same work.
    ///
    /// Without a scenario: all of them, shortened, in under a minute. Every scenario does the same
    /// work on several paths, interleaved over rounds. Scratch files have no name and vanish with
    /// the process. Where they need a name, as in `bench log --files`, a kill leaves
    /// `.dioxide-bench-*`.
    ///
    /// The lines below a table count operations of dioxide that could have shared a request with
    /// their neighbour but did not, by reason:
    ///
    /// `gap`: not adjacent.
    ///
    /// `bytes`: longer than the device's largest request, or long enough for a request of its own.
    ///
    /// `segments`: more than one call takes.
    ///
    /// `member`: on another member of a striped volume.
    ///
    /// `order`: shares bytes or a block with an operation in flight.
    #[command(after_long_help = examples::BENCH)]
    Bench(Box<Bench>),
    /// Show whether two results of `dioxide bench --json` differ by more than chance.
    ///
    /// Rows of the same work are compared by the figures of their rounds. p is from the
    /// Mann-Whitney test, corrected for the number of rows. After each change follows its 95 %
    /// confidence interval.
    ///
    /// Only dioxide's paths are judged, by their ratio to the kernel path in the same round,
    /// because operations per second vary on shared machines. `--by ops` judges every path by
    /// operations per second.
    ///
    /// A regression is a row whose whole interval is below the limit of --fail-on-regression. Exits
    /// with 0, or with 3 on a regression. Exits with 1 on errors, and if there is none but a row
    /// cannot be judged (too few rounds, or missing in the new run). The same holds if a change
    /// could be overlooked, or no row is to be judged.
    #[command(after_long_help = examples::COMPARE)]
    Compare(Compare),
    /// Copy a file durably, by direct I/O: with large requests, and none of the page cache.
    ///
    /// The destination is replaced as a whole. It has its old content or the new one, also after a
    /// crash or Ctrl-C. Holes stay holes, and the permission bits are kept. Only regular files are
    /// copied. A kill or a second Ctrl-C may leave a temporary file, .NAME.*.tmp.
    #[command(after_long_help = examples::COPY)]
    Copy(Copy),
    /// Show why direct I/O does not scale, for a path or a running process.
    ///
    /// With a PATH: runs a workload of plain pwrite and pread with O_DIRECT on more and more
    /// threads, and observes where they wait. With --pid, --name, --cgroup or --unit: observes
    /// where the threads of these processes wait. Then it names the bottleneck, the evidence for
    /// it, and what to do.
    ///
    /// Any user may diagnose their own paths and processes. Run as root to see also: the kernel
    /// stacks of waiting threads, the duration of each lock wait, the kind of each direct write. Of
    /// a process, root also sees the latency of calls, and other processes on the same files. The
    /// report ends with the evidence that was not available.
    ///
    /// The curve is measured without observation, then the largest step once more with it.
    /// Interleaved with it, the largest step also runs on other paths: in a preallocated file, and
    /// with dioxide.
    ///
    /// Ctrl-C ends the observation of a process, with a verdict and exit code 0. It ends a
    /// diagnosis of a path without a verdict, as it ends a bench. If the process was stopped
    /// (SIGSTOP), the exit code is 4.
    #[command(after_long_help = examples::DIAGNOSE)]
    Diagnose(Box<Diagnose>),
    /// Show when the results of many `dioxide bench --json` changed beyond chance.
    ///
    /// Orders the results by their dates, and finds the change points of each row: where its level
    /// changed and stayed. A run counts as one value, the median of its rounds. p is from a
    /// permutation test, corrected for the number of rows. A single outlier is no change.
    ///
    /// dioxide's paths are judged by their ratio to the kernel path, as in `dioxide compare`. If a
    /// path without dioxide changed alike, the verdict is the machine. Results of unlike machines,
    /// devices or settings are separate series.
    ///
    /// A row needs 10 like results, and more of them if there are many rows. A slow drift may show
    /// as one or several changes.
    ///
    /// Exits with 0, or with 3 if --fail-on-regression finds a regression. Exits with 1 if there is
    /// none but a row of the newest result cannot be judged, or on errors.
    #[command(after_long_help = examples::HISTORY)]
    History(History),
    /// Check a log of the crate dioxide-log, or print its facts or its records. Changes nothing.
    ///
    /// Reads the log without the lock of its writer, so it works beside one. Each command first
    /// reads and checks the whole log.
    #[command(after_long_help = examples::LOGS)]
    Log(RecordsArgs),
    /// Draw saved results of `dioxide bench --json` as one SVG picture.
    ///
    /// The picture has a panel for each kind of work, with a curve for each path: operations per
    /// second over operations in flight. It needs no other file and no network.
    #[command(after_long_help = examples::PLOT)]
    Plot(Plot),
    /// Show what direct I/O does on a path, each fact with its source, in under half a minute.
    ///
    /// Facts: the file system and the devices below it, alignments, whether O_DIRECT is direct,
    /// what fallocate and io_uring support here. Measured: the cost of a flush and of a durable
    /// write, the parallelism of writes to one file, and the ways to sync.
    ///
    /// Tests and measurements use a nameless scratch file, which vanishes with the process. A given
    /// file is only inspected, a device only read. Figures are of this machine at this time;
    /// compared figures are interleaved.
    ///
    /// With --for: writes as the log of that system does, and judges the latencies.
    #[command(after_long_help = examples::PROBE)]
    Probe(Probe),
    /// Recover files that a crash left grown: find the end of their data and truncate them.
    ///
    /// First prints what it found. Truncates only where the end is known and the file is unchanged
    /// since the crash. If only its program can find the end, the file stays as it is, with exit
    /// code 0. Of a file that a process writes, it prints what a crash now would leave.
    #[command(after_long_help = examples::RECOVER)]
    Recover(Recover),
    /// Run a program, unchanged, with dioxide behind its O_DIRECT files.
    ///
    /// A file is taken over when a thread extends it, or writes durably, beside another write.
    /// Closing it restores its exact length. Unsupported operations are left to the kernel. A
    /// program that cannot preload a library (static, setuid) runs without dioxide, after a
    /// message.
    #[command(after_long_help = examples::RUN)]
    Run(Run),
    /// Write a shell completion script to stdout.
    #[command(after_long_help = examples::COMPLETIONS)]
    Completions(Completions),
    /// Write the manual: dioxide(1) to stdout, or all of its pages to a directory.
    #[command(after_long_help = examples::MAN)]
    Man(Man),
}

#[derive(Args)]
pub struct Completions {
    /// The shell.
    pub shell: Shell,
}

#[derive(Args)]
pub struct Man {
    /// Write a page for each command into this directory, which is created if necessary.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

#[derive(Args)]
pub struct Run {
    /// Only files that match, by their whole path, or by name if the pattern has no slash. May be
    /// given several times.
    #[arg(long = "match", value_name = "GLOB", value_parser = parse_glob)]
    pub globs: Vec<String>,
    /// Also block devices.
    #[arg(long)]
    pub devices: bool,
    /// Take files over when they are opened, not when threads write at the same time.
    #[arg(long)]
    pub eager: bool,
    /// Print statistics at exit.
    #[arg(long)]
    pub stats: bool,
    /// Largest step by which a file grows ahead.
    #[arg(long, value_name = "SIZE", value_parser = bench::growth_cap)]
    pub growth_cap: Option<u64>,
    /// The preload library [default: beside this command, or in lib/dioxide, lib,
    /// lib/ARCH-linux-gnu or lib64 beside that directory].
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// The program, and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// One variable holds all patterns, separated by colons.
fn parse_glob(glob: &str) -> Result<String, String> {
    match glob {
        "" => Err("a pattern is needed".into()),
        _ if glob.contains(':') => Err("a pattern cannot contain a colon".into()),
        // As the library reads it, which would leave the program without dioxide.
        _ => glob::Pattern::new(glob).map(|_| glob.into()).map_err(|error| error.to_string()),
    }
}

#[derive(Args)]
pub struct Recover {
    /// Files to recover.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The files are the members of one striped volume, in their order, with chunks of this size.
    #[arg(long, value_name = "CHUNK", value_parser = parse_bytes)]
    pub stripe: Option<u64>,
    /// Also recover files that were changed since the crash: truncate them, or leave the end to
    /// their program. For the owner of the data only.
    #[arg(long)]
    pub force: bool,
    /// Only print what was found.
    #[arg(long, conflicts_with = "force")]
    pub dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::Sizes;
    use clap::CommandFactory;
    use std::time::Duration;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
    }

    fn scenario(line: &str) -> ScenarioArgs {
        match parse(line).unwrap() {
            Command::Bench(bench) => bench.scenario.unwrap(),
            _ => panic!("{line} is a bench"),
        }
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn examples_can_be_typed() {
        fn check(command: &clap::Command) -> usize {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<_> =
                help.lines().filter(|line| line.starts_with("  dioxide ")).collect();
            for line in &lines {
                let typed = line.split(['|', '>']).next().unwrap();
                assert!(parse(typed).is_ok(), "{line}");
            }
            assert_eq!(help.is_empty(), lines.is_empty(), "{help}");
            lines.len() + command.get_subcommands().map(check).sum::<usize>()
        }
        assert!(check(&Cli::command()) > 20);
    }

    #[test]
    fn append_lists_and_defaults() {
        let ScenarioArgs::Append(append) =
            scenario("dioxide bench append --bs 4k,16k --numjobs 1,128")
        else {
            panic!("append")
        };
        assert_eq!(append.bs, [Sizes::one(4096), Sizes::one(16384)]);
        assert_eq!(append.numjobs, [1, 128]);
        assert_eq!((append.pace.rounds, append.pace.runtime), (None, None));
        assert!(matches!(append.durability, Durability::OnSync));
        assert!(matches!(append.growth, Growth::Unwritten));
        assert_eq!((append.growth_cap, append.pace.rate), (None, None));
        assert_eq!(append.iodepth, [64]);
        assert!(matches!(append.backend, BackendArg::System));
        assert!(
            matches!(append.tail, TailArg::Rewrite) && !append.buffered_group && !append.positional
        );
    }

    #[test]
    fn records_of_any_length() {
        let ScenarioArgs::Append(append) =
            scenario("dioxide bench append --bs 100,512-4k --tail pad")
        else {
            panic!("append")
        };
        assert_eq!(append.bs, [Sizes::one(100), Sizes { min_bytes: 512, max_bytes: 4096 }]);
        assert!(matches!(append.tail, TailArg::Pad));
    }

    #[test]
    fn refused_sizes_are_explained() {
        for (line, words) in [
            ("dioxide bench append --bs 0", "at least one byte"),
            ("dioxide bench append --bs 4k-512", "begins with the smaller size: 512-4k"),
            ("dioxide bench append --bs 1-20m", "at most 16m"),
            ("dioxide bench sync --bs 512-4k", "for `bench append` and `bench log` only"),
            ("dioxide bench mixed --bs 512-4k", "for `bench append` and `bench log` only"),
            ("dioxide bench mixed --bs 100", "a multiple of 512 bytes"),
        ] {
            let text = parse(line).err().expect(line).to_string();
            assert!(text.contains(words), "{line}: {text}");
        }
    }

    #[test]
    fn sync_is_the_seeds_workload() {
        let ScenarioArgs::Sync(sync) = scenario("dioxide bench sync") else { panic!("sync") };
        assert_eq!((sync.bs, sync.numjobs), (vec![Sizes::one(65536)], vec![64]));
    }

    #[test]
    fn mixed_on_a_directory_or_a_device() {
        let ScenarioArgs::Mixed(mixed) = scenario("dioxide bench mixed") else { panic!("mixed") };
        assert_eq!(
            (mixed.bs, mixed.numjobs, mixed.rwmixread),
            (vec![Sizes::one(4096)], vec![1, 2], 50)
        );
        assert_eq!(mixed.place.device, None);
        let line = "dioxide bench mixed --device /dev/x --overwrite-device /dev/x --rwmixread 100";
        let ScenarioArgs::Mixed(mixed) = scenario(line) else { panic!("mixed") };
        assert_eq!((mixed.place.device, mixed.rwmixread), (Some("/dev/x".into()), 100));
    }

    #[test]
    fn sync_on_a_stripe() {
        let line = "dioxide bench sync --stripe /dev/x,/dev/y --chunk 128k --overwrite-device \
            /dev/x,/dev/y";
        let ScenarioArgs::Sync(sync) = scenario(line) else { panic!("sync") };
        assert_eq!((&sync.stripe, sync.chunk), (&sync.place.overwrite_device, 128 << 10));
        assert_eq!(sync.stripe, [PathBuf::from("/dev/x"), "/dev/y".into()]);
        let ScenarioArgs::Sync(sync) = scenario("dioxide bench sync --stripe .,.") else {
            panic!("sync")
        };
        assert_eq!((sync.stripe.len(), sync.chunk), (2, 64 << 10));
    }

    #[test]
    fn indirect_is_the_seeds_workload() {
        let ScenarioArgs::Indirect(indirect) = scenario("dioxide bench indirect") else {
            panic!("indirect")
        };
        assert_eq!((indirect.count, indirect.rounds, indirect.fresh), (None, None, false));
    }

    fn diagnose(line: &str) -> Diagnose {
        let Command::Diagnose(diagnose) = parse(line).expect(line) else {
            panic!("{line} is a diagnosis")
        };
        *diagnose
    }

    #[test]
    fn a_diagnosis_is_of_a_place_or_a_program() {
        let place = diagnose("dioxide diagnose /data --rw hole,sync --runtime 50ms");
        assert_eq!((place.path, place.observed.pid), (Some("/data".into()), vec![]));
        assert_eq!(place.workload.rw, [Rw::Hole, Rw::Sync]);
        assert_eq!(place.workload.numjobs, [1, 2, 4, 8, 16, 32, 64], "enough for a fit");
        assert_eq!(
            (place.workload.runtime, place.workload.rounds),
            (Some(Duration::from_millis(50)), None)
        );
        let program = diagnose("dioxide diagnose --pid 17 --no-trace");
        assert_eq!((program.path, program.observed.pid, program.no_trace), (None, vec![17], true));
        assert_eq!(program.seconds, Duration::from_secs(10));
        assert_eq!(
            diagnose("dioxide diagnose --pid 17 --seconds 1m").seconds,
            Duration::from_secs(60)
        );
    }

    #[test]
    fn what_follows_the_program_is_its_own() {
        let line = "dioxide run --match *.log --stats fio --stats --name x";
        let Command::Run(run) = parse(line).expect(line) else { panic!("run") };
        assert_eq!((run.globs, run.stats, run.devices), (vec!["*.log".into()], true, false));
        assert_eq!(run.command, ["fio", "--stats", "--name", "x"]);
    }

    #[test]
    fn a_limit_is_a_percentage() {
        let limit =
            |text: &str| match parse(&format!("dioxide compare a b --fail-on-regression {text}")) {
                Ok(Command::Compare(compare)) => compare.fail_on_regression,
                _ => None,
            };
        assert_eq!(
            ["10%", "10", "0.5%", "0"].map(limit),
            [Some(10.0), Some(10.0), Some(0.5), Some(0.0)]
        );
        assert_eq!(["100%", "1000", "-1%", "much"].map(limit), [None; 4]);
    }

    #[test]
    fn refused() {
        for line in [
            "dioxide",
            "dioxide bench append --bs 0",
            "dioxide bench sync --tail pad",
            "dioxide bench append --bs 4k,",
            "dioxide bench append --numjobs 0",
            "dioxide bench append --numjobs 5000",
            "dioxide bench append --iodepth 0",
            "dioxide bench sync --iodepth 1025",
            "dioxide bench sync --backend sim",
            "dioxide bench append --rounds 0",
            "dioxide bench append --runtime 0s",
            "dioxide bench append --durability sometimes",
            "dioxide bench append --growth-cap 0",
            "dioxide bench append --rate 0",
            "dioxide bench sync --device /dev/x",
            "dioxide bench sync --overwrite-device /dev/x",
            "dioxide bench sync --stripe a,b --device /dev/x --overwrite-device /dev/x",
            "dioxide bench sync --stripe a,b --dir .",
            "dioxide bench sync --stripe a,b --chunk 1000",
            "dioxide bench sync --chunk 64k",
            "dioxide bench mixed --stripe a,b",
            "dioxide bench indirect --count 0",
            "dioxide bench indirect --runtime 1s",
            "dioxide bench sync --dir . --device /dev/x --overwrite-device /dev/x",
            "dioxide bench mixed --rwmixread 101",
            "dioxide bench mixed --rwmixread -1",
            "dioxide bench mixed --device /dev/x",
            "dioxide bench --dir . append",
            "dioxide compare old.json",
            "dioxide compare a b c",
            "dioxide compare a b --by feel",
            "dioxide history",
            "dioxide history . --newest 0",
            "dioxide history . --fail-on-regression 100%",
            "dioxide diagnose",
            "dioxide diagnose --rw nothing .",
            "dioxide diagnose --bs 512-4k .",
            "dioxide diagnose --numjobs 0 .",
            "dioxide diagnose --rounds 0 .",
            "dioxide diagnose . .",
            "dioxide diagnose . --pid 1",
            "dioxide diagnose . --seconds 1",
            "dioxide diagnose --pid 0",
            "dioxide diagnose --pid 1 --seconds 0",
            "dioxide diagnose --pid 1 --numjobs 1",
            "dioxide diagnose --pid 1 --overwrite-device /dev/x",
            "dioxide log",
            "dioxide log verify",
            "dioxide log dump . --from first",
            "dioxide recover",
            "dioxide recover --force --dry-run x",
            "dioxide run",
            "dioxide run --stats",
            "dioxide run --match a:b -- true",
            "dioxide run --growth-cap much true",
            "dioxide run --growth-cap 0 true",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
