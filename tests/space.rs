//! Full disks and size limits: appends fail cleanly, leave no hole, and work again with space.

mod common;

use common::*;
use dioxide::{Durability, ErrorKind, File, Growth, OpenOptions};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials, volume_trials};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use rustix::fs::FallocateFlags;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Takes all free space but `rest` bytes. Removed again, it gives it back.
fn fill_up(volume: &Volume, rest: u64) -> io::Result<PathBuf> {
    let path = volume.path().join("filler");
    let filler = fs::File::create(&path)?;
    let stat = rustix::fs::fstatvfs(&filler)?;
    let mut len = 0;
    let mut step = (stat.f_bavail * stat.f_frsize).saturating_sub(rest) / BLOCK_BYTES * BLOCK_BYTES;
    while step >= BLOCK_BYTES {
        match take(&filler, len, step) {
            Ok(()) => len += step,
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {}
            Err(error) => return Err(error),
        }
        step = if rest == 0 { step / 2 / BLOCK_BYTES * BLOCK_BYTES } else { 0 };
    }
    filler.sync_all()?;
    Ok(path)
}

/// Takes space for a part of a file, by writing where that is the only way.
fn take(file: &fs::File, start: u64, len: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), start, len) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let zeros = vec![0; MIB as usize];
            for at in (0..len).step_by(zeros.len()) {
                file.write_all_at(&zeros[..(len - at).min(MIB) as usize], start + at)?;
            }
            file.sync_data()
        }
        result => Ok(result?),
    }
}

/// Appends until there is no space; any other error is none of ours.
fn append_until_full(file: &File, writer: u64) -> Vec<Placed> {
    let mut placed = Vec::new();
    for number in 0.. {
        match append(file, writer, number, 1 + number % 4) {
            Ok(record) => placed.push(record),
            Err(error) => {
                assert_eq!(error.kind(), &ErrorKind::NoSpace(libc::ENOSPC), "{error}");
                break;
            }
        }
    }
    placed
}

/// What holds of a file that was appended to until there was no space, and after space was freed.
fn check_full(file: File, path: &Path, filler: &Path, mut placed: Vec<Placed>) -> TrialResult {
    let end = assert_gapless(&placed, 0);
    assert!(end > 0, "nothing fitted");
    assert_eq!(file.len()?, end, "a failed append changed the length");
    assert_all_there(&fs::read(path)?[..end as usize], &placed);
    fs::remove_file(filler)?;
    let after = append(&file, 90, 0, 4)?;
    assert_eq!(after.offset, end, "a failed append left a gap");
    placed.push(after);
    placed.extend(append_many(&file, 91, 200));
    let end = assert_gapless(&placed, 0);
    file.sync_data()?;
    file.close()?;
    assert_tidy(path, end)?;
    assert_all_there(&fs::read(path)?, &placed);
    Ok(())
}

fn fill_by_appends(fs: Fs, options: &OpenOptions, threads: u64) -> TrialResult {
    let mut volume = Volume::new(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    let file = options.open(&path)?;
    let filler = fill_up(&volume, 24 * MIB)?;
    let placed = together(threads, |writer| append_until_full(&file, writer)).concat();
    check_full(file, &path, &filler, placed)?;
    volume.fsck()?;
    Ok(())
}

fn a_full_disk_fails_appends_cleanly(fs: Fs) -> TrialResult {
    fill_by_appends(fs, &writable(), 1)
}

fn a_full_disk_fails_16_durable_writers_cleanly(fs: Fs) -> TrialResult {
    fill_by_appends(fs, writable().durability(Durability::EveryWrite), 16)
}

fn a_full_disk_fails_zeroed_growth_cleanly(fs: Fs) -> TrialResult {
    fill_by_appends(fs, writable().growth(Growth::Zeroed), 4)
}

fn a_full_disk_fails_appends_without_growth_cleanly(fs: Fs) -> TrialResult {
    fill_by_appends(fs, writable().growth(Growth::None), 4)
}

fn a_file_opened_on_a_full_disk_waits_for_space(fs: Fs) -> TrialResult {
    let volume = Volume::new(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    fs::write(&path, &record(1, 0, 2)[..])?;
    let filler = fill_up(&volume, 0)?;
    let file = writable().open(&path)?;
    let first = assert_full(&file)?;
    fs::remove_file(filler)?;
    let after = append(&file, 1, 1, 64)?;
    assert_eq!(after.offset, first, "a failed append left a gap");
    file.close()?;
    assert_tidy(&path, after.end())?;
    assert_all_there(&fs::read(&path)?, &[after]);
    Ok(())
}

/// Checks that neither appends nor positional writes extend the file. Returns its length.
fn assert_full(file: &File) -> dioxide::Result<u64> {
    // What the file system held back for itself may hold a few blocks yet.
    let full = (0..1000).map(|_| file.append(&record(9, 9, 64))).find_map(Result::err);
    let full = full.expect("1000 records of 64 blocks do not fit");
    assert_eq!(full.kind(), &ErrorKind::NoSpace(libc::ENOSPC), "{full}");
    let len = file.len()?;
    for offset in [len, len + 16 * MIB] {
        assert_eq!(refusal(file.write_at(&record(9, 8, 64), offset)), ErrorKind::NoSpace(libc::ENOSPC));
        assert_eq!(file.len()?, len);
    }
    Ok(len)
}

fn limit_size(bytes: &str) {
    let bytes = bytes.parse().expect("a number");
    let limit = rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("lowering is allowed");
}

/// A child that may not write past args[2]: appends until it must not, then one block that fits, and closes.
fn append_to_the_limit(acks: &Acks, args: &[String]) {
    let file = writable().growth(growth_named(&args[1])).open(&args[0]).expect("it opens");
    limit_size(&args[2]);
    let failed = (0..1000).map(|number| append(&file, 1, number, 3)).find(Result::is_err);
    tell(acks, &failed.expect("12 MiB do not fit"));
    acks.send([file.len().expect("a writer knows"), 0, 0]);
    tell(acks, &append(&file, 1, 1000, 1));
    tell(acks, &file.close());
}

/// A child that may not write past args[1]: a write beyond it, then an append that fits into the space there is.
fn write_past_the_limit(acks: &Acks, args: &[String]) {
    let file = writable().open(&args[0]).expect("it opens");
    limit_size(&args[1]);
    append(&file, 1, 0, 1).expect("there is space");
    tell(acks, &file.write_at(&record(1, 1, 1), 2 * MIB));
    tell(acks, &append(&file, 1, 1, 1));
    tell(acks, &file.close());
}

/// A child that may not write past args[1] and sets a length beyond it.
fn set_len_past_the_limit(acks: &Acks, args: &[String]) {
    let file = writable().open(&args[0]).expect("it opens");
    limit_size(&args[1]);
    append(&file, 1, 0, 1).expect("there is space");
    tell(acks, &file.set_len(2 * MIB));
    tell(acks, &append(&file, 1, 1, 1));
    tell(acks, &file.close());
}

const TOO_BIG: [u64; 3] = [NO_SPACE, libc::EFBIG as u64, 0];
const DONE: [u64; 3] = [0; 3];

/// What a child acknowledged that must survive: 25 is SIGXFSZ.
fn outcome(scenario: &str, args: &[&str]) -> io::Result<Vec<[u64; 3]>> {
    let (status, acks) = child::spawn(scenario, args)?.wait(Duration::from_secs(30))?;
    assert!(status.success(), "the child did not survive: {status}, {acks:?}");
    Ok(acks)
}

fn stays_below_the_limit(path: &Path, growth: &str, limit: u64) -> TrialResult {
    let acks = outcome("append_to_the_limit", &[&*path.to_string_lossy(), growth, &limit.to_string()])?;
    let count = limit / (3 * BLOCK_BYTES);
    let end = count * 3 * BLOCK_BYTES;
    assert_eq!(acks, [TOO_BIG, [end, 0, 0], DONE, DONE], "append, length, a smaller append, close");
    assert_tidy(path, end + BLOCK_BYTES)?;
    let placed: Vec<_> = (0..count)
        .map(|number| Placed { offset: number * 3 * BLOCK_BYTES, writer: 1, number, blocks: 3 })
        .collect();
    assert_all_there(&fs::read(path)?, &placed);
    Ok(())
}

fn a_size_limit_fails_appends_cleanly(dir: TestDir) -> TrialResult {
    stays_below_the_limit(&dir.join("aligned"), "unwritten", MIB)?;
    stays_below_the_limit(&dir.join("odd"), "unwritten", MIB + 1000)
}

fn a_size_limit_fails_appends_to_zeroed_space_cleanly(dir: TestDir) -> TrialResult {
    stays_below_the_limit(&dir.join("aligned"), "zeroed", MIB)
}

fn an_aligned_size_limit_fails_appends_without_growth_cleanly(dir: TestDir) -> TrialResult {
    stays_below_the_limit(&dir.join("log"), "none", MIB)
}

fn an_odd_size_limit_fails_appends_without_growth_cleanly(dir: TestDir) -> TrialResult {
    stays_below_the_limit(&dir.join("log"), "none", MIB + 1000)
}

fn a_refused_write_leaves_the_space_there_is_usable(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let acks = outcome("write_past_the_limit", &[&*path.to_string_lossy(), &MIB.to_string()])?;
    assert_eq!(acks, [TOO_BIG, DONE, DONE]);
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

fn a_size_limit_fails_set_len_cleanly(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let acks = outcome("set_len_past_the_limit", &[&*path.to_string_lossy(), &MIB.to_string()])?;
    assert_eq!(acks, [TOO_BIG, DONE, DONE]);
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

fn trials() -> Vec<Trial> {
    let on_volumes: &[VolumeTest] = named![
        a_full_disk_fails_appends_cleanly,
        a_full_disk_fails_16_durable_writers_cleanly,
        a_full_disk_fails_zeroed_growth_cleanly,
        a_full_disk_fails_appends_without_growth_cleanly,
        a_file_opened_on_a_full_disk_waits_for_space,
    ];
    let in_the_lab: &[LabTest] = named![
        a_refused_write_leaves_the_space_there_is_usable,
        a_size_limit_fails_appends_cleanly,
        a_size_limit_fails_appends_to_zeroed_space_cleanly,
        an_aligned_size_limit_fails_appends_without_growth_cleanly,
        an_odd_size_limit_fails_appends_without_growth_cleanly,
        a_size_limit_fails_set_len_cleanly,
    ];
    let mut all: Vec<_> = on_volumes.iter().flat_map(|&(name, test)| volume_trials(name, test)).collect();
    all.extend(in_the_lab.iter().flat_map(|&(name, test)| lab_trials(name, test)));
    all
}

fn main() -> ExitCode {
    let scenarios: &[child::Scenario] = &[
        ("append_to_the_limit", append_to_the_limit),
        ("write_past_the_limit", write_past_the_limit),
        ("set_len_past_the_limit", set_len_past_the_limit),
    ];
    dioxide_testkit::run(scenarios, trials)
}
