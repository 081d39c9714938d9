//! One flush per file: a program makes many files of one device durable, each by itself.

use super::case::{Case, doing};
use super::flush::{ALONE_MAX, cache, flushes_of};
use super::limits;
use super::program_queue::is_batching;
use crate::channels::{Does, Kind};
use crate::evidence::SeenDevice;
use crate::finding::{Finding, Wall};
use crate::waits::{self, Seen};
use crate::words::{list, mean, percent};
use std::collections::{BTreeMap, BTreeSet};

/// With fewer files, the flushes of one file matter. A log that begins new segments syncs a few in
/// turn.
const FILES_MIN: usize = 8;

/// With a larger share of the waits, the flushes of one file matter.
const LARGEST_SHARE_MAX: f64 = 0.25;

/// With a smaller share of waits for known files, the others may be for one file.
const KNOWN_SHARE_MIN: f64 = 0.5;

/// The file systems on which files of dioxide share flushes.
const SHARING: &[&str] = &["ext4", "xfs"];

/// The waits for flushes and commits of many files on one device.
struct Many<'a> {
    device: Option<&'a SeenDevice>,
    waits: Vec<&'a Seen<'a>>,
    files: usize,
}

/// The finding, which replaces those about flushes and commits.
pub fn finding(case: &Case<'_>) -> Option<Finding> {
    let many = many(case)?;
    let waits = waits::total(many.waits.iter().copied());
    let (share, threads) = (waits::part(waits, case.in_io), waits::per_look(waits, case.evidence));
    let on = many.device.map_or(String::new(), |device| format!(" on {}", device.name));
    let flushes = many.device.and_then(|device| flushes_of(case, device));
    Some(Finding {
        wall: Wall::FileFlushes,
        share,
        file: None,
        verdict: format!(
            "{} of I/O time is spent waiting for one flush per file: {} files{on}. Each call makes \
             one file durable, and flushes the device or commits the journal for it.{}",
            percent(share),
            many.files,
            flushes.map(|flushes| format!(" {flushes}")).unwrap_or_default(),
        ),
        evidence: evidence(case, &many, threads),
        advice: advice(&many, threads),
    })
}

/// The waits on the device that has most of them. None if one file stands out there, if most waits
/// are for unknown files, or if the program already collects syncs.
fn many<'a>(case: &'a Case<'_>) -> Option<Many<'a>> {
    let mut waits: BTreeMap<(u32, u32), BTreeMap<u64, Vec<&Seen<'_>>>> = BTreeMap::new();
    let (mut all, mut known) = (0_u64, 0_u64);
    for seen in case.seen.iter().filter(|seen| waits_for_its_file(seen)) {
        all = all.saturating_add(seen.sighting.count);
        // msync names no file; others may be closed by now.
        let Some(file) = seen.file else { continue };
        known = known.saturating_add(seen.sighting.count);
        waits.entry(file.device).or_default().entry(file.inode).or_default().push(seen);
    }
    let of_file = |waits: &Vec<&Seen<'_>>| waits::total(waits.iter().copied());
    let of_device = |files: &BTreeMap<u64, Vec<&Seen<'_>>>| {
        files.values().map(of_file).fold(0, u64::saturating_add)
    };
    let (number, files) = waits.into_iter().max_by_key(|(_, files)| of_device(files))?;
    let largest = files.values().map(of_file).max()?;
    let stands_out = waits::part(largest, of_device(&files)) > LARGEST_SHARE_MAX;
    let is_unknown = waits::part(known, all) < KNOWN_SHARE_MIN;
    if files.len() < FILES_MIN || stands_out || is_unknown || is_batching(case) {
        return None;
    }
    Some(Many {
        device: case.evidence.devices.iter().find(|device| device.number == number),
        files: files.len(),
        waits: files.into_values().flatten().collect(),
    })
}

/// Whether a call waits until its own file is durable.
fn waits_for_its_file(seen: &Seen<'_>) -> bool {
    let Some(call) = &seen.sighting.call else { return false };
    let makes_durable = match doing(seen) {
        Some(Does::Syncs) => matches!(call.name.as_str(), "fsync" | "fdatasync" | "msync"),
        Some(Does::Writes) => seen.file.is_some_and(|file| file.is_durable),
        _ => false,
    };
    seen.is_io && makes_durable && matches!(seen.kind, Kind::Flush | Kind::JournalCommit)
}

fn evidence(case: &Case<'_>, many: &Many<'_>, threads: f64) -> Vec<String> {
    let names = |name: fn(&Seen<'_>) -> Option<String>| {
        let names: BTreeSet<String> = many.waits.iter().filter_map(|seen| name(seen)).collect();
        list(&names.into_iter().collect::<Vec<_>>())
    };
    let calls = names(|seen| Some(seen.sighting.call.as_ref()?.name.clone()));
    let mut lines =
        vec![format!("{} wait there, on average, in {calls}.", mean(threads, "thread"))];
    lines.extend(many.device.map(|device| limits::device_line(case, device)));
    lines.extend(many.device.and_then(cache));
    lines
}

fn advice(many: &Many<'_>, threads: f64) -> Vec<String> {
    let shares = many.waits.iter().all(|seen| {
        seen.file.and_then(|file| file.fs.as_deref()).is_some_and(|fs| SHARING.contains(&fs))
    });
    let mut lines = Vec::new();
    if shares {
        lines.push(
            "With dioxide: files of one ext4 or XFS share flushes. dioxide::sync_all is one flush \
             for many files; so are the durable writes that one Queue has in flight."
                .to_owned(),
        );
    }
    lines.push(
        if threads <= ALONE_MAX {
            "Without dioxide: call syncfs once after a round of writes, in place of a sync of each \
             file. It also writes back what other programs have written."
        } else {
            "Without dioxide: the kernel merges flushes of threads that wait together, so more \
             threads gain little. Write the records of many files into one log, and sync that."
        }
        .to_owned(),
    );
    lines
}
