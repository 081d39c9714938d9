//! `dioxide compare`: whether two results of `bench --json` differ by more than chance, and by how
//! much.

mod bmf;
pub mod change;
mod json;
pub mod judge;
pub mod mann_whitney;
pub mod text;
pub mod unlike;

use crate::args::{self, Cli, Wanted};
use crate::exit::Regression;
use crate::output::{self, Text};
use crate::report::html;
use crate::saved::{self, SavedDocument, SavedRow};
use crate::terminal::Terminal;
use anyhow::{Context, Result, bail, ensure};
use clap::{CommandFactory, error::ErrorKind};
use judge::{Compared, Rules, Verdict};
use std::path::Path;
use unlike::Differences;

/// Two runs, side by side.
pub struct Comparison<'a> {
    pub old: &'a SavedDocument,
    pub new: &'a SavedDocument,
    pub rules: Rules,
    /// Their other differences.
    pub unlike: Differences,
    pub rows: Vec<Compared<'a>>,
    pub only_in_old: Vec<&'a SavedRow>,
    pub only_in_new: Vec<&'a SavedRow>,
}

impl<'a> Comparison<'a> {
    pub fn new(old: &'a SavedDocument, new: &'a SavedDocument, rules: Rules) -> Self {
        let pairs = judge::pairs(old, new);
        Self {
            old,
            new,
            rules,
            unlike: unlike::differences(old, new, &pairs),
            rows: judge::judge(&pairs, rules),
            only_in_old: judge::missing(old, new),
            only_in_new: judge::missing(new, old),
        }
    }

    pub fn count(&self, is_counted: impl Fn(&Compared<'_>) -> bool) -> usize {
        self.rows.iter().filter(|row| is_counted(row)).count()
    }
}

/// Reads, compares, reports. An error of its own kind if something is slower than allowed.
pub fn run(args: args::Compare) -> Result<()> {
    if [&args.old, &args.new].iter().all(|path| path.as_path() == Path::new("-")) {
        let twice = "stdin (`-`) can be one of the two only";
        Cli::command().error(ErrorKind::ArgumentConflict, twice).exit();
    }
    let wanted = [("--json", &args.json), ("--html", &args.html), ("--bmf", &args.bmf)];
    let wanted: Vec<_> = wanted
        .into_iter()
        .filter_map(|(option, path)| Some(Wanted { option, path: path.as_deref()? }))
        .collect();
    output::check(&wanted, &[&args.old, &args.new])?;
    let (old, new) = (saved::read(&args.old)?, saved::read(&args.new)?);
    let rules = Rules { by: args.by, limit_percent: args.fail_on_regression };
    let comparison = Comparison::new(&old, &new, rules);
    check(&comparison, args.allow_unlike)
        .with_context(|| format!("{} and {}", args.old.display(), args.new.display()))?;
    let document = json::document(&comparison);
    let text = |wanted: Wanted<'_>| match wanted.option {
        "--bmf" => output::json(&bmf::document(&new)),
        "--html" => Ok(html::compare::page(&comparison)),
        _ => output::json(&document),
    };
    let texts = wanted.iter().map(|wanted| Ok(Text { wanted: *wanted, text: text(*wanted)? }));
    let texts: Vec<Text<'_>> = texts.collect::<Result<_>>()?;
    let terminal = Terminal::of_stdout(args.shape.wide);
    output::deliver(&texts, terminal, |page| text::print(&comparison, page))?;
    conclude(&comparison)
}

/// For people, without a limit.
#[cfg(test)]
pub fn print(old: &SavedDocument, new: &SavedDocument, page: &mut output::Page) -> Result<()> {
    let rules = Rules { by: args::By::Ratio, limit_percent: Some(10.0) };
    text::print(&Comparison::new(old, new, rules), page)
}

/// The comparison of a new run with a saved one.
pub fn with_baseline<'a>(old: &'a SavedDocument, new: &'a SavedDocument) -> Result<Comparison<'a>> {
    let rules = Rules { by: args::By::default(), limit_percent: None };
    let comparison = Comparison::new(old, new, rules);
    check(&comparison, false).context("--baseline")?;
    Ok(comparison)
}

/// Whether the documents are comparable.
fn check(comparison: &Comparison<'_>, is_unlike_allowed: bool) -> Result<()> {
    ensure!(!comparison.rows.is_empty(), "no row is in both: they are of different work");
    ensure!(
        is_unlike_allowed || comparison.unlike.serious.is_empty(),
        "not alike, so what differs says nothing about dioxide: {}. Measure both in the same way, \
         or give --allow-unlike",
        comparison.unlike.serious.join("; ")
    );
    Ok(())
}

/// The error for the exit code, if there is a limit.
fn conclude(comparison: &Comparison<'_>) -> Result<()> {
    let Some(limit) = comparison.rules.limit_percent else { return Ok(()) };
    let regressions = comparison.count(|row| row.verdict == Verdict::Regression);
    if regressions > 0 {
        let judged = comparison.count(|row| row.verdict.is_known());
        return Err(Regression(format!(
            "{regressions} of {judged} rows are slower by more than {limit} %"
        ))
        .into());
    }
    if let Some(why) = text::open(comparison).or_else(|| text::blind(comparison)) {
        bail!("{}", why.trim_end_matches('.'));
    }
    ensure!(
        comparison.count(|row| row.verdict.is_judged()) > 0,
        "no row is judged, so nothing is known; see --by ops"
    );
    Ok(())
}
