//! Threads that a signal, a debugger or the freezer has stopped.

use super::case::Case;
use crate::channels::{Kind, plain};
use crate::evidence::{Evidence, Subject};
use crate::finding::{Finding, Wall};
use crate::waits::{self, Seen};
use crate::words::{list, mean, percent};
use std::collections::BTreeSet;

/// With fewer samples than this share, a debugger or a profiler has paused threads for a moment.
const SHARE_MIN: f64 = 0.02;

/// From this share on, no other verdict comes before it.
pub const MAIN_MIN: f64 = 0.5;

/// None if next to no sample is of a stopped thread.
pub fn finding(case: &Case<'_>) -> Option<Finding> {
    let stopped = case.count(|seen| seen.kind == Kind::Stopped);
    let share = waits::part(stopped, case.count(|_| true));
    if share < SHARE_MIN {
        return None;
    }
    let verdict = if share < 1.0 {
        format!(
            "The program was stopped in {} of the samples of its threads. The other verdicts are \
             on the rest.",
            percent(share)
        )
    } else {
        "The program was stopped in every sample, so its I/O was not seen.".to_owned()
    };
    let threads = mean(waits::per_look(stopped, case.evidence), "thread");
    Some(Finding {
        wall: Wall::Stopped,
        share,
        file: None,
        verdict,
        evidence: vec![format!("{threads} were stopped, on average.")],
        advice: advice(case),
    })
}

fn advice(case: &Case<'_>) -> Vec<String> {
    let has = |which: fn(&Seen<'_>) -> bool| {
        case.count(|seen| seen.kind == Kind::Stopped && which(seen)) > 0
    };
    let mut lines = Vec::new();
    if has(|seen| seen.sighting.state == 't') {
        lines.push("A debugger has stopped it: detach or continue there, then repeat.".to_owned());
    }
    if has(is_frozen) {
        let write = "write 0 to cgroup.freeze (v1: THAWED to freezer.state), then repeat.";
        lines.push(format!("Its cgroup is frozen: {write}"));
    }
    let pids = pids(case, |seen| seen.sighting.state == 'T' && !is_frozen(seen));
    match &pids[..] {
        [] => {}
        [pid] => lines
            .push(format!("Continue it with kill -CONT {pid}, or fg in its shell, then repeat.")),
        pids => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let pids = list(&pids);
            lines.push(format!("Continue processes {pids} with kill -CONT, then repeat."));
        }
    }
    lines
}

/// The processes with stopped threads.
pub fn processes(evidence: &Evidence) -> Vec<u32> {
    pids(&Case::of(evidence), |_| true)
}

/// The processes with such stopped threads. Where samples name none, the observed one.
fn pids(case: &Case<'_>, which: impl Fn(&Seen<'_>) -> bool) -> Vec<u32> {
    let stopped = case.seen.iter().filter(|seen| seen.kind == Kind::Stopped && which(seen));
    let pid = |seen: &Seen<'_>| match (seen.sighting.process, &case.evidence.subject) {
        (0, Subject::Program { pid, .. }) => *pid,
        (pid, _) => pid,
    };
    stopped.map(pid).collect::<BTreeSet<u32>>().into_iter().collect()
}

fn is_frozen(seen: &Seen<'_>) -> bool {
    seen.function
        .is_some_and(|function| matches!(plain(function), "do_freezer_trap" | "__refrigerator"))
}
