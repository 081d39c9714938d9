//! Why the kernel takes the lock of an inode, and the advice, by cause and file system.

use super::case::Case;
use super::cause::Cause;
use super::curve;

/// The cause, as the end of a sentence.
pub fn why(case: &Case<'_>, cause: Cause, fs: Option<&str>) -> String {
    let why = match (cause, fs) {
        (Cause::Extends, Some("ext4")) => {
            "a direct write past the end of the file is exclusive on ext4"
        }
        (Cause::Extends, Some("xfs")) => {
            "a direct write that begins beyond the end of the file is exclusive on XFS, and waits \
             for all direct I/O in flight. Concurrent appends are such writes to each other"
        }
        (Cause::Extends, Some("btrfs")) => "a write past the end of the file is exclusive on btrfs",
        (Cause::Extends, _) => "a write that moves the end of a file is exclusive",
        (Cause::Holes, Some("ext4")) => {
            "a direct write into a hole is exclusive on ext4, through Linux 7.2"
        }
        (Cause::Holes, _) => "a direct write that allocates space is exclusive here",
        (Cause::HolesThroughCache, _) => {
            "direct writes of this file use the page cache, one at a time. Causes are holes in a \
             file without extents (ext3), data=journal, or encryption"
        }
        (Cause::Unaligned, Some("ext4")) => {
            "an unaligned direct write is exclusive on ext4, unless it is over written space, and \
             waits for all direct I/O in flight"
        }
        (Cause::Unaligned, Some("xfs")) => {
            "an unaligned direct write is exclusive on XFS where it meets unwritten space or a \
             hole, and waits for all direct I/O in flight"
        }
        (Cause::Unaligned, Some("btrfs")) => {
            "an unaligned write goes through the page cache on btrfs, O_DIRECT or not, one at a \
             time"
        }
        (Cause::Unaligned, _) => "an unaligned direct write is exclusive",
        (Cause::Buffered, _) => {
            "a write through the page cache holds the lock alone, from beginning to end"
        }
        (Cause::Checksums, _) => {
            "btrfs writes files with checksums through the page cache, O_DIRECT or not, one write \
             at a time"
        }
        (Cause::Syncs, Some("btrfs")) => {
            "a sync takes it exclusively on btrfs, and keeps writers out"
        }
        (Cause::Syncs, _) => "a sync takes it",
        (Cause::Shapes, _) => {
            "fallocate and truncate take it exclusively, and wait until all direct I/O in flight \
             is done"
        }
        (Cause::Any, Some("tmpfs")) => "tmpfs performs every write of a file alone",
        (Cause::Any, Some("overlay")) => "overlayfs performs every write of a file alone",
        (Cause::Any, _) => "this file system performs every write of a file alone",
        (Cause::Rival, _) => {
            "another process moves the end of the file, which is exclusive; the writes of this \
             program do not move it"
        }
        (Cause::Other, Some("ext4")) if is_before(&case.evidence.kernel_release, (6, 3)) => {
            "the cause of the exclusive lock was not observed. Before Linux 6.3 ext4 takes it \
             exclusively also for space that is allocated and not yet written"
        }
        (Cause::Other, _) => "the cause of the exclusive lock was not observed",
    };
    why.to_owned()
}

/// The advice, with dioxide and without, the larger measured gain first. `may_run`: `dioxide run`
/// may help. It leaves io_uring and files without O_DIRECT to the kernel.
pub fn lines(case: &Case<'_>, cause: Cause, fs: Option<&str>, may_run: bool) -> Vec<String> {
    let measured = |path| curve::way(case, path).map(|way| format!(" ({way})")).unwrap_or_default();
    let dioxide = measured("dioxide");
    let as_it_is =
        if may_run { " A program that stays as it is: dioxide run PROGRAM." } else { "" };
    let is_old_ext4 = fs == Some("ext4") && is_before(&case.evidence.kernel_release, (6, 3));
    let (with, without) = match (cause, fs) {
        (Cause::Extends, _) if is_old_ext4 => (
            format!("With dioxide: File::append with Growth::Zeroed{dioxide}, which fills the \
                space ahead of the writers with zeros.{as_it_is}"),
            "Without dioxide: fill the file with zeros first, write inside of it, and truncate it \
             at the end. Allocated space alone (posix_fallocate) does not help before Linux 6.3: \
             ext4 takes the lock exclusively for it until it has been written."
                .to_owned(),
        ),
        (Cause::Extends, Some("btrfs")) => (
            format!(
                "With dioxide: File::append or Queue::append{dioxide}. It grows the file ahead of \
                 its writers, and merges appends that wait \
                 together.{as_it_is}"
            ),
            format!(
                "Without dioxide: create the file in a directory with chattr +C, so that it has no \
                 checksums and is written directly. Allocate it first (posix_fallocate, or \
                 fallocate with mode 0){}.",
                measured("preallocated")
            ),
        ),
        (Cause::Any, _) => (
            format!(
                "With dioxide: appends that wait together are merged into one write{dioxide}.\
                 {as_it_is}"
            ),
            "Without dioxide: give each writer a file of its own, or write larger pieces."
                .to_owned(),
        ),
        (Cause::Extends, _) => (
            format!(
                "With dioxide: File::append or Queue::append{dioxide}. It grows the file ahead of \
                 its writers, so that no write moves the end, and merges appends that wait \
                 together.{as_it_is}"
            ),
            format!(
                "Without dioxide: allocate the file first, posix_fallocate or fallocate with mode \
                 0{}, write inside of it, and truncate it at the end. \
                 FALLOC_FL_KEEP_SIZE does not help: it leaves the end where it is.{}",
                measured("preallocated"),
                if matches!(fs, Some("ext4" | "ext3" | "ext2") | None) {
                    " A file without extents (ext3) refuses fallocate: fill it with zeros."
                } else {
                    ""
                }
            ),
        ),
        (Cause::Holes, _) => (
            format!(
                "With dioxide: where the writes are appends or go on beyond the end, File::append \
                 and File::write_at{dioxide}, which write into space that is allocated ahead."
            ),
            if is_old_ext4 {
                "Without dioxide: fill the space with zeros before it is written. Allocated space \
                 alone (posix_fallocate) does not help before Linux 6.3."
                    .to_owned()
            } else {
                format!(
                    "Without dioxide: allocate the space before it is written, posix_fallocate or \
                     fallocate with mode 0{}. Writes into it run side by side.",
                    measured("preallocated")
                )
            },
        ),
        (Cause::HolesThroughCache, _) => (
            format!("With dioxide: Growth::Zeroed, which fills the space ahead with \
                zeros{dioxide}."),
            "Without dioxide: fill the file with zeros first (fallocate is refused there), or make \
             the file system with extents (ext4, XFS)."
                .to_owned(),
        ),
        (Cause::Unaligned, _) => (
            format!(
                "With dioxide: File::append takes records of any length, and packs them into whole \
                 blocks{dioxide}."
            ),
            "Without dioxide: write whole blocks of the file system at multiples of its block, \
             mostly 4096 bytes.".to_owned(),
        ),
        (Cause::Buffered, _) => (
            format!(
                "With dioxide: File::append and File::write_at are direct, and run side by \
                 side{dioxide}. dioxide run leaves files alone that are opened without O_DIRECT."
            ),
            "Without dioxide: open the file O_DIRECT and write whole blocks inside of its end, or \
             give each writer a file of its \
             own."
                .to_owned(),
        ),
        (Cause::Checksums, _) => (
            format!("With dioxide: appends that wait together are merged into one \
                write{dioxide}.{as_it_is}"),
            "Without dioxide: create the file in a directory with chattr +C. It then has no \
             checksums, and is written directly, side by side inside of its end."
                .to_owned(),
        ),
        (Cause::Syncs, _) => (
            format!("With dioxide: Durability::EveryWrite, where writers share \
                syncs{dioxide}.{as_it_is}"),
            "Without dioxide: let one thread sync for all that wait, or write with RWF_DSYNC where \
             the file system has no lock there (ext4, XFS)."
                .to_owned(),
        ),
        (Cause::Shapes, _) => (
            format!("With dioxide: it grows files in large steps, early, beside the \
                writers{dioxide}."),
            "Without dioxide: allocate and truncate in large steps, early, or while nothing is \
             written.".to_owned(),
        ),
        (Cause::Rival, _) => {
            return vec![
                "In the other process: allocate space in large steps before the writes, \
                 posix_fallocate or fallocate with mode 0, and write inside of it."
                    .to_owned(),
            ];
        }
        (Cause::Other, _) => return unseen(case),
    };
    ranked(case, with, without)
}

/// Measured gains first, the larger before the smaller, and measured losses last.
fn ranked(case: &Case<'_>, with: String, without: String) -> Vec<String> {
    let gain = |path: &str| curve::gain(case, path).unwrap_or(1.0);
    let is_measured = without.contains(" here");
    let other = if is_measured { gain("preallocated") } else { 1.0 };
    if other > gain("dioxide") { vec![without, with] } else { vec![with, without] }
}

fn unseen(case: &Case<'_>) -> Vec<String> {
    if case.evidence.direct.is_some() {
        return Vec::new();
    }
    vec![
        "As root, the same command traces the writes, and shows which of them need the lock \
         exclusively."
            .to_owned(),
    ]
}

/// Whether a kernel release (`uname -r`) is older than a version.
pub fn is_before(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < version,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels() {
        assert!(is_before("5.10.0-28-amd64", (6, 3)));
        assert!(is_before("6.1.0", (6, 3)));
        assert!(!is_before("6.18.2+", (6, 3)));
        assert!(!is_before("7.0", (6, 3)));
        assert!(!is_before("", (6, 3)));
    }
}
