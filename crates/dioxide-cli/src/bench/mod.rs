//! `dioxide bench`: the same work by several routes, interleaved, timed, verified and compared.

mod append;
mod backing;
mod batches;
mod blocks;
mod checkpoint;
mod copy;
pub mod crew;
mod descriptors;
pub mod estimate;
pub mod figures;
mod files;
mod group_commit;
pub mod growing;
mod indirect;
mod job;
pub mod latency;
pub mod ledger;
mod locked;
mod log;
mod members;
mod mixed;
pub mod order;
pub mod place;
pub mod plan;
pub mod progress;
mod queued;
pub mod ratio;
mod records;
pub mod rounds;
mod route;
mod schedule;
mod set;
pub mod stamp;
mod sync;
mod tail_block;
pub mod target;
pub mod task;
mod tasks;
mod tickets;
pub mod trial;
mod volume;
pub mod work;
mod write_ahead;

use crate::args;
use crate::compare;
use crate::exit::say;
use crate::meter::machine::Machine;
use crate::report::{self, Report};
use crate::saved;
use anyhow::Result;
use place::BenchTarget;
use plan::{Draft, Plan};
use progress::Progress;
use std::time::Instant;
use work::Work;

/// Plans, measures, reports.
pub fn run(args: args::Bench) -> Result<()> {
    let baseline = args.output().baseline.as_deref().map(saved::read).transpose()?;
    let Plan { place, drafts } = Plan::new(&args)?;
    let drafts: Vec<_> = drafts.into_iter().map(|draft| draft.like(baseline.as_ref())).collect();
    let rows = drafts.iter().flat_map(|draft| &draft.work.rows);
    report::check(rows.map(|(_, route)| *route), args.output())?;
    let works = settle(&place, drafts)?;
    works.iter().filter_map(Work::announcement).for_each(|sentence| say(&sentence));
    let machine = Machine::describe(place.name(), place.disk.as_ref());
    let rows = measure(&place, &works)?;
    let label = args.output().label.clone();
    let report = Report { label, machine, fs: place.fs, rows };
    let both = baseline.map(|old| anyhow::Ok((old, as_saved(&report)?))).transpose()?;
    let comparison = both.as_ref().map(|(old, new)| compare::with_baseline(old, new)).transpose();
    // A run that is not alike is worth its report.
    let shown = comparison.as_ref().ok().and_then(Option::as_ref);
    report::print(&report, args.output(), shown)?;
    comparison.map(drop)
}

/// The new results, as a later comparison would read them.
fn as_saved(report: &Report) -> Result<saved::SavedDocument> {
    saved::parse(&serde_json::to_vec(&report::json::document(report))?)
}

/// Tries every path shortly, where the pace or the duration is open.
fn settle(place: &BenchTarget, drafts: Vec<Draft>) -> Result<Vec<Work>> {
    let tried = |draft: &&Draft| draft.typed.needs_trials();
    let progress = Progress::with_lines(
        drafts.iter().filter(tried).map(|draft| draft.work.rows.len() as u64).sum(),
    );
    let settle = |draft: Draft| {
        if !draft.typed.needs_trials() {
            return Ok(draft.work);
        }
        let begun = Instant::now();
        let trials = trial::of_each(place, &draft.work, &progress)?;
        Ok(draft.settle(&trials, begun.elapsed()))
    };
    drafts.into_iter().map(settle).collect()
}

fn measure(place: &BenchTarget, works: &[Work]) -> Result<Vec<figures::Row>> {
    let progress = Progress::with_lines(works.iter().map(Work::runs).sum());
    let mut rows = Vec::new();
    for work in works {
        rows.extend(rounds::run(place, work, &progress)?);
    }
    Ok(rows)
}
