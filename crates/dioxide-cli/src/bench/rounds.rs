//! The order of runs. A round runs every point on every route, so that changes of the machine
//! affect all of them. The order of routes rotates from round to round, once forwards and once
//! backwards. Each route thus follows each other one. Points are visited forwards and backwards in
//! turn.

use super::figures::Row;
use super::order::order;
use super::place::BenchTarget;
use super::progress::Progress;
use super::task::Task;
use super::work::Work;
use crate::interrupt;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Runs all of `work`; the rows are ordered by point, then by route.
pub fn run(place: &BenchTarget, work: &Work, progress: &Progress) -> Result<Vec<Row>> {
    let row = |&(point, route)| Row { asked: work.asked(), ..Row::new(point, route) };
    let mut rows: Vec<Row> = work.rows.iter().map(row).collect();
    let begun = Instant::now();
    for round in 0..work.rounds {
        if is_over_budget(work.budget, begun.elapsed(), round) {
            break;
        }
        let mut points: Vec<_> = rows.chunk_by_mut(|one, next| one.point == next.point).collect();
        if !round.is_multiple_of(2) {
            points.reverse();
        }
        for rows in points {
            for turn in order(round as usize, rows.len()) {
                interrupt::check()?;
                run_one(place, work, &mut rows[turn], progress)?;
            }
        }
    }
    Ok(rows)
}

fn run_one(place: &BenchTarget, work: &Work, row: &mut Row, progress: &Progress) -> Result<()> {
    progress.announce(&row.point, row.route);
    row.add(Task::new(place, work, row.point, row.route).run()?);
    progress.advance();
    Ok(())
}

/// Whether another round of the same length would exceed the budget. The first round always runs.
fn is_over_budget(budget: Option<Duration>, elapsed: Duration, rounds: u32) -> bool {
    match budget {
        Some(budget) if rounds > 0 => elapsed + elapsed / rounds > budget,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget() {
        let seconds = Duration::from_secs;
        assert!(!is_over_budget(None, seconds(1000), 5));
        assert!(!is_over_budget(Some(seconds(10)), seconds(100), 0), "one round at least");
        assert!(!is_over_budget(Some(seconds(10)), seconds(6), 2));
        assert!(is_over_budget(Some(seconds(10)), seconds(8), 2));
    }
}
