//! Draws conclusions from evidence. Pure functions.
//!
//! Each bottleneck has its own file, which computes its share of I/O time (see [`crate::waits`]),
//! its cause and the advice. This module decides which of them matter, and their order.

mod advice;
mod case;
mod cause;
mod cgroup;
mod curve;
mod file_flushes;
mod flush;
mod inode_lock;
mod limits;
mod other_locks;
mod others;
mod page_cache;
mod program_lock;
mod program_queue;
mod ring;
mod stopped;

use crate::evidence::Evidence;
use crate::finding::{Finding, Wall};
use crate::host::ext4::FAST_COMMIT_WARNING;
use crate::words::counted;
use case::Case;

pub use stopped::processes as stopped_processes;

/// Below this share of I/O time a wait is no bottleneck.
pub const SHARE_MIN: f64 = 0.25;

/// Several small waits form a bottleneck together if each has at least this share.
const PART_MIN: f64 = 0.08;

/// Nor is a wait below this share of the time in which threads wait in I/O or run. Threads that
/// mostly run, and seldom meet in a lock, need processors.
const ACTIVE_SHARE_MIN: f64 = 0.1;

/// With fewer samples in I/O than this, shares are off by ten percent and more.
const SIGHTINGS_THIN: u64 = 100;

/// With fewer sampling passes than this, a short phase of the program passes for all of it.
const LOOKS_THIN: u64 = 5;

/// The bottlenecks that the evidence shows, the largest first. Never empty. Without a bottleneck
/// the first finding says so and describes the threads. Busy devices or processors follow.
///
/// Workers of io_uring come after the object of their waits, which is the cause.
pub fn judge(evidence: &Evidence) -> Vec<Finding> {
    let case = Case::of(evidence);
    let mut findings = real(&case, walls(&case));
    findings.sort_by(|one, other| {
        let is_after = |finding: &Finding| finding.wall == Wall::RingWorkers;
        is_after(one).cmp(&is_after(other)).then(other.share.total_cmp(&one.share))
    });
    if findings.is_empty() || limits::is_idle(&case) {
        let walls = findings.first().map_or(0.0, |finding| finding.share);
        findings.insert(0, limits::nothing(&case, walls));
        findings.extend(limits::device(&case));
        findings.extend(limits::processor(&case));
    }
    let is_limited = findings.iter().any(|finding| finding.wall == Wall::CgroupLimit);
    // A workload of ours has no bursts.
    if !is_limited && case.workload().is_none() && case.in_io > 0 {
        findings[0].evidence.extend(cgroup::pressure(&case));
    }
    // These findings have the waits for pages in their share.
    let has_pages = |finding: &Finding| matches!(finding.wall, Wall::BufferedWrites | Wall::Holes);
    if !findings.iter().any(has_pages) {
        findings.extend(page_cache::waiting(&case));
    }
    if let Some(throttled) = cgroup::of_processors(&case) {
        let is_main = findings[0].wall == Wall::Nothing;
        findings.insert(if is_main { 0 } else { findings.len() }, throttled);
    }
    if let Some(stopped) = stopped::finding(&case) {
        let is_main = stopped.share >= stopped::MAIN_MIN || findings[0].wall == Wall::Nothing;
        findings.insert(if is_main { 0 } else { findings.len() }, stopped);
    }
    warn_if_thin(&case, &mut findings[0]);
    findings
}

/// Properties of the files' systems that a program with durable writes has to know.
pub fn warnings(evidence: &Evidence) -> Vec<String> {
    let has_any = evidence.files.iter().any(|file| evidence.fast_commits.contains(&file.device));
    has_any.then(|| FAST_COMMIT_WARNING.to_owned()).into_iter().collect()
}

/// The findings that account for enough of the time. If none does so alone, but all do together,
/// the larger ones.
fn real(case: &Case<'_>, findings: Vec<Finding>) -> Vec<Finding> {
    let is_enough = |share: f64| {
        share >= SHARE_MIN && share * case.in_io as f64 >= ACTIVE_SHARE_MIN * case.active() as f64
    };
    // Workers wait for the others, and a cgroup's limit prolongs the others.
    let together: f64 = findings
        .iter()
        .filter(|finding| !matches!(finding.wall, Wall::RingWorkers | Wall::CgroupLimit))
        .map(|finding| finding.share)
        .sum();
    let is_one_enough = findings
        .iter()
        .any(|finding| finding.wall != Wall::CgroupLimit && is_enough(finding.share));
    let is_real = |finding: &Finding| match is_one_enough || finding.wall == Wall::CgroupLimit {
        true => is_enough(finding.share),
        false => is_enough(together) && finding.share >= PART_MIN,
    };
    findings.into_iter().filter(is_real).collect()
}

fn walls(case: &Case<'_>) -> Vec<Finding> {
    let mut walls: Vec<Finding> = cgroup::of_io(case).into_iter().collect();
    walls.extend(inode_lock::findings(case));
    walls.extend([
        other_locks::position(case),
        other_locks::of_file_system(case),
        other_locks::of_times(case),
        program_lock::held_over_io(case),
        program_queue::waiting(case),
        ring::workers(case),
        limits::unknown(case),
    ]);
    match file_flushes::finding(case) {
        Some(finding) => walls.push(finding),
        None => walls.extend([flush::flush(case), flush::journal(case)]),
    }
    walls
}

fn warn_if_thin(case: &Case<'_>, main: &mut Finding) {
    let looks = case.evidence.looks;
    if looks < LOOKS_THIN
        || case.in_io < SIGHTINGS_THIN && !matches!(main.wall, Wall::Nothing | Wall::Stopped)
    {
        let seen = counted(case.in_io, "sample");
        main.verdict += &format!(" The evidence is thin: {seen} in I/O, of {looks} passes.");
    }
}

#[cfg(test)]
mod tests;
