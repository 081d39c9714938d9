//! The cause of waits for the lock of an inode: the property of writes that makes the kernel take
//! it exclusively.

use super::advice::is_before;
use super::case::{Case, doing, is_worker};
use super::others;
use crate::channels::{Does, Kind, plain};
use crate::evidence::{Rw, SeenFile};
use crate::finding::Wall;
use crate::waits::{self, Seen};
use crate::words::{about_bytes, list, percent};

/// The reason why the lock is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Direct writes that move the end of the file.
    Extends,
    /// Direct writes into holes.
    Holes,
    /// Direct writes into holes of a file without extents, which go through the page cache.
    HolesThroughCache,
    /// Unaligned direct writes.
    Unaligned,
    /// Writes through the page cache.
    Buffered,
    /// Direct writes that go through the page cache because the file has checksums.
    Checksums,
    /// Syncs.
    Syncs,
    /// Calls that change the file's size or allocation.
    Shapes,
    /// Any write: the file system takes the lock for each.
    Any,
    /// Writes of another process that move the end of the file.
    Rival,
    /// Not seen.
    Other,
}

impl Cause {
    pub fn wall(self) -> Wall {
        match self {
            Cause::Extends => Wall::ExtendingWrites,
            Cause::Holes | Cause::HolesThroughCache => Wall::Holes,
            Cause::Unaligned => Wall::UnalignedWrites,
            Cause::Buffered | Cause::Checksums => Wall::BufferedWrites,
            Cause::Syncs | Cause::Shapes | Cause::Any | Cause::Rival | Cause::Other => {
                Wall::FileLock
            }
        }
    }
}

/// A cause with its evidence. The evidence is empty if the wait itself shows the cause.
#[derive(Clone, Debug, PartialEq)]
pub struct CauseEvidence {
    pub cause: Cause,
    pub because: String,
}

/// A few exclusive writes may be chance.
const EXCLUSIVE_COUNT_MIN: u64 = 5;

/// The minimum share of exclusive writes among the writes of a file. One extending write excludes
/// all others.
const EXCLUSIVE_MIN: f64 = 0.02;

/// The minimum share of page waits in the I/O time of a file whose writes go through the cache.
const CACHED_MIN: f64 = 0.05;

/// The cause that the wait itself shows, by its call or stack.
pub fn reported_by(case: &Case<'_>, seen: &Seen<'_>) -> Option<Cause> {
    let is_within = |name: &str| {
        seen.function.is_some_and(|function| plain(function) == name)
            || seen.sighting.stack.iter().any(|frame| plain(frame) == name)
    };
    let is_aligned = seen.sighting.call.as_ref().and_then(|call| call.is_aligned) != Some(false);
    let is_only_direct = seen.file.is_some_and(|file| is_only_direct(case, file));
    let is_alone =
        seen.file.is_some_and(|file| matches!(file.fs.as_deref(), Some("tmpfs" | "overlay")));
    if is_alone || is_within("shmem_file_write_iter") || is_within("ovl_write_iter") {
        return Some(Cause::Any);
    }
    if doing(seen) == Some(Does::Syncs) || is_within("btrfs_sync_file") {
        return Some(Cause::Syncs);
    }
    let shapes = ["ext4_fallocate", "xfs_file_fallocate", "vfs_fallocate", "do_truncate"];
    if doing(seen) == Some(Does::Shapes) || shapes.into_iter().any(is_within) {
        return Some(Cause::Shapes);
    }
    if is_within("btrfs_buffered_write") && (is_within("btrfs_direct_write") || is_only_direct) {
        return Some(if is_aligned { Cause::Checksums } else { Cause::Unaligned });
    }
    if is_within("ext4_buffered_write_iter") && is_only_direct {
        return Some(Cause::HolesThroughCache);
    }
    let buffered = [
        "ext4_buffered_write_iter",
        "xfs_file_buffered_write",
        "btrfs_buffered_write",
        "generic_file_write_iter",
    ];
    buffered.into_iter().any(is_within).then_some(Cause::Buffered)
}

/// The cause of a file's writes, best evidence first.
pub fn of_file(case: &Case<'_>, file: &SeenFile) -> CauseEvidence {
    let ground = |cause, because: String| CauseEvidence { cause, because };
    if file.is_buffered && !file.is_direct {
        return ground(Cause::Buffered, format!("{} is open without O_DIRECT.", file.path));
    }
    let traced = Writes::traced(case, file);
    let sighted = Writes::sighted(case, file);
    let is_unaligned = sighted.as_ref().is_some_and(Writes::are_unaligned);
    traced
        .as_ref()
        .and_then(Writes::ground)
        .or_else(|| through_cache(case, file).filter(|_| !is_unaligned))
        .or_else(|| sighted.filter(|_| traced.is_none())?.ground())
        .or_else(|| by_workload(case, file))
        .or_else(|| by_rival(case, file, traced.as_ref()?))
        .or_else(|| grows(file))
        .or_else(|| holes(case, file))
        .unwrap_or_else(|| ground(Cause::Other, String::new()))
}

/// Whether all writes of a file are direct. A workload of ours prepares its file by another
/// descriptor.
fn is_only_direct(case: &Case<'_>, file: &SeenFile) -> bool {
    file.is_direct && (!file.is_buffered || case.workload().is_some())
}

/// Whether a wait is for a page of the cache, in a write of a file that is open O_DIRECT.
pub fn is_behind_direct_write(case: &Case<'_>, seen: &Seen<'_>) -> bool {
    seen.kind == Kind::PageCache
        && matches!(doing(seen), Some(Does::Writes | Does::Submits))
        && seen.file.is_some_and(|file| is_only_direct(case, file))
}

/// Threads that write a file opened only with O_DIRECT, but wait for pages of the cache.
fn through_cache(case: &Case<'_>, file: &SeenFile) -> Option<CauseEvidence> {
    let cause = match file.fs.as_deref() {
        Some("btrfs") => Cause::Checksums,
        Some("ext4" | "ext3" | "ext2") => Cause::HolesThroughCache,
        _ => return None,
    };
    if !is_only_direct(case, file) {
        return None;
    }
    let is_its =
        |seen: &Seen<'_>| seen.is_io && seen.file.is_some_and(|its| std::ptr::eq(its, file));
    let writes =
        |seen: &Seen<'_>| is_its(seen) && matches!(doing(seen), Some(Does::Writes | Does::Submits));
    let is_reported = |seen: &Seen<'_>| reported_by(case, seen) == Some(cause);
    let cached =
        case.count(|seen| writes(seen) && (seen.kind == Kind::PageCache || is_reported(seen)));
    let share = waits::part(cached, case.count(is_its));
    let because = || {
        format!(
            "{} of I/O time on {} is spent on writing through the cache, although it is \
             open O_DIRECT.",
            percent(share),
            file.path
        )
    };
    (share >= CACHED_MIN).then(|| CauseEvidence { cause, because: because() })
}

/// Writes of a file, and how many of them are of a kind that may need the lock exclusively.
struct Writes {
    source: &'static str,
    count: u64,
    extend: u64,
    unaligned: u64,
}

impl Writes {
    fn traced(case: &Case<'_>, file: &SeenFile) -> Option<Self> {
        let mut writes = Self { source: "direct writes traced", count: 0, extend: 0, unaligned: 0 };
        for direct in case.direct_writes(file) {
            writes.add(direct.count, direct.extends || direct.begins_beyond, !direct.is_aligned);
        }
        (writes.count > 0).then_some(writes)
    }

    fn sighted(case: &Case<'_>, file: &SeenFile) -> Option<Self> {
        let mut writes = Self { source: "writes sampled", count: 0, extend: 0, unaligned: 0 };
        let its = |seen: &&Seen<'_>| seen.file.is_some_and(|its| std::ptr::eq(its, file));
        for seen in case.seen.iter().filter(its) {
            if let Some(call) = &seen.sighting.call
                && let Some(extends) = call.extends
            {
                writes.add(seen.sighting.count, extends, call.is_aligned == Some(false));
            }
        }
        (writes.count > 0).then_some(writes)
    }

    fn add(&mut self, count: u64, extends: bool, is_unaligned: bool) {
        self.count = self.count.saturating_add(count);
        self.extend = self.extend.saturating_add(if extends { count } else { 0 });
        self.unaligned = self.unaligned.saturating_add(if is_unaligned { count } else { 0 });
    }

    fn are_unaligned(&self) -> bool {
        waits::part(self.unaligned, self.count) >= EXCLUSIVE_MIN
    }

    fn ground(&self) -> Option<CauseEvidence> {
        let (cause, count, what) = if self.extend >= self.unaligned {
            (Cause::Extends, self.extend, "ended beyond the end of the file")
        } else {
            (Cause::Unaligned, self.unaligned, "were no whole blocks")
        };
        let share = waits::part(count, self.count);
        let because = || format!("Of {} {}, {} {what}.", self.count, self.source, percent(share));
        let is_real = share >= EXCLUSIVE_MIN && count >= EXCLUSIVE_COUNT_MIN;
        is_real.then(|| CauseEvidence { cause, because: because() })
    }
}

fn by_workload(case: &Case<'_>, file: &SeenFile) -> Option<CauseEvidence> {
    let (cause, because) = match case.workload()?.rw {
        Rw::Append => (Cause::Extends, "Each write begins at the end of the file."),
        Rw::Hole if has_hole_lock(case, file) => (Cause::Holes, "Each write goes into a hole."),
        Rw::Hole | Rw::Overwrite | Rw::Sync | Rw::Mixed => return None,
    };
    Some(CauseEvidence { cause, because: because.into() })
}

/// Growth or new space of a file that another process writes too, where the program's own writes
/// are traced and do not show it.
fn by_rival(case: &Case<'_>, file: &SeenFile, traced: &Writes) -> Option<CauseEvidence> {
    let rivals = others::writers(case, file);
    if rivals.is_empty() {
        return None;
    }
    let rivals = list(&rivals);
    let moved = || {
        let Writes { count, extend, source, .. } = traced;
        format!("Of {count} {source}, {extend} moved its end; {rivals} changed it too.")
    };
    let grown = grows(file).map(|ground| CauseEvidence {
        cause: Cause::Rival,
        because: ground.because + " " + &moved(),
    });
    // The trace does not show who allocated.
    let allocated = || {
        let because = holes(case, file)?.because;
        let because = format!("{because} {rivals} changed it too.");
        Some(CauseEvidence { cause: Cause::Other, because })
    };
    grown.or_else(allocated)
}

fn grows(file: &SeenFile) -> Option<CauseEvidence> {
    let (first, last) = file.size_bytes?;
    let because = || {
        let (more, last) = (about_bytes(last - first), about_bytes(last));
        format!("{} grew by {more} to {last} meanwhile.", file.path)
    };
    (last > first).then(|| CauseEvidence { cause: Cause::Extends, because: because() })
}

/// Whether a direct write into a hole takes the lock exclusively: on ext4, through Linux 7.2.
fn has_hole_lock(case: &Case<'_>, file: &SeenFile) -> bool {
    matches!(file.fs.as_deref(), Some("ext4" | "ext3" | "ext2") | None)
        && is_before(&case.evidence.kernel_release, (7, 3))
}

/// Blocks allocated without moving the end are in holes.
fn holes(case: &Case<'_>, file: &SeenFile) -> Option<CauseEvidence> {
    if !has_hole_lock(case, file) {
        return None;
    }
    let (first, last) = file.allocated_bytes?;
    let is_sparse = file.size_bytes.is_some_and(|(size, _)| first < size);
    let because = || {
        format!(
            "{} was given {} of space meanwhile, inside of it.",
            file.path,
            about_bytes(last - first)
        )
    };
    (is_sparse && last > first).then(|| CauseEvidence { cause: Cause::Holes, because: because() })
}

/// The file whose lock a wait is for. The files of workers are seldom visible: then the only file,
/// or the only direct one.
pub fn file_of<'a>(case: &Case<'a>, seen: &Seen<'a>) -> Option<&'a SeenFile> {
    if seen.file.is_some() || !is_worker(seen) && doing(seen) != Some(Does::Submits) {
        return seen.file;
    }
    let files = case.evidence.files.iter().filter(|file| !file.is_device());
    only(files.clone()).or_else(|| only(files.filter(|file| file.is_direct)))
}

fn only<'a>(mut files: impl Iterator<Item = &'a SeenFile>) -> Option<&'a SeenFile> {
    let first = files.next()?;
    files.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{evidence, file};
    use super::*;
    use crate::contenders::{Contender, Contenders};
    use crate::evidence::{DirectIo, Evidence};

    fn contender(call: &str) -> Contender {
        Contender {
            pid: 7,
            process: "backup".into(),
            tid: 7,
            thread: "backup".into(),
            file: 0,
            call: call.into(),
            is_direct: None,
            working: 9,
            waiting: 0,
        }
    }

    /// Overwrites of a file that grew or was given space, and a call of another process on it.
    fn shared(file: SeenFile, call: &str) -> Evidence {
        let direct = DirectIo {
            file: Some(0),
            is_write: true,
            extends: false,
            begins_beyond: false,
            is_durable: false,
            is_aligned: true,
            count: 5000,
            bytes: 5000 << 12,
        };
        let threads = vec![contender(call)];
        let contenders = Some(Contenders { passes: 10, refused: 0, is_complete: true, threads });
        Evidence { contenders, direct: Some(vec![direct]), ..evidence(vec![file], Vec::new()) }
    }

    fn of(evidence: &Evidence) -> CauseEvidence {
        of_file(&Case::of(evidence), &evidence.files[0])
    }

    #[test]
    fn growth_by_another_process_is_not_blamed_on_the_program() {
        let grown = SeenFile { size_bytes: Some((1 << 20, 1 << 21)), ..file("ext4") };
        let ground = of(&shared(grown.clone(), "pwrite64"));
        assert_eq!(ground.cause, Cause::Rival);
        let text = "Of 5000 direct writes traced, 0 moved its end; 7 (backup) changed it too.";
        assert!(ground.because.ends_with(text), "{ground:?}");
        assert_eq!(of(&shared(grown.clone(), "pread64")).cause, Cause::Extends);
        let untraced = Evidence { direct: None, ..shared(grown, "pwrite64") };
        assert_eq!(of(&untraced).cause, Cause::Extends);
    }

    #[test]
    fn space_given_to_another_process_is_not_blamed_on_the_program() {
        let sparse = SeenFile { allocated_bytes: Some((0, 1 << 20)), ..file("ext4") };
        let ground = of(&shared(sparse.clone(), "fallocate"));
        assert_eq!(ground.cause, Cause::Other);
        assert!(ground.because.contains("7 (backup) changed it too"), "{ground:?}");
        assert_eq!(of(&shared(sparse, "pread64")).cause, Cause::Holes);
    }
}
