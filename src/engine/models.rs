//! The engine on a small disk with two or three threads: every interleaving (see `scripts/loom`).
//!
//! The disk is as hostile as allowed. A flush covers data that was written when it began, and takes
//! effect when it ends. A failed flush loses the cached data of every file, and fails only once.

mod sharing;

use super::core::FileProps;
use super::process::{FileSystems, Process};
use super::queue::{Driver, OpKind};
use super::reactor::Handle;
use super::reactor::tests::{Counted, POISON, block_on, poll_once};
use super::registry::Key;
use super::{Engine, Parts};
use crate::api::future::AsyncFile;
use crate::api::reactor::Reactor;
use crate::backend::journal::Journal;
use crate::backend::{Backend, Job, Places};
use crate::buffer::{Buffer, Segment};
use crate::engine::handle::FileHandle;
use crate::engine::queue::QueueSettings;
use crate::error::{ErrorKind, Result};
use crate::rules::committed::MappedExtent;
use crate::rules::growth::GrowthConfig;
use crate::rules::marker::{Identity, Prepared};
use crate::rules::merge::Limits;
use crate::rules::policy::Tail;
use crate::rules::recovery::{Extent, Recovery};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{JoinHandle, Mutex, MutexGuard, explore, spawn};
use crate::sys::probe::Alignment;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: u64 = 16;
/// Alignment of positional writes in bytes.
const SECTOR: u64 = 4;
const IDENTITY: Identity = Identity { inode: 1, birth_time: (1, 1) };

/// A block that holds the number of a record in each byte.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Block {
    Empty,
    Cached(u8),
    /// In the cache when a flush failed: it can be read, and never becomes durable.
    Lost(u8),
    Stable(u8),
}

/// A byte of a file. The bits above it hold the number of its write, so the later one is greater.
type Byte = u64;

#[derive(Debug, Default)]
struct Image {
    blocks: Vec<Block>,
    /// The blocks that the journal has committed: without that, no crash leaves them.
    placed: BTreeSet<usize>,
    writes: u64,
    /// Byte by byte: the content that can be read, and the content that survives a crash.
    live: Vec<Byte>,
    stable: Vec<Byte>,
    size: u64,
    is_marked: bool,
    /// Threads that grow the file.
    growers: usize,
}

/// The part of a file that a flush makes durable, as it was at the begin of the flush.
#[derive(Debug)]
struct Flushing {
    cached: Vec<usize>,
    seen: Vec<(usize, Byte)>,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<Image>,
    /// The blocks of each file whose places are in the journal, since a change joined it.
    joined: Option<Vec<BTreeSet<usize>>>,
    /// Number of the next writes and flushes that fail.
    writes_fail: usize,
    flushes_fail: usize,
}

type Device = Arc<Mutex<State>>;

/// One file of a device.
#[derive(Clone, Debug)]
struct Disk {
    device: Device,
    file: usize,
    grows_beside: bool,
}

impl Image {
    fn reach(&mut self, end: u64) {
        let blocks = end.div_ceil(BLOCK) as usize;
        if self.blocks.len() < blocks {
            self.blocks.resize(blocks, Block::Empty);
        }
        self.size = self.size.max(end);
    }

    fn put(&mut self, bytes: &[u8], offset: u64) {
        self.writes += 1;
        let range = offset as usize..offset as usize + bytes.len();
        self.live.resize(self.live.len().max(range.end), 0);
        for (live, byte) in self.live[range].iter_mut().zip(bytes) {
            *live = self.writes << 8 | u64::from(*byte);
        }
    }

    /// The content of the blocks with these numbers.
    fn show(&self, places: &[usize]) -> Vec<(usize, Byte)> {
        let all = places.iter().flat_map(|n| n * BLOCK as usize..(n + 1) * BLOCK as usize);
        all.filter_map(|n| Some((n, *self.live.get(n)?))).collect()
    }

    fn begin_flush(&self, blocks: &[usize]) -> Flushing {
        let is_cached = |n: &&usize| matches!(self.blocks.get(**n), Some(Block::Cached(_)));
        let cached = blocks.iter().filter(is_cached).copied().collect();
        Flushing { cached, seen: self.show(blocks) }
    }

    fn end_flush(&mut self, flushing: Flushing) {
        self.stable.resize(self.live.len().max(self.stable.len()), 0);
        for (n, byte) in flushing.seen {
            self.stable[n] = self.stable[n].max(byte);
        }
        for n in flushing.cached {
            self.placed.insert(n);
            if let Some(block) = self.blocks.get_mut(n)
                && let Block::Cached(number) = *block
            {
                *block = Block::Stable(number);
            }
        }
    }
}

impl State {
    fn fails(left: &mut usize) -> io::Result<()> {
        match left.checked_sub(1) {
            None => Ok(()),
            Some(fewer) => {
                *left = fewer;
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
        }
    }

    fn end_flush(&mut self, flushing: Vec<(usize, Flushing)>) -> io::Result<()> {
        Self::fails(&mut self.flushes_fail).inspect_err(|_| self.lose_the_cache())?;
        flushing.into_iter().for_each(|(file, flushing)| self.files[file].end_flush(flushing));
        Ok(())
    }

    fn lose_the_cache(&mut self) {
        for block in self.files.iter_mut().flat_map(|image| &mut image.blocks) {
            if let Block::Cached(number) = *block {
                *block = Block::Lost(number);
            }
        }
    }
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.device.lock()
    }

    /// Makes these blocks durable, with their places.
    fn flush_blocks(&self, blocks: &[usize]) -> io::Result<()> {
        let flushing = self.state().files[self.file].begin_flush(blocks);
        self.state().end_flush(vec![(self.file, flushing)])
    }
}

impl Backend for Disk {
    fn descriptor(&self) -> BorrowedFd<'_> {
        unimplemented!("no model looks at it")
    }

    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64> {
        let mut bytes = Vec::new();
        segments.iter().for_each(|segment| segment.show(|part| bytes.extend_from_slice(part)));
        let first = (offset / BLOCK) as usize;
        let end = offset + bytes.len() as u64;
        let places: Vec<_> = (first..end.div_ceil(BLOCK) as usize).collect();
        {
            let mut state = self.state();
            State::fails(&mut state.writes_fail)?;
            let image = &mut state.files[self.file];
            image.reach(end);
            for (&n, block) in places.iter().zip(bytes.chunks(BLOCK as usize)) {
                image.blocks[n] = Block::Cached(block[0]);
            }
            image.put(&bytes, offset);
        }
        if dsync {
            self.flush_blocks(&places)?;
        }
        Ok(bytes.len() as u64)
    }

    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64> {
        let state = self.state();
        let room = into.iter().map(Segment::len).sum::<u64>() as usize;
        let live = state.files[self.file].live[offset as usize..].iter().take(room);
        let bytes: Vec<_> = live.map(|live| *live as u8).collect();
        Segment::scatter(into, &bytes);
        Ok(bytes.len() as u64)
    }

    fn flush(&self) -> io::Result<()> {
        self.flush_blocks(&(0..100).collect::<Vec<_>>())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.flush()
    }

    fn physical_size(&self) -> io::Result<u64> {
        Ok(self.state().files[self.file].size)
    }

    fn allocate(&self, _start: u64, end: u64) -> io::Result<()> {
        self.state().files[self.file].reach(end);
        Ok(())
    }

    fn write_zeroes(&self, _start: u64, _end: u64) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        let image = &mut state.files[self.file];
        let blocks = (len / BLOCK) as usize;
        image.blocks.resize(blocks, Block::Empty);
        image.placed.retain(|n| *n < blocks);
        image.size = len;
        Ok(())
    }

    /// No model has another program that writes.
    fn extents(&self, _from: u64) -> io::Result<Vec<Extent>> {
        Ok(Vec::new())
    }

    fn places(&self, range: Range<u64>) -> io::Result<Places> {
        let state = self.state();
        let blocks = (0..).step_by(BLOCK as usize).zip(&state.files[self.file].blocks);
        let written = blocks.filter(|(_, block)| **block != Block::Empty);
        let place = |(start, _)| MappedExtent { start, end: start + BLOCK, physical: start };
        let found = written.filter_map(|block| place(block).part_in(&range)).collect();
        Ok(Places { end: range.end, found })
    }

    fn read_marker(&self) -> io::Result<Option<Vec<u8>>> {
        unimplemented!("no model recovers")
    }

    fn write_marker(&self, _bytes: &[u8]) -> io::Result<()> {
        self.state().files[self.file].is_marked = true;
        Ok(())
    }

    fn remove_marker(&self) -> io::Result<()> {
        self.state().files[self.file].is_marked = false;
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn size_max(&self) -> u64 {
        u64::MAX
    }

    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>> {
        if !self.grows_beside {
            job();
            return Ok(None);
        }
        self.state().files[self.file].growers += 1;
        let disk = self.clone();
        let grower = move || {
            job();
            disk.state().files[disk.file].growers -= 1;
        };
        spawn("grower", grower).map(Some)
    }

    fn unlock(&self) {}
}

/// An open file.
#[derive(Clone)]
struct File {
    engine: Arc<Engine>,
    disk: Disk,
}

/// How a file grows.
#[derive(Clone, Copy, PartialEq)]
enum Grows {
    /// In one step, far beyond the need of a model, with the first record.
    Once,
    /// By the smallest step, in a thread beside the writers.
    Beside,
    /// Not at all: each write moves the size.
    Never,
}

loom::lazy_static!(static ref PROCESS: Process = Process::new(1 << 20););

impl File {
    /// An empty file on a device, beside its other files.
    fn create(device: &Device, fs: &FileSystems, grows: Grows) -> Self {
        Self::create_with(device, fs, grows, Err(String::new()))
    }

    fn create_with(
        device: &Device,
        fs: &FileSystems,
        grows: Grows,
        journal: std::result::Result<Arc<dyn Journal>, String>,
    ) -> Self {
        let file = {
            let mut state = device.lock();
            state.files.push(Image::default());
            state.files.len() - 1
        };
        let disk = Disk { device: device.clone(), file, grows_beside: grows == Grows::Beside };
        Self { engine: Arc::new(Self::engine(&disk, fs, grows, journal)), disk }
    }

    fn engine(
        disk: &Disk,
        fs: &FileSystems,
        grows: Grows,
        journal: std::result::Result<Arc<dyn Journal>, String>,
    ) -> Engine {
        let cap_bytes = if grows == Grows::Beside { BLOCK } else { 64 * BLOCK };
        Engine::new(Parts {
            backend: Arc::new(disk.clone()),
            journal,
            order: None,
            path: Path::new("model").into(),
            process: &PROCESS,
            fs: fs.clone(),
            props: FileProps {
                tail: Tail::Rewrite,
                identity: IDENTITY,
                limits: Limits { bytes_max: 1 << 20, segments_max: 1024 },
                append_unit: BLOCK,
                offset_unit: SECTOR,
                is_device: false,
                writes_through: false,
                without_journal: false,
                overwrites_in_place: true,
                prepared: (grows != Grows::Never).then_some(Prepared::Unwritten),
                epoch: 0,
            },
            alignment: Alignment { memory: 1, offset: SECTOR, append: BLOCK },
            growth_config: GrowthConfig {
                cap_bytes,
                capacity_bytes: None,
                unit_bytes: BLOCK,
                low_water_quarters: 2,
            },
            recovery: Recovery::clean(0),
            held: None,
        })
    }

    /// A file alone on its device, with record 1 in it.
    fn begun(grows: Grows) -> Self {
        let file = Self::create(&Device::default(), &FileSystems::default(), grows);
        assert_eq!(file.append(1, false), Ok(0));
        file
    }

    /// Appends a record. An acknowledged record must be there, with everything below it.
    fn append(&self, number: u8, durable: bool) -> Result<u64> {
        let record = [number; BLOCK as usize];
        let offset = self.engine.append(&record, durable)?;
        assert!(self.engine.len() > offset, "acknowledged beyond the length");
        let state = self.disk.state();
        let blocks = &state.files[self.disk.file].blocks[..=(offset / BLOCK) as usize];
        assert!(!blocks.contains(&Block::Empty), "acknowledged above a gap: {blocks:?}");
        assert!(
            !durable || blocks.iter().all(|block| matches!(block, Block::Stable(_))),
            "{blocks:?}"
        );
        assert_eq!(content(blocks.last().copied()), Some(number));
        Ok(offset)
    }

    /// Appends a record of any length. Each of its bytes must be there, and none below may be
    /// missing.
    fn append_bytes(&self, number: u8, len: u64, durable: bool) -> u64 {
        let offset = self.engine.append(&vec![number; len as usize], durable).unwrap();
        assert!(self.engine.len() >= offset + len, "acknowledged beyond the length");
        let found = self.bytes(offset + len, durable);
        assert_eq!(found[offset as usize..], vec![number; len as usize], "durable: {durable}");
        assert!(!found.contains(&0), "acknowledged above a gap: {found:?}");
        offset
    }

    /// The bytes below `end` that a reader finds, or that a crash leaves.
    fn bytes(&self, end: u64, stable: bool) -> Vec<u8> {
        let state = self.disk.state();
        let image = &state.files[self.disk.file];
        let bytes = if stable { &image.stable } else { &image.live };
        bytes.iter().take(end as usize).map(|byte| *byte as u8).collect()
    }

    /// The records below the length: no space that was only grown.
    fn records(&self) -> Vec<u8> {
        let blocks = self.engine.len() / BLOCK;
        let state = self.disk.state();
        let image = &state.files[self.disk.file];
        (0..blocks)
            .map(|n| content(image.blocks.get(n as usize).copied()).expect("written"))
            .collect()
    }

    /// Whether a record survives a crash.
    fn is_stable(&self, number: u8) -> bool {
        self.disk.state().files[self.disk.file].blocks.contains(&Block::Stable(number))
    }

    /// Closes the file, which then is like any other. No handle of it is left.
    fn close(self) {
        let records = self.records();
        assert_eq!(self.engine.finish(), Ok(()));
        let state = self.disk.state();
        let image = &state.files[self.disk.file];
        assert_eq!((image.size, image.is_marked), (records.len() as u64 * BLOCK, false));
        assert_eq!(image.growers, 0, "still at work on a closed file");
    }

    /// Runs a function on the file in another thread.
    fn beside<R: 'static>(
        &self,
        act: impl FnOnce(&Self) -> R + 'static,
    ) -> loom::thread::JoinHandle<R> {
        let file = self.clone();
        loom::thread::spawn(move || act(&file))
    }
}

fn content(block: Option<Block>) -> Option<u8> {
    match block? {
        Block::Empty => None,
        Block::Cached(number) | Block::Lost(number) | Block::Stable(number) => Some(number),
    }
}

fn sorted(mut records: Vec<u8>) -> Vec<u8> {
    records.sort_unstable();
    records
}

fn is_wedged<R>(result: &Result<R>) -> bool {
    matches!(
        result,
        Err(error) if matches!(error.kind(), ErrorKind::Wedged(_) | ErrorKind::Os(libc::EIO))
    )
}

// --- appends -------------------------------------------------------------------------------------

fn two_append(grows: Grows, durable: [bool; 2]) {
    let file = File::begun(grows);
    let other = file.beside(move |file| file.append(2, durable[0]).unwrap());
    let mine = file.append(3, durable[1]).unwrap();
    let offsets = [mine, other.join().unwrap()];
    assert!(offsets == [BLOCK, 2 * BLOCK] || offsets == [2 * BLOCK, BLOCK], "{offsets:?}");
    assert_eq!(sorted(file.records()), [1, 2, 3]);
    file.close();
}

#[test]
fn loom_two_appends() {
    explore(None, || two_append(Grows::Once, [false, false]));
}

#[test]
fn loom_two_durable_appends() {
    explore(5, || two_append(Grows::Once, [true, true]));
}

#[test]
fn loom_a_durable_append_beside_a_plain_one() {
    explore(6, || two_append(Grows::Once, [true, false]));
}

#[test]
fn loom_two_appends_that_move_the_size_themselves() {
    explore(6, || two_append(Grows::Never, [true, false]));
}

#[test]
fn loom_three_appends() {
    explore(2, || {
        let file = File::begun(Grows::Once);
        let others = [
            file.beside(|file| file.append(2, false).unwrap()),
            file.beside(|file| file.append(3, true).unwrap()),
        ];
        file.append(4, true).unwrap();
        others.into_iter().for_each(|other| assert!(other.join().unwrap() > 0));
        assert_eq!(sorted(file.records()), [1, 2, 3, 4]);
        file.close();
    });
}

#[test]
fn loom_durable_appends_that_come_back_together() {
    explore(3, || {
        let file = File::begun(Grows::Once);
        let other = file.beside(|file| {
            file.append(2, true).unwrap();
            file.append(3, true).unwrap();
        });
        file.append(4, true).unwrap();
        file.append(5, true).unwrap();
        other.join().unwrap();
        assert_eq!(sorted(file.records()), [1, 2, 3, 4, 5]);
        file.close();
    });
}

#[test]
fn loom_a_reader_sees_no_space_that_was_only_grown() {
    explore(None, || {
        let file = File::begun(Grows::Once);
        let reader = file.beside(|file| {
            let first = file.records();
            assert!(file.records().starts_with(&first));
        });
        file.append(2, false).unwrap();
        file.append(3, true).unwrap();
        reader.join().unwrap();
    });
}

/// The last block passes from one writer to the next.
fn two_append_bytes(grows: Grows, durable: [bool; 2]) {
    let file = File::create(&Device::default(), &FileSystems::default(), grows);
    assert_eq!(file.append_bytes(1, 5, false), 0);
    let other = file.beside(move |file| file.append_bytes(2, 6, durable[0]));
    let mine = file.append_bytes(3, 8, durable[1]);
    let (order, offsets) = if mine == 5 { ([3, 2], [5, 13]) } else { ([2, 3], [5, 11]) };
    let mut found = [mine, other.join().unwrap()];
    found.sort_unstable();
    assert_eq!(found, offsets);
    let lens = |number: u8| if number == 2 { 6 } else { 8 };
    let wanted =
        [vec![1; 5], vec![order[0]; lens(order[0])], vec![order[1]; lens(order[1])]].concat();
    assert_eq!(file.bytes(19, false), wanted);
    assert_eq!(file.engine.finish(), Ok(()));
    assert_eq!(file.disk.state().files[file.disk.file].size, 19);
}

#[test]
fn loom_two_appends_to_one_block() {
    explore(5, || two_append_bytes(Grows::Once, [false, false]));
}

#[test]
fn loom_a_durable_append_and_a_plain_one_to_one_block() {
    explore(4, || two_append_bytes(Grows::Once, [true, false]));
}

#[test]
fn loom_two_durable_appends_to_one_block_that_move_the_size_themselves() {
    explore(4, || two_append_bytes(Grows::Never, [true, true]));
}

#[test]
fn loom_an_append_beside_a_positional_write_of_its_block() {
    for durable in [false, true] {
        explore(4, move || {
            let file = File::create(&Device::default(), &FileSystems::default(), Grows::Once);
            assert_eq!(file.append_bytes(1, 10, false), 0);
            let other = file.beside(move |file| {
                file.engine.write_at(&[9; SECTOR as usize], SECTOR, durable).unwrap();
                assert_eq!(
                    file.bytes(2 * SECTOR, durable)[SECTOR as usize..],
                    [9; SECTOR as usize]
                );
            });
            assert_eq!(file.append_bytes(2, 10, durable), 10);
            other.join().unwrap();
            assert_eq!(file.append_bytes(3, 1, false), 20);
            let wanted = [&[1; 4][..], &[9; 4], &[1; 2], &[2; 10], &[3]].concat();
            assert_eq!(file.bytes(21, false), wanted);
            assert_eq!(file.engine.finish(), Ok(()));
        });
    }
}

/// Two writers of one sector, and a reader. `whole` writes the whole sector, and may begin before
/// the file knows of parts.
fn two_writers_of_a_sector(durable: bool, whole: bool) {
    let file = File::create(&Device::default(), &FileSystems::default(), Grows::Once);
    assert_eq!(file.append_bytes(1, 2 * BLOCK, false), 0);
    let other = file.beside(move |file| {
        let (data, offset) = if whole { (vec![9; SECTOR as usize], 0) } else { (vec![9], 0) };
        file.engine.write_at(&data, offset, durable).unwrap();
        assert_eq!(file.bytes(1, durable), [9]);
    });
    file.engine.write_at(&[8, 8], SECTOR - 1, durable).unwrap();
    let mut found = [0; 2];
    assert_eq!(file.engine.read_at(&mut found, SECTOR - 1), Ok(2));
    assert!(found == [8, 8] || whole && found == [9, 8], "{found:?}");
    other.join().unwrap();
    let last = file.bytes(SECTOR + 2, durable);
    if whole {
        assert!(last[..3] == [9; 3] && [8, 9].contains(&last[3]), "{last:?}");
        assert_eq!(last[4..], [8, 1]);
    } else {
        assert_eq!(last, [9, 1, 1, 8, 8, 1]);
    }
    assert_eq!(file.engine.finish(), Ok(()));
}

#[test]
fn loom_two_writers_of_parts_of_a_sector() {
    for durable in [false, true] {
        explore(3, move || two_writers_of_a_sector(durable, false));
    }
}

#[test]
fn loom_a_write_of_a_part_beside_one_of_the_whole_sector() {
    explore(3, || two_writers_of_a_sector(false, true));
}

// --- beside other operations ---------------------------------------------------------------------

#[test]
fn loom_a_sync_makes_stable_what_was_acknowledged_before_it() {
    explore(4, || {
        let file = File::begun(Grows::Once);
        let other = file.beside(|file| file.append(2, true).unwrap());
        file.append(3, false).unwrap();
        file.engine.sync_data().unwrap();
        assert!(file.is_stable(1) && file.is_stable(3));
        other.join().unwrap();
        file.close();
    });
}

#[test]
fn loom_a_truncate_comes_before_an_append_or_after_it() {
    explore(None, || {
        let file = File::begun(Grows::Once);
        let other = file.beside(|file| file.engine.append(&[2; BLOCK as usize], true).unwrap());
        file.engine.set_len(0).unwrap();
        match other.join().unwrap() {
            0 => assert_eq!(file.records(), [2]),
            offset => assert_eq!((offset, file.records()), (BLOCK, vec![])),
        }
        file.close();
    });
}

// --- growth --------------------------------------------------------------------------------------

#[test]
fn loom_the_grower_ends_while_another_append_needs_space() {
    explore(2, || {
        let file = File::create(&Device::default(), &FileSystems::default(), Grows::Beside);
        let other = file.beside(|file| file.append(1, false).unwrap());
        file.append(2, false).unwrap();
        other.join().unwrap();
        assert_eq!(sorted(file.records()), [1, 2]);
        file.close();
    });
}

#[test]
fn loom_no_thread_grows_a_closed_file() {
    explore(3, || {
        let file = File::create(&Device::default(), &FileSystems::default(), Grows::Beside);
        file.append(1, true).unwrap();
        file.append(2, false).unwrap();
        file.close();
    });
}

#[test]
fn loom_a_file_is_truncated_while_it_grows() {
    explore(3, || {
        let file = File::create(&Device::default(), &FileSystems::default(), Grows::Beside);
        file.append(1, false).unwrap();
        file.engine.set_len(0).unwrap();
        assert_eq!(file.append(2, false), Ok(0));
        file.close();
    });
}

// --- failures ------------------------------------------------------------------------------------

#[test]
fn loom_a_failed_flush_fails_all_that_it_was_to_make_stable() {
    explore(5, || {
        let file = File::begun(Grows::Once);
        file.disk.state().flushes_fail = 1;
        let other = file.beside(|file| file.append(2, true));
        let mine = file.append(3, true);
        let theirs = other.join().unwrap();
        assert!(mine.is_ok() || is_wedged(&mine), "{mine:?}");
        assert!(theirs.is_ok() || is_wedged(&theirs), "{theirs:?}");
        assert!(is_wedged(&mine) || is_wedged(&theirs), "somebody is told");
        assert!(matches!(file.append(4, false).unwrap_err().kind(), ErrorKind::Wedged(_)));
        assert!(file.engine.finish().is_err());
    });
}

#[test]
fn loom_a_failed_flush_of_one_file_is_no_success_of_another() {
    explore(None, || {
        let (device, fs) = (Device::default(), Arc::default());
        let file = File::create(&device, &fs, Grows::Once);
        let beside = File::create(&device, &fs, Grows::Once);
        assert_eq!((file.append(1, false), beside.append(1, false)), (Ok(0), Ok(0)));
        device.lock().flushes_fail = 1;
        let other = beside.beside(|beside| beside.append(2, true));
        let mine = file.append(3, true);
        let theirs = other.join().unwrap();
        assert!(is_wedged(&mine) || is_wedged(&theirs), "somebody is told");
        assert!(file.append(4, false).is_err() && beside.append(4, false).is_err());
    });
}

#[test]
fn loom_a_failed_write_fails_all_above_it() {
    explore(None, || {
        let file = File::begun(Grows::Once);
        file.disk.state().writes_fail = 1;
        let other = file.beside(|file| file.append(2, false));
        let mine = file.append(3, false);
        let theirs = other.join().unwrap();
        assert!(mine.is_err() || theirs.is_err(), "somebody is told");
        let acknowledged = usize::from(mine.is_ok()) + usize::from(theirs.is_ok());
        assert!(file.records().len() > acknowledged);
        let ended = file.append(4, false).unwrap_err();
        assert!(matches!(ended.kind(), ErrorKind::AppendEnded(_)), "{ended}");
        file.engine.set_len(file.engine.len()).unwrap();
        file.append(5, true).unwrap();
        file.close();
    });
}

// --- queues --------------------------------------------------------------------------------------

/// A queue of plain calls, with an append of a record that is submitted later.
fn queue_with(file: &File, number: u8, durable: bool) -> Rc<RefCell<Driver>> {
    let driver = Driver::new(
        &PROCESS,
        &QueueSettings { depth: 1, io_uring: false, ..QueueSettings::default() },
        None,
    );
    let key =
        Key { dev: 1, inode: Some(file.disk.file as u64), part: crate::sys::probe::Part::Whole };
    let inner = FileHandle::Writer { engine: file.engine.clone(), key, process: &PROCESS, durable };
    let record = Buffer::from(&[number; BLOCK as usize][..]);
    driver
        .borrow_mut()
        .queue(&inner, OpKind::Append, Some(record.into()), 0)
        .expect("there is room");
    driver
}

/// Returns the result of its operation.
fn reap(driver: Rc<RefCell<Driver>>) -> Result<u64> {
    driver.borrow_mut().reap(1);
    let done = driver.borrow_mut().next().expect("one was submitted");
    done.result
}

#[test]
fn loom_an_append_of_a_queue_and_one_beside_it() {
    for durable in [false, true] {
        explore(5, move || {
            let file = File::begun(Grows::Once);
            let driver = queue_with(&file, 2, durable);
            let other = file.beside(move |file| file.append(3, durable).unwrap());
            let offsets = [reap(driver).unwrap(), other.join().unwrap()];
            assert_eq!(sorted(offsets.map(|offset| (offset / BLOCK) as u8).to_vec()), [1, 2]);
            assert_eq!(sorted(file.records()), [1, 2, 3]);
            assert!(!durable || file.is_stable(2));
            file.close();
        });
    }
}

#[test]
fn loom_a_truncate_never_overtakes_an_append_of_a_queue() {
    explore(None, || {
        let file = File::begun(Grows::Once);
        let driver = queue_with(&file, 2, false);
        let other = file.beside(|file| file.engine.set_len(0).unwrap());
        let offset = reap(driver).unwrap();
        other.join().unwrap();
        match offset {
            0 => assert_eq!(file.records(), [2]),
            offset => assert_eq!((offset, file.records()), (BLOCK, vec![])),
        }
        file.close();
    });
}

#[test]
fn loom_a_queue_appended_to_a_file_that_was_closed() {
    explore(None, || {
        let file = File::begun(Grows::Once);
        let driver = queue_with(&file, 2, false);
        let other = file.beside(|file| file.engine.finish().unwrap());
        let result = reap(driver);
        other.join().unwrap();
        let blocks = file.disk.state().files[file.disk.file].size / BLOCK;
        match result {
            Ok(offset) => assert_eq!((offset, blocks), (BLOCK, 2)),
            Err(error) => assert_eq!((error.kind(), blocks), (&ErrorKind::Os(libc::EBADF), 1)),
        }
    });
}

/// The open counted before readers found its engine. A read in between took the blocks of a record
/// for its length.
#[test]
fn loom_a_reader_met_the_count_of_an_open_without_its_engine() {
    explore(None, || {
        let device = Device::default();
        device.lock().files.push(Image::default());
        let disk = Disk { device, file: 0, grows_beside: false };
        let key = Key { dev: 1, inode: Some(0), part: crate::sys::probe::Part::Whole };
        let writing = spawn("writer", {
            let disk = disk.clone();
            move || {
                let fs = FileSystems::default();
                let opening = || Ok(File::engine(&disk, &fs, Grows::Never, Err(String::new())));
                PROCESS.registry.open(key, opening).expect("it is made");
                disk.state().files[0].size = BLOCK;
            }
        });
        let registry = &PROCESS.registry;
        let opens = registry.opens(key);
        if registry.writer(key).is_none() {
            let size = disk.state().files[0].size;
            assert!(size == 0 || registry.opens(key) != opens, "whole blocks are no length");
        }
        writing.expect("it is started").join();
        disk.state().files[0].size = 0;
        registry.leave(key).expect("it closes");
    });
}

// --- futures -------------------------------------------------------------------------------------

/// A file for futures, with its disk and the count of their memory.
struct Futures {
    file: Arc<AsyncFile>,
    disk: Disk,
    count: Arc<()>,
}

impl Futures {
    fn new(reactor: Reactor) -> Self {
        let device = Device::default();
        device.lock().files.push(Image::default());
        let disk = Disk { device, file: 0, grows_beside: false };
        let key = Key { dev: 1, inode: Some(0), part: crate::sys::probe::Part::Whole };
        let made = PROCESS.registry.open(key, || {
            Ok(File::engine(&disk, &FileSystems::default(), Grows::Once, Err(String::new())))
        });
        let engine = made.expect("it is made");
        let file =
            crate::File::of(FileHandle::Writer { engine, key, process: &PROCESS, durable: false });
        Self { file: Arc::new(reactor.attach(file)), disk, count: Arc::default() }
    }

    /// A file whose reactor has a thread, which ends with it.
    fn beside() -> Self {
        Self::new(Reactor::of(Handle::with_thread(&PROCESS, &plain_calls())))
    }

    fn memory(&self, number: u8) -> Counted {
        Counted::of(&self.count, number, BLOCK as usize)
    }

    /// Closes the file. All memory is free then, and no record was written from freed memory.
    fn close(self) -> Vec<u8> {
        Arc::into_inner(self.file)
            .expect("this is the last reference")
            .into_inner()
            .close()
            .expect("it closes");
        assert_eq!(Arc::strong_count(&self.count), 1, "memory was lost");
        let state = self.disk.state();
        let blocks =
            state.files[0].blocks.iter().map(|block| content(Some(*block)).expect("no gap"));
        let records: Vec<u8> = blocks.collect();
        assert!(!records.contains(&POISON), "memory was freed early");
        sorted(records)
    }
}

fn plain_calls() -> QueueSettings {
    QueueSettings { depth: 2, io_uring: false, ..QueueSettings::default() }
}

#[test]
fn loom_a_future_is_told_what_came_of_it() {
    explore(3, || {
        let futures = Futures::beside();
        let (appended, memory) = block_on(futures.file.append(futures.memory(2)));
        assert_eq!((appended, memory.bytes[0]), (Ok(0), 2));
        drop(memory);
        assert_eq!(futures.close(), [2]);
    });
}

#[test]
fn loom_a_future_is_dropped_while_it_is_begun() {
    explore(3, || {
        let futures = Futures::beside();
        let mut append = futures.file.append(futures.memory(2));
        assert!(!poll_once(&mut append));
        drop(append);
        let records = futures.close();
        assert!(records.is_empty() || records == [2], "{records:?}");
    });
}

#[test]
fn loom_a_future_is_polled_with_another_waker_while_it_finishes() {
    explore(3, || {
        let futures = Futures::beside();
        let mut append = futures.file.append(futures.memory(2));
        assert!(!poll_once(&mut append));
        assert_eq!(block_on(append).0, Ok(0));
        assert_eq!(futures.close(), [2]);
    });
}

#[test]
fn loom_one_future_is_dropped_beside_another_that_is_told() {
    explore(2, || {
        let futures = Futures::beside();
        let (file, memory) = (futures.file.clone(), futures.memory(3));
        let other = loom::thread::spawn(move || poll_once(&mut file.append(memory)));
        let (appended, memory) = block_on(futures.file.append(futures.memory(2)));
        drop(memory);
        assert!(!other.join().unwrap());
        let offset = appended.unwrap() / BLOCK;
        let records = futures.close();
        assert!(records == [2] || records == [2, 3], "{records:?} {offset}");
    });
}

/// The driving thread comes and goes. The operation that was listed last is refused.
#[test]
fn loom_the_driving_thread_wakes_a_future_of_another_thread() {
    explore(3, || {
        let (handle, worker) = Handle::with_worker(&PROCESS, &plain_calls());
        let futures = Futures::new(Reactor::of(handle));
        let (file, memory) = (futures.file.clone(), futures.memory(2));
        let other = loom::thread::spawn(move || block_on(file.append(memory)).0);
        worker.try_turn();
        drop(worker);
        let result = other.join().unwrap();
        let records = futures.close();
        match result {
            Ok(0) => assert_eq!(records, [2]),
            result => {
                assert_eq!(
                    (result.unwrap_err().kind(), records),
                    (&ErrorKind::Os(libc::ECANCELED), vec![])
                )
            }
        }
    });
}

#[test]
fn loom_a_worker_that_sleeps_is_woken_by_what_is_listed() {
    explore(3, || {
        let (handle, worker) = Handle::with_worker(&PROCESS, &plain_calls());
        let futures = Futures::new(Reactor::of(handle));
        let (file, memory) = (futures.file.clone(), futures.memory(2));
        let told = Arc::new(AtomicBool::new(false));
        let other = {
            let (told, bell) = (told.clone(), worker.bell());
            loom::thread::spawn(move || {
                let result = block_on(file.append(memory)).0;
                told.store(true, Ordering::Release);
                bell.ring();
                result
            })
        };
        while !told.load(Ordering::Acquire) {
            worker.turn();
        }
        assert_eq!(other.join().unwrap(), Ok(0));
        drop(worker);
        assert_eq!(futures.close(), [2]);
    });
}
