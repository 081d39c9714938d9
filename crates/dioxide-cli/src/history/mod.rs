//! `dioxide history`: when the results of many `bench --json` changed beyond chance.

mod change_points;
pub mod document;
pub mod judge;
mod read;
pub mod series;
mod splits;
pub mod text;

use crate::args::{self, Wanted};
use crate::compare::judge::Rules;
use crate::exit::Regression;
use crate::interrupt;
use crate::output;
use crate::report::html;
use crate::terminal::Terminal;
use anyhow::{Result, bail, ensure};
use judge::{Judged, Verdict};
use read::Found;
use series::Run;

/// All runs, and their change points.
pub struct History<'a> {
    pub found: &'a Found,
    pub rules: Rules,
    /// Each machine and device, in words.
    pub places: Vec<String>,
    /// Differences of settings on one machine and device.
    pub unlike: Vec<String>,
    pub stuck: usize,
    /// At least one.
    pub series: Vec<Judged<'a>>,
}

impl<'a> History<'a> {
    /// None if no row has a figure.
    pub fn new(found: &'a Found, rules: Rules) -> Option<Self> {
        let runs = &found.runs;
        let sorted = series::sort(runs, rules.by);
        let places = text::places(&sorted);
        let (unlike, stuck) = (sorted.unlike.clone(), sorted.stuck);
        let series = judge::judge(sorted, runs.len() - 1, rules);
        (!series.is_empty()).then_some(Self { found, rules, places, unlike, stuck, series })
    }

    pub fn run(&self, index: usize) -> &'a Run {
        &self.found.runs[index]
    }

    pub fn newest(&self) -> &'a Run {
        self.run(self.found.runs.len() - 1)
    }

    /// Of the series that count.
    pub fn count(&self, is_counted: impl Fn(&Judged<'_>) -> bool) -> usize {
        self.series.iter().filter(|it| it.is_current && is_counted(it)).count()
    }
}

/// Reads, judges, reports. An error of its own kind if something is slower than allowed.
pub fn run(args: args::History) -> Result<()> {
    let wanted = args.output.wanted();
    output::check(&wanted)?;
    let found = read::read(&args.paths, args.newest.into())?;
    for Wanted { option, path } in wanted.iter().filter(|it| !it.is_stdout()) {
        ensure!(!found.has_read(path), "{option} {}: is one of the results", path.display());
    }
    interrupt::check()?;
    let rules = Rules { by: args.by, limit_percent: args.fail_on_regression };
    let Some(history) = History::new(&found, rules) else {
        bail!("nothing was done in any of the results")
    };
    let document = document::document(&history);
    let texts = output::texts(&args.output, &document, || html::history::page(&history))?;
    let terminal = Terminal::of_stdout(args.output.shape.wide);
    output::deliver(&texts, terminal, |page| text::print(&history, page))?;
    conclude(&history)
}

/// The error for the exit code, if there is a limit.
fn conclude(history: &History<'_>) -> Result<()> {
    let Some(limit) = history.rules.limit_percent else { return Ok(()) };
    let judged = history.count(|_| true);
    let regressions = history.count(|it| it.verdict == Verdict::Regression);
    if regressions > 0 {
        return Err(Regression(format!(
            "{regressions} of {judged} rows are slower by more than {limit} % since their last \
             change"
        ))
        .into());
    }
    let broken = history.found.broken;
    ensure!(broken == 0, "{broken} of the skipped files may be results: broken, or of a later one");
    if let Some(why) = text::open(history).or_else(|| text::blind(history)) {
        bail!("{}", why.trim_end_matches('.'));
    }
    ensure!(judged > 0, "no row of the newest result is judged, so nothing is known; see --by ops");
    Ok(())
}

#[cfg(test)]
pub mod tests;
