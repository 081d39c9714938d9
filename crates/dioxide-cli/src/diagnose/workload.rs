//! Runs a workload: first the unobserved curve, then its last step under observation.

use super::document::Diagnosis;
use super::plan::Inquiry;
use crate::bench::crew::Watching;
use crate::bench::figures::Row;
use crate::bench::place::BenchTarget;
use crate::bench::progress::Progress;
use crate::bench::rounds;
use crate::bench::task::Task;
use crate::interrupt;
use anyhow::{Context, Result};
use dioxide_diagnose::evidence::{Evidence, OtherWay, Step};
use dioxide_diagnose::watch;

/// Measures, observes and judges one workload.
pub fn diagnose(
    place: &BenchTarget,
    inquiry: &Inquiry,
    options: watch::Options,
    progress: &Progress,
) -> Result<Diagnosis> {
    let rows = rounds::run(place, &inquiry.work, progress)?;
    interrupt::check()?;
    let (point, route) = inquiry.watched;
    progress.announce(&point, route);
    let watching = Watching { options, subject: inquiry.subject() };
    let task = Task::new(place, &inquiry.work, point, route);
    let run = Task { runtime: inquiry.watched_runtime, watching: Some(&watching), ..task }.run()?;
    progress.advance();
    let (curve, others) = rows.iter().partition::<Vec<_>, _>(|row| row.route == route);
    let evidence = Evidence {
        curve: curve.into_iter().map(step).collect(),
        others: others.into_iter().map(other_way).collect(),
        ..run.evidence.context("nothing was watched")?
    };
    Ok(Diagnosis::of_work(evidence, inquiry.work.asked(), run.figures.iops))
}

fn step(row: &Row) -> Step {
    Step { numjobs: row.point.numjobs, iops: rates(row) }
}

fn other_way(row: &Row) -> OtherWay {
    OtherWay {
        path: row.route.name().into(),
        numjobs: row.point.threads(row.route),
        iops: rates(row),
    }
}

fn rates(row: &Row) -> Vec<f64> {
    row.runs.iter().map(|run| run.iops).collect()
}
