//! `dioxide`: shows what direct I/O reaches on a directory or a device, and recovers files after a crash.

mod args;
mod bench;
mod device;
mod exit;
mod interrupt;
mod meter;
mod recover;
mod report;
mod run;
mod sizes;
mod sys;
mod tools;
mod units;
mod warnings;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let cli = args::Cli::parse();
    warnings::to_stderr();
    let outcome = interrupt::listen().and_then(|()| match cli.command {
        args::Command::Bench(bench) => bench::run(*bench),
        args::Command::Recover(recover) => recover::run(recover),
        args::Command::Run(run) => run::run(run),
    });
    exit::code(outcome)
}
