//! `dioxide plot`: saved results of `dioxide bench --json` as one picture.

use crate::args::{self, Cli};
use crate::interrupt;
use crate::output::{self, Text};
use crate::report::html::picture::{Panel, picture};
use crate::saved::{self, SavedDocument, SavedRow, SavedWork};
use crate::terminal::Terminal;
use anyhow::Result;
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::path::{Path, PathBuf};

/// Reads the results and draws a panel for each work of each of them.
pub fn run(args: &args::Plot) -> Result<()> {
    if args.results.iter().filter(|path| path.as_path() == Path::new("-")).count() > 1 {
        let twice = "stdin (`-`) can be one of the results only";
        Cli::command().error(ErrorKind::ArgumentConflict, twice).exit();
    }
    let wanted = args::Wanted { option: "--svg", path: &args.svg };
    let read: Vec<_> = args.results.iter().map(PathBuf::as_path).collect();
    output::check(&[wanted], &read)?;
    let documents =
        args.results.iter().map(|path| saved::read(path)).collect::<Result<Vec<_>>>()?;
    interrupt::check()?;
    let panels: Vec<Panel<'_>> = documents.iter().flat_map(panels).collect();
    let text = Text { wanted, text: picture(&panels) };
    output::deliver(&[text], Terminal::default(), |_| Ok(()))
}

/// One for each kind of work, in the order of the document.
fn panels(document: &SavedDocument) -> Vec<Panel<'_>> {
    let mut works: Vec<&SavedWork> = Vec::new();
    for SavedRow { key, .. } in &document.results {
        if !works.contains(&&key.work) {
            works.push(&key.work);
        }
    }
    let rows =
        |work: &SavedWork| document.results.iter().filter(|row| row.key.work == *work).collect();
    works
        .into_iter()
        .map(|work| Panel { machine: &document.machine, work, rows: rows(work) })
        .collect()
}
