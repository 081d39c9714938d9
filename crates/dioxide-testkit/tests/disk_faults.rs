//! Self test of the failing disk, with the facts about this kernel that dioxide's promises rest on.
//! The lying disk is the control: a rig that cannot lose acknowledged data proves nothing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use dioxide_testkit::files;
use dioxide_testkit::fuse_disk::{FuseDisk, Keep, Marks, STALL_MAX};
use dioxide_testkit::lab::Fs;
use dioxide_testkit::trials::{Trial, TrialResult, fuse_trial, fuse_trials, fuse_trials_where};
use dioxide_testkit::volume::{SIZE_MIN, Volume};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

/// An aligned buffer for O_DIRECT.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).custom_flags(libc::O_DIRECT).open(path)
}

fn write_block(file: &File, number: u64, byte: u8) -> io::Result<()> {
    file.write_all_at(&Block([byte; BLOCK]).0, number * BLOCK as u64)
}

/// A file with one durable block of 1, and its path.
fn durable_file(volume: &Volume, name: &str) -> io::Result<(File, PathBuf)> {
    let path = volume.path().join(name);
    let file = open_direct(&path)?;
    write_block(&file, 0, 1)?;
    file.sync_all()?;
    File::open(volume.path())?.sync_all()?;
    Ok((file, path))
}

/// Whether the file has every byte of block `number` as `byte`.
fn has_block(path: &Path, number: u64, byte: u8) -> io::Result<bool> {
    let mut block = [0; BLOCK];
    let len = File::open(path)?.read_at(&mut block, number * BLOCK as u64)?;
    Ok(len == BLOCK && block == [byte; BLOCK])
}

fn assert_eio<T>(result: io::Result<T>) {
    assert_eq!(result.err().and_then(|e| e.raw_os_error()), Some(libc::EIO));
}

/// One failed flush under two files with a fresh block each: the result of fdatasync on the first
/// and then on the second. After a remount: whether each file has its block.
struct FailedFlush {
    first: io::Result<()>,
    second: io::Result<()>,
    looked_written: bool,
    first_kept: bool,
    second_kept: bool,
}

fn fail_one_flush(fs: Fs) -> io::Result<FailedFlush> {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let disk = volume.disk().expect("on a FUSE disk");
    let (first, first_path) = durable_file(&volume, "first")?;
    let (second, second_path) = durable_file(&volume, "second")?;
    write_block(&first, 1, 2)?;
    write_block(&second, 1, 2)?;
    disk.fail_flush(1, libc::EIO)?;
    let (first_said, second_said) = (first.sync_data(), second.sync_data());
    let looked_written = files::extents(&second_path).is_ok_and(
        |extents| matches!(extents[..], [extent] if !extent.unwritten && extent.len == 8192),
    );
    assert_eq!(disk.stats()?.failed_flushes, 1);
    drop((first, second));
    volume.remount()?;
    Ok(FailedFlush {
        first: first_said,
        second: second_said,
        looked_written,
        first_kept: has_block(&first_path, 1, 2)?,
        second_kept: has_block(&second_path, 1, 2)?,
    })
}

fn ext4_tells_one_file_of_a_failed_flush_and_loses_both() -> TrialResult {
    let seen = fail_one_flush(Fs::Ext4)?;
    assert_eio(seen.first);
    seen.second?;
    assert!(seen.looked_written, "FIEMAP shows the lost block as written");
    assert!(!seen.first_kept && !seen.second_kept, "{} {}", seen.first_kept, seen.second_kept);
    Ok(())
}

fn xfs_tells_both_files_of_a_failed_flush() -> TrialResult {
    let seen = fail_one_flush(Fs::Xfs)?;
    assert_eio(seen.first);
    assert!(seen.second.is_err(), "XFS shuts down");
    Ok(())
}

/// Overwrites blocks 0..64 durably, then 64..128 without a flush, and makes a power cut. Returns
/// how many of each survive.
fn cut_power(fs: Fs, keep: Keep, is_lying: bool) -> io::Result<(usize, usize)> {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let path = volume.path().join("file");
    let file = open_direct(&path)?;
    (0..128).try_for_each(|number| write_block(&file, number, 1))?;
    file.sync_all()?;
    File::open(volume.path())?.sync_all()?;
    if is_lying {
        volume.disk().expect("on a FUSE disk").lie()?;
    }
    (0..64).try_for_each(|number| write_block(&file, number, 2))?;
    file.sync_data()?;
    (64..128).try_for_each(|number| write_block(&file, number, 2))?;
    drop(file);
    volume.power_cut(keep)?;
    let count = |blocks: std::ops::Range<u64>| -> io::Result<usize> {
        let there: Vec<bool> = blocks.map(|n| has_block(&path, n, 2)).collect::<io::Result<_>>()?;
        Ok(there.into_iter().filter(|is_there| *is_there).count())
    };
    let counts = (count(0..64)?, count(64..128)?);
    volume.fsck()?;
    Ok(counts)
}

fn power_cut_loses_only_what_was_not_flushed(fs: Fs) -> TrialResult {
    assert_eq!(cut_power(fs, Keep::Nothing, false)?, (64, 0));
    // With checksums btrfs writes elsewhere, and nothing points there before the flush.
    let unflushed = if fs == Fs::Btrfs { 0 } else { 64 };
    assert_eq!(cut_power(fs, Keep::All, false)?, (64, unflushed));
    Ok(())
}

fn power_cut_may_tear_what_was_not_flushed(fs: Fs) -> TrialResult {
    // Of 64 blocks of 8 sectors each, a random half of the sectors: hardly one block is whole.
    let (flushed, not_flushed) = cut_power(fs, Keep::Random { seed: 1 }, false)?;
    assert_eq!(flushed, 64);
    assert!(not_flushed < 8, "{not_flushed}");
    Ok(())
}

fn lying_disk_loses_acknowledged_data(fs: Fs) -> TrialResult {
    assert_eq!(cut_power(fs, Keep::Nothing, true)?, (0, 0));
    Ok(())
}

fn failed_write_is_told_by_the_write_and_not_by_fdatasync(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let disk = volume.disk().expect("on a FUSE disk");
    let (file, _) = durable_file(&volume, "file")?;
    disk.fail_write_range(0..u64::MAX, 1, libc::EIO)?;
    assert_eio(write_block(&file, 0, 2));
    file.sync_data()?;
    assert_eq!(disk.stats()?.failed_writes, 1);
    Ok(())
}

fn every_flush_of_the_loop_device_reaches_the_disk() -> TrialResult {
    let mut disk = FuseDisk::start(64 * MIB)?;
    let device = open_direct(disk.loop_device()?)?;
    let before = disk.stats()?;
    for number in 0..10 {
        write_block(&device, number, 1)?;
        device.sync_data()?;
    }
    let after = disk.stats()?;
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (10, 10));
    Ok(())
}

fn dead_disk_fails_everything_at_once(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let (file, _) = durable_file(&volume, "file")?;
    volume.disk().expect("on a FUSE disk").die()?;
    let start = Instant::now();
    assert!(write_block(&file, 0, 2).and_then(|()| file.sync_data()).is_err());
    assert!(start.elapsed() < Duration::from_secs(60));
    Ok(())
}

fn cut_off_disk_fails_even_while_stalled(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let disk = volume.disk().expect("on a FUSE disk");
    let (file, _) = durable_file(&volume, "file")?;
    disk.stall()?;
    let writer = thread::spawn(move || write_block(&file, 0, 2));
    thread::sleep(Duration::from_millis(100));
    assert!(!writer.is_finished());
    disk.cut_off()?;
    assert!(writer.join().expect("the writer does not panic").is_err());
    Ok(())
}

fn stalled_disk_holds_a_write_until_it_goes_on(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let disk = volume.disk().expect("on a FUSE disk");
    let (file, path) = durable_file(&volume, "file")?;
    disk.stall()?;
    let writer = thread::spawn(move || write_block(&file, 0, 2));
    thread::sleep(Duration::from_millis(300));
    assert!(!writer.is_finished());
    disk.go_on()?;
    writer.join().expect("the writer does not panic")?;
    assert!(has_block(&path, 0, 2)?);
    Ok(())
}

fn stalled_volume_is_cleaned_up(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let site = volume.path().parent().expect("mnt is in a site").to_owned();
    let (file, _) = durable_file(&volume, "file")?;
    write_block(&file, 1, 2)?;
    drop(file);
    volume.disk().expect("on a FUSE disk").stall()?;
    drop(volume);
    assert!(!site.exists());
    Ok(())
}

// --- recordings ----------------------------------------------------------------------------------

const DELAY_MAX: Duration = Duration::from_millis(20);

/// Requests of concurrent threads on a recording disk: the begin and end of each.
fn requests_side_by_side(disk: &mut FuseDisk) -> io::Result<Vec<Range<u64>>> {
    const BEGIN: u64 = 0;
    const END: u64 = 1;
    let device = open_direct(disk.loop_device()?)?;
    let marks = Marks::open(&disk.marks_path())?;
    thread::scope(|scope| {
        for thread in 0..8 {
            let (device, marks) = (&device, &marks);
            scope.spawn(move || {
                for number in thread * 10..(thread + 1) * 10 {
                    marks.send([BEGIN, number, 0, 0]);
                    write_block(device, number, 1).expect("the disk takes it");
                    marks.send([END, number, 0, 0]);
                }
            });
        }
    });
    let marks = disk.marks()?;
    let place = |kind, number| {
        let found = marks.iter().find(|(_, mark)| mark[..2] == [kind, number]);
        found.map(|(place, _)| *place).ok_or_else(|| io::Error::other("a mark is missing"))
    };
    (0..80).map(|number| Ok(place(BEGIN, number)?..place(END, number)?)).collect()
}

/// How many requests began after another and ended before it.
fn overtakings(requests: &[Range<u64>]) -> usize {
    let inside = |outer: &Range<u64>| {
        requests.iter().filter(|inner| outer.start < inner.start && inner.end < outer.end).count()
    };
    requests.iter().map(inside).sum()
}

fn delayed_requests_overtake_each_other() -> TrialResult {
    let mut disk = FuseDisk::start(64 * MIB)?;
    disk.record()?;
    disk.delay(DELAY_MAX, 1)?;
    let overtakings = overtakings(&requests_side_by_side(&mut disk)?);
    assert!(overtakings > 40, "{overtakings} overtakings: served one after the other?");
    Ok(())
}

/// Each block is written and flushed by its own thread before the next one. Whatever the delays of
/// answers, the blocks flushed before a power cut survive it.
fn a_replay_has_what_was_flushed_before_the_cut() -> TrialResult {
    let mut disk = FuseDisk::start(64 * MIB)?;
    disk.record()?;
    disk.delay(DELAY_MAX / 10, 1)?;
    let device = open_direct(disk.loop_device()?)?;
    let marks = Marks::open(&disk.marks_path())?;
    thread::scope(|scope| {
        for thread in 0..4 {
            let (device, marks) = (&device, &marks);
            scope.spawn(move || {
                for number in (thread..64).step_by(4) {
                    write_block(device, number, 1).expect("the disk takes it");
                    device.sync_data().expect("the disk flushes");
                    marks.send([number, 0, 0, 0]);
                }
            });
        }
    });
    let flushed = disk.marks()?;
    let mut not_flushed = 0;
    for &(place, _) in &flushed {
        for keep in [Keep::Nothing, Keep::Writes { seed: place }, Keep::Random { seed: place }] {
            disk.replay(place + 1, keep)?;
            for (other, [number, ..]) in &flushed {
                let is_there = has_block(&disk.image(), *number, 1)?;
                assert!(
                    is_there || *other > place,
                    "block {number} is not there after {place}, keeping {keep}"
                );
                not_flushed += u64::from(!is_there);
            }
        }
    }
    assert!(not_flushed > 0, "everything is always there: nothing was replayed");
    Ok(())
}

fn a_volume_is_replayed_to_its_past(fs: Fs) -> TrialResult {
    let mut volume = Volume::recorded(fs, SIZE_MIN, &[])?;
    let (file, path) = durable_file(&volume, "file")?;
    let first = volume.disk().expect("on a FUSE disk").stats()?.logged;
    write_block(&file, 0, 2)?;
    file.sync_all()?;
    let second = volume.disk().expect("on a FUSE disk").stats()?.logged;
    drop(file);
    for _ in 0..2 {
        volume.replay(first, Keep::All)?;
        assert!(has_block(&path, 0, 1)?);
        fs::remove_file(&path)?;
        volume.replay(second, Keep::Nothing)?;
        assert!(has_block(&path, 0, 2)?);
    }
    volume.fsck()?;
    Ok(())
}

type OnFs = fn(Fs) -> TrialResult;

/// A sync of all file systems waits for each of them.
fn a_sync_waited_for_the_disk_of_another_trial() -> TrialResult {
    let (stalled, other) =
        (Volume::on_fuse_disk(Fs::Ext4, SIZE_MIN)?, Volume::new(Fs::Ext4, SIZE_MIN)?);
    let disk = stalled.disk().expect("on a FUSE disk");
    for volume in [&stalled, &other] {
        fs::write(volume.path().join("file"), [1; BLOCK])?;
    }
    disk.stall()?;
    let begun = Instant::now();
    other.sync()?;
    files::forget_cached(other.device())?;
    let took = begun.elapsed();
    disk.go_on()?;
    assert!(took < STALL_MAX / 2, "{took:?}");
    Ok(())
}

/// A failed flush then lost the name of a file that was synced before.
fn a_sync_left_metadata_in_the_cache_of_the_disk() -> TrialResult {
    let volume = Volume::on_fuse_disk(Fs::Ext4, SIZE_MIN)?;
    let disk = volume.disk().expect("on a FUSE disk");
    disk.delay(DELAY_MAX, 1)?;
    let (_file, _) = durable_file(&volume, "file")?;
    volume.sync()?;
    assert_eq!(disk.stats()?.logged, 0);
    Ok(())
}

fn trials() -> Vec<Trial> {
    let mut trials = vec![
        fuse_trial(
            "a_sync_left_metadata_in_the_cache_of_the_disk",
            a_sync_left_metadata_in_the_cache_of_the_disk,
        ),
        fuse_trial(
            "ext4_tells_one_file_of_a_failed_flush_and_loses_both",
            ext4_tells_one_file_of_a_failed_flush_and_loses_both,
        ),
        fuse_trial(
            "a_sync_waited_for_the_disk_of_another_trial",
            a_sync_waited_for_the_disk_of_another_trial,
        ),
        fuse_trial("delayed_requests_overtake_each_other", delayed_requests_overtake_each_other),
        fuse_trial(
            "a_replay_has_what_was_flushed_before_the_cut",
            a_replay_has_what_was_flushed_before_the_cut,
        ),
        fuse_trial(
            "xfs_tells_both_files_of_a_failed_flush",
            xfs_tells_both_files_of_a_failed_flush,
        ),
        fuse_trial(
            "every_flush_of_the_loop_device_reaches_the_disk",
            every_flush_of_the_loop_device_reaches_the_disk,
        ),
    ];
    let on_each: [(&str, OnFs); 8] = [
        ("a_volume_is_replayed_to_its_past", a_volume_is_replayed_to_its_past),
        ("power_cut_loses_only_what_was_not_flushed", power_cut_loses_only_what_was_not_flushed),
        ("power_cut_may_tear_what_was_not_flushed", power_cut_may_tear_what_was_not_flushed),
        ("lying_disk_loses_acknowledged_data", lying_disk_loses_acknowledged_data),
        ("dead_disk_fails_everything_at_once", dead_disk_fails_everything_at_once),
        ("cut_off_disk_fails_even_while_stalled", cut_off_disk_fails_even_while_stalled),
        (
            "stalled_disk_holds_a_write_until_it_goes_on",
            stalled_disk_holds_a_write_until_it_goes_on,
        ),
        ("stalled_volume_is_cleaned_up", stalled_volume_is_cleaned_up),
    ];
    trials.extend(on_each.into_iter().flat_map(|(name, test)| fuse_trials(name, test)));
    trials.extend(fuse_trials_where(
        "failed_write_is_told_by_the_write_and_not_by_fdatasync",
        Fs::writes_fail_alone,
        failed_write_is_told_by_the_write_and_not_by_fdatasync,
    ));
    trials
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
