//! Reads of any range into any memory, on real file systems and devices.

mod common;

use common::*;
use dioxide::{Buffer, File, OpenOptions};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::lab::{Disk, Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Fills memory before a read; never in a file.
const UNTOUCHED: u8 = 0xEE;

/// Bytes after the acknowledged ones.
const NOT_YET: u8 = 0xDD;

/// The byte at this offset of a file: none of the others, nor zero.
fn byte_at(place: u64) -> u8 {
    (place % 199 + place / BLOCK_BYTES % 7) as u8 + 1
}

fn content(len: u64) -> Vec<u8> {
    (0..len).map(byte_at).collect()
}

/// Reads into `into`, and checks the bytes of a file of `len` bytes. Nothing above EOF may be
/// returned.
fn check(file: &impl Transfers, len: u64, into: &mut [u8], offset: u64) {
    into.fill(UNTOUCHED);
    let read = file.read_at(into, offset).expect("reading works");
    let at = || format!("{} bytes at {offset} of {len}", into.len());
    assert_eq!(read as u64, len.saturating_sub(offset).min(into.len() as u64), "{}", at());
    let right = |(byte, place): (&u8, u64)| *byte == byte_at(place);
    assert!(into[..read].iter().zip(offset..).all(right), "{}: not what was written", at());
    assert!(
        into[read..].iter().all(|byte| [0, UNTOUCHED].contains(byte)),
        "{}: above the end",
        at()
    );
}

/// All ranges that begin and end near the borders of blocks and sectors, into memory of each
/// alignment.
fn check_borders(file: &impl Transfers, len: u64) {
    let mut memory = Buffer::zeroed(4 * BLOCK);
    let near = [0, 1, 511, 512, 4095, 4096, 4097, 8192, 9000];
    for (offset, room) in near.into_iter().flat_map(|offset| near.map(|room| (offset, room))) {
        for skip in [0, 1, 4, 512] {
            check(file, len, &mut memory[skip..][..room], offset as u64);
        }
    }
}

/// Checks every kind of handle for a file of `len` bytes without a writer.
fn check_handles(path: &Path, len: u64, way: Way) -> TrialResult {
    fs::write(path, content(len))?;
    let reader = way.to(File::open(path)?);
    check_borders(&reader, len);
    let file = way.open(&writable(), path)?;
    check_borders(&file, len);
    check_borders(&reader, len);
    file.close()?;
    assert_tidy(path, len)?;
    Ok(())
}

fn any_range_of_a_file(dir: TestDir, way: Way) -> TrialResult {
    [0, 1, 600, BLOCK_BYTES, 5000, 3 * BLOCK_BYTES - 1]
        .iter()
        .try_for_each(|len| check_handles(&dir.join(len.to_string()), *len, way))
}

fn any_range_in_large_sectors(fs: Fs, way: Way) -> TrialResult {
    let volume = Volume::with_large_sectors(fs, SIZE_MIN)?;
    for len in [100, 5000, 2 * BLOCK_BYTES] {
        let path = volume.path().join(len.to_string());
        check_handles(&path, len, way)?;
        assert_eq!(File::open(&path)?.alignment().offset, BLOCK_BYTES, "nothing was tested");
    }
    Ok(())
}

fn any_range_of_a_device(disk: Disk, way: Way) -> TrialResult {
    let file = way.open(OpenOptions::new().write(true), &*disk)?;
    let len = 3 * BLOCK_BYTES;
    let mut whole = Buffer::zeroed(len as usize);
    whole.copy_from_slice(&content(len));
    let end = file.len()? - len;
    file.write_at(&whole, end)?;
    let reader = way.to(File::open(&*disk)?);
    let mut memory = Buffer::zeroed(4 * BLOCK);
    for file in [&file, &reader] {
        for (at, room) in [0, 1, 4095, 5000, 12000]
            .into_iter()
            .flat_map(|at| [1, 90, 512, 9000].map(|room| (at, room)))
        {
            let into = &mut memory[3..][..room];
            let read = file.read_at(into, end + at)?;
            let there = &whole[at as usize..];
            assert!(
                into[..read] == there[..there.len().min(room)],
                "{room} bytes at {at} before the end"
            );
        }
    }
    file.close()?;
    Ok(())
}

/// Longer than one bounce, and with a middle that may or may not be read directly.
fn a_long_read_of_an_odd_range(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let len = 5 * MIB + 77;
    fs::write(&path, content(len))?;
    let file = way.open(&writable(), &path)?;
    let mut memory = Buffer::zeroed(6 << 20);
    for (offset, skip) in [(0, 0), (0, 1), (100, 0), (100, 100), (4000, 4000), (3 * MIB, 512)] {
        for room in [70_000, 2 << 20, (5 << 20) + 3] {
            check(&file, len, &mut memory[skip..][..room], offset);
        }
    }
    file.close()?;
    Ok(())
}

// --- beside writers ------------------------------------------------------------------------------

/// The acknowledged bytes of the last block are the same before and after its rewrite.
fn what_was_acknowledged_is_read_while_the_last_block_is_rewritten(
    dir: TestDir,
    way: Way,
) -> TrialResult {
    let path = dir.join("log");
    for (len, seed) in [(BLOCK_BYTES + 700, 1), (3 * BLOCK_BYTES - 1, 2)] {
        fs::write(&path, content(len))?;
        let file = way.open(&writable(), &path)?;
        let (rewrites, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| rewrite_last_block(&path, len, &rewrites, &done));
            let _over = Over(&done);
            together(3, |reader| {
                let mut random = Random::new(seed * 10 + reader);
                let mut memory = Buffer::zeroed(4 * BLOCK);
                let begun = Instant::now();
                while is_too_early(begun, rewrites.load(SeqCst)) {
                    let offset = len.saturating_sub(random.below(2 * BLOCK_BYTES));
                    let (room, skip) =
                        (1 + random.below(2 * BLOCK_BYTES), random.below(2) * random.below(600));
                    check(&file, len, &mut memory[skip as usize..][..room as usize], offset);
                    check(&file, len, &mut memory, offset / BLOCK_BYTES * BLOCK_BYTES);
                }
            });
        });
        assert!(rewrites.load(SeqCst) > MET_MIN, "it was hardly ever rewritten");
        // Another program has extended it, so a close would fail.
        drop(file);
    }
    Ok(())
}

/// Rewrites the last block of a file directly, with changing bytes after EOF.
fn rewrite_last_block(path: &Path, len: u64, rewrites: &AtomicU64, done: &AtomicBool) {
    let start = len / BLOCK_BYTES * BLOCK_BYTES;
    let mut block = Buffer::zeroed(BLOCK);
    let file = fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("it opens");
    while !done.load(SeqCst) {
        let number = rewrites.fetch_add(1, SeqCst);
        for (byte, place) in block.iter_mut().zip(start..) {
            *byte = if place < len { byte_at(place) } else { NOT_YET - (number % 2) as u8 };
        }
        file.write_all_at(&block, start).expect("it writes");
    }
}

/// Appends pieces of any length, with the bytes of their offsets, until `told` returns false.
/// `told` gets the end of the file.
fn append_content(file: &impl Transfers, mut told: impl FnMut(u64) -> bool) {
    let mut random = Random::new(1);
    let mut end = 0;
    loop {
        let len_max = 1 + random.below(5000);
        let piece: Vec<u8> = (end..=end + random.below(len_max)).map(byte_at).collect();
        assert_eq!(file.append(&piece).expect("there is space"), end);
        end += piece.len() as u64;
        if !told(end) {
            return;
        }
    }
}

fn append_for_ever(acks: &Acks, args: &[String]) {
    let file = writable().growth_cap(MIB).open(&args[0]).expect("it opens");
    append_content(&file, |end| {
        acks.send([end, 0, 0]);
        true
    });
}

/// Reads and checks a range near the acknowledged `end`. Bytes above it are already written or, if
/// `if_cleared`, zeros to the end of the block.
fn check_near(
    file: &impl Transfers,
    end: u64,
    if_cleared: bool,
    random: &mut Random,
    memory: &mut [u8],
) {
    let offset = end - 1 - random.below(end.min(3 * BLOCK_BYTES));
    let room = 1 + random.below(7 * BLOCK_BYTES);
    let into = &mut memory[random.below(600) as usize..][..room as usize];
    into.fill(UNTOUCHED);
    let read = file.read_at(into, offset).expect("reading works");
    assert!(
        read as u64 >= room.min(end - offset),
        "{read} of {room} at {offset}, {end} was acknowledged"
    );
    for (byte, place) in into[..read].iter().zip(offset..) {
        let right = *byte == byte_at(place) || *byte == 0 && place >= end && if_cleared;
        assert!(right, "{byte} at {place}, {end} was acknowledged");
    }
    assert!(
        into[read..].iter().all(|byte| [0, UNTOUCHED].contains(byte)),
        "at {offset}: above the end"
    );
}

/// The last block is rewritten again and again.
fn any_range_beside_who_appends(dir: TestDir, way: Way) -> TrialResult {
    let file = way.open(writable().growth_cap(MIB), dir.join("log"))?;
    let (acknowledged, overtaken) = (AtomicU64::new(0), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            append_content(&file, |end| {
                acknowledged.store(end, SeqCst);
                !done.load(SeqCst)
            });
        });
        let _over = Over(&done);
        together(3, |reader| {
            let (mut random, mut memory) = (Random::new(reader), Buffer::zeroed(8 * BLOCK));
            let begun = Instant::now();
            while is_too_early(begun, overtaken.load(SeqCst)) {
                let end = acknowledged.load(SeqCst);
                if end > 0 {
                    check_near(&file, end, false, &mut random, &mut memory);
                    overtaken.fetch_add(u64::from(acknowledged.load(SeqCst) > end), SeqCst);
                }
            }
        });
    });
    assert!(overtaken.load(SeqCst) > MET_MIN, "hardly a read met an append");
    assert!(file.stats().tail_rewrites > 0, "the last block was never written again");
    file.close()?;
    Ok(())
}

/// Reads return all acknowledged bytes. Others are final, or zeros to the end of the block.
fn any_range_beside_another_process(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let mut writer = child::spawn("append_for_ever", &[&path.to_string_lossy()])?;
    let mut end = writer.wait_for_acks(10, PATIENCE)?[9][0];
    let reader = way.to(File::open(&path)?);
    let (mut random, mut memory) = (Random::new(1), Buffer::zeroed(8 * BLOCK));
    let (begun, mut met) = (Instant::now(), 0);
    while is_too_early(begun, met) {
        // All acknowledgements so far.
        let _ = writer.wait_for_acks(usize::MAX, Duration::ZERO);
        let last = writer.wait_for_acks(10, Duration::ZERO)?.last().map_or(end, |ack| ack[0]);
        met += u64::from(last > end);
        end = last;
        check_near(&reader, end, true, &mut random, &mut memory);
    }
    assert!(met > MET_MIN, "hardly a read met an append");
    writer.kill_9()?;
    Ok(())
}

fn trials() -> Vec<Trial> {
    let in_every_way: &[LabTestInAWay] = named![
        any_range_of_a_file,
        a_long_read_of_an_odd_range,
        what_was_acknowledged_is_read_while_the_last_block_is_rewritten,
        any_range_beside_who_appends,
        any_range_beside_another_process,
    ];
    let mut trials: Vec<_> = in_every_way
        .iter()
        .flat_map(|&(name, test)| lab_trials_in(Way::ALL, name, |_| Ok(()), test))
        .collect();
    trials.extend(volume_trials_in(
        Way::ALL,
        "any_range_in_large_sectors",
        |fs| match fs {
            Fs::Ext4 | Fs::Xfs => Ok(()),
            _ => Err("two kinds of file systems are enough"),
        },
        any_range_in_large_sectors,
    ));
    trials.extend(disk_trials_in(Way::ALL, "any_range_of_a_device", any_range_of_a_device));
    trials
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("append_for_ever", append_for_ever)], trials)
}
