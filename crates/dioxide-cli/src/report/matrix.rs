//! The results as matrices, block size by threads: the rate of each path, and the ratios of dioxide to its rivals.

use super::sentence::times;
use super::{Report, by_block_size, rival, rivals, table};
use crate::bench::figures::{Ratio, Row};
use crate::bench::work::Route;
use crate::units;
use comfy_table::{CellAlignment, Table, presets};
use std::collections::BTreeSet;

/// All matrices of these rows, of one scenario and durability, and where a path gets slower with more threads.
pub fn of(report: &Report, rows: &[Row]) -> String {
    let scenario = rows[0].point.scenario;
    let conditions = table::conditions(report, rows);
    let mut text = format!("{}: {conditions}\n", table::scenario(scenario));
    for route in scenario.routes() {
        let title = format!("{} iops", route.name());
        text += &matrix(rows, &title, |row| (row.route == route).then(|| format!("{:.0}", row.iops())));
    }
    for against in rivals(scenario) {
        let title = format!("dioxide / {}", against.name());
        text += &matrix(rows, &title, |row| match row.route {
            Route::Dioxide => Some(table::ratio(rival(rows, row, against))),
            _ => None,
        });
    }
    for route in scenario.routes() {
        text += &format!("{}\n", descent(rows, route));
    }
    text
}

/// Block sizes downwards, largest first; threads to the right. `cell` shows the row that it belongs to.
fn matrix(rows: &[Row], title: &str, cell: impl Fn(&Row) -> Option<String>) -> String {
    let numjobs: BTreeSet<usize> = rows.iter().map(|row| row.point.numjobs).collect();
    let sizes: BTreeSet<u64> = rows.iter().map(|row| row.point.bs_bytes).collect();
    let at = |bs_bytes, numjobs| {
        let here = rows.iter().filter(|row| (row.point.bs_bytes, row.point.numjobs) == (bs_bytes, numjobs));
        here.filter_map(&cell).next().unwrap_or("-".into())
    };
    let header = [title.to_owned()].into_iter().chain(numjobs.iter().map(usize::to_string));
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for &bs in sizes.iter().rev() {
        let name = [bs.to_string()];
        table.add_row(name.into_iter().chain(numjobs.iter().map(|&numjobs| at(bs, numjobs))));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("\n{}\n", table.trim_fmt())
}

/// A point where more threads get less done.
struct Fall<'a> {
    row: &'a Row,
    /// The fastest with fewer threads.
    best: &'a Row,
    ratio: Ratio,
}

/// Whether more threads ever made a path slower, beyond what the rounds disagree about.
fn descent(rows: &[Row], route: Route) -> String {
    let falls: Vec<Fall<'_>> = by_block_size(rows).flat_map(|rows| falls(rows, route)).collect();
    let name = route.name();
    let deepest = falls.iter().min_by(|one, other| one.ratio.median.total_cmp(&other.ratio.median));
    let Some(Fall { row, best, ratio }) = deepest else {
        return format!("{name}: at no block size do more threads get less done in every round.");
    };
    format!(
        "{name}: more threads get less done in every round at {} of its points; the deepest: bs={}, where {} threads \
         reach {} the rate of {}.",
        falls.len(),
        units::bytes(row.point.bs_bytes),
        row.point.numjobs,
        times(*ratio),
        best.point.numjobs,
    )
}

/// Where a path, at one block size, was slower in every round than the best with fewer threads.
fn falls(rows: &[Row], route: Route) -> Vec<Fall<'_>> {
    let path: Vec<&Row> = rows.iter().filter(|row| row.route == route).collect();
    let mut falls = Vec::new();
    for &row in &path {
        let fewer = path.iter().filter(|other| other.point.numjobs < row.point.numjobs);
        let Some(&best) = fewer.max_by(|one, other| one.iops().total_cmp(&other.iops())) else { continue };
        let Some(ratio) = row.ratio_to(best) else { continue };
        if ratio.max < 1.0 {
            falls.push(Fall { row, best, ratio });
        }
    }
    falls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::examples::{append_point, row};
    use crate::bench::work::Point;
    use crate::meter::machine::Machine;

    fn point(bs_bytes: u64, numjobs: usize) -> Point {
        Point { bs_bytes, ..append_point(numjobs) }
    }

    /// The kernel with both block sizes, dioxide with the larger one only.
    fn rows() -> Vec<Row> {
        vec![
            row(point(512, 1), Route::Kernel, &[300, 400]),
            row(point(512, 8), Route::Kernel, &[350, 350]),
            row(point(4096, 1), Route::Kernel, &[100, 100]),
            row(point(4096, 1), Route::Dioxide, &[90, 90]),
            row(point(4096, 8), Route::Kernel, &[50, 60]),
            row(point(4096, 8), Route::Dioxide, &[500, 660]),
        ]
    }

    fn words(text: &str, title: &str) -> Vec<Vec<String>> {
        let lines = text.lines().skip_while(|line| !line.trim_start().starts_with(title)).take(3);
        lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn sizes_by_threads() {
        let report = Report { machine: Machine::describe("/x".into(), None), fs: None, rows: rows() };
        let text = of(&report, &report.rows);
        assert_eq!(
            words(&text, "kernel iops"),
            [vec!["kernel", "iops", "1", "8"], vec!["4096", "100", "55"], vec!["512", "350", "350"]]
        );
        assert_eq!(words(&text, "dioxide iops")[1..], [vec!["4096", "90", "580"], vec!["512", "-", "-"]]);
        assert_eq!(
            words(&text, "dioxide / kernel")[1..],
            [vec!["4096", "0.90", "(0.90..0.90)", "10.50", "(10.00..11.00)"], vec!["512", "-", "-"]]
        );
    }

    #[test]
    fn only_what_every_round_says_is_a_fall() {
        assert_eq!(
            descent(&rows(), Route::Kernel),
            "kernel: more threads get less done in every round at 1 of its points; the deepest: bs=4k, where 8 \
             threads reach 0.55x (0.50..0.60) the rate of 1."
        );
        assert_eq!(
            descent(&rows(), Route::Dioxide),
            "dioxide: at no block size do more threads get less done in every round."
        );
    }
}
