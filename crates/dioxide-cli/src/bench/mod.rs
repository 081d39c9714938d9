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
use crate::compare::{self, Comparison};
use crate::exit::say;
use crate::meter::machine::Machine;
use crate::report::{self, Report};
use crate::saved::{self, SavedDocument};
use anyhow::{Context, Result};
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
    conclude(&report, baseline, |shown| report::print(&report, args.output(), shown))
}

/// Prints the report, with its comparison with the baseline. A run that cannot be compared is worth
/// its report.
fn conclude(
    report: &Report,
    baseline: Option<SavedDocument>,
    print: impl FnOnce(Option<&Comparison<'_>>) -> Result<()>,
) -> Result<()> {
    let both = baseline.map(|old| anyhow::Ok((old, as_saved(report)?))).transpose();
    let known = both.as_ref().ok().and_then(Option::as_ref);
    let comparison = known.map(|(old, new)| compare::with_baseline(old, new)).transpose();
    print(comparison.as_ref().ok().and_then(Option::as_ref))?;
    comparison.map(drop)?;
    both.map(drop).context("the new results")
}

/// The new results, as a later comparison would read them.
fn as_saved(report: &Report) -> Result<SavedDocument> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use figures::examples::{append_point, row};
    use work::Route;

    /// The defect: with a baseline, a directory with a tab in its name had no report.
    #[test]
    fn a_report_that_cannot_be_compared_was_lost() {
        let report = |target: &str| {
            let machine = Machine::describe(target.into(), None);
            let rows = vec![row(append_point(1), Route::Kernel, &[100])];
            Report { label: None, machine, fs: None, rows }
        };
        let conclude = |target| {
            let mut printed = None;
            let baseline = Some(as_saved(&report("/before")).unwrap());
            let result = conclude(&report(target), baseline, |shown| {
                printed = Some(shown.is_some());
                Ok(())
            });
            (printed, result.map_err(|error| format!("{error:#}")))
        };
        let why = "the new results: has control characters in its texts";
        assert_eq!(conclude("/a\tdirectory"), (Some(false), Err(why.into())));
        assert_eq!(conclude("/before"), (Some(true), Ok(())));
    }
}
