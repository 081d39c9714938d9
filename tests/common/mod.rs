//! Shared code of the tests: records that identify themselves, and small checks of files.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

use dioxide::{Buffer, Error, ErrorKind, Growth, OpenOptions, Tail};
use dioxide_testkit::child::Acks;
use dioxide_testkit::files;
use dioxide_testkit::fuse_disk::FuseDisk;
use dioxide_testkit::lab::{Disk, Fs, TestDir};
use dioxide_testkit::trials::TrialResult;
use rustix::fs::{Mode, OFlags};
use std::cell::Cell;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

mod frames;
mod join;
mod way;

pub use dioxide_testkit::records::{Frame, Random, Stamp};
pub use frames::*;
pub use join::*;
pub use way::*;

pub type LabTest = (&'static str, fn(TestDir) -> TrialResult);
/// Tests that take a way.
pub type LabTestInAWay = (&'static str, fn(TestDir, Way) -> TrialResult);
pub type VolumeTestInAWay = (&'static str, fn(Fs, Way) -> TrialResult);
pub type VolumeTest = (&'static str, fn(Fs) -> TrialResult);
pub type DiskTest = (&'static str, fn(Disk) -> TrialResult);

/// The growth of a file on `fs` that asks for `growth`.
pub fn growth_on(fs: Fs, growth: Growth) -> Growth {
    let possible = match growth {
        Growth::Unwritten => fs.grows_unwritten().is_ok(),
        Growth::Zeroed => fs.grows_zeroed().is_ok(),
        Growth::None => true,
    };
    if possible { growth } else { Growth::None }
}

/// The timeout of a wait. On a busy machine milliseconds may become seconds, but a hang lasts
/// forever.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until another thread or process makes `holds` true. Returns whether it is.
pub fn soon(holds: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !holds() && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    holds()
}

/// Sets the flag at the end, even after a panic. A scope waits for its threads, so one that loops
/// until the flag is set would turn a failure into a hang.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// The minimum number of reads that overlap a write.
pub const MET_MIN: u64 = 20;

/// Returns whether readers must go on: for a minimum time, and on a busy machine until they have
/// overlapped enough writes.
pub fn is_too_early(begun: Instant, met: u64) -> bool {
    let time = begun.elapsed();
    time < Duration::from_millis(700) || met <= MET_MIN && time < PATIENCE
}

/// Overwrites buffers once no operation may read them any more.
pub const POISON: u8 = 0xDE;

/// Returns whether a device can be opened exclusively soon. A program that another test starts has
/// copies of descriptors for a moment.
pub fn can_be_taken(disk: &Path) -> bool {
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    soon(|| rustix::fs::open(disk, flags, Mode::empty()).is_ok())
}

/// Waits until background growth ends.
pub fn wait_until_grown(path: &Path) -> io::Result<()> {
    let mut size = 0;
    while size != fs::metadata(path)?.len() {
        size = fs::metadata(path)?.len();
        thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

/// Opens after a crash, without growth.
pub fn reopen(path: &Path) -> dioxide::Result<dioxide::File> {
    reopen_with(OpenOptions::new().write(true), path)
}

/// Opens after a crash. On a busy machine a killed process keeps its files open for longer than an
/// open waits.
pub fn reopen_with(options: &OpenOptions, path: &Path) -> dioxide::Result<dioxide::File> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match options.open(path) {
            Err(error) if *error.kind() == ErrorKind::Locked && Instant::now() < deadline => {}
            opened => return opened,
        }
    }
}

/// Looks for a sector of poison on the whole disk.
pub fn finds_poison(disk: &FuseDisk) -> io::Result<bool> {
    let mut image = fs::File::open(disk.image())?;
    let mut piece = vec![0; 1 << 20];
    loop {
        let len = image.read(&mut piece)?;
        if len == 0 {
            return Ok(false);
        }
        if piece[..len].chunks(512).any(|sector| sector.iter().all(|byte| *byte == POISON)) {
            return Ok(true);
        }
    }
}

/// A list of tests, each with its name.
macro_rules! named {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test)),*] };
}
pub(crate) use named;

/// The append unit of the lab's file systems.
pub const BLOCK: usize = 4096;
pub const BLOCK_BYTES: u64 = BLOCK as u64;
pub const MIB: u64 = 1 << 20;

/// Record `number` of `writer`, of `blocks` blocks.
pub fn record(writer: u64, number: u64, blocks: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(blocks as usize * BLOCK);
    for (part, block) in buffer.chunks_exact_mut(BLOCK).enumerate() {
        Stamp { writer, number, part: part as u64 }.fill(block);
    }
    buffer
}

/// A record, and its acknowledged offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    pub offset: u64,
    pub writer: u64,
    pub number: u64,
    pub blocks: u64,
}

impl Placed {
    pub fn end(&self) -> u64 {
        self.offset + self.blocks * BLOCK_BYTES
    }

    pub fn to_ack(self) -> [u64; 3] {
        [self.offset, self.writer << 32 | self.number, self.blocks]
    }

    pub fn from_ack([offset, name, blocks]: [u64; 3]) -> Self {
        Self { offset, writer: name >> 32, number: name & 0xFFFF_FFFF, blocks }
    }

    /// Returns whether `content`, the bytes of the file from 0, has the whole record.
    pub fn is_in(&self, content: &[u8]) -> bool {
        let Some(bytes) = content.get(self.offset as usize..self.end() as usize) else {
            return false;
        };
        bytes.chunks_exact(BLOCK).zip(0..).all(|(block, part)| {
            Stamp::of(block) == Some(Stamp { writer: self.writer, number: self.number, part })
        })
    }
}

/// Appends record `number` of `writer`.
pub fn append(
    file: &impl Transfers,
    writer: u64,
    number: u64,
    blocks: u64,
) -> dioxide::Result<Placed> {
    let offset = file.append(&record(writer, number, blocks))?;
    Ok(Placed { offset, writer, number, blocks })
}

/// Appends `count` records of one to four blocks.
pub fn append_many(file: &impl Transfers, writer: u64, count: u64) -> Vec<Placed> {
    let mut random = Random::new(writer);
    let blocks: Vec<_> = (0..count).map(|_| 1 + random.below(4)).collect();
    let mut placed = Vec::new();
    append_while(
        file,
        writer,
        |number| blocks.get(number as usize).copied(),
        |result| {
            placed.push(result.expect("there is space"));
            true
        },
    );
    placed.sort_by_key(|record: &Placed| record.number);
    assert_eq!(placed.len() as u64, count);
    placed
}

/// Appends records of these numbers of blocks in order. Ends after the last one, or when `told`
/// returns false. `told` also gets the results that were then in flight.
pub fn append_while(
    file: &impl Transfers,
    writer: u64,
    blocks: impl Fn(u64) -> Option<u64>,
    mut told: impl FnMut(dioxide::Result<Placed>) -> bool,
) {
    let (mut number, goes_on) = (0.., Cell::new(true));
    let mut next = || {
        let number = number.next().filter(|_| goes_on.get())?;
        blocks(number).map(|blocks| record(writer, number, blocks))
    };
    file.append_all(&mut next, &mut |number, result| {
        let blocks = blocks(number).expect("it was appended");
        if !told(result.map(|offset| Placed { offset, writer, number, blocks })) {
            goes_on.set(false);
        }
    });
}

/// Checks that the records are adjacent from `start` on, without a gap or an overlap. Returns their
/// end.
pub fn assert_gapless(placed: &[Placed], start: u64) -> u64 {
    let mut sorted = placed.to_vec();
    sorted.sort_unstable();
    sorted.iter().fold(start, |end, record| {
        assert_eq!(record.offset, end, "a gap or an overlap at {record:?}");
        record.end()
    })
}

/// Checks that each record is at its acknowledged offset.
pub fn assert_all_there(content: &[u8], placed: &[Placed]) {
    for record in placed {
        assert!(record.is_in(content), "lost: {record:?} in a file of {} bytes", content.len());
    }
}

/// The end of the records from `start` on: the first block that is not one.
pub fn end_of_records(content: &[u8], start: u64) -> u64 {
    let whole = content[start as usize..]
        .chunks_exact(BLOCK)
        .take_while(|block| Stamp::of(block).is_some());
    start + whole.count() as u64 * BLOCK_BYTES
}

/// Checks that the file is as another program would leave it.
pub fn assert_tidy(path: &Path, len: u64) -> io::Result<()> {
    assert_eq!(std::fs::metadata(path)?.len(), len, "size");
    assert_eq!(files::marker(path)?, None, "marker");
    let end = || -> io::Result<u64> {
        Ok(files::extents(path)?.last().map_or(0, |extent| extent.start + extent.len))
    };
    let blocks_end = len.next_multiple_of(BLOCK_BYTES);
    if end()? > blocks_end {
        // After a failed write, XFS frees the block past EOF when the file is closed, unless its
        // inode is locked at that moment. The next close does. Space from fallocate stays.
        std::fs::OpenOptions::new().write(true).open(path)?;
    }
    let end = end()?;
    assert!(end <= blocks_end, "space up to {end} in a file of {len}");
    Ok(())
}

/// Options that write, and create if needed.
pub fn writable() -> OpenOptions {
    OpenOptions::new().write(true).create(true).clone()
}

/// Returns the error kind of a result that must have failed.
pub fn refusal<T>(result: dioxide::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => error.kind().clone(),
    }
}

/// Runs `work` in `count` threads, each with its number.
pub fn together<T: Send>(count: u64, work: impl Fn(u64) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|n| {
                scope.spawn({
                    let work = &work;
                    move || work(n)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
    })
}

/// Parses the name of a growth, an argument of a child.
pub fn growth_named(name: &str) -> Growth {
    match name {
        "unwritten" => Growth::Unwritten,
        "zeroed" => Growth::Zeroed,
        "none" => Growth::None,
        other => panic!("no growth is called {other}"),
    }
}

pub const GROWTHS: [Growth; 3] = [Growth::Unwritten, Growth::Zeroed, Growth::None];
pub const TAILS: [Tail; 2] = [Tail::Rewrite, Tail::Pad];

/// Parses the name of a tail, an argument of a child.
pub fn tail_named(name: &str) -> Tail {
    match name {
        "rewrite" => Tail::Rewrite,
        "pad" => Tail::Pad,
        other => panic!("no tail is called {other}"),
    }
}

/// Reports the result of an operation to the parent: 0 for success.
pub fn tell<T>(acks: &Acks, result: &dioxide::Result<T>) {
    let (code, errno) =
        result.as_ref().err().map_or((0, 0), |error| (code_of(error), error.errno()));
    acks.send([code, errno as u64, 0]);
}

pub const LOCKED: u64 = 1;
pub const BUSY: u64 = 2;
pub const NO_SPACE: u64 = 3;
const OTHER: u64 = 99;

fn code_of(error: &Error) -> u64 {
    match error.kind() {
        ErrorKind::Locked => LOCKED,
        ErrorKind::Busy(_) => BUSY,
        ErrorKind::NoSpace(_) => NO_SPACE,
        _ => OTHER,
    }
}

/// A scenario for children: opens args[0] for writing, and reports the result.
pub fn try_to_open(acks: &Acks, args: &[String]) {
    tell(acks, &OpenOptions::new().write(true).open(&args[0]));
}

/// Runs a command of btrfs-progs on a path.
pub fn btrfs(words: &[&str], path: &Path) -> io::Result<()> {
    let output = Command::new("btrfs").args(words).arg(path).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}
