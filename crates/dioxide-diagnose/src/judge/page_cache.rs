//! Waits for the page cache outside of locks: buffered reads that miss it, writeback, and writers
//! that have to wait until dirty pages are written.

use super::SHARE_MIN;
use super::case::{Case, doing, only};
use crate::channels::{Does, Kind};
use crate::finding::{Finding, Wall};
use crate::waits::Seen;
use crate::words::{list, mean, percent};

/// It follows the walls: it serialises nothing.
pub fn waiting(case: &Case<'_>) -> Option<Finding> {
    let which = |seen: &Seen<'_>| seen.kind == Kind::PageCache;
    let share = case.share(which);
    if share < SHARE_MIN {
        return None;
    }
    let does = |wanted: Does| case.share(|seen| which(seen) && doing(seen) == Some(wanted));
    let (reads, writes, syncs) = (does(Does::Reads), does(Does::Writes), does(Does::Syncs));
    let (why, advice) = if syncs >= reads && syncs >= writes && syncs > 0.0 {
        (
            "syncs write the dirty pages of buffered writes",
            "Write with O_DIRECT, or start writeback early (sync_file_range), so that a sync finds \
             few dirty pages.",
        )
    } else if reads > writes {
        (
            "buffered reads fetch pages that are not in it",
            "Read with O_DIRECT and a cache of the program, or read ahead (posix_fadvise), or have \
             more threads read.",
        )
    } else {
        (
            "buffered writes wait for pages, or until dirty pages are written",
            "Write with O_DIRECT, which needs no page; or lower vm.dirty_background_bytes, so that \
             writeback begins earlier.",
        )
    };
    let functions: Vec<String> = case
        .functions(which)
        .into_iter()
        .map(|(function, share)| format!("{function} ({})", percent(share)))
        .collect();
    Some(Finding {
        wall: Wall::PageCache,
        share,
        file: only(&case.files(which)).map(str::to_owned),
        verdict: format!(
            "{} of I/O time is spent waiting for the page cache, without a lock: {why}.",
            percent(share)
        ),
        evidence: vec![format!(
            "{} wait there, on average: in {}.",
            mean(case.threads(which), "thread"),
            list(&functions)
        )],
        advice: vec![advice.into()],
    })
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::super::tests::{evidence, file, waiting};
    use crate::evidence::SeenFile;
    use crate::finding::{Finding, Wall};

    fn of(name: &str, channel: &str) -> Vec<Finding> {
        let buffered = SeenFile { is_direct: false, is_buffered: true, ..file("ext4") };
        judge(&evidence(vec![buffered], vec![waiting(4000, name, channel)]))
    }

    /// Such waits were in the table, and no finding named them.
    #[test]
    fn waits_for_pages_have_a_finding() {
        let findings = of("pread64", "folio_wait_bit_common");
        let walls: Vec<Wall> = findings.iter().map(|finding| finding.wall).collect();
        assert!(walls.contains(&Wall::PageCache), "{findings:#?}");
        let finding = findings.iter().find(|finding| finding.wall == Wall::PageCache).unwrap();
        assert!(finding.verdict.contains("buffered reads"), "{finding:#?}");
        assert_eq!(findings[0].wall, Wall::Nothing, "it serialises nothing");
    }

    /// The largest wait had no finding beside that of the flushes.
    #[test]
    fn writeback_in_syncs_has_a_finding_beside_the_flushes() {
        let buffered = SeenFile { is_direct: false, is_buffered: true, ..file("ext4") };
        let sightings = vec![
            waiting(4000, "fdatasync", "folio_wait_bit_common"),
            waiting(3000, "fdatasync", "blkdev_issue_flush"),
        ];
        let findings = judge(&evidence(vec![buffered], sightings));
        let walls: Vec<Wall> = findings.iter().map(|finding| finding.wall).collect();
        assert_eq!(walls, [Wall::Flush, Wall::PageCache], "{findings:#?}");
        assert!(findings[1].verdict.contains("syncs write the dirty pages"), "{findings:#?}");
    }

    /// The finding of the lock has the waits for pages in its share.
    #[test]
    fn pages_behind_a_lock_have_no_finding_of_their_own() {
        let buffered = SeenFile { is_direct: false, is_buffered: true, ..file("ext4") };
        let sightings = vec![
            waiting(4000, "pwrite64", "ext4_buffered_write_iter"),
            waiting(3000, "pwrite64", "folio_wait_bit_common"),
        ];
        let findings = judge(&evidence(vec![buffered], sightings));
        assert_eq!(findings[0].wall, Wall::BufferedWrites, "{findings:#?}");
        assert!(findings.iter().all(|finding| finding.wall != Wall::PageCache), "{findings:#?}");
    }

    #[test]
    fn other_waits_have_none() {
        let findings = of("pread64", "blk_mq_get_tag");
        assert!(findings.iter().all(|finding| finding.wall != Wall::PageCache), "{findings:#?}");
    }
}
