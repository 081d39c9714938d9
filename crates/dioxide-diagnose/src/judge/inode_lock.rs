//! Waits for the lock of an inode.

use super::advice;
use super::case::{Case, is_worker, may_run};
use super::cause::{self, Cause, CauseEvidence};
use super::curve;
use super::others;
use crate::channels::{self, Kind, Surroundings};
use crate::evidence::SeenFile;
use crate::finding::Finding;
use crate::waits::{self, Seen};
use crate::words::{list, mean, nanoseconds, percent};
use std::collections::{BTreeMap, BTreeSet};

/// The waits with one cause.
#[derive(Debug, Default)]
struct Group<'a> {
    count: u64,
    functions: BTreeMap<&'a str, u64>,
    files: BTreeMap<&'a str, &'a SeenFile>,
    fs: BTreeSet<&'a str>,
    grounds: BTreeSet<String>,
    of_workers: u64,
    /// Waits for pages of the cache in the writes that hold the lock.
    pages: u64,
}

/// A finding for each cause.
pub fn findings(case: &Case<'_>) -> Vec<Finding> {
    let mut of_files: BTreeMap<*const SeenFile, CauseEvidence> = BTreeMap::new();
    let mut groups: BTreeMap<Cause, Group<'_>> = BTreeMap::new();
    for seen in case.seen.iter().filter(|seen| seen.kind == Kind::InodeLock) {
        let file = cause::file_of(case, seen);
        let ground = match (cause::reported_by(case, seen), file) {
            (Some(cause), _) => CauseEvidence { cause, because: String::new() },
            (None, Some(file)) => {
                of_files.entry(file).or_insert_with(|| cause::of_file(case, file)).clone()
            }
            (None, None) => CauseEvidence { cause: Cause::Other, because: String::new() },
        };
        groups.entry(ground.cause).or_default().add(seen, file, ground.because);
    }
    for cause in [Cause::Checksums, Cause::HolesThroughCache] {
        if let Some(group) = groups.get_mut(&cause) {
            group.pages = case.count(|seen| {
                cause::is_behind_direct_write(case, seen)
                    && seen.file.is_some_and(|file| group.files.contains_key(file.path.as_str()))
            });
        }
    }
    if let Some(other) = groups.remove(&Cause::Other) {
        let holders = groups.values_mut().filter(|group| group.shares_a_file_with(&other));
        match holders.max_by_key(|group| group.count) {
            // A waiter waits for the holders of the lock, whatever its own operation.
            Some(holders) => holders.absorb(other),
            None => _ = groups.insert(Cause::Other, other),
        }
    }
    groups.into_iter().map(|(cause, group)| group.finding(case, cause)).collect()
}

impl<'a> Group<'a> {
    fn add(&mut self, seen: &Seen<'a>, file: Option<&'a SeenFile>, because: String) {
        let count = seen.sighting.count;
        self.count = self.count.saturating_add(count);
        if is_worker(seen) {
            self.of_workers = self.of_workers.saturating_add(count);
        }
        if let Some(function) = seen.function {
            let so_far = self.functions.entry(function).or_default();
            *so_far = so_far.saturating_add(count);
            self.fs.extend(fs_of(function));
        }
        if let Some(file) = file {
            self.files.insert(&file.path, file);
            self.fs.extend(file.fs.as_deref());
        }
        if !because.is_empty() {
            self.grounds.insert(because);
        }
    }

    fn shares_a_file_with(&self, other: &Self) -> bool {
        self.files.keys().any(|file| other.files.contains_key(file))
    }

    fn absorb(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.of_workers = self.of_workers.saturating_add(other.of_workers);
        for (function, count) in other.functions {
            let so_far = self.functions.entry(function).or_default();
            *so_far = so_far.saturating_add(count);
        }
        self.files.extend(other.files);
        self.fs.extend(other.fs);
        self.grounds.extend(other.grounds);
    }

    fn finding(self, case: &Case<'_>, cause: Cause) -> Finding {
        let of_lock = waits::part(self.count, case.in_io);
        let of_pages = waits::part(self.pages, case.in_io);
        let fs = if self.fs.len() == 1 { self.fs.first().copied() } else { None };
        let function =
            self.function().map(|function| format!(" in {function}")).unwrap_or_default();
        let why = advice::why(case, cause, fs);
        let has_ring = self.of_workers > self.count / 2;
        let may_run = !has_ring && may_run(self.files.values().copied());
        let measured =
            curve::ends(case).map(|ends| format!(" Measured: {ends}.")).unwrap_or_default();
        let others = others::sentence(case, |file| self.files.contains_key(file));
        let others = others.unwrap_or_default();
        Finding {
            wall: cause.wall(),
            share: (of_lock + of_pages).min(1.0),
            file: if self.files.len() == 1 {
                self.files.keys().next().map(ToString::to_string)
            } else {
                None
            },
            verdict: format!(
                "{} of I/O time is spent waiting for the lock of the inode{function}{}: \
                 {why}.{measured}{others}",
                percent(of_lock),
                if self.pages > 0 {
                    format!(", and {} for pages of the cache", percent(of_pages))
                } else {
                    String::new()
                }
            ),
            evidence: self.evidence(case),
            advice: advice::lines(case, cause, fs, may_run),
        }
    }

    /// The most frequent function.
    fn function(&self) -> Option<&'a str> {
        self.functions.iter().max_by_key(|(_, count)| **count).map(|(function, _)| *function)
    }

    fn evidence(&self, case: &Case<'_>) -> Vec<String> {
        let waiting = waits::per_look(self.count, case.evidence);
        let all = waits::per_look(case.in_io, case.evidence);
        let mut lines = vec![format!(
            "{waiting:.2} of {} in I/O wait for it, on average.",
            mean(all, "thread")
        )];
        if self.files.len() > 1 {
            let names: Vec<String> = self.files.keys().map(ToString::to_string).collect();
            lines.push(format!("On {}.", list(&names)));
        }
        lines.extend(self.grounds.iter().cloned());
        lines.extend(timed(case));
        lines.extend(others::lines(case, |file| self.files.contains_key(file)));
        lines
    }
}

/// The file system of a function.
fn fs_of(function: &str) -> Option<&'static str> {
    ["ext4", "xfs", "btrfs"].into_iter().find(|fs| function.starts_with(fs))
}

/// Traced waits for the locks of inodes, if any.
fn timed(case: &Case<'_>) -> Option<String> {
    let (mut count, mut wait_ns, mut wait_max_ns) = (0_u64, 0_u64, 0);
    for wait in case.evidence.locks.iter().flatten() {
        let Some((function, outer)) = channels::innermost(&wait.stack).split_first() else {
            continue;
        };
        let entry = channels::entry(function, Surroundings { outer, call: None, file: None });
        if entry.is_some_and(|entry| entry.kind == Kind::InodeLock) {
            count = count.saturating_add(wait.count);
            wait_ns = wait_ns.saturating_add(wait.wait_ns);
            wait_max_ns = wait_max_ns.max(wait.wait_max_ns);
        }
    }
    (count > 0).then(|| {
        format!(
            "{count} waits for locks of inodes were traced: {} on average, {} the longest.",
            nanoseconds(wait_ns as f64 / count as f64),
            nanoseconds(wait_max_ns as f64)
        )
    })
}
