//! The orders that matter in a crash, and to other processes and threads, on disks more hostile
//! than the simulated one.

use super::*;
use crate::backend::Job;
use crate::backend::ring::RingFile;
use crate::engine::io::RequestIo;
use crate::engine::waiter::{News, Waiter};
use crate::rules::recovery::Extent;
use crate::sync::JoinHandle;
use smallvec::SmallVec;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The two ways in which a crash keeps only one of the size and the marker. File systems with
/// both in one ordered journal do not.
fn crashes_apart(disk: &Disk) -> [Disk; 2] {
    [true, false].map(|keep_size| {
        let image = disk.crash(|_| keep_size);
        match disk.crash(|_| !keep_size).0.read_marker().unwrap() {
            Some(marker) => image.0.write_marker(&marker).unwrap(),
            None => image.0.remove_marker().unwrap(),
        }
        image.crash(|_| true)
    })
}

#[test]
fn marker_and_size_that_a_crash_keeps_apart_are_brought_together() {
    for prepared in [Prepared::Unwritten, Prepared::Zeroed] {
        for cut in 0.. {
            let sim = Disk::without_order(DISK_BYTES);
            sim.die_after(cut);
            let Some(file) = open_on_dying(sim, prepared, FileSystems::default()) else { continue };
            let durable = live(&file);
            let closed = file.finish().is_ok();
            for disk in crashes_apart(&file.backend) {
                check_apart(&disk, durable, prepared, &format!("cut {cut} {prepared:?}"));
            }
            if closed {
                break;
            }
        }
    }
}

/// Such a crash ends the recovery as well, at every call.
fn check_apart(disk: &Disk, durable: u64, prepared: Prepared, at: &str) {
    for again in 0.. {
        let image = disk.crash(|_| true);
        image.die_after(again);
        let died = recover_by(&image.0, SELF, Recover::Truncate).is_err();
        for image in crashes_apart(&image) {
            check_after_crash(&image, durable, prepared, at);
        }
        if !died {
            break;
        }
    }
}

/// A file on a dying disk that grows by a few blocks at a time, or None if the disk is dead.
fn growing(disk: Disk, prepared: Prepared) -> Option<Arc<Engine>> {
    let file = open_on_dying(disk, prepared, FileSystems::default())?;
    Some(Arc::new(Engine::new(Parts {
        backend: Arc::new(file.backend.0.clone()),
        journal: Err(String::new()),
        order: Some(Order::ALWAYS),
        path: Path::new("growing").into(),
        process: Process::current(),
        fs: FileSystems::default(),
        props: props(Some(prepared)),
        alignment: Alignment { memory: 512, offset: 512, append: BLOCK_BYTES },
        growth_config: GrowthConfig { cap_bytes: 8 * BLOCK_BYTES, ..GROWTH_CONFIG },
        recovery: Recovery::clean(0),
        held: None,
    })))
}

/// Power cuts at every call. Of what is not flushed, they keep any number of changes, and all of
/// the data or none.
fn cut_growth(prepared: Prepared, crashes: fn(&Disk) -> Vec<Disk>) {
    for cut in 0.. {
        let disk = Disk::new(DISK_BYTES);
        disk.die_after(cut);
        let Some(file) = growing(disk.clone(), prepared) else { continue };
        let durable = live(&file);
        let closed = file.finish().is_ok();
        for (nth, image) in crashes(&disk).into_iter().enumerate() {
            check_recovered(image, durable, prepared, &format!("call {cut}, {nth}, {prepared:?}"));
        }
        if closed {
            break;
        }
    }
}

#[test]
fn growth_that_waits_for_no_flush_loses_nothing_acknowledged() {
    for prepared in [Prepared::Unwritten, Prepared::Zeroed] {
        cut_growth(prepared, |disk| {
            let (mut images, mut changes_max) = (Vec::new(), 0);
            for changes in 0.. {
                for keeps_data in [false, true] {
                    images.push(Disk::of(disk.0.device.crash(&mut |piece, max| match piece {
                        CrashChoice::Metadata => {
                            changes_max = max;
                            changes
                        }
                        _ => max * u64::from(keeps_data),
                    })));
                }
                if changes == changes_max {
                    break;
                }
            }
            images
        });
    }
}

/// The control: a journal that keeps the marker and the size apart.
#[test]
#[should_panic(expected = "call ")]
fn without_an_ordered_journal_growth_without_a_flush_loses() {
    cut_growth(Prepared::Unwritten, |disk| crashes_apart(disk).into());
}

#[test]
fn a_crash_while_a_file_is_truncated_by_force_leaves_it_as_it_was_or_in_order() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 3), true).unwrap();
    let found = file.backend.crash(|_| true);
    found.append_behind_our_back(1);
    let end = found.0.physical_size().unwrap();
    found.0.truncate(end + 8 * BLOCK_BYTES).unwrap();
    for calls in 0.. {
        let disk = found.crash(|_| true);
        disk.die_after(calls);
        let died = recover_by(&disk.0, SELF, Recover::Force).is_err();
        for keep in [false, true] {
            let after = disk.crash(|_| keep);
            let (found, _) = recover_by(&after.0, SELF, Recover::Truncate).unwrap();
            match found.verdict {
                Verdict::ModifiedExternally(_) => {
                    assert_eq!(found.physical_size, end + 8 * BLOCK_BYTES, "{calls} calls")
                }
                _ => assert_eq!((found.ceiling, after.is_marked()), (end, false), "{calls} calls"),
            }
        }
        if !died {
            break;
        }
    }
}

#[test]
fn what_a_killed_process_left_is_stable_once_it_is_shown() {
    for prepared in [None, Some(Prepared::Unwritten), Some(Prepared::Zeroed)] {
        let killed = open_on(Disk::new(DISK_BYTES), prepared, FileSystems::default()).unwrap();
        killed.append(&record(1, 3), false).unwrap();
        recover_by(&killed.backend.0, SELF, Recover::Truncate).unwrap();
        let after =
            open_on(killed.backend.crash(|_| false), prepared, FileSystems::default()).unwrap();
        assert_eq!(contents(&after)[..3], [1, 2, 3], "{prepared:?}");
    }
}

#[test]
fn after_a_failed_flush_the_other_files_take_nothing() {
    type Change = fn(&SimFile) -> Result<()>;
    let changes: [Change; 6] = [
        |file| file.append(&record(2, 1), false).map(drop),
        |file| file.write_at(&record(2, 1), 0, false),
        |file| file.write_at(&record(2, 1), 0, true),
        |file| file.sync_data(),
        |file| file.set_len(0),
        |file| file.recycle(),
    ];
    for (n, change) in changes.iter().enumerate() {
        let fs = FileSystems::default();
        let [one, other] = [(); 2].map(|()| {
            let file =
                open_on(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), fs.clone()).unwrap();
            file.append(&record(1, 1), false).unwrap();
            file
        });
        one.backend.fail(Call::Flush, 0, libc::EIO);
        one.sync_data().unwrap_err();
        let calls = other.backend.calls();
        assert!(matches!(change(&other).unwrap_err().kind(), ErrorKind::Wedged(_)), "change {n}");
        assert_eq!(other.backend.calls(), calls, "change {n}");
    }
}

#[test]
fn the_markers_of_a_file_differ() {
    let mut core = bare_core();
    let data = record(1, 1);
    core.append(1, Segment::of(&data), false, &mut Outbox::default());
    let first =
        core.next_growth(SPACE_LIMITS, &mut Outbox::default()).expect("there is no space yet");
    let plan = first.plan.expect("space is asked for");
    let second = core.announce(plan, plan.to, SPACE_LIMITS);
    let third = core.recycling_marker();
    assert!(first.marker.epoch != second.epoch && second.epoch != third.epoch);
}

/// The counts show readers in other processes that the data that they read may be gone.
#[test]
fn markers_count_truncations_and_no_growth() {
    let mut core = bare_core();
    let data = record(1, 1);
    core.append(1, Segment::of(&data), false, &mut Outbox::default());
    let first =
        core.next_growth(SPACE_LIMITS, &mut Outbox::default()).expect("there is no space yet");
    let plan = first.plan.expect("space is asked for");
    let second = core.announce(plan, plan.to, SPACE_LIMITS);
    assert!(first.marker.only_grew_until(&second));
    let third = core.truncating_marker(second, 0);
    assert!(!second.only_grew_until(&third));
    let fourth = core.announce(plan, plan.to, SPACE_LIMITS);
    assert!(
        !third.only_grew_until(&fourth),
        "a reader may know the length from before, by the marker that announces"
    );
    assert!(!second.only_grew_until(&fourth));
    let fifth = core.recycling_marker();
    assert!(!fourth.only_grew_until(&fifth));
}

/// The simulated disk where writes stop inside a block. No call may change the disk after the
/// unlock.
#[derive(Debug)]
struct Watched {
    disk: Disk,
    ragged: bool,
    unlocked: AtomicBool,
}

impl Watched {
    fn new(ragged: bool) -> Self {
        Self { disk: Disk::new(DISK_BYTES), ragged, unlocked: AtomicBool::new(false) }
    }

    fn disk(&self) -> &Sim {
        assert!(!self.unlocked.load(Ordering::SeqCst), "another process may have the file by now");
        &self.disk.0
    }
}

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result { self.disk().$name($($arg),*) })*
    };
}

impl Backend for Watched {
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64> {
        if !offset.is_multiple_of(512) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let written = self.disk().write(segments, offset, dsync)?;
        Ok(if self.ragged && written > BLOCK_BYTES { written - BLOCK_BYTES + 100 } else { written })
    }

    fn unlock(&self) {
        self.unlocked.store(true, Ordering::SeqCst);
    }

    passed_on! {
        read(into: &[Segment], offset: u64) -> io::Result<u64>;
        flush() -> io::Result<()>;
        sync_all() -> io::Result<()>;
        physical_size() -> io::Result<u64>;
        allocate(start: u64, end: u64) -> io::Result<()>;
        write_zeroes(start: u64, end: u64) -> io::Result<()>;
        truncate(len: u64) -> io::Result<()>;
        extents(from: u64) -> io::Result<Vec<Extent>>;
        read_marker() -> io::Result<Option<Vec<u8>>>;
        write_marker(bytes: &[u8]) -> io::Result<()>;
        remove_marker() -> io::Result<()>;
        free_bytes() -> io::Result<u64>;
        size_max() -> u64;
        spawn(job: Job) -> io::Result<Option<JoinHandle>>;
        descriptor() -> BorrowedFd<'_>;
        ring_files() -> SmallVec<[RingFile<'_>; 1]>;
    }
}

#[test]
fn a_write_cut_short_inside_a_block_is_resumed_where_it_is_aligned() {
    let ragged = Watched::new(true);
    let transfer = RequestIo::of_write(7 * BLOCK_BYTES, 512);
    crate::engine::io::write_fully(&ragged, &[Segment::of(&record(1, 7))], 0, transfer).unwrap();
    assert_eq!(
        (0..7).map(|n| ragged.disk.content(n)).collect::<Vec<_>>(),
        (1..=7).map(Some).collect::<Vec<_>>()
    );
}

#[test]
fn close_lets_others_in_last() {
    let file = Arc::new(Engine::new(Parts {
        backend: Arc::new(Watched::new(false)),
        journal: Err(String::new()),
        order: None,
        path: Path::new("watched").into(),
        process: Process::current(),
        fs: FileSystems::default(),
        props: props(Some(Prepared::Unwritten)),
        alignment: Alignment { memory: 512, offset: 512, append: BLOCK_BYTES },
        growth_config: GROWTH_CONFIG,
        recovery: Recovery::clean(0),
        held: None,
    }));
    file.append(&record(1, 1), false).unwrap();
    file.finish().unwrap();
}

#[test]
fn threads_share_a_file() {
    const THREADS: u64 = 8;
    const EACH: u64 = 100;
    let file = open(Disk::new(DISK_BYTES));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                for n in 0..EACH {
                    let number = 1 + thread * EACH + n;
                    let offset = file.append(&record(number, 1), n % 3 == 0).unwrap();
                    assert_eq!(file.backend.content(offset / BLOCK_BYTES), Some(number));
                }
            });
        }
    });
    let mut found = contents(&file);
    found.sort();
    assert_eq!(found, (1..=THREADS * EACH).collect::<Vec<_>>());
}

#[test]
fn a_wake_up_is_never_lost() {
    const ROUNDS: u64 = 20_000;
    // A lost wake-up stops all rounds; a busy machine only delays them.
    const STUCK: Duration = Duration::from_secs(60);
    let rounds = Arc::<AtomicU64>::default();
    let (ball, echo) = (Arc::<Waiter>::default(), Arc::<Waiter>::default());
    let (ended, end) = mpsc::channel();
    let (other_ball, other_echo) = (ball.clone(), echo.clone());
    let done = rounds.clone();
    std::thread::spawn(move || {
        for n in 0..ROUNDS {
            other_ball.next(true, 0);
            other_echo.answer(Ok(n));
        }
    });
    std::thread::spawn(move || {
        for n in 0..ROUNDS {
            ball.answer(Ok(n));
            assert!(matches!(echo.next(true, 0), News::Done(Ok(answer)) if answer == n));
            done.store(n + 1, Ordering::Relaxed);
        }
        ended.send(()).unwrap();
    });
    let mut before = 0;
    while let Err(error) = end.recv_timeout(STUCK) {
        let now = rounds.load(Ordering::Relaxed);
        assert!(now > before, "{error} after {now} rounds: a thread sleeps for ever");
        before = now;
    }
}

#[test]
fn on_a_device_that_writes_through_no_flush_is_shared() {
    for writes_through in [false, true] {
        let disk = Disk::new(DISK_BYTES);
        disk.append_behind_our_back(4);
        let file = Arc::new(Engine::new(Parts {
            backend: Arc::new(disk.0.clone()),
            journal: Err(String::new()),
            order: None,
            path: Path::new("device").into(),
            process: Process::current(),
            fs: FileSystems::default(),
            props: FileProps { is_device: true, writes_through, ..props(None) },
            alignment: Alignment { memory: 512, offset: 512, append: BLOCK_BYTES },
            growth_config: GROWTH_CONFIG,
            recovery: Recovery::clean(4 * BLOCK_BYTES),
            held: None,
        }));
        file.write_at(&record(7, 1), 2 * BLOCK_BYTES, true).unwrap();
        assert_eq!(file.stats().flushes, u64::from(!writes_through));
        assert_eq!(disk.crash(|_| false).content(2), Some(7));
    }
}
