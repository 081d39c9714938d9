//! Judges the change points of every series. Pure, so that tests can measure its error rates.

use super::change_points::{self, ChangePoint, RUNS_MIN};
use super::series::{Series, SeriesEntry, Sorted, Standing};
use super::splits::SEGMENT_MIN;
use crate::bench::work::is_dioxide;
use crate::compare::change::Change;
use crate::compare::judge::{
    Basis, CHANCE_MAX, KERNEL, Rules, Witness, explained_share, is_beside,
};
use crate::compare::mann_whitney::p_value_min;
use crate::interrupt::Interrupted;
use schemars::JsonSchema;
use serde::Serialize;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HistoryVerdict {
    /// Slower by more than the limit.
    Regression,
    /// Slower, within the limit or without one.
    Slower,
    Faster,
    /// It changed as a path without dioxide beside it did, or is one.
    Machine,
    NoChange,
    TooFewRuns,
}

/// A change point of a series.
pub struct Step<'a> {
    /// The index of the first entry after it.
    pub at: usize,
    /// Of the judged figure, from the segment before to the one after. Its p does not know that the
    /// change point was chosen: use `p_adjusted`.
    pub change: Change,
    pub iops: Change,
    pub p_adjusted: f64,
    pub verdict: HistoryVerdict,
    /// The path that explains it. Only for the verdict on the machine.
    pub witness: Option<Witness<'a>>,
}

pub struct Judged<'a> {
    pub series: Series<'a>,
    /// In order of time.
    pub steps: Vec<Step<'a>>,
    /// Whether a regression may be dioxide's.
    pub is_judged: bool,
    pub standing: Standing,
    /// Of the last regression that still stands, otherwise of the last change point.
    pub verdict: HistoryVerdict,
}

impl Judged<'_> {
    /// Whether a regression counts.
    pub fn is_current(&self) -> bool {
        self.is_judged && self.standing == Standing::Current
    }

    /// The entries since the last change point.
    pub fn newest_segment(&self) -> &[SeriesEntry<'_>] {
        &self.series.entries[self.steps.last().map_or(0, |step| step.at)..]
    }
}

/// Paths with dioxide and paths without are corrected apart: only the first are judged.
pub fn judge(
    sorted: Sorted<'_>,
    rules: Rules,
    check: impl Fn() -> Result<(), Interrupted>,
) -> Result<Vec<Judged<'_>>, Interrupted> {
    let mut found: Vec<Vec<ChangePoint>> = sorted.series.iter().map(|_| Vec::new()).collect();
    for is_judged in [true, false] {
        let chosen = |nth: &usize| sorted.series[*nth].is_judged(rules.by) == is_judged;
        let chosen: Vec<usize> = (0..sorted.series.len()).filter(chosen).collect();
        let values: Vec<_> = chosen.iter().map(|nth| sorted.series[*nth].values()).collect();
        for (nth, points) in chosen.into_iter().zip(change_points::find(&values, &check)?) {
            found[nth] = points;
        }
    }
    let steps: Vec<_> = sorted
        .series
        .iter()
        .zip(found)
        .map(|(series, points)| steps(series, &points, &sorted.series, rules))
        .collect();
    let standings: Vec<_> = sorted.series.iter().map(|series| sorted.standing(series)).collect();
    let judged = sorted.series.into_iter().zip(steps).zip(standings);
    let judged = judged.map(|((series, steps), standing)| Judged {
        is_judged: series.is_judged(rules.by),
        standing,
        verdict: match steps.last() {
            Some(_) if regression_stands(&steps, rules) => HistoryVerdict::Regression,
            Some(step) => step.verdict,
            None if series.entries.len() < RUNS_MIN => HistoryVerdict::TooFewRuns,
            None => HistoryVerdict::NoChange,
        },
        series,
        steps,
    });
    Ok(judged.collect())
}

/// Whether a regression was not taken back: with all later changes of its own, the row is still
/// slower by more than the limit. Changes of the machine do not count.
fn regression_stands(steps: &[Step<'_>], rules: Rules) -> bool {
    let Some(limit) = rules.limit_percent else { return false };
    let mut ratio = 1.0;
    steps.iter().rev().filter(|step| step.verdict != HistoryVerdict::Machine).any(|step| {
        ratio *= step.change.ratio;
        step.verdict == HistoryVerdict::Regression && ratio < 1.0 - limit / 100.0
    })
}

fn steps<'a>(
    series: &Series<'a>,
    points: &[ChangePoint],
    all: &[Series<'a>],
    rules: Rules,
) -> Vec<Step<'a>> {
    let change = |sides: &[Range<usize>; 2], figure: fn(&SeriesEntry<'_>) -> f64| {
        let [before, after] = sides.clone().map(|side| figures(&series.entries[side], figure));
        Change::of(&before, &after)
    };
    // The order of the runs changed beyond chance, but a size on both sides of 1 is no direction.
    let mut points = points.to_vec();
    let is_open = |(nth, _): &(usize, &ChangePoint), points: &[ChangePoint]| {
        let change = change(&sides(points, *nth, series.entries.len()), |entry| entry.value);
        change.is_none_or(|it| !it.has_direction())
    };
    while let Some((open, _)) = points.iter().enumerate().find(|it| is_open(it, &points)) {
        points.remove(open);
    }
    let step = |(nth, point): (usize, &ChangePoint)| {
        let sides = sides(&points, nth, series.entries.len());
        let (change, iops) =
            (change(&sides, |entry| entry.value)?, change(&sides, |entry| entry.iops)?);
        let is_judged = series.is_judged(rules.by);
        // Where the ratio fell while the row gained, no machine explains the loss.
        let may_be_machine = is_judged && is_ratio(rules) && change.agrees_with(&iops);
        let witness = witness(series, &iops, &sides, all).filter(|_| may_be_machine);
        let is_regression = rules.limit_percent.is_some_and(|limit| change.loses_more_than(limit));
        let verdict = match () {
            () if witness.is_some() || !is_judged => HistoryVerdict::Machine,
            () if is_regression => HistoryVerdict::Regression,
            () if change.ratio < 1.0 => HistoryVerdict::Slower,
            () => HistoryVerdict::Faster,
        };
        Some(Step { at: point.at, change, iops, p_adjusted: point.p_adjusted, verdict, witness })
    };
    points.iter().enumerate().filter_map(step).collect()
}

/// The segments before and after a change point.
fn sides(points: &[ChangePoint], nth: usize, runs: usize) -> [Range<usize>; 2] {
    let from = nth.checked_sub(1).map_or(0, |before| points[before].at);
    let to = points.get(nth + 1).map_or(runs, |next| next.at);
    [from..points[nth].at, points[nth].at..to]
}

fn is_ratio(rules: Rules) -> bool {
    rules.by == crate::args::By::Ratio
}

fn figures(entries: &[SeriesEntry<'_>], figure: impl Fn(&SeriesEntry<'_>) -> f64) -> Vec<f64> {
    entries.iter().map(figure).collect()
}

/// The path without dioxide that changed most alike between the same runs, if one did. A ratio to
/// the kernel path already takes that path into account.
fn witness<'a>(
    own: &Series<'a>,
    iops: &Change,
    sides: &[Range<usize>; 2],
    all: &[Series<'a>],
) -> Option<Witness<'a>> {
    let is_new = |path: &str| path != KERNEL || own.basis != Basis::RatioToKernel;
    let beside = all.iter().filter(|other| {
        let path = other.key().path.as_str();
        !is_dioxide(path)
            && is_new(path)
            && other.place == own.place
            && is_beside(own.key(), other.key())
    });
    let explained = |other: &Series<'a>| {
        let [before, after] = sides.clone().map(|side| {
            let runs = &own.entries[side];
            let is_there = |entry: &&SeriesEntry<'_>| runs.iter().any(|own| own.run == entry.run);
            other.entries.iter().filter(is_there).map(|entry| entry.iops).collect::<Vec<_>>()
        });
        // Few runs may differ by chance, or be others than those of the row.
        let is_enough =
            |(known, own): (usize, &Range<usize>)| known >= SEGMENT_MIN && 2 * known > own.len();
        if ![before.len(), after.len()].into_iter().zip(sides).all(is_enough) {
            return None;
        }
        let change = Change::of(&before, &after)?;
        // Short segments cannot do better than to differ wholly.
        let p_max = CHANCE_MAX.max(p_value_min(before.len(), after.len()) * 1.001);
        let share = explained_share(iops, &change).filter(|_| change.p < p_max)?;
        Some((share, Witness { path: &other.key().path, iops: change }))
    };
    let nearest = |one: &(f64, _), other: &(f64, _)| one.0.total_cmp(&other.0);
    beside.filter_map(explained).min_by(nearest).map(|(_, witness)| witness)
}
