//! The plan: the workloads to run and observe.

use crate::args;
use crate::bench::place::BenchTarget;
use crate::bench::plan::{self, Crews};
use crate::bench::work::{self, Point, Route, Work};
use crate::sizes::Sizes;
use anyhow::{Result, bail, ensure};
use dioxide::{Durability, Growth};
use dioxide_diagnose::evidence::{self, Rw, Subject};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// A diagnosis takes at most a minute, unless times are given. This part of it is for the curves.
const CURVES_MAX: Duration = Duration::from_secs(40);
/// The minimum observation of the largest step.
const WATCHED_MIN: Duration = Duration::from_secs(2);
/// Size limit without `--size` of files that are written once.
const SIZE_DEFAULT_MAX_BYTES: u64 = 1 << 30;
/// Size limit without `--size` of files that are filled before each run.
const FILLED_SIZE_DEFAULT_MAX_BYTES: u64 = 32 << 20;

/// A validated diagnosis of a path.
pub struct DiagnosisPlan {
    pub place: BenchTarget,
    pub inquiries: Vec<Inquiry>,
}

/// One workload.
pub struct Inquiry {
    pub rw: Rw,
    /// The curve, and the other paths at its last step.
    pub work: Work,
    /// The last step of the curve.
    pub watched: (Point, Route),
    pub watched_runtime: Duration,
    pub place: String,
}

impl DiagnosisPlan {
    pub fn new(path: &Path, args: &args::Workload) -> Result<Self> {
        let place = place(path, args.overwrite_device.as_deref())?;
        let kinds = kinds(&place, &args.rw)?;
        let pace = InquiryPace::of(args, kinds.len());
        let inquiry = |rw| Inquiry::new(&place, rw, args, &pace);
        let inquiries = kinds.into_iter().map(inquiry).collect::<Result<_>>()?;
        Ok(Self { place, inquiries })
    }
}

impl Inquiry {
    fn new(place: &BenchTarget, rw: Rw, args: &args::Workload, pace: &InquiryPace) -> Result<Self> {
        let route = if rw == Rw::Hole { Route::Sparse } else { Route::Kernel };
        let points = points(rw, args);
        let Some(&last) = points.last() else { bail!("no numbers of threads") };
        let curve = points.into_iter().map(|point| (point, route));
        let rows = curve.chain(others(rw, last).into_iter().map(|route| (last, route))).collect();
        let size = |default_max_bytes| plan::size(place, args.size, default_max_bytes);
        let work = match rw {
            Rw::Append | Rw::Hole => {
                plan::append_work(place, rows, pace.bench, size(SIZE_DEFAULT_MAX_BYTES)?, false)
            }
            Rw::Sync => plan::sync_work(place, rows, pace.bench),
            Rw::Overwrite | Rw::Mixed => {
                let size_bytes = size(FILLED_SIZE_DEFAULT_MAX_BYTES)?;
                plan::whole_mixed_work(place, rows, pace.bench, size_bytes)
            }
        }?;
        let watched =
            *work.rows.iter().rfind(|row| row.1 == route).expect("the curve is never left out");
        Ok(Self {
            rw,
            work: Work { budget: pace.budget, ..work },
            watched,
            watched_runtime: pace.bench.runtime.max(WATCHED_MIN),
            place: place.name(),
        })
    }

    /// The maximum number of runs.
    pub fn runs(&self) -> u64 {
        self.work.runs() + 1
    }

    /// The announcement of a long duration, as in a bench.
    pub fn announcement(&self) -> Option<String> {
        self.work.announcement().filter(|_| self.work.budget.is_none())
    }

    /// The subject of the evidence.
    pub fn subject(&self) -> Subject {
        let (point, _) = self.watched;
        Subject::Workload(evidence::Workload {
            rw: self.rw,
            place: self.place.clone(),
            bs_bytes: point.sizes.max_bytes,
            numjobs: point.numjobs,
            is_durable: point.durability == Durability::EveryWrite,
        })
    }
}

/// Duration and rounds.
struct InquiryPace {
    bench: work::Pace,
    /// None if the user has given times.
    budget: Option<Duration>,
}

impl InquiryPace {
    fn of(args: &args::Workload, kinds: usize) -> Self {
        let (runtime_ms, rounds) = if kinds == 1 { (500, 5) } else { (200, 3) };
        let runtime = args.runtime.unwrap_or(Duration::from_millis(runtime_ms));
        let is_reported = args.runtime.is_some() || args.rounds.is_some();
        let budget = (!is_reported).then(|| CURVES_MAX / kinds as u32);
        Self { bench: work::Pace { runtime, rounds: args.rounds.unwrap_or(rounds) }, budget }
    }
}

/// A directory, or a device if it is named twice.
fn place(path: &Path, overwrite_device: Option<&Path>) -> Result<BenchTarget> {
    let name = path.display();
    match overwrite_device {
        Some(device) => {
            ensure!(
                device == path,
                "{name} and --overwrite-device {} are not the same; nothing was touched",
                device.display()
            );
            BenchTarget::device(path)
        }
        None if is_device(path) => {
            bail!(
                "{name} is a block device: --overwrite-device {name} confirms that its contents \
                 may be destroyed"
            )
        }
        None => BenchTarget::directory(path),
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// The given workloads, each once; by default all that apply.
fn kinds(place: &BenchTarget, typed: &[args::Rw]) -> Result<Vec<Rw>> {
    let needs_file = |rw: &Rw| matches!(rw, Rw::Append | Rw::Hole);
    let is_possible = |rw: &Rw| !(place.is_device() && needs_file(rw));
    if typed.is_empty() {
        let all = [Rw::Append, Rw::Overwrite, Rw::Hole, Rw::Sync, Rw::Mixed];
        return Ok(all.into_iter().filter(is_possible).collect());
    }
    let kinds: Vec<Rw> = plan::distinct(typed).into_iter().map(Rw::from).collect();
    ensure!(
        kinds.iter().all(is_possible),
        "{} is a device, which has no end to append to and no holes",
        place.name()
    );
    Ok(kinds)
}

/// The steps of the curve, from few threads to many.
fn points(rw: Rw, args: &args::Workload) -> Vec<Point> {
    let numjobs: Vec<u32> =
        args.numjobs.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let crews = Crews::new(&numjobs, &[]);
    let bs = [args.bs.unwrap_or(Sizes::one(if rw == Rw::Sync { 64 << 10 } else { 4 << 10 }))];
    let durability = args.durability.into();
    let mixed = |rwmixread| {
        let points = plan::mixed_points(&bs, &crews, Durability::OnSync, rwmixread, None);
        points.into_iter().map(|point| Point { durability, ..point }).collect()
    };
    match rw {
        Rw::Append | Rw::Hole => {
            plan::append_points(&bs, &crews, &[durability], Growth::Unwritten, None)
        }
        Rw::Sync => plan::sync_points(&bs, &crews, None),
        Rw::Overwrite => mixed(0),
        Rw::Mixed => mixed(50),
    }
}

/// The other paths for the last step.
fn others(rw: Rw, last: Point) -> Vec<Route> {
    match rw {
        Rw::Append => [Route::Preallocated, Route::Dioxide]
            .into_iter()
            .chain(last.queues(last.numjobs))
            .collect(),
        // Holes are filled in order here, for which dioxide has appends. dioxide leaves other holes
        // as they are.
        Rw::Hole => vec![Route::Preallocated],
        Rw::Sync | Rw::Overwrite | Rw::Mixed => vec![Route::Dioxide],
    }
}

impl From<args::Rw> for Rw {
    fn from(typed: args::Rw) -> Self {
        match typed {
            args::Rw::Append => Self::Append,
            args::Rw::Overwrite => Self::Overwrite,
            args::Rw::Hole => Self::Hole,
            args::Rw::Sync => Self::Sync,
            args::Rw::Mixed => Self::Mixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn plan(more: &str) -> Result<DiagnosisPlan> {
        let directory = std::env::temp_dir();
        let line = format!("dioxide diagnose {} {more}", directory.display());
        let Command::Diagnose(args) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("{line}")
        };
        DiagnosisPlan::new(&directory, &args.workload)
    }

    fn routes(inquiry: &Inquiry) -> Vec<(usize, Route)> {
        inquiry.work.rows.iter().map(|(point, route)| (point.numjobs, *route)).collect()
    }

    #[test]
    fn all_that_a_directory_takes_in_a_minute() {
        let inquiries = plan("").unwrap().inquiries;
        let kinds: Vec<_> = inquiries.iter().map(|inquiry| inquiry.rw).collect();
        assert_eq!(kinds, [Rw::Append, Rw::Overwrite, Rw::Hole, Rw::Sync, Rw::Mixed]);
        let budgets: Duration = inquiries.iter().map(|inquiry| inquiry.work.budget.unwrap()).sum();
        let watched: Duration = inquiries.iter().map(|inquiry| inquiry.watched_runtime).sum();
        assert!(budgets + watched < Duration::from_secs(60));
    }

    #[test]
    fn the_last_step_is_watched_and_done_in_other_ways() {
        let inquiries = plan("--rw append,sync,append --numjobs 4,1,4").unwrap().inquiries;
        let [append, sync] = &inquiries[..] else { panic!("each kind once") };
        // Without fallocate there is no preallocated file.
        let rows: Vec<_> =
            routes(append).into_iter().filter(|row| row.1 != Route::Preallocated).collect();
        let queue = Route::Queue { iodepth: 4 };
        assert_eq!(rows, [(1, Route::Kernel), (4, Route::Kernel), (4, Route::Dioxide), (4, queue)]);
        assert_eq!(routes(sync), [(1, Route::Kernel), (4, Route::Kernel), (4, Route::Dioxide)]);
        assert_eq!((append.watched.0.numjobs, append.watched.1), (4, Route::Kernel));
        assert_eq!(
            (append.watched.0.sizes, sync.watched.0.sizes),
            (Sizes::one(4096), Sizes::one(65536))
        );
        let Subject::Workload(workload) = sync.subject() else { panic!("work") };
        assert!(workload.is_durable && workload.rw == Rw::Sync);
    }

    #[test]
    fn a_given_duration_is_obeyed() {
        let inquiries =
            plan("--rw hole --runtime 5s --rounds 9 --durability every-write").unwrap().inquiries;
        let hole = &inquiries[0];
        assert_eq!((hole.work.runtime, hole.work.rounds), (Duration::from_secs(5), 9));
        assert_eq!((hole.work.budget, hole.watched_runtime), (None, Duration::from_secs(5)));
        assert!(hole.announcement().unwrap().contains("9 rounds of 5 s"));
        assert_eq!(hole.watched.0.durability, Durability::EveryWrite);
        assert_eq!(hole.watched.1, Route::Sparse);
    }
}
