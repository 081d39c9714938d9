//! The page of a history: its sentences, and for each kind of work the table, and a plot for each
//! row with its change points.

use super::bench::style;
use super::page;
use super::plot::axis::{Axis, short_count};
use super::plot::curves::{Changes, Curve, CurvePoint, Curves, Mark};
use crate::bench::ratio::median;
use crate::compare::judge::Basis;
use crate::compare::text::percent;
use crate::history::JudgedHistory;
use crate::history::judge::Judged;
use crate::history::series::SeriesEntry;
use crate::history::text::{finding, groups, sentences, subject, table, title};
use dioxide_diagnose::words::rate;
use maud::{Markup, html};

pub fn page(history: &JudgedHistory<'_>) -> String {
    let body = html! {
        section { h2 { "In words" } (page::list(&sentences(history))) }
        @for series in groups(history) { (section(history, series)) }
    };
    page::page("history", &subject(history), &history.newest().document.machine, body)
}

fn section(history: &JudgedHistory<'_>, series: &[Judged<'_>]) -> Markup {
    html! {
        section {
            h2 { (title(history, series)) }
            (page::table(&table(history, series)))
            div.plots { @for it in series { (plot(history, it)) } }
        }
    }
}

fn plot(history: &JudgedHistory<'_>, it: &Judged<'_>) -> Markup {
    let key = it.series.key();
    let entries = &it.series.entries;
    let points: Vec<CurvePoint> =
        entries.iter().enumerate().map(|(nth, entry)| point(history, it, nth, entry)).collect();
    let values = points.iter().flat_map(|point| [point.range.0, point.range.1]);
    let figure = match it.series.basis {
        Basis::RatioToKernel => "times the kernel path",
        Basis::Iops => "operations a second",
    };
    let curves = Curves {
        title: format!("{} numjobs={} iodepth={}", key.path, key.numjobs, key.iodepth),
        description: description(history, it),
        x: axis(history, entries),
        y: Axis::fitting(figure, values, short_count),
        series: vec![Curve {
            name: String::new(),
            style: style(&key.path, key.iodepth),
            points,
            is_marked: true,
        }],
    };
    curves.draw_with(&changes(history, it))
}

fn description(history: &JudgedHistory<'_>, it: &Judged<'_>) -> String {
    let found: Vec<_> = it.steps.iter().map(|step| finding(history, it, step)).collect();
    if found.is_empty() { "No change point.".into() } else { found.join(" ") }
}

fn point(
    history: &JudgedHistory<'_>,
    it: &Judged<'_>,
    nth: usize,
    entry: &SeriesEntry<'_>,
) -> CurvePoint {
    let rounds = match (it.series.basis, &entry.row.rounds_ratio_to_kernel) {
        (Basis::RatioToKernel, Some(ratios)) => ratios,
        _ => &entry.row.rounds_iops,
    };
    let low = rounds.iter().copied().fold(entry.value, f64::min);
    let high = rounds.iter().copied().fold(entry.value, f64::max);
    let value = match it.series.basis {
        Basis::RatioToKernel => format!("{:.2} times, {}", entry.value, rate(entry.iops)),
        Basis::Iops => rate(entry.iops),
    };
    let note = format!("{}: {value}", history.run(entry.run).title());
    CurvePoint { x: nth as f64, y: entry.value, range: (low, high), note }
}

/// A tick at the first result of each day.
fn axis(history: &JudgedHistory<'_>, entries: &[SeriesEntry<'_>]) -> Axis {
    let day = |entry: &SeriesEntry<'_>| {
        let date = &history.run(entry.run).document.machine.date;
        date.split('T').next().unwrap_or_default().to_owned()
    };
    let mut ticks: Vec<(f64, String)> = Vec::new();
    for (nth, entry) in entries.iter().enumerate() {
        let day = day(entry);
        if ticks.last().is_none_or(|(_, last)| *last != day) {
            ticks.push((nth as f64, day));
        }
    }
    // A single result is in the middle.
    let last = entries.len() as f64 - 1.0;
    let range = if last > 0.0 { 0.0..=last } else { -1.0..=1.0 };
    Axis::marked("results, the newest on the right", range, ticks)
}

fn changes(history: &JudgedHistory<'_>, it: &Judged<'_>) -> Changes {
    let mark = |step: &crate::history::judge::Step<'_>| Mark {
        x: step.at as f64 - 0.5,
        text: format!("{:+.1} %", percent(step.change.ratio)),
        note: finding(history, it, step),
    };
    let at = it.steps.iter().map(|step| step.at);
    let begins: Vec<usize> = [0].into_iter().chain(at).collect();
    let ends = begins[1..].iter().copied().chain([it.series.entries.len()]);
    let level = |(from, to): (&usize, usize)| {
        let values = it.series.entries[*from..to].iter().map(|entry| entry.value);
        Some((*from as f64 - 0.4, to as f64 - 0.6, median(values.collect())?))
    };
    let levels = if it.steps.is_empty() {
        Vec::new()
    } else {
        begins.iter().zip(ends).filter_map(level).collect()
    };
    Changes { marks: it.steps.iter().map(mark).collect(), levels }
}
