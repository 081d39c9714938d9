//! The plan: arguments checked against their target, and converted to cases.

use crate::args::{Append, Pace, Sync};
use crate::bench::place::BenchTarget;
use crate::case::{Case, Kind, Space};
use crate::meter::machine::Machine;
use crate::run::Course;
use anyhow::{Result, ensure};

const APPEND_BYTES: u64 = 4 << 10;
const SYNC_BYTES: u64 = 64 << 10;
const SYNC_DEPTH: usize = 64;
/// Without `--size`, files are limited to this size, and to this part of the free space.
const SIZE_DEFAULT_MAX_BYTES: u64 = 1 << 30;
const SIZE_DEFAULT_FRACTION: u64 = 4;

/// A validated bench.
pub struct Plan {
    pub course: Course,
    pub machine: Machine,
    pub rounds: u32,
    /// Ordered by durability, then by depth.
    pub cases: Vec<Case>,
}

impl Plan {
    pub fn append(args: &Append) -> Result<Self> {
        let place = BenchTarget::directory(&args.dir)?;
        let default = SIZE_DEFAULT_MAX_BYTES.min(place.room_bytes()? / SIZE_DEFAULT_FRACTION);
        // A prewritten file is filled in steps of this size.
        let size_bytes = args.size.unwrap_or(default) >> 20 << 20;
        ensure!(size_bytes > 0, "a file has 1m at least");
        let kinds = kinds(&args.paths);
        let mut cases = Vec::new();
        for &durability in &args.durability {
            for &iodepth in &args.iodepth {
                cases.extend(Case::appends(&kinds, &args.space, iodepth.into(), durability.into()));
            }
        }
        let mut plan = Self::with(place, APPEND_BYTES, size_bytes, &args.pace, cases);
        if plan.cases.iter().any(|case| case.space == Space::Overwrite) {
            plan.course.write_beforehand()?;
        }
        Ok(plan)
    }

    pub fn sync(args: &Sync) -> Result<Self> {
        let place = match &args.device {
            Some(device) => {
                ensure!(
                    args.overwrite_device.as_ref() == Some(device),
                    "--device and --overwrite-device name different devices; nothing was touched"
                );
                BenchTarget::device(device)?
            }
            None => BenchTarget::directory(&args.dir)?,
        };
        let size_bytes = SYNC_DEPTH as u64 * SYNC_BYTES;
        ensure!(
            place.room_bytes()? >= size_bytes,
            "{} has no room for {size_bytes} bytes",
            place.name()
        );
        let cases = Case::syncs(&kinds(&args.paths), SYNC_DEPTH);
        Ok(Self::with(place, SYNC_BYTES, size_bytes, &args.pace, cases))
    }

    fn with(
        place: BenchTarget,
        bs_bytes: u64,
        size_bytes: u64,
        pace: &Pace,
        cases: Vec<Case>,
    ) -> Self {
        let machine = Machine::describe(place.name(), place.disk.as_ref());
        let course = Course::new(place, bs_bytes, size_bytes, pace.runtime);
        Self { course, machine, rounds: pace.rounds, cases }
    }

    /// The expected duration.
    pub fn announcement(&self) -> String {
        let runs = self.cases.len() as u32 * self.rounds;
        let seconds = (self.course.runtime * runs).as_secs();
        format!("{runs} runs, at least {seconds} s")
    }
}

fn kinds(paths: &[Kind]) -> Vec<Kind> {
    if paths.is_empty() { Kind::ALL.into() } else { paths.into() }
}
