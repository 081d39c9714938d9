//! The results as tables, on stdout and as Markdown. Nothing is measured here.

use crate::args::Output;
use crate::bench::place::BenchTarget;
use crate::case::Space;
use crate::meter::machine::Machine;
use crate::plan::Plan;
use crate::run::Row;
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, TableStyle, presets};
use dioxide::Durability;
use std::fs;
use std::io::{self, Write};
use std::time::Duration;

/// The header of a column, and its text for a row.
type Column = (&'static str, fn(&Row) -> String);

const NAMES: [Column; 3] = [
    ("outstanding", |row| row.case.iodepth.to_string()),
    ("path", |row| row.case.path()),
    ("space", |row| row.case.space.to_string()),
];
const IOPS: [Column; 1] = [("ops/s", |row| format!("{:.0}", row.rate()))];
const COSTS: [Column; 4] = [
    ("until acknowledged", |row| format!("{:.0}", row.median(|run| run.acked_iops))),
    ("cpu us/op", |row| format!("{:.1}", row.median(|run| run.cpu_us_per_op))),
    ("requests/op", |row| known(row.median_known(|run| run.requests_per_op))),
    ("flushes/op", |row| known(row.median_known(|run| run.flushes_per_op))),
];

/// Prints a document, and writes it to the file.
pub fn print(output: &Output, document: impl Fn(TableStyle) -> String) -> Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{}", document(presets::NOTHING))?;
    out.flush()?;
    match &output.markdown {
        Some(path) => fs::write(path, document(presets::ASCII_MARKDOWN))
            .with_context(|| format!("write {}", path.display())),
        None => Ok(()),
    }
}

/// The command, the machine and the pace.
pub fn heading(machine: &Machine, target: &BenchTarget, rounds: u32, runtime: Duration) -> String {
    format!(
        "`{}`\n\n{}, {} CPUs, kernel {}; {rounds} rounds of {} s; {}\n",
        machine.command_line,
        place(machine, target),
        machine.cpus,
        machine.kernel_release,
        runtime.as_secs_f64(),
        machine.date,
    )
}

/// The tables of a plan.
pub fn document(plan: &Plan, rows: &[Row], style: TableStyle) -> String {
    let course = &plan.course;
    let mut text = heading(&plan.machine, &course.place, plan.rounds, course.runtime);
    for rows in rows.chunk_by(|one, next| one.case.durability == next.case.durability) {
        text += &format!("\n{}\n\n{}\n", title(rows), table(rows, style));
    }
    text
}

/// `ext4 on loop0`, `/dev/loop5`.
fn place(machine: &Machine, target: &BenchTarget) -> String {
    match (&target.fs, &machine.device) {
        (Some(fs), Some(device)) => format!("{} on {device}", fs.name),
        (Some(fs), None) => fs.name.clone(),
        (None, _) => machine.target.clone(),
    }
}

fn title(rows: &[Row]) -> &'static str {
    match (rows[0].case.space, rows[0].case.durability) {
        (Space::Regions, _) => "Sync writers: 64 x 64 KiB, O_DIRECT|O_DSYNC",
        (_, Durability::EveryWrite) => {
            "Appends of 4 KiB, O_DIRECT, each acknowledged when it is stable"
        }
        (_, Durability::OnSync) => {
            "Appends of 4 KiB, O_DIRECT, acknowledged when written, stable in the end"
        }
    }
}

fn table(rows: &[Row], style: TableStyle) -> String {
    let rivals = rivals(rows);
    let columns = [&NAMES[..], &IOPS].concat();
    let ratios = rivals.iter().map(|space| format!("x best library, {space}"));
    let header = columns.iter().map(|(name, _)| (*name).to_owned()).chain(ratios);
    let header = header.chain(COSTS.map(|(name, _)| name.to_owned())).collect();
    let cells = rows.iter().map(|row| {
        let ratios = rivals.iter().map(|&space| ratio_to_best(rows, row, space));
        let cells = columns.iter().map(|(_, cell)| cell(row)).chain(ratios);
        cells.chain(COSTS.map(|(_, cell)| cell(row))).collect()
    });
    grid(style, header, cells.collect(), &[1, 2])
}

/// A table. The columns of names are on the left, numbers on the right.
pub fn grid(
    style: TableStyle,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    names: &[usize],
) -> String {
    let mut table = Table::new();
    table.load_style(style).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        let is_name = names.contains(&column.index);
        column.set_cell_alignment(if is_name { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.trim_fmt()
}

/// The spaces of the libraries, in the order of the rows.
fn rivals(rows: &[Row]) -> Vec<Space> {
    let mut spaces = Vec::new();
    for row in rows.iter().filter(|row| row.case.kind.is_library()) {
        if !spaces.contains(&row.case.space) {
            spaces.push(row.case.space);
        }
    }
    spaces
}

/// The ratio of `row` to the library with the highest median, with as many outstanding operations.
fn ratio_to_best(rows: &[Row], row: &Row, space: Space) -> String {
    let is_rival = |other: &&Row| {
        other.case.kind.is_library()
            && other.case.space == space
            && other.case.iodepth == row.case.iodepth
    };
    let ratio = row.ratio_to_best(rows.iter().filter(is_rival));
    ratio.map_or("-".into(), |ratio| ratio.to_string())
}

/// A number that some devices do not count.
pub fn known(count: Option<f64>) -> String {
    count.map_or("-".into(), |count| format!("{count:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Case, Flush, Kind};
    use crate::run::Figures;

    fn row(kind: Kind, space: Space, rates: &[f64]) -> Row {
        let figures = |&iops: &f64| Figures {
            iops,
            acked_iops: iops,
            cpu_us_per_op: 1.0,
            requests_per_op: None,
            flushes_per_op: None,
        };
        let case =
            Case { kind, flush: Flush::Flags, space, iodepth: 64, durability: Durability::OnSync };
        Row { case, runs: rates.iter().map(figures).collect() }
    }

    #[test]
    fn ratios_are_to_the_best_library_of_each_space() {
        let rows = [
            row(Kind::Compio, Space::Extend, &[10.0, 20.0, 10.0]),
            row(Kind::Monoio, Space::Extend, &[5.0, 5.0, 50.0]),
            row(Kind::Monoio, Space::Falloc, &[40.0, 40.0, 40.0]),
            // Not a library.
            row(Kind::Threads, Space::Extend, &[90.0, 90.0, 90.0]),
        ];
        assert_eq!(rivals(&rows), [Space::Extend, Space::Falloc]);
        assert_eq!(ratio_to_best(&rows, &rows[3], Space::Extend), "9.00 (4.50..9.00)");
        assert_eq!(ratio_to_best(&rows, &rows[3], Space::Falloc), "2.25 (2.25..2.25)");
        assert_eq!(ratio_to_best(&rows, &rows[3], Space::Overwrite), "-");
        let table = table(&rows, presets::ASCII_MARKDOWN);
        assert!(
            table.starts_with("| outstanding") && table.contains("9.00 (4.50..9.00)"),
            "{table}"
        );
    }
}
