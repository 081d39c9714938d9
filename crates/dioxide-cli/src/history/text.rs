//! A history for people: a table for each kind of work, and its change points in sentences. Judges
//! nothing.

use super::JudgedHistory;
use super::change_points::{RUNS_MIN, runs_needed};
use super::judge::{HistoryVerdict, Judged, Step};
use super::series::{SavedRun, Sorted, Standing};
use crate::bench::ratio::median;
use crate::compare::change::Change;
use crate::compare::judge::{Basis, CHANCE_MAX};
use crate::compare::text::{change, known, percent, probability};
use crate::meter::machine::Machine;
use crate::output::{Page, Tint};
use crate::report::grid::Grid;
use dioxide_diagnose::words::{rate as ops, short};
use std::io::Write;

/// The header of a column, and its text for a series.
type Column = (&'static str, fn(&JudgedHistory<'_>, &Judged<'_>) -> String);

const PATH: &str = "path";
const SINCE: &str = "since";
const VERDICT: &str = "verdict";
const COLUMNS: [Column; 11] = [
    ("numjobs", |_, it| it.series.key().numjobs.to_string()),
    (PATH, |_, it| it.series.key().path.clone()),
    ("iodepth", |_, it| it.series.key().iodepth.to_string()),
    ("runs", |_, it| it.series.entries.len().to_string()),
    ("iops", |_, it| known(middle(it, |entry| entry.iops), short)),
    ("x kernel", |_, it| match it.series.basis {
        Basis::RatioToKernel => known(middle(it, |entry| entry.value), |it| format!("{it:.2}")),
        Basis::Iops => "-".into(),
    }),
    ("changes", |_, it| it.steps.len().to_string()),
    (SINCE, |history, it| {
        known(it.steps.last(), |step| history.run(it.series.entries[step.at].run).title())
    }),
    ("change", |_, it| change(it.steps.last().map(|step| step.change))),
    ("p", |_, it| known(it.steps.last(), |step| probability(step.p_adjusted))),
    (VERDICT, |_, it| word(it.verdict).into()),
];

/// The columns that a narrow terminal may leave out, the most important first.
const OPTIONAL: [usize; 8] = [8, 3, 2, 7, 5, 4, 6, 9];

/// The name of a verdict in the table.
fn word(verdict: HistoryVerdict) -> &'static str {
    match verdict {
        HistoryVerdict::Regression => "REGRESSION",
        HistoryVerdict::Slower => "slower",
        HistoryVerdict::Faster => "faster",
        HistoryVerdict::Machine => "the machine",
        HistoryVerdict::NoChange => "no change",
        HistoryVerdict::TooFewRuns => "too few results",
    }
}

/// Over the newest segment.
fn middle(it: &Judged<'_>, figure: fn(&super::series::SeriesEntry<'_>) -> f64) -> Option<f64> {
    median(it.newest_segment().iter().map(figure).collect())
}

pub fn print(history: &JudgedHistory<'_>, out: &mut Page) -> anyhow::Result<()> {
    let width = out.width();
    writeln!(out, "{}\n", subject(history))?;
    for series in groups(history) {
        writeln!(out, "{}\n{:width$}\n", title(history, series), table(history, series))?;
    }
    for it in &history.series {
        for step in &it.steps {
            out.tinted(tint(step.verdict), finding(history, it, step))?;
        }
    }
    for sentence in summaries(history) {
        writeln!(out, "{sentence}")?;
    }
    Ok(())
}

/// The number of results, and the days of the first and the last.
pub fn subject(history: &JudgedHistory<'_>) -> String {
    let runs = &history.found.runs;
    let day = |run: &SavedRun| run.document.machine.date.split('T').next().unwrap_or("").to_owned();
    let (first, last) = (day(&runs[0]), day(history.newest()));
    let results = if runs.len() == 1 { "result" } else { "results" };
    let days = if first == last { first } else { format!("{first} to {last}") };
    format!("{} {results}: {days}", runs.len())
}

/// The series of one machine and work.
pub fn groups<'a, 'b>(history: &'b JudgedHistory<'a>) -> impl Iterator<Item = &'b [Judged<'a>]> {
    history.series.chunk_by(|one, next| {
        let of = |it: &Judged<'a>| (it.series.place, &it.series.key().work);
        of(one) == of(next)
    })
}

pub fn title(history: &JudgedHistory<'_>, series: &[Judged<'_>]) -> String {
    let series = &series[0].series;
    match &history.places[..] {
        [_] => series.key().work.to_string(),
        places => format!("{} ({})", series.key().work, places[series.place]),
    }
}

pub fn table(history: &JudgedHistory<'_>, series: &[Judged<'_>]) -> Grid {
    let header = COLUMNS.map(|(name, _)| name.to_owned()).into();
    let rows = series.iter().map(|it| COLUMNS.map(|(_, cell)| cell(history, it)).into()).collect();
    Grid::new(header, rows, |column| ![PATH, SINCE, VERDICT].contains(&COLUMNS[column].0))
        .with_optional(OPTIONAL.into())
}

fn tint(verdict: HistoryVerdict) -> Option<Tint> {
    match verdict {
        HistoryVerdict::Regression => Some(Tint::Bad),
        HistoryVerdict::Slower | HistoryVerdict::Machine => Some(Tint::Warning),
        HistoryVerdict::Faster => Some(Tint::Good),
        HistoryVerdict::NoChange | HistoryVerdict::TooFewRuns => None,
    }
}

/// The place of each group, in words.
pub fn places(sorted: &Sorted<'_>) -> Vec<String> {
    let place = |machine: &&Machine| {
        let Machine { kernel_release, cpus, device, target, build, .. } = machine;
        let device = device.as_ref().unwrap_or(target);
        format!("{device}, kernel {kernel_release}, {cpus} CPUs, {build} build")
    };
    sorted.places.iter().map(place).collect()
}

/// The sentence for a change point.
pub fn finding(history: &JudgedHistory<'_>, it: &Judged<'_>, step: &Step<'_>) -> String {
    let since = history.run(it.series.entries[step.at].run).title();
    let key = it.series.key();
    let iops = percent(step.iops.ratio);
    if let Some(witness) = step.witness {
        let other = percent(witness.iops.ratio);
        return format!(
            "{key}: the machine changed at {since}: {iops:+.1} % in ops/s, and {other:+.1} % on \
             the path {} without dioxide.",
            witness.path
        );
    }
    let word = match step.verdict {
        HistoryVerdict::Regression => "slower, a regression",
        HistoryVerdict::Machine if step.change.ratio < 1.0 => "slower, without dioxide",
        HistoryVerdict::Machine => "faster, without dioxide",
        _ if step.change.ratio < 1.0 => "slower",
        _ => "faster",
    };
    let Change { old, new, ratio, low, high, .. } = step.change;
    let [size, one, other] = [ratio, low, high].map(|ratio| percent(ratio).abs());
    let (least, most) = (one.min(other), one.max(other));
    let figures = match it.series.basis {
        Basis::RatioToKernel => format!(
            "relative to the kernel path: {old:.2}x as fast before, {new:.2}x since (ops/s: \
             {iops:+.1} %)"
        ),
        Basis::Iops => format!("{} before, {} since", ops(old), ops(new)),
    };
    format!("{key}: {size:.1} % {word} ({least:.1} to {most:.1} %), since {since}; {figures}.")
}

/// The findings, then the summary and its limitations.
pub fn sentences(history: &JudgedHistory<'_>) -> Vec<String> {
    let found = history.series.iter().flat_map(|it| it.steps.iter().map(move |step| (it, step)));
    let found = found.map(|(it, step)| finding(history, it, step));
    found.chain(summaries(history)).collect()
}

/// The summary and its limitations.
pub fn summaries(history: &JudgedHistory<'_>) -> Vec<String> {
    let all = [
        Some(summary(history)),
        missing(history),
        stuck(history),
        open(history),
        blind(history),
        ended(history),
        apart(history),
        read(history),
    ];
    all.into_iter().flatten().collect()
}

fn summary(history: &JudgedHistory<'_>) -> String {
    if history.count(|_| true) == 0 {
        return "None of the rows of the newest result is dioxide's, so none is judged; see --by \
                ops."
            .into();
    }
    let judged = history.judged();
    let count = |verdict| history.count(|it| it.verdict == verdict);
    let regressions = history.rules.limit_percent.map(|limit| {
        format!("{} slower by more than {limit} %, ", count(HistoryVerdict::Regression))
    });
    let otherwise = if regressions.is_some() { "otherwise slower" } else { "slower" };
    format!(
        "Rows judged: {judged}, by their last change that stands: {}{} {otherwise}, {} faster, {} \
         with the machine, {} without a change.",
        regressions.unwrap_or_default(),
        count(HistoryVerdict::Slower),
        count(HistoryVerdict::Faster),
        count(HistoryVerdict::Machine),
        count(HistoryVerdict::NoChange),
    )
}

/// Rows of the newest result without a verdict.
pub fn open(history: &JudgedHistory<'_>) -> Option<String> {
    let few = history.count(|it| it.verdict == HistoryVerdict::TooFewRuns);
    let current = history.series.iter().filter(|it| it.is_current());
    let fewest = current.map(|it| it.series.entries.len()).min().unwrap_or(0);
    // Without an answer, the first number of results that is tested at all.
    let needed = runs_needed(history.count(|_| true)).unwrap_or(RUNS_MIN);
    let missing = needed.saturating_sub(fewest);
    let few = (few > 0).then(|| {
        format!(
            "{few} of the rows cannot be judged: with fewer than {needed} like results any \
             change may be chance. Measure {missing} more."
        )
    });
    let is_loss = |step: &Step<'_>| step.change.is_loss();
    let machine = history
        .count(|it| it.verdict == HistoryVerdict::Machine && it.steps.last().is_some_and(is_loss));
    let machine = (machine > 0)
        .then(|| format!("{machine} of the rows cannot be judged: the machine became slower."));
    let all: Vec<_> = [few, machine].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Whether a single row that changes would be missed, however large the change.
pub fn blind(history: &JudgedHistory<'_>) -> Option<String> {
    let by = history.rules.by;
    let tested = || {
        let judged = history.series.iter().filter(move |it| it.series.is_judged(by));
        judged.filter(|it| it.series.entries.len() >= RUNS_MIN)
    };
    let rows = tested().count();
    let Some(needed) = runs_needed(rows) else {
        return Some(format!(
            "A change of one row alone could be chance among {rows} rows (limit {CHANCE_MAX}), so \
             it is not shown. Give fewer results at once."
        ));
    };
    let blind = tested().filter(|it| it.is_current() && it.series.entries.len() < needed).count();
    (blind > 0).then(|| {
        format!(
            "{blind} of the rows have fewer than {needed} results. A change of one of them alone \
             could be chance among {rows} rows (limit {CHANCE_MAX}), so it is not shown."
        )
    })
}

/// Rows that the newest result of their work should have.
pub fn missing(history: &JudgedHistory<'_>) -> Option<String> {
    let count = standing(history, Standing::Missing);
    (count > 0).then(|| {
        format!("{count} of the rows cannot be judged: the newest result does not have them.")
    })
}

/// Rows that the newest result of their work has without a figure.
pub fn stuck(history: &JudgedHistory<'_>) -> Option<String> {
    let count = history.stuck_now;
    (count > 0).then(|| {
        format!(
            "{count} of the rows cannot be judged: they did nothing in most rounds of the newest \
             result."
        )
    })
}

/// Rows of earlier results only.
fn ended(history: &JudgedHistory<'_>) -> Option<String> {
    let count = standing(history, Standing::Ended);
    (count > 0).then(|| {
        format!(
            "Only in earlier results, or of other machines: {count} of the rows. They do not \
             change the exit code."
        )
    })
}

/// The number of judged series that stand so.
fn standing(history: &JudgedHistory<'_>, standing: Standing) -> usize {
    history.series.iter().filter(|it| it.is_judged && it.standing == standing).count()
}

/// Differences that make separate series.
fn apart(history: &JudgedHistory<'_>) -> Option<String> {
    let places = (history.places.len() > 1)
        .then(|| format!("Unlike machines are separate series: {}.", history.places.join("; ")));
    let unlike = (!history.unlike.is_empty())
        .then(|| format!("Unlike settings are separate series: {}.", history.unlike.join("; ")));
    let all: Vec<_> = [places, unlike].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// The results that are not in the history.
fn read(history: &JudgedHistory<'_>) -> Option<String> {
    let found = history.found;
    let skipped =
        (!found.skipped.is_empty()).then(|| format!("Skipped: {}.", found.skipped.join("; ")));
    let copies = (found.copies > 0).then(|| format!("Copies, counted once: {}.", found.copies));
    let older =
        (found.older > 0).then(|| format!("Older results, left out by --newest: {}.", found.older));
    let stuck = (history.stuck > 0).then(|| {
        format!("Rows without a figure, as most of their rounds did nothing: {}.", history.stuck)
    });
    let all: Vec<_> = [skipped, copies, older, stuck].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" "))
}
