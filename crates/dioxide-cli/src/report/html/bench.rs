//! The page of a bench: its summary, and for each scenario curves, percentiles and the table.

use super::page;
use super::plot::Style;
use super::plot::axis::{Axis, short_count, short_time};
use super::plot::bars::{Bar, Bars};
use super::plot::curves::{Curve, CurvePoint, Curves};
use crate::bench::figures::Row;
use crate::bench::work::Route;
use crate::report::grid::Grid;
use crate::report::{Report, by_block_size, largest, matrix, noise, refusals, sentence, table};
use dioxide_diagnose::words::{nanoseconds, rate};
use maud::{Markup, html};

pub fn page(report: &Report) -> String {
    let groups: Vec<&[Row]> = report.groups().collect();
    let body = html! {
        section {
            h2 { "In words" }
            @for rows in groups.iter().flat_map(|rows| by_block_size(rows)) {
                (in_sentences(&sentence::of(rows)))
            }
        }
        @for rows in &groups { (group(report, rows)) }
    };
    page::page("bench", &table::place(report, report.rows[0].point), &report.machine, body)
}

/// One scenario and durability. Several block sizes share matrices.
fn group(report: &Report, rows: &[Row]) -> Markup {
    html! {
        @if by_block_size(rows).nth(1).is_some() {
            section {
                (page::heading(&matrix::title(report, rows)))
                @for matrix in matrix::matrices(rows) { (page::table(&matrix)) }
                @for line in matrix::descents(rows) { p { (line) } }
            }
        }
        @for rows in by_block_size(rows) {
            section {
                (page::heading(&table::title(report, rows)))
                div.plots { (rates(rows)) (latencies(rows)) }
                (page::table(&table::of(rows)))
                @for line in refusals::of(rows).lines() { p.conditions { (line) } }
                @if let Some(warning) = noise(rows) { p.conditions { (warning) } }
                h3 { "Latency percentiles" }
                (page::table(&percentiles(rows)))
            }
        }
    }
}

/// `Appends of 4 KiB: 64 threads ... . With ... .`, each sentence on a line of its own.
fn in_sentences(text: &str) -> Markup {
    let (subject, rest) = text.split_once(": ").unwrap_or(("", text));
    html! {
        h3 { (subject) }
        ul { @for sentence in rest.trim_end_matches('.').split(". ") { li { (sentence) "." } } }
    }
}

/// Rates over threads, or bars for a single number of threads.
fn rates(rows: &[Row]) -> Markup {
    let mut numjobs = rows.iter().map(|row| row.point.numjobs);
    let first = numjobs.next();
    if numjobs.all(|count| Some(count) == first) { rates_of_one(rows) } else { scaling(rows) }
}

fn scaling(rows: &[Row]) -> Markup {
    let has_queue = rows.iter().any(|row| row.point.threads(row.route) != row.point.numjobs);
    let crew = if has_queue { "threads, or outstanding in one queue" } else { "threads" };
    let series: Vec<Curve> = matrix::paths(rows)
        .into_iter()
        .map(|name| {
            let rows = rows.iter().filter(|row| matrix::path_of(row) == name);
            let mut rows: Vec<&Row> = rows.collect();
            rows.sort_by_key(|row| row.point.numjobs);
            let (style, points) = (style_of(rows[0]), rows.into_iter().map(rate_at).collect());
            Curve { name, style, points, is_marked: true }
        })
        .collect();
    let values = series
        .iter()
        .flat_map(|series| &series.points)
        .flat_map(|point| [point.range.0, point.range.1]);
    let y = Axis::fitting("operations a second", values, short_count);
    let curves = Curves {
        title: "Rate by threads; bands are the range of the rounds".into(),
        description: series.iter().map(in_words).collect::<Vec<_>>().join(" "),
        x: Axis::doublings(crew, rows.iter().map(|row| row.point.numjobs)),
        y,
        series,
    };
    curves.draw()
}

/// `kernel: 7.3k with 1, 3.2k with 64.`
fn in_words(series: &Curve) -> String {
    let points: Vec<&str> = series.points.iter().map(|point| &point.note[..]).collect();
    format!("{}: {}.", series.name, points.join(", "))
}

fn rate_at(row: &Row) -> CurvePoint {
    let (iops, crew) = (row.iops(), sentence::crew(row));
    CurvePoint {
        x: row.point.numjobs as f64,
        y: iops,
        range: range(row, |run| run.iops),
        note: format!("{} with {crew}", rate(iops)),
    }
}

/// From the slowest round to the fastest.
fn range(row: &Row, figure: fn(&crate::bench::figures::Figures) -> f64) -> (f64, f64) {
    let all = || row.runs.iter().map(figure);
    (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max))
}

fn rates_of_one(rows: &[Row]) -> Markup {
    let bars = rows.iter().map(|row| Bar {
        name: matrix::path_of(row),
        style: style_of(row),
        value: row.iops(),
        text: rate(row.iops()),
        range: Some(range(row, |run| run.iops)),
    });
    let bars: Vec<Bar> = bars.collect();
    let words: Vec<String> = bars.iter().map(|bar| format!("{} {}", bar.name, bar.text)).collect();
    // The first of those with the most threads.
    let most = rows.iter().rev().max_by_key(|row| row.point.threads(row.route));
    let crew = most.map(sentence::crew).unwrap_or_default();
    Bars {
        title: format!("Operations a second, {crew}; lines are the range of the rounds"),
        description: words.join(", ") + ".",
        bars,
        full: None,
    }
    .draw()
}

/// The plotted percentiles, from the median up to the highest with enough operations.
const DRAWN: [f64; 11] = [50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

fn latencies(rows: &[Row]) -> Markup {
    let rows = largest(rows);
    let mut crews: Vec<String> = Vec::new();
    for crew in rows.iter().map(|row| sentence::crew(row)) {
        if !crews.contains(&crew) {
            crews.push(crew);
        }
    }
    let curves = rows.into_iter().map(percentile_curve);
    let series: Vec<Curve> = curves.filter(|series| !series.points.is_empty()).collect();
    let values = series.iter().flat_map(|series| &series.points).map(|point| point.y);
    let y = Axis::fitting("latency", values, short_time);
    let marks =
        [50.0, 90.0, 99.0, 99.9, 99.99].map(|percent| (nines(percent), format!("p{percent}")));
    let curves = Curves {
        title: format!("Latency by percentile, {}", crews.join("; ")),
        description: series.iter().map(in_words).collect::<Vec<_>>().join(" "),
        x: Axis::marked("percentile", nines(50.0)..=nines(99.99), marks.into()),
        y,
        series,
    };
    curves.draw()
}

fn percentile_curve(row: &Row) -> Curve {
    let latencies = row.timings.seen();
    let enough = |percent: &f64| latencies.len() as f64 * (100.0 - percent) >= 100.0;
    let point = |percent: f64| {
        let ns = latencies.value_at_percentile(percent) as f64;
        let note = format!("p{percent} {}", nanoseconds(ns));
        CurvePoint { x: nines(percent), y: ns, range: (ns, ns), note }
    };
    let points = DRAWN.into_iter().filter(enough).map(point).collect();
    Curve { name: matrix::path_of(row), style: style_of(row), points, is_marked: true }
}

/// For each row, the plotted percentiles and more.
fn percentiles(rows: &[Row]) -> Grid {
    let shown = [50.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];
    let columns = shown.iter().map(|percent| format!("p{percent}"));
    let cells = |row: &Row| {
        let latencies = row.timings.seen();
        let at = |percent: &f64| nanoseconds(latencies.value_at_percentile(*percent) as f64);
        let names = [row.route.name().into(), row.point.threads(row.route).to_string()];
        let ends = [nanoseconds(latencies.max() as f64), latencies.len().to_string()];
        names
            .into_iter()
            .chain([row.route.iodepth().to_string()])
            .chain(shown.iter().map(at))
            .chain(ends)
            .collect()
    };
    let names = ["path", "numjobs", "iodepth"].map(String::from);
    let header = names.into_iter().chain(columns).chain(["max", "operations"].map(String::from));
    Grid::new(header.collect(), rows.iter().map(cells).collect(), |column| column > 0)
}

/// 1 for 90 %, 2 for 99 %, and so on: each step has a tenth of the operations beyond it.
fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).log10()
}

/// Queues of at least this many operations are deep.
const DEEP: usize = 32;

fn style_of(row: &Row) -> Style {
    style(row.route.name(), row.route.iodepth())
}

/// The style of a path, by its name: the same on all plots. A deep queue differs from a shallow
/// one.
pub fn style(path: &str, iodepth: usize) -> Style {
    let styles = [
        (Route::Dioxide, 0),
        (Route::Kernel, 1),
        (Route::Preallocated, 2),
        (Route::BufferedGroup, 3),
        (Route::Serialised, 4),
        (Route::Buffered, 4),
        (Route::Unsynced, 3),
        (Route::Positional, 5),
        (Route::Recycled, 6),
        (Route::Sparse, 8),
        (Route::OneThread, 6),
        (Route::Uring { iodepth }, 2),
        (Route::Syncfs { iodepth }, 3),
        (Route::Mutex, 4),
        (Route::BufferedBatch { iodepth }, 8),
        (Route::GatheredTasks { iodepth }, 6),
        (Route::Tasks { iodepth }, 2),
        (Route::WriteAhead, 1),
        (Route::WriteAheadBatch { iodepth }, 5),
        (Route::WriteAheadTasks { iodepth }, 9),
        (Route::WriteAheadSet, 5),
        (Route::Queue { iodepth }, if iodepth < DEEP { 9 } else { 7 }),
    ];
    Style(styles.iter().find(|(route, _)| route.name() == path).map_or(0, |(_, style)| *style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::examples::{
        append_point, checkpoint_point, files_point, indirect_point, log_point, mixed_point,
        sync_point,
    };
    use crate::bench::work::{Point, Scenario};
    use dioxide::Durability;
    use std::collections::BTreeSet;

    /// The defect: `buffered` and `unsynced` were drawn as dioxide.
    #[test]
    fn two_paths_had_one_style() {
        const IODEPTH: usize = 64;
        let copy = |percent| {
            let rwmixread = Some(percent);
            Point { scenario: Scenario::Copy, rwmixread, ..append_point(1) }
        };
        let durable = Point { durability: Durability::EveryWrite, ..mixed_point(2) };
        let more = [Route::BufferedGroup, Route::Positional, Route::Recycled, Route::Sparse];
        let points: [(Point, &[Route]); 11] = [
            (append_point(IODEPTH), &more[..]),
            (sync_point(), &[]),
            (mixed_point(2), &[]),
            (durable, &[]),
            (indirect_point(), &[]),
            (files_point(2, IODEPTH), &[]),
            (checkpoint_point(2), &[]),
            (log_point(IODEPTH), &[]),
            (Point { files: Some(2), ..log_point(IODEPTH) }, &[]),
            (copy(0), &[]),
            (copy(100), &[]),
        ];
        for (point, more) in points {
            let routes = [point.routes(), &point.queues(IODEPTH), more].concat();
            let styles = routes.iter().map(|route| style(route.name(), IODEPTH).0);
            let styles: BTreeSet<usize> = styles.collect();
            assert_eq!(styles.len(), routes.len(), "{point:?}: {styles:?}");
        }
    }
}
