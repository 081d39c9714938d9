//! `bench-peers`: async I/O libraries and dioxide on the same work, interleaved, in one table; and
//! published write-ahead logs and `dioxide-log`.
//!
//! README.md shows how each is used.

mod args;
mod blocks;
mod case;
mod logs;
mod paths;
mod plan;
mod report;
mod rounds;
mod run;
mod tickets;

// Files of `dioxide bench`, so that both measure in the same way.
#[allow(dead_code)]
mod bench;
#[path = "../../dioxide-cli/src/device/mod.rs"]
mod device;
#[path = "../../dioxide-cli/src/exit.rs"]
#[allow(dead_code)]
mod exit;
#[path = "../../dioxide-cli/src/interrupt.rs"]
mod interrupt;
#[path = "../../dioxide-cli/src/meter/mod.rs"]
#[allow(dead_code)]
mod meter;
#[path = "../../dioxide-cli/src/sys.rs"]
#[allow(dead_code)]
mod sys;
#[path = "../../dioxide-cli/src/units.rs"]
#[allow(dead_code, unused_imports)]
mod units;
#[path = "../../dioxide-cli/src/warnings.rs"]
#[allow(dead_code)]
mod warnings;

use anyhow::Result;
use args::Scenario;
use clap::Parser;
use plan::Plan;

fn main() -> std::process::ExitCode {
    let args = args::Args::parse();
    warnings::to_stderr();
    exit::code(interrupt::listen().and_then(|()| measure(&args)))
}

fn measure(args: &args::Args) -> Result<()> {
    let (plan, output) = match &args.scenario {
        Scenario::Append(append) => (Plan::append(append)?, &append.output),
        Scenario::Sync(sync) => (Plan::sync(sync)?, &sync.output),
        Scenario::Log(log) => return logs::measure(log),
    };
    exit::say(&plan.announcement());
    let rows = rounds::run(&plan.cases, plan.rounds, |case| plan.course.run(case))?;
    report::print(output, |style| report::document(&plan, &rows, style))
}
