//! The results as tables. Nothing is measured here.

use super::case::Shape;
use super::run::Row;
use crate::report::{grid, known};
use crate::units::bytes;
use comfy_table::TableStyle;

const HEADER: [&str; 6] =
    ["records/s", "x best crate", "cpu us/record", "flushes/record", "p99 us", "p99.9 us"];

/// A table for each shape.
pub fn document(heading: String, rows: &[Row], style: TableStyle) -> String {
    let tables = rows.chunk_by(|one, next| kind_of(one.case.shape).0 == kind_of(next.case.shape).0);
    tables.fold(heading, |text, rows| {
        let (title, ..) = kind_of(rows[0].case.shape);
        text + &format!("\n{title}\n\n{}\n", table(rows, style))
    })
}

/// The title of the table of a shape, the header of its number, and that number.
fn kind_of(shape: Shape) -> (&'static str, &'static str, u16) {
    match shape {
        Shape::Threads(count) => ("Threads, one log, a record at a time", "threads", count),
        Shape::Batch(count) => ("One thread, one log, many records at a time", "at once", count),
        Shape::Logs(count) => ("Many logs, a thread each, a record at a time", "logs", count),
        Shape::Groups(count) => ("Raft groups, a thread each, an entry at a time", "groups", count),
    }
}

fn table(rows: &[Row], style: TableStyle) -> String {
    let (_, count, _) = kind_of(rows[0].case.shape);
    let header = [count, "record", "path"].into_iter().chain(HEADER).map(str::to_owned);
    let cells = rows.iter().map(|row| cells(rows, row)).collect();
    grid(style, header.collect(), cells, &[2])
}

fn cells(rows: &[Row], row: &Row) -> Vec<String> {
    let (_, _, count) = kind_of(row.case.shape);
    let ratio = ratio_to_best(rows, row);
    vec![
        count.to_string(),
        bytes(row.case.record_bytes),
        row.case.kind.to_string(),
        format!("{:.0}", row.rate()),
        ratio,
        format!("{:.1}", row.median(|run| run.cpu_us_per_record)),
        known(row.median_known(|run| run.flushes_per_record)),
        format!("{:.0}", row.median(|run| run.p99_us)),
        format!("{:.0}", row.median(|run| run.p99_9_us)),
    ]
}

/// The ratio of `row` to the crate with the highest median at the same work.
fn ratio_to_best(rows: &[Row], row: &Row) -> String {
    let is_rival = |other: &&Row| {
        !other.case.kind.is_dioxide()
            && other.case.shape == row.case.shape
            && other.case.record_bytes == row.case.record_bytes
    };
    let ratio = row.ratio_to_best(rows.iter().filter(is_rival));
    ratio.map_or("-".into(), |ratio| ratio.to_string())
}
