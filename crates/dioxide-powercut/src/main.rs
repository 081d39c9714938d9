//! The command: runs a campaign of power cuts, or repeats one power cut of a saved recording.

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use dioxide_powercut::SCENARIOS;
use dioxide_powercut::campaign::{self, Finding, Results, Settings, Tally};
use dioxide_powercut::recording::{Again, Cut, Flushes, Recording};
use dioxide_powercut::workload::{self, WORKLOADS, Workload};
use dioxide_testkit::fuse_disk::Keep;
use dioxide_testkit::lab::Fs;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Makes power cuts of simulated disks at any moment and looks for data that dioxide lost. Needs
/// root and the lab: scripts/with-lab cargo run --release -p dioxide-powercut -- run
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Record workloads and replay them with power cuts. Exit code 1 if data was lost, or if a
    /// control lost nothing
    Run(RunArgs),
    /// Repeat one power cut of a saved recording. Exit code 1 if data was lost
    Replay(ReplayArgs),
}

#[derive(Args)]
struct RunArgs {
    /// Number of power cuts, over all file systems and workloads
    #[arg(long, default_value_t = 100_000)]
    cuts: u64,
    /// Seed of all random choices; the order in which threads run stays random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File systems to test
    #[arg(long, value_delimiter = ',', value_parser = file_system)]
    #[arg(default_value = "ext4,xfs,btrfs,btrfs-nocow,ext3")]
    fs: Vec<Fs>,
    /// Workloads to run, by the names in the table [default: all that must lose nothing]
    #[arg(long, value_delimiter = ',', value_parser = workload)]
    workloads: Vec<&'static Workload>,
    /// Recordings made concurrently
    #[arg(long, default_value_t = 3)]
    jobs: usize,
    /// Power cuts of each recording
    #[arg(long, default_value_t = 200)]
    cuts_per_recording: u64,
    /// Records that each thread of a workload writes, 8 or more
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(8..))]
    records: u64,
    /// Maximum delay of a request by the disk, in microseconds, before it takes effect and again
    /// after
    #[arg(long, default_value_t = 1000)]
    delay_us: u64,
    /// Directory for recordings with losses
    #[arg(long, default_value = ".")]
    save: PathBuf,
}

#[derive(Args)]
struct ReplayArgs {
    /// A saved recording
    log: PathBuf,
    /// Its file system
    #[arg(long, value_parser = file_system)]
    fs: Fs,
    /// Entries of the log before the power cut
    #[arg(long)]
    after: u64,
    /// Unflushed data that the disk keeps: nothing, all, sectors:SEED or writes:SEED
    #[arg(long)]
    keep: Keep,
    /// A second power cut during recovery: after how many 1024ths of the writes then, and the data
    /// kept (as 512:all)
    #[arg(long)]
    again: Option<Again>,
}

fn file_system(name: &str) -> Result<Fs> {
    let known = Fs::ALL.into_iter().find(|fs| fs.name() == name);
    let Some(fs) = known else { bail!("no such file system") };
    workload::everywhere(fs).map_or_else(|why| bail!(why), |()| Ok(fs))
}

fn workload(name: &str) -> Result<&'static Workload> {
    workload::named(name).with_context(|| {
        let all: Vec<_> = workload::all().map(|workload| workload.name).collect();
        format!("no such workload. There are: {}", all.join(", "))
    })
}

fn main() -> ExitCode {
    if let Some(code) = dioxide_testkit::serve_if_asked(SCENARIOS) {
        return code;
    }
    let done = match Cli::parse().command {
        Command::Run(args) => run(args),
        Command::Replay(args) => replay(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("dioxide-powercut: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: RunArgs) -> Result<bool> {
    let settings = Settings {
        file_systems: args.fs,
        workloads: match args.workloads {
            all if all.is_empty() => WORKLOADS.iter().collect(),
            some => some,
        },
        cuts: args.cuts,
        cuts_of_a_recording: args.cuts_per_recording.max(1),
        seed: args.seed,
        jobs: args.jobs,
        records: args.records,
        delay_max: Duration::from_micros(args.delay_us),
        save_dir: Some(args.save),
    };
    let stop = listen()?;
    let bar = ProgressBar::new(campaign::total(&settings));
    let style = ProgressStyle::with_template(
        "{bar:30} {pos}/{len} power cuts, {per_sec}, {elapsed}, {eta} \
                                      left",
    );
    bar.set_style(style.expect("the template is valid"));
    let begin = Instant::now();
    let results = campaign::run(&settings, &stop, || bar.inc(1));
    bar.finish_and_clear();
    report(&results, begin.elapsed());
    if stop.load(Ordering::Relaxed) {
        println!("Interrupted.");
    }
    Ok(results.are_good())
}

/// The first signal lets the current power cuts end; then everything is taken down.
fn listen() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context("listen for Ctrl-C")?;
    }
    Ok(stop)
}

fn report(results: &Results, time: Duration) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "fs",
        "workload",
        "recordings",
        "flushes",
        "cuts",
        "records",
        "fsck",
        "losses",
        "",
    ]);
    table
        .column_iter_mut()
        .skip(2)
        .take(6)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table.add_rows(results.tallies.iter().map(row));
    println!("{table}");
    let cuts: u64 = results.tallies.iter().map(|tally| tally.cuts).sum();
    let per_s = cuts as f64 / time.as_secs_f64();
    println!("{cuts} power cuts in {:.0} s, {per_s:.1}/s.", time.as_secs_f64());
    results.findings.iter().for_each(tell);
    if let Some(failure) = &results.failure {
        println!("The rig failed: {failure}");
    }
}

fn row(tally: &Tally) -> [String; 9] {
    let workload = match tally.flushes_were {
        Flushes::Kept => tally.workload.name.to_owned(),
        Flushes::Ignored => format!("{}, lying disk", tally.workload.name),
    };
    let verdict = match (tally.is_control(), tally.is_as_it_should_be()) {
        (false, true) => "",
        (false, false) => "LOST",
        (true, true) => "control, must lose",
        (true, false) => "CONTROL LOST NOTHING",
    };
    let numbers =
        [tally.recordings, tally.flushes, tally.cuts, tally.records, tally.fscks, tally.lossy];
    let [recordings, flushes, cuts, records, fscks, lossy] =
        numbers.map(|number| number.to_string());
    [
        tally.fs.to_string(),
        workload,
        recordings,
        flushes,
        cuts,
        records,
        fscks,
        lossy,
        verdict.to_owned(),
    ]
}

fn tell(finding: &Finding) {
    let Finding { fs, workload, seed, cut, losses, log } = finding;
    println!("\n{fs} {workload}, seed {seed}, power cut after {} keeping {}:", cut.after, cut.keep);
    losses.iter().for_each(|loss| println!("  {loss}"));
    if let Some(log) = log {
        let log = log.display();
        let again = cut.again.map(|again| format!(" --again {again}")).unwrap_or_default();
        println!(
            "  dioxide-powercut replay {log} --fs {fs} --after {} --keep {}{again}",
            cut.after, cut.keep
        );
    }
}

fn replay(args: &ReplayArgs) -> Result<bool> {
    let log = args.log.canonicalize().with_context(|| args.log.display().to_string())?;
    let mut recording = Recording::load(args.fs, &log)?;
    let seen = recording.replay(Cut { after: args.after, keep: args.keep, again: args.again })?;
    println!("{} records had to be there.", seen.records);
    seen.losses.iter().for_each(|loss| println!("{loss}"));
    if seen.losses.is_empty() {
        recording.fsck()?;
    }
    Ok(seen.losses.is_empty())
}
