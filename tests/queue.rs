//! Behaviour of queues only, on io_uring and by plain calls. Buffers come back. Many operations are
//! in flight beside other queues, threads and changes of the file. Queues end before their
//! operations.

mod common;

use common::*;
use dioxide::{
    Buffer, Completion, Durability, ErrorKind, File, Full, Growth, OpenOptions, Operation, Queue,
};
use dioxide::{QueueOptions, Result};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::fuse_disk::{FuseDisk, GoesOn, Keep};
use dioxide_testkit::lab::{Disk, Fs, TestDir};
use dioxide_testkit::trials::{Failed, Trial, TrialResult};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Poisons freed memory that is aligned as buffers are.
struct Poisoning;

#[global_allocator]
static ALLOCATOR: Poisoning = Poisoning;

// SAFETY: forwards to the system's allocator. It writes only to whole allocations that are being
// freed.
unsafe impl GlobalAlloc for Poisoning {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if layout.align() >= BLOCK {
            // SAFETY: allocated with this layout, and not freed yet.
            unsafe { std::ptr::write_bytes(start, POISON, layout.size()) };
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

/// The number of attempts at a power cut after which the file system can be mounted.
const ROUNDS_MAX: u32 = 4;

fn queue(way: Way, depth: usize) -> Queue {
    way.queue(QueueOptions::new().depth(depth))
}

fn durable() -> OpenOptions {
    writable().durability(Durability::EveryWrite).growth_cap(MIB).clone()
}

/// Reaps all completions, by tag.
fn reap_all(queue: &Queue) -> HashMap<u64, Completion> {
    queue.reap(usize::MAX).map(|done| (done.tag, done)).collect()
}

fn number(writer: u64, number: u64) -> u64 {
    writer << 32 | number
}

/// The record of a completed append with the tag `number(writer, n)`.
fn placed(done: &Completion) -> Option<Placed> {
    let offset = *done.result.as_ref().ok()?;
    let blocks = done.buffer.as_ref().expect("its buffer comes back").len() as u64 / BLOCK_BYTES;
    Some(Placed { offset, writer: done.tag >> 32, number: done.tag & 0xFFFF_FFFF, blocks })
}

/// Panics instead of a hang.
fn within_patience<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let thread = thread::spawn(move || {
        let _ = done.send(work());
    });
    match result.recv_timeout(PATIENCE) {
        Ok(result) => {
            thread.join().expect("it has ended");
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("nobody answers"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it panicked"))
        }
    }
}

// --- buffers -------------------------------------------------------------------------------------

/// Operations with buffers of known addresses, each of which must come back.
struct Lent {
    queue: Queue,
    given: HashMap<u64, (usize, usize, Operation)>,
}

impl Lent {
    fn new(way: Way) -> Self {
        Self { queue: queue(way, 64), given: HashMap::new() }
    }

    fn give(
        &mut self,
        operation: Operation,
        buffer: Buffer,
        begin: impl FnOnce(&Queue, Buffer, u64) -> Result<(), Full>,
    ) -> u64 {
        let tag = 1000 + self.given.len() as u64;
        self.given.insert(tag, (buffer.as_ptr() as usize, buffer.len(), operation));
        begin(&self.queue, buffer, tag).expect("there is room");
        tag
    }

    fn append(&mut self, file: &File, buffer: Buffer) -> u64 {
        self.give(Operation::Append, buffer, |queue, buffer, tag| queue.append(file, buffer, tag))
    }

    fn write(&mut self, file: &File, buffer: Buffer, offset: u64) -> u64 {
        self.give(Operation::Write, buffer, |queue, buffer, tag| {
            queue.write_at(file, buffer, offset, tag)
        })
    }

    fn read(&mut self, file: &File, buffer: Buffer, offset: u64) -> u64 {
        self.give(Operation::Read, buffer, |queue, buffer, tag| {
            queue.read_at(file, buffer, offset, tag)
        })
    }

    /// Reaps all. Returns the results by tag, once every buffer is back.
    fn take(&mut self) -> HashMap<u64, Result<u64>> {
        let mut results = HashMap::new();
        for done in self.queue.reap(usize::MAX) {
            let (start, len, operation) =
                self.given.remove(&done.tag).expect("its tag was given, once");
            let buffer = done.buffer.expect("its buffer comes back");
            assert_eq!(
                (buffer.as_ptr() as usize, buffer.len(), done.operation),
                (start, len, operation)
            );
            results.insert(done.tag, done.result);
        }
        assert!(self.given.is_empty(), "{:?} did not come back", self.given);
        assert_eq!(self.queue.outstanding(), 0);
        results
    }
}

fn kind_of(results: &HashMap<u64, Result<u64>>, tag: u64) -> ErrorKind {
    results[&tag].as_ref().expect_err("it must fail").kind().clone()
}

fn buffers_come_back_whatever_came_of_it(dir: TestDir, way: Way) -> TrialResult {
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = dir.join(format!("{durability:?}"));
        let file = writable().durability(durability).open(&path)?;
        let mut lent = Lent::new(way);
        let first = lent.append(&file, record(1, 0, 2));
        let second = lent.append(&file, record(1, 1, 1));
        let empty = lent.append(&file, Buffer::zeroed(0));
        let short = lent.append(&file, Buffer::zeroed(100));
        let results = lent.take();
        assert_eq!((results[&first].clone()?, results[&second].clone()?), (0, 2 * BLOCK_BYTES));
        assert!(results[&empty].clone()? <= 3 * BLOCK_BYTES);
        assert_eq!(
            (results[&short].clone()?, file.len()?),
            (3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 100)
        );

        let reader = File::open(&path)?;
        let over = lent.write(&file, record(2, 0, 1), BLOCK_BYTES);
        let beyond = lent.write(&file, record(2, 1, 1), 4 * BLOCK_BYTES);
        let odd = lent.write(&file, record(2, 2, 1), 1);
        let huge = lent.write(&file, record(2, 3, 2), i64::MAX as u64 / BLOCK_BYTES * BLOCK_BYTES);
        let odd_read = lent.read(&file, Buffer::zeroed(BLOCK), 7);
        let short_read = lent.read(&reader, Buffer::zeroed(7), 0);
        let refused =
            [lent.append(&reader, record(3, 0, 1)), lent.write(&reader, record(3, 1, 1), 0)];
        let results = lent.take();
        assert_eq!(
            (results[&over].clone()?, results[&beyond].clone()?),
            (BLOCK_BYTES, BLOCK_BYTES)
        );
        assert_eq!(results[&odd].clone()?, BLOCK_BYTES);
        assert_eq!((results[&odd_read].clone()?, results[&short_read].clone()?), (BLOCK_BYTES, 7));
        assert_eq!(kind_of(&results, huge), ErrorKind::NoSpace(libc::EFBIG));
        refused.iter().for_each(|tag| assert_eq!(kind_of(&results, *tag), ErrorKind::ReadOnly));

        let reads = [(0, 3), (4, 1), (5, 0), (1 << 20, 0)].map(|(block, blocks)| {
            (lent.read(&file, Buffer::zeroed(3 * BLOCK), block * BLOCK_BYTES), blocks * BLOCK_BYTES)
        });
        let results = lent.take();
        for (tag, bytes) in reads {
            assert_eq!(results[&tag].clone()?, bytes);
        }

        // Closed while the operation is queued, and before.
        let begun = lent.append(&file, record(4, 0, 1));
        lent.queue.submit();
        let twin = file.try_clone()?;
        let queued =
            [lent.append(&file, record(4, 1, 1)), lent.read(&file, Buffer::zeroed(BLOCK), 0)];
        file.close()?;
        let still_open = lent.take();
        queued
            .iter()
            .for_each(|tag| assert!(still_open[tag].is_ok(), "one of two handles is left"));
        let queued =
            [lent.append(&twin, record(4, 2, 1)), lent.read(&twin, Buffer::zeroed(BLOCK), 0)];
        lent.queue.sync_data(&twin, 7).expect("there is room");
        lent.given.insert(7, (0, 0, Operation::Flush));
        twin.close()?;
        let mut closed = HashMap::new();
        for done in lent.queue.reap(usize::MAX) {
            let (start, _, operation) = lent.given.remove(&done.tag).expect("given");
            assert_eq!(done.buffer.as_ref().map_or(0, |buffer| buffer.as_ptr() as usize), start);
            assert_eq!(done.operation, operation);
            closed.insert(done.tag, done.result);
        }
        for tag in queued.into_iter().chain([7]) {
            assert_eq!(kind_of(&closed, tag), ErrorKind::Os(libc::EBADF));
        }
        let begun = still_open[&begun].clone()?;
        assert_tidy(&path, begun + 2 * BLOCK_BYTES)?;
    }
    Ok(())
}

fn a_device_takes_writes_and_no_appends(disk: Disk, way: Way) -> TrialResult {
    let file = OpenOptions::new().write(true).durability(Durability::EveryWrite).open(&*disk)?;
    let mut lent = Lent::new(way);
    let append = lent.append(&file, record(1, 0, 1));
    let written: Vec<_> =
        (0..20).map(|n| lent.write(&file, record(1, n, 2), n * 2 * BLOCK_BYTES)).collect();
    let end = file.len()?;
    let beyond = lent.write(&file, record(1, 99, 1), end);
    let results = lent.take();
    assert!(matches!(kind_of(&results, append), ErrorKind::Unsupported(_)));
    assert_eq!(kind_of(&results, beyond), ErrorKind::Os(libc::ENOSPC));
    for tag in written {
        assert_eq!(results[&tag].clone()?, 2 * BLOCK_BYTES);
    }
    let reader = File::open(&*disk)?;
    let read = lent.read(&reader, Buffer::zeroed(40 * BLOCK), 0);
    assert_eq!(lent.take()[&read].clone()?, 40 * BLOCK_BYTES);
    let queue = queue(way, 1);
    queue.read_at(&file, Buffer::zeroed(40 * BLOCK), 0, 1).expect("there is room");
    let done = queue.reap(1).next().expect("one");
    assert_eq!(end_of_records(&done.buffer.expect("it comes back"), 0), 40 * BLOCK_BYTES);
    file.close()?;
    Ok(())
}

/// A device in use has no second opener.
fn a_device_is_free_when_it_is_closed_though_its_queue_lives(disk: Disk, way: Way) -> TrialResult {
    let queue = queue(way, 8);
    for round in 0..10 {
        let file = OpenOptions::new().write(true).open(&*disk)?;
        queue.write_at(&file, record(1, round, 1), 0, round).expect("there is room");
        if round % 2 == 0 {
            assert!(queue.reap(1).next().expect("one").result.is_ok());
            file.close()?;
        } else {
            // The close of a device does not wait for its operations in flight.
            queue.submit();
            file.close()?;
            assert!(queue.reap(1).next().expect("one").result.is_ok());
            queue.submit();
        }
        assert!(can_be_taken(&disk), "round {round}: the device is still held");
    }
    Ok(())
}

// --- room and waiting ----------------------------------------------------------------------------

fn a_queue_is_full_at_its_depth_and_goes_on_when_reaped(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    let queue = queue(way, 5);
    let mut all = Vec::new();
    for round in 0..50 {
        for n in 0..5 {
            queue
                .append(&file, record(1, round * 5 + n, 1), number(1, round * 5 + n))
                .expect("there is room");
        }
        let extra = record(9, 9, 3);
        let address = extra.as_ptr();
        let full = queue.append(&file, extra, 9).expect_err("there is none");
        assert_eq!(full.buffer.expect("it comes back").as_ptr(), address);
        assert!(queue.sync_data(&file, 9).expect_err("there is none").buffer.is_none());
        if round % 3 == 0 {
            queue.submit();
            assert!(
                queue.sync_data(&file, 9).is_err(),
                "submitted or finished, they are not reaped"
            );
        }
        assert_eq!((queue.outstanding(), queue.depth()), (5, 5));
        let mut reaped = queue.reap(2);
        all.extend(reaped.next().as_ref().and_then(placed));
        // The next reap returns the rest.
        let _ = reaped;
        assert_eq!(queue.outstanding(), 4);
        all.extend(queue.reap(4).filter_map(|done| placed(&done)));
        assert_eq!((queue.outstanding(), queue.reap(1).count()), (0, 0));
    }
    assert_eq!(all.len(), 250);
    let end = assert_gapless(&all, 0);
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &all);
    Ok(())
}

fn reaping_waits_for_what_is_asked_or_for_all_there_is(dir: TestDir, way: Way) -> TrialResult {
    let file = durable().open(dir.join("log"))?;
    within_patience(move || {
        let queue = queue(way, 32);
        assert_eq!((queue.reap(0).count(), queue.reap(7).count()), (0, 0), "there is nothing");
        for asked in [1, 3, 8, 100] {
            for n in 0..8 {
                queue.append(&file, record(1, n, 1), n).expect("there is room");
            }
            let reaped = queue.reap(asked).count();
            assert!((asked.min(8)..=8).contains(&reaped), "{reaped} of {asked}");
            assert_eq!(queue.reap(8).count(), 8 - reaped);
        }
        file.close()
    })?;
    Ok(())
}

// --- in parallel ---------------------------------------------------------------------------------

/// Appends by its own queue, in batches of any size.
fn append_in_batches(file: &File, way: Way, writer: u64, count: u64) -> Vec<Placed> {
    let queue = queue(way, 16);
    let mut random = Random::new(writer);
    let mut all = Vec::new();
    let mut next = 0;
    while all.len() < count as usize {
        for _ in 0..random.below(9).min(count - next).min(16 - queue.outstanding() as u64) {
            let data = record(writer, next, 1 + random.below(4));
            queue.append(file, data, number(writer, next)).expect("there is room");
            next += 1;
        }
        let wanted = if next == count { 1 } else { random.below(3) as usize };
        all.extend(queue.reap(wanted).map(|done| placed(&done).expect("there is space")));
    }
    all.sort_by_key(|record| record.number);
    all
}

fn queues_and_blocking_threads_append_to_one_file(dir: TestDir, _: Way) -> TrialResult {
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = dir.join(format!("{durability:?}"));
        let file = writable().durability(durability).growth_cap(MIB).open(&path)?;
        let by_writer = together(9, |writer| match writer % 3 {
            0 => append_many(&file, writer, 120),
            1 => append_in_batches(&file, Way::Queue, writer, 120),
            _ => append_in_batches(&file, Way::QueueOfCalls, writer, 120),
        });
        for records in &by_writer {
            assert!(records.is_sorted(), "the appends of one thread are in its order");
        }
        let all = by_writer.concat();
        let end = assert_gapless(&all, 0);
        assert_eq!((file.len()?, file.stats().appends), (end, 9 * 120));
        file.close()?;
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &all);
    }
    Ok(())
}

/// The operations for which a blocking call waits may be in flight in the queue of its own thread.
fn a_thread_mixes_blocking_calls_with_what_its_queue_has_in_flight(
    dir: TestDir,
    way: Way,
) -> TrialResult {
    for (seed, durability) in (0..).zip([Durability::OnSync, Durability::EveryWrite]) {
        let path = dir.join(format!("{durability:?}"));
        let all = within_patience({
            let path = path.clone();
            move || Mixed::new(&path, durability, way).work(seed)
        });
        let end = assert_gapless(&all, 0);
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &all);
    }
    Ok(())
}

/// Two handles of a file, and a queue.
struct Mixed<'a> {
    path: &'a Path,
    durability: Durability,
    files: Vec<File>,
    queue: Queue,
    all: Vec<Placed>,
}

impl<'a> Mixed<'a> {
    fn new(path: &'a Path, durability: Durability, way: Way) -> Self {
        Self { path, durability, files: Vec::new(), queue: queue(way, 12), all: Vec::new() }
    }

    fn open(&mut self) {
        let file = writable().durability(self.durability).growth_cap(MIB).open(self.path);
        self.files.push(file.expect("it opens"));
    }

    fn close(&mut self, handle: usize) {
        self.files.remove(handle).close().expect("it closes");
    }

    fn reap(&mut self, count: usize) {
        self.all.extend(self.queue.reap(count).map(|done| placed(&done).expect("there is space")));
    }

    /// Submitted operations finish before the truncate to the end that they had then.
    fn cut_off_what_is_in_flight(&mut self) {
        self.queue.submit();
        let len = self.files[0].len().expect("a writer knows");
        self.files[0].set_len(len).expect("it cuts");
        self.reap(12);
        self.all.retain(|record| record.end() <= len);
    }

    fn work(mut self, seed: u64) -> Vec<Placed> {
        self.open();
        self.open();
        let mut random = Random::new(seed);
        for n in 0..300 {
            let file = &self.files[0];
            match random.below(12) {
                0..=5 => {
                    if self.queue.append(file, record(0, n, 1 + n % 3), number(0, n)).is_err() {
                        self.reap(3);
                    } else if random.below(2) == 0 {
                        self.queue.submit();
                    }
                }
                6 => self.all.push(append(file, 7, n, 1 + n % 3).expect("there is space")),
                7 => file.sync_data().expect("it syncs"),
                8 => self.cut_off_what_is_in_flight(),
                9 => {
                    // With a handle left, queued operations go on.
                    self.open();
                    self.close(0);
                }
                10 => {
                    if let Some(Placed { writer, number, blocks, offset }) =
                        self.all.last().copied()
                    {
                        let same = record(writer, number, blocks);
                        file.write_at(&same, offset).expect("it overwrites");
                    }
                }
                _ => {
                    // Submitted operations have succeeded when the last handle is closed.
                    self.queue.submit();
                    self.close(0);
                    self.close(0);
                    self.reap(12);
                    self.open();
                    self.open();
                }
            }
        }
        self.reap(12);
        self.close(0);
        self.close(0);
        self.all
    }
}

const CUTS: u64 = 40;

/// The shared state of the appenders to a truncated file.
struct Cutting {
    file: File,
    /// How many truncates have returned.
    cuts: AtomicU64,
    /// How many appends have completed that were queued after the last one.
    after_all: AtomicU64,
}

impl Cutting {
    fn goes_on(&self) -> bool {
        self.after_all.load(SeqCst) < 20
    }

    /// Appends by a queue. Returns each record with the number of truncates that had returned
    /// before it was queued.
    fn append(&self, way: Way, writer: u64) -> Vec<(u64, Placed)> {
        let queue = queue(way, 8);
        let (mut noted, mut before) = (Vec::new(), HashMap::new());
        for n in (0..).take_while(|_| self.goes_on()) {
            before.insert(number(writer, n), self.cuts.load(SeqCst));
            queue
                .append(&self.file, record(writer, n, 1 + n % 3), number(writer, n))
                .expect("there is room");
            let wanted = usize::from(queue.outstanding() == queue.depth());
            for done in queue.reap(wanted) {
                let cuts = before[&done.tag];
                noted.push((cuts, placed(&done).expect("there is space")));
                self.after_all.fetch_add(u64::from(cuts == CUTS), SeqCst);
            }
        }
        noted.extend(
            queue.reap(8).map(|done| (before[&done.tag], placed(&done).expect("there is space"))),
        );
        noted
    }

    fn cut(&self) {
        for n in 0..CUTS {
            thread::sleep(Duration::from_millis(3));
            let recycles = self.file.growth() != Growth::None && n % 4 == 3;
            if !(recycles && self.file.recycle().is_ok()) {
                self.file.set_len(0).expect("it cuts");
            }
            self.cuts.fetch_add(1, SeqCst);
        }
    }
}

fn others_truncate_the_file_while_queues_append_to_it(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let (cuts, after_all) = (AtomicU64::new(0), AtomicU64::new(0));
    let cutting = Cutting { file: writable().growth_cap(MIB).open(&path)?, cuts, after_all };
    let noted = thread::scope(|scope| {
        let appenders = scope.spawn(|| together(3, |writer| cutting.append(way, writer)).concat());
        cutting.cut();
        appenders.join().expect("appenders end")
    });
    let Cutting { file, .. } = cutting;
    let len = file.len()?;
    file.close()?;
    assert_tidy(&path, len)?;
    let content = fs::read(&path)?;
    let last: Vec<_> =
        noted.iter().filter(|(cuts, _)| *cuts == CUTS).map(|(_, placed)| *placed).collect();
    assert_all_there(&content, &last);
    assert_eq!(end_of_records(&content, 0), len, "not only records");
    let offsets: HashMap<_, _> =
        noted.iter().map(|(_, p)| ((p.writer, p.number), p.offset)).collect();
    for (block, at) in content.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        let stamp = Stamp::of(block).expect("a record");
        assert_eq!(
            offsets[&(stamp.writer, stamp.number)] + stamp.part * BLOCK_BYTES,
            at,
            "misplaced"
        );
    }
    Ok(())
}

/// One thread closes and reopens the file, while another queues operations on the current handle.
fn a_file_is_closed_and_opened_by_another_thread_while_a_queue_lives(
    dir: TestDir,
    way: Way,
) -> TrialResult {
    let path = dir.join("log");
    let open = || durable().open(&path).expect("it opens");
    let handle = std::sync::Mutex::new(Some(open()));
    let (done, appended) = (AtomicBool::new(false), AtomicBool::new(false));
    let all = thread::scope(|scope| {
        let appender = scope.spawn(|| {
            let (queue, mut all, mut refused) = (queue(way, 8), Vec::new(), 0);
            for n in (0..).take_while(|_| !done.load(SeqCst)) {
                if let Some(file) = handle.lock().expect("nobody panics").as_ref()
                    && queue.append(file, record(1, n, 2), number(1, n)).is_ok()
                    && n % 3 > 0
                {
                    queue.submit();
                }
                for done in queue.reap(usize::from(queue.outstanding() == 8)) {
                    match placed(&done) {
                        Some(placed) => {
                            all.push(placed);
                            appended.store(true, SeqCst);
                        }
                        None => {
                            let error = done.result.expect_err("no offset");
                            assert_eq!(error.kind(), &ErrorKind::Os(libc::EBADF), "{error}");
                            refused += 1;
                        }
                    }
                }
            }
            all.extend(queue.reap(8).filter_map(|done| placed(&done)));
            (all, refused)
        });
        let over = Over(&done);
        for _ in 0..25 {
            thread::sleep(Duration::from_millis(4));
            let file = handle.lock().expect("nobody panics").take().expect("there is one");
            file.close().expect("it closes");
            *handle.lock().expect("nobody panics") = Some(open());
        }
        assert!(soon(|| appended.load(SeqCst)), "no append ends");
        drop(over);
        appender.join().expect("the appender ends").0
    });
    handle.into_inner()?.expect("there is one").close()?;
    let end = assert_gapless(&all, 0);
    assert!(end > 0);
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &all);
    Ok(())
}

// --- many files ----------------------------------------------------------------------------------

/// More than the ring registers.
const FILES: u64 = 100;

fn a_queue_works_on_more_files_than_it_registers(dir: TestDir, way: Way) -> TrialResult {
    let path = |n: u64| dir.join(format!("log-{n}"));
    let queue = queue(way, 3 * FILES as usize);
    for round in 0..2 {
        let files = (0..FILES)
            .map(|n| writable().growth_cap(MIB).open(path(n)))
            .collect::<Result<Vec<_>>>()?;
        for (file, n) in files.iter().zip(0..) {
            queue.append(file, record(n, 2 * round, 1), n).expect("there is room");
            queue.append(file, record(n, 2 * round + 1, 2), n).expect("there is room");
        }
        let offsets: Vec<_> =
            queue.reap(2 * FILES as usize).map(|done| done.result).collect::<Result<_>>()?;
        assert_eq!(offsets.len() as u64, 2 * FILES);
        for (file, n) in files.into_iter().zip(0..) {
            file.close()?;
            let content = fs::read(path(n))?;
            assert_eq!(content.len() as u64, 3 * (round + 1) * BLOCK_BYTES);
            for (block, at) in content.chunks(BLOCK).zip(0..) {
                let (number, part) = [(0, 0), (1, 0), (1, 1)][at as usize % 3];
                let stamp = Stamp { writer: n, number: 2 * (at / 3) + number, part };
                assert_eq!(Stamp::of(block), Some(stamp));
            }
        }
    }
    Ok(())
}

/// A queue must not keep the file system of a closed file mounted.
fn closed_files_are_closed_though_their_queue_lives(fs: Fs, way: Way) -> TrialResult {
    let mut volume = Volume::new(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    let queue = queue(way, 8);
    for round in 0..3 {
        let file = writable().growth_cap(MIB).open(&path)?;
        queue.append(&file, record(1, round, 1), round).expect("there is room");
        queue.submit();
        file.close()?;
        assert_eq!(queue.reap(1).next().expect("one").result?, round * BLOCK_BYTES);
        volume.remount()?;
    }
    drop(queue);
    let placed =
        |round| Placed { offset: round * BLOCK_BYTES, writer: 1, number: round, blocks: 1 };
    assert_all_there(&fs::read(&path)?, &[placed(0), placed(1), placed(2)]);
    volume.unmount()?;
    Ok(())
}

// --- the pool ------------------------------------------------------------------------------------

fn buffers_of_the_pool_and_others_go_together(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = durable().open(&path)?;
    let queue = way.queue(QueueOptions::new().depth(64).buffers(16, 3 * BLOCK));
    let mut all = Vec::new();
    for round in 0..20 {
        let mut pool: Vec<_> = std::iter::from_fn(|| queue.buffer()).collect();
        assert_eq!(pool.len(), 16, "all came back, and there are no more");
        // So that buffers adjacent in memory are only sometimes adjacent in the file.
        let mut random = Random::new(round);
        (0..8).for_each(|_| pool.swap(random.below(16) as usize, random.below(16) as usize));
        for (mut buffer, n) in pool.into_iter().zip((round * 32..).step_by(2)) {
            let data = record(1, n, 3);
            buffer.copy_from_slice(&data);
            queue.append(&file, buffer, number(1, n)).expect("there is room");
            if random.below(3) == 0 {
                queue.append(&file, record(1, n + 1, 2), number(1, n + 1)).expect("there is room");
            }
        }
        all.extend(queue.reap(64).map(|done| placed(&done).expect("there is space")));
    }
    let end = assert_gapless(&all, 0);
    for records in all.chunks(16) {
        for (record, n) in records.iter().zip(0..) {
            let into = queue.buffer().expect("nobody has them");
            queue.read_at(&file, into, record.offset, n).expect("there is room");
        }
        for (n, done) in reap_all(&queue) {
            let Placed { writer, number, blocks, offset } = records[n as usize];
            let wanted = (end - offset).min(3 * BLOCK_BYTES);
            assert_eq!(done.result?, wanted);
            let len = blocks as usize * BLOCK;
            assert!(
                done.buffer.expect("it comes back")[..len] == record(writer, number, blocks)[..]
            );
        }
    }
    let kept = queue.buffer().expect("nobody has it");
    drop(queue);
    assert!(kept.len() == 3 * BLOCK && kept.iter().any(|byte| *byte != 0), "its memory is gone");
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &all);
    Ok(())
}

// --- readers -------------------------------------------------------------------------------------

/// Reads the last blocks below the length repeatedly, by a queue. At least once. `done` gets the
/// number of times that the file was longer than before. Returns it with the last length.
fn read_ends(reader: &File, way: Way, done: impl Fn(u64) -> bool) -> (u64, u64) {
    let queue = queue(way, 4);
    let (mut known, mut met) = (reader.len().expect("it can be told"), 0);
    loop {
        let len = reader.len().expect("it can be told");
        assert!(len >= known, "the length went from {known} to {len}");
        met += u64::from(len > known);
        known = len;
        for tag in 0..4 {
            let offset = len.saturating_sub((tag + 1) * 2 * BLOCK_BYTES);
            queue
                .read_at(reader, Buffer::zeroed(32 * BLOCK), offset, offset)
                .expect("there is room");
        }
        for done in queue.reap(4) {
            let read = done.result.expect("it reads");
            assert!(done.tag + read >= len.min(done.tag + 32 * BLOCK_BYTES), "less than was there");
            let bytes = &done.buffer.expect("it comes back")[..read as usize];
            assert_eq!(end_of_records(bytes, 0), read, "grown space is seen");
        }
        if done(met) {
            return (known, met);
        }
    }
}

fn a_queue_reads_beside_a_writer_of_its_process(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let done = AtomicBool::new(false);
    append(&writable().open(&path)?, 1, 0, 2)?;
    let reader = File::open(&path)?;
    let (known, _) = thread::scope(|scope| {
        let reading = scope.spawn(|| read_ends(&reader, way, |_| done.load(SeqCst)));
        let over = Over(&done);
        // While the file is closed the reader uses the marker; while it is open here, the engine.
        for round in 0..10 {
            let file = writable().growth_cap(MIB).open(&path).expect("it opens");
            append_many(&file, 2 + round, 30);
            file.close().expect("it closes");
        }
        drop(over);
        reading.join().expect("only records are read")
    });
    assert!(known > 0, "nothing was read");
    Ok(())
}

/// A child that appends durably forever.
fn append_for_ever(acks: &Acks, args: &[String]) {
    let file = durable().open(&args[0]).expect("it opens");
    for number in 0.. {
        acks.send(append(&file, 1, number, 1 + number % 3).expect("there is space").to_ack());
    }
}

fn a_queue_reads_beside_a_writer_in_another_process(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let mut writer = child::spawn("append_for_ever", &[&path.to_string_lossy()])?;
    writer.wait_for_acks(5, PATIENCE)?;
    let reader = File::open(&path)?;
    let begun = Instant::now();
    let (_, met) = read_ends(&reader, way, |met| !is_too_early(begun, met));
    assert!(met > MET_MIN, "hardly a read met an append");
    writer.kill_9()?;
    Ok(())
}

// --- the end of a queue --------------------------------------------------------------------------

/// Checks that a file consists of whole records of two blocks, in order. Returns their number.
fn assert_whole_and_in_order(content: &[u8]) -> u64 {
    for (block, n) in content.chunks(BLOCK).zip(0..) {
        assert_eq!(Stamp::of(block), Some(Stamp { writer: 1, number: n / 2, part: n % 2 }));
    }
    assert!(content.len().is_multiple_of(2 * BLOCK), "half a record");
    content.len() as u64 / 2 / BLOCK_BYTES
}

fn a_dropped_queue_leaves_whole_appends(dir: TestDir, way: Way) -> TrialResult {
    for (name, submitted) in [("submitted", 24), ("in part", 12), ("queued", 0)] {
        for durability in [Durability::OnSync, Durability::EveryWrite] {
            let path = dir.join(format!("{name}-{durability:?}"));
            let file = writable().durability(durability).open(&path)?;
            let queue = queue(way, 24);
            for n in 0..24 {
                queue.append(&file, record(1, n, 2), n).expect("there is room");
                if n + 1 == submitted {
                    queue.submit();
                }
            }
            drop(queue);
            let len = file.len()?;
            assert_eq!(
                len,
                submitted * 2 * BLOCK_BYTES,
                "what is submitted happens, what is not does not"
            );
            let after = append(&file, 1, submitted, 2)?;
            assert_eq!(after.offset, len);
            file.close()?;
            assert_tidy(&path, after.end())?;
            assert_eq!(assert_whole_and_in_order(&fs::read(&path)?), submitted + 1);
        }
    }
    Ok(())
}

thread_local!(
    static LAST: std::cell::RefCell<Option<Queue>> = const { std::cell::RefCell::new(None) }
);

/// Its queue is dropped with its other thread-locals.
fn a_thread_ends_with_operations_in_flight(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = durable().open(&path)?;
    thread::scope(|scope| {
        let ended = scope.spawn(|| {
            let queue = queue(way, 24);
            for n in 0..24 {
                queue.append(&file, record(1, n, 2), n).expect("there is room");
            }
            queue.submit();
            LAST.set(Some(queue));
        });
        ended.join().expect("it ends");
    });
    assert_eq!(append(&file, 1, 24, 2)?.offset, 48 * BLOCK_BYTES);
    file.close()?;
    assert_eq!(assert_whole_and_in_order(&fs::read(&path)?), 25);
    Ok(())
}

// --- disks that stop -----------------------------------------------------------------------------

fn disk(volume: &Volume) -> &FuseDisk {
    volume.disk().expect("on a FUSE disk")
}

/// Waits for the one step of growth that a short file needs. Only appends use the disk then.
fn wait_for_growth(file: &File, fs: Fs) {
    let steps = u64::from(growth_on(fs, Growth::Unwritten) != Growth::None);
    assert!(soon(|| file.stats().growths >= steps), "it does not grow");
}

/// With plain calls nothing is in flight after a submit.
fn a_dropped_queue_keeps_its_buffers_until_the_disk_has_them(fs: Fs, _: Way) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    let file = writable().growth_cap(4 * MIB).open(&path)?;
    let before = append_many(&file, 9, 40);
    file.sync_data()?;
    wait_for_growth(&file, fs);
    let start = assert_gapless(&before, 0);
    let (submitted, told) = mpsc::channel();
    let (ended, end) = mpsc::channel();
    disk(&volume).stop()?;
    let waited = thread::scope(|scope| {
        let goes_on = GoesOn(disk(&volume));
        scope.spawn(|| {
            let queue = queue(Way::Queue, 8);
            for n in 0..8 {
                queue.append(&file, record(1, n, 2), n).expect("there is room");
            }
            queue.submit();
            let _ = submitted.send(queue.outstanding());
            drop(queue);
            let _ = ended.send(());
        });
        let outstanding = told.recv_timeout(PATIENCE);
        let early = end.recv_timeout(Duration::from_millis(500));
        drop(goes_on);
        outstanding.is_ok_and(|count| count == 8) && early.is_err()
    });
    end.recv_timeout(PATIENCE).map_err(|_| "it never ends")?;
    assert_eq!(file.len()?, start + 16 * BLOCK_BYTES);
    file.close()?;
    volume.sync()?;
    assert!(
        !finds_poison(disk(&volume))?,
        "a buffer was freed while the disk was still to have it"
    );
    assert_whole_and_in_order(&fs::read(&path)?[start as usize..]);
    assert!(waited, "dropping a queue did not wait for what it had in flight");
    Ok(())
}

/// The clock ticks (10 ms each) of CPU time that a thread has used.
fn ticks_of(thread: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("it runs");
    let fields: Vec<_> = stat.rsplit(") ").next().expect("a state").split(' ').collect();
    [fields[11], fields[12]].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

/// It waits for its own operations, and for those of others.
fn a_queue_that_waits_for_a_stopped_disk_uses_no_cpu(fs: Fs, way: Way) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let file = writable().growth_cap(4 * MIB).open(volume.path().join("log"))?;
    append_many(&file, 9, 40);
    file.sync_data()?;
    wait_for_growth(&file, fs);
    let (ready, told) = mpsc::channel();
    disk(&volume).stop()?;
    let used = thread::scope(|scope| {
        let goes_on = GoesOn(disk(&volume));
        scope.spawn(|| append(&file, 1, 0, 1).expect("it comes back"));
        thread::sleep(Duration::from_millis(200));
        scope.spawn(|| {
            let queue = queue(way, 8);
            for n in 0..8 {
                queue.append(&file, record(2, n, 2), number(2, n)).expect("there is room");
            }
            let at_once = Instant::now();
            if way == Way::Queue {
                assert_eq!(queue.reap(0).count(), 0);
                assert!(at_once.elapsed() < PATIENCE, "it does not wait for none");
            }
            let _ = ready.send(rustix::thread::gettid().as_raw_nonzero().get());
            assert_eq!(queue.reap(8).count(), 8);
        });
        let thread = told.recv_timeout(PATIENCE).expect("it begins to wait");
        thread::sleep(Duration::from_millis(100));
        let before = ticks_of(thread);
        thread::sleep(Duration::from_millis(1000));
        let used = ticks_of(thread) - before;
        drop(goes_on);
        used
    });
    assert!(used <= 2, "{used} ticks in a second of waiting");
    file.close()?;
    Ok(())
}

// --- disks that fail -----------------------------------------------------------------------------

/// Buffers come back from a failed flush or write, and from the operations refused after it.
fn buffers_come_back_from_a_disk_that_fails(fs: Fs, way: Way) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let file = writable().growth_cap(4 * MIB).open(volume.path().join("log"))?;
    append_many(&file, 9, 40);
    file.sync_data()?;
    wait_for_growth(&file, fs);
    volume.sync()?;
    let mut lent = Lent::new(way);
    disk(&volume).fail_write_range(0..u64::MAX, 1, libc::EIO)?;
    let failed: Vec<_> = (0..8).map(|n| lent.append(&file, record(1, n, 2))).collect();
    let results = lent.take();
    let end = file.len()?;
    let errors: Vec<_> = failed.iter().filter_map(|tag| results[tag].as_ref().err()).collect();
    assert!(!errors.is_empty(), "nothing failed");
    for error in errors {
        assert!(
            matches!(error.kind(), ErrorKind::Os(libc::EIO) | ErrorKind::AppendEnded(_)),
            "{error}"
        );
    }
    disk(&volume).heal()?;
    let ended = lent.append(&file, record(1, 8, 1));
    assert!(matches!(kind_of(&lent.take(), ended), ErrorKind::AppendEnded(_)));
    file.set_len(end)?;
    let again = lent.append(&file, record(1, 9, 1));
    assert_eq!(lent.take()[&again].clone()?, end);

    disk(&volume).fail_flush(1, libc::EIO)?;
    let queue = queue(way, 8);
    queue.sync_data(&file, 1).expect("there is room");
    let flushed = queue.reap(1).next().expect("one");
    assert!(flushed.buffer.is_none() && flushed.operation == Operation::Flush);
    let Err(ErrorKind::Wedged(cause)) = flushed.result.map_err(|error| error.kind().clone()) else {
        return Err("a failed flush wedges".into());
    };
    let refused = [lent.append(&file, record(1, 10, 1)), lent.write(&file, record(1, 11, 1), 0)];
    let results = lent.take();
    for tag in refused {
        assert_eq!(kind_of(&results, tag), ErrorKind::Wedged(cause.clone()));
    }
    Ok(())
}

/// A power cut during durable appends by several queues: each reaped append survives.
fn reaped_durable_appends_survive_a_power_cut(fs: Fs, way: Way) -> TrialResult {
    for keep in [Keep::Nothing, Keep::Random { seed: 3 }] {
        let mut rounds = (0..ROUNDS_MAX).map(|_| survives_a_power_cut(fs, way, keep));
        let survived = rounds.find(|round| !matches!(round, Ok(false)));
        survived.ok_or("the file system never came back from a power cut")??;
    }
    Ok(())
}

/// Returns whether the file system can be mounted after the power cut. btrfs sometimes cannot
/// replay its own log (Linux 6.18: ENOENT from its free space tree). No code of ours runs before
/// that.
fn survives_a_power_cut(fs: Fs, way: Way, keep: Keep) -> std::result::Result<bool, Failed> {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    let file = durable().open(&path)?;
    let reaped = AtomicU64::new(0);
    let all = thread::scope(|scope| {
        let writers = scope
            .spawn(|| together(4, |writer| append_until_an_error(&file, way, writer, &reaped)));
        let deadline = Instant::now() + PATIENCE;
        while reaped.load(SeqCst) < 300 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        disk(&volume).power_cut(keep).expect("the disk obeys");
        writers.join().expect("writers end").concat()
    });
    drop(file);
    volume.power_cut_unmounted(keep)?;
    match volume.mount() {
        Err(_) if matches!(fs, Fs::Btrfs | Fs::BtrfsNocow) => return Ok(false),
        mounted => mounted?,
    }
    let file = OpenOptions::new().write(true).open(&path)?;
    assert!(all.len() > 100, "too little was reaped to test anything");
    assert!(file.len()? >= all.iter().map(Placed::end).max().unwrap_or(0), "it was cut");
    assert_all_there(&fs::read(&path)?, &all);
    file.close()?;
    Ok(true)
}

fn append_until_an_error(file: &File, way: Way, writer: u64, reaped: &AtomicU64) -> Vec<Placed> {
    let queue = queue(way, 6);
    let (mut all, mut next, mut failed) = (Vec::new(), 0, false);
    while !failed || queue.outstanding() > 0 {
        while !failed
            && queue.append(file, record(writer, next, 1 + next % 3), number(writer, next)).is_ok()
        {
            next += 1;
        }
        for done in queue.reap(1) {
            match placed(&done) {
                Some(placed) => all.push(placed),
                None => failed = true,
            }
            reaped.fetch_add(1, SeqCst);
        }
    }
    all
}

fn trials() -> Vec<Trial> {
    let by_each_queue: &[LabTestInAWay] = named![
        buffers_come_back_whatever_came_of_it,
        a_queue_is_full_at_its_depth_and_goes_on_when_reaped,
        reaping_waits_for_what_is_asked_or_for_all_there_is,
        a_thread_mixes_blocking_calls_with_what_its_queue_has_in_flight,
        others_truncate_the_file_while_queues_append_to_it,
        a_file_is_closed_and_opened_by_another_thread_while_a_queue_lives,
        a_queue_works_on_more_files_than_it_registers,
        buffers_of_the_pool_and_others_go_together,
        a_queue_reads_beside_a_writer_of_its_process,
        a_queue_reads_beside_a_writer_in_another_process,
        a_dropped_queue_leaves_whole_appends,
        a_thread_ends_with_operations_in_flight,
    ];
    let failing_disks: &[VolumeTestInAWay] = named![
        a_queue_that_waits_for_a_stopped_disk_uses_no_cpu,
        buffers_come_back_from_a_disk_that_fails
    ];
    let mut all = Vec::new();
    let each = by_each_queue.iter();
    all.extend(each.flat_map(|&(name, test)| lab_trials_in(Way::QUEUES, name, |_| Ok(()), test)));
    all.extend(lab_trials_in(
        &[Way::Queue],
        "queues_and_blocking_threads_append_to_one_file",
        |_| Ok(()),
        queues_and_blocking_threads_append_to_one_file,
    ));
    let failing = failing_disks.iter();
    all.extend(
        failing.flat_map(|&(name, test)| {
            fuse_trials_in(Way::QUEUES, name, Fs::writes_fail_alone, test)
        }),
    );
    all.extend(fuse_trials_in(
        &[Way::Queue],
        "a_dropped_queue_keeps_its_buffers_until_the_disk_has_them",
        Fs::writes_directly,
        a_dropped_queue_keeps_its_buffers_until_the_disk_has_them,
    ));
    all.extend(fuse_trials_in(
        Way::QUEUES,
        "reaped_durable_appends_survive_a_power_cut",
        Fs::survives_power_cuts,
        reaped_durable_appends_survive_a_power_cut,
    ));
    all.extend(volume_trials_in(
        Way::QUEUES,
        "closed_files_are_closed_though_their_queue_lives",
        Fs::has_disk,
        closed_files_are_closed_though_their_queue_lives,
    ));
    all.extend(disk_trials_in(
        Way::QUEUES,
        "a_device_takes_writes_and_no_appends",
        a_device_takes_writes_and_no_appends,
    ));
    all.extend(disk_trials_in(
        Way::QUEUES,
        "a_device_is_free_when_it_is_closed_though_its_queue_lives",
        a_device_is_free_when_it_is_closed_though_its_queue_lives,
    ));
    all
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("append_for_ever", append_for_ever)], trials)
}
