//! The results as matrices, block size by threads: the rate of each path, and the ratios of dioxide
//! to its rivals.

use super::grid::Grid;
use super::sentence::times;
use super::{Report, rival, rivals, table};
use crate::bench::figures::Row;
use crate::bench::ratio::{Ratio, is_certain};
use crate::bench::work::{Route, Scenario};
use crate::sizes::Sizes;
use dioxide_diagnose::words::short;
use std::collections::BTreeSet;

/// All matrices of these rows, of one scenario and durability, and where a path gets slower with
/// more threads.
pub fn of(report: &Report, rows: &[Row], width: usize) -> String {
    let mut text = format!("{}\n", title(report, rows));
    for matrix in matrices(rows) {
        text += &format!("\n{matrix:width$}\n");
    }
    text + &descents(rows).join("\n") + "\n"
}

/// The title of the matrices of these rows.
pub fn title(report: &Report, rows: &[Row]) -> String {
    format!("{}: {}", table::scenario(rows[0].point.scenario), table::conditions(report, rows))
}

/// The rate of each path, and its ratios to its rivals. The first field of a matrix is its title.
pub fn matrices(rows: &[Row]) -> Vec<Grid> {
    let paths = paths(rows);
    let rates = paths.iter().map(|path| {
        matrix(rows, &format!("{path} iops"), |row| {
            (path_of(row) == *path).then(|| short(row.iops()))
        })
    });
    let ratios = paths.iter().filter(|path| is_compared(rows, path)).flat_map(|path| {
        rivals(rows).into_iter().map(move |against| {
            let title = format!("{path} / {}", against.name());
            matrix(rows, &title, |row| {
                (path_of(row) == *path).then(|| table::ratio(rival(rows, row, against)))
            })
        })
    });
    rates.chain(ratios).collect()
}

/// For each path, a line on whether more threads ever made it slower.
pub fn descents(rows: &[Row]) -> Vec<String> {
    paths(rows).iter().map(|path| descent(rows, path)).collect()
}

/// The name of a matrix. Queues of several depths have one each, compared with as many threads.
pub fn path_of(row: &Row) -> String {
    match (row.route, row.point.scenario) {
        (Route::Queue { iodepth }, Scenario::Mixed) => {
            format!("{} iodepth={iodepth}", row.route.name())
        }
        _ => row.route.name().into(),
    }
}

/// In the order of measurement.
pub fn paths(rows: &[Row]) -> Vec<String> {
    let mut paths = Vec::new();
    for path in rows.iter().map(path_of) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

fn is_compared(rows: &[Row], path: &str) -> bool {
    let compared = rivals(rows);
    let mut rows = rows.iter().filter(|row| path_of(row) == path);
    rows.any(|row| {
        let is_a_rival = matches!(row.route, Route::Positional | Route::Recycled);
        row.route.is_dioxide() && !is_a_rival && !compared.contains(&row.route)
    })
}

/// Block sizes downwards, largest first; threads to the right. `cell` renders a row.
fn matrix(rows: &[Row], title: &str, cell: impl Fn(&Row) -> Option<String>) -> Grid {
    let numjobs: BTreeSet<usize> = rows.iter().map(|row| row.point.numjobs).collect();
    let all: BTreeSet<Sizes> = rows.iter().map(|row| row.point.sizes).collect();
    let at = |sizes, numjobs| {
        let here =
            rows.iter().filter(|row| (row.point.sizes, row.point.numjobs) == (sizes, numjobs));
        here.filter_map(&cell).next().unwrap_or("-".into())
    };
    let line = |sizes: Sizes| {
        let name = [sizes.to_string()];
        name.into_iter().chain(numjobs.iter().map(|&numjobs| at(sizes, numjobs))).collect()
    };
    let header =
        [title.to_owned()].into_iter().chain(numjobs.iter().map(usize::to_string)).collect();
    Grid::new(header, all.iter().rev().map(|sizes| line(*sizes)).collect(), |column| column > 0)
}

/// A point where more threads are slower.
struct Fall<'a> {
    row: &'a Row,
    /// The fastest smaller number of threads.
    fewer: &'a Row,
    ratio: Ratio,
}

/// A smaller loss is noise.
const FALL_MAX: f64 = 0.95;

/// Whether more threads ever made a path slower, in every round.
fn descent(rows: &[Row], path: &str) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| path_of(row) == path).collect();
    let falls: Vec<Fall<'_>> =
        rows.chunk_by(|one, next| one.point.sizes == next.point.sizes).flat_map(falls).collect();
    let is_one_queue = rows.iter().any(|row| row.point.threads(row.route) != row.point.numjobs);
    let what = if is_one_queue { "outstanding operations" } else { "threads" };
    let deepest = falls.iter().min_by(|one, other| one.ratio.median.total_cmp(&other.ratio.median));
    let Some(Fall { row, fewer, ratio }) = deepest else {
        let rounds = rows[0].runs.len();
        let few = if is_certain(rounds) { String::new() } else { format!(", of {rounds}") };
        return format!(
            "{path}: at no block size do more {what} get over 5 % less done in every round{few}."
        );
    };
    let certainty = if is_certain(ratio.rounds) { "" } else { "perhaps " };
    format!(
        "{path}: {certainty}at {} of its points more {what} get over 5 % less done than some \
         fewer, in every round. The deepest: bs={}, where {} {what} reach {} the rate of {}.",
        falls.len(),
        row.point.sizes,
        row.point.numjobs,
        times(*ratio),
        fewer.point.numjobs,
    )
}

/// The points of a path, at one block size, that were slower in every round than a smaller number
/// of threads.
fn falls<'a>(path: &[&'a Row]) -> Vec<Fall<'a>> {
    let mut falls = Vec::new();
    for &row in path {
        let fewer = path.iter().filter(|other| other.point.numjobs < row.point.numjobs);
        let slower = fewer
            .filter_map(|&fewer| Some(Fall { row, fewer, ratio: row.ratio_to(fewer)? }))
            .filter(|fall| fall.ratio.max < FALL_MAX);
        falls.extend(slower.min_by(|one, other| one.ratio.median.total_cmp(&other.ratio.median)));
    }
    falls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::examples::{append_point, mixed_point, row};
    use crate::bench::work::Point;
    use crate::meter::machine::Machine;

    fn point(bs_bytes: u64, numjobs: usize) -> Point {
        Point { sizes: Sizes::one(bs_bytes), ..append_point(numjobs) }
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
        let report = Report {
            label: None,
            machine: Machine::describe("/x".into(), None),
            fs: None,
            rows: rows(),
        };
        let text = of(&report, &report.rows, 0);
        assert_eq!(
            words(&text, "kernel iops"),
            [
                vec!["kernel", "iops", "1", "8"],
                vec!["4", "KiB", "100", "55"],
                vec!["512", "B", "350", "350"]
            ]
        );
        assert_eq!(
            words(&text, "dioxide iops")[1..],
            [vec!["4", "KiB", "90", "580"], vec!["512", "B", "-", "-"]]
        );
        assert_eq!(
            words(&text, "dioxide / kernel")[1..],
            [
                vec!["4", "KiB", "0.90", "(0.90..0.90)", "10.50", "(10.00..11.00)"],
                vec!["512", "B", "-", "-"]
            ]
        );
    }

    #[test]
    fn only_what_every_round_says_is_a_fall() {
        let rows = vec![
            row(point(4096, 1), Route::Kernel, &[100; 5]),
            row(point(4096, 1), Route::Dioxide, &[100; 5]),
            row(point(4096, 8), Route::Kernel, &[50, 60, 55, 55, 55]),
            row(point(4096, 8), Route::Dioxide, &[50, 50, 50, 50, 110]),
        ];
        assert_eq!(
            descent(&rows, "kernel"),
            "kernel: at 1 of its points more threads get over 5 % less done than some fewer, in \
             every round. The deepest: bs=4 KiB, where 8 threads reach 0.55x (0.50..0.60) the rate \
             of 1."
        );
        assert_eq!(
            descent(&rows, "dioxide"),
            "dioxide: at no block size do more threads get over 5 % less done in every round."
        );
    }

    #[test]
    fn a_fall_from_any_number_of_threads_counts() {
        // The best in the median has a bad round; another one is best in every round.
        let rows = vec![
            row(point(4096, 1), Route::Kernel, &[100; 5]),
            row(point(4096, 4), Route::Kernel, &[50, 120, 120, 120, 120]),
            row(point(4096, 8), Route::Kernel, &[80; 5]),
        ];
        assert!(descent(&rows, "kernel").ends_with("8 threads reach 0.80x the rate of 1."));
    }

    #[test]
    fn a_few_percent_are_no_fall() {
        let rows = vec![
            row(point(4096, 1), Route::Kernel, &[100; 5]),
            row(point(4096, 8), Route::Kernel, &[96; 5]),
        ];
        assert!(descent(&rows, "kernel").starts_with("kernel: at no block size"));
    }

    #[test]
    fn few_rounds_are_no_certainty() {
        let text = descent(&rows(), "kernel");
        assert!(text.starts_with("kernel: perhaps at 1 of its points"), "{text}");
        assert!(text.ends_with("8 threads reach about 0.55x (2 rounds) the rate of 1."), "{text}");
        assert!(descent(&rows(), "dioxide").ends_with("less done in every round, of 2."));
    }

    #[test]
    fn an_old_file_has_a_matrix_of_its_own() {
        let mut rows = rows();
        rows.push(row(point(4096, 8), Route::Recycled, &[700, 700]));
        let report =
            Report { label: None, machine: Machine::describe("/x".into(), None), fs: None, rows };
        let text = of(&report, &report.rows, 0);
        assert_eq!(words(&text, "recycled iops")[1], ["4", "KiB", "-", "700"]);
        assert!(text.contains("\nrecycled: at no block size"), "{text}");
    }

    #[test]
    fn a_queue_is_compared_with_as_many_threads() {
        let mut rows = rows();
        rows.push(row(point(4096, 8), Route::Queue { iodepth: 8 }, &[1000, 1200]));
        let report =
            Report { label: None, machine: Machine::describe("/x".into(), None), fs: None, rows };
        let text = of(&report, &report.rows, 0);
        assert_eq!(
            words(&text, "dioxide-queue / kernel")[1],
            ["4", "KiB", "-", "20.00", "(20.00..20.00)"]
        );
        assert!(
            text.contains("dioxide-queue: at no block size do more outstanding operations"),
            "{text}"
        );
    }

    #[test]
    fn queues_of_each_depth_have_a_matrix() {
        let queue = |iodepth| row(mixed_point(2), Route::Queue { iodepth }, &[iodepth as u64]);
        let rows = vec![row(mixed_point(2), Route::Kernel, &[1]), queue(4), queue(16)];
        let report =
            Report { label: None, machine: Machine::describe("/x".into(), None), fs: None, rows };
        let text = of(&report, &report.rows, 0);
        assert_eq!(words(&text, "dioxide-queue iodepth=16 iops")[1], ["4", "KiB", "16"]);
        assert_eq!(
            words(&text, "dioxide-queue iodepth=4 / kernel")[1],
            ["4", "KiB", "-"],
            "no 8 threads were measured"
        );
    }
}
