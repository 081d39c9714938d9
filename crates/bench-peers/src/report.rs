//! The results as tables, on stdout and as Markdown. Nothing is measured here.

use crate::args::Output;
use crate::bench::ratio::Ratio;
use crate::case::Space;
use crate::plan::Plan;
use crate::rounds::Row;
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, TableStyle, presets};
use dioxide::Durability;
use std::fs;
use std::io::{self, Write};

/// The header of a column, and its text for a row.
type Column = (&'static str, fn(&Row) -> String);

const NAMES: [Column; 3] = [
    ("outstanding", |row| row.case.iodepth.to_string()),
    ("path", |row| row.case.path()),
    ("space", |row| row.case.space.to_string()),
];
const IOPS: [Column; 1] = [("ops/s", |row| format!("{:.0}", row.iops()))];
const COSTS: [Column; 4] = [
    ("until acknowledged", |row| format!("{:.0}", row.median(|run| run.acked_iops))),
    ("cpu us/op", |row| format!("{:.1}", row.median(|run| run.cpu_us_per_op))),
    ("requests/op", |row| known(row.median_known(|run| run.requests_per_op))),
    ("flushes/op", |row| known(row.median_known(|run| run.flushes_per_op))),
];

/// Prints the tables, and writes the file.
pub fn print(plan: &Plan, rows: &[Row], output: &Output) -> Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{}", document(plan, rows, presets::NOTHING))?;
    out.flush()?;
    match &output.markdown {
        Some(path) => fs::write(path, document(plan, rows, presets::ASCII_MARKDOWN))
            .with_context(|| format!("write {}", path.display())),
        None => Ok(()),
    }
}

fn document(plan: &Plan, rows: &[Row], style: TableStyle) -> String {
    let machine = &plan.machine;
    let mut text = format!(
        "`{}`\n\n{}, {} CPUs, kernel {}; {} rounds of {} s; {}\n",
        machine.command_line,
        place(plan),
        machine.cpus,
        machine.kernel_release,
        plan.rounds,
        plan.course.runtime.as_secs_f64(),
        machine.date,
    );
    for rows in rows.chunk_by(|one, next| one.case.durability == next.case.durability) {
        text += &format!("\n{}\n\n{}\n", title(rows), table(rows, style));
    }
    text
}

/// `ext4 on loop0`, `/dev/loop5`.
fn place(plan: &Plan) -> String {
    match (&plan.course.place.fs, &plan.machine.device) {
        (Some(fs), Some(device)) => format!("{} on {device}", fs.name),
        (Some(fs), None) => fs.name.clone(),
        (None, _) => plan.machine.target.clone(),
    }
}

fn title(rows: &[Row]) -> &'static str {
    match (rows[0].case.space, rows[0].case.durability) {
        (Space::Regions, _) => "Sync writers: 64 x 64 KiB, O_DIRECT|O_SYNC",
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
    let mut table = Table::new();
    let ratios = rivals.iter().map(|space| format!("x best library, {space}"));
    let header = columns.iter().map(|(name, _)| (*name).to_owned()).chain(ratios);
    table.load_style(style).set_header(header.chain(COSTS.map(|(name, _)| name.to_owned())));
    for row in rows {
        let ratios = rivals.iter().map(|&space| ratio_to_best(rows, row, space));
        let cells = columns.iter().map(|(_, cell)| cell(row)).chain(ratios);
        table.add_row(cells.chain(COSTS.map(|(_, cell)| cell(row))));
    }
    for column in table.column_iter_mut() {
        let is_name = [1, 2].contains(&column.index);
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
    let best =
        rows.iter().filter(is_rival).max_by(|one, other| one.iops().total_cmp(&other.iops()));
    let ratio: Option<Ratio> = best.and_then(|best| row.ratio_to(best));
    ratio.map_or("-".into(), |ratio| ratio.to_string())
}

fn known(count: Option<f64>) -> String {
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
