//! `dioxide bench`: the same work by several routes, interleaved, timed, verified and compared.

mod append;
mod backing;
mod blocks;
pub mod crew;
pub mod figures;
mod group_commit;
pub mod growing;
mod indirect;
mod job;
pub mod latency;
mod ledger;
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
mod schedule;
pub mod stamp;
mod sync;
mod tail_block;
mod target;
pub mod task;
mod tickets;
mod volume;
pub mod work;

use crate::args;
use crate::exit::say;
use crate::meter::machine::Machine;
use crate::report::{self, Report};
use anyhow::Result;
use plan::Plan;
use progress::Progress;
use work::Work;

/// Plans, measures, reports.
pub fn run(args: args::Bench) -> Result<()> {
    let plan = Plan::new(&args)?;
    let routes = plan.works.iter().flat_map(|work| &work.rows).map(|(_, route)| *route);
    report::check(routes, args.output())?;
    plan.works.iter().filter_map(Work::announcement).for_each(|sentence| say(&sentence));
    let machine = Machine::describe(plan.place.name(), plan.place.disk.as_ref());
    let rows = measure(&plan)?;
    let report = Report { machine, fs: plan.place.fs, rows };
    report::print(&report, args.output())
}

fn measure(plan: &Plan) -> Result<Vec<figures::Row>> {
    let progress = Progress::of(plan.works.iter().map(Work::runs).sum());
    let mut rows = Vec::new();
    for work in &plan.works {
        rows.extend(rounds::run(&plan.place, work, &progress)?);
    }
    Ok(rows)
}
