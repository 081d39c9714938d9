//! One SVG file with a panel for each kind of work. It needs no other file and no network.

use super::bench::style;
use super::plot::axis::{Axis, short_count};
use super::plot::curves::{self, Curve, CurvePoint, Curves};
use super::plot::{STYLE, WIDTH};
use crate::bench::ratio::median;
use crate::meter::machine::Machine;
use crate::saved::{SavedRow, SavedWork};
use dioxide_diagnose::words::{rate, threads};
use maud::{Markup, PreEscaped, html};

/// The rows of one kind of work.
pub struct Panel<'a> {
    pub machine: &'a Machine,
    pub work: &'a SavedWork,
    pub rows: Vec<&'a SavedRow>,
}

const COLUMNS: usize = 2;
const GAP: f64 = 36.0;
const MARGIN: f64 = 16.0;
/// The title of a panel.
const HEAD: f64 = 24.0;
/// A line below the panels.
const LINE: f64 = 16.0;

/// The panels side by side, and below them what was measured where.
pub fn picture(panels: &[Panel<'_>]) -> String {
    let columns = panels.len().clamp(1, COLUMNS);
    let (across, down) = (WIDTH + GAP, HEAD + curves::HEIGHT + GAP / 2.0);
    let below = MARGIN + panels.len().div_ceil(columns) as f64 * down;
    let notes = notes(panels);
    let width = 2.0 * MARGIN + columns as f64 * across - GAP;
    let height = below + notes.len() as f64 * LINE + MARGIN;
    let view_box = format!("0 0 {width:.0} {height:.0}");
    let picture = html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox=(view_box) {
            title { "Operations a second by operations in flight" }
            style { (PreEscaped(STYLE)) }
            rect class="paper" width="100%" height="100%" {}
            @for (nth, panel) in panels.iter().enumerate() {
                @let x = MARGIN + (nth % columns) as f64 * across;
                @let y = MARGIN + (nth / columns) as f64 * down;
                g transform=(format!("translate({x:.0},{y:.0})")) {
                    text class="title" x="0" y="12" { (panel.title()) }
                    g transform=(format!("translate(0,{HEAD})")) { (panel.draw()) }
                }
            }
            @for (nth, note) in notes.iter().enumerate() {
                @let y = below + (nth + 1) as f64 * LINE;
                text class="tick" x=(MARGIN) y=(format!("{y:.0}")) { (note) }
            }
        }
    };
    picture.into_string()
}

/// The machine and the date of each result, once.
fn notes(panels: &[Panel<'_>]) -> Vec<String> {
    let mut notes = vec!["Lines are medians of the rounds, bands their range.".to_string()];
    for Panel { machine, .. } in panels {
        let Machine { cpus, kernel_release, dioxide_version, build, date, .. } = machine;
        let device =
            machine.device.as_ref().map(|device| format!(", {device}")).unwrap_or_default();
        let day = date.split('T').next().unwrap_or_default();
        let note = format!(
            "{day}: {cpus} CPUs, Linux {kernel_release}{device}, dioxide {dioxide_version}, \
             {build} build."
        );
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

impl Panel<'_> {
    fn title(&self) -> String {
        match self.rows.first().and_then(|row| row.fs.as_ref()) {
            Some(fs) => format!("{fs}: {}", self.work),
            None => self.work.to_string(),
        }
    }

    fn draw(&self) -> Markup {
        let series = self.series();
        let all = || series.iter().flat_map(|series: &Curve| &series.points);
        let y = Axis::fitting(
            "operations a second",
            all().flat_map(|point| [point.range.0, point.range.1]),
            short_count,
        );
        let x = Axis::doublings("operations in flight", self.rows.iter().map(|row| in_flight(row)));
        Curves { title: String::new(), description: String::new(), x, y, series }.content()
    }

    /// A curve for each path, in the order of the document.
    fn series(&self) -> Vec<Curve> {
        let mut series: Vec<Curve> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.rounds_iops.is_empty()) {
            let point = point(row);
            match series.iter_mut().find(|series| series.name == row.key.path) {
                Some(series) => series.points.push(point),
                None => series.push(Curve {
                    name: row.key.path.clone(),
                    style: style(&row.key.path, row.key.iodepth),
                    points: vec![point],
                    is_marked: true,
                }),
            }
        }
        for series in &mut series {
            series.points.sort_by(|one, other| one.x.total_cmp(&other.x));
        }
        series
    }
}

/// Operations that one path has in flight at a time.
fn in_flight(row: &SavedRow) -> usize {
    row.key.numjobs * row.key.iodepth
}

fn point(row: &SavedRow) -> CurvePoint {
    let rounds = &row.rounds_iops;
    let iops = median(rounds.clone()).unwrap_or_default();
    let extreme = |of: fn(f64, f64) -> f64| rounds.iter().copied().reduce(of).unwrap_or_default();
    let note = format!("{}, {}, iodepth {}", rate(iops), threads(row.key.numjobs), row.key.iodepth);
    CurvePoint {
        x: in_flight(row) as f64,
        y: iops,
        range: (extreme(f64::min), extreme(f64::max)),
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::examples;

    #[test]
    fn a_picture_has_a_panel_for_each_work_and_a_curve_for_each_path() {
        let rows = vec![
            examples::row("kernel", 64, &[100.0, 300.0, 200.0], None),
            examples::row("kernel", 1, &[400.0], None),
            examples::row("dioxide", 1, &[500.0], None),
            examples::row("dioxide", 64, &[5000.0], None),
        ];
        let document = examples::document(rows);
        let work = &document.results[0].key.work;
        let panel =
            || Panel { machine: &document.machine, work, rows: document.results.iter().collect() };
        let text = picture(&[panel(), panel()]);
        assert_eq!(text.matches("class=\"curve\"").count(), 2 * 2);
        assert_eq!(text.matches("ext4: append bs=4 KiB on-sync, growth unwritten").count(), 2);
        assert!(text.contains("200/s, 64 threads, iodepth 1"), "{text}");
        assert_eq!(text.matches("Linux 6.18.0, nvme0n1").count(), 1);
    }
}
