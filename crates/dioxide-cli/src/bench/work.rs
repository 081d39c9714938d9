//! The values of a bench: scenario, point, work. No I/O.

pub use super::route::{Route, is_dioxide};

use crate::sizes::Sizes;
use dioxide::{Durability, Growth, Tail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::time::Duration;

/// A bench that takes longer announces its duration.
const UNANNOUNCED_MAX: Duration = Duration::from_secs(5);
/// Durations from here on are announced in minutes.
const MINUTES_MIN: Duration = Duration::from_secs(90);

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// N threads append to one file.
    Append,
    /// N threads rewrite a region of their own each, durably.
    Sync,
    /// N threads read and rewrite blocks in random order.
    Mixed,
    /// One thread rewrites a range of a file that indirect blocks map.
    Indirect,
    /// N threads write blocks of many files, each write durable.
    Files,
    /// All files of a directory are made durable, again and again.
    Checkpoint,
    /// N threads append small records to one log, or to one of their own each, durably.
    Log,
    /// One thread writes, copies or reads a long file from front to back.
    Copy,
}

/// The space of files before the writes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Written before the clock starts, then rewritten.
    Written,
    /// Allocated only. Each block is written once.
    Unwritten,
    /// Zeros: dioxide writes them ahead of its records, the rivals before the clock starts.
    Zeroed,
    /// The content of an old log, which new records overwrite.
    Recycled,
}

/// The storage below a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    System,
    /// A simulated file that takes no time and stores nothing.
    Sim,
}

/// One point of a scenario's parameter space: a line of its matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub scenario: Scenario,
    pub backend: Backend,
    /// Of one operation.
    pub sizes: Sizes,
    /// The maximum of outstanding operations: of as many threads, or of one queue. For mixed, the
    /// number of threads, each of which may have a queue.
    pub numjobs: usize,
    pub durability: Durability,
    /// dioxide's actual growth here. Only for appends.
    pub growth: Option<Growth>,
    /// dioxide's treatment of partial blocks. None if there are none.
    pub tail: Option<Tail>,
    /// Percent of the operations that are reads. Only for scenarios with reads. A copy has 50.
    pub rwmixread: Option<u32>,
    /// The offered load of all threads together. None for closed-loop operation.
    pub rate_iops: Option<u64>,
    /// The number of files. None for scenarios with one.
    pub files: Option<usize>,
    /// Only for scenarios that prepare space.
    pub space: Option<Space>,
}

/// The units of writes on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// Of direct writes.
    pub write_bytes: u64,
    /// Of appends that share no block with each other.
    pub append_bytes: u64,
}

/// Duration and number of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    pub runtime: Duration,
    pub rounds: u32,
}

/// All points of one scenario, and the duration of their runs.
#[derive(Clone, Debug)]
pub struct Work {
    /// Each point on each applicable route.
    pub rows: Vec<(Point, Route)>,
    pub runtime: Duration,
    /// A run ends after this number of operations. None if the time ends it.
    pub count: Option<u64>,
    pub rounds: u32,
    /// No run writes beyond this offset.
    pub size_bytes: u64,
    pub units: Units,
    /// The largest step of dioxide's growth. None for the library's default.
    pub growth_cap_bytes: Option<u64>,
    /// A truncation precedes each write, so that it allocates its blocks. Only if operations are
    /// counted.
    pub writes_afresh: bool,
    /// Stop between rounds rather than take longer than this.
    pub budget: Option<Duration>,
    /// The expected duration, by trials. None if there were none.
    pub estimate: Option<Duration>,
}

/// The settings of each run besides its point: runs with different settings are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Asked {
    /// Duration. None if operations are counted.
    pub runtime_ms: Option<u64>,
    /// Number of operations. None if the time ends a run.
    pub count: Option<u64>,
    /// No run writes beyond this offset.
    pub size_bytes: u64,
    /// The largest step of dioxide's growth. None for the library's default.
    pub growth_cap_bytes: Option<u64>,
    /// Each write allocates its blocks.
    pub fresh: bool,
}

impl Work {
    pub fn new(rows: Vec<(Point, Route)>, pace: Pace, size_bytes: u64, units: Units) -> Self {
        let Pace { runtime, rounds } = pace;
        Self {
            rows,
            runtime,
            count: None,
            rounds,
            size_bytes,
            units,
            growth_cap_bytes: None,
            writes_afresh: false,
            budget: None,
            estimate: None,
        }
    }

    /// The same work at another pace.
    pub fn at(self, pace: Pace) -> Self {
        Self { runtime: pace.runtime, rounds: pace.rounds, ..self }
    }

    pub fn asked(&self) -> Asked {
        Asked {
            runtime_ms: self.count.is_none().then_some(self.runtime.as_millis() as u64),
            count: self.count,
            size_bytes: self.size_bytes,
            growth_cap_bytes: self.growth_cap_bytes,
            fresh: self.writes_afresh,
        }
    }

    /// The maximum number of runs.
    pub fn runs(&self) -> u64 {
        u64::from(self.rounds) * self.rows.len() as u64
    }

    /// The expected duration; without trials the time of the runs, without pauses between them.
    /// None if it is unknown.
    pub fn time(&self) -> Option<Duration> {
        let runs = u32::try_from(self.runs()).unwrap_or(u32::MAX);
        let timed = self.count.is_none().then(|| self.runtime.saturating_mul(runs));
        self.estimate.or(timed)
    }

    /// The expected duration, in words. None if it is short or unknown.
    pub fn announcement(&self) -> Option<String> {
        let time = self.time().filter(|time| *time > UNANNOUNCED_MAX)?;
        let about = match time.as_secs_f64() {
            seconds if time < MINUTES_MIN => format!("{seconds:.0} s"),
            seconds => format!("{:.0} min", seconds / 60.0),
        };
        let run = match self.count {
            Some(1) => "1 operation".to_owned(),
            Some(count) => format!("{count} operations"),
            None => format!("{} s", self.runtime.as_secs_f64()),
        };
        let points = self.rows.chunk_by(|one, next| one.0 == next.0).count();
        let paths = self.rows.iter().map(|(_, route)| route.name()).collect::<HashSet<_>>().len();
        let up_to = if points * paths == self.rows.len() { "" } else { "up to " };
        let scenario = self.rows.first()?.0.scenario.name();
        let many =
            |count: usize, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        Some(format!(
            "{scenario}: {} x {up_to}{} x {} of {run}: about {about}",
            many(points, "point"),
            many(paths, "path"),
            many(self.rounds as usize, "round"),
        ))
    }
}

impl Scenario {
    pub fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Sync => "sync",
            Self::Mixed => "mixed",
            Self::Indirect => "indirect",
            Self::Files => "files",
            Self::Checkpoint => "checkpoint",
            Self::Log => "log",
            Self::Copy => "copy",
        }
    }
}

impl Point {
    /// The routes with threads, in display order: baselines come first.
    pub fn routes(&self) -> &'static [Route] {
        match (self.backend, self.scenario) {
            (Backend::Sim, _) => &[Route::Dioxide],
            (_, Scenario::Append) => &[Route::Kernel, Route::Preallocated, Route::Dioxide],
            (_, Scenario::Mixed) if self.durability == Durability::EveryWrite => {
                &[Route::Buffered, Route::Kernel, Route::Dioxide]
            }
            (_, Scenario::Sync | Scenario::Mixed | Scenario::Indirect) => {
                &[Route::Serialised, Route::Kernel, Route::Dioxide]
            }
            (_, Scenario::Files) => &[Route::OneThread, Route::Kernel, Route::Dioxide],
            (_, Scenario::Log) if self.files.is_some() => {
                &[Route::Kernel, Route::Dioxide, Route::WriteAheadSet]
            }
            (_, Scenario::Log) => {
                &[Route::Mutex, Route::BufferedGroup, Route::Dioxide, Route::WriteAhead]
            }
            (_, Scenario::Copy) if self.rwmixread == Some(100) => {
                &[Route::OneThread, Route::Kernel, Route::Dioxide]
            }
            (_, Scenario::Copy) => {
                &[Route::OneThread, Route::Kernel, Route::Unsynced, Route::Dioxide]
            }
            (_, Scenario::Checkpoint) => {
                &[Route::OneThread, Route::Kernel, Route::Syncfs { iodepth: 1 }, Route::Dioxide]
            }
        }
    }

    /// The routes with this number of outstanding operations in one thread, baselines first.
    pub fn queues(&self, iodepth: usize) -> Vec<Route> {
        let queue = Route::Queue { iodepth };
        match self.scenario {
            Scenario::Mixed => vec![queue],
            Scenario::Copy => vec![],
            _ if self.numjobs != iodepth => vec![],
            Scenario::Log if self.files.is_none() => {
                vec![
                    Route::BufferedBatch { iodepth },
                    Route::GatheredTasks { iodepth },
                    queue,
                    Route::Tasks { iodepth },
                    Route::WriteAheadBatch { iodepth },
                    Route::WriteAheadTasks { iodepth },
                ]
            }
            Scenario::Files => vec![Route::Uring { iodepth }, Route::Syncfs { iodepth }, queue],
            _ => vec![queue],
        }
    }

    /// The number of threads of a route.
    pub fn threads(&self, route: Route) -> usize {
        match (route, self.scenario) {
            (Route::Queue { .. }, Scenario::Mixed | Scenario::Indirect) => self.numjobs,
            (Route::Queue { .. } | Route::Tasks { .. } | Route::GatheredTasks { .. }, _) => 1,
            (Route::BufferedBatch { .. } | Route::OneThread, _) => 1,
            (Route::WriteAheadBatch { .. } | Route::WriteAheadTasks { .. }, _) => 1,
            (Route::Uring { .. } | Route::Syncfs { .. }, _) => 1,
            (Route::Dioxide, Scenario::Checkpoint) => 1,
            _ => self.numjobs,
        }
    }

    /// The number of outstanding operations, all threads together.
    pub fn lanes(&self, route: Route) -> usize {
        self.threads(route) * route.iodepth()
    }

    /// The least size of the file, or of all files together: a block for each outstanding operation
    /// and each file. All files have the same length.
    pub fn least_bytes(&self, route: Route) -> u64 {
        let lanes = self.lanes(route) as u64;
        let blocks = match (self.files, self.scenario) {
            (None, _) => lanes,
            (Some(files), Scenario::Checkpoint) => files as u64,
            (Some(files), _) => lanes.next_multiple_of(files as u64),
        };
        blocks * self.sizes.max_bytes
    }
}

/// The name on the command line.
pub fn backend_name(backend: Backend) -> &'static str {
    match backend {
        Backend::System => "system",
        Backend::Sim => "sim",
    }
}

/// The name on the command line.
pub fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::OnSync => "on-sync",
        Durability::EveryWrite => "every-write",
    }
}

/// The name on the command line.
pub fn tail_name(tail: Tail) -> &'static str {
    match tail {
        Tail::Rewrite => "rewrite",
        Tail::Pad => "pad",
    }
}

/// The name on the command line.
pub fn growth_name(growth: Growth) -> &'static str {
    match growth {
        Growth::Unwritten => "unwritten",
        Growth::Zeroed => "zeroed",
        Growth::None => "none",
    }
}

/// The name on the command line.
pub fn space_name(space: Space) -> &'static str {
    match space {
        Space::Written => "written",
        Space::Unwritten => "unwritten",
        Space::Zeroed => "zeroed",
        Space::Recycled => "recycled",
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::examples::{
        append_point, checkpoint_point, files_point, mixed_point,
    };
    use super::*;

    const UNITS: Units = Units { write_bytes: 512, append_bytes: 4096 };

    fn work(points: usize, runtime: Duration, rounds: u32) -> Work {
        let points = (1..=points).map(append_point);
        let rows = points.flat_map(|point| point.routes().iter().map(move |route| (point, *route)));
        Work::new(rows.collect(), Pace { runtime, rounds }, 0, UNITS)
    }

    #[test]
    fn a_queue_stands_for_as_many_threads() {
        let queue = Route::Queue { iodepth: 64 };
        let (append, mixed) = (append_point(64), mixed_point(2));
        assert_eq!((append.queues(64), append.queues(16)), (vec![queue], vec![]));
        assert_eq!((append.threads(queue), append.lanes(queue)), (1, 64));
        assert_eq!((append.threads(Route::Kernel), append.lanes(Route::Kernel)), (64, 64));
        assert_eq!(mixed.queues(64), [queue]);
        assert_eq!((mixed.threads(queue), mixed.lanes(queue)), (2, 128));
    }

    #[test]
    fn one_thread_of_many_files_stands_for_as_many_threads() {
        let files = files_point(100, 64);
        let queues = files.queues(64);
        let names: Vec<_> = queues.iter().map(|route| route.name()).collect();
        assert_eq!(names, ["kernel-uring", "syncfs", "dioxide-queue"]);
        for route in queues {
            assert_eq!((files.threads(route), files.lanes(route)), (1, 64), "{}", route.name());
        }
        assert!(files.queues(63).is_empty() && checkpoint_point(100).queues(63).is_empty());
        let threads = |point: Point| {
            let routes = point.routes().iter();
            routes.map(|route| (route.name(), point.threads(*route))).collect::<Vec<_>>()
        };
        assert_eq!(threads(files), [("one-thread", 1), ("kernel", 64), ("dioxide", 64)]);
        assert_eq!(
            threads(checkpoint_point(100)),
            [("one-thread", 1), ("kernel", 64), ("syncfs", 1), ("dioxide", 1)]
        );
    }

    #[test]
    fn every_file_and_every_lane_has_a_block() {
        let least = |point: Point, route| point.least_bytes(route) / 4096;
        assert_eq!(least(mixed_point(2), Route::Queue { iodepth: 64 }), 128);
        assert_eq!(least(files_point(100, 64), Route::Kernel), 100);
        assert_eq!(least(files_point(48, 64), Route::Kernel), 96, "files are of equal length");
        assert_eq!(least(files_point(48, 64), Route::OneThread), 48);
        assert_eq!(least(files_point(1, 64), Route::Uring { iodepth: 64 }), 64);
        assert_eq!(least(checkpoint_point(48), Route::Kernel), 48);
    }

    #[test]
    fn what_takes_long_is_announced() {
        let announced = |work: &Work| work.announcement().unwrap();
        let long = work(48, Duration::from_secs(2), 9);
        assert_eq!(announced(&long), "append: 48 points x 3 paths x 9 rounds of 2 s: about 43 min");
        let mut fewer = long;
        fewer.rows.pop();
        assert!(announced(&fewer).starts_with("append: 48 points x up to 3 paths x 9 rounds"));
        let short = work(1, Duration::from_millis(500), 3);
        assert_eq!(short.announcement(), None, "a few seconds");
        let tried = Work { estimate: Some(Duration::from_secs(44)), ..short };
        assert_eq!(announced(&tried), "append: 1 point x 3 paths x 3 rounds of 0.5 s: about 44 s");
    }

    #[test]
    fn counted_work_is_announced_by_its_trials() {
        let counted = Work { count: Some(1000), ..work(1, Duration::from_secs(3600), 5) };
        assert_eq!(counted.announcement(), None, "nothing is known");
        let tried = Work { estimate: Some(Duration::from_secs(5000)), ..counted };
        assert_eq!(
            tried.announcement().unwrap(),
            "append: 1 point x 3 paths x 5 rounds of 1000 operations: about 83 min"
        );
    }
}
