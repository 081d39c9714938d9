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
use crate::saved::SavedRow;
use crate::terminal::Terminal;
use anyhow::{Result, bail, ensure};
use judge::{HistoryVerdict, Judged};
use read::Found;
use series::SavedRun;

/// All runs, and their change points.
pub struct JudgedHistory<'a> {
    pub found: &'a Found,
    pub rules: Rules,
    /// Each machine and device, in words.
    pub places: Vec<String>,
    /// Differences of settings on one machine and device.
    pub unlike: Vec<String>,
    /// Rows without a figure.
    pub stuck: usize,
    /// Those of the newest result of their work that would be judged.
    pub stuck_now: usize,
    /// At least one.
    pub series: Vec<Judged<'a>>,
}

impl<'a> JudgedHistory<'a> {
    /// An error if no row has a figure, or on Ctrl-C.
    pub fn new(found: &'a Found, rules: Rules) -> Result<Self> {
        let sorted = series::sort(&found.runs, rules.by);
        ensure!(!sorted.series.is_empty(), "nothing was done in any of the results");
        let places = text::places(&sorted);
        let is_now = |(run, row): &&(usize, &SavedRow)| {
            series::is_judged(&row.key, rules.by) && sorted.is_newest(*run, row)
        };
        let (stuck, stuck_now) = (sorted.stuck.len(), sorted.stuck.iter().filter(is_now).count());
        let unlike = sorted.unlike.clone();
        let series = judge::judge(sorted, rules, interrupt::check)?;
        Ok(Self { found, rules, places, unlike, stuck, stuck_now, series })
    }

    pub fn run(&self, index: usize) -> &'a SavedRun {
        &self.found.runs[index]
    }

    pub fn newest(&self) -> &'a SavedRun {
        self.run(self.found.runs.len() - 1)
    }

    /// The number of series that count and could be judged.
    pub fn judged(&self) -> usize {
        self.count(|it| it.verdict != HistoryVerdict::TooFewRuns)
    }

    /// Of the series that count.
    pub fn count(&self, is_counted: impl Fn(&Judged<'_>) -> bool) -> usize {
        self.series.iter().filter(|it| it.is_current() && is_counted(it)).count()
    }
}

/// Reads, judges, reports. An error of its own kind if something is slower than allowed.
pub fn run(args: args::History) -> Result<()> {
    let wanted = args.output.wanted();
    output::check(&wanted, &[])?;
    let found = read::read(&args.paths, args.newest.into())?;
    for Wanted { option, path } in wanted.iter().filter(|it| !it.is_stdout()) {
        ensure!(!found.has_read(path), "{option} {}: is one of the results", path.display());
    }
    interrupt::check()?;
    let rules = Rules { by: args.by, limit_percent: args.fail_on_regression };
    let history = JudgedHistory::new(&found, rules)?;
    let document = document::document(&history);
    let texts = output::texts(&args.output, &document, || html::history::page(&history))?;
    let terminal = Terminal::of_stdout(args.output.shape.wide);
    output::deliver(&texts, terminal, |page| text::print(&history, page))?;
    conclude(&history)
}

/// The error for the exit code, if there is a limit.
fn conclude(history: &JudgedHistory<'_>) -> Result<()> {
    let Some(limit) = history.rules.limit_percent else { return Ok(()) };
    let judged = history.judged();
    let regressions = history.count(|it| it.verdict == HistoryVerdict::Regression);
    if regressions > 0 {
        return Err(Regression(format!(
            "{regressions} of {judged} rows are slower by more than {limit} % since a change"
        ))
        .into());
    }
    let broken = history.found.broken;
    ensure!(broken == 0, "{broken} of the skipped files may be results: broken, or of a later one");
    let gaps: [fn(&JudgedHistory<'_>) -> Option<String>; 4] =
        [text::missing, text::stuck, text::open, text::blind];
    if let Some(why) = gaps.iter().find_map(|gap| gap(history)) {
        bail!("{}", why.trim_end_matches('.'));
    }
    ensure!(judged > 0, "no row of the newest result is judged, so nothing is known; see --by ops");
    Ok(())
}

#[cfg(test)]
pub mod tests;
