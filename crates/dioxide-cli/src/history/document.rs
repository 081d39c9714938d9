//! A history as JSON.

use super::JudgedHistory;
use super::judge::{HistoryVerdict, Judged, Step};
use super::text;
use crate::args::By;
use crate::compare::change::Change;
use crate::compare::judge::Basis;
use crate::meter::machine::Machine;
use crate::saved::Key;
use schemars::JsonSchema;
use serde::Serialize;

/// The kind of the document.
pub const KIND: &str = "history";
const SCHEMA_VERSION: u32 = 1;

/// The whole document.
#[derive(Serialize, JsonSchema)]
pub struct HistoryDocument<'a> {
    /// The version of this format.
    schema_version: u32,
    /// `history`.
    kind: &'static str,
    /// The figure by which rows are judged: `ratio` to the kernel path where there is one, or
    /// `ops`.
    by: &'static str,
    /// A loss of more percent than this is a regression. Null without a limit.
    limit_percent: Option<f64>,
    /// In order of time.
    runs: Vec<Measured<'a>>,
    /// Machines and devices, in words. Each has series of its own.
    places: &'a [String],
    /// The differences of settings that make separate series.
    unlike: &'a [String],
    /// Files that are no result, with the reason.
    skipped: &'a [String],
    series: Vec<OfRow<'a>>,
    /// The sentences of the report.
    sentences: Vec<String>,
}

/// A saved result.
#[derive(Serialize, JsonSchema)]
struct Measured<'a> {
    file: &'a str,
    label: Option<&'a str>,
    #[serde(flatten)]
    machine: &'a Machine,
}

/// The like runs of one row.
#[derive(Serialize, JsonSchema)]
struct OfRow<'a> {
    #[serde(flatten)]
    key: &'a Key,
    /// An index of `places`.
    place: usize,
    /// Whether it has the newest run of its work and is judged, so that its verdict counts.
    is_current: bool,
    /// Of the last regression that still stands, otherwise of the last change point.
    verdict: HistoryVerdict,
    /// The figure of `values`.
    basis: Basis,
    /// Indices of `runs`, one for each value.
    runs: Vec<usize>,
    /// Medians over the rounds of each run.
    values: Vec<f64>,
    /// The same of operations per second.
    iops: Vec<f64>,
    change_points: Vec<ReportedChangePoint<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct ReportedChangePoint<'a> {
    /// The index in `runs` (of the document) of the first run after the change.
    run: usize,
    verdict: HistoryVerdict,
    /// The expected share of chance results among the change points found with it.
    p_adjusted: f64,
    change: SegmentRatio,
    /// Of operations per second.
    iops: SegmentRatio,
    /// The path without dioxide that changed alike, for the verdict `machine`.
    witness: Option<Other<'a>>,
}

/// Medians of the segments before and after a change point, and their ratio with its 95 %
/// confidence interval.
#[derive(Serialize, JsonSchema)]
struct SegmentRatio {
    before: f64,
    after: f64,
    ratio: f64,
    low: f64,
    high: f64,
}

#[derive(Serialize, JsonSchema)]
struct Other<'a> {
    path: &'a str,
    iops: SegmentRatio,
}

impl From<Change> for SegmentRatio {
    fn from(Change { old, new, ratio, low, high, .. }: Change) -> Self {
        Self { before: old, after: new, ratio, low, high }
    }
}

pub fn document<'a>(history: &'a JudgedHistory<'a>) -> HistoryDocument<'a> {
    let runs = history.found.runs.iter().map(|run| Measured {
        file: &run.file,
        label: run.document.label.as_deref(),
        machine: &run.document.machine,
    });
    HistoryDocument {
        schema_version: SCHEMA_VERSION,
        kind: KIND,
        by: match history.rules.by {
            By::Ratio => "ratio",
            By::Ops => "ops",
        },
        limit_percent: history.rules.limit_percent,
        runs: runs.collect(),
        places: &history.places,
        unlike: &history.unlike,
        skipped: &history.found.skipped,
        series: history.series.iter().map(of_row).collect(),
        sentences: text::sentences(history),
    }
}

fn of_row<'a>(it: &'a Judged<'a>) -> OfRow<'a> {
    let entries = &it.series.entries;
    OfRow {
        key: it.series.key(),
        place: it.series.place,
        is_current: it.is_current(),
        verdict: it.verdict,
        basis: it.series.basis,
        runs: entries.iter().map(|entry| entry.run).collect(),
        values: it.series.values(),
        iops: entries.iter().map(|entry| entry.iops).collect(),
        change_points: it.steps.iter().map(|step| point(it, step)).collect(),
    }
}

fn point<'a>(it: &Judged<'a>, step: &Step<'a>) -> ReportedChangePoint<'a> {
    ReportedChangePoint {
        run: it.series.entries[step.at].run,
        verdict: step.verdict,
        p_adjusted: step.p_adjusted,
        change: step.change.into(),
        iops: step.iops.into(),
        witness: step
            .witness
            .map(|witness| Other { path: witness.path, iops: witness.iops.into() }),
    }
}
