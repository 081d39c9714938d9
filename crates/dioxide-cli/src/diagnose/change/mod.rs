//! What changed between two observations of a process.
//!
//! There is one observation of each, so no test can separate the change from a change of the load.
//! Differences within the noise of the samples, or within the variation of the intervals, are not
//! marked.

mod calls;
pub mod text;

use super::document::{DiagnoseDocument, Diagnosis, SCHEMA_VERSION};
use anyhow::{Context, Result, bail, ensure};
use calls::CallChange;
use dioxide_diagnose::activity::{Interval, Timeline};
use dioxide_diagnose::evidence::{Evidence, Subject};
use dioxide_diagnose::{judge, waits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A change of the share of I/O time below this is not marked.
const SHARE_CHANGE_MIN: f64 = 0.05;
/// With fewer samples in I/O, shares are chance.
const SAMPLES_MIN: u64 = 20;
/// The marked change of a share, in standard errors.
const ERRORS_MIN: f64 = 2.0;
/// With fewer intervals, their variation is not known.
const INTERVALS_MIN: usize = 4;

/// The differences of two observations.
#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObservationChange {
    /// When the earlier observation was made, as its document has it.
    pub before_date: String,
    /// Differences of the conditions, which may explain the others.
    pub unlike: Vec<String>,
    /// The verdicts: the share of I/O time of each.
    pub verdicts: Vec<ShareChange>,
    /// The objects of the waits: the share of I/O time of each.
    pub waits: Vec<ShareChange>,
    /// The rates of the whole program.
    pub rates: Vec<RateChange>,
    /// The calls by name and file.
    pub calls: Vec<CallChange>,
}

/// A share of I/O time in both. None where it was not seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShareChange {
    /// The bottleneck, or the object of the wait.
    pub name: String,
    /// From 0 to 1.
    pub before: Option<f64>,
    /// From 0 to 1.
    pub after: Option<f64>,
    /// Whether the difference is beyond the noise of the samples.
    pub is_marked: bool,
}

/// A rate in both, over the intervals of the timelines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RateChange {
    /// `calls`, `syncs`, `storage_bytes`.
    pub name: String,
    /// Per second. None where it was not seen.
    pub before: Option<Spread>,
    /// Per second. None where it was not seen.
    pub after: Option<Spread>,
    /// Whether the middle halves of the intervals do not overlap.
    pub is_marked: bool,
}

/// A rate with its variation over intervals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// A quarter of the intervals has less. None with few intervals.
    pub low: Option<f64>,
    /// The mean over the time.
    pub mean: f64,
    /// A quarter of the intervals has more. None with few intervals.
    pub high: Option<f64>,
}

/// Reads the document of an earlier observation.
pub fn read(path: &Path) -> Result<DiagnoseDocument> {
    let name = || format!("--compare {}", path.display());
    let text = fs::read(path).with_context(name)?;
    parse(&text).with_context(name)
}

fn parse(text: &[u8]) -> Result<DiagnoseDocument> {
    const NEEDED: &str = "needed is what `dioxide diagnose --pid PID --json` writes";
    let value: serde_json::Value =
        serde_json::from_slice(text).with_context(|| format!("is no JSON; {NEEDED}"))?;
    match value["kind"].as_str() {
        Some("diagnose") => {}
        Some(kind) => bail!("is of `dioxide {kind}`; {NEEDED}"),
        None => bail!("is not of dioxide; {NEEDED}"),
    }
    let version = value["schema_version"].as_u64().unwrap_or_default();
    ensure!(
        version <= u64::from(SCHEMA_VERSION),
        "is of a later dioxide, which this one does not understand; {NEEDED}"
    );
    let document: DiagnoseDocument = serde_json::from_value(value)
        .with_context(|| format!("is not quite a document of diagnose; {NEEDED}"))?;
    ensure!(document.is_of_program(), "is the diagnosis of a path; {NEEDED}");
    Ok(document)
}

impl ObservationChange {
    /// The change from one observation to another. Both are of processes.
    pub fn new(before: &DiagnoseDocument, after: &DiagnoseDocument) -> Self {
        let of = |document: &DiagnoseDocument| {
            document.diagnoses.first().map(ObservedShares::of).unwrap_or_default()
        };
        let (old, new) = (of(before), of(after));
        let evidence = |document: &'_ DiagnoseDocument| {
            document.diagnoses.first().map(|it| it.evidence.clone())
        };
        let both = evidence(before).zip(evidence(after));
        let (rates, calls) = both
            .as_ref()
            .map(|(one, other)| (rates(one, other), calls::changes(one, other)))
            .unwrap_or_default();
        Self {
            before_date: before.machine.date.clone(),
            unlike: unlike(before, after),
            // A smaller share is no finding, so an absent one may be as large as that.
            verdicts: shares(
                [&old.verdicts, &new.verdicts],
                (old.samples, new.samples),
                judge::SHARE_MIN,
            ),
            waits: shares([&old.waits, &new.waits], (old.samples, new.samples), 0.0),
            rates,
            calls,
        }
    }
}

/// The shares of an observation by name.
#[derive(Debug, Default)]
struct ObservedShares {
    verdicts: BTreeMap<String, f64>,
    waits: BTreeMap<String, f64>,
    /// Independent samples in I/O, at most: threads of one pass wait for the same thing.
    samples: u64,
}

impl ObservedShares {
    fn of(diagnosis: &Diagnosis) -> Self {
        let in_io = diagnosis.waits.iter().filter(|wait| wait.share.is_some());
        let in_io = in_io.fold(0, |sum: u64, wait| sum.saturating_add(wait.samples));
        let samples = diagnosis.evidence.looks.min(in_io);
        let mut all = Self { samples, ..Self::default() };
        for finding in &diagnosis.findings {
            *all.verdicts.entry(finding.wall.name().into()).or_default() += finding.share;
        }
        for wait in waits::over_files(&diagnosis.waits) {
            if let Some(share) = wait.share {
                *all.waits.entry(wait.object().into()).or_default() += share;
            }
        }
        all
    }
}

/// The larger shares first. An absent share may be as large as `absent_max`.
fn shares(
    [before, after]: [&BTreeMap<String, f64>; 2],
    samples: (u64, u64),
    absent_max: f64,
) -> Vec<ShareChange> {
    let names = before.keys().chain(after.keys()).collect::<std::collections::BTreeSet<_>>();
    let change = |name: &String| {
        let (before, after) = (before.get(name).copied(), after.get(name).copied());
        let least = |one: Option<f64>, other: Option<f64>| {
            one.unwrap_or(other.unwrap_or(0.0).min(absent_max))
        };
        let is_marked = is_beyond_noise(least(before, after), least(after, before), samples);
        ShareChange { name: name.clone(), before, after, is_marked }
    };
    let mut changes: Vec<_> = names.into_iter().map(change).collect();
    let size = |one: &ShareChange| one.before.unwrap_or(0.0).max(one.after.unwrap_or(0.0));
    changes.sort_by(|one, other| size(other).total_cmp(&size(one)));
    changes
}

fn is_beyond_noise(before: f64, after: f64, (old, new): (u64, u64)) -> bool {
    let variance = |share: f64, samples: u64| share * (1.0 - share).max(0.0) / samples as f64;
    let error = || (variance(before, old) + variance(after, new)).sqrt();
    old.min(new) >= SAMPLES_MIN
        && (before - after).abs() > SHARE_CHANGE_MIN.max(ERRORS_MIN * error())
}

fn rates(before: &Evidence, after: &Evidence) -> Vec<RateChange> {
    let (old, new) = (before.activity.timeline.as_ref(), after.activity.timeline.as_ref());
    type Value = fn(&Interval) -> Option<f64>;
    // Counters include pipes, so calls of one source cannot be compared with those of the other.
    let is_one_source = match (old, new) {
        (Some(old), Some(new)) => old.calls_from == new.calls_from,
        _ => false,
    };
    let all: [(&str, Value); 3] = [
        ("calls", |one| Some(one.per_second(one.calls))),
        ("syncs", |one| Some(one.per_second(one.syncs?))),
        ("storage_bytes", |one| Some(one.per_second(one.bytes?))),
    ];
    let change = |(name, value): (&str, Value)| {
        let (before, after) = (spread(old, value), spread(new, value));
        let is_below = |one: Option<Spread>, other: Option<Spread>| {
            one.and_then(|it| it.high)
                .zip(other.and_then(|it| it.low))
                .is_some_and(|(high, low)| high < low)
        };
        let is_marked = is_below(before, after) || is_below(after, before);
        RateChange { name: name.into(), before, after, is_marked }
    };
    all.into_iter().filter(|(name, _)| is_one_source || *name != "calls").map(change).collect()
}

fn spread(timeline: Option<&Timeline>, value: fn(&Interval) -> Option<f64>) -> Option<Spread> {
    let intervals = &timeline?.intervals;
    let mut values: Vec<f64> = intervals.iter().filter_map(value).collect();
    if values.is_empty() || values.len() < intervals.len() {
        return None;
    }
    let length = |one: &Interval| one.length_ns as f64;
    let total: f64 = intervals.iter().map(length).sum();
    let sum: f64 = intervals.iter().zip(&values).map(|(one, value)| value * length(one)).sum();
    let mean = if total > 0.0 { sum / total } else { 0.0 };
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    let (low, high) = match values.len() {
        count if count < INTERVALS_MIN => (None, None),
        count => (Some(values[quarter]), Some(values[count - 1 - quarter])),
    };
    Some(Spread { low, mean, high })
}

/// Conditions that differ.
fn unlike(before: &DiagnoseDocument, after: &DiagnoseDocument) -> Vec<String> {
    let mut unlike = Vec::new();
    let mut compare = |what: &str, old: String, new: String| {
        if old != new {
            unlike.push(format!("{what}: {old} before, {new} now"));
        }
    };
    compare("kernel", before.machine.kernel_release.clone(), after.machine.kernel_release.clone());
    compare("processors", before.machine.cpus.to_string(), after.machine.cpus.to_string());
    if let (Some(old), Some(new)) = (before.diagnoses.first(), after.diagnoses.first()) {
        compare("command", command(&old.evidence), command(&new.evidence));
        let trace = |diagnosis: &Diagnosis| {
            let is_traced = diagnosis.evidence.activity.calls.is_some();
            (if is_traced { "traced" } else { "not traced" }).to_owned()
        };
        compare("calls", trace(old), trace(new));
        compare("threads", old.evidence.threads.to_string(), new.evidence.threads.to_string());
    }
    unlike
}

fn command(evidence: &Evidence) -> String {
    match &evidence.subject {
        Subject::Program { command, .. } => command.clone(),
        Subject::Workload(_) => "a workload of dioxide".into(),
    }
}

#[cfg(test)]
mod tests;
