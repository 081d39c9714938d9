//! Waits for durability: flushes of the device's cache, and commits of the file system's journal or
//! log.

use super::case::{Case, doing, may_run, only};
use super::curve;
use super::limits;
use super::program_queue::is_batching;
use crate::channels::{Does, Kind, plain};
use crate::evidence::SeenDevice;
use crate::finding::{Finding, Wall};
use crate::waits::Seen;
use crate::words::{list, mean, percent, rate};

/// With fewer waiters than this on average, one thread flushes for itself or for all.
pub(super) const ALONE_MAX: f64 = 1.2;

pub fn flush(case: &Case<'_>) -> Finding {
    let waiting = case.threads_in(Kind::Flush);
    let flushing = case.seen.iter().filter(|seen| seen.kind == Kind::Flush);
    let threads = flushing.map(|seen| seen.sighting.threads).fold(0, u64::saturating_add);
    let who = if threads == 1 {
        "one thread does it, so no thread waits for another, but for the device"
    } else if waiting <= ALONE_MAX {
        "one thread at a time flushes, and nothing is durable before it has"
    } else {
        "each durable write waits until the device has emptied its cache"
    };
    Finding {
        wall: Wall::Flush,
        share: case.share_of(Kind::Flush),
        file: file(case, Kind::Flush),
        verdict: format!(
            "{} of I/O time is spent waiting for flushes of the device's cache{}: {who}.{}{}",
            percent(case.share_of(Kind::Flush)),
            functions(case, Kind::Flush),
            case.busiest()
                .and_then(|device| flushes_of(case, device))
                .map(|flushes| format!(" {flushes}"))
                .unwrap_or_default(),
            curve::ends(case).map(|ends| format!(" Measured: {ends}.")).unwrap_or_default(),
        ),
        evidence: evidence(case, Kind::Flush),
        advice: flush_advice(case, waiting),
    }
}

/// Functions in which any metadata change waits, durable or not: before the change, or because too
/// much is pending. Other waits are for the change to reach the disk.
const ANY_CHANGE: &[&str] = &[
    "wait_transaction_locked",
    "wait_transaction_switching",
    "add_transaction_credits",
    "start_this_handle",
    "__jbd2_log_wait_for_space",
    "do_get_write_access",
    "xlog_grant_head_wait",
    "xlog_cil_push_background",
    "xlog_cil_commit",
    "xfs_log_commit_cil",
    "wait_current_trans",
];

pub fn journal(case: &Case<'_>) -> Finding {
    let fs = fs(case);
    let share = case.share_of(Kind::JournalCommit);
    let is_any_change = case.share(is_any_change) * 2.0 > share;
    let (why, advice) = if is_any_change {
        (WHY_ANY_CHANGE.to_owned(), change_advice(fs))
    } else {
        (
            if commits_times(case, fs) { why_times(fs) } else { why(fs).to_owned() },
            journal_advice(case, fs),
        )
    };
    Finding {
        wall: Wall::JournalCommit,
        share,
        file: file(case, Kind::JournalCommit),
        verdict: format!(
            "{} of I/O time is spent waiting for the journal or log of the file system{}: {why}.{}",
            percent(share),
            functions(case, Kind::JournalCommit),
            curve::ends(case).map(|ends| format!(" Measured: {ends}.")).unwrap_or_default(),
        ),
        evidence: evidence(case, Kind::JournalCommit),
        advice,
    }
}

/// Whether a call that need not be durable waits to change metadata. Unknown for workers of
/// io_uring, whose visible call is the one that made their ring.
fn is_any_change(seen: &Seen<'_>) -> bool {
    let Some(call) = &seen.sighting.call else { return false };
    let need_not_be_durable = match doing(seen) {
        Some(Does::Syncs | Does::Submits) => false,
        // Its flags decide whether it is durable, and they are not visible.
        Some(Does::Writes) if call.name == "pwritev2" => false,
        Some(Does::Writes) => seen.file.is_some_and(|file| !file.is_durable),
        Some(Does::Reads | Does::Shapes) | None => seen.file.is_none_or(|file| !file.is_durable),
    };
    need_not_be_durable
        && !seen.sighting.task.starts_with("iou-")
        && seen.function.is_some_and(|function| ANY_CHANGE.contains(&plain(function)))
}

const WHY_ANY_CHANGE: &str = "metadata changes, durable or not, wait for journal space, or for the \
                              running commit to release the metadata";

/// The same where only timestamps are committed.
fn why_times(fs: Option<&str>) -> String {
    let on = match fs {
        Some("ext4") => " on ext4",
        Some("xfs") => " on XFS",
        _ => "",
    };
    format!(
        "fsync and O_SYNC also commit the time of each write{on}, and neither the size nor the \
         space of the file changed"
    )
}

fn change_advice(fs: Option<&str>) -> Vec<String> {
    let (more, place) = match fs {
        Some("ext4") => (
            "; a larger journal has more room (mke2fs -J size=), and each fsync less, of any \
             program, is a commit less",
            "",
        ),
        Some("xfs") => ("; a larger log has more room (mkfs.xfs -l size=)", ""),
        Some("btrfs") => (
            "; each sync of the whole file system less is a commit less",
            " and in a directory with chattr +C",
        ),
        _ => ("", ""),
    };
    vec![
        "With dioxide: it grows files in large steps, so that few writes change metadata. \
         File::recycle writes over an old log in place of removing it and making a new one."
            .into(),
        format!(
            "Without dioxide: allocate in large steps{place}, and write over old files (rename \
             them) in place of making and removing some{more}. Where reads wait: mount -o noatime."
        ),
    ]
}

/// Why a durable write waits.
fn why(fs: Option<&str>) -> &'static str {
    match fs {
        Some("ext4") => {
            "a durable write that changes metadata (the size, unwritten space) waits on ext4 for a \
             journal commit and its two flushes"
        }
        Some("xfs") => {
            "a durable write that changes metadata (the size, space that was not yet written) \
             waits on XFS until the log is on the disk"
        }
        Some("btrfs") => {
            "a durable write changes trees on btrfs, and waits until the log tree and a super \
             block are on the disk"
        }
        _ => "a durable write that changes metadata waits until the journal is on the disk",
    }
}

fn functions(case: &Case<'_>, kind: Kind) -> String {
    let functions = case.functions(|seen| seen.kind == kind);
    functions.first().map(|(function, _)| format!(" in {function}")).unwrap_or_default()
}

fn file(case: &Case<'_>, kind: Kind) -> Option<String> {
    only(&case.files(|seen| seen.kind == kind)).map(str::to_owned)
}

/// The file system of the journal or log, from the name of the most frequent function.
fn fs(case: &Case<'_>) -> Option<&'static str> {
    const OF: [(&str, &[&str]); 3] = [
        (
            "ext4",
            &[
                "ext4",
                "jbd2",
                "do_get_write_access",
                "wait_transaction",
                "start_this_handle",
                "add_transaction",
            ],
        ),
        ("xfs", &["xfs", "xlog", "__flush_workqueue"]),
        (
            "btrfs",
            &[
                "btrfs",
                "wait_log_commit",
                "wait_for_writer",
                "write_all_supers",
                "wait_current_trans",
            ],
        ),
    ];
    let functions = case.functions(|seen| seen.kind == Kind::JournalCommit);
    let (function, _) = functions.first()?;
    OF.into_iter()
        .find(|(_, parts)| parts.iter().any(|part| function.contains(part)))
        .map(|(fs, _)| fs)
}

fn evidence(case: &Case<'_>, kind: Kind) -> Vec<String> {
    let mut lines =
        vec![format!("{} wait there, on average.", mean(case.threads_in(kind), "thread"))];
    let calls = case.calls(|seen| seen.kind == kind);
    if !calls.is_empty() {
        let calls: Vec<String> =
            calls.iter().map(|(call, share)| format!("{call} ({})", percent(*share))).collect();
        lines.push(format!("In {}.", list(&calls)));
    }
    let files = case.files(|seen| seen.kind == kind);
    if files.len() > 1 {
        let files: Vec<String> =
            files.iter().map(|(file, share)| format!("{file} ({})", percent(*share))).collect();
        lines.push(format!("On {}.", list(&files)));
    }
    let durable: u64 = case
        .evidence
        .direct
        .iter()
        .flatten()
        .filter(|direct| direct.is_write && direct.is_durable)
        .fold(0, |sum, direct| sum.saturating_add(direct.count));
    if durable > 0 {
        lines.push(format!(
            "{} direct writes were durable ones (O_DSYNC).",
            rate(case.per_second(durable))
        ));
    }
    lines.extend(case.busiest().map(|device| limits::device_line(case, device)));
    for device in &case.evidence.devices {
        lines.extend(cache(device));
    }
    lines
}

/// A device's activity: "loop0 did 1200/s flushes and 5000/s writes."
pub(super) fn flushes_of(case: &Case<'_>, device: &SeenDevice) -> Option<String> {
    let flushes = case.per_second(device.flushes?);
    Some(format!(
        "{} did {} flushes and {} writes meanwhile.",
        device.name,
        rate(flushes),
        rate(case.per_second(device.writes))
    ))
}

pub(super) fn cache(device: &SeenDevice) -> Option<String> {
    let fua = match device.has_fua {
        Some(true) => ", and has FUA (writes that bypass it)",
        Some(false) => ", and has no FUA",
        None => "",
    };
    Some(match device.has_volatile_cache? {
        true => format!("{} has a volatile cache{fua}.", device.name),
        false => format!("{} reports no volatile cache.", device.name),
    })
}

/// The measured rates of dioxide, in brackets.
fn dioxide(case: &Case<'_>) -> String {
    curve::way(case, "dioxide").map(|way| format!(" ({way})")).unwrap_or_default()
}

/// Advice for a program that is not changed, if its files are open O_DIRECT.
fn as_it_is(case: &Case<'_>, kind: Kind) -> &'static str {
    let files = case.seen.iter().filter(|seen| seen.is_io && seen.kind == kind);
    match may_run(files.filter_map(|seen| seen.file)) {
        true => " A program that stays as it is: dioxide run PROGRAM.",
        false => "",
    }
}

fn flush_advice(case: &Case<'_>, waiting: f64) -> Vec<String> {
    let has_syncs =
        case.share(|seen| seen.kind == Kind::Flush && doing(seen) == Some(Does::Syncs)) > 0.0;
    let mut lines = if is_batching(case) {
        let shorter = "The program already shares flushes. Only a shorter flush helps.";
        vec![(None, shorter.to_owned())]
    } else {
        sharing_advice(case, waiting, has_syncs)
    };
    if case.evidence.devices.iter().any(|device| device.has_volatile_cache == Some(true)) {
        let protected = "A power-loss-protected drive reports no volatile cache, and its flushes \
                         cost nothing.";
        lines.push((None, protected.to_owned()));
    }
    curve::ranked(case, lines)
}

/// The advice for writers that do not share flushes, to be ranked.
fn sharing_advice(case: &Case<'_>, waiting: f64, has_syncs: bool) -> Vec<curve::Line> {
    let with = format!(
        "With dioxide: Durability::EveryWrite{}. Writers share flushes: one in flight covers every \
         write that was finished before it began.{}",
        dioxide(case),
        as_it_is(case, Kind::Flush)
    );
    let without = if waiting <= ALONE_MAX {
        "Without dioxide: make more writes durable with each flush (group commit), or do not sync \
         data that can wait."
    } else {
        "Without dioxide: let one thread flush for all writes that are finished by then. The other \
         threads wait for the next flush. On devices, io_uring writes with RWF_DSYNC that are \
         submitted together share one."
    };
    let mut lines = vec![(Some("dioxide"), with), (None, without.to_owned())];
    if has_syncs {
        let one_call = "Where each write is synced by itself, O_DSYNC or RWF_DSYNC on the write \
                        saves a call. It uses FUA if the device has it and the space is written.";
        lines.push((None, one_call.to_owned()));
    }
    lines
}

/// Whether the waiting writes make timestamps durable, by fsync or O_SYNC, and change neither the
/// size nor the space of their files.
fn commits_times(case: &Case<'_>, fs: Option<&str>) -> bool {
    // A sync changes trees there in any case.
    if fs == Some("btrfs") {
        return false;
    }
    let waits = case.seen.iter().filter(|seen| seen.kind == Kind::JournalCommit);
    let stays = |bytes: Option<(u64, u64)>| bytes.is_some_and(|(first, last)| first == last);
    let is_one = |seen: &Seen<'_>| {
        let is_fsync = seen.sighting.call.as_ref().is_some_and(|call| call.name == "fsync");
        seen.file.is_some_and(|file| {
            (file.is_sync || is_fsync) && stays(file.size_bytes) && stays(file.allocated_bytes)
        })
    };
    let mut waits = waits.peekable();
    waits.peek().is_some() && waits.all(is_one)
}

/// Whether a waiting call makes timestamps durable as well.
fn may_commit_times(case: &Case<'_>) -> bool {
    case.seen.iter().filter(|seen| seen.kind == Kind::JournalCommit).any(|seen| {
        seen.sighting.call.as_ref().is_some_and(|call| call.name == "fsync")
            || seen.file.is_some_and(|file| file.is_sync)
    })
}

/// The advice on journals. With fsync over a file that does not change otherwise, the cheapest
/// change comes first, unless a gain was measured.
fn journal_advice(case: &Case<'_>, fs: Option<&str>) -> Vec<String> {
    if !commits_times(case, fs) {
        return metadata_advice(case, fs);
    }
    let shares = if is_batching(case) { "" } else { ", and writers share flushes" };
    let without = "Without dioxide: use fdatasync in place of fsync, or O_DSYNC in place of \
                   O_SYNC. The size and the allocation stay the same, so each call commits only \
                   timestamps.";
    let with = format!(
        "With dioxide: Durability::EveryWrite{}. It promises what O_DSYNC does{shares}.",
        dioxide(case)
    );
    let still = "If it then still waits there, the space was allocated but not written: fill it \
                 with zeros first.";
    curve::ranked(
        case,
        [(None, without.to_owned()), (Some("dioxide"), with), (None, still.to_owned())],
    )
}

fn metadata_advice(case: &Case<'_>, fs: Option<&str>) -> Vec<String> {
    let is_batching = is_batching(case);
    if fs == Some("btrfs") {
        let nocow = "In a directory with chattr +C durable writes over written space leave the \
                     trees as they are.";
        if is_batching {
            return vec![nocow.to_owned()];
        }
        let with = format!(
            "With dioxide: Durability::EveryWrite{}: writers share commits.{}",
            dioxide(case),
            as_it_is(case, Kind::JournalCommit)
        );
        let without = format!("Without dioxide: let one thread sync for all that wait. {nocow}");
        return curve::ranked(case, [(Some("dioxide"), with), (None, without)]);
    }
    let shares = match is_batching {
        true => "",
        false => "Durability::EveryWrite, where writers share commits, and ",
    };
    let with = format!(
        "With dioxide: {shares}Growth::Zeroed or File::recycle{}. A durable write over written \
         space needs no commit, only a flush.",
        dioxide(case)
    );
    let without = format!(
        "Without dioxide: fill the file with zeros first, or write over an old one. The size and \
         the map of the file then stay the same. Allocated space alone (fallocate) does not \
         help: to mark it as written is a change as well.{}",
        if may_commit_times(case) {
            " Use fdatasync or O_DSYNC, not fsync or O_SYNC, which commit times too."
        } else {
            ""
        }
    );
    curve::ranked(case, [(Some("dioxide"), with), (None, without)])
}
