//! `dioxide bench`, its scenarios, and their common options: sizes, pace, output.

use super::copy::BenchCopy;
use super::examples;
use super::files::{Checkpoint, Files};
use super::log::Log;
use super::output::{Output, Wanted};
use crate::sizes::Sizes;
use crate::units::{parse_bytes, parse_duration};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// More threads than any storage benchmark needs. The ledger has 20 bits for them.
const NUMJOBS_MAX: i64 = 1024;
const RUNTIME_MIN: Duration = Duration::from_millis(10);
const RUNTIME_MAX: Duration = Duration::from_secs(3600);
const ROUNDS_MAX: i64 = 999;
/// Times the threads, within the bits of the ledger.
const IODEPTH_MAX: i64 = 1024;
/// Of writes of 4 MiB.
const COUNT_MAX: u64 = 1_000_000;
/// More than any device reaches.
const RATE_MAX: u64 = 10_000_000;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    pub scenario: Option<ScenarioArgs>,
    /// Directory for the scratch file.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub output: Outputs,
}

impl Bench {
    /// Where the results go, with or without a scenario.
    pub fn output(&self) -> &Outputs {
        match &self.scenario {
            None => &self.output,
            Some(ScenarioArgs::Append(append)) => &append.output,
            Some(ScenarioArgs::Sync(sync)) => &sync.output,
            Some(ScenarioArgs::Mixed(mixed)) => &mixed.output,
            Some(ScenarioArgs::Indirect(indirect)) => &indirect.output,
            Some(ScenarioArgs::Files(files)) => &files.output,
            Some(ScenarioArgs::Checkpoint(checkpoint)) => &checkpoint.output,
            Some(ScenarioArgs::Log(log)) => &log.output,
            Some(ScenarioArgs::Copy(copy)) => &copy.output,
        }
    }
}

#[derive(Subcommand)]
pub enum ScenarioArgs {
    /// N threads append to one file: through the kernel, into preallocated space, and with dioxide.
    ///
    /// Several block sizes make matrices: block size by threads, for each path, and the ratios.
    ///
    /// Paths for whole blocks:
    ///
    /// `kernel` is a pwrite past the end at a shared next offset (O_DIRECT, with O_DSYNC for
    /// every-write).
    ///
    /// `preallocated` is the same inside a file that is fallocated before the clock starts. With
    /// `--growth zeroed` its space is written as well, and only then `recycled` has a ratio to it.
    ///
    /// `dioxide` is File::append. Its growth and close are timed.
    ///
    /// `dioxide-queue` is the same with one thread and one Queue, which has --iodepth appends
    /// outstanding. It is compared with as many threads.
    ///
    /// Every path ends with its data stable: the first two by one fdatasync, dioxide by close.
    /// `max growing` is the longest append that met a growth of dioxide's file. `cpu us/op` is the
    /// CPU time of this process, without kernel threads.
    ///
    /// Unaligned records (`--bs 100`, or a range) are packed without gaps on every path, and each
    /// length is the same on every path. Then there is no path `serialised`, because `kernel`
    /// serialises already:
    ///
    /// `kernel` holds a mutex over its last block. Each record rewrites that block, padded with
    /// zeros, by a pwrite with O_DIRECT. For every-write each record also has an fdatasync.
    ///
    /// `preallocated` is the same in a file that is fallocated beforehand.
    ///
    /// `buffered-group` is an optimised group commit without O_DIRECT. The first record of a group
    /// leads it: one pwrite and, for every-write, one fdatasync for all, while the next group
    /// gathers. Its file is fallocated ahead in steps of 64m.
    ///
    /// These paths truncate their file to its exact length at the end, which is timed.
    ///
    /// `a (b..c)` is the median and the range of the ratios of all rounds. `requests/op` counts the
    /// writes that the device completed and the calls for a flush, by all processes. `flushes/op`
    /// counts the flushes that it did, for all processes; one may serve several calls.
    #[command(after_long_help = examples::APPEND)]
    Append(Append),
    /// N threads rewrite a region of their own each, durably: the workload of an old kernel
    /// regression.
    ///
    /// Paths:
    ///
    /// `serialised` is a pwrite, then an fdatasync under one lock.
    ///
    /// `kernel` is a pwrite with O_DIRECT|O_DSYNC. On a device, which an O_DSYNC write flushes
    /// twice, it is a pwrite and an fdatasync.
    ///
    /// `dioxide` is File::write_at with Durability::EveryWrite.
    ///
    /// `dioxide-queue` is the same with one thread and one Queue, which has --iodepth regions with
    /// one outstanding write each. It is compared with as many threads.
    ///
    /// With --stripe all paths use one striped volume, made by OpenOptions::open_striped. `kernel`
    /// and `serialised` split their writes at chunk boundaries themselves. `serialised` holds its
    /// lock for an fdatasync of every member.
    ///
    /// `in flight` is the mean number of requests that the device has. `blocked` (tasks that wait
    /// for I/O) and `us sy id wa st` are of the whole machine, as in vmstat.
    ///
    /// `a (b..c)` is the median and the range of the ratios of all rounds. `requests/op` counts the
    /// writes that the device completed and the calls for a flush, by all processes. `flushes/op`
    /// counts the flushes that it did, for all processes; one may serve several calls.
    #[command(after_long_help = examples::SYNC)]
    Sync(Sync),
    /// N threads read and rewrite aligned blocks of one file or device, in random order.
    ///
    /// The file is written before the clock starts. Offsets are uniformly random, from one
    /// generator per thread that starts with the same seed in every run. Thread k of N owns every
    /// N-th block, so its blocks are spread over the whole file. Each of its reads therefore has
    /// one correct result, which is checked.
    ///
    /// Paths:
    ///
    /// `kernel` is pread and pwrite with O_DIRECT.
    ///
    /// `serialised` is the same with a shared counter of running operations, which each operation
    /// updates twice. The kernel did that for devices until 2015. For files it still does, so there
    /// `serialised` counts twice.
    ///
    /// `dioxide` is File::read_at and File::write_at.
    ///
    /// `dioxide-queue` is a Queue in each thread with --iodepth operations outstanding, each of
    /// which owns blocks as a thread does. It is compared with as many threads as all queues have
    /// outstanding, if --numjobs names them too.
    ///
    /// With `--durability every-write`, `kernel` opens the file with O_DSYNC too; on a device each
    /// write has an fdatasync instead. `buffered` replaces `serialised`: pwrite through the page
    /// cache, with all blocks in memory, then fdatasync. Then blocks may be parts of those that
    /// direct writes take. dioxide merges them with the rest, and `kernel` is left out.
    ///
    /// Every path ends with its data stable: dioxide by close, the others by one fdatasync.
    ///
    /// `a (b..c)` is the median and the range of the ratios of all rounds. `in flight` is the mean
    /// number of requests that the device has. Percentiles of latencies are of all rounds, reads
    /// and writes together, laid out as in fio; the JSON has them for each.
    #[command(after_long_help = examples::MIXED)]
    Mixed(Mixed),
    /// Write 4096 KiB at offset 48 KiB of a file on ext3, where indirect blocks map all of it:
    /// again and again.
    ///
    /// Each run makes an ext3 volume with blocks of 4 KiB (mke2fs), in an image of 64 MiB with a
    /// file of 48 KiB (debugfs). The image is a nameless scratch file, fully written beforehand.
    /// None of that is timed. The first write extends the file, those that follow overwrite it.
    ///
    /// Paths:
    ///
    /// `kernel` is a pwrite with O_DIRECT through a mount of the image, by a loop device with
    /// direct I/O. Only for root, and invisible to other processes.
    ///
    /// `dioxide` is File::write_at of a file that OpenOptions::open_in_image has opened in the
    /// unmounted image.
    ///
    /// `serialised` is the same with a call, and so a request, for each block of 4 KiB.
    ///
    /// Every path ends with its data stable, by one fdatasync or File::sync_data. The unmount or
    /// close that follows is not timed. Then debugfs reads the file, and the content is compared
    /// with the data written.
    ///
    /// `I/O s` is the time of all writes of a run. `usr %`, `sys %` and `cpu us/MiB` are CPU time
    /// of this process, without the kernel threads of the loop device. `us`, `sy` and
    /// `machine us/MiB` are of the whole machine, with those threads and all other processes.
    /// `mem %` is the memory in use on the machine, `rss MiB` the peak of this process.
    /// `requests/write` counts requests to the volume, as seen by the library or the loop device.
    /// It includes the journal's and calls for a flush.
    #[command(after_long_help = examples::INDIRECT)]
    Indirect(Indirect),
    Files(Files),
    Checkpoint(Checkpoint),
    Log(Log),
    Copy(BenchCopy),
}

#[derive(Args)]
pub struct Append {
    /// Directory for the scratch file.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Sizes of records: the bytes of one append. `512-4k` is a range that each length is drawn
    /// from.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "4k")]
    #[arg(value_parser = Sizes::parse)]
    pub bs: Vec<Sizes>,
    /// Numbers of threads.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,16,64")]
    #[arg(value_parser = numjobs())]
    pub numjobs: Vec<u32>,
    /// Outstanding operations of a queue (path `dioxide-queue`): one queue, compared with as many
    /// threads.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = iodepth())]
    pub iodepth: Vec<u32>,
    /// The storage below: the system, or a simulated file that takes no time and stores nothing, to
    /// show the cost of dioxide itself.
    ///
    /// With `sim` there are only dioxide's paths, no file is made, and nothing is verified. The
    /// time of an operation includes the bench's own, mostly reading the clock twice.
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendArg,
    #[command(flatten)]
    pub pace: PaceArgs,
    /// When an append counts as done.
    #[arg(long, value_enum, default_value_t)]
    pub durability: Durability,
    /// How dioxide preallocates space.
    #[arg(long, value_enum, default_value_t)]
    pub growth: Growth,
    /// How dioxide continues after records that do not fill their last block. Whole blocks have no
    /// such tail.
    #[arg(long, value_enum, default_value_t)]
    pub tail: TailArg,
    /// Also append by a group commit through the page cache (path `buffered-group`). Unaligned
    /// records always have this path.
    #[arg(long)]
    pub buffered_group: bool,
    /// Largest step by which dioxide grows its file [default: the library's, 64m].
    #[arg(long, value_name = "BYTES", value_parser = growth_cap)]
    pub growth_cap: Option<u64>,
    /// Also extend the file by File::write_at, each at the next offset of one counter (path
    /// `positional`), as `kernel` does. Only for whole blocks.
    #[arg(long)]
    pub positional: bool,
    /// Also append over an old file of the full --size, which is recycled (path `recycled`).
    /// Filling it is not timed.
    #[arg(long)]
    pub recycle: bool,
    /// Largest size of the scratch file [default: 4g or a quarter of the free space, the smaller].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub output: Outputs,
}

#[derive(Args)]
pub struct Sync {
    #[command(flatten)]
    pub place: Place,
    /// Members of a striped volume to run on instead of one file: directories, for a scratch file
    /// in each, or block devices. --overwrite-device must name the devices again. THEIR CONTENTS
    /// ARE DESTROYED.
    #[arg(
        long,
        value_name = "MEMBER",
        value_delimiter = ',',
        group = "devices",
        conflicts_with = "dir"
    )]
    pub stripe: Vec<PathBuf>,
    /// Chunk size: the bytes on one member before the next one follows.
    #[arg(long, value_name = "BYTES", default_value = "64k", requires = "stripe")]
    #[arg(value_parser = chunk)]
    pub chunk: u64,
    /// Block sizes: the bytes of one write, and of each thread's region.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64k")]
    #[arg(value_parser = Sizes::parse_block)]
    pub bs: Vec<Sizes>,
    /// Numbers of threads.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = numjobs())]
    pub numjobs: Vec<u32>,
    /// Outstanding operations of a queue (path `dioxide-queue`): one queue, compared with as many
    /// threads.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = iodepth())]
    pub iodepth: Vec<u32>,
    #[command(flatten)]
    pub pace: PaceArgs,
    #[command(flatten)]
    pub output: Outputs,
}

#[derive(Args)]
pub struct Mixed {
    #[command(flatten)]
    pub place: Place,
    /// Percent of the operations that are reads.
    #[arg(long, value_name = "PERCENT", default_value = "50")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    pub rwmixread: u32,
    /// When a write counts as done.
    #[arg(long, value_enum, default_value_t)]
    pub durability: Durability,
    /// Block sizes: the bytes of one read or write.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "4k")]
    #[arg(value_parser = Sizes::parse_block)]
    pub bs: Vec<Sizes>,
    /// Numbers of threads.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2")]
    #[arg(value_parser = numjobs())]
    pub numjobs: Vec<u32>,
    /// Outstanding operations of a queue (path `dioxide-queue`): one queue in each thread.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = iodepth())]
    pub iodepth: Vec<u32>,
    /// The storage below: the system, or a simulated file that takes no time and stores nothing, to
    /// show the cost of dioxide itself.
    ///
    /// With `sim` there are only dioxide's paths, no file is made, and nothing is verified. The
    /// time of an operation includes the bench's own, mostly reading the clock twice.
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendArg,
    #[command(flatten)]
    pub pace: PaceArgs,
    /// Size of the file, or of the used part of the device.
    ///
    /// By default 256m or a quarter of the available space, the smaller; less if the device takes
    /// long to fill it.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub size: Option<u64>,
    #[command(flatten)]
    pub output: Outputs,
}

#[derive(Args)]
pub struct Indirect {
    /// Directory for the image of the volume.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Writes of one run [default: at most 1000, chosen by a short trial of each path, so that all
    /// of it takes under a minute].
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=COUNT_MAX))]
    pub count: Option<u64>,
    /// Rounds; each runs every path once, in an order that changes [default: at most 9, chosen as
    /// well].
    #[arg(long, value_name = "N", value_parser = rounds())]
    pub rounds: Option<u32>,
    /// Truncate the file to 48 KiB before each write, so that each write allocates its blocks. The
    /// truncation is timed too.
    #[arg(long)]
    pub fresh: bool,
    #[command(flatten)]
    pub output: Outputs,
}

/// A file, or a device.
#[derive(Args)]
pub struct Place {
    /// Directory for the scratch file.
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "device")]
    pub dir: PathBuf,
    /// Block device to run on instead of a file. ITS CONTENTS ARE DESTROYED.
    #[arg(long, value_name = "DEVICE", group = "devices", requires = "overwrite_device")]
    pub device: Option<PathBuf>,
    /// The same name again, or all of them, to confirm that the contents may be destroyed.
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', requires = "devices")]
    pub overwrite_device: Vec<PathBuf>,
}

/// Duration and number of runs.
#[derive(Args, Clone, Copy)]
pub struct PaceArgs {
    /// Time of one run [default: at most 2s, chosen by a short trial of each path, so that all of
    /// it takes under a minute].
    #[arg(long, value_name = "TIME", value_parser = runtime)]
    pub runtime: Option<Duration>,
    /// Rounds; each runs every path once, in an order that changes [default: at most 9, chosen as
    /// well].
    #[arg(long, value_name = "N", value_parser = rounds())]
    pub rounds: Option<u32>,
    /// Offered load: operations per second of all threads together [default: as many as possible].
    ///
    /// Each thread begins its operations at evenly spaced times, fixed beforehand. Latencies
    /// (`lat`) are measured from those times. An operation that starts late because an earlier one
    /// was slow counts as slow itself (no coordinated omission). One that was never begun counts as
    /// ending with the run. If the load is not reached, iops is lower. In fio, rate_iops is per
    /// job.
    ///
    /// A thread with queued operations or tasks polls until the next one is due. The CPU time of
    /// these paths includes that.
    #[arg(long, value_name = "IOPS", value_parser = clap::value_parser!(u64).range(1..=RATE_MAX))]
    pub rate: Option<u64>,
}

#[derive(Args)]
pub struct Outputs {
    #[command(flatten)]
    pub common: Output,
    /// Write the results in fio's format (`--output-format=json+`), for tools that read it: a file
    /// for each path.
    ///
    /// A reader of fio adds up the jobs of a file, so paths never share one. The name of the path
    /// comes before the extension of FILE: `out.json` gives `out.kernel.json`, `out.dioxide.json`
    /// and so on.
    #[arg(long, value_name = "FILE|-")]
    pub fio_json: Option<PathBuf>,
    /// Write only this path in fio's format, to FILE itself, or to stdout (`-`).
    #[arg(long, value_name = "PATH", requires = "fio_json")]
    pub fio_path: Option<String>,

    /// Compare with FILE, the output of an earlier `dioxide bench --json`, at the end. Its runtime,
    /// rounds and file size are the defaults of this run.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// A name for the result, such as the commit that was measured: `dioxide history` shows it.
    #[arg(long, value_name = "TEXT", value_parser = label)]
    pub label: Option<String>,
    /// With several block sizes, print the table of each as well as the matrices.
    #[arg(long, short)]
    pub verbose: bool,
}

impl Outputs {
    /// The requested outputs, without those in fio's format, whose number depends on the paths.
    pub fn wanted(&self) -> Vec<Wanted<'_>> {
        self.common.wanted()
    }
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Durability {
    /// When it is written; it is stable after the end of the run.
    #[default]
    OnSync,
    /// When it is stable, as with O_DSYNC.
    EveryWrite,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub enum BackendArg {
    /// A file or device.
    #[default]
    System,
    /// A simulated file that takes no time and stores nothing.
    Sim,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Growth {
    /// Allocated; recovery finds the end after a crash.
    #[default]
    Unwritten,
    /// Allocated and filled with zeros: durable writes need no journal.
    Zeroed,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub enum TailArg {
    /// Without gaps: the next record rewrites the last block.
    #[default]
    Rewrite,
    /// In the next block, with zeros between.
    Pad,
}

/// Part of a line in reports.
fn label(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a label is needed".into()),
        text if text.chars().any(char::is_control) => Err("a label is a single line".into()),
        text => Ok(text.into()),
    }
}

pub(super) fn growth_cap(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("a step of growth has at least one byte".into()),
        bytes => Ok(bytes),
    }
}

fn chunk(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes > 0 && bytes.is_multiple_of(4096) => Ok(bytes),
        _ => Err("a chunk is a multiple of 4k".into()),
    }
}

pub(super) fn runtime(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        time if (RUNTIME_MIN..=RUNTIME_MAX).contains(&time) => Ok(time),
        _ => Err("a run takes between 10ms and 1h".into()),
    }
}

pub(super) fn iodepth() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=IODEPTH_MAX)
}

pub(super) fn numjobs() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=NUMJOBS_MAX)
}

pub(super) fn rounds() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=ROUNDS_MAX)
}
