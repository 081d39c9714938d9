//! The progress bar on stderr; nothing where stderr is not a terminal.

use super::work::{Point, Route, durability_name};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// See the module.
pub struct Progress(ProgressBar);

impl Progress {
    pub fn of(runs: u64) -> Self {
        let target =
            if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(runs), target);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
        bar.set_style(style.expect("the template is valid"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self(bar)
    }

    /// What runs now.
    pub fn announce(&self, point: &Point, route: Route) {
        let (scenario, durability) = (point.scenario.name(), durability_name(point.durability));
        let (bs, numjobs, route) = (point.sizes, point.threads(route), route.name());
        self.0.set_message(format!("{scenario} {durability} bs={bs} numjobs={numjobs}: {route}"));
    }

    /// One run is done.
    pub fn advance(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    /// On errors too, so that the message starts on a clean line.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
