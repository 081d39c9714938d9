//! A short run of every path, which shows how long runs take here.

use super::estimate::Trial;
use super::place::BenchTarget;
use super::progress::Progress;
use super::task::Task;
use super::work::{Point, Route, Scenario, Space, Work};
use crate::interrupt;
use anyhow::Result;
use std::time::{Duration, Instant};

/// The time of each trial.
pub const RUNTIME: Duration = Duration::from_millis(100);
/// The largest file that a trial fills.
const FILLED_MAX_BYTES: u64 = 16 << 20;

/// Tries each path once.
pub fn of_each(place: &BenchTarget, work: &Work, progress: &Progress) -> Result<Vec<Trial>> {
    work.rows.iter().map(|row| of_one(place, work, *row, progress)).collect()
}

fn of_one(
    place: &BenchTarget,
    work: &Work,
    (point, route): (Point, Route),
    progress: &Progress,
) -> Result<Trial> {
    interrupt::check()?;
    progress.announce(&point, route);
    let least_bytes = point.least_bytes(route).next_multiple_of(work.units.write_bytes);
    let filled_bytes =
        is_filled(&point, route).then(|| work.size_bytes.min(FILLED_MAX_BYTES.max(least_bytes)));
    let runtime = work.runtime.min(RUNTIME);
    let task = Task {
        runtime: if work.count.is_some() { work.runtime } else { runtime },
        count: work.count.map(|_| 1),
        size_bytes: filled_bytes.unwrap_or(work.size_bytes),
        ..Task::new(place, work, point, route)
    };
    let begun = Instant::now();
    let run = task.run()?;
    let (took, clock) = (begun.elapsed(), run.figures.elapsed);
    let before = run.began.saturating_duration_since(begun);
    progress.advance();
    Ok(Trial {
        before,
        clock,
        after: took.saturating_sub(before + clock),
        ops: run.figures.ops,
        runtime,
        filled_bytes,
    })
}

/// Whether a run fills its file, or all its files, beforehand.
pub fn is_filled(point: &Point, route: Route) -> bool {
    matches!(point.scenario, Scenario::Mixed | Scenario::Copy)
        || route == Route::Recycled
        || match point.space {
            None | Some(Space::Unwritten) => false,
            Some(Space::Zeroed) => !route.is_dioxide(),
            Some(Space::Written | Space::Recycled) => true,
        }
}
