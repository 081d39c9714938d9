//! The activity of an observed program: its calls as a table, and its timeline as plots.

use super::page;
use super::plot::Style;
use super::plot::axis::{Axis, short_count};
use super::plot::curves::{Curve, CurvePoint, Curves};
use crate::diagnose::activity::{Quantity, calls, quantities, remarks, shown};
use dioxide_diagnose::activity::Timeline;
use dioxide_diagnose::evidence::Evidence;
use dioxide_diagnose::words::percent;
use maud::{Markup, html};

/// The number of marks on the axis of time.
const MARKS: u64 = 5;

/// Empty without activity.
pub fn activity(evidence: &Evidence) -> Markup {
    html! {
        @if let Some((table, _)) = calls(evidence, usize::MAX) {
            h3 { "Calls and their latency" }
            (page::table(&table))
        }
        @if let Some(timeline) = shown(evidence) {
            h3 { "Over time" }
            div.plots {
                @for quantity in quantities(timeline) { (plot(timeline, &quantity)) }
            }
        }
        @for remark in remarks(evidence) { p { (remark) } }
    }
}

fn plot(timeline: &Timeline, quantity: &Quantity) -> Markup {
    let end_s = seconds(timeline, timeline.intervals.len());
    let point = |(index, value): (usize, &Option<f64>)| {
        let (y, x) = ((*value)?, seconds(timeline, index));
        let note = format!("{} at {x:.2} s", (quantity.text)(y));
        Some(CurvePoint { x, y, range: (y, y), note })
    };
    let points: Vec<CurvePoint> = quantity.values.iter().enumerate().filter_map(point).collect();
    let (first, most) = (&points[0], points.iter().map(|point| point.y).fold(0.0, f64::max));
    let description = format!(
        "{}: {} at first, {} at most.",
        quantity.name,
        (quantity.text)(first.y),
        (quantity.text)(most)
    );
    let marks = (0..=MARKS).map(|nth| end_s * nth as f64 / MARKS as f64);
    let y = match quantity.full {
        Some(full) => {
            let marks = [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| (full * part, percent(full * part)));
            Axis::marked("share of I/O time", 0.0..=full, marks.into())
        }
        None => Axis::from_zero("per second", most, short_count),
    };
    Curves {
        title: format!("{} over time", title(quantity)),
        description,
        x: Axis::marked("seconds", 0.0..=end_s, marks.map(|at| (at, format!("{at:.1}"))).collect()),
        y,
        series: vec![Curve {
            name: quantity.name.into(),
            style: Style(0),
            points,
            is_marked: true,
        }],
    }
    .draw()
}

fn title(quantity: &Quantity) -> &'static str {
    match quantity.name {
        "storage" => "Bytes from and to storage",
        "waiting" => "Share of I/O time spent waiting",
        "syncs" => "Calls that sync",
        "calls" => "Calls on files",
        name => name,
    }
}

/// The begin of an interval.
fn seconds(timeline: &Timeline, index: usize) -> f64 {
    timeline.intervals[..index].iter().map(|interval| interval.length_ns as f64 / 1e9).sum()
}
