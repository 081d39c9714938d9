//! The progress on stderr: a bar on a terminal, elsewhere nothing, or a line now and then.

use super::work::{Point, Route, durability_name};
use crate::exit::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::io::{IsTerminal, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Interval of lines where no bar is shown.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A progress bar.
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    /// When the next line is due. None on a terminal, and without lines.
    line_due: Mutex<Option<Duration>>,
}

impl Progress {
    /// For a number of runs.
    pub fn of(runs: u64) -> Self {
        Self::new(runs, "{bar:30} {pos}/{len} {elapsed} {wide_msg}")
    }

    /// For a number of runs, with lines where no bar is shown.
    pub fn with_lines(runs: u64) -> Self {
        let mut progress = Self::of(runs);
        progress.line_due = Mutex::new((!stderr().is_terminal()).then_some(LINE_EVERY));
        progress
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
        Self { bar, begun: Instant::now(), line_due: Mutex::new(None) }
    }

    /// Shows the current run.
    pub fn announce(&self, point: &Point, route: Route) {
        let (scenario, durability) = (point.scenario.name(), durability_name(point.durability));
        let (bs, numjobs, route) = (point.sizes, point.threads(route), route.name());
        let files = point.files.map(|files| format!(" files={files}")).unwrap_or_default();
        self.tell(format!("{scenario} {durability} bs={bs}{files} numjobs={numjobs}: {route}"));
    }

    /// Shows the current step, in words.
    pub fn tell(&self, what: impl Into<Cow<'static, str>>) {
        self.bar.set_message(what);
    }

    /// Counts a run.
    pub fn advance(&self) {
        self.bar.inc(1);
        let elapsed = self.begun.elapsed();
        let mut line_due = self.line_due.lock().expect("no thread panics with the lock");
        if line_due.is_some_and(|due| elapsed >= due) {
            *line_due = Some(elapsed + LINE_EVERY);
            say(&line(self.bar.position(), self.bar.length().unwrap_or(0), elapsed));
        }
    }

    /// Shows the elapsed time.
    pub fn pass(&self, elapsed: Duration) {
        self.bar.set_position(elapsed.as_millis() as u64);
    }

    /// The shown time.
    #[cfg(test)]
    pub fn passed(&self) -> Duration {
        Duration::from_millis(self.bar.position())
    }
}

impl Drop for Progress {
    /// Also after errors, so that the message starts on a clean line.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn line(done: u64, of: u64, elapsed: Duration) -> String {
    format!("{done} of {of} runs after {} s", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_the_runs() {
        assert_eq!(line(7, 65, Duration::from_millis(12_900)), "7 of 65 runs after 12 s");
    }
}
