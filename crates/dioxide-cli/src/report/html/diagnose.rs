//! The page of a diagnosis: the verdicts, the wait table, and the curve with its fitted law.

use super::page;
use super::plot::Style;
use super::plot::axis::{Axis, short_count};
use super::plot::bars::{Bar, Bars};
use super::plot::curves::{Curve, CurvePoint, Curves};
use super::timeline::activity;
use crate::bench::ratio::median;
use crate::diagnose::change::{ObservationChange, text};
use crate::diagnose::document::{DiagnoseDocument, Diagnosis};
use crate::diagnose::people::{COLUMNS, curve, law, summary, title, unseen};
use crate::report::grid::Grid;
use dioxide_diagnose::channels::Kind;
use dioxide_diagnose::evidence::{OtherWay, Step};
use dioxide_diagnose::finding::{Finding, Wall};
use dioxide_diagnose::usl::{Fit, Prediction};
use dioxide_diagnose::waits::{Wait, over_files};
use dioxide_diagnose::words::{percent, rate, threads};
use maud::{Markup, html};

/// Waits with less of the I/O time are in the table only.
const SHARE_MIN: f64 = 0.005;
/// The measured points, and the fitted law.
const MEASURED: Style = Style(1);
const LAW: Style = Style(4);

pub fn page(document: &DiagnoseDocument) -> String {
    let body = html! {
        @if document.diagnoses.len() > 1 {
            section { (page::heading("At a glance")) (page::table(&summary(document))) }
        }
        @for diagnosis in &document.diagnoses { (section(document, diagnosis)) }
        @if let Some(change) = &document.change { (changed(change)) }
        @if let Some(text) = unseen(&document.diagnoses) { section { p { (text) } } }
    };
    page::page("diagnose", &document.machine.target, &document.machine, body)
}

fn changed(change: &ObservationChange) -> Markup {
    html! {
        section {
            (page::heading(&text::title(change)))
            @for (title, grid) in text::tables(change) { h3 { (title) } (page::table(&grid)) }
            @for limit in text::limits(change) { p { (limit) } }
        }
    }
}

fn section(document: &DiagnoseDocument, diagnosis: &Diagnosis) -> Markup {
    let rows = over_files(&diagnosis.waits);
    let (subject, conditions) = title(document, diagnosis);
    html! {
        section {
            (page::parted_heading(&subject, &conditions))
            @for finding in &diagnosis.findings { (verdict(finding)) }
            @for warning in &diagnosis.warnings { p { (warning) } }
            div.plots {
                @if diagnosis.waits.iter().any(is_drawn) { (shares(&rows)) }
                @if !diagnosis.evidence.curve.is_empty() { (scaling(diagnosis)) }
            }
            @if !diagnosis.waits.is_empty() {
                h3 { "Where the threads were" }
                (page::table(&waits(&rows)))
            }
            (activity(&diagnosis.evidence))
            @if !diagnosis.evidence.curve.is_empty() {
                h3 { "Rate by threads" }
                (page::table(&curve(diagnosis)))
            }
            @for sentence in law(diagnosis) { p { (sentence) } }
        }
    }
}

fn verdict(finding: &Finding) -> Markup {
    let is_fine =
        matches!(finding.wall, Wall::Nothing | Wall::Device | Wall::Processor | Wall::PageCache);
    html! {
        div.finding.fine[is_fine] {
            p { (finding.verdict) }
            @for (name, lines) in [("Seen", &finding.evidence), ("Advice", &finding.advice)] {
                @if !lines.is_empty() { h3 { (name) } (page::list(lines)) }
            }
        }
    }
}

fn is_drawn(wait: &Wait) -> bool {
    wait.share.is_some_and(|share| share >= SHARE_MIN)
}

/// All of them, also those left out on the terminal.
fn waits(waits: &[Wait]) -> Grid {
    let header = COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let cells = |wait: &Wait| COLUMNS.iter().map(|(_, cell)| cell(wait)).collect();
    Grid::new(header, waits.iter().map(cells).collect(), |column| column < 2)
}

fn shares(waits: &[Wait]) -> Markup {
    let bar = |wait: &Wait| {
        let share = wait.share.unwrap_or_default();
        let place = wait.function.as_ref().map(|function| format!(" in {function}"));
        Bar {
            name: format!("{}{}", wait.object(), place.unwrap_or_default()),
            style: style(wait.kind),
            value: share,
            text: percent(share),
            range: None,
        }
    };
    let bars: Vec<Bar> = waits.iter().filter(|wait| is_drawn(wait)).map(bar).collect();
    let words: Vec<String> = bars.iter().map(|bar| format!("{} {}", bar.name, bar.text)).collect();
    Bars {
        title: "Share of I/O time".into(),
        description: words.join(", ") + ".",
        bars,
        full: Some(1.0),
    }
    .draw()
}

/// Locks, durability, the device, and the rest.
fn style(kind: Kind) -> Style {
    use Kind::*;
    Style(match kind {
        InodeLock | PositionLock | FileSystemLock | ProgramLock | ProgramQueue => 1,
        Kind::Flush | Kind::JournalCommit => 2,
        Kind::Device => 0,
        Kind::PageCache => 3,
        Kind::Processor => 5,
        Kind::Completions | Kind::Idle | Kind::Stopped | Kind::Unknown => 4,
    })
}

fn scaling(diagnosis: &Diagnosis) -> Markup {
    let evidence = &diagnosis.evidence;
    let measured = evidence.curve.iter().filter_map(measured).collect();
    let mut series =
        vec![Curve { name: "measured".into(), style: MEASURED, points: measured, is_marked: true }];
    series.extend(diagnosis.usl.iter().filter(|law| !law.is_poor).map(fitted));
    series.extend(evidence.others.iter().filter_map(other_way));
    series.retain(|series| !series.points.is_empty());
    let points = || series.iter().flat_map(|series| &series.points);
    let curves = Curves {
        title: "Rate by threads; bands are the range of the rounds, and of the law".into(),
        description: points().map(|point| &point.note[..]).collect::<Vec<_>>().join(", ") + ".",
        x: Axis::doublings("threads", points().map(|point| point.x as usize)),
        y: Axis::fitting("operations a second", points().map(|point| point.y), short_count),
        series,
    };
    curves.draw()
}

/// The median of the rounds, and their range.
fn point(what: &str, numjobs: usize, iops: &[f64]) -> Option<CurvePoint> {
    let y = median(iops.to_vec())?;
    let (low, high) =
        (iops.iter().copied().fold(y, f64::min), iops.iter().copied().fold(y, f64::max));
    let note = format!("{what} {} with {}", rate(y), threads(numjobs));
    Some(CurvePoint { x: numjobs as f64, y, range: (low, high), note })
}

fn measured(step: &Step) -> Option<CurvePoint> {
    point("measured", step.numjobs, &step.iops)
}

fn other_way(way: &OtherWay) -> Option<Curve> {
    let style = match way.path.as_str() {
        "dioxide" => 0,
        "preallocated" => 2,
        "sparse" => 8,
        _ => 5,
    };
    let point = point(&way.path, way.numjobs, &way.iops)?;
    Some(Curve {
        name: way.path.clone(),
        style: Style(style),
        points: vec![point],
        is_marked: true,
    })
}

/// With its confidence interval, also beyond the measured range.
fn fitted(law: &Fit) -> Curve {
    let point = |at: &Prediction| {
        let note = format!("by the law {} with {}", rate(at.iops.value), threads(at.numjobs));
        CurvePoint {
            x: at.numjobs as f64,
            y: at.iops.value,
            range: (at.iops.low, at.iops.high),
            note,
        }
    };
    Curve {
        name: "law".into(),
        style: LAW,
        points: law.band.iter().map(point).collect(),
        is_marked: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::document::examples::{document, program};
    use dioxide_diagnose::evidence::Subject;

    /// The heading ended inside the command.
    #[test]
    fn a_command_with_a_colon_was_parted() {
        let mut diagnosis = program();
        if let Subject::Program { command, .. } = &mut diagnosis.evidence.subject {
            *command = "postgres: walwriter".into();
        }
        let page = page(&document(vec![diagnosis]));
        assert!(page.contains("<h2>Process 4711 (postgres: walwriter)</h2>"), "{page}");
    }

    /// The defect D2: 16 files had as many rows and bars.
    #[test]
    fn waits_for_many_files_were_as_many_rows() {
        let wait = program().waits.swap_remove(0);
        let of_file = |nth| Wait { file: Some(format!("/somewhere/{nth}")), ..wait.clone() };
        let page = |files| {
            let waits = (0..files).map(of_file).collect();
            page(&document(vec![Diagnosis { waits, ..program() }]))
        };
        let (one, many) = (page(1), page(16));
        assert_eq!(many.matches("<tr>").count(), one.matches("<tr>").count(), "{many}");
        assert!(many.contains("16 files") && one.contains("/somewhere/0"), "{many}");
    }
}
