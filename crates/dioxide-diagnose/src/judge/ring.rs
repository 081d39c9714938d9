//! Operations that io_uring hands to its workers.

use super::case::{Case, is_worker, only};
use crate::channels::Kind;
use crate::finding::{Finding, Wall};
use crate::words::{list, mean, percent, rate};

pub fn workers(case: &Case<'_>) -> Finding {
    let share = case.share(is_worker);
    let where_ = kinds(case);
    let verdict = format!(
        "{} of I/O time is spent by workers of io_uring{}: the ring hands over calls that would \
         wait, and each worker waits like a thread.",
        percent(share),
        if where_.is_empty() {
            String::new()
        } else {
            format!(", which wait for {}", list(&where_))
        },
    );
    let busy = case.threads(|seen| seen.is_io && is_worker(seen));
    let mut evidence = vec![format!("{} are busy, on average.", mean(busy, "worker"))];
    evidence.extend(punts(case));
    Finding {
        wall: Wall::RingWorkers,
        share,
        file: only(&case.files(is_worker)).map(str::to_owned),
        verdict,
        evidence,
        advice: vec![
            "With dioxide: a Queue submits writes that need not wait: into space that is allocated \
             ahead, merged, and durable by themselves."
                .into(),
            "Without dioxide: write into allocated space inside the end of the file. Make writes \
             durable by RWF_DSYNC, not by an fsync of their own. fsync and fallocate always go to \
             a worker."
                .into(),
        ],
    }
}

/// The objects of the workers' waits, the most frequent first.
fn kinds(case: &Case<'_>) -> Vec<String> {
    use Kind::*;
    let kinds = [InodeLock, FileSystemLock, JournalCommit, Flush, Device, PageCache];
    let mut shares: Vec<(Kind, f64)> = kinds
        .into_iter()
        .map(|kind| (kind, case.share(|seen| is_worker(seen) && seen.kind == kind)))
        .filter(|(_, share)| *share >= 0.01)
        .collect();
    shares.sort_by(|one, other| other.1.total_cmp(&one.1));
    shares
        .into_iter()
        .map(|(kind, share)| format!("{} ({})", kind.name(), percent(share)))
        .collect()
}

fn punts(case: &Case<'_>) -> Vec<String> {
    let punts = case.evidence.punts.iter().flatten();
    punts
        .map(|punt| {
            let hashed = if punt.is_hashed {
                ", which wait for each other where they are on one file"
            } else {
                ""
            };
            format!(
                "{} {} operations were handed to workers{hashed}.",
                rate(case.per_second(punt.count)),
                punt.opcode
            )
        })
        .collect()
}
