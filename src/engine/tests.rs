//! The engine on the simulated disk, one thread: what it leaves on disk, step by step and after
//! every crash.

use super::core::{Core, Failure, FileProps, LeaderTask, Outbox, Work};
use super::process::{FileSystems, Process};
use super::recover::{self, Recover, Recovering};
use super::{Engine, Parts};
use crate::backend::Backend;
use crate::backend::journal::Journal;
use crate::backend::sim::{BLOCK_BYTES, Call, CrashChoice, Device, Settings, Sim};
use crate::buffer::{Buffer, Segment};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::rules::growth::{GrowthConfig, Planner, SpaceLimits};
use crate::rules::marker::{Identity, Marker, Prepared};
use crate::rules::merge::{Limits, SINGLE_APPENDS_MAX};
use crate::rules::policy::Tail;
use crate::rules::recovery::{Recovery, Verdict};
use crate::sys::journal::Order;
use crate::sys::probe::Alignment;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Recovers a file whose flushes no ledger counts.
fn recover_by(
    backend: &dyn Backend,
    identity: Identity,
    how: Recover,
) -> io::Result<(Recovery, Option<Marker>)> {
    recover::recover_by(Recovering { backend, identity, counted: &|flush| flush() }, how)
}

const SELF: Identity = Identity { inode: 1, birth_time: (1, 1) };
const DISK_BYTES: u64 = 64 << 20;

/// A disk with one file. Tests identify blocks by a number in their first eight bytes.
#[derive(Clone, Debug)]
struct Disk(Sim);

impl Disk {
    fn new(capacity_bytes: u64) -> Self {
        Self::with(Settings { capacity_bytes, ..Settings::default() })
    }

    /// A disk that allocates space only by writes, as for files with indirect blocks.
    fn without_allocation(capacity_bytes: u64) -> Self {
        Self::with(Settings { capacity_bytes, allocates: false, ..Settings::default() })
    }

    /// A disk that fills space with zeros by itself.
    fn that_writes_zeroes(capacity_bytes: u64) -> Self {
        Self::with(Settings { capacity_bytes, writes_zeroes: true, ..Settings::default() })
    }

    /// A disk whose file system may commit changes in any order.
    fn without_order(capacity_bytes: u64) -> Self {
        Self::with(Settings { capacity_bytes, commits_fast: true, ..Settings::default() })
    }

    fn with(settings: Settings) -> Self {
        let disk = Self::of(Device::new(0, settings));
        disk.0.sync_all().expect("nothing fails yet");
        disk
    }

    fn of(device: Arc<Device>) -> Self {
        let inode = device.find("file", true).expect("created");
        Self(Sim::new(device, inode))
    }

    fn fail(&self, call: Call, nth: u64, errno: i32) {
        self.0.device.fail(call, nth, errno);
    }

    fn die_after(&self, calls: u64) {
        self.0.device.die_after(calls);
    }

    fn calls(&self) -> u64 {
        self.0.device.calls()
    }

    /// The disk after a power cut now. `keep` says whether the newest state survives of the
    /// metadata (`None`), and of each block that was not flushed.
    fn crash(&self, mut keep: impl FnMut(Option<u64>) -> bool) -> Self {
        let mut choose = |piece, max| {
            let block = match piece {
                CrashChoice::Metadata => None,
                CrashChoice::Block(number) | CrashChoice::Sector(number) => Some(number),
            };
            if keep(block) { max } else { 0 }
        };
        Self::of(self.0.device.crash(&mut choose))
    }

    /// The number of a block; `None` beyond the size.
    fn content(&self, block: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let whole = (block + 1) * BLOCK_BYTES <= self.0.physical_size().unwrap();
        self.0.device.peek(self.0.inode, &mut bytes, block * BLOCK_BYTES);
        whole.then(|| u64::from_le_bytes(bytes))
    }

    fn is_marked(&self) -> bool {
        self.0.read_marker().unwrap().is_some()
    }

    /// Another program writes a block.
    fn write_behind_our_back(&self, block: u64) {
        self.0
            .write(&[Segment::of(&[0xFF; BLOCK_BYTES as usize])], block * BLOCK_BYTES, true)
            .unwrap();
    }

    /// Another program writes `blocks` blocks at the end.
    fn append_behind_our_back(&self, blocks: u64) {
        let bytes = vec![0xFF; (blocks * BLOCK_BYTES) as usize];
        self.0.write(&[Segment::of(&bytes)], self.0.physical_size().unwrap(), false).unwrap();
        self.0.sync_all().unwrap();
    }
}

/// An open file, and the disk below it.
#[derive(Clone)]
struct SimFile {
    engine: Arc<Engine>,
    backend: Disk,
}

impl std::ops::Deref for SimFile {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Arc<Engine> {
        &self.engine
    }
}

const GROWTH_CONFIG: GrowthConfig = GrowthConfig {
    cap_bytes: 1 << 20,
    capacity_bytes: None,
    unit_bytes: BLOCK_BYTES,
    low_water_quarters: 2,
};

fn props(prepared: Option<Prepared>) -> FileProps {
    FileProps {
        tail: Tail::Rewrite,
        identity: SELF,
        limits: Limits { bytes_max: 1 << 20, segments_max: 1024 },
        append_unit: BLOCK_BYTES,
        offset_unit: 512,
        is_device: false,
        writes_through: false,
        without_journal: false,
        overwrites_in_place: true,
        prepared,
        epoch: 0,
    }
}

fn open_on(disk: Disk, prepared: Option<Prepared>, fs: FileSystems) -> Result<SimFile, ErrorKind> {
    open_as(disk, props(prepared), fs)
}

fn open_as(disk: Disk, props: FileProps, fs: FileSystems) -> Result<SimFile, ErrorKind> {
    open_in(disk, props, fs, None)
}

fn open_in(
    disk: Disk,
    props: FileProps,
    fs: FileSystems,
    journal: Option<Arc<dyn Journal>>,
) -> Result<SimFile, ErrorKind> {
    let order = recover_by(&disk.0, SELF, Recover::Truncate);
    let (recovery, held) = order.map_err(|error| crate::os_error::kind(&error))?;
    if let Verdict::ModifiedExternally(why) = recovery.verdict {
        return Err(ErrorKind::ModifiedExternally(why));
    }
    let engine = Engine::new(Parts {
        backend: Arc::new(disk.0.clone()),
        journal: journal.ok_or_else(String::new),
        order: disk.0.device.commits_in_order().then_some(Order::ALWAYS),
        path: Path::new("simulated").into(),
        process: Process::current(),
        fs,
        props,
        alignment: Alignment { memory: 512, offset: 512, append: BLOCK_BYTES },
        growth_config: GROWTH_CONFIG,
        recovery,
        held,
    });
    Ok(SimFile { engine: Arc::new(engine), backend: disk })
}

fn open(disk: Disk) -> SimFile {
    open_on(disk, Some(Prepared::Unwritten), FileSystems::default()).expect("in order")
}

fn record(number: u64, blocks: u64) -> Buffer {
    let mut buffer = Buffer::zeroed((blocks * BLOCK_BYTES) as usize);
    for (n, block) in buffer.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        block[..8].copy_from_slice(&(number + n as u64).to_le_bytes());
    }
    buffer
}

fn contents(file: &SimFile) -> Vec<u64> {
    (0..file.len() / BLOCK_BYTES)
        .map(|n| file.backend.content(n).expect("inside the file"))
        .collect()
}

#[test]
fn appends_stand_one_behind_the_other_and_close_truncates() {
    let file = open(Disk::new(DISK_BYTES));
    assert_eq!(file.append(&record(1, 1), false), Ok(0));
    assert_eq!(file.append(&record(2, 3), true), Ok(BLOCK_BYTES));
    assert_eq!(file.append(&record(5, 1), false), Ok(4 * BLOCK_BYTES));
    assert_eq!(contents(&file), [1, 2, 3, 4, 5]);
    assert!(file.backend.is_marked());
    file.finish().unwrap();
    assert!(!file.backend.is_marked());
    assert_eq!(file.backend.content(5), None, "space grown ahead is given back");
}

#[test]
fn a_short_write_is_resumed() {
    let file = open(Disk::with(Settings {
        capacity_bytes: DISK_BYTES,
        short_one_in: 1,
        ..Settings::default()
    }));
    file.append(&record(1, 7), true).unwrap();
    assert_eq!(contents(&file), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn reads_end_where_the_file_does() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 2), false).unwrap();
    let mut into = Buffer::zeroed(4 * BLOCK_BYTES as usize);
    assert_eq!(file.read_at(&mut into, BLOCK_BYTES), Ok(BLOCK_BYTES as usize));
    assert_eq!(file.read_at(&mut into, 2 * BLOCK_BYTES), Ok(0));
    assert_eq!(file.read_at(&mut into, 1 << 40), Ok(0));
}

#[test]
fn a_full_disk_fails_appends_without_a_hole_until_space_is_freed() {
    let file = open(Disk::new(16 * BLOCK_BYTES));
    for number in 1..=16 {
        file.append(&record(number, 1), false).unwrap();
    }
    let error = file.append(&record(17, 1), false).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoSpace(libc::ENOSPC));
    assert_eq!(file.len(), 16 * BLOCK_BYTES);
    file.set_len(10 * BLOCK_BYTES).unwrap();
    assert_eq!(file.append(&record(11, 6), false), Ok(10 * BLOCK_BYTES));
    assert!(file.append(&record(17, 1), false).is_err());
    assert_eq!(contents(&file), (1..=16).collect::<Vec<_>>());
}

#[test]
fn zeros_that_find_no_space_are_taken_back_and_fewer_are_tried() {
    let sim = Disk::without_allocation(16 * BLOCK_BYTES);
    let file = open_on(sim, Some(Prepared::Zeroed), FileSystems::default()).unwrap();
    for number in 1..=16 {
        file.append(&record(number, 1), false).unwrap();
    }
    assert_eq!(
        *file.append(&record(17, 1), false).unwrap_err().kind(),
        ErrorKind::NoSpace(libc::ENOSPC)
    );
    assert_eq!(
        file.backend.0.physical_size().unwrap(),
        16 * BLOCK_BYTES,
        "what did not fit is taken back"
    );
    file.finish().unwrap();
    assert_eq!(contents(&file), (1..=16).collect::<Vec<_>>());
}

#[test]
fn zeros_by_the_device_leave_what_was_acknowledged() {
    let sim = Disk::that_writes_zeroes(DISK_BYTES);
    let file = open_on(sim, Some(Prepared::Zeroed), FileSystems::default()).unwrap();
    for first in (1..=320).step_by(16) {
        file.append(&record(first, 16), true).unwrap();
        assert_eq!(contents(&file), (1..first + 16).collect::<Vec<_>>());
    }
    assert!(file.stats().growths > 1, "it grew beside nothing");
    file.finish().unwrap();
    assert_eq!(contents(&file), (1..=320).collect::<Vec<_>>());
}

#[test]
fn a_large_append_that_does_not_fit_leaves_room_for_a_small_one() {
    let file = open(Disk::new(16 * BLOCK_BYTES));
    assert!(file.append(&record(1, 20), false).is_err());
    assert_eq!(file.append(&record(1, 2), false), Ok(0));
}

#[test]
fn without_growth_ahead_a_full_disk_leaves_the_file_as_it_was() {
    let file = open_on(Disk::new(4 * BLOCK_BYTES), None, FileSystems::default()).unwrap();
    file.append(&record(1, 3), false).unwrap();
    let error = file.append(&record(4, 2), false).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoSpace(libc::ENOSPC));
    assert_eq!(file.len(), 3 * BLOCK_BYTES);
    assert_eq!(file.append(&record(4, 1), false), Ok(3 * BLOCK_BYTES));
    assert!(!file.backend.is_marked());
}

#[test]
fn a_failed_append_ends_appending_until_set_len() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    file.backend.fail(Call::Write, 0, libc::EIO);
    let first = file.append(&record(2, 1), false).unwrap_err();
    assert_eq!(*first.kind(), ErrorKind::Os(libc::EIO));
    let second = file.append(&record(3, 1), false).unwrap_err();
    assert!(matches!(second.kind(), ErrorKind::AppendEnded(_)), "{second}");
    file.sync_data().expect("what was acknowledged can be made stable");
    assert_eq!(file.len(), BLOCK_BYTES);
    file.set_len(file.len()).unwrap();
    assert_eq!(file.append(&record(4, 1), false), Ok(BLOCK_BYTES));
    file.finish().unwrap();
    assert_eq!(contents(&file), [1, 4]);
}

/// Two faults in one growth: the size stays above the one that the core knows.
fn leave_a_growth_behind() -> SimFile {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    // The next growth ends with a marker that fails, and a truncate that fails.
    file.backend.fail(Call::Marker, 1, libc::EIO);
    file.backend.fail(Call::Allocate, 1, libc::EIO);
    let large = 4 * GROWTH_CONFIG.cap_bytes / BLOCK_BYTES;
    assert_eq!(*file.append(&record(2, large), true).unwrap_err().kind(), ErrorKind::Os(libc::EIO));
    assert!(physical_blocks(&file) * BLOCK_BYTES > file.lock().sizes().physical);
    file
}

#[test]
fn a_growth_that_could_not_be_taken_back_is_taken_back_by_the_next() {
    let file = leave_a_growth_behind();
    for number in 2..=600 {
        file.append(&record(number, 1), true).unwrap();
    }
    let after = open(file.backend.crash(|_| true));
    assert_eq!(contents(&after), (1..=600).collect::<Vec<_>>());
    file.finish().unwrap();
    assert_eq!(physical_blocks(&file), 600);
}

#[test]
fn a_growth_that_could_not_be_taken_back_is_taken_back_by_close() {
    let file = leave_a_growth_behind();
    file.finish().unwrap();
    assert_eq!((physical_blocks(&file), file.backend.is_marked()), (1, false));
}

#[test]
fn a_growth_that_could_not_be_taken_back_is_not_announced_over() {
    let file = leave_a_growth_behind();
    let mut appended = 1;
    // No later growth can be taken back either.
    (0..100).for_each(|_| file.backend.fail(Call::Allocate, 0, libc::EPERM));
    while file.append(&record(appended + 1, 1), true).is_ok() {
        appended += 1;
    }
    let after = open(file.backend.crash(|_| true));
    assert_eq!(contents(&after), (1..=appended).collect::<Vec<_>>());
}

#[test]
fn flush_error_wedges_every_file_of_the_file_system() {
    let fs = FileSystems::default();
    let one = open_on(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), fs.clone()).unwrap();
    let other = open_on(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), fs).unwrap();
    let elsewhere = open(Disk::new(DISK_BYTES));
    for file in [&one, &other, &elsewhere] {
        file.append(&record(1, 1), false).unwrap();
    }
    one.backend.fail(Call::Flush, 0, libc::EIO);
    for file in [&one, &one, &other] {
        let error = file.sync_data().unwrap_err();
        let ErrorKind::Wedged(cause) = error.kind() else { panic!("{error}") };
        assert_eq!(*cause.kind(), ErrorKind::Os(libc::EIO), "the first cause is told");
        assert!(matches!(
            file.append(&record(2, 1), false).unwrap_err().kind(),
            ErrorKind::Wedged(_)
        ));
    }
    for file in [&one, &other] {
        assert!(matches!(file.finish().unwrap_err().kind(), ErrorKind::Wedged(_)));
        assert!(file.backend.is_marked(), "the next open has to recover");
    }
    elsewhere.sync_data().unwrap();
}

#[test]
fn a_durable_append_whose_flush_fails_is_not_acknowledged() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), false).unwrap();
    file.backend.fail(Call::Flush, 0, libc::EIO);
    assert!(file.append(&record(2, 1), true).is_err());
}

#[test]
fn a_durable_append_makes_plain_ones_below_it_stable() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), false).unwrap();
    file.append(&record(2, 1), true).unwrap();
    let disk = file.backend.crash(|_| false);
    assert_eq!((disk.content(0), disk.content(1)), (Some(1), Some(2)));
}

#[test]
fn a_write_far_past_the_end_leaves_a_hole() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), false).unwrap();
    file.write_at(&record(9, 1), 9000 * BLOCK_BYTES, true).unwrap();
    assert_eq!(file.len(), 9001 * BLOCK_BYTES);
    assert!(file.stats().grown_bytes < 9000 * BLOCK_BYTES);
    // The defect: the hole was charged as space ahead, and other files had none.
    assert!(*file.charged.lock() < 9000 * BLOCK_BYTES);
    assert_eq!(file.append(&record(2, 1), true), Ok(9001 * BLOCK_BYTES));
    let after = open(file.backend.crash(|_| false));
    assert_eq!(after.len(), 9002 * BLOCK_BYTES);
    assert_eq!(after.backend.content(9000), Some(9));
}

/// The defect: after a refused write behind the end, appends asked for its marker as well, and
/// failed although they had space.
#[test]
fn a_refused_write_past_the_end_stopped_appends_with_space() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    // One for the write, and all that appends would ask for.
    (0..4).for_each(|_| file.backend.fail(Call::Marker, 0, libc::ENOSPC));
    let error = file.write_at(&record(9, 1), 9000 * BLOCK_BYTES, true).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoSpace(libc::ENOSPC));
    let waits = file.stats().growth_waits;
    assert_eq!(file.append(&record(2, 1), true), Ok(BLOCK_BYTES));
    assert_eq!(file.stats().growth_waits, waits);
    assert_eq!(contents(&open(file.backend.crash(|_| true))), [1, 2]);
}

/// The defect: a hole counted that a failed growth did not leave. The space ahead was not charged.
#[test]
fn a_failed_growth_left_the_hole_that_it_announced() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    let ahead = file.lock().grown_ahead();
    assert!(ahead > 0);
    // The second marker of the growth.
    file.backend.fail(Call::Marker, 1, libc::ENOSPC);
    file.write_at(&record(9, 1), 9000 * BLOCK_BYTES, true).unwrap_err();
    assert_eq!(file.lock().grown_ahead(), ahead);
}

#[test]
fn zeroed_space_leaves_the_end_to_the_caller_until_it_truncates() {
    let file =
        open_on(Disk::new(DISK_BYTES), Some(Prepared::Zeroed), FileSystems::default()).unwrap();
    file.append(&record(1, 1), true).unwrap();
    for _ in 0..2 {
        let again =
            open_on(file.backend.crash(|_| true), Some(Prepared::Zeroed), FileSystems::default())
                .unwrap();
        assert_eq!(again.recovery.verdict, Verdict::EndUnknown);
        assert_eq!(again.recovery.floor, 0);
        assert!(again.len() > BLOCK_BYTES && contents(&again)[1] == 0);
        again.finish().unwrap();
        assert!(again.backend.is_marked(), "nobody said where the file ends");
    }
    let last =
        open_on(file.backend.crash(|_| true), Some(Prepared::Zeroed), FileSystems::default())
            .unwrap();
    last.set_len(BLOCK_BYTES).unwrap();
    assert!(!last.backend.is_marked());
    assert_eq!(contents(&last), [1]);
}

#[test]
fn a_file_grown_by_another_program_since_is_doubtful() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    let disk = file.backend.crash(|_| true);
    disk.append_behind_our_back(1);
    let before = disk.calls();
    let opened = open_on(disk.clone(), Some(Prepared::Unwritten), FileSystems::default());
    assert!(matches!(opened, Err(ErrorKind::ModifiedExternally(_))));
    assert_eq!(disk.calls() - before, 1, "all it did was to sync");
}

#[test]
fn close_does_not_truncate_a_file_that_another_program_grew() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    file.backend.append_behind_our_back(1);
    assert!(matches!(file.finish().unwrap_err().kind(), ErrorKind::ModifiedExternally(_)));
    assert!(file.backend.is_marked());
}

#[test]
fn close_keeps_what_another_program_wrote_into_the_space_ahead() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    file.backend.write_behind_our_back(9);
    assert!(matches!(file.finish().unwrap_err().kind(), ErrorKind::ModifiedExternally(_)));
    assert!(!file.backend.is_marked());
    assert_eq!(file.backend.0.physical_size().unwrap(), 10 * BLOCK_BYTES);
    let again = open(file.backend.clone());
    let mut theirs = vec![0; BLOCK_BYTES as usize];
    again.read_at(&mut theirs, 9 * BLOCK_BYTES).unwrap();
    assert_eq!((again.len(), &theirs[..]), (10 * BLOCK_BYTES, &[0xFF; BLOCK_BYTES as usize][..]));
    assert_eq!(again.finish(), Ok(()));
}

#[test]
fn close_truncates_what_our_own_failed_writes_left() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    file.backend.fail(Call::Write, 1, libc::EIO);
    file.append(&record(2, 1), false).unwrap();
    assert!(file.write_at(&record(3, 4), 8 * BLOCK_BYTES, false).is_err());
    // A part of it that the disk may have written before it failed.
    file.backend.write_behind_our_back(11);
    assert_eq!(file.finish(), Ok(()));
    assert_eq!(file.backend.0.physical_size().unwrap(), 2 * BLOCK_BYTES);
}

#[test]
fn close_truncates_what_a_recycled_file_held() {
    let file = open(Disk::new(DISK_BYTES));
    for number in 1..=20 {
        file.append(&record(number, 1), false).unwrap();
    }
    file.recycle().unwrap();
    file.append(&record(100, 1), true).unwrap();
    assert_eq!(file.finish(), Ok(()));
    assert_eq!(file.backend.0.physical_size().unwrap(), BLOCK_BYTES);
}

#[test]
fn a_failed_set_len_shows_no_grown_space_after_a_crash() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    file.backend.fail(Call::Allocate, 0, libc::EFBIG);
    assert!(file.set_len(1 << 40).is_err());
    assert_eq!(file.append(&record(2, 1), true), Ok(BLOCK_BYTES));
    assert_eq!(open(file.backend.crash(|_| true)).len(), 2 * BLOCK_BYTES);
}

#[test]
fn a_crash_during_an_extending_set_len_leaves_the_old_or_the_new_length() {
    for calls in 0.. {
        let file = open(Disk::new(DISK_BYTES));
        file.append(&record(1, 1), true).unwrap();
        file.backend.die_after(calls);
        let done = file.set_len(60 << 20).is_ok();
        for keep in [false, true] {
            let len = open(file.backend.crash(|_| keep)).len();
            assert!(len == BLOCK_BYTES || len == 60 << 20, "{calls} calls: {len}");
        }
        if done {
            break;
        }
    }
}

/// The marker that announced the truncate had the new length as its base. The hole below the
/// records ended the file there.
#[test]
fn a_crash_during_a_set_len_below_a_hole_left_a_third_length() {
    for calls in 0.. {
        let file = open(Disk::new(DISK_BYTES));
        file.append(&record(1, 2), true).unwrap();
        file.set_len(8 * BLOCK_BYTES).unwrap();
        file.append(&record(2, 1), true).unwrap();
        file.backend.die_after(calls);
        let done = file.set_len(BLOCK_BYTES).is_ok();
        for keep in [false, true] {
            let blocks = open(file.backend.crash(|_| keep)).len() / BLOCK_BYTES;
            assert!(blocks == 1 || blocks == 9, "{calls} calls: {blocks} blocks");
        }
        if done {
            break;
        }
    }
}

#[test]
fn a_growth_that_fails_half_way_is_taken_back() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    let size = file.backend.0.physical_size();
    assert!(file.append(&Buffer::zeroed(DISK_BYTES as usize + 4096), true).is_err());
    assert_eq!(file.backend.0.physical_size().ok(), size.ok());
    file.finish().unwrap();
    assert_eq!(contents(&file), [1]);
}

#[test]
fn a_failed_zeroing_is_taken_back() {
    let file =
        open_on(Disk::new(DISK_BYTES), Some(Prepared::Zeroed), FileSystems::default()).unwrap();
    file.backend.fail(Call::Write, 0, libc::EIO);
    assert!(file.append(&record(1, 1), true).is_err());
    file.finish().unwrap();
    assert_eq!(file.len(), 0);
}

#[test]
fn a_read_only_file_system_found_by_growth_wedges() {
    let file = open(Disk::new(DISK_BYTES));
    file.backend.fail(Call::Marker, 0, libc::EROFS);
    assert!(file.append(&record(1, 1), true).is_err());
    assert!(matches!(file.sync_data().unwrap_err().kind(), ErrorKind::Wedged(_)));
}

#[test]
fn an_empty_append_returns_the_length() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 2), false).unwrap();
    assert_eq!(file.append(&[], true), Ok(2 * BLOCK_BYTES));
}

#[test]
fn a_marker_that_cannot_be_read_is_doubtful() {
    let sim = Disk::new(DISK_BYTES);
    sim.0.write_marker(b"nonsense").unwrap();
    assert!(open_on(sim, Some(Prepared::Unwritten), FileSystems::default()).is_err());
}

#[test]
fn close_beside_a_failed_flush_is_not_a_success() {
    let fs = FileSystems::default();
    let file = open_on(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), fs.clone()).unwrap();
    file.append(&record(1, 1), false).unwrap();
    let (begun, wait) = std::sync::mpsc::channel();
    let cause = Arc::new(file.error(Operation::Flush, None, ErrorKind::Os(libc::EIO)));
    let other = std::thread::spawn(move || {
        let fails = || {
            begun.send(()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(100));
            Err(crate::os_error::of_flush(std::io::Error::from_raw_os_error(libc::EIO)))
        };
        fs.flushing(fails, |_| cause)
    });
    wait.recv().unwrap();
    let closed = file.finish();
    assert!(other.join().unwrap().is_err());
    assert!(matches!(closed.unwrap_err().kind(), ErrorKind::Wedged(_)));
    assert!(file.backend.is_marked());
}

#[test]
fn growth_leaves_alone_what_another_program_appended() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    let end = file.lock().sizes().physical / BLOCK_BYTES;
    file.backend.append_behind_our_back(1);
    let error = (2..).find_map(|number| file.append(&record(number, 1), true).err()).unwrap();
    assert!(matches!(error.kind(), ErrorKind::ModifiedExternally(_)), "{error}");
    assert!(file.finish().is_err());
    assert_eq!(file.backend.content(end), Some(u64::MAX));
}

#[test]
fn a_file_that_finds_no_space_for_its_marker_is_closed_all_the_same() {
    for prepared in [Prepared::Unwritten, Prepared::Zeroed] {
        let file = open_on(Disk::new(DISK_BYTES), Some(prepared), FileSystems::default()).unwrap();
        file.append(&record(1, 3), true).unwrap();
        file.backend.fail(Call::Marker, 0, libc::ENOSPC);
        file.finish().unwrap();
        assert_eq!((physical_blocks(&file), file.backend.is_marked()), (3, false));
    }
}

/// The defect: a truncate below the base of the marker failed on a full disk, and freed nothing.
#[test]
fn a_truncate_below_the_base_found_no_space_for_its_marker() {
    for cut in 0..16 {
        let file = open(Disk::new(DISK_BYTES));
        file.append(&record(1, 1), true).unwrap();
        file.finish().unwrap();
        let file = open(file.backend.crash(|_| true));
        file.append(&record(2, 1), true).unwrap();
        file.backend.fail(Call::Marker, 0, libc::ENOSPC);
        file.backend.die_after(cut);
        let truncated = file.set_len(0);
        assert!(truncated.is_ok() || cut < 15, "after {cut} calls: {truncated:?}");
        for kept in [false, true] {
            let found = contents(&open(file.backend.crash(|_| kept)));
            let is_whole = found == [1, 2] && truncated.is_err();
            assert!(is_whole || found.is_empty(), "after {cut} calls: {found:?}, {truncated:?}");
        }
    }
}

#[test]
fn a_file_that_finds_no_space_for_its_marker_is_recovered_all_the_same() {
    for cut in 0..8 {
        let file = open(Disk::new(DISK_BYTES));
        file.append(&record(1, 1), true).unwrap();
        file.append(&record(2, 1), true).unwrap();
        let disk = file.backend.crash(|_| true);
        disk.fail(Call::Marker, 0, libc::ENOSPC);
        disk.die_after(cut);
        let recovered = recover_by(&disk.0, SELF, Recover::Truncate);
        assert_eq!(recovered.is_ok(), cut == 7, "after {cut} calls");
        for kept in [false, true] {
            assert_eq!(contents(&open(disk.crash(|_| kept))), [1, 2], "after {cut} calls");
        }
    }
}

#[test]
fn a_write_that_is_not_permitted_fails_alone() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    file.backend.fail(Call::Write, 0, libc::EPERM);
    let error = file.write_at(&record(2, 1), 0, true).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Os(libc::EPERM));
    assert_eq!(file.append(&record(2, 1), true), Ok(BLOCK_BYTES));
}

#[test]
fn a_file_whose_marker_may_not_be_written_works_without_growth() {
    for errno in [libc::EOPNOTSUPP, libc::EPERM, libc::EACCES] {
        let file = open(Disk::new(DISK_BYTES));
        file.backend.fail(Call::Marker, 0, errno);
        assert_eq!(file.append(&record(1, 2), true), Ok(0));
        assert_eq!((file.growth(), physical_blocks(&file)), (crate::Growth::None, 2));
    }
}

/// A file whose growth is refused for good once it has grown, on a disk that dies after
/// `dies_after` calls. Returns the number of acknowledged records. Also returns the number of calls
/// before the first record without growth, and before the close ended.
fn end_growth(prepared: Prepared, dies_after: u64) -> (SimFile, u64, Option<u64>, Option<u64>) {
    let file = open_on(Disk::new(DISK_BYTES), Some(prepared), FileSystems::default()).unwrap();
    let begun = file.backend.calls();
    // The first step succeeds. The next step ahead is refused, and then the one that is needed.
    (0..2).for_each(|_| file.backend.fail(Call::Allocate, 1, libc::EPERM));
    file.backend.die_after(dies_after);
    let (mut durable, mut before, mut beyond) = (0, None, 0);
    while beyond < 4 {
        let calls = file.backend.calls() - begun;
        // Three blocks do not fill the grown space, so a part of it is given up.
        if file.append(&record(durable + 1, 3), true).is_err() {
            break;
        }
        durable += 3;
        if file.growth() == crate::Growth::None {
            before.get_or_insert(calls);
            beyond += 1;
        }
    }
    let done = file.finish().is_ok().then(|| file.backend.calls() - begun);
    (file, durable, before, done)
}

/// After a crash at each call, every durable record is found, and nothing is doubtful.
#[test]
fn a_crash_while_growth_ends_loses_nothing_acknowledged() {
    for prepared in [Prepared::Unwritten, Prepared::Zeroed] {
        let (_, _, before, done) = end_growth(prepared, 1 << 40);
        let (before, done) = (before.expect("it was refused"), done.expect("nothing else failed"));
        for cut in before..=done {
            let (file, durable, ..) = end_growth(prepared, cut);
            for keep in 0..4u64 {
                let disk = file.backend.crash(|block| match keep {
                    0 => false,
                    1 => true,
                    _ => block.is_none_or(|block| (block ^ cut) % 2 == keep % 2),
                });
                let at = format!("{prepared:?}, cut {cut} of {before}..{done}, keep {keep}");
                let opened = open_on(disk, Some(prepared), FileSystems::default());
                let found = contents(&opened.unwrap_or_else(|kind| panic!("{at}: {kind}")));
                let wanted: Vec<_> = (1..=durable).collect();
                assert_eq!(found.get(..durable as usize), Some(&wanted[..]), "{at}");
            }
        }
    }
}

#[test]
fn what_a_failed_append_left_is_truncated_by_close() {
    let disk =
        Disk::with(Settings { capacity_bytes: DISK_BYTES, short_one_in: 1, ..Settings::default() });
    let file = open_on(disk, None, FileSystems::default()).unwrap();
    file.append(&record(1, 2), true).unwrap();
    file.backend.fail(Call::Write, 1, libc::EDQUOT);
    file.backend.fail(Call::Allocate, 0, libc::EDQUOT);
    assert_eq!(
        *file.append(&record(2, 4), false).unwrap_err().kind(),
        ErrorKind::NoSpace(libc::EDQUOT)
    );
    assert!(physical_blocks(&file) > 2);
    file.finish().unwrap();
    assert_eq!(physical_blocks(&file), 2);
}

#[test]
fn a_set_len_that_cannot_remove_the_marker_has_cut_all_the_same() {
    let file = open(Disk::new(DISK_BYTES));
    for number in 1..=8 {
        file.append(&record(number, 1), true).unwrap();
    }
    file.backend.fail(Call::Marker, 1, libc::ENOSPC);
    assert!(file.set_len(2 * BLOCK_BYTES).is_err());
    assert_eq!(file.append(&record(3, 1), true), Ok(2 * BLOCK_BYTES));
    assert_eq!(contents(&open(file.backend.crash(|_| true))), [1, 2, 3]);
}

/// A core without an engine, of an empty file.
fn bare_core() -> Core<u32> {
    Core::new(0, props(Some(Prepared::Unwritten)), Planner::new(GROWTH_CONFIG), None)
}

const SPACE_LIMITS: SpaceLimits =
    SpaceLimits { free_bytes: 1 << 44, size_max: 1 << 44, granted_bytes: 1 << 40 };

fn run_grower(core: &mut Core<u32>, out: &mut Outbox<u32>) {
    while let Some(job) = core.next_growth(SPACE_LIMITS, out) {
        let plan = job.plan.expect("nothing else to do than to grow");
        let marker = core.announce(plan, plan.to, SPACE_LIMITS);
        core.on_marked(marker);
        core.on_grown(Ok(plan.to), out);
    }
}

/// It failed with the large one, which had asked before.
#[test]
fn a_small_write_lacked_the_space_of_a_large_one() {
    const SMALL: u64 = 1 << 20;
    const LARGE: u64 = 1 << 40;
    let mut core = bare_core();
    let data = record(1, 1);
    let mut out = Outbox::default();
    core.write(1, Segment::of(&data), LARGE, false, &mut out);
    let grow = |core: &mut Core<u32>, out: &mut Outbox<u32>| {
        let job = core.next_growth(SPACE_LIMITS, out).expect("an operation needs space");
        job.plan.expect("nothing else to do than to grow").to
    };
    assert!(grow(&mut core, &mut out) > LARGE);
    core.write(2, Segment::of(&data), SMALL, false, &mut out);
    core.on_grown(Err(ErrorKind::NoSpace(libc::ENOSPC)), &mut out);
    assert!(out.outcomes.is_empty(), "nothing was tried for the small one");
    let to = grow(&mut core, &mut out);
    assert!((SMALL + 1..LARGE).contains(&to), "{to}");
    core.on_grown(Ok(to), &mut out);
    for (_, call) in std::mem::take(&mut out.calls) {
        core.on_called(call, &mut out);
    }
    assert_eq!(out.requests.len(), 1, "the small one");
    assert!(grow(&mut core, &mut out) > LARGE);
    core.on_grown(Err(ErrorKind::NoSpace(libc::ENOSPC)), &mut out);
    assert_eq!(out.outcomes.len(), 1, "the large one");
}

#[test]
fn a_need_ends_with_its_operation() {
    let mut core = bare_core();
    let data = record(1, 1);
    let mut out = Outbox::default();
    core.append(1, Segment::of(&data), false, &mut out);
    run_grower(&mut core, &mut out);
    for (_, call) in std::mem::take(&mut out.calls) {
        core.on_called(call, &mut out);
    }
    let append = out.requests.pop().expect("there is space").id;
    core.write(2, Segment::of(&data), 1 << 40, false, &mut out);
    let kind = ErrorKind::Os(libc::EIO);
    let cause =
        Arc::new(Error::new(Operation::Write, &Path::new("log").into(), None, kind.clone()));
    core.on_completed(append, Err(Failure { kind, cause, wedges: false }), &mut out);
    assert_eq!(out.outcomes.len(), 2, "both are refused");
    assert!(core.next_growth(SPACE_LIMITS, &mut out).is_none() && core.pause_growth());
    let marker = core.recycling_marker();
    core.on_marked(marker);
    core.recycle(0);
    core.resume_growth();
    core.append(3, Segment::of(&data), false, &mut Outbox::default());
    run_grower(&mut core, &mut Outbox::default());
    assert!(core.sizes().physical < 1 << 30, "grown for nobody: {:?}", core.sizes());
}

/// The operation that was just answered comes back, and three wait already.
#[test]
fn a_leader_expects_those_that_were_answered_and_those_that_wait() {
    let (mut core, mut out, data) = (bare_core(), Outbox::default(), record(1, 1));
    let append = |core: &mut Core<u32>, token, out: &mut Outbox<u32>| {
        core.append(token, Segment::of(&data), false, out);
    };
    append(&mut core, 1, &mut out);
    run_grower(&mut core, &mut out);
    core.on_called(LeaderTask::Extend, &mut out);
    let first = out.requests[0].id;
    // Some go out alone, side by side. Three more wait.
    let beside = SINGLE_APPENDS_MAX as u32;
    (2..=beside + 3).for_each(|token| append(&mut core, token, &mut out));
    core.on_completed(first, Ok(()), &mut out);
    assert_eq!(out.outcomes.len(), 1);
    assert!(!core.has_gathered());
    append(&mut core, 1, &mut out);
    assert!(core.has_gathered());
    core.on_called(LeaderTask::Extend, &mut out);
    let last = out.requests.last().expect("the group went out");
    let Work::Write { segments, .. } = &last.work else { panic!("a write") };
    assert_eq!(segments.len(), 4);
}

#[test]
fn force_leaves_a_recycled_file_to_its_program() {
    let file = open(Disk::new(DISK_BYTES));
    for number in 1..=20 {
        file.append(&record(number, 1), false).unwrap();
    }
    file.recycle().unwrap();
    file.append(&record(100, 1), true).unwrap();
    let disk = file.backend.crash(|_| true);
    disk.append_behind_our_back(1);
    let (found, _) = recover_by(&disk.0, SELF, Recover::Force).unwrap();
    assert!(matches!(found.verdict, Verdict::ModifiedExternally(_)), "{found:?}");
    assert_eq!((found.floor, found.ceiling), (0, found.physical_size), "old records tell no end");
    let again = open(disk);
    assert_eq!(again.recovery.verdict, Verdict::EndUnknown);
    assert_eq!(again.recovery.floor, 0);
}

#[test]
fn a_write_beyond_all_limits_refuses_no_append() {
    let mut core = bare_core();
    let data = record(1, 1);
    let mut out = Outbox::default();
    core.write(1, Segment::of(&data), 1 << 50, false, &mut out);
    core.append(2, Segment::of(&data), false, &mut out);
    assert!(core.next_growth(SPACE_LIMITS, &mut out).is_some(), "the append needs space");
    assert_eq!(out.outcomes[..], [(1, Err(ErrorKind::NoSpace(libc::EFBIG)))]);
}

/// The life of a file whose block `n` holds the number `n + 1`. Returns the number of blocks that
/// were acknowledged as durable.
fn live(file: &Arc<Engine>) -> u64 {
    let mut durable = 0;
    let mut number = 1;
    for step in 0..40u64 {
        let blocks = 1 + step % 3;
        if file.append(&record(number, blocks), step % 2 == 0).is_err() {
            break;
        }
        number += blocks;
        if step % 2 == 0 {
            durable = number - 1;
        }
    }
    durable
}

/// Makes a disk of this capacity in bytes.
type NewDisk = fn(u64) -> Disk;

/// A crash at every call, with several choices of the unflushed data that survives, and a crash at
/// every call of the recovery that follows.
#[test]
fn a_crash_in_any_window_loses_nothing_acknowledged_and_shows_nothing_else() {
    let disks: [(NewDisk, Prepared); 4] = [
        (Disk::new, Prepared::Unwritten),
        (Disk::new, Prepared::Zeroed),
        (Disk::that_writes_zeroes, Prepared::Zeroed),
        (Disk::without_allocation, Prepared::Zeroed),
    ];
    for (disk, prepared) in disks {
        let whole = open_on(disk(DISK_BYTES), Some(prepared), FileSystems::default()).unwrap();
        live(&whole);
        whole.finish().unwrap();
        for cut in 0..whole.backend.calls() {
            for markers_find_space in [true, false] {
                crash_at(cut, disk(DISK_BYTES), prepared, markers_find_space);
            }
        }
    }
}

/// Without `markers_find_space`, the first marker of the close finds no space.
fn crash_at(cut: u64, sim: Disk, prepared: Prepared, markers_find_space: bool) {
    sim.die_after(cut);
    let fs = FileSystems::default();
    let file = open_on_dying(sim, prepared, fs);
    let Some(file) = file else { return };
    let durable = live(&file);
    if !markers_find_space {
        file.backend.fail(Call::Marker, 0, libc::ENOSPC);
    }
    let _ = file.finish();
    for choice in 0..8u64 {
        let mut random = choice.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ cut;
        let disk = file.backend.crash(|_| match choice {
            0 => false,
            1 => true,
            _ => {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                random >> 63 == 1
            }
        });
        let at = format!(
            "cut {cut} choice {choice} {prepared:?}, markers find space: {markers_find_space}"
        );
        check_after_crash(&disk, durable, prepared, &at);
    }
}

/// Opening a new file syncs it. A disk that is dead by then has no file.
fn open_on_dying(sim: Disk, prepared: Prepared, fs: FileSystems) -> Option<SimFile> {
    let works = sim.0.sync_all().is_ok();
    works.then(|| open_on(sim, Some(prepared), fs).ok()).flatten()
}

fn check_after_crash(disk: &Disk, durable: u64, prepared: Prepared, at: &str) {
    for again in 0.. {
        let image = disk.crash(|_| true);
        image.die_after(again);
        let died = recover_by(&image.0, SELF, Recover::Truncate).is_err();
        let image = image.crash(|n| n.is_none() && again % 2 == 0);
        check_recovered(image, durable, prepared, &format!("{at}, recovery call {again}"));
        if !died {
            break;
        }
    }
}

fn check_recovered(image: Disk, durable: u64, prepared: Prepared, at: &str) {
    let file = open_on(image, Some(prepared), FileSystems::default())
        .unwrap_or_else(|kind| panic!("{at}: {kind}"));
    let contents = contents(&file);
    let end = contents.iter().position(|content| *content == 0).unwrap_or(contents.len());
    assert!(end as u64 >= durable, "{at}: {durable} acknowledged, {end} found");
    assert!(
        contents[..end].iter().zip(1..).all(|(found, wanted)| *found == wanted),
        "{at}: {contents:?}"
    );
    if prepared == Prepared::Unwritten {
        assert_eq!(end, contents.len(), "{at}: grown space shows");
    }
}

/// Distinguishes old content from the records of `live`, which are counted from 1.
const OLD: u64 = 1 << 32;

/// A closed file of `blocks` blocks of old content.
fn old_file(blocks: u64) -> Disk {
    let file = open(Disk::new(DISK_BYTES));
    for n in 0..blocks {
        file.append(&record(OLD + n, 1), false).unwrap();
    }
    file.finish().unwrap();
    file.backend.crash(|_| false)
}

fn recycled(blocks: u64) -> SimFile {
    let file = open(old_file(blocks));
    file.recycle().unwrap();
    file
}

fn physical_blocks(file: &SimFile) -> u64 {
    file.backend.0.physical_size().unwrap() / BLOCK_BYTES
}

#[test]
fn a_recycled_file_is_empty_and_keeps_its_space() {
    let file = recycled(20);
    assert_eq!((file.len(), physical_blocks(&file)), (0, 20));
    let mut into = Buffer::zeroed(BLOCK_BYTES as usize);
    assert_eq!(file.read_at(&mut into, 0), Ok(0));
    assert_eq!(file.append(&record(1, 2), true), Ok(0));
    assert_eq!(file.read_at(&mut into, 2 * BLOCK_BYTES), Ok(0));
    assert_eq!((contents(&file), physical_blocks(&file)), (vec![1, 2], 20));
    file.finish().unwrap();
    assert!(!file.backend.is_marked());
    assert_eq!(file.backend.content(2), None, "old content is given back");
}

#[test]
fn a_recycled_file_grows_when_its_space_is_used_up() {
    let file = recycled(20);
    for number in 1..=20 {
        file.append(&record(number, 1), true).unwrap();
        assert_eq!(physical_blocks(&file), 20, "block {number}");
    }
    for number in 21..=60 {
        file.append(&record(number, 1), true).unwrap();
    }
    assert!(physical_blocks(&file) > 60);
    let after = open(file.backend.crash(|_| true));
    assert_eq!(
        contents(&after),
        (1..=60).collect::<Vec<_>>(),
        "the extents tell again where it ends"
    );
}

#[test]
fn a_file_is_charged_with_what_it_has_grown_ahead_alone() {
    let file = open(old_file(20));
    let charged = |file: &SimFile| *file.charged.lock();
    for number in 0..300 {
        file.append(&record(number, 1), false).unwrap();
        assert!(charged(&file) >= file.lock().grown_ahead(), "block {number}");
        // The last step was taken with half a step left.
        assert!(charged(&file) <= 3 << 19, "block {number}: a step that was not taken");
    }
    file.recycle().unwrap();
    assert_eq!((charged(&file), file.lock().grown_ahead()), (0, 0));
    file.append(&record(1, 1), false).unwrap();
    assert_eq!(charged(&file), 0);
}

#[test]
fn a_gap_over_old_content_is_refused() {
    let file = recycled(20);
    file.append(&record(1, 1), false).unwrap();
    let error = file.write_at(&record(9, 1), 2 * BLOCK_BYTES, true).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
    let far = file.write_at(&record(9, 1), 50 * BLOCK_BYTES, false).unwrap_err();
    assert!(matches!(far.kind(), ErrorKind::Unsupported(_)), "{far}");
    file.write_at(&record(1, 3), 0, false).expect("no gap");
    file.append(&record(4, 17), false).unwrap();
    file.write_at(&record(26, 1), 25 * BLOCK_BYTES, true).expect("nothing old is left out");
    let wanted: Vec<_> = (1..=20).chain([0; 5]).chain([26]).collect();
    assert_eq!(contents(&file), wanted);
    assert_eq!(open(file.backend.crash(|_| false)).recovery.verdict, Verdict::EndUnknown);
}

#[test]
fn set_len_beyond_the_end_of_a_recycled_file_shows_zeros() {
    let file = recycled(20);
    file.append(&record(1, 1), true).unwrap();
    file.set_len(8 * BLOCK_BYTES).unwrap();
    assert_eq!(contents(&file), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(!file.backend.is_marked());
}

#[test]
fn a_crash_during_an_extending_set_len_of_a_recycled_file_shows_nothing_old() {
    for calls in 0.. {
        let file = recycled(20);
        file.append(&record(1, 1), true).unwrap();
        file.backend.die_after(calls);
        let done = file.set_len(8 * BLOCK_BYTES).is_ok();
        for keep in [false, true] {
            let after = open(file.backend.crash(|_| keep));
            match after.recovery.verdict {
                Verdict::EndUnknown => assert_eq!(contents(&after)[0], 1),
                _ => assert!(
                    contents(&after)[1..].iter().all(|content| *content == 0),
                    "{calls} calls"
                ),
            }
        }
        if done {
            break;
        }
    }
}

#[test]
fn a_file_whose_marker_cannot_be_written_is_not_recycled() {
    let file = open(old_file(20));
    file.backend.fail(Call::Marker, 0, libc::ENOSPC);
    let error = file.recycle().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoSpace(libc::ENOSPC));
    assert_eq!(contents(&file), (OLD..OLD + 20).collect::<Vec<_>>());
    assert_eq!(file.append(&record(1, 1), true), Ok(20 * BLOCK_BYTES));
}

#[test]
fn a_file_that_does_not_grow_ahead_or_was_changed_is_not_recycled() {
    let plain = open_on(old_file(3), None, FileSystems::default()).unwrap();
    assert!(matches!(plain.recycle().unwrap_err().kind(), ErrorKind::Unsupported(_)));
    let file = open(old_file(3));
    file.backend.append_behind_our_back(1);
    assert!(matches!(file.recycle().unwrap_err().kind(), ErrorKind::ModifiedExternally(_)));
    assert_eq!((plain.len(), file.len()), (3 * BLOCK_BYTES, 3 * BLOCK_BYTES));
}

#[test]
fn recycling_allows_appends_after_a_failed_one() {
    let file = recycled(20);
    file.backend.fail(Call::Write, 0, libc::EIO);
    assert!(file.append(&record(1, 1), false).is_err());
    assert!(matches!(
        file.append(&record(1, 1), false).unwrap_err().kind(),
        ErrorKind::AppendEnded(_)
    ));
    file.recycle().unwrap();
    assert_eq!(file.append(&record(1, 1), true), Ok(0));
}

#[test]
fn an_open_question_is_given_up_by_recycling() {
    let file = recycled(20);
    file.append(&record(1, 3), true).unwrap();
    let again = open(file.backend.crash(|_| true));
    assert_eq!((again.recovery.floor, again.recovery.ceiling), (0, 20 * BLOCK_BYTES));
    again.recycle().unwrap();
    assert_eq!(again.append(&record(1, 1), true), Ok(0));
    again.finish().unwrap();
    assert_eq!(contents(&open(again.backend.crash(|_| false))), [1]);
}

/// As above, for a recycled file: none of its old content is taken for a record of this life.
#[test]
fn a_crash_in_any_window_of_a_recycled_file_mixes_no_lives() {
    for (prepared, old_blocks) in
        [(Prepared::Unwritten, 31), (Prepared::Zeroed, 31), (Prepared::Unwritten, 300)]
    {
        for cut in 0.. {
            let sim = old_file(old_blocks);
            sim.die_after(cut);
            let Ok(file) = open_on(sim, Some(prepared), FileSystems::default()) else { continue };
            let begun = file.recycle().is_ok();
            let durable = if begun { live(&file) } else { 0 };
            let done = file.finish().is_ok();
            for keep in 0..4u64 {
                let disk = file.backend.crash(|n| match keep {
                    0 => false,
                    1 => true,
                    _ => n.is_none_or(|n| (n ^ cut) % 2 == keep % 2),
                });
                let at = format!("cut {cut} keep {keep} {prepared:?} over {old_blocks}");
                check_lives(&disk, prepared, begun.then_some(durable), old_blocks, &at);
            }
            if done {
                break;
            }
        }
    }
}

/// Checks a recycled file after a crash, and after a crash at every call of its recovery. `durable`
/// blocks of this life were acknowledged, if it had begun.
fn check_lives(disk: &Disk, prepared: Prepared, durable: Option<u64>, old_blocks: u64, at: &str) {
    let old: Vec<_> = (OLD..OLD + old_blocks).collect();
    for again in 0.. {
        let at = format!("{at}, recovery call {again}");
        let image = disk.crash(|_| true);
        image.die_after(again);
        let died = recover_by(&image.0, SELF, Recover::Truncate).is_err();
        let file = open_on(
            image.crash(|n| n.is_none() && again % 2 == 0),
            Some(prepared),
            FileSystems::default(),
        )
        .unwrap_or_else(|kind| panic!("{at}: {kind}"));
        let as_it_was = file.recovery.verdict == Verdict::Clean && contents(&file) == old;
        if durable.is_some() || !as_it_was {
            let end = settle(&file).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert!(end >= durable.unwrap_or(0), "{at}: {durable:?} acknowledged, {end} found");
            assert_eq!(contents(&file), (1..=end).collect::<Vec<_>>(), "{at}");
        }
        assert!(!file.backend.is_marked(), "{at}");
        if !died {
            break;
        }
    }
}

#[test]
fn a_crash_while_the_owner_truncates_old_content_leaves_the_question_or_the_answer() {
    let crashed = recycled(20);
    crashed.append(&record(1, 3), true).unwrap();
    for calls in 0.. {
        let file = open(crashed.backend.crash(|_| true));
        file.backend.die_after(calls);
        let done = settle(&file).is_ok();
        for keep in [false, true] {
            let after = open(file.backend.crash(|_| keep));
            assert_eq!(settle(&after), Ok(3), "{calls} calls");
            assert_eq!(contents(&after), [1, 2, 3]);
        }
        if done {
            break;
        }
    }
}

/// Finds the end of this life, as the owner of the records does, and truncates there. Returns the
/// end in blocks.
fn settle(file: &SimFile) -> Result<u64> {
    let found = contents(file);
    let end =
        found.iter().zip(1..).take_while(|(content, number)| **content == *number).count() as u64;
    let Recovery { floor, ceiling, verdict, .. } = &file.recovery;
    assert!(
        (*floor..=*ceiling).contains(&(end * BLOCK_BYTES)),
        "{end} blocks: {:?}",
        file.recovery
    );
    if *verdict == Verdict::EndUnknown {
        file.set_len(end * BLOCK_BYTES)?;
    }
    Ok(end)
}

mod beside;
mod in_place;
#[cfg(not(loom))]
mod loggers;
mod orders;
mod packing;
mod parts;
mod past_the_end;
mod reads;
mod records;
mod sharing;
mod told;

#[test]
fn a_marker_that_must_change_and_finds_no_space_fails_those_who_need_it() {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&Buffer::zeroed(4096), false).unwrap();
    // More often than any caller should try.
    (0..20).for_each(|_| file.backend.fail(Call::Marker, 0, libc::ENOSPC));
    let leap = |offset| file.write_at(&Buffer::zeroed(4096), offset, false);
    for _ in 0..2 {
        assert_eq!(*leap(3 * 4096).unwrap_err().kind(), ErrorKind::NoSpace(libc::ENOSPC));
        assert_eq!(file.len(), 4096);
    }
    file.backend.0.device.heal();
    leap(3 * 4096).unwrap();
    assert_eq!(file.append(&Buffer::zeroed(4096), false), Ok(4 * 4096));
}
