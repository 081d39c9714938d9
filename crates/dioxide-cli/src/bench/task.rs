//! One run: one route at one point, from fresh ground to verified blocks. Each scenario has its own file.

use super::crew::Crew;
use super::figures::Run;
use super::ledger::{End, Ledger, Places};
use super::place::{Ground, Place};
use super::schedule::Schedule;
use super::stamp::salt;
use super::work::{Backend, Point, Route, Scenario, Work};
use super::{append, mixed, sync};
use anyhow::{Context, Result};
use std::time::Duration;

/// What a run needs to know.
pub struct Task<'a> {
    pub place: &'a Place,
    pub point: Point,
    pub route: Route,
    pub runtime: Duration,
    pub size_bytes: u64,
    pub growth_cap_bytes: Option<u64>,
}

impl<'a> Task<'a> {
    pub fn new(place: &'a Place, work: &Work, point: Point, route: Route) -> Self {
        let &Work { runtime, size_bytes, growth_cap_bytes, .. } = work;
        Self { place, point, route, runtime, size_bytes, growth_cap_bytes }
    }

    /// Does the work, timed, then checks that everything acknowledged is there.
    pub fn run(&self) -> Result<Run> {
        let outcome = match self.point.scenario {
            Scenario::Append => append::run(self),
            Scenario::Sync => sync::run(self),
            Scenario::Mixed => mixed::run(self),
        };
        let what = || {
            let (scenario, route) = (self.point.scenario.name(), self.route.name());
            let (numjobs, iodepth) = (self.threads(), self.route.iodepth());
            format!("{scenario}, {route}, numjobs {numjobs}, iodepth {iodepth}, on {}", self.place.name())
        };
        outcome.with_context(what)
    }

    /// A ledger for as many blocks as the run can write.
    pub fn ledger(&self, places: Places) -> Ledger {
        let bs_bytes = self.point.bs_bytes;
        match self.point.backend {
            Backend::System => Ledger::new(salt(), bs_bytes, self.size_bytes / bs_bytes, places),
            Backend::Sim => Ledger::of_nothing(bs_bytes),
        }
    }

    fn threads(&self) -> usize {
        self.point.threads(self.route)
    }

    /// The part of the size that whole blocks fill.
    pub fn whole_blocks_bytes(&self) -> u64 {
        self.size_bytes - self.size_bytes % self.point.bs_bytes
    }

    pub fn crew(&self, ledger: &'a Ledger) -> Crew<'a> {
        Crew {
            threads: self.threads(),
            bs_bytes: self.point.bs_bytes,
            runtime: self.runtime,
            schedule: self.point.rate_iops.map(|rate| Schedule::new(rate, self.threads())),
            ledger,
            disk: self.place.disk.as_ref(),
        }
    }

    /// After the clock: reads back what was acknowledged, and counts extents.
    pub fn conclude(&self, mut run: Run, ground: &Ground, ledger: &Ledger, end: End) -> Result<Run> {
        if self.point.backend == Backend::System {
            ledger.verify(&ground.open_to_verify()?, end)?;
        }
        run.figures.extents = ground.extents().map(|count| count as f64);
        run.figures.is_cut_short = run.figures.elapsed < self.runtime;
        Ok(run)
    }
}
