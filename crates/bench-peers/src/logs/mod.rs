//! Write-ahead logs: published crates and `dioxide-log`, each as durable as it can be.
//!
//! `peers` has a module for each crate. `case` names the work, `run` does it, and `ledger` compares
//! what a log has afterwards with what it acknowledged.

mod case;
mod gather;
mod ledger;
mod peers;
mod report;
mod run;

pub use case::Kind;

use crate::args::Log;
use crate::bench::place::BenchTarget;
use crate::meter::machine::Machine;
use crate::{exit, rounds};
use anyhow::{Context, Result, ensure};
use case::{Case, Shape};
use run::Course;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The command: from arguments to tables.
pub fn measure(args: &Log) -> Result<()> {
    let cases = cases(args)?;
    let place = BenchTarget::directory(&args.dir)?;
    let machine = Machine::describe(place.name(), place.disk.as_ref());
    let (runtime, rounds) = (args.pace.runtime, args.pace.rounds);
    let runs = cases.len() as u32 * rounds;
    exit::say(&format!("{runs} runs, at least {} s", (runtime * runs).as_secs()));
    raise_descriptor_limit()?;
    let (dir, size_bytes, rate) = (args.dir.clone(), args.size, args.rate);
    let course = Course { place, dir, size_bytes, runtime, rate };
    let rows = rounds::run(&cases, rounds, |case| course.run(case))?;
    crate::report::print(&args.output, |style| {
        let heading = crate::report::heading(&machine, &course.place, rounds, runtime);
        report::document(heading, &rows, style)
    })
}

/// Ordered by shape, then by the size of records.
fn cases(args: &Log) -> Result<Vec<Case>> {
    let shortest = args.record_bytes.iter().copied().min().unwrap_or(0);
    ensure!(
        shortest >= ledger::RECORD_BYTES_MIN,
        "a record has {} bytes at least",
        ledger::RECORD_BYTES_MIN
    );
    let kinds = match &args.paths[..] {
        [] => Kind::ALL.into_iter().filter(|kind| kind.is_built()).collect(),
        paths => paths.to_vec(),
    };
    let threads = args.threads.iter().map(|&count| Shape::Threads(count));
    let batches = args.batch.iter().map(|&count| Shape::Batch(count));
    let logs = args.logs.iter().map(|&count| Shape::Logs(count));
    let groups = args.groups.iter().map(|&count| Shape::Groups(count));
    let mut shapes: Vec<_> = threads.chain(batches).chain(logs).chain(groups).collect();
    if shapes.is_empty() {
        shapes = Shape::DEFAULT.into();
    }
    let mut cases = Vec::new();
    for shape in shapes {
        for &record_bytes in &args.record_bytes {
            let taken = kinds.iter().filter(|kind| kind.takes(shape));
            cases.extend(taken.map(|&kind| Case { kind, shape, record_bytes }));
        }
    }
    Ok(cases)
}

/// Many logs have many files.
fn raise_descriptor_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .context("raise the limit of open files")
}
