//! Judges recordings of programs on real file systems and devices. The recordings were made with
//! `examples/record.rs`. Their names are FILE SYSTEM-WORKLOAD, with `-unprivileged` if the watcher
//! was not root.

use dioxide_diagnose::evidence::{Evidence, Subject};
use dioxide_diagnose::finding::Wall;
use dioxide_diagnose::judge::judge;
use std::fs;
use std::path::Path;

/// The walls that may come first, by prefix of the recording's name. The first matching prefix
/// applies.
const EXPECTED: &[(&str, &[Wall])] = &[
    // Durable writes on btrfs wait for the log tree and for the lock of syncs, in near equal parts.
    // Chance decides which comes first.
    ("btrfs-append-durable", &[Wall::JournalCommit, Wall::FileLock, Wall::ExtendingWrites]),
    ("btrfs-durable", &[Wall::JournalCommit, Wall::FileLock]),
    // Most of it is processor time.
    ("btrfs-append-uring", &[Wall::Nothing]),
    ("btrfs-hole", &[Wall::Nothing]),
    // They go through the cache. Stacks show that, or the alignment of calls.
    ("btrfs-unaligned", &[Wall::BufferedWrites, Wall::UnalignedWrites, Wall::FileLock]),
    ("device-durable", &[Wall::Flush]),
    // Writes to a device through the cache take no lock; only processor time remains.
    ("device-buffered", &[Wall::Nothing]),
    ("xfs-hole", &[Wall::FileLock]),
    // The cgroup allowed 300 or 150 writes per second.
    ("ext4-group-commit-limited", &[Wall::CgroupLimit]),
    ("ext4-log-thread-limited", &[Wall::CgroupLimit]),
    ("ext4-postgres-commits-limited", &[Wall::CgroupLimit]),
    ("ext4-postgres-commits", &[Wall::ProgramQueue]),
    ("ext4-rocksdb-commits", &[Wall::ProgramQueue]),
    // One client gives work to one thread of a pool at a time. The others wait for work.
    ("ext4-pool", &[Wall::Flush]),
];

/// By prefix of the workload, for any file system.
const EXPECTED_ANYWHERE: &[(&str, &[Wall])] = &[
    ("append", &[Wall::ExtendingWrites]),
    ("buffered", &[Wall::BufferedWrites]),
    ("durable-fdatasync", &[Wall::Flush]),
    ("durable-overwrite", &[Wall::Flush]),
    ("durable-unwritten", &[Wall::JournalCommit]),
    ("hole", &[Wall::Holes]),
    ("overwrite", &[Wall::Nothing]),
    ("read", &[Wall::Nothing]),
    ("unaligned-unwritten", &[Wall::UnalignedWrites]),
    ("unaligned", &[Wall::Nothing]),
];

fn expected(name: &str) -> &'static [Wall] {
    let begins = |name: &str, table: &'static [(&str, &[Wall])]| {
        table.iter().find(|(beginning, _)| name.starts_with(beginning)).map(|(_, walls)| *walls)
    };
    let workload = name.split_once('-').map_or("", |(_, workload)| workload);
    begins(name, EXPECTED)
        .or_else(|| begins(workload, EXPECTED_ANYWHERE))
        .unwrap_or_else(|| panic!("nothing is expected of {name}"))
}

/// Every recording, with its name.
fn recordings() -> Vec<(String, Evidence)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let mut recordings = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let evidence =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        recordings.push((name, evidence));
    }
    assert!(recordings.len() >= 40, "{} recordings", recordings.len());
    recordings
}

/// An error in the verdict, if any.
fn complaint(name: &str, how: &str, evidence: &Evidence) -> Option<String> {
    let (first, expected) = (&judge(evidence)[0], expected(name));
    let complaint =
        || format!("{name}, {how}: none of {expected:?}: {:?}: {}", first.wall, first.verdict);
    (!expected.contains(&first.wall)).then(complaint)
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// The evidence without root's part.
fn without_what_is_for_root(mut evidence: Evidence) -> Evidence {
    evidence.direct = None;
    evidence.locks = None;
    evidence.punts = None;
    evidence.sightings.iter_mut().for_each(|sighting| sighting.stack.clear());
    evidence
}

#[test]
fn each_has_its_wall() {
    let mut complaints = Vec::new();
    for (name, evidence) in recordings() {
        complaints.extend(complaint(&name, "with all that was seen", &evidence));
        complaints.extend(complaint(
            &name,
            "without what is for root",
            &without_what_is_for_root(evidence),
        ));
    }
    assert_none(&complaints);
}

#[test]
fn rings_say_that_workers_wait_for_them() {
    let mut of_rings = 0;
    for (name, evidence) in recordings()
        .into_iter()
        .filter(|(name, _)| name.contains("4-append-uring") || name.contains("xfs-append-uring"))
    {
        let findings = judge(&evidence);
        assert!(
            findings.iter().any(|finding| finding.wall == Wall::RingWorkers),
            "{name}: {findings:?}"
        );
        of_rings += 1;
    }
    assert!(of_rings >= 2);
}

/// D1 of the review: followers of a group commit that each sleep on a futex of their own.
#[test]
fn followers_wait_for_the_thread_that_flushes() {
    let mut of_queues = 0;
    for (name, evidence) in recordings() {
        let findings = judge(&evidence);
        let queue = findings.iter().find(|finding| finding.wall == Wall::ProgramQueue);
        let has_queue = name.contains("commits") || name.contains("-limited");
        assert_eq!(queue.is_some(), has_queue, "{name}: {findings:#?}");
        let Some(queue) = queue else { continue };
        assert!(queue.share > 0.8 && queue.verdict.contains("fdatasync"), "{name}: {queue:#?}");
        let advice = queue.advice.join(" ");
        assert!(advice.contains("already serves several writes"), "{name}: {advice}");
        of_queues += 1;
    }
    assert!(of_queues >= 5);
}

#[test]
fn neither_fewer_samples_nor_their_order_matter() {
    let mut complaints = Vec::new();
    for (name, evidence) in recordings() {
        let mut fewer = evidence.clone();
        fewer.looks = fewer.looks.div_ceil(2);
        fewer.sightings.iter_mut().for_each(|sighting| sighting.count = sighting.count.div_ceil(2));
        complaints.extend(complaint(&name, "with half of the samples", &fewer));
        let mut frequent = evidence.clone();
        frequent.sightings.retain(|sighting| sighting.count > 1);
        complaints.extend(complaint(&name, "without what was seen once", &frequent));
        let mut reversed = evidence.clone();
        reversed.sightings.reverse();
        assert_eq!(judge(&reversed)[0].wall, judge(&evidence)[0].wall, "{name}, in another order");
    }
    assert_none(&complaints);
}

#[test]
fn they_are_of_programs() {
    for (name, evidence) in recordings() {
        let Subject::Program { command, .. } = &evidence.subject else {
            panic!("{name} is a workload")
        };
        assert!(!command.is_empty(), "{name}");
        assert!(evidence.looks > 0 && evidence.watched_ns > 0, "{name}");
    }
}
