//! Other processes in calls on the files whose locks the program waits for.

use super::case::Case;
use crate::channels::{Does, does};
use crate::contenders::Contender;
use crate::evidence::SeenFile;
use crate::words::{counted_es, list, mean};
use std::collections::{BTreeMap, BTreeSet};

/// Processes to name.
const NAMED_MAX: usize = 3;
/// In a call in fewer passes than this share of those with a wait, a process is not named.
const SHARE_MIN: f64 = 0.02;
/// As `watch` writes the call of a running thread.
const RUNNING: &str = "running";

/// A process in calls on such a file.
#[derive(Debug, Default)]
struct Other<'a> {
    name: &'a str,
    path: &'a str,
    calls: BTreeSet<&'a str>,
    threads: BTreeMap<u32, &'a str>,
    /// Samples in a call, of threads at work, of waiting ones, and of running ones.
    working: u64,
    waiting: u64,
    running: u64,
}

/// The named processes, those with most work first.
fn others<'a>(case: &Case<'a>, is_its: impl Fn(&str) -> bool) -> Vec<(u32, Other<'a>)> {
    let mut others: BTreeMap<(u32, usize), Other<'a>> = BTreeMap::new();
    let Some(contenders) = &case.evidence.contenders else { return Vec::new() };
    for one in &contenders.threads {
        let Some(file) = case.evidence.files.get(one.file) else { continue };
        let path = file.path.as_str();
        if !is_its(path) || one.call != RUNNING && !takes_lock(one, file) {
            continue;
        }
        let other = others.entry((one.pid, one.file)).or_default();
        (other.name, other.path) = (&one.process, path);
        if one.call == RUNNING {
            other.running = other.running.saturating_add(one.working);
            continue;
        }
        other.calls.insert(&one.call);
        other.threads.insert(one.tid, &one.thread);
        other.working = other.working.saturating_add(one.working);
        other.waiting = other.waiting.saturating_add(one.waiting);
    }
    let in_calls = |other: &Other<'_>| other.working.saturating_add(other.waiting) as f64;
    let least = SHARE_MIN * contenders.passes as f64;
    let mut others: Vec<_> = others
        .into_iter()
        // A process that only runs beside the waits may be in no call on the file.
        .filter(|(_, other)| !other.calls.is_empty() && in_calls(other) >= least)
        .map(|((pid, _), other)| (pid, other))
        .collect();
    others.sort_by_key(|(_, other)| std::cmp::Reverse((other.working, other.waiting)));
    others
}

/// Whether a call takes the lock of the inode, alone or shared.
fn takes_lock(one: &Contender, file: &SeenFile) -> bool {
    let is_on = |list: &[&str]| file.fs.as_deref().is_some_and(|fs| list.contains(&fs));
    match does(&one.call) {
        _ if one.waiting > 0 => true,
        Some(Does::Writes | Does::Shapes | Does::Submits) => true,
        Some(Does::Reads) => {
            one.is_direct != Some(false) || !is_on(&["ext4", "ext3", "ext2", "btrfs", "tmpfs"])
        }
        // ext4 takes it only without a journal.
        Some(Does::Syncs) => {
            matches!(one.call.as_str(), "fsync" | "fdatasync")
                && !is_on(&["ext4", "ext3", "xfs", "tmpfs"])
        }
        None => false,
    }
}

/// The processes that were in calls that may write or grow this file.
pub fn writers(case: &Case<'_>, file: &SeenFile) -> Vec<String> {
    let threads = case.evidence.contenders.iter().flat_map(|contenders| &contenders.threads);
    let is_its = |index: usize| case.evidence.files.get(index).is_some_and(|its| its == file);
    let writes = |call: &str| matches!(does(call), Some(Does::Writes | Does::Shapes));
    let names: BTreeSet<String> = threads
        .filter(|one| is_its(one.file) && writes(&one.call))
        .map(|one| format!("{} ({})", one.pid, one.process))
        .collect();
    names.into_iter().collect()
}

/// A sentence of the verdict, if other processes may hold the lock.
pub fn sentence(case: &Case<'_>, is_its: impl Fn(&str) -> bool) -> Option<String> {
    let others = others(case, is_its);
    let names: BTreeSet<String> =
        others.iter().map(|(pid, other)| format!("{pid} ({})", other.name)).collect();
    let names: Vec<String> = names.into_iter().collect();
    let what = if names.len() == 1 { "another process is" } else { "other processes are" };
    (!names.is_empty()).then(|| {
        format!(" Part of it may be theirs: {what} in calls on the same file, {}.", list(&names))
    })
}

/// Other processes on these files. Empty if the program did not wait.
pub fn lines(case: &Case<'_>, is_its: impl Fn(&str) -> bool) -> Vec<String> {
    let Some(contenders) = &case.evidence.contenders else { return Vec::new() };
    let others = others(case, is_its);
    let mut lines: Vec<String> = others
        .iter()
        .take(NAMED_MAX)
        .map(|(pid, other)| line(*pid, other, contenders.passes))
        .collect();
    if others.len() > NAMED_MAX {
        lines.push(format!(
            "{} more, with --json.",
            counted_es((others.len() - NAMED_MAX) as u64, "process")
        ));
    }
    if lines.is_empty() && contenders.is_complete && contenders.refused == 0 {
        let none = "No other process was seen in a call that takes the lock meanwhile.";
        lines.push(none.into());
    } else if lines.is_empty() || contenders.refused > 0 {
        lines.push(not_seen(contenders.refused));
    }
    lines
}

fn line(pid: u32, other: &Other<'_>, passes: u64) -> String {
    let per_pass = |count: u64| mean(count as f64 / passes.max(1) as f64, "thread");
    let calls: Vec<String> = other.calls.iter().map(|call| (*call).to_owned()).collect();
    let threads: Vec<String> =
        other.threads.iter().map(|(tid, name)| format!("{tid} ({name})")).collect();
    format!(
        "Another process, {pid} ({}), is in {} on {}: while this program waits, {} at work, {} \
         waiting for the lock, {} running, on average. Threads in calls: {}.",
        other.name,
        list(&calls),
        other.path,
        per_pass(other.working),
        per_pass(other.waiting),
        per_pass(other.running),
        list(&threads)
    )
}

fn not_seen(refused: u64) -> String {
    match refused {
        0 => "Other processes with the file were not seen in a call that takes the lock, but not \
              all processes could be looked at."
            .into(),
        refused => format!(
            "Cannot inspect {}: whether they hold the lock is unknown. Run as root.",
            counted_es(refused, "other process")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{evidence, file};
    use super::*;
    use crate::contenders::Contenders;
    use crate::evidence::Evidence;

    fn contender(pid: u32, call: &str, working: u64, waiting: u64) -> Contender {
        Contender {
            pid,
            process: "backup".into(),
            tid: pid + 1,
            thread: "writer".into(),
            file: 0,
            call: call.into(),
            is_direct: None,
            working,
            waiting,
        }
    }

    fn with(threads: Vec<Contender>, refused: u64) -> Evidence {
        let contenders = Some(Contenders { passes: 100, refused, is_complete: true, threads });
        let file = SeenFile { path: "/data/log".into(), ..file("ext4") };
        Evidence { contenders, ..evidence(vec![file], Vec::new()) }
    }

    fn of(threads: Vec<Contender>, refused: u64) -> Vec<String> {
        let evidence = with(threads, refused);
        lines(&Case::of(&evidence), |path| path == "/data/log")
    }

    #[test]
    fn processes_in_calls_are_named_with_their_threads() {
        let threads = vec![
            contender(7, "fallocate", 60, 40),
            Contender { tid: 9, ..contender(7, "pwrite64", 30, 0) },
        ];
        let expected = "Another process, 7 (backup), is in fallocate and pwrite64 on /data/log: \
                        while this program waits, 0.90 threads at work, 0.40 threads waiting for \
                        the lock, 0.00 threads running, on average. Threads in calls: 8 (writer) \
                        and 9 (writer).";
        assert_eq!(of(threads, 0), [expected]);
    }

    #[test]
    fn that_there_is_none_is_said_only_where_all_were_looked_at() {
        let none = "No other process was seen in a call that takes the lock meanwhile.";
        assert_eq!(of(vec![], 0), [none]);
        let refused = of(vec![], 3);
        assert!(refused[0].contains("3 other processes") && refused[0].contains("root"));
        let seldom = of(vec![contender(7, "write", 1, 0)], 0);
        assert!(seldom.len() == 1 && !seldom[0].contains("backup"), "{seldom:?}");
    }

    #[test]
    fn a_running_process_is_named_only_if_it_was_in_a_call() {
        let running = contender(7, RUNNING, 90, 0);
        assert!(!of(vec![running.clone()], 0)[0].contains("backup"));
        let both = of(vec![running, contender(7, "pwrite64", 3, 0)], 0);
        assert!(both[0].contains("0.90 threads running"), "{both:?}");
    }

    #[test]
    fn a_process_that_cannot_hold_the_lock_is_not_named() {
        let takes = |call: &str, fs: &str, is_direct: bool| {
            let one = Contender { is_direct: Some(is_direct), ..contender(7, call, 9, 0) };
            takes_lock(&one, &file(fs))
        };
        for call in ["flock", "syncfs", "sync_file_range"] {
            assert!(!takes(call, "ext4", true) && !takes(call, "btrfs", true), "{call}");
        }
        assert!(takes("pread64", "ext4", true) && !takes("pread64", "ext4", false));
        assert!(takes("pread64", "xfs", false));
        assert!(takes("fsync", "btrfs", false) && !takes("fsync", "ext4", false));
        assert!(takes_lock(&contender(7, "fsync", 9, 1), &file("ext4")), "it waited for it");
        let reader = Contender { is_direct: Some(false), ..contender(7, "pread64", 50, 0) };
        assert!(!of(vec![reader.clone()], 0)[0].contains("backup"));
        let evidence = with(vec![reader], 0);
        assert_eq!(sentence(&Case::of(&evidence), |path| path == "/data/log"), None);
    }

    #[test]
    fn many_processes_are_counted() {
        let lines = of((1..=5).map(|pid| contender(pid, "pwrite64", 50, 0)).collect(), 0);
        assert_eq!((lines.len(), lines[3].as_str()), (4, "2 processes more, with --json."));
    }

    #[test]
    fn the_verdict_names_them_too() {
        let of = |threads| {
            let evidence = with(threads, 0);
            sentence(&Case::of(&evidence), |path| path == "/data/log")
        };
        assert_eq!(of(vec![]), None);
        let text = of(vec![contender(7, "write", 50, 0)]).unwrap();
        assert!(
            text.contains("another process is in calls on the same file, 7 (backup)"),
            "{text}"
        );
    }
}
