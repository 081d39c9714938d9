//! Results for people (tables and sentences on stdout), as HTML pages, and for programs (JSON).
//! Measures nothing.

mod fio;
pub mod grid;
pub mod html;
pub mod json;
mod matrix;
pub mod noise;
mod percentiles;
mod refusals;
mod sentence;
mod table;

use crate::args::Outputs;
use crate::bench::figures::Row;
use crate::bench::ratio::Ratio;
use crate::bench::work::{Backend, Point, Route, Scenario};
use crate::compare::{self, Comparison};
use crate::exit::say;
use crate::meter::filesystem::FileSystem;
use crate::meter::machine::Machine;
use crate::output::{self, Page, Tint};
use crate::terminal::Terminal;
use anyhow::Result;
use dioxide::Growth;
use std::io::Write;

/// The results of a bench.
pub struct Report {
    /// A name for the result, in JSON only.
    pub label: Option<String>,
    pub machine: Machine,
    /// None on a device.
    pub fs: Option<FileSystem>,
    /// Ordered by point, then by route.
    pub rows: Vec<Row>,
}

impl Report {
    /// The rows of each scenario, durability and share of reads, and of each number of files and
    /// their space. They are adjacent in `rows`.
    fn groups(&self) -> impl Iterator<Item = &[Row]> {
        let group = |row: &Row| {
            let Point { scenario, durability, rwmixread, files, space, .. } = row.point;
            (scenario, durability, rwmixread, files, space)
        };
        self.rows.chunk_by(move |one, next| group(one) == group(next))
    }
}

/// The rows of each block size, from those of one scenario and durability.
fn by_block_size(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|one, next| one.point.sizes == next.point.sizes)
}

/// The available rivals of dioxide.
fn rivals(rows: &[Row]) -> Vec<Route> {
    let point = rows[0].point;
    let rivals: &[Route] = match (point.backend, point.scenario) {
        (Backend::Sim, _) => &[Route::Dioxide],
        (_, Scenario::Append) => &[Route::Kernel, Route::Preallocated, Route::BufferedGroup],
        (_, Scenario::Sync | Scenario::Mixed | Scenario::Indirect) => {
            &[Route::Kernel, Route::Serialised, Route::Buffered]
        }
        (_, Scenario::Log) => &[Route::Mutex, Route::BufferedGroup, BATCH, GATHERED, Route::Kernel],
        (_, Scenario::Copy) => &[Route::Kernel, Route::OneThread, Route::Unsynced],
        (_, Scenario::Files | Scenario::Checkpoint) => {
            &[Route::OneThread, Route::Kernel, URING, SYNCFS]
        }
    };
    let is_there = |route: &Route| rows.iter().any(|row| row.route.is_path_of(*route));
    rivals.iter().copied().filter(is_there).collect()
}

/// Rivals with any number of outstanding operations.
const URING: Route = Route::Uring { iodepth: 1 };
const SYNCFS: Route = Route::Syncfs { iodepth: 1 };
const GATHERED: Route = Route::GatheredTasks { iodepth: 1 };
const BATCH: Route = Route::BufferedBatch { iodepth: 1 };

/// The row of each path with the most operations in flight, in the order of measurement.
fn largest(rows: &[Row]) -> Vec<&Row> {
    let of_path = |path: &String| {
        let rows = rows.iter().filter(|row| matrix::path_of(row) == *path);
        rows.max_by_key(|row| row.point.numjobs)
    };
    matrix::paths(rows).iter().filter_map(of_path).collect()
}

/// A reservation about the rates of these rows.
fn noise(rows: &[Row]) -> Option<String> {
    let rounds = |row: &Row| noise::Rounds {
        name: format!("{} with {}", row.route.name(), sentence::crew(row)),
        iops: row.runs.iter().map(|run| run.iops).collect(),
    };
    noise::of(&rows.iter().map(rounds).collect::<Vec<_>>())
}

/// The ratio of `row` to another route at the same point. A recycled file has written space, which
/// a preallocated one has only with zeroed growth.
fn rival(rows: &[Row], row: &Row, route: Route) -> Option<Ratio> {
    let is_written = row.point.growth == Some(Growth::Zeroed);
    if (row.route, route) == (Route::Recycled, Route::Preallocated) && !is_written {
        return None;
    }
    row.ratio_to(beside(rows, row, route)?)
}

/// The row of another path at the same point. One thread is beside any number of threads. Mixed
/// operations of several queues are beside as many threads as all of them have outstanding.
fn beside<'a>(rows: &'a [Row], row: &Row, route: Route) -> Option<&'a Row> {
    let lanes = |row: &Row| row.point.lanes(row.route);
    let is_beside = |other: &&Row| {
        let numjobs = match (other.route, other.point.scenario) {
            (Route::OneThread, _) => row.point.numjobs,
            (_, Scenario::Mixed) if lanes(other) == lanes(row) => row.point.numjobs,
            (_, Scenario::Mixed) => return false,
            _ => other.point.numjobs,
        };
        other.route.is_path_of(route)
            && !row.route.is_path_of(route)
            && Point { numjobs, ..other.point } == row.point
    };
    rows.iter().find(is_beside)
}

/// Checks before the work that the requested files can be written.
pub fn check(routes: impl Iterator<Item = Route>, outputs: &Outputs) -> Result<()> {
    let fio = fio::files(routes, outputs)?;
    let wanted: Vec<_> =
        outputs.wanted().into_iter().chain(fio.iter().map(fio::File::wanted)).collect();
    output::check(&wanted, outputs.baseline.as_deref().as_slice())
}

/// Writes the requested outputs, and prints the report, then `comparison`. If stdout has another
/// output, the comparison goes to stderr.
pub fn print(
    report: &Report,
    outputs: &Outputs,
    comparison: Option<&Comparison<'_>>,
) -> Result<()> {
    let mut texts =
        output::texts(&outputs.common, &json::document(report), || html::bench::page(report))?;
    let fio = fio::files(report.rows.iter().map(|row| row.route), outputs)?;
    for file in &fio {
        texts.push(file.text(report)?);
    }
    let is_taken = texts.iter().any(|text| text.wanted.is_stdout());
    let terminal = Terminal::of_stdout(outputs.common.shape.wide);
    output::deliver(&texts, terminal, |page| {
        print_for_people(report, outputs.verbose, comparison, page)
    })?;
    if let Some(comparison) = comparison.filter(|_| is_taken) {
        let mut page = Page::new(Terminal::default());
        compare::text::print(comparison, &mut page)?;
        page.finished().lines().filter(|line| !line.is_empty()).for_each(say);
    }
    Ok(())
}

/// Several block sizes have matrices, and their tables only if `verbose`. The comparison follows.
pub fn print_for_people(
    report: &Report,
    verbose: bool,
    comparison: Option<&Comparison<'_>>,
    out: &mut Page,
) -> Result<()> {
    let width = out.width();
    let (matrices, singles): (Vec<_>, Vec<_>) =
        report.groups().partition(|rows| by_block_size(rows).nth(1).is_some());
    for rows in &matrices {
        writeln!(out, "{}", matrix::of(report, rows, width))?;
        if let Some(warning) = noise(rows) {
            out.tinted(Some(Tint::Warning), warning + "\n")?;
        }
    }
    let tables: Vec<_> =
        if verbose { report.groups().flat_map(by_block_size).collect() } else { singles };
    for rows in &tables {
        writeln!(out, "{}\n{:width$}", table::title(report, rows), table::of(rows))?;
        writeln!(out, "{}", refusals::of(rows))?;
        if let Some(warning) = noise(rows) {
            out.tinted(Some(Tint::Warning), warning + "\n")?;
        }
        if rows[0].point.scenario == Scenario::Mixed {
            writeln!(out, "{}", percentiles::of(rows))?;
        }
    }
    for rows in &tables {
        writeln!(out, "{}", sentence::of(rows))?;
    }
    if let Some(comparison) = comparison {
        writeln!(out)?;
        compare::text::print(comparison, out)?;
    }
    Ok(())
}
