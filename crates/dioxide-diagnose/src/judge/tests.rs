//! Synthetic evidence, one bottleneck at a time: each test fails if its rule is removed.
//! `tests/recorded.rs` has real evidence.

use super::*;
use crate::activity::Activity;
use crate::channels::Kind;
use crate::evidence::{
    Call, CpuLimit, DirectIo, Function, FutexStacks, IoLimit, LockWait, OtherWay, Pairs, Punt,
    Queue, Rw, SeenCgroup, SeenDevice, SeenFile, Sighting, Stack, Step, Subject, Workload,
};
use crate::waits;
use proptest::prelude::*;
use std::collections::BTreeSet;

const LOOKS: u64 = 1000;

pub(super) fn evidence(files: Vec<SeenFile>, sightings: Vec<Sighting>) -> Evidence {
    Evidence {
        subject: Subject::Program {
            pid: 1,
            command: "program".into(),
            processes: 1,
            selected: None,
        },
        has_ended: false,
        kernel_release: "6.18.0".into(),
        cpus: 2,
        watched_ns: 5_000_000_000,
        looks: LOOKS,
        threads: 16,
        sightings,
        files,
        direct: None,
        locks: None,
        punts: None,
        devices: vec![device("loop0", 1.0)],
        cgroups: Vec::new(),
        queues: Vec::new(),
        futexes: Vec::new(),
        functions: Vec::new(),
        curve: Vec::new(),
        others: Vec::new(),
        contenders: None,
        fast_commits: Vec::new(),
        activity: Activity::default(),
        unseen: Vec::new(),
    }
}

/// A file that is written directly, with constant size and allocation.
pub(super) fn file(fs: &str) -> SeenFile {
    SeenFile {
        path: format!("/{fs}/file"),
        fs: Some(fs.into()),
        device: (7, 0),
        inode: 12,
        is_direct: true,
        is_buffered: false,
        is_durable: false,
        is_sync: false,
        size_bytes: Some((1 << 30, 1 << 30)),
        allocated_bytes: Some((1 << 30, 1 << 30)),
    }
}

fn device(name: &str, inflight: f64) -> SeenDevice {
    SeenDevice {
        name: name.into(),
        number: (7, 0),
        has_volatile_cache: Some(true),
        has_fua: Some(false),
        reads: 10,
        writes: 50_000,
        flushes: Some(5000),
        busy_ns: 5_000_000_000,
        inflight,
        queue_max: Some(128),
    }
}

pub(super) fn call(name: &str) -> Call {
    Call { file: Some(0), ..Call::named(name) }
}

pub(super) fn waiting(count: u64, name: &str, channel: &str) -> Sighting {
    Sighting {
        process: 0,
        count,
        threads: 16,
        task: "fio".into(),
        state: 'D',
        call: Some(call(name)),
        channel: Some(channel.into()),
        stack: Vec::new(),
        queue: None,
    }
}

fn within(stack: &[&str], sighting: Sighting) -> Sighting {
    Sighting { stack: stack.iter().map(ToString::to_string).collect(), ..sighting }
}

/// A thread that sleeps in a futex.
fn asleep(count: u64, threads: u64, futex: u64, is_lock: Option<bool>) -> Sighting {
    Sighting {
        process: 0,
        count,
        threads,
        task: "fio".into(),
        state: 'S',
        call: Some(Call { futex: Some(futex), is_lock, ..Call::named("futex") }),
        channel: Some("futex_do_wait".into()),
        stack: Vec::new(),
        queue: None,
    }
}

fn running(count: u64) -> Sighting {
    Sighting { state: 'R', call: None, channel: None, ..waiting(count, "", "") }
}

fn direct(count: u64) -> DirectIo {
    DirectIo {
        file: Some(0),
        count,
        bytes: count << 12,
        is_write: true,
        extends: false,
        begins_beyond: false,
        is_durable: false,
        is_aligned: true,
    }
}

fn workload(rw: Rw) -> Subject {
    let place = "/ext4".into();
    Subject::Workload(Workload { rw, place, bs_bytes: 4096, numjobs: 64, is_durable: false })
}

/// Fifteen threads wait for the lock of the inode, and one writes.
fn locked(fs: &str, channel: &str) -> Evidence {
    let sightings = vec![
        waiting(15 * LOOKS, "pwrite64", channel),
        waiting(LOOKS, "pwrite64", "__iomap_dio_rw"),
    ];
    evidence(vec![file(fs)], sightings)
}

fn main_wall(evidence: &Evidence) -> Wall {
    judge(evidence)[0].wall
}

#[test]
fn writes_that_were_traced_say_why_the_lock_is_exclusive() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    assert_eq!(main_wall(&evidence), Wall::FileLock);
    evidence.direct = Some(vec![direct(60), DirectIo { extends: true, ..direct(40) }]);
    let main = &judge(&evidence)[0];
    assert_eq!(main.wall, Wall::ExtendingWrites);
    assert_eq!(main.file.as_deref(), Some("/ext4/file"));
    assert!(main.verdict.starts_with(
        "94 % of I/O time is spent waiting for the lock of the inode in ext4_file_write_iter: a \
         direct write past the end of the file is exclusive on ext4."
    ));
    assert!(main.evidence.iter().any(|line| line.contains("40 % ended beyond the end")));
    evidence.direct = Some(vec![direct(60), DirectIo { is_aligned: false, ..direct(40) }]);
    assert_eq!(main_wall(&evidence), Wall::UnalignedWrites);
    // Reads, and writes of another file, prove nothing.
    let read = DirectIo { is_write: false, extends: true, ..direct(40) };
    let elsewhere = DirectIo { file: Some(1), extends: true, ..direct(40) };
    let unknown = DirectIo { file: None, extends: true, ..direct(40) };
    evidence.direct = Some(vec![direct(60), read, elsewhere, unknown]);
    assert_eq!(main_wall(&evidence), Wall::FileLock);
}

#[test]
fn calls_that_were_sighted_say_it_where_nothing_was_traced() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    let call = |extends, is_aligned| {
        Some(Call { extends: Some(extends), is_aligned: Some(is_aligned), ..call("pwrite64") })
    };
    evidence.sightings[0].call = call(true, true);
    assert_eq!(main_wall(&evidence), Wall::ExtendingWrites);
    evidence.sightings[0].call = call(false, false);
    assert_eq!(main_wall(&evidence), Wall::UnalignedWrites);
    evidence.sightings[0].call = call(false, true);
    assert_eq!(main_wall(&evidence), Wall::FileLock);
    // Traced writes are better evidence.
    evidence.sightings[0].call = call(true, true);
    evidence.direct = Some(vec![DirectIo { is_aligned: false, ..direct(40) }]);
    assert_eq!(main_wall(&evidence), Wall::UnalignedWrites);
}

#[test]
fn sizes_say_it_where_calls_do_not() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    evidence.files[0].size_bytes = Some((1 << 20, 1 << 21));
    assert_eq!(main_wall(&evidence), Wall::ExtendingWrites);
    evidence.files[0].size_bytes = Some((1 << 30, 1 << 30));
    evidence.files[0].allocated_bytes = Some((1 << 20, 1 << 21));
    assert_eq!(main_wall(&evidence), Wall::Holes);
    // A fully allocated file has no holes: its growth is its mapping.
    evidence.files[0].allocated_bytes = Some((1 << 30, (1 << 30) + 4096));
    assert_eq!(main_wall(&evidence), Wall::FileLock);
}

/// XFS fills holes with the lock shared: they explain nothing there.
#[test]
fn holes_are_a_wall_of_ext4_alone() {
    let mut evidence = locked("xfs", "xfs_ilock");
    evidence.files[0].allocated_bytes = Some((1 << 20, 1 << 21));
    assert_eq!(main_wall(&evidence), Wall::FileLock);
}

#[test]
fn a_workload_says_what_it_does() {
    for (rw, wall) in [
        (Rw::Append, Wall::ExtendingWrites),
        (Rw::Hole, Wall::Holes),
        (Rw::Overwrite, Wall::FileLock),
    ] {
        let mut evidence = locked("ext4", "ext4_file_write_iter");
        evidence.subject = workload(rw);
        assert_eq!(main_wall(&evidence), wall, "{rw:?}");
    }
}

#[test]
fn files_without_o_direct_are_written_through_the_cache() {
    let mut evidence = locked("xfs", "xfs_ilock");
    evidence.files[0].is_direct = false;
    evidence.files[0].is_buffered = true;
    evidence.files[0].size_bytes = Some((1 << 20, 1 << 21));
    assert_eq!(main_wall(&evidence), Wall::BufferedWrites);
    // With both kinds of descriptors the function decides.
    let mut evidence = locked("ext4", "ext4_buffered_write_iter");
    evidence.files[0].is_buffered = true;
    assert_eq!(main_wall(&evidence), Wall::BufferedWrites);
    evidence.sightings[0].channel = Some("ext4_file_write_iter".into());
    assert_eq!(main_wall(&evidence), Wall::FileLock);
}

#[test]
fn btrfs_writes_files_with_checksums_through_the_cache() {
    let mut evidence = locked("btrfs", "btrfs_inode_lock");
    evidence.files[0].size_bytes = Some((1 << 20, 1 << 21));
    assert_eq!(main_wall(&evidence), Wall::ExtendingWrites);
    evidence.sightings.push(waiting(2 * LOOKS, "pwrite64", "folio_wait_bit"));
    let main = &judge(&evidence)[0];
    assert_eq!(main.wall, Wall::BufferedWrites);
    assert!(main.advice.iter().any(|line| line.contains("chattr +C")));
    let stack = ["btrfs_inode_lock", "btrfs_buffered_write", "btrfs_direct_write"];
    let told = within(&stack, waiting(15 * LOOKS, "pwrite64", "btrfs_inode_lock"));
    assert_eq!(main_wall(&self::evidence(vec![file("btrfs")], vec![told])), Wall::BufferedWrites);
}

#[test]
fn files_without_extents_fill_holes_through_the_cache() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    evidence.sightings.push(waiting(LOOKS, "pwrite64", "folio_wait_bit"));
    let main = &judge(&evidence)[0];
    assert_eq!(main.wall, Wall::Holes);
    assert!(main.advice.iter().any(|line| line.contains("Growth::Zeroed")));
}

#[test]
fn syncs_and_truncation_hold_the_lock_as_well() {
    let syncs =
        evidence(vec![file("btrfs")], vec![waiting(15 * LOOKS, "fdatasync", "btrfs_inode_lock")]);
    let main = &judge(&syncs)[0];
    assert_eq!(main.wall, Wall::FileLock);
    assert!(main.verdict.contains("a sync takes it exclusively on btrfs"), "{}", main.verdict);
    let shapes =
        evidence(vec![file("ext4")], vec![waiting(15 * LOOKS, "fallocate", "ext4_fallocate")]);
    assert!(judge(&shapes)[0].verdict.contains("fallocate and truncate take it exclusively"));
}

#[test]
fn the_position_of_a_descriptor_is_a_lock() {
    let evidence = evidence(vec![file("ext4")], vec![waiting(15 * LOOKS, "write", "fdget_pos")]);
    let main = &judge(&evidence)[0];
    assert_eq!(main.wall, Wall::FileLock);
    assert!(main.advice.iter().any(|line| line.contains("pwrite")), "{:?}", main.advice);
}

#[test]
fn allocation_is_a_lock() {
    let channel = "xfs_direct_write_iomap_begin";
    let evidence = evidence(vec![file("xfs")], vec![waiting(15 * LOOKS, "pwrite64", channel)]);
    let main = &judge(&evidence)[0];
    assert_eq!(main.wall, Wall::FileLock);
    assert!(main.verdict.contains("locks inside of the file system"), "{}", main.verdict);
}

#[test]
fn flushes_are_a_wall() {
    let mut evidence =
        evidence(vec![file("ext4")], vec![waiting(8 * LOOKS, "fdatasync", "submit_bio_wait")]);
    let main = &judge(&evidence)[0];
    assert_eq!(main.wall, Wall::Flush);
    assert!(
        main.verdict.contains("loop0 did 1000/s flushes and 10.0k/s writes"),
        "{}",
        main.verdict
    );
    assert!(main.verdict.contains("each durable write waits"));
    evidence.sightings[0].count = LOOKS;
    assert!(judge(&evidence)[0].verdict.contains("one thread at a time flushes"));
}

/// One thread that syncs so many files in turn.
fn syncs_of_files(count: usize, fs: &str) -> Evidence {
    let files = (0..count).map(|nth| SeenFile { inode: nth as u64, ..file(fs) }).collect();
    let sync = |nth| Sighting {
        call: Some(Call { file: Some(nth), ..Call::named("fdatasync") }),
        ..waiting(LOOKS / count as u64, "fdatasync", "submit_bio_wait")
    };
    evidence(files, (0..count).map(sync).collect())
}

#[test]
fn many_files_have_one_flush_each() {
    let mut evidence = syncs_of_files(100, "ext4");
    let found = judge(&evidence);
    let walls: Vec<_> = found.iter().map(|finding| finding.wall).collect();
    assert_eq!(walls, [Wall::FileFlushes], "it replaces the other one");
    let (main, advice) = (&found[0], found[0].advice.join(" "));
    assert!(main.verdict.contains("one flush per file: 100 files on loop0."), "{}", main.verdict);
    assert!(advice.contains("sync_all") && advice.contains("syncfs"), "{advice}");
    evidence.sightings.iter_mut().for_each(|sync| sync.count *= 8);
    let advice = judge(&evidence)[0].advice.join(" ");
    assert!(advice.contains("one log") && !advice.contains("syncfs"), "several threads: {advice}");
    let advice = judge(&syncs_of_files(100, "btrfs"))[0].advice.join(" ");
    assert!(!advice.contains("dioxide::"), "files share no flushes there: {advice}");
}

/// One msync, whose file is never known, hid the finding.
#[test]
fn one_unknown_file_hides_no_flushes_per_file() {
    let mut evidence = syncs_of_files(100, "ext4");
    let unknown = Some(Call::named("msync"));
    evidence.sightings.push(Sighting { call: unknown, ..evidence.sightings[0].clone() });
    assert_eq!(main_wall(&evidence), Wall::FileFlushes);
    evidence.sightings[100].count = 2 * LOOKS;
    assert_eq!(main_wall(&evidence), Wall::Flush, "they may be of one file");
}

/// A log with segments, a database whose log has most flushes, and a call that is for all files.
#[test]
fn the_flushes_of_few_files_are_no_flushes_per_file() {
    assert_eq!(main_wall(&syncs_of_files(4, "ext4")), Wall::Flush);
    let mut evidence = syncs_of_files(100, "ext4");
    evidence.sightings[0].count = LOOKS;
    assert_eq!(main_wall(&evidence), Wall::Flush);
    let mut evidence = syncs_of_files(100, "ext4");
    evidence
        .sightings
        .iter_mut()
        .for_each(|sync| sync.call.as_mut().unwrap().name = "syncfs".into());
    assert_eq!(main_wall(&evidence), Wall::Flush);
}

/// D14 of the review.
#[test]
fn one_thread_that_flushes_is_no_serialisation() {
    let alone = Sighting { threads: 1, ..waiting(LOOKS, "pwrite64", "submit_bio_wait") };
    let mut evidence = evidence(vec![file("ext4")], vec![alone]);
    evidence.files[0].is_durable = true;
    let main = &judge(&evidence)[0];
    assert!(main.verdict.contains("no thread waits for another"), "{}", main.verdict);
    evidence.sightings[0].threads = 16;
    assert!(!judge(&evidence)[0].verdict.contains("no thread waits for another"));
}

/// Without a stack, `submit_bio_wait` on a device is data, unless it is synced.
#[test]
fn a_device_waits_for_data_and_for_flushes_in_one_function() {
    let mut evidence =
        evidence(vec![file("device")], vec![waiting(8 * LOOKS, "pwrite64", "submit_bio_wait")]);
    assert_eq!(main_wall(&evidence), Wall::Nothing);
    evidence.files[0].is_durable = true;
    assert_eq!(main_wall(&evidence), Wall::Flush);
    let stack = ["submit_bio_wait", "__blkdev_direct_IO_simple", "blkdev_write_iter"];
    evidence.sightings[0] = within(&stack, evidence.sightings[0].clone());
    assert_eq!(main_wall(&evidence), Wall::Nothing);
    let stack = ["submit_bio_wait", "blkdev_issue_flush", "blkdev_fsync"];
    evidence.sightings[0] = within(&stack, evidence.sightings[0].clone());
    assert_eq!(main_wall(&evidence), Wall::Flush);
}

#[test]
fn commits_are_a_wall() {
    for (fs, channel, word) in [
        ("ext4", "jbd2_log_wait_commit", "on ext4"),
        ("xfs", "xlog_wait_on_iclog", "on XFS"),
        ("btrfs", "wait_log_commit", "on btrfs"),
    ] {
        let evidence = evidence(vec![file(fs)], vec![waiting(8 * LOOKS, "pwrite64", channel)]);
        let main = &judge(&evidence)[0];
        assert_eq!(main.wall, Wall::JournalCommit, "{fs}");
        assert!(main.verdict.contains(word), "{}", main.verdict);
    }
}

#[test]
fn o_sync_commits_times() {
    let mut evidence =
        evidence(vec![file("ext4")], vec![waiting(8 * LOOKS, "pwrite64", "jbd2_log_wait_commit")]);
    let is_of_times = |evidence: &Evidence| {
        judge(evidence)[0].advice.iter().any(|line| line.contains("in place of O_SYNC"))
    };
    assert!(!is_of_times(&evidence));
    evidence.files[0].is_sync = true;
    assert!(is_of_times(&evidence), "{:?}", judge(&evidence)[0].advice);
    // A file that changes more than its timestamps needs more.
    evidence.files[0].size_bytes = Some((1 << 20, 1 << 21));
    assert!(!is_of_times(&evidence));
}

/// Workers wait in place of the program: the object of their waits is the cause, and comes first.
#[test]
fn workers_of_rings_come_after_what_they_wait_for() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    for sighting in &mut evidence.sightings {
        sighting.task = "iou-wrk".into();
        sighting.call = None;
    }
    evidence.files[0].size_bytes = Some((1 << 20, 1 << 21));
    evidence.sightings.push(Sighting {
        state: 'S',
        call: Some(Call::named("io_uring_enter")),
        ..waiting(LOOKS, "", "io_cqring_wait")
    });
    evidence.sightings.push(Sighting {
        task: "iou-wrk".into(),
        state: 'S',
        call: None,
        ..waiting(100 * LOOKS, "", "io_wq_worker")
    });
    evidence.punts = Some(vec![Punt { opcode: "WRITE".into(), is_hashed: true, count: 500 }]);
    let findings = judge(&evidence);
    assert_eq!([findings[0].wall, findings[1].wall], [Wall::ExtendingWrites, Wall::RingWorkers]);
    assert_eq!(findings[0].file.as_deref(), Some("/ext4/file"), "the only file there is");
    assert_eq!(findings[1].share, 1.0, "neither idle workers nor the ring count");
    assert!(findings[1].evidence.iter().any(|line| line.contains("100/s WRITE operations")));
}

#[test]
fn workers_that_only_wait_for_the_device_are_a_wall_alone() {
    let mut evidence = evidence(vec![file("btrfs")], vec![waiting(LOOKS, "", "__iomap_dio_rw")]);
    evidence.sightings[0].task = "iou-wrk".into();
    evidence.sightings[0].call = None;
    assert_eq!(main_wall(&evidence), Wall::RingWorkers);
}

/// A ring that keeps the device at work is as healthy as threads that wait for it.
#[test]
fn rings_wait_for_the_device_if_it_works_for_them() {
    let ring = Sighting {
        state: 'S',
        call: Some(Call::named("io_uring_enter")),
        ..waiting(LOOKS, "", "io_cqring_wait")
    };
    let lock = waiting(LOOKS / 10, "io_submit", "ext4_file_write_iter");
    let mut evidence = evidence(vec![file("ext4")], vec![ring, lock]);
    evidence.devices[0].inflight = 32.0;
    assert_eq!(main_wall(&evidence), Wall::Nothing);
    evidence.devices[0].inflight = 0.1;
    assert_eq!(main_wall(&evidence), Wall::FileLock);
}

fn mutex_around_a_flush(is_lock: Option<bool>) -> Evidence {
    let flushes = waiting(LOOKS, "fdatasync", "submit_bio_wait");
    evidence(vec![file("ext4")], vec![asleep(15 * LOOKS, 16, 0x5000, is_lock), flushes])
}

#[test]
fn a_mutex_around_a_flush_is_the_programs_own_wall() {
    for is_lock in [Some(true), None] {
        let findings = judge(&mutex_around_a_flush(is_lock));
        assert_eq!(findings[0].wall, Wall::ProgramLock);
        assert!(
            findings[0].verdict.contains("15.0 threads wait for one futex"),
            "{}",
            findings[0].verdict
        );
        assert!(findings[0].verdict.contains("fdatasync"));
        assert!((findings[0].share - 15.0 / 16.0).abs() < 1e-9);
    }
}

/// The defect: only the address of the futex was named.
#[test]
fn the_functions_that_take_a_lock_were_not_named() {
    let mut evidence = mutex_around_a_flush(Some(true));
    let of_file = |file: &str, names: &[&str]| -> Vec<Function> {
        let function =
            |name: &&str| Function { name: Some((*name).into()), file: file.into(), address: 0 };
        names.iter().map(function).collect()
    };
    evidence.functions = of_file("/lib/libc.so.6", &["pthread_mutex_lock", "start_thread"]);
    evidence.functions.extend(of_file("/bin/log", &["std::lock", "commit", "serve", "read"]));
    let stack = |count, functions: &[usize]| Stack { count, functions: functions.to_vec() };
    let of = |futex, stacks| FutexStacks { process: 0, futex, stacks };
    evidence.futexes = vec![
        of(0x6000, vec![stack(99, &[0, 5, 4])]),
        of(0x5000, vec![stack(9, &[0, 2, 3, 4, 1]), stack(2, &[0, 5, 4, 1])]),
    ];
    let lines =
        ["The futex is at 0x5000.", "9 of 11 sampled waiters take it in commit, called by serve."];
    assert_eq!(judge(&evidence)[0].evidence, lines);
}

/// Children of one process have their locks at one address.
#[test]
fn locks_of_several_processes_are_found() {
    let one = mutex_around_a_flush(Some(true));
    let of = |process| one.sightings.iter().cloned().map(move |sighting| (process, sighting));
    let mut all = evidence(one.files.clone(), Vec::new());
    all.sightings =
        (1..=4).flat_map(of).map(|(process, sighting)| Sighting { process, ..sighting }).collect();
    let main = &judge(&all)[0];
    assert_eq!((main.wall, main.share), (Wall::ProgramLock, 15.0 / 16.0));
    assert!(main.verdict.contains("60.0 threads wait for 4 futexes"), "{}", main.verdict);
    assert_eq!(main.evidence, ["The futex is at 0x5000."]);
    // One that they share does not let four of them flush.
    let mut shared = all.clone();
    let call = |sighting: &mut Sighting| sighting.call.as_mut().unwrap().is_shared = true;
    shared.sightings.iter_mut().for_each(call);
    assert_eq!(main_wall(&shared), Wall::Flush);
    // But one that lets one thread of each process flush in turn is one lock.
    for sighting in &mut shared.sightings {
        sighting.count /= 4;
        sighting.threads = 1;
    }
    let main = &judge(&shared)[0];
    assert_eq!(main.wall, Wall::ProgramLock);
    assert!(main.verdict.contains("15.0 threads wait for one futex"), "{}", main.verdict);
}

#[test]
fn threads_that_wait_for_work_or_for_a_leader_wait_for_no_lock() {
    // A condition.
    assert_eq!(main_wall(&mutex_around_a_flush(Some(false))), Wall::Flush);
    // Its counter once had the value of a lock.
    let mut counter = mutex_around_a_flush(Some(false));
    counter.sightings.push(asleep(LOOKS / 10, 16, 0x5000, Some(true)));
    assert_eq!(main_wall(&counter), Wall::Flush);
    // Followers that sleep on a futex each, or on a semaphore each.
    let mut followers = mutex_around_a_flush(None);
    followers.sightings.splice(..1, (0..15).map(|n| asleep(LOOKS, 1, 0x5000 + 64 * n, None)));
    assert_eq!(main_wall(&followers), Wall::Flush);
    // A pool beside one thread that logs.
    let mut pool = mutex_around_a_flush(None);
    pool.sightings[1].threads = 1;
    assert_eq!(main_wall(&pool), Wall::Flush);
    // The flushing threads have another name than the waiting ones.
    let mut others = mutex_around_a_flush(Some(true));
    others.sightings[1].task = "logger".into();
    assert_eq!(main_wall(&others), Wall::Flush);
    // Several threads flush at once, so nothing excludes them.
    let mut several = mutex_around_a_flush(Some(true));
    several.sightings[1].count = 8 * LOOKS;
    assert_eq!(main_wall(&several), Wall::Flush);
    // Flushes are too rare.
    let mut seldom = mutex_around_a_flush(Some(true));
    seldom.sightings[1].count = LOOKS / 10;
    assert_eq!(main_wall(&seldom), Wall::Flush);
}

#[test]
fn threads_that_wait_for_the_device_are_serialised_by_nothing() {
    let mut evidence =
        evidence(vec![file("ext4")], vec![waiting(15 * LOOKS, "pwrite64", "__iomap_dio_rw")]);
    evidence.devices[0].inflight = 15.2;
    let findings = judge(&evidence);
    assert_eq!([findings[0].wall, findings[1].wall], [Wall::Nothing, Wall::Device]);
    assert!(findings[0].verdict.starts_with("Nothing serialises"));
    assert!(findings[1].verdict.contains("loop0 has 15.2 requests in flight"));
    evidence.devices[0].busy_ns = 1;
    assert_eq!(judge(&evidence).len(), 1);
}

/// The defect: one sample of a log made its device, busy with a backup, the bottleneck.
#[test]
fn a_busy_device_of_a_rare_log_is_no_bottleneck() {
    let log = SeenFile { path: "/var/log/file".into(), device: (8, 0), ..file("ext4") };
    let in_log = Call { file: Some(1), ..call("write") };
    let sightings = vec![
        waiting(15 * LOOKS, "pwrite64", "__iomap_dio_rw"),
        Sighting { call: Some(in_log), ..waiting(1, "write", "folio_wait_bit_common") },
    ];
    let mut evidence = evidence(vec![file("ext4"), log], sightings);
    evidence.devices[0].busy_ns = 1;
    evidence.devices.push(SeenDevice { number: (8, 0), ..device("sda", 128.0) });
    let walls: Vec<Wall> = judge(&evidence).iter().map(|finding| finding.wall).collect();
    assert_eq!(walls, [Wall::Nothing]);
    // Nor does its wait count for the other device.
    evidence.devices[0].busy_ns = 5_000_000_000;
    evidence.sightings[1].count = 10 * LOOKS;
    let device = judge(&evidence).swap_remove(1);
    assert!(device.verdict.contains("loop0 has"), "{}", device.verdict);
    assert_eq!((device.wall, device.share), (Wall::Device, 0.6));
}

#[test]
fn threads_that_run_are_serialised_by_nothing() {
    let seldom = waiting(LOOKS, "pwrite64", "ext4_file_write_iter");
    let mut evidence = evidence(vec![file("ext4")], vec![seldom, running(15 * LOOKS)]);
    let walls: Vec<Wall> = judge(&evidence).iter().map(|finding| finding.wall).collect();
    assert_eq!(walls, [Wall::Nothing, Wall::Processor]);
    evidence.sightings[1].task = "compute".into();
    assert_eq!(main_wall(&evidence), Wall::FileLock, "what other threads do is no excuse");
}

#[test]
fn a_program_without_io_is_told_so() {
    let sleeping = Sighting {
        state: 'S',
        call: None,
        ..waiting(64 * LOOKS, "", "poll_schedule_timeout.constprop.0")
    };
    let mut evidence = evidence(vec![file("ext4")], vec![sleeping]);
    assert!(judge(&evidence)[0].verdict.contains("no thread was seen to wait in I/O"));
    evidence.direct = Some(vec![direct(5000)]);
    assert!(judge(&evidence)[0].verdict.contains("1000/s direct reads and writes were traced"));
    evidence.direct = None;
    evidence.sightings.push(waiting(20, "fdatasync", "submit_bio_wait"));
    let findings = judge(&evidence);
    assert_eq!([findings[0].wall, findings[1].wall], [Wall::Nothing, Wall::Flush]);
    assert!(findings[0].verdict.contains("next to no I/O"), "{}", findings[0].verdict);
    assert!(
        judge(&self::evidence(vec![], vec![]))[0].verdict.contains("No thread was seen at all")
    );
}

#[test]
fn what_is_not_known_is_not_guessed() {
    let sighting = waiting(8 * LOOKS, "pwrite64", "zfs_rangelock_enter");
    let stack = ["zfs_rangelock_enter", "ext4_file_write_iter"];
    for sighting in [sighting.clone(), within(&stack, sighting)] {
        let evidence = evidence(vec![file("zfs")], vec![sighting]);
        let main = &judge(&evidence)[0];
        assert_eq!(main.wall, Wall::Unknown);
        assert!(main.verdict.contains("zfs_rangelock_enter (100 %)"), "{}", main.verdict);
        let table = waits::table(&evidence);
        assert_eq!(
            (table[0].kind, table[0].function.as_deref()),
            (Kind::Unknown, Some("zfs_rangelock_enter"))
        );
    }
}

#[test]
fn the_curve_and_the_other_ways_are_told() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    evidence.subject = workload(Rw::Append);
    let step = |numjobs, iops: &[f64]| Step { numjobs, iops: iops.to_vec() };
    evidence.curve = vec![step(64, &[3000.0, 3216.0, 9000.0]), step(1, &[7292.0])];
    evidence.others = vec![OtherWay {
        path: "dioxide".into(),
        numjobs: 64,
        iops: vec![163_000.0, 1.0, 170_000.0],
    }];
    let main = &judge(&evidence)[0];
    assert!(
        main.verdict.contains("Measured: 7292/s with 1 thread, 3216/s with 64."),
        "{}",
        main.verdict
    );
    assert!(main.advice[0].contains("(163k/s here, 51x as much)"), "{}", main.advice[0]);
    assert!(!main.advice[1].contains(" here"), "nothing was measured: {}", main.advice[1]);
    evidence.others[0].iops = vec![3300.0];
    assert!(judge(&evidence)[0].advice[0].contains("which is no gain"));
    // The larger measured gain comes first, and a measured loss last.
    let preallocated =
        |iops| OtherWay { path: "preallocated".into(), iops: vec![iops], numjobs: 64 };
    evidence.others.push(preallocated(90_000.0));
    assert!(judge(&evidence)[0].advice[0].contains("(90.0k/s here, 28x as much)"));
    evidence.others[1] = preallocated(1000.0);
    assert!(judge(&evidence)[0].advice[1].contains("which is less"));
}

#[test]
fn a_curve_without_a_wall_is_told() {
    let mut evidence =
        evidence(vec![file("ext4")], vec![waiting(15 * LOOKS, "pwrite64", "__iomap_dio_rw")]);
    let step = |numjobs, iops| Step { numjobs, iops: vec![iops] };
    evidence.curve = vec![step(1, 1000.0), step(64, 9000.0)];
    let verdict = |evidence: &Evidence| judge(evidence)[0].verdict.clone();
    assert!(verdict(&evidence).starts_with(
        "Nothing serialises: more threads get more done, 1000/s with 1 thread, 9000/s with 64"
    ));
    evidence.curve[1].iops = vec![1050.0];
    assert!(verdict(&evidence).contains("; the device is busy"), "{}", verdict(&evidence));
    evidence.devices[0].busy_ns = 0;
    assert!(verdict(&evidence).contains("; the limit was not observed"), "{}", verdict(&evidence));
}

#[test]
fn few_sightings_are_thin_evidence() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    let is_thin = |evidence: &Evidence| judge(evidence)[0].verdict.contains("The evidence is thin");
    assert!(!is_thin(&evidence));
    evidence.looks = 3;
    assert!(is_thin(&evidence));
    evidence.looks = LOOKS;
    evidence.sightings.iter_mut().for_each(|sighting| sighting.count = 45);
    assert!(is_thin(&evidence));
}

#[test]
fn locks_that_were_traced_are_timed() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    let stack = [
        "__traceiter_contention_begin",
        "rwsem_down_write_slowpath",
        "down_write",
        "ext4_file_write_iter",
    ];
    let wait = |stack: &[&str]| LockWait {
        count: 10,
        wait_ns: 20_000_000,
        wait_max_ns: 7_000_000,
        kind: "WRITE".into(),
        locks: 1,
        stack: stack.iter().map(ToString::to_string).collect(),
    };
    evidence.locks = Some(vec![wait(&stack), wait(&["mutex_lock", "pipe_read"])]);
    assert!(judge(&evidence)[0].evidence.iter().any(|line| line
        == "10 waits for locks of inodes were traced: 2.00 ms on average, 7.00 ms the longest."));
}

/// None alone is a bottleneck, but all of them together are.
#[test]
fn small_walls_are_told_where_they_are_one_together() {
    let part = |name, channel| waiting(3 * LOOKS, name, channel);
    let sightings = vec![
        part("pwrite64", "ext4_file_write_iter"),
        part("fdatasync", "submit_bio_wait"),
        part("fdatasync", "jbd2_log_wait_commit"),
        part("pwrite64", "ext4_map_blocks"),
        part("pwrite64", "__iomap_dio_rw"),
    ];
    let mut evidence = evidence(vec![file("ext4")], sightings);
    let walls: BTreeSet<Wall> = judge(&evidence).iter().map(|finding| finding.wall).collect();
    assert_eq!(walls, BTreeSet::from([Wall::FileLock, Wall::Flush, Wall::JournalCommit]));
    evidence.sightings[4].count = 100 * LOOKS;
    assert_eq!(main_wall(&evidence), Wall::Nothing);
}

/// Readers wait for the lock that the writers hold.
#[test]
fn who_waits_for_a_lock_waits_for_its_holders() {
    let stack = ["btrfs_inode_lock", "btrfs_buffered_write", "btrfs_direct_write"];
    let told = within(&stack, waiting(8 * LOOKS, "pwrite64", "btrfs_inode_lock"));
    let evidence = evidence(
        vec![file("btrfs")],
        vec![
            told,
            waiting(4 * LOOKS, "ftruncate", "btrfs_inode_lock"),
            waiting(4 * LOOKS, "io_submit", "btrfs_inode_lock"),
        ],
    );
    let findings = judge(&evidence);
    assert_eq!(findings[0].wall, Wall::BufferedWrites);
    assert_eq!(findings[0].share, 0.75);
}

#[test]
fn some_file_systems_perform_every_write_alone() {
    for (fs, channel) in [("tmpfs", "generic_file_write_iter"), ("tmpfs", "shmem_file_write_iter")]
    {
        let mut evidence = locked(fs, channel);
        evidence.files[0].size_bytes = Some((1 << 20, 1 << 21));
        let main = &judge(&evidence)[0];
        assert!(
            main.verdict.contains("tmpfs performs every write of a file alone"),
            "{}",
            main.verdict
        );
    }
}

#[test]
fn requests_that_are_no_flushes_are_told_from_them() {
    let stack = ["submit_bio_wait", "blkdev_issue_zeroout", "ext4_issue_zeroout"];
    let zeroes = within(&stack, waiting(8 * LOOKS, "pwrite64", "submit_bio_wait"));
    assert_eq!(main_wall(&evidence(vec![file("ext4")], vec![zeroes])), Wall::Nothing);
}

#[test]
fn the_time_of_change_is_no_allocation() {
    let evidence =
        evidence(vec![file("xfs")], vec![waiting(8 * LOOKS, "pwrite64", "xfs_vn_update_time")]);
    let findings = judge(&evidence);
    assert_eq!(findings.len(), 1);
    assert!(findings[0].verdict.contains("time of change"), "{}", findings[0].verdict);
}

#[test]
fn allocated_space_does_not_help_on_old_kernels() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    evidence.subject = workload(Rw::Append);
    let advice = |evidence: &Evidence| judge(evidence)[0].advice.join(" ");
    assert!(advice(&evidence).contains("allocate the file first"));
    evidence.kernel_release = "6.1.0-18-amd64".into();
    assert!(advice(&evidence).contains("fill the file with zeros first"), "{}", advice(&evidence));
}

#[test]
fn locks_of_files_are_locks_of_the_program() {
    let lock = waiting(8 * LOOKS, "flock", "locks_lock_inode_wait");
    let held = waiting(LOOKS, "fdatasync", "submit_bio_wait");
    let main = judge(&evidence(vec![file("ext4")], vec![lock, held])).swap_remove(0);
    assert_eq!(main.wall, Wall::ProgramLock);
    assert!(main.verdict.contains("flock"), "{}", main.verdict);
}

/// A standby that waits in flock for the end of the leader counted as time in I/O.
#[test]
fn a_standby_waits_for_no_lock() {
    let standby = |task: &str| Sighting {
        task: task.into(),
        threads: 1,
        ..waiting(LOOKS, "flock", "locks_lock_inode_wait")
    };
    let log = Sighting { threads: 1, ..waiting(LOOKS / 2, "fdatasync", "submit_bio_wait") };
    for task in ["fio", "standby"] {
        let evidence = evidence(vec![file("ext4")], vec![standby(task), log.clone()]);
        assert_eq!(judge(&evidence)[0].wall, Wall::Flush, "{task}");
        assert_eq!(judge(&evidence)[0].share, 1.0, "{task}");
    }
}

/// They were idle for a user who cannot see calls, because no holder was seen either.
#[test]
fn waits_for_locks_of_files_without_visible_calls_are_not_idle() {
    let waits = Sighting { call: None, ..waiting(8 * LOOKS, "", "locks_lock_inode_wait") };
    assert_eq!(judge(&evidence(vec![file("ext4")], vec![waits]))[0].wall, Wall::ProgramLock);
}

#[test]
fn functions_that_are_not_known_are_named_outside_of_io_as_well() {
    let sighting = Sighting { call: None, ..waiting(8 * LOOKS, "", "zfs_rangelock_enter") };
    let main = &judge(&evidence(vec![], vec![sighting]))[0];
    assert!(main.verdict.starts_with("No recognised wait serialises"), "{}", main.verdict);
    assert!(main.evidence.iter().any(|line| line.contains("zfs_rangelock_enter, 8.00 threads")));
}

#[test]
fn the_journal_is_of_the_file_system_that_most_wait_for() {
    let sightings = vec![
        waiting(LOOKS, "fsync", "jbd2_log_wait_commit"),
        waiting(8 * LOOKS, "fsync", "xlog_wait_on_iclog"),
    ];
    assert!(judge(&evidence(vec![file("xfs")], sightings))[0].verdict.contains("on XFS"));
}

#[test]
fn changes_of_names_are_no_durable_writes() {
    let of = |call: Call, function: &str, file: SeenFile| {
        let sighting = Sighting { call: Some(call), ..waiting(8 * LOOKS, "", function) };
        let main = judge(&evidence(vec![file], vec![sighting])).swap_remove(0);
        assert_eq!(main.wall, Wall::JournalCommit);
        main.verdict.contains("durable write")
    };
    for name in ["unlink", "openat", "rename", "mkdir", "ftruncate"] {
        let unseen = Call { file: None, ..call(name) };
        assert!(!of(unseen, "wait_transaction_locked", file("ext4")), "{name} begins a change");
    }
    assert!(
        !of(call("pwrite64"), "start_this_handle", file("ext4")),
        "an allocating write begins a change"
    );
    assert!(!of(call("ftruncate"), "xlog_grant_head_wait.isra.0", file("xfs")));
    let durable = SeenFile { is_durable: true, ..file("ext4") };
    assert!(of(call("pwrite64"), "start_this_handle", durable.clone()), "and this one is durable");
    assert!(of(call("pwritev2"), "start_this_handle", file("ext4")), "its flags are not seen");
    assert!(of(call("fdatasync"), "wait_transaction_locked", file("ext4")));
    assert!(of(call("fallocate"), "start_this_handle", durable));
    assert!(
        of(call("unlink"), "jbd2_log_wait_commit", file("ext4")),
        "in a directory that is synchronous"
    );
    let worker = Sighting {
        task: "iou-wrk".into(),
        ..waiting(8 * LOOKS, "io_uring_setup", "start_this_handle")
    };
    let main = judge(&evidence(vec![file("ext4")], vec![worker])).swap_remove(0);
    assert!(main.verdict.contains("durable write"), "{}", main.verdict);
}

#[test]
fn a_device_says_that_it_has_no_cache() {
    let mut evidence =
        evidence(vec![file("ext4")], vec![waiting(8 * LOOKS, "fsync", "jbd2_log_wait_commit")]);
    evidence.devices[0].has_volatile_cache = Some(false);
    let main = &judge(&evidence)[0];
    let line = "loop0 reports no volatile cache.";
    assert!(main.evidence.iter().any(|other| other == line), "{:?}", main.evidence);
}

/// D2 of the review: sixteen files gave 41 near-identical rows.
#[test]
fn waits_that_differ_only_in_their_file_are_one_row() {
    let files = (0..16).map(|n| SeenFile { path: format!("/ext4/{n}"), ..file("ext4") });
    let on = |n, name, channel| Sighting {
        call: Some(Call { file: Some(n), ..call(name) }),
        ..waiting(LOOKS, name, channel)
    };
    let flushes = (0..16).map(|n| on(n, "fdatasync", "submit_bio_wait"));
    let writes = [on(3, "pwrite64", "__iomap_dio_rw")];
    let evidence = evidence(files.collect(), flushes.chain(writes).collect());
    let table = waits::table(&evidence);
    assert_eq!(table.len(), 17);
    let rows = waits::over_files(&table);
    let files: Vec<_> = rows.iter().map(|row| row.file.as_deref()).collect();
    assert_eq!(files, [Some("16 files"), Some("/ext4/3")]);
    assert!((rows[0].share.unwrap() - 16.0 / 17.0).abs() < 1e-9);
    assert_eq!((rows[0].threads, rows[0].samples), (16.0, 16 * LOOKS));
}

/// D3 of the review: "nothing helps" stood beside a measured gain.
#[test]
fn the_advice_for_overlayfs_does_not_contradict_its_measurement() {
    let mut evidence = locked("overlay", "ovl_write_iter");
    evidence.subject = workload(Rw::Append);
    evidence.curve = vec![Step { numjobs: 64, iops: vec![2000.0] }];
    evidence.others = vec![OtherWay { path: "dioxide".into(), numjobs: 64, iops: vec![12_400.0] }];
    let main = &judge(&evidence)[0];
    assert!(main.advice[0].contains("(12.4k/s here, 6.2x as much)"), "{:?}", main.advice);
    assert!(!main.advice.join(" ").contains("Nothing helps"), "{:?}", main.advice);
}

/// D5 of the review: fsync over written blocks was explained by unwritten space, and fdatasync,
/// which helps, came last.
#[test]
fn fsync_of_an_unchanged_file_is_told_to_be_fdatasync() {
    let of = |name: &str| {
        evidence(vec![file("ext4")], vec![waiting(8 * LOOKS, name, "jbd2_log_wait_commit")])
    };
    let mut fsync = of("fsync");
    let main = &judge(&fsync)[0];
    assert!(main.verdict.contains("the time of each write"), "{}", main.verdict);
    assert!(main.advice[0].contains("fdatasync in place of fsync"), "{:?}", main.advice);
    fsync.files[0].size_bytes = Some((1 << 20, 1 << 21));
    let main = &judge(&fsync)[0];
    assert!(main.verdict.contains("changes metadata"), "{}", main.verdict);
    assert!(main.advice[0].contains("Growth::Zeroed"), "{:?}", main.advice);
    // It calls fdatasync already.
    let advice = judge(&of("fdatasync"))[0].advice.join(" ");
    assert!(!advice.contains("Use fdatasync"), "{advice}");
}

/// D5 of the review.
#[test]
fn dioxide_run_is_advised_for_direct_files_only() {
    let runs = |evidence: &Evidence| judge(evidence)[0].advice.join(" ").contains("dioxide run P");
    let mut flushes =
        evidence(vec![file("ext4")], vec![waiting(8 * LOOKS, "fdatasync", "submit_bio_wait")]);
    let mut appends = locked("ext4", "ext4_file_write_iter");
    appends.files[0].size_bytes = Some((1 << 20, 1 << 21));
    assert!(runs(&flushes) && runs(&appends));
    flushes.files[0].is_direct = false;
    assert!(!runs(&flushes));
}

/// D5 of the review: what helps in holes depends on the kernel.
#[test]
fn advice_for_holes_depends_on_the_kernel() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    evidence.files[0].allocated_bytes = Some((1 << 20, 1 << 21));
    let advice = |evidence: &Evidence| judge(evidence)[0].advice.join(" ");
    assert!(advice(&evidence).contains("Writes into it run side by side"));
    evidence.kernel_release = "6.1.0-18-amd64".into();
    assert!(advice(&evidence).contains("fill the space with zeros"), "{}", advice(&evidence));
    evidence.kernel_release = "7.3.0".into();
    assert_eq!(main_wall(&evidence), Wall::FileLock);
}

/// D6 of the review: by path, the file of a workload is also open without O_DIRECT, to prepare it.
/// One lock then had two causes, with advice for ext4, and the waits for pages had no finding.
#[test]
fn a_workload_on_btrfs_has_one_cause() {
    let mut evidence = locked("btrfs", "btrfs_inode_lock");
    evidence.files[0].is_buffered = true;
    evidence.sightings.push(waiting(12 * LOOKS, "pwrite64", "folio_wait_bit"));
    let stack = ["btrfs_inode_lock", "btrfs_buffered_write", "btrfs_direct_write"];
    evidence.sightings.push(within(&stack, waiting(2 * LOOKS, "pwrite64", "btrfs_inode_lock")));
    for rw in [Rw::Append, Rw::Hole, Rw::Overwrite] {
        evidence.subject = workload(rw);
        let findings = judge(&evidence);
        let walls: Vec<Wall> = findings.iter().map(|finding| finding.wall).collect();
        assert_eq!(walls, [Wall::BufferedWrites], "{rw:?}");
        assert!((findings[0].share - 29.0 / 30.0).abs() < 1e-9, "{}", findings[0].share);
        assert!(findings[0].verdict.contains("40 % for pages of the cache"));
        assert!(findings[0].advice.join(" ").contains("chattr +C"));
    }
}

fn stopped(count: u64, state: char) -> Sighting {
    Sighting { state, call: None, ..waiting(count, "", "do_signal_stop") }
}

/// D4 of the review: a stopped program was reported as healthy.
#[test]
fn a_stopped_program_is_not_healthy() {
    let main = judge(&evidence(vec![], vec![stopped(16 * LOOKS, 'T')])).swap_remove(0);
    assert_eq!((main.wall, main.share), (Wall::Stopped, 1.0));
    assert!(main.verdict.contains("stopped in every sample"), "{}", main.verdict);
    assert!(main.advice[0].contains("kill -CONT 1"), "{:?}", main.advice);
    let traced = judge(&evidence(vec![], vec![stopped(16 * LOOKS, 't')])).swap_remove(0);
    assert!(traced.advice[0].contains("debugger"), "{:?}", traced.advice);
    let frozen =
        Sighting { state: 'S', channel: Some("do_freezer_trap".into()), ..stopped(LOOKS, 'S') };
    let frozen = judge(&evidence(vec![], vec![frozen])).swap_remove(0);
    assert!(frozen.advice[0].contains("cgroup.freeze"), "{:?}", frozen.advice);
}

/// The advice was to continue the first observed process.
#[test]
fn the_stopped_process_is_named_not_the_first() {
    let of = |process, state| Sighting { process, ..stopped(LOOKS, state) };
    let advice = |sightings| judge(&evidence(vec![], sightings)).swap_remove(0).advice.join(" ");
    let running = Sighting { process: 7, ..running(LOOKS) };
    let one = advice(vec![running.clone(), of(8, 'T'), of(9, 't')]);
    assert!(one.contains("Continue it with kill -CONT 8,"), "{one}");
    let two = vec![running, of(8, 'T'), of(9, 'T')];
    assert!(advice(two.clone()).contains("Continue processes 8 and 9 with kill -CONT"));
    assert_eq!(stopped_processes(&evidence(vec![], two)), [8, 9]);
}

/// The verdict on the rest of the time stays, unless it is that nothing serialises.
#[test]
fn a_program_that_stops_midway_is_told_so() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    evidence.sightings.push(stopped(6 * LOOKS, 'T'));
    let walls = |evidence: &Evidence| {
        judge(evidence).iter().map(|finding| finding.wall).collect::<Vec<_>>()
    };
    assert_eq!(walls(&evidence), [Wall::FileLock, Wall::Stopped]);
    assert!(judge(&evidence)[1].verdict.contains("27 % of the samples"));
    evidence.sightings[2].count = 20 * LOOKS;
    assert_eq!(walls(&evidence), [Wall::Stopped, Wall::FileLock]);
    evidence.sightings.splice(..2, [running(50 * LOOKS)]);
    assert_eq!(walls(&evidence)[..2], [Wall::Stopped, Wall::Nothing]);
    evidence.sightings[1].count = 1;
    assert!(!walls(&evidence).contains(&Wall::Stopped), "a debugger's short visit");
}

/// A cgroup that allows 150 writes per second, of which this number were done in five seconds.
fn limited(done: u64) -> Vec<SeenCgroup> {
    let io = IoLimit {
        device: (7, 0),
        device_name: Some("loop0".into()),
        file: "io.max".into(),
        quantity: "wiops".into(),
        per_second: 150,
        done,
    };
    let path = "/sys/fs/cgroup/job".into();
    vec![SeenCgroup { path, io: vec![io], io_pressure_ns: Some(4_000_000_000), cpu: None }]
}

const PRESSURE: &str = "/sys/fs/cgroup/job/io.pressure: a thread of the cgroup waited for I/O in \
                        80 % of the time.";

/// The defect: pressure was only shown beside a limit that is reached on average.
#[test]
fn pressure_without_a_reached_limit_was_not_shown() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    let above = SeenCgroup { path: "/sys/fs/cgroup".into(), ..limited(0).swap_remove(0) };
    let lines = |evidence: &Evidence| -> Vec<String> {
        let lines = judge(evidence).swap_remove(0).evidence;
        lines.into_iter().filter(|line| line.contains("/sys/fs/cgroup")).collect()
    };
    evidence.cgroups = vec![limited(500).swap_remove(0), above];
    let bursts =
        "/sys/fs/cgroup/job/io.max: wiops is used to 67 % on average; bursts may reach it.";
    assert_eq!(lines(&evidence), [PRESSURE, bursts]);
    evidence.cgroups[0].io.clear();
    assert_eq!(lines(&evidence), [PRESSURE], "without a limit");
    evidence.cgroups.iter_mut().for_each(|group| group.io_pressure_ns = Some(1_000_000_000));
    assert!(lines(&evidence).is_empty(), "a small one");
}

/// D1 of the review: the limit was never mentioned.
#[test]
fn a_limit_of_the_cgroup_is_named_with_its_rate_and_its_file() {
    let mut evidence =
        evidence(vec![file("ext4")], vec![waiting(15 * LOOKS, "pwrite64", "__iomap_dio_rw")]);
    evidence.cgroups = limited(745);
    let main = &judge(&evidence)[0];
    assert_eq!(main.wall, Wall::CgroupLimit);
    assert_eq!(
        main.verdict,
        "The cgroup limits I/O: /sys/fs/cgroup/job allows writes on loop0 at 150/s, and 149/s were \
         done."
    );
    assert!(main.evidence.iter().any(|line| line == PRESSURE), "{:?}", main.evidence);
    assert!(main.evidence.iter().any(|line| line.contains("1.00 requests in flight on average")));
    let removal = "echo '7:0 wiops=max' > /sys/fs/cgroup/job/io.max";
    assert!(main.advice[0].contains(removal), "{:?}", main.advice);
    evidence.cgroups = limited(500);
    assert_eq!(main_wall(&evidence), Wall::Nothing, "the limit is not reached");
}

/// The defect: a limit took the share of all waits for I/O, whatever their device or direction.
#[test]
fn a_limit_does_not_prolong_waits_for_another_device_or_direction() {
    let other = SeenFile { path: "/log".into(), device: (8, 0), ..file("ext4") };
    let on_other = Call { file: Some(1), ..call("pwrite64") };
    let sightings = vec![
        waiting(10 * LOOKS, "pwrite64", "__iomap_dio_rw"),
        waiting(6 * LOOKS, "pread64", "__iomap_dio_rw"),
        Sighting { call: Some(on_other), ..waiting(4 * LOOKS, "pwrite64", "__iomap_dio_rw") },
    ];
    let mut evidence = evidence(vec![file("ext4"), other], sightings);
    evidence.cgroups = limited(750);
    let share = |evidence: &Evidence| cgroup::of_io(&Case::of(evidence)).unwrap().share;
    assert_eq!(share(&evidence), 0.5);
    evidence.cgroups[0].io[0].quantity = "riops".into();
    assert_eq!(share(&evidence), 0.3);
    // No file is on the device itself: they may be on its partitions.
    evidence.cgroups[0].io[0].device = (7, 1);
    assert_eq!(share(&evidence), 0.3);
    evidence.cgroups[0].io[0].quantity = "wiops".into();
    assert_eq!(share(&evidence), 0.7);
}

/// The limit prolongs the waits for a lock as well. Both are named.
#[test]
fn a_limit_of_the_cgroup_comes_before_the_lock_that_it_prolongs() {
    let mut evidence = locked("ext4", "ext4_file_write_iter");
    evidence.cgroups = limited(750);
    let walls: Vec<Wall> = judge(&evidence).iter().map(|finding| finding.wall).collect();
    assert_eq!(walls, [Wall::CgroupLimit, Wall::FileLock]);
}

#[test]
fn throttled_processors_are_named() {
    let mut evidence = evidence(vec![file("ext4")], vec![running(2 * LOOKS)]);
    let cpu = |throttled_periods| CpuLimit { cpus: 0.5, periods: 50, throttled_periods };
    evidence.cgroups = vec![SeenCgroup {
        path: "/sys/fs/cgroup/job".into(),
        io: vec![],
        io_pressure_ns: None,
        cpu: Some(cpu(30)),
    }];
    let main = judge(&evidence).swap_remove(0);
    assert_eq!(main.wall, Wall::CgroupLimit);
    assert!(main.verdict.contains("throttled in 60 % of its periods"), "{}", main.verdict);
    evidence.cgroups[0].cpu = Some(cpu(1));
    assert_eq!(main_wall(&evidence), Wall::Nothing);
}

/// The defect D14: a program that hardly does I/O was advised to do larger operations.
#[test]
fn an_idle_program_was_advised_to_do_larger_operations() {
    let advice = |looks_in_io| {
        let in_io = waiting(looks_in_io, "pwrite64", "ext4_file_write_iter");
        let findings = judge(&evidence(vec![file("ext4")], vec![in_io, running(15 * LOOKS)]));
        let mut findings = findings.into_iter();
        findings.find(|finding| finding.wall == Wall::Processor).unwrap().advice
    };
    assert!(advice(20).is_empty(), "{:?}", advice(20));
    assert!(advice(LOOKS)[0].starts_with("Larger or merged operations"));
}

/// A group commit with a condition variable for each thread: fifteen wait, and one flushes.
fn group_commit() -> Evidence {
    let waiter = |n: u64| Sighting { queue: Some(0), ..asleep(LOOKS, 1, 0x5000 + 64 * n, None) };
    let mut evidence = mutex_around_a_flush(None);
    evidence.sightings.splice(..1, (0..15).map(waiter));
    evidence.queues = vec![Queue {
        task: "fio".into(),
        file: 0,
        call: "fdatasync".into(),
        looks: LOOKS,
        looks_of_several: 0,
        waits: 15 * LOOKS,
        threads: 16,
        leaders: 16,
        leading_waiters: 16,
        short: Pairs { held: 9000, held_woken: 10, ended: 6000, ended_woken: 3000, ends: 400 },
        long: Pairs::default(),
        waiting: Vec::new(),
        leading: Vec::new(),
        idle: Vec::new(),
    }];
    evidence
}

/// D1 of the review: only waiters of one futex were found.
#[test]
fn waiters_on_futexes_of_their_own_wait_for_the_thread_that_flushes() {
    let evidence = group_commit();
    let main = &judge(&evidence)[0];
    assert_eq!((main.wall, main.share), (Wall::ProgramQueue, 15.0 / 16.0));
    let words = "waiting for another thread of the program, in fdatasync: 15.0 threads";
    assert!(main.verdict.contains(words), "{}", main.verdict);
    assert_eq!(main.file.as_deref(), Some("/ext4/file"));
    let line = "0.1 % of the waiters ran while it slept there, and 50 % when it went on.";
    assert!(main.evidence.iter().any(|other| other == line), "{:?}", main.evidence);
}

/// Calls of middle length: few end within a pass, and some last from one pass to the next.
#[test]
fn stacks_show_what_waiters_on_semaphores_wait_for() {
    let mut evidence = group_commit();
    evidence.queues[0].short =
        Pairs { held: 395, ended: 15, ended_woken: 15, ends: 1, ..Pairs::default() };
    evidence.queues[0].long =
        Pairs { held: 121, held_woken: 3, ended: 242, ended_woken: 229, ends: 16 };
    assert_eq!(main_wall(&evidence), Wall::Flush);
    let names = ["fdatasync", "sem_wait", "LWLockAcquireOrWait", "XLogFlush", "PostgresMain"];
    let function = |(address, name): (u64, &str)| Function {
        name: Some(name.into()),
        file: if address < 2 { "/lib/libc.so.6".into() } else { "/bin/postgres".into() },
        address,
    };
    evidence.functions = (0..).zip(names).map(function).collect();
    let stack = |count, functions: &[usize]| vec![Stack { count, functions: functions.to_vec() }];
    evidence.queues[0].leading = stack(10, &[0, 3, 4]);
    evidence.queues[0].waiting = stack(16, &[1, 2, 3, 4]);
    let main = &judge(&evidence)[0];
    assert_eq!(main.wall, Wall::ProgramQueue);
    let line = "16 of 16 sampled waiters wait in LWLockAcquireOrWait, called by XLogFlush, which \
                the thread in fdatasync also runs.";
    assert!(main.evidence.iter().any(|other| other == line), "{:?}", main.evidence);
    // Threads of a pool, which wait for work.
    evidence.queues[0].leading = stack(10, &[0, 4]);
    evidence.queues[0].waiting = stack(16, &[1, 2, 4]);
    assert_eq!(main_wall(&evidence), Wall::Flush);
}

/// D1 of the review: a program that has a group commit was told to use one.
#[test]
fn a_program_that_batches_is_not_told_to() {
    let mut evidence = group_commit();
    let all_advice = |evidence: &Evidence| {
        let findings = judge(evidence);
        findings.into_iter().flat_map(|finding| finding.advice).collect::<Vec<_>>().join(" ")
    };
    let advice = all_advice(&evidence);
    assert!(advice.contains("already serves several writes"), "{advice}");
    assert!(!advice.contains("group commit") && !advice.contains("one thread"), "{advice}");
    assert!(!advice.contains("riters share"), "dioxide promises what it does: {advice}");
    for (fs, channel) in [("ext4", "jbd2_log_wait_commit"), ("btrfs", "wait_log_commit")] {
        let mut commits = evidence.clone();
        commits.files[0].fs = Some(fs.into());
        let leader = commits.sightings.last_mut().unwrap();
        (leader.count, leader.channel) = (15 * LOOKS, Some(channel.into()));
        let advice = all_advice(&commits);
        assert!(!advice.contains("riters share") && !advice.contains("one thread"), "{advice}");
    }
    evidence.queues[0].short.ends = 3000;
    assert!(all_advice(&evidence).contains("let one thread sync for all"));
    // A thread for the log, with few waiters.
    evidence.queues[0].leading_waiters = 0;
    let advice = all_advice(&evidence);
    assert!(advice.contains("share flushes") && !advice.contains("one thread"), "{advice}");
}

/// The defect: this advice had a fixed order.
#[test]
fn advice_for_flushes_and_commits_began_with_a_measured_loss() {
    for (call, fs, channel) in [
        ("fdatasync", "ext4", "submit_bio_wait"),
        ("fdatasync", "ext4", "jbd2_log_wait_commit"),
        ("fsync", "ext4", "jbd2_log_wait_commit"),
        ("fdatasync", "btrfs", "wait_log_commit"),
    ] {
        let mut evidence = evidence(vec![file(fs)], vec![waiting(8 * LOOKS, call, channel)]);
        evidence.subject = workload(Rw::Sync);
        evidence.curve = vec![Step { numjobs: 64, iops: vec![1000.0] }];
        let mut advice = |iops| {
            evidence.others =
                vec![OtherWay { path: "dioxide".into(), numjobs: 64, iops: vec![iops] }];
            judge(&evidence).swap_remove(0).advice
        };
        let (loss, gain) = (advice(200.0), advice(5000.0));
        assert!(loss.len() >= 2, "{loss:?}");
        assert!(loss.last().unwrap().contains("(200/s here, which is less)"), "{loss:?}");
        assert!(gain[0].contains("(5000/s here, 5.0x as much)"), "{gain:?}");
    }
}

/// Threads without work sleep as well while another flushes.
#[test]
fn threads_that_do_not_wake_with_the_flush_do_not_wait_for_it() {
    let changed = |change: fn(&mut Queue)| {
        let mut evidence = group_commit();
        change(&mut evidence.queues[0]);
        main_wall(&evidence)
    };
    assert_eq!(changed(|_| {}), Wall::ProgramQueue);
    // They run at any time.
    assert_eq!(changed(|queue| queue.short.held_woken = 4500), Wall::Flush);
    // A pool with little work: one of them runs.
    assert_eq!(changed(|queue| queue.short.ended_woken = 400), Wall::Flush);
    // Flushes are seldom, or many at a time.
    assert_eq!(changed(|queue| queue.looks = LOOKS / 3), Wall::Flush);
    assert_eq!(changed(|queue| queue.looks_of_several = LOOKS / 2), Wall::Flush);
    // They have not run for long.
    let mut idle = group_commit();
    idle.sightings.iter_mut().for_each(|sighting| sighting.queue = None);
    assert_eq!(main_wall(&idle), Wall::Flush);
}

/// Too short to see the waiters sleep through them.
#[test]
fn short_flushes_have_waiters_that_take_turns() {
    let mut evidence = group_commit();
    let ended = Pairs { held: 0, held_woken: 0, ended: 9000, ended_woken: 8000, ends: 600 };
    evidence.queues[0].short = ended;
    assert_eq!(main_wall(&evidence), Wall::ProgramQueue);
    evidence.queues[0].short.ended_woken = 2000;
    assert_eq!(main_wall(&evidence), Wall::Flush, "a pool of which one thread at a time works");
    evidence.queues[0].short = ended;
    evidence.queues[0].leading_waiters = 0;
    assert_eq!(main_wall(&evidence), Wall::Flush, "nothing shows that they wait for it");
}

/// Names with a meaning, and arbitrary numbers.
fn any_evidence() -> impl Strategy<Value = Evidence> {
    let name = || {
        prop_oneof![
            Just("ext4_file_write_iter"),
            Just("xfs_ilock"),
            Just("btrfs_inode_lock"),
            Just("btrfs_sync_file"),
            Just("submit_bio_wait"),
            Just("jbd2_log_wait_commit"),
            Just("wait_transaction_locked"),
            Just("io_cqring_wait"),
            Just("io_wq_worker"),
            Just("folio_wait_bit"),
            Just("futex_do_wait"),
            Just("__iomap_dio_rw"),
            Just("schedule"),
            Just(""),
            Just(".x"),
        ]
        .prop_map(str::to_owned)
    };
    let word = || {
        prop_oneof![Just("pwrite64"), Just("fdatasync"), Just("futex"), Just("ftruncate"), Just("")]
            .prop_map(str::to_owned)
    };
    let count = || prop_oneof![0..3_u64, Just(u64::MAX), any::<u64>()];
    let rate = || prop_oneof![any::<f64>(), 0.0..1e6_f64];
    let call = (
        word(),
        proptest::option::of(0..4_usize),
        proptest::option::of(any::<bool>()),
        proptest::option::of(any::<bool>()),
        proptest::option::of(0..3_u64),
        proptest::option::of(any::<bool>()),
    )
        .prop_map(|(name, file, extends, is_aligned, futex, is_lock)| Call {
            name,
            file,
            extends,
            is_aligned,
            futex,
            is_lock,
            is_shared: is_lock.is_none(),
        });
    let sighting = (
        (count(), count()),
        prop_oneof![Just("iou-wrk"), Just("fio")],
        prop_oneof![Just('R'), Just('S'), Just('D'), any::<char>()],
        proptest::option::of(call),
        proptest::option::of(name()),
        proptest::collection::vec(name(), 0..4),
    )
        .prop_map(|((count, threads), task, state, call, channel, stack)| Sighting {
            process: count as u32 % 3,
            count,
            threads,
            task: task.into(),
            state,
            call,
            channel,
            stack,
            queue: (count % 2 == 0).then_some(count as usize % 4),
        });
    let fs = prop_oneof![Just("ext4"), Just("xfs"), Just("btrfs"), Just("device"), Just("é")];
    let file = (
        proptest::option::of(fs),
        any::<[bool; 4]>(),
        proptest::option::of((count(), count())),
        proptest::option::of((count(), count())),
    )
        .prop_map(
            |(fs, [is_direct, is_buffered, is_durable, is_sync], size_bytes, allocated_bytes)| {
                SeenFile {
                    path: "é".into(),
                    fs: fs.map(str::to_owned),
                    device: (0, 0),
                    inode: 1,
                    is_direct,
                    is_buffered,
                    is_durable,
                    is_sync,
                    size_bytes,
                    allocated_bytes,
                }
            },
        );
    let direct = (proptest::option::of(0..4_usize), count(), any::<[bool; 5]>()).prop_map(
        |(file, count, [is_write, extends, begins_beyond, is_durable, is_aligned])| DirectIo {
            file,
            count,
            bytes: count,
            is_write,
            extends,
            begins_beyond,
            is_durable,
            is_aligned,
        },
    );
    let lock = (count(), count(), count(), proptest::collection::vec(name(), 0..4)).prop_map(
        |(count, wait_ns, wait_max_ns, stack)| LockWait {
            count,
            wait_ns,
            wait_max_ns,
            kind: "WRITE".into(),
            locks: 1,
            stack,
        },
    );
    let device = (count(), proptest::option::of(count()), count(), rate()).prop_map(
        |(writes, flushes, busy_ns, inflight)| SeenDevice {
            writes,
            flushes,
            busy_ns,
            number: (0, 0),
            ..device("d", inflight)
        },
    );
    let step = (0..5_usize, proptest::collection::vec(rate(), 0..3));
    let steps = || proptest::collection::vec(step.clone(), 0..4);
    (
        proptest::option::of(prop_oneof![Just(Rw::Append), Just(Rw::Hole), Just(Rw::Mixed)]),
        (count(), count(), 0..3_usize),
        proptest::collection::vec(sighting, 0..12),
        proptest::collection::vec(file, 0..3),
        proptest::option::of(proptest::collection::vec(direct, 0..4)),
        proptest::option::of(proptest::collection::vec(lock, 0..4)),
        proptest::collection::vec(device, 0..3),
        (steps(), steps()),
    )
        .prop_map(
            |(
                rw,
                (watched_ns, looks, cpus),
                sightings,
                files,
                direct,
                locks,
                devices,
                (curve, others),
            )| {
                let mut evidence = evidence(files, sightings);
                if let Some(rw) = rw {
                    evidence.subject = workload(rw);
                }
                let step = |(numjobs, iops)| Step { numjobs, iops };
                let other = |(numjobs, iops)| OtherWay { path: "dioxide".into(), numjobs, iops };
                Evidence {
                    watched_ns,
                    looks,
                    cpus,
                    direct,
                    locks,
                    devices,
                    curve: curve.into_iter().map(step).collect(),
                    others: others.into_iter().map(other).collect(),
                    punts: Some(vec![Punt {
                        opcode: "WRITE".into(),
                        is_hashed: true,
                        count: looks,
                    }]),
                    ..evidence
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_evidence_is_judged(evidence in any_evidence()) {
        let findings = judge(&evidence);
        prop_assert!(!findings.is_empty());
        for finding in &findings {
            prop_assert!((0.0..=1.0).contains(&finding.share), "{finding:?}");
            prop_assert!(!finding.verdict.is_empty());
        }
        for wait in waits::table(&evidence) {
            prop_assert!(wait.share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{wait:?}");
            prop_assert!(wait.threads >= 0.0);
        }
    }

    #[test]
    fn shares_of_the_wait_table_add_up(evidence in any_evidence()) {
        let total: f64 = waits::table(&evidence).iter().filter_map(|wait| wait.share).sum();
        let overflows = evidence.sightings.iter().any(|sighting| sighting.count > u64::MAX / 16);
        prop_assert!(overflows || total == 0.0 || (total - 1.0).abs() < 1e-9, "{total}");
    }

    #[test]
    fn the_order_of_sightings_does_not_matter(evidence in any_evidence(), seed in any::<u64>()) {
        let mut shuffled = evidence.clone();
        fastrand::Rng::with_seed(seed).shuffle(&mut shuffled.sightings);
        let walls = |evidence: &Evidence| {
            judge(evidence).iter().map(|finding| finding.wall).collect::<Vec<_>>()
        };
        prop_assert_eq!(walls(&evidence), walls(&shuffled));
    }
}

/// The commits of the main journal were known to diagnose, and the fast ones were not.
#[test]
fn fast_commits_are_warned_of_where_a_file_is_on_them() {
    let with = |fast_commits| {
        warnings(&Evidence { fast_commits, ..evidence(vec![file("ext4")], Vec::new()) })
    };
    assert_eq!(with(vec![(7, 0)]), [FAST_COMMIT_WARNING]);
    assert!(with(vec![(7, 1)]).is_empty() && with(vec![]).is_empty());
}
