//! One run: one route at one point, from a fresh file to verified blocks. Each scenario has its own
//! file.

use super::blocks::{Blocks, Places};
use super::crew::{Crew, Watching};
use super::figures::RouteRun;
use super::ledger::{End, Ledger};
use super::place::{BenchTarget, O_DSYNC, RunFile};
use super::records::{Gaps, Records};
use super::schedule::Schedule;
use super::stamp::salt;
use super::target::Direction;
use super::work::{Backend, Point, Route, Scenario, Units, Work};
use super::{append, checkpoint, copy, files, indirect, log, mixed, sync};
use anyhow::{Context, Result};
use dioxide::{Durability, Tail};
use rustix::fs::OFlags;
use std::time::Duration;

/// The parameters of a run.
pub struct Task<'a> {
    pub place: &'a BenchTarget,
    pub point: Point,
    pub route: Route,
    pub runtime: Duration,
    pub count: Option<u64>,
    pub size_bytes: u64,
    pub units: Units,
    pub growth_cap_bytes: Option<u64>,
    pub writes_afresh: bool,
    pub watching: Option<&'a Watching>,
}

impl<'a> Task<'a> {
    pub fn new(place: &'a BenchTarget, work: &Work, point: Point, route: Route) -> Self {
        let &Work { runtime, count, size_bytes, units, growth_cap_bytes, writes_afresh, .. } = work;
        Self {
            place,
            point,
            route,
            runtime,
            count,
            size_bytes,
            units,
            growth_cap_bytes,
            writes_afresh,
            watching: None,
        }
    }

    /// Runs the work, timed, then verifies everything acknowledged.
    pub fn run(&self) -> Result<RouteRun> {
        let outcome = match self.point.scenario {
            Scenario::Append => append::run(self),
            Scenario::Sync => sync::run(self),
            Scenario::Mixed => mixed::run(self),
            Scenario::Indirect => indirect::run(self),
            Scenario::Files => files::run(self),
            Scenario::Checkpoint => checkpoint::run(self),
            Scenario::Log => log::run(self),
            Scenario::Copy => copy::run(self),
        };
        let what = || {
            let (scenario, route) = (self.point.scenario.name(), self.route.name());
            let (numjobs, iodepth) = (self.threads(), self.route.iodepth());
            let files = self.point.files.map(|files| format!(", {files} files"));
            format!(
                "{scenario}, {route}, numjobs {numjobs}, iodepth {iodepth}{}, on {}",
                files.unwrap_or_default(),
                self.place.name()
            )
        };
        outcome.with_context(what)
    }

    /// A ledger for the maximum that the run can write.
    pub fn ledger(&self, places: Places) -> Ledger {
        let sizes = self.point.sizes;
        let count = self.size_bytes / sizes.min_bytes;
        match (self.point.backend, self.point.tail) {
            (Backend::Sim, _) => Ledger::Nothing,
            (_, None) => Ledger::Blocks(Blocks::new(salt(), sizes.max_bytes, count, places)),
            (_, Some(tail)) => Ledger::Records(Records::new(salt(), sizes, count, self.gaps(tail))),
        }
    }

    fn gaps(&self, tail: Tail) -> Gaps {
        match tail {
            _ if matches!(
                self.route,
                Route::WriteAhead | Route::WriteAheadTasks { .. } | Route::WriteAheadSet
            ) =>
            {
                // An LSN shows an offset only if all records have one length.
                Gaps::Padding { unit_bytes: self.point.sizes.max_bytes }
            }
            Tail::Pad if self.route.is_dioxide() => {
                Gaps::Padding { unit_bytes: self.units.append_bytes }
            }
            _ => Gaps::None,
        }
    }

    /// The maximum of padding for the outstanding operations of one log.
    pub fn padding_max_bytes(&self) -> u64 {
        let logs = self.point.files.unwrap_or(1);
        match self.point.tail.map(|tail| self.gaps(tail)) {
            Some(Gaps::Padding { unit_bytes }) => {
                let padded = self.point.sizes.max_bytes.next_multiple_of(unit_bytes);
                padded * self.point.lanes(self.route).div_ceil(logs) as u64
            }
            _ => 0,
        }
    }

    /// The flags of the kernel's paths, besides O_DIRECT.
    pub fn flags(&self) -> OFlags {
        match self.point.durability {
            Durability::EveryWrite if !self.flushes_apart() => O_DSYNC,
            _ => OFlags::empty(),
        }
    }

    /// Whether each durable write of the kernel's paths has an fdatasync. On a device that is
    /// faster: an O_DSYNC write there flushes twice.
    pub fn flushes_apart(&self) -> bool {
        self.point.durability == Durability::EveryWrite && self.place.is_one_device()
    }

    fn threads(&self) -> usize {
        self.point.threads(self.route)
    }

    /// The part of the size that whole blocks fill, and whole units of direct writes.
    pub fn whole_blocks_bytes(&self) -> u64 {
        let block_bytes = match self.point.tail {
            None => self.point.sizes.max_bytes.max(self.units.write_bytes),
            Some(_) => self.units.append_bytes,
        };
        self.size_bytes - self.size_bytes % block_bytes
    }

    pub fn crew(&self, ledger: &'a Ledger) -> Crew<'a> {
        Crew {
            threads: self.threads(),
            bs_max_bytes: self.point.sizes.max_bytes,
            runtime: self.runtime,
            schedule: self.point.rate_iops.map(|rate| Schedule::new(rate, self.threads())),
            direction: match self.point.rwmixread {
                None | Some(0) => Some(Direction::Write),
                Some(100) => Some(Direction::Read),
                Some(_) => None,
            },
            ledger,
            disk: self.place.disk.as_ref(),
            watching: self.watching,
        }
    }

    /// After the clock: verifies what was acknowledged, and counts extents.
    pub fn conclude(
        &self,
        mut run: RouteRun,
        ground: &RunFile,
        ledger: &Ledger,
        end: End,
    ) -> Result<RouteRun> {
        if self.point.backend == Backend::System {
            ledger.verify(&ground.open_to_verify()?, end)?;
        }
        run.figures.extents = ground.extents().map(|count| count as f64);
        run.figures.is_cut_short = run.figures.elapsed < self.runtime;
        Ok(run)
    }
}
