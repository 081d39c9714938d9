//! The engine and readers beside other processes, at moments that the test chooses.

use super::*;
use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::api::queue::Queue;
use crate::backend::ring::RingFile;
use crate::backend::{Exclusion, Job, Stamp, Stamps};
use crate::engine::handle::FileHandle;
use crate::engine::reader::ReadHandle;
use crate::engine::registry::Key;
use crate::engine::truncate::LOOKS_MAX;
use crate::open::recovered;
use crate::open::striped::{BringUp, OpenMember};
use crate::rules::flush::Reach;
use crate::rules::marker::Mode;
use crate::rules::recovery::Extent;
use crate::sync::JoinHandle;
use crate::sys::probe::{Facts, Part, Through};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::task::Waker;

/// The next call of the engine or a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// The look at the change times, before a reader looks at the length.
    Look,
    Read,
    Allocate,
    Truncate,
    Exclude,
    Flush,
    Mark,
}

type Deed = Box<dyn FnOnce(&Disk) + Send>;

/// The next number of a file.
static DEVS: AtomicU64 = AtomicU64::new(0xBE51_DE00);

/// The simulated disk, where other programs act before chosen calls.
#[derive(Clone)]
struct Beside {
    disk: Disk,
    deeds: Arc<Mutex<VecDeque<(Before, Deed)>>>,
    /// The registry of the process knows the file by this number.
    dev: u64,
    /// Another process has the file open for writing.
    writer: Arc<Mutex<Option<String>>>,
    /// The description is O_DSYNC.
    flushes_each_write: bool,
    /// There is no lease: a reader has the file open.
    is_read: bool,
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

impl Beside {
    fn new(disk: &Disk) -> Self {
        Self {
            disk: disk.clone(),
            deeds: Arc::default(),
            dev: DEVS.fetch_add(1, Ordering::Relaxed),
            writer: Arc::default(),
            flushes_each_write: false,
            is_read: false,
        }
    }

    /// Another program does this before the next such call. Deeds run in the order of these calls.
    fn before(&self, call: Before, deed: impl FnOnce(&Disk) + Send + 'static) {
        self.deeds.lock().unwrap().push_back((call, Box::new(deed)));
    }

    fn about_to(&self, call: Before) {
        let deed = {
            let mut deeds = self.deeds.lock().unwrap();
            let is_next = deeds.front().is_some_and(|(next, _)| *next == call);
            if is_next { deeds.pop_front() } else { None }
        };
        if let Some((_, deed)) = deed {
            deed(&self.disk);
        }
    }

    fn has_happened(&self) -> bool {
        self.deeds.lock().unwrap().is_empty()
    }

    fn engine(&self, prepared: Option<Prepared>) -> Arc<Engine> {
        self.engine_on(prepared, FileSystems::default())
    }

    fn engine_on(&self, prepared: Option<Prepared>, fs: FileSystems) -> Arc<Engine> {
        Arc::new(self.new_engine(prepared, fs))
    }

    /// A writer that readers of this process find.
    fn registered(&self, prepared: Option<Prepared>) -> Arc<Engine> {
        let make = || Ok(self.new_engine(prepared, FileSystems::default()));
        Process::current().registry.open(Key::of(&self.facts()), make).unwrap()
    }

    fn new_engine(&self, prepared: Option<Prepared>, fs: FileSystems) -> Engine {
        let len = self.disk.0.physical_size().unwrap();
        Engine::new(Parts {
            backend: Arc::new(self.clone()),
            journal: Err(String::new()),
            order: None,
            path: Path::new("beside").into(),
            process: Process::current(),
            fs,
            props: FileProps { writes_through: self.flushes_each_write, ..props(prepared) },
            alignment: Alignment { memory: 512, offset: 512, append: BLOCK_BYTES },
            growth_config: GROWTH_CONFIG,
            recovery: Recovery::clean(len),
            held: None,
        })
    }

    /// A reader. Beside a writer of another process, it knows the file by its marker.
    fn reader(&self) -> Arc<ReadHandle> {
        let (facts, process) = (self.facts(), Process::current());
        let (backend, path) = (Arc::new(self.clone()), Path::new("beside").into());
        let key = Key::of(&facts);
        Arc::new(ReadHandle::new(backend, path, facts, key, None, process))
    }

    fn facts(&self) -> Facts {
        Facts {
            identity: SELF,
            dev: self.dev,
            fs: 0,
            is_device: false,
            alignment: Alignment { memory: 512, offset: 512, append: BLOCK_BYTES },
            limits: Limits { bytes_max: 1 << 20, segments_max: 1024 },
            writes_through: false,
            len: 0,
            through: Through::Device,
            part: Part::Whole,
        }
    }
}

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result { self.disk.0.$name($($arg),*) })*
    };
}

impl Backend for Beside {
    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64> {
        self.about_to(Before::Read);
        self.disk.0.read(into, offset)
    }

    fn flushes_each_write(&self) -> bool {
        self.flushes_each_write
    }

    fn allocate(&self, start: u64, end: u64) -> io::Result<()> {
        self.about_to(Before::Allocate);
        self.disk.0.allocate(start, end)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.about_to(Before::Truncate);
        self.disk.0.truncate(len)
    }

    fn flush(&self) -> io::Result<()> {
        self.about_to(Before::Flush);
        self.disk.0.flush()
    }

    fn write_marker(&self, bytes: &[u8]) -> io::Result<()> {
        self.about_to(Before::Mark);
        self.disk.0.write_marker(bytes)
    }

    fn exclude_others(&self) -> io::Result<Exclusion<'_>> {
        self.about_to(Before::Exclude);
        match &*self.writer.lock().unwrap() {
            Some(name) => Ok(Exclusion::Refused(name.clone())),
            None if self.is_read => Ok(Exclusion::Unknown),
            None => self.disk.0.exclude_others(),
        }
    }

    /// From a clock that ticks at each change.
    fn stamps(&self) -> io::Result<Stamps> {
        self.about_to(Before::Look);
        Ok([Stamp { changed: (0, self.disk.calls()), ..Stamp::default() }].into_iter().collect())
    }

    passed_on! {
        write(segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64>;
        sync_all() -> io::Result<()>;
        physical_size() -> io::Result<u64>;
        write_zeroes(start: u64, end: u64) -> io::Result<()>;
        extents(from: u64) -> io::Result<Vec<Extent>>;
        read_marker() -> io::Result<Option<Vec<u8>>>;
        remove_marker() -> io::Result<()>;
        free_bytes() -> io::Result<u64>;
        size_max() -> u64;
        spawn(job: Job) -> io::Result<Option<JoinHandle>>;
        unlock() -> ();
        descriptor() -> BorrowedFd<'_>;
        ring_files() -> SmallVec<[RingFile<'_>; 1]>;
    }
}

type Read = fn(&Arc<ReadHandle>, Buffer, u64) -> Result<(usize, Buffer)>;

/// Reads at an offset, by a call and by a queue.
const WAYS_TO_READ: [Read; 2] = [
    |reader, mut into, offset| Ok((reader.read_at(&mut into, offset)?, into)),
    |reader, into, offset| {
        let file = File::of(FileHandle::Reader(reader.clone()));
        let queue = Queue::new(1);
        queue.read_at(&file, into, offset, 0).expect("there is room");
        let done = queue.reap(1).next().expect("it was submitted");
        Ok((done.result? as usize, done.buffer.expect("reads have one")))
    },
];

fn read_all(reader: &Arc<ReadHandle>, read: Read) -> Vec<u64> {
    let (read, into) = read(reader, Buffer::zeroed(64 * BLOCK_BYTES as usize), 0).unwrap();
    let block = |at: usize| u64::from_le_bytes(into[at..at + 8].try_into().unwrap());
    (0..read).step_by(BLOCK_BYTES as usize).map(block).collect()
}

/// The read returned EIO on each attempt: the length was cached under the marker that announces the
/// truncate.
#[test]
fn a_file_that_becomes_shorter_under_the_same_marker_is_read_again() {
    for read in WAYS_TO_READ {
        let disk = Disk::new(DISK_BYTES);
        let writer = open(disk.clone());
        writer.append(&record(1, 4), true).unwrap();
        let beside = Beside::new(&disk);
        let reader = beside.reader();
        assert_eq!(read_all(&reader, read), [1, 2, 3, 4]);
        beside.before(Before::Read, |disk| disk.0.truncate(2 * BLOCK_BYTES).unwrap());
        assert_eq!(read_all(&reader, read), [1, 2]);
        assert!(beside.has_happened());
    }
}

/// The marker that announces the truncate was on disk before it, and the next marker had the same
/// count.
#[test]
fn a_reader_between_an_announcement_and_its_truncate_returns_no_zeros() {
    for read in WAYS_TO_READ {
        read_between_an_announcement_and_its_truncate(read);
    }
}

fn read_between_an_announcement_and_its_truncate(read: Read) {
    let disk = Disk::new(DISK_BYTES);
    let (here, elsewhere) = (Beside::new(&disk), Beside::new(&disk));
    let writer = elsewhere.engine(Some(Prepared::Unwritten));
    writer.append(&record(1, 4), true).unwrap();
    let (announced, announcement) = mpsc::channel();
    let (go, going) = mpsc::channel();
    elsewhere.before(Before::Truncate, move |_| {
        announced.send(()).unwrap();
        going.recv().unwrap();
    });
    let thread = {
        let writer = writer.clone();
        std::thread::spawn(move || writer.set_len(0).unwrap())
    };
    announcement.recv().unwrap();
    here.before(Before::Read, move |_| {
        go.send(()).unwrap();
        thread.join().unwrap();
        writer.append(&record(9, 1), true).unwrap();
    });
    assert_eq!(read_all(&here.reader(), read), [9]);
    assert!(here.has_happened() && elsewhere.has_happened());
}

/// A read that met the open of a writer, or its next attempt, returned whole blocks.
#[test]
fn a_read_that_began_before_the_writer_met_zeros_past_the_end() {
    let preparations = [None, Some(Prepared::Unwritten), Some(Prepared::Zeroed)];
    for (read, call) in
        WAYS_TO_READ.iter().flat_map(|read| [(read, Before::Look), (read, Before::Read)])
    {
        for prepared in preparations {
            let disk = Disk::new(DISK_BYTES);
            disk.0.write(&[Segment::of(&record(1, 1)[..512])], 0, true).unwrap();
            let beside = Beside::new(&disk);
            let writer = beside.clone();
            beside.before(call, move |_| {
                writer.registered(prepared).append(&[2; 100], true).unwrap();
            });
            let into = Buffer::zeroed(2 * BLOCK_BYTES as usize);
            let (bytes, _) = read(&beside.reader(), into, 0).unwrap();
            assert_eq!(bytes, 612, "{prepared:?} {call:?}");
            assert!(beside.has_happened());
            Process::current().registry.leave(Key::of(&beside.facts())).unwrap();
        }
    }
}

/// A handle that the child of a fork inherited noticed no open of the child.
#[test]
#[cfg(not(loom))]
fn a_read_in_a_forked_child_met_the_zeros_of_the_childs_writer() {
    let disk = Disk::new(DISK_BYTES);
    disk.0.write(&[Segment::of(&record(1, 1)[..512])], 0, true).unwrap();
    let beside = Beside::new(&disk);
    let reader = beside.reader();
    assert!(dioxide_testkit::fork::holds_in_a_fork(|| {
        let writer = beside.clone();
        beside.before(Before::Look, move |_| {
            writer.registered(None).append(&[2; 100], true).unwrap();
        });
        let mut into = Buffer::zeroed(2 * BLOCK_BYTES as usize);
        reader.read_at(&mut into, 0).is_ok_and(|read| read == 612) && beside.has_happened()
    }));
}

const REWRITTEN_BLOCKS: u64 = 512;

/// Reads a file with this marker, by several calls, while another program rewrites it.
fn read_beside_a_rewrite(read: Read, marker: &[u8]) -> Vec<u8> {
    let disk = Disk::new(DISK_BYTES);
    disk.0.write(&[Segment::of(&record(1, REWRITTEN_BLOCKS))], 0, true).unwrap();
    disk.0.write_marker(marker).unwrap();
    let beside = Beside::new(&disk);
    beside.before(Before::Read, |_| {});
    beside.before(Before::Read, |disk| {
        disk.0.truncate(0).unwrap();
        disk.append_behind_our_back(REWRITTEN_BLOCKS);
    });
    // An unaligned range is read in pieces of 1 MiB.
    let into = Buffer::zeroed((REWRITTEN_BLOCKS * BLOCK_BYTES) as usize);
    let (read, into) = read(&beside.reader(), into, 4).unwrap();
    assert!(beside.has_happened(), "it was one call");
    into[..read].to_vec()
}

/// Such a marker never changes, however the file changes.
#[test]
fn a_marker_that_is_not_of_this_file_proves_no_growth() {
    let another = Identity { inode: 2, ..SELF };
    let foreign = Marker {
        identity: another,
        prepared: Prepared::Unwritten,
        mode: Mode::AppendOnly,
        recycled: false,
        base: 0,
        grown_from: 0,
        grown_to: 0,
        epoch: 7,
        truncations: Some(0),
    };
    let foreign = foreign.encode();
    let markers = [&foreign[..], b"no marker"];
    for (read, marker) in WAYS_TO_READ.into_iter().flat_map(|read| markers.map(|it| (read, it))) {
        let read = read_beside_a_rewrite(read, marker);
        assert!(
            !read.is_empty() && read.iter().all(|byte| *byte == 0xFF),
            "old and new content is mixed"
        );
    }
}

/// Another program appended between the look at the size and the allocation.
#[test]
fn a_growth_that_fails_keeps_what_another_program_appended() {
    for prepared in [Prepared::Unwritten, Prepared::Zeroed] {
        for errno in [libc::ENOSPC, libc::EIO] {
            let disk = Disk::new(DISK_BYTES);
            disk.0.write(&[Segment::of(&record(1, 1))], 0, true).unwrap();
            let beside = Beside::new(&disk);
            let file = beside.engine(Some(prepared));
            beside.before(Before::Allocate, move |disk| {
                disk.append_behind_our_back(1);
                disk.fail(Call::Allocate, 0, errno);
            });
            file.append(&record(2, 1), true).unwrap_err();
            assert!(beside.has_happened());
            assert_eq!(disk.content(1), Some(u64::MAX), "{prepared:?} {errno}");
            file.append(&record(2, 1), true).unwrap_err();
            file.finish().unwrap_err();
            assert_eq!(disk.content(1), Some(u64::MAX), "{prepared:?} {errno}");
        }
    }
}

/// Its data ends in the same block as ours, where extents do not show it.
#[test]
fn a_growth_that_fails_keeps_what_another_program_appended_to_the_last_block() {
    let disk = Disk::new(DISK_BYTES);
    disk.0.write(&[Segment::of(&record(1, 1)[..512])], 0, true).unwrap();
    let beside = Beside::new(&disk);
    let file = beside.engine(Some(Prepared::Unwritten));
    beside.before(Before::Allocate, |disk| {
        disk.0.write(&[Segment::of(&[0xFF; 512])], 512, true).unwrap();
        disk.fail(Call::Allocate, 0, libc::ENOSPC);
    });
    file.append(&record(2, 1), true).unwrap_err();
    assert!(beside.has_happened());
    assert_eq!(disk.0.physical_size().unwrap(), 1024);
}

/// Overwrites of other threads moved the stamps during each look. The rest of the growth then
/// counted as another program's, and no later append found space.
#[test]
fn a_failed_growth_beside_overwrites_stopped_appends() {
    let disk = Disk::new(DISK_BYTES);
    disk.0.write(&[Segment::of(&record(1, 1))], 0, true).unwrap();
    let beside = Beside { is_read: true, ..Beside::new(&disk) };
    let file = beside.engine(Some(Prepared::Unwritten));
    beside.before(Before::Allocate, |disk| {
        disk.0.allocate(BLOCK_BYTES, 2 * BLOCK_BYTES).unwrap();
        disk.fail(Call::Allocate, 0, libc::ENOSPC);
    });
    // Twice: by the growth, and by its next smaller attempt or its end.
    for _ in 0..2 * LOOKS_MAX {
        beside.before(Before::Exclude, |disk| {
            disk.0.write(&[Segment::of(&record(3, 1))], 0, false).unwrap();
        });
    }
    file.append(&record(2, 1), true).unwrap_err();
    assert!(beside.has_happened());
    file.append(&record(2, 1), true).unwrap();
    file.finish().unwrap();
    assert_eq!(disk.0.physical_size().unwrap(), 2 * BLOCK_BYTES);
}

/// A file without a marker, with a partial last block.
fn with_a_begun_block(beside: &Beside) -> Arc<Engine> {
    let file = beside.engine(None);
    file.append(&[1; 100], true).unwrap();
    assert_eq!(beside.disk.0.physical_size().unwrap(), BLOCK_BYTES);
    file
}

/// Close looked at the size, and truncated without another look.
#[test]
fn close_without_a_marker_keeps_what_another_program_appended() {
    let beside = Beside::new(&Disk::new(DISK_BYTES));
    let file = with_a_begun_block(&beside);
    beside.before(Before::Exclude, |disk| disk.append_behind_our_back(1));
    let error = file.finish().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ModifiedExternally(_)), "{error}");
    assert_eq!(beside.disk.content(1), Some(u64::MAX));
}

#[test]
fn close_without_a_marker_beside_another_writer_truncates_nothing() {
    let beside = Beside::new(&Disk::new(DISK_BYTES));
    let file = with_a_begun_block(&beside);
    *beside.writer.lock().unwrap() = Some("another program".into());
    let error = file.finish().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Busy(_)), "{error}");
    assert_eq!(beside.disk.0.physical_size().unwrap(), BLOCK_BYTES);
}

#[test]
fn close_without_a_marker_ends_where_the_records_do() {
    let beside = Beside::new(&Disk::new(DISK_BYTES));
    with_a_begun_block(&beside).finish().unwrap();
    assert_eq!(beside.disk.0.physical_size().unwrap(), 100);
}

/// Another writer was met before the truncate, when a failed growth was to be taken back.
#[test]
fn close_beside_another_writer_leaves_its_marker_also_where_a_growth_was_left_behind() {
    let beside = Beside::new(&Disk::new(DISK_BYTES));
    let file = beside.engine(Some(Prepared::Unwritten));
    file.append(&record(1, 1), true).unwrap();
    beside.disk.fail(Call::Marker, 1, libc::EIO);
    beside.disk.fail(Call::Allocate, 1, libc::EIO);
    file.append(&record(2, 4 * GROWTH_CONFIG.cap_bytes / BLOCK_BYTES), true).unwrap_err();
    *beside.writer.lock().unwrap() = Some("another program".into());
    let error = file.finish().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Busy(_)), "{error}");
    let marker = Marker::decode(&beside.disk.0.read_marker().unwrap().unwrap()).unwrap();
    assert_eq!((marker.mode, marker.base), (Mode::Positional, BLOCK_BYTES));
}

/// A file of four blocks whose description is O_DSYNC, and another file of its file system.
fn synchronous() -> (Arc<Engine>, SimFile, Disk, FileSystems) {
    let fs = FileSystems::default();
    let other = open_on(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), fs.clone()).unwrap();
    other.append(&record(1, 1), false).unwrap();
    let disk = Disk::new(DISK_BYTES);
    disk.0.write(&[Segment::of(&record(1, 4))], 0, true).unwrap();
    let beside = Beside { flushes_each_write: true, ..Beside::new(&disk) };
    (beside.engine_on(None, fs.clone()), other, disk, fs)
}

type Write = Box<dyn Fn(&Arc<Engine>) -> Result<()>>;

/// The writes of a handle of an O_DSYNC description: below the end and at it, by calls and by a
/// queue, durable or not.
fn ways_to_write(durable: bool) -> [Write; 4] {
    let queued = move |file: &Arc<Engine>, submit: fn(&Queue, &File) -> bool| {
        let (engine, process) = (file.clone(), Process::current());
        let key = Key { dev: 0, inode: Some(0), part: Part::Whole };
        let file = File::of(FileHandle::Writer { engine, key, process, durable });
        let queue = Queue::new(1);
        assert!(submit(&queue, &file));
        let done = queue.reap(1).next().expect("it was submitted");
        // It is not in the registry, so it must not be closed.
        drop(file.into_handle());
        done.result.map(drop)
    };
    [
        Box::new(move |file| file.write_at(&record(7, 1), BLOCK_BYTES, durable)),
        Box::new(move |file| file.append(&record(7, 1), durable).map(drop)),
        Box::new(move |file| {
            queued(file, |queue, file| queue.write_at(file, record(7, 1), BLOCK_BYTES, 0).is_ok())
        }),
        Box::new(move |file| {
            queued(file, |queue, file| queue.append(file, record(7, 1), 0).is_ok())
        }),
    ]
}

/// A later flush of another file returned success.
#[test]
fn a_flush_that_fails_inside_of_a_write_of_an_o_dsync_file_wedges() {
    for durable in [true, false] {
        for (n, write) in ways_to_write(durable).iter().enumerate() {
            let (file, other, disk, _) = synchronous();
            write(&file).unwrap();
            disk.fail(Call::Write, 0, libc::EIO);
            write(&file).unwrap_err();
            let error = other.sync_data().expect_err("the flush may have lost what it wrote");
            assert!(matches!(error.kind(), ErrorKind::Wedged(_)), "{durable} {n}: {error}");
        }
    }
}

/// The same write was repeated without RWF_DSYNC, and flushed nevertheless.
#[test]
fn a_flush_that_finds_no_space_twice_is_no_write_that_finds_none() {
    for durable in [true, false] {
        for (n, write) in ways_to_write(durable).iter().enumerate() {
            let (file, other, disk, _) = synchronous();
            (0..2).for_each(|_| disk.fail(Call::Write, 0, libc::ENOSPC));
            write(&file).unwrap_err();
            assert!(other.sync_data().is_err(), "{durable} {n}");
        }
    }
}

#[test]
fn no_space_for_a_write_of_an_o_dsync_file_wedges_nothing() {
    for durable in [true, false] {
        for (n, write) in ways_to_write(durable).iter().enumerate() {
            let (file, other, disk, _) = synchronous();
            disk.fail(Call::Write, 0, libc::ENOSPC);
            disk.fail(Call::Allocate, 0, libc::ENOSPC);
            let error = write(&file).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::NoSpace(libc::ENOSPC), "{durable} {n}");
            other.sync_data().unwrap();
            write(&file).unwrap();
        }
    }
}

#[test]
fn a_write_of_an_o_dsync_file_is_not_believed_beside_a_flush_that_fails() {
    for durable in [true, false] {
        let (file, other, _, fs) = synchronous();
        let flush = fs.begin_flush();
        let writing = std::thread::spawn(move || file.write_at(&record(7, 1), 0, durable));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!writing.is_finished(), "the other flush may fail");
        let failed = crate::os_error::of_flush(io::Error::from_raw_os_error(libc::EIO));
        let cause =
            |_: &io::Error| Arc::new(other.error(Operation::Flush, None, ErrorKind::Os(libc::EIO)));
        let _ = fs.end_flush(flush, (&Err(failed), Reach::File), cause);
        writing.join().unwrap().unwrap_err();
    }
}

/// The same description writes zeros.
#[test]
fn a_flush_that_fails_while_an_o_dsync_file_is_filled_with_zeros_wedges() {
    let (_, other, disk, fs) = synchronous();
    let beside = Beside { flushes_each_write: true, ..Beside::new(&disk) };
    let file = beside.engine_on(Some(Prepared::Zeroed), fs);
    disk.fail(Call::Write, 0, libc::EIO);
    file.append(&record(7, 1), true).unwrap_err();
    assert!(matches!(other.sync_data().unwrap_err().kind(), ErrorKind::Wedged(_)));
}

/// A file that a crash left grown, and a file system for its recovery.
fn crashed() -> (Beside, FileSystems) {
    let file = open(Disk::new(DISK_BYTES));
    file.append(&record(1, 1), true).unwrap();
    (Beside::new(&file.backend.crash(|_| true)), FileSystems::default())
}

/// The defect: a whole recovery was one flush of the ledger.
#[test]
fn a_flush_beside_a_recovery_waited_for_its_looks() {
    let (beside, fs) = crashed();
    let is_final = Arc::<AtomicBool>::default();
    let (other, seen) = (fs.clone(), is_final.clone());
    beside.before(Before::Look, move |_| {
        let flush = other.begin_flush();
        let ended = other.end_flush(flush, (&Ok(()), Reach::File), |_| unreachable!("no error"));
        seen.store(other.is_settled(&ended, Waker::noop()), Ordering::Relaxed);
    });
    recovered(&beside, &fs, &Path::new("beside").into(), &beside.facts()).unwrap();
    assert!(beside.has_happened() && is_final.load(Ordering::Relaxed));
}

/// The defect: only the log had that flush.
#[test]
fn a_flush_that_failed_as_recovery_put_a_marker_back_wedged_nothing() {
    let (beside, fs) = crashed();
    beside.before(Before::Look, |disk| {
        disk.append_behind_our_back(1);
        disk.fail(Call::Flush, 0, libc::EIO);
    });
    recovered(&beside, &fs, &Path::new("beside").into(), &beside.facts()).unwrap_err();
    assert!(beside.has_happened() && fs.wedged().is_some());
}

/// A volume of one member.
fn volume_of(member: &Beside, fs: &FileSystems) -> Arc<Engine> {
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    let bring_up = BringUp {
        request: options.request(),
        process: Process::current(),
        name: &Path::new("volume").into(),
        fs: fs.clone(),
        prepared: Some(Prepared::Unwritten),
        overwrites_in_place: true,
        epoch: 0,
        id: [1; 16],
        threads_max: 0,
    };
    let member = OpenMember { backend: Arc::new(member.clone()), facts: member.facts() };
    Arc::new(bring_up.engine(vec![member], 2 * BLOCK_BYTES).unwrap())
}

/// The defect: `set_len` put the marker back after that flush, and only then wedged the file
/// system. The kernel reported success to another file meanwhile.
#[test]
fn a_flush_of_the_state_that_failed_wedged_too_late() {
    let (beside, fs) = (Beside::new(&Disk::new(DISK_BYTES)), FileSystems::default());
    let other = open_on(Disk::new(DISK_BYTES), None, fs.clone()).unwrap();
    other.append(&record(1, 1), false).unwrap();
    let volume = volume_of(&beside, &fs);
    volume.append(&record(1, 4), true).unwrap();
    volume.finish().unwrap();
    let volume = volume_of(&beside, &fs);
    volume.append(&record(5, 1), true).unwrap();
    let believed = Arc::<AtomicBool>::default();
    let told = believed.clone();
    beside.before(Before::Flush, |disk| disk.fail(Call::Flush, 0, libc::EIO));
    beside.before(Before::Mark, move |_| told.store(other.sync_data().is_ok(), Ordering::Relaxed));
    assert!(matches!(volume.set_len(0).unwrap_err().kind(), ErrorKind::Wedged(_)));
    assert!(!believed.load(Ordering::Relaxed));
}

/// The defect: a write that had waited for a truncate was sent after the truncate had wedged the
/// file system (seed 6637 of the simulation).
#[test]
#[cfg(not(loom))]
fn a_write_behind_a_truncate_that_failed_was_sent() {
    let beside = Beside::new(&Disk::new(DISK_BYTES));
    let engine = beside.engine(Some(Prepared::Unwritten));
    engine.append(&record(1, 1), true).unwrap();
    let (send, waiting) = mpsc::channel();
    let writer = engine.clone();
    beside.before(Before::Truncate, move |disk| {
        let (begin, began) = mpsc::channel();
        let write = std::thread::spawn(move || {
            begin.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            writer.write_at(&record(2, 1), 0, false)
        });
        let state = format!("/proc/self/task/{}/stat", began.recv().unwrap());
        // Until it sleeps at the gate.
        while !std::fs::read_to_string(&state).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        send.send(write).unwrap();
        disk.fail(Call::Flush, 0, libc::EIO);
    });
    assert!(engine.set_len(0).is_err());
    let written = waiting.recv().unwrap().join().unwrap();
    assert!(matches!(written.unwrap_err().kind(), ErrorKind::Wedged(_)));
    assert_eq!(beside.disk.0.physical_size().unwrap(), 0, "it was sent");
}
