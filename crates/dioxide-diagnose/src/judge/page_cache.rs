//! Waits for the page cache outside of locks: buffered reads that miss it, writeback, and writers
//! that have to wait until dirty pages are written.

use super::SHARE_MIN;
use super::case::{Case, doing, only};
use crate::channels::{Does, Kind, plain};
use crate::finding::{Finding, Wall};
use crate::waits::Seen;
use crate::words::{list, mean, percent};

/// Functions of reads, also of those in a page fault.
const READING: &[&str] = &[
    "filemap_fault",
    "filemap_get_pages",
    "filemap_read",
    "filemap_read_folio",
    "filemap_splice_read",
    "filemap_update_page",
];

/// It follows the walls: it serialises nothing.
pub fn waiting(case: &Case<'_>) -> Option<Finding> {
    let which = |seen: &Seen<'_>| seen.kind == Kind::PageCache;
    let share = case.share(which);
    if share < SHARE_MIN {
        return None;
    }
    let does = |wanted: Does| case.share(|seen| which(seen) && effect(seen) == Some(wanted));
    let (reads, writes, syncs) = (does(Does::Reads), does(Does::Writes), does(Does::Syncs));
    let most = reads.max(writes).max(syncs).max(share - reads - writes - syncs);
    let (why, advice) = if syncs == most {
        (
            "syncs write the dirty pages of buffered writes",
            "Write with O_DIRECT, or start writeback early (sync_file_range), so that a sync finds \
             few dirty pages.",
        )
    } else if reads == most {
        (
            "buffered reads, or reads of mapped files, fetch pages that are not in it",
            "Read with O_DIRECT and a cache of the program, or read ahead (posix_fadvise, \
             madvise), or have more threads read.",
        )
    } else if writes == most {
        (
            "buffered writes wait for pages, or until dirty pages are written",
            "Write with O_DIRECT, which needs no page; or lower vm.dirty_background_bytes, so that \
             writeback begins earlier.",
        )
    } else {
        (
            "pages are read or written, by calls or page faults that are not visible",
            "Read and write with O_DIRECT, which needs no page.",
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

/// The effect on the file: by the call, or by the functions in a page fault or an unseen call. Of a
/// call that reads and writes, only the wait for dirty pages is a write.
fn effect(seen: &Seen<'_>) -> Option<Does> {
    let call = seen.sighting.call.as_ref();
    let copies = call.is_some_and(|call| matches!(call.name.as_str(), "sendfile" | "splice"));
    let by_call =
        doing(seen).filter(|does| matches!(does, Does::Reads | Does::Writes | Does::Syncs));
    let by_function = || {
        let outer = seen.sighting.stack.iter().map(String::as_str);
        seen.function.into_iter().chain(outer).map(plain).find_map(|function| match function {
            _ if function.starts_with("balance_dirty_pages") => Some(Does::Writes),
            _ if READING.contains(&function) => Some(Does::Reads),
            _ => None,
        })
    };
    match copies {
        true => by_function().or(Some(Does::Reads)),
        false => by_call.or_else(by_function),
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::super::tests::{evidence, file, waiting};
    use crate::evidence::{SeenFile, Sighting};
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

    /// Page faults, and reads in calls that this user may not see, were "buffered writes".
    #[test]
    fn reads_without_a_visible_call_are_not_writes() {
        let verdict = |name: Option<&str>, channel: &str, stack: &[&str]| {
            let call = name.map(super::super::tests::call);
            let stack = stack.iter().map(ToString::to_string).collect();
            let sighting = Sighting { call, stack, ..waiting(4000, "", channel) };
            let findings = judge(&evidence(vec![file("ext4")], vec![sighting]));
            let mut pages = findings.into_iter().filter(|it| it.wall == Wall::PageCache);
            pages.next().unwrap().verdict
        };
        let fault = ["folio_wait_bit_common", "filemap_fault", "__do_fault"];
        assert!(verdict(None, fault[0], &fault).contains("reads of mapped files"));
        assert!(verdict(None, "filemap_update_page", &[]).contains("buffered reads"));
        assert!(verdict(Some("sendfile"), "folio_wait_bit_common", &[]).contains("buffered reads"));
        let dirty = "balance_dirty_pages_ratelimited_flags";
        assert!(verdict(None, dirty, &[]).contains("buffered writes"));
        assert!(verdict(Some("sendfile"), dirty, &[]).contains("buffered writes"));
        assert!(verdict(None, "folio_wait_bit_common", &[]).contains("not visible"));
    }

    #[test]
    fn other_waits_have_none() {
        let findings = of("pread64", "blk_mq_get_tag");
        assert!(findings.iter().all(|finding| finding.wall != Wall::PageCache), "{findings:#?}");
    }
}
