//! Waits for locks in the kernel other than those of inodes.

use super::case::{Case, only};
use super::curve;
use crate::channels::{Kind, plain};
use crate::finding::{Finding, Wall};
use crate::waits::Seen;
use crate::words::{list, mean, percent};

/// Parts of the names of btrfs functions that wait for its locks.
const OF_BTRFS: &[&str] =
    &["btrfs", "__reserve_bytes", "handle_reserve_ticket", "lock_extent", "wait_extent_bit"];

pub fn position(case: &Case<'_>) -> Finding {
    finding(
        case,
        |seen| seen.kind == Kind::PositionLock,
        "the lock of the descriptor's position: read and write without an offset take it, so \
         threads that share a descriptor wait for each other",
        vec![
            "With dioxide: File::append and File::write_at have no position.".into(),
            "Without dioxide: pwrite and pread, with offsets that the program counts; or a \
             descriptor for each thread, opened by \
             itself."
                .into(),
        ],
    )
}

/// Updates of the timestamps of a file.
pub fn of_times(case: &Case<'_>) -> Finding {
    finding(
        case,
        |seen| seen.kind == Kind::FileSystemLock && is_of_times(seen),
        "the file's time of change to be written down, which takes a lock and a change of the \
         inode with each tick of the clock",
        vec![
            "Larger writes, or fewer, change it less often; so does mount -o lazytime where only \
            times are to be written."
                .into(),
        ],
    )
}

fn is_of_times(seen: &Seen<'_>) -> bool {
    let functions = seen.function.into_iter().chain(seen.sighting.stack.iter().map(String::as_str));
    functions.into_iter().any(|function| plain(function).contains("update_time"))
}

pub fn of_file_system(case: &Case<'_>) -> Finding {
    let is_btrfs = case
        .functions(|seen| seen.kind == Kind::FileSystemLock && !is_of_times(seen))
        .first()
        .is_some_and(|(function, _)| OF_BTRFS.iter().any(|part| function.contains(part)));
    if is_btrfs {
        return finding(
            case,
            |seen| seen.kind == Kind::FileSystemLock && !is_of_times(seen),
            "locks of the trees of btrfs, and for space in them: each copy-on-write changes them",
            vec![
                "With dioxide: appends that wait together are merged, and change the trees \
                 once."
                    .into(),
                "Without dioxide: in a directory with chattr +C writes over written space leave \
                 the trees as they are; else write in larger \
                 pieces."
                    .into(),
            ],
        );
    }
    finding(
        case,
        |seen| seen.kind == Kind::FileSystemLock && !is_of_times(seen),
        "locks inside of the file system: space is allocated, marked as written or mapped, one \
         thread at a time",
        vec![
            "With dioxide: it allocates ahead of the writers, in large steps, and merges appends \
             that wait together."
                .into(),
            "Without dioxide: allocate the space first, in large steps (posix_fallocate), or fill \
             it with zeros, so that writes mark no space. On XFS an extent size hint makes the \
             steps larger (xfs_io -c 'extsize 16m' DIRECTORY)."
                .into(),
        ],
    )
}

fn finding(
    case: &Case<'_>,
    which: impl Fn(&Seen<'_>) -> bool,
    what: &str,
    advice: Vec<String>,
) -> Finding {
    let share = case.share(&which);
    let functions: Vec<String> = case
        .functions(&which)
        .into_iter()
        .map(|(function, share)| format!("{function} ({})", percent(share)))
        .collect();
    let evidence = vec![format!(
        "{} wait there, on average: in {}.",
        mean(case.threads(&which), "thread"),
        list(&functions)
    )];
    Finding {
        wall: Wall::FileLock,
        share,
        file: only(&case.files(&which)).map(str::to_owned),
        verdict: format!(
            "{} of I/O time is spent waiting for {what}.{}",
            percent(share),
            curve::ends(case).map(|ends| format!(" Measured: {ends}.")).unwrap_or_default()
        ),
        evidence,
        advice,
    }
}
