//! Ends a suite with a trial that hangs. It names the trial, and shows where its processes wait.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The slowest trials need three minutes, also beside others and with all file systems.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// The trials that run, by the moment of their begin.
type Running = BTreeSet<(Instant, String)>;

fn running() -> &'static Mutex<Running> {
    static RUNNING: OnceLock<Mutex<Running>> = OnceLock::new();
    RUNNING.get_or_init(|| {
        thread::spawn(watch);
        Mutex::default()
    })
}

/// A trial that runs, until it is dropped.
pub(crate) struct Limited((Instant, String));

impl Limited {
    pub(crate) fn begin(name: &str) -> Self {
        let trial = (Instant::now(), name.to_owned());
        with(|running| running.insert(trial.clone()));
        Self(trial)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        with(|running| running.remove(&self.0));
    }
}

fn with<R>(change: impl FnOnce(&mut Running) -> R) -> R {
    change(&mut running().lock().unwrap_or_else(PoisonError::into_inner))
}

fn watch() {
    loop {
        thread::sleep(Duration::from_secs(5));
        let late =
            |(begun, name): &(Instant, String)| (begun.elapsed() > LIMIT).then(|| name.clone());
        let late: Vec<_> = with(|running| running.iter().filter_map(late).collect());
        if !late.is_empty() {
            let minutes = LIMIT.as_secs() / 60;
            eprintln!("testkit: {} not done after {minutes} minutes", late.join(", "));
            let processes = with_those_below(std::process::id());
            processes.iter().for_each(|process| eprint!("{}", shown(*process)));
            // They have the output of the suite, whose reader waits for its end.
            for child in processes[1..].iter().filter_map(|child| Pid::from_raw(*child as i32)) {
                let _ = kill_process(child, Signal::KILL);
            }
            // The other trials and destructors may wait for the same.
            std::process::abort();
        }
    }
}

/// The process, and those that it started.
fn with_those_below(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    for parent in 0.. {
        let Some(parent) = found.get(parent).copied() else { break };
        found.extend(numbers_in("/proc").filter(|other| parent_of(*other) == Some(parent)));
    }
    found
}

/// What the process runs, and where each of its threads waits in the kernel.
fn shown(process: u32) -> String {
    let of = |path: String| fs::read_to_string(path).unwrap_or_default().replace('\0', " ");
    let mut lines = format!("{process}: {}\n", of(format!("/proc/{process}/cmdline")));
    for thread in numbers_in(&format!("/proc/{process}/task")) {
        let of = |part| of(format!("/proc/{process}/task/{thread}/{part}"));
        let (name, call, stack) = (of("comm"), of("syscall"), of("stack"));
        let _ = writeln!(lines, "  {}, system call {}\n{stack}", name.trim(), call.trim());
    }
    lines
}

fn numbers_in(dir: &str) -> impl Iterator<Item = u32> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok())
}

fn parent_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_waits_is_shown_with_its_parent() {
        let mut child =
            Command::new("sh").args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap();
        let processes = with_those_below(std::process::id());
        let shown: String = processes.into_iter().map(shown).collect();
        drop(child.stdin.take());
        child.wait().unwrap();
        let own = format!("{}: ", std::process::id());
        assert!(shown.starts_with(&own), "{shown}");
        assert!(shown.contains(&format!("{}: sh -c read line", child.id())), "{shown}");
    }
}
