//! Results for people (tables and sentences on stdout) and for programs (JSON). Nothing is measured here.

mod json;
mod sentence;
mod table;

use crate::bench::figures::{Ratio, Row};
use crate::bench::work::Route;
use crate::meter::machine::Machine;
use anyhow::{Context, Result};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Everything that a bench found out.
pub struct Report {
    pub machine: Machine,
    /// None on a device.
    pub fs: Option<String>,
    /// By point, then by route.
    pub rows: Vec<Row>,
}

impl Report {
    /// The rows of one scenario, block size and durability, which stand side by side in `rows`.
    fn groups(&self) -> impl Iterator<Item = &[Row]> {
        self.rows.chunk_by(|one, next| {
            let (one, next) = (one.point, next.point);
            (one.scenario, one.bs_bytes, one.durability) == (next.scenario, next.bs_bytes, next.durability)
        })
    }
}

/// The row of another route at the same point.
fn rival(rows: &[Row], row: &Row, route: Route) -> Option<Ratio> {
    let rival = rows.iter().find(|other| other.point == row.point && other.route == route)?;
    if rival.route == row.route { None } else { row.ratio_to(rival) }
}

/// Prints the report. `json` is a file, or `-` for nothing but JSON on stdout.
pub fn print(report: &Report, json: Option<&Path>) -> Result<()> {
    let to_stdout = json == Some(Path::new("-"));
    if !to_stdout {
        print_for_people(report)?;
    }
    let Some(path) = json else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(&json::document(report))?;
    text.push('\n');
    if to_stdout {
        io::stdout().write_all(text.as_bytes())?;
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn print_for_people(report: &Report) -> Result<()> {
    let mut out = io::stdout().lock();
    for rows in report.groups() {
        writeln!(out, "{}\n{}\n", table::title(report, rows), table::of(rows))?;
    }
    for rows in report.groups() {
        writeln!(out, "{}", sentence::of(rows))?;
    }
    out.flush()?;
    Ok(())
}
