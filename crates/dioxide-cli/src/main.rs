//! `dioxide`: measures direct I/O on a directory or a device, and recovers files after a crash.

mod args;
mod bench;
mod compare;
mod completions;
mod copy;
mod device;
mod diagnose;
mod exit;
mod history;
mod interrupt;
mod man;
mod meter;
mod output;
mod plot;
mod probe;
mod records;
mod recover;
mod report;
mod run;
mod saved;
#[cfg(test)]
mod schema;
mod sizes;
#[cfg(test)]
mod snapshots;
mod sync_ring;
mod sys;
mod terminal;
mod tools;
mod units;
mod warnings;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let cli = args::Cli::parse();
    warnings::to_stderr();
    let listening = match cli.command {
        args::Command::Bench(_)
        | args::Command::Copy(_)
        | args::Command::Diagnose(_)
        | args::Command::Probe(_)
        | args::Command::Recover(_) => interrupt::listen(),
        _ => Ok(()),
    };
    let outcome = listening.and_then(|()| match cli.command {
        args::Command::Bench(bench) => bench::run(*bench),
        args::Command::Compare(compare) => compare::run(compare),
        args::Command::Copy(copy) => copy::run(copy),
        args::Command::Diagnose(diagnose) => diagnose::run(*diagnose),
        args::Command::History(history) => history::run(history),
        args::Command::Log(log) => records::run(&log),
        args::Command::Plot(plot) => plot::run(&plot),
        args::Command::Probe(probe) => probe::run(&probe),
        args::Command::Recover(recover) => recover::run(recover),
        args::Command::Run(run) => run::run(run),
        args::Command::Completions(completions) => completions::run(&completions),
        args::Command::Man(man) => man::run(&man),
    });
    exit::code(outcome)
}
