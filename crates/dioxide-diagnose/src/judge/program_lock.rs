//! A lock of the program itself, held during a write or a flush.

use super::case::{Case, doing, only};
use super::curve;
use crate::channels::{Does, Kind};
use crate::finding::{Finding, Wall};
use crate::waits::{Futex, Seen, futex};
use crate::words::{list, mean, percent};
use std::collections::BTreeSet;

pub fn held_over_io(case: &Case<'_>) -> Finding {
    let share = case.share_of(Kind::ProgramLock);
    let is_held = |seen: &Seen<'_>| {
        seen.is_io
            && seen.kind != Kind::ProgramLock
            && matches!(doing(seen), Some(Does::Writes | Does::Syncs))
    };
    if case.share(is_of_file_lock) * 2.0 > share {
        return of_file(case, share);
    }
    let held: Vec<String> =
        case.calls(is_held).into_iter().map(|(call, _)| call.to_owned()).collect();
    let waiting = case.threads_in(Kind::ProgramLock);
    let futexes = futexes(case);
    let locks = match futexes.len() {
        0 | 1 => "one futex".to_owned(),
        count => format!("{count} futexes"),
    };
    let addresses: BTreeSet<u64> = futexes.into_iter().map(|(_, address)| address).collect();
    Finding {
        wall: Wall::ProgramLock,
        share,
        file: only(&case.files(is_held)).map(str::to_owned),
        verdict: format!(
            "{} of I/O time is spent waiting for a lock of the program itself: {} wait for {}, \
             while {} are in {}. It is the program that lets only one do so at a time, not the \
             kernel.{}",
            percent(share),
            mean(waiting, "thread"),
            locks,
            mean(case.threads(is_held), "thread"),
            list(&held),
            curve::ends(case).map(|ends| format!(" Measured: {ends}.")).unwrap_or_default(),
        ),
        evidence: addresses
            .into_iter()
            .map(|address| format!("The futex is at {address:#x}."))
            .collect(),
        advice: vec![
            "With dioxide: let all threads write and sync without a lock; Durability::EveryWrite \
             and File::sync_data share flushes by \
             themselves."
                .into(),
            "Without dioxide: release the lock before the write or sync. Let one thread sync for \
             all writes that are finished by then; the others sleep until it is done."
                .into(),
        ],
    }
}

/// Whether the wait is for a file lock (flock or fcntl), not a futex.
fn is_of_file_lock(seen: &Seen<'_>) -> bool {
    seen.kind == Kind::ProgramLock
        && seen.sighting.call.as_ref().is_none_or(|call| call.futex.is_none())
}

fn of_file(case: &Case<'_>, share: f64) -> Finding {
    Finding {
        wall: Wall::ProgramLock,
        share,
        file: only(&case.files(is_of_file_lock)).map(str::to_owned),
        verdict: format!(
            "{} of I/O time is spent waiting for locks that the program takes of a file (flock, \
             fcntl): {} wait, on average. It is the program that lets only one in at a time, not \
             the kernel.",
            percent(share),
            mean(case.threads(is_of_file_lock), "thread")
        ),
        evidence: Vec::new(),
        advice: vec![
            "Do not hold the lock during a sync or write, or lock only a range (fcntl).".into(),
        ],
    }
}

/// The locks: one of each process, unless processes share it.
fn futexes(case: &Case<'_>) -> BTreeSet<Futex> {
    let locks = case.seen.iter().filter(|seen| seen.kind == Kind::ProgramLock);
    locks.filter_map(|seen| futex(seen.sighting)).collect()
}
