//! A change for people.

use super::calls::{CallChange, CallFigures};
use super::{ObservationChange, RateChange, ShareChange, Spread};
use crate::diagnose::activity::latency;
use crate::diagnose::people::end_of;
use crate::meter::machine::when;
use crate::report::grid::Grid;
use dioxide_diagnose::words::{bytes_rate, percent, rate};

/// Rows with smaller shares in both are left out.
const SHARE_MIN: f64 = 0.01;
/// Maximum rows of calls.
const CALLS_MAX: usize = 10;

/// The tables with their titles. Empty ones are left out.
pub fn tables(change: &ObservationChange) -> Vec<(&'static str, Grid)> {
    let all = [
        ("Verdicts by share of I/O time", shares("verdict", &change.verdicts)),
        ("Waits by share of I/O time", shares("waits for", &change.waits)),
        ("Rates of the program", rates(&change.rates)),
        ("Calls", calls(&change.calls)),
    ];
    all.into_iter().filter(|(_, grid)| !grid.rows.is_empty()).collect()
}

/// The title of the whole.
pub fn title(change: &ObservationChange) -> String {
    format!("Change since the observation of {} UTC", when(&change.before_date))
}

/// The limits of the comparison.
pub fn limits(change: &ObservationChange) -> Vec<String> {
    let mut limits = Vec::new();
    if !change.unlike.is_empty() {
        limits.push(format!("The conditions differ: {}.", change.unlike.join("; ")));
    }
    limits.push(
        "There is one observation of each: a change of the load looks like a change of the \
         program. Marked with *: shares that differ by more than the noise of the samples, and \
         rates whose intervals do not overlap in their middle halves. Latencies have no mark."
            .into(),
    );
    limits
}

fn mark(is_marked: bool) -> String {
    (if is_marked { "*" } else { "" }).into()
}

fn shares(name: &str, changes: &[ShareChange]) -> Grid {
    let is_large = |one: &&ShareChange| {
        [one.before, one.after].into_iter().flatten().any(|share| share >= SHARE_MIN)
    };
    let cell = |share: Option<f64>| share.map_or("-".into(), percent);
    let row = |one: &ShareChange| {
        vec![one.name.clone(), cell(one.before), cell(one.after), mark(one.is_marked)]
    };
    let header = [name, "before", "now", ""].map(String::from).into();
    let rows = changes.iter().filter(is_large).map(row).collect();
    Grid::new(header, rows, |column| matches!(column, 1 | 2))
}

fn rates(changes: &[RateChange]) -> Grid {
    let row = |one: &RateChange| {
        let text = if one.name == "storage_bytes" { bytes_rate } else { rate };
        let cell = |spread: Option<Spread>| spread.map_or("-".into(), |spread| text(spread.mean));
        let name = if one.name == "storage_bytes" { "storage" } else { &one.name };
        vec![name.into(), cell(one.before), cell(one.after), mark(one.is_marked)]
    };
    let is_known = |one: &&RateChange| {
        [one.before, one.after].into_iter().flatten().any(|spread| spread.mean > 0.0)
    };
    let header = ["rate", "before", "now", ""].map(String::from).into();
    Grid::new(header, changes.iter().filter(is_known).map(row).collect(), |column| {
        matches!(column, 1 | 2)
    })
}

fn calls(changes: &[CallChange]) -> Grid {
    let both = |one: &CallChange, cell: fn(CallFigures) -> String| {
        let [before, now] = [one.before, one.after].map(|figures| figures.map_or("-".into(), cell));
        format!("{before} -> {now}")
    };
    let row = |one: &CallChange| {
        vec![
            one.name.clone(),
            both(one, |figures| rate(figures.per_second)),
            both(one, |figures| latency(figures.p50)),
            both(one, |figures| latency(figures.p99)),
            one.file.as_deref().map_or("-".into(), end_of),
        ]
    };
    let header = ["call", "calls/s", "p50", "p99", "file"].map(String::from).into();
    Grid::new(header, changes.iter().take(CALLS_MAX).map(row).collect(), |column| {
        matches!(column, 1..=3)
    })
    .with_optional(vec![4, 2])
}
