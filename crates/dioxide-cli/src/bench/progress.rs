//! The progress bar on stderr. Shows nothing if stderr is not a terminal.

use super::work::{Point, Route, durability_name};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// A progress bar.
pub struct Progress(ProgressBar);

impl Progress {
    /// For a number of runs.
    pub fn of(runs: u64) -> Self {
        Self::new(runs, "{bar:30} {pos}/{len} {elapsed} {wide_msg}")
    }

    /// For a duration.
    pub fn of_time(time: Duration) -> Self {
        Self::new(time.as_millis() as u64, "{bar:30} {elapsed} {wide_msg}")
    }

    fn new(len: u64, template: &str) -> Self {
        let target = if stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(len), target);
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.expect("the template is valid"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(bar)
    }

    /// Shows the current run.
    pub fn announce(&self, point: &Point, route: Route) {
        let (scenario, durability) = (point.scenario.name(), durability_name(point.durability));
        let (bs, numjobs, route) = (point.sizes, point.threads(route), route.name());
        self.tell(format!("{scenario} {durability} bs={bs} numjobs={numjobs}: {route}"));
    }

    /// Shows the current step, in words.
    pub fn tell(&self, what: impl Into<Cow<'static, str>>) {
        self.0.set_message(what);
    }

    /// Counts a run.
    pub fn advance(&self) {
        self.0.inc(1);
    }

    /// Shows the elapsed time.
    pub fn pass(&self, elapsed: Duration) {
        self.0.set_position(elapsed.as_millis() as u64);
    }
}

impl Drop for Progress {
    /// Also after errors, so that the message starts on a clean line.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
