//! Observes a running process for a time, until it ends, or until Ctrl-C.

use crate::args::Observed;
use crate::bench::progress::Progress;
use crate::interrupt::{self, Interrupted};
use anyhow::Result;
use dioxide_diagnose::evidence::{Evidence, Subject};
use dioxide_diagnose::select::{self, Selection, Wanted};
use dioxide_diagnose::watch::{Options, Watcher};
use dioxide_diagnose::words::list;
use signal_hook::consts::SIGINT;
use std::time::{Duration, Instant};

/// Interval of checking for Ctrl-C and the end of the process.
const ATTENTION: Duration = Duration::from_millis(50);

/// The wanted processes.
pub fn select(observed: &Observed) -> Result<Selection> {
    let wanted = Wanted {
        pids: observed.pid.clone(),
        names: observed.name.clone(),
        cgroups: observed.cgroup.clone(),
        units: observed.unit.clone(),
    };
    Ok(select::select(&wanted)?)
}

/// "process 4711", "unit postgresql.service".
pub fn name(selection: &Selection) -> String {
    let pids = || {
        let pids: Vec<String> = selection.pids.iter().map(u32::to_string).collect();
        format!("{} {}", if pids.len() == 1 { "process" } else { "processes" }, list(&pids))
    };
    selection.described.clone().unwrap_or_else(pids)
}

/// The evidence from this time.
pub fn watch(selection: &Selection, time: Duration, options: Options) -> Result<Evidence> {
    let watcher = Watcher::start_selected(selection, options)?;
    let progress = Progress::of_time(time);
    progress.tell(format!("watching {}", name(selection)));
    wait(&watcher, time, &progress)?;
    // The watcher fills in the rest.
    Ok(watcher.stop(Subject::Program {
        pid: 0,
        command: String::new(),
        processes: 0,
        selected: selection.described.clone(),
    }))
}

/// The first Ctrl-C ends the observation and gives a verdict. A second one, or any other signal,
/// kills.
fn wait(watcher: &Watcher, time: Duration, progress: &Progress) -> Result<()> {
    let began = Instant::now();
    loop {
        match interrupt::check() {
            Ok(()) => {}
            Err(Interrupted { signal }) if i32::from(signal) == SIGINT => return Ok(()),
            Err(interrupted) => return Err(interrupted.into()),
        }
        let left = time.saturating_sub(began.elapsed());
        if left.is_zero() || watcher.is_over() {
            return Ok(());
        }
        std::thread::sleep(left.min(ATTENTION));
        progress.pass(began.elapsed());
    }
}
