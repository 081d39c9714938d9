//! Failed flushes, failed writes and stalled disks: lost data is never acknowledged, and other
//! files are not affected.

mod common;

use common::*;
use dioxide::{Durability, Error, ErrorKind, File, Growth, OpenOptions, Operation, Queue};
use dioxide_testkit::files;
use dioxide_testkit::fork::holds_in_a_fork;
use dioxide_testkit::fuse_disk::{FuseDisk, GoesOn, STALL_MAX};
use dioxide_testkit::lab::{self, Applies, Fs};
use dioxide_testkit::trials::{
    Failed, Trial, TrialResult, fuse_trial, fuse_trials, fuse_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const WHOLE_DISK: Range<u64> = 0..u64::MAX;

fn disk(volume: &Volume) -> &FuseDisk {
    volume.disk().expect("on a FUSE disk")
}

/// A grown file with ten durable records, so that appends only write.
fn durable_file(path: &Path) -> dioxide::Result<(File, Vec<Placed>)> {
    let file = writable().open(path)?;
    let records = append_many(&file, 1, 10);
    file.sync_data()?;
    Ok((file, records))
}

/// The cause of a wedge; panics without one.
fn first_cause<T>(result: dioxide::Result<T>) -> Arc<Error> {
    match refusal(result) {
        ErrorKind::Wedged(cause) => cause,
        other => panic!("not wedged, but {other:?}"),
    }
}

/// Two files of one file system, each with a record that is not durable. A flush of one of them
/// failed.
struct Wedged {
    first: File,
    second: File,
    first_path: PathBuf,
    second_path: PathBuf,
    durable: Vec<Placed>,
    cause: Arc<Error>,
    /// Last, so that the files are closed before.
    volume: Volume,
}

fn wedge(fs: Fs) -> Result<Wedged, dioxide_testkit::trials::Failed> {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let (first_path, second_path) = (volume.path().join("first"), volume.path().join("second"));
    let (first, durable) = durable_file(&first_path)?;
    let (second, _) = durable_file(&second_path)?;
    append(&first, 2, 0, 1)?;
    append(&second, 2, 0, 1)?;
    disk(&volume).fail_flush(1, libc::EIO)?;
    let cause = first_cause(first.sync_data());
    assert_eq!(disk(&volume).stats()?.failed_flushes, 1);
    Ok(Wedged { first, second, first_path, second_path, durable, cause, volume })
}

fn a_failed_flush_wedges_every_file_of_its_file_system(fs: Fs) -> TrialResult {
    let Wedged { volume: _volume, first, second, first_path, cause, .. } = wedge(fs)?;
    assert_eq!(
        (cause.operation(), cause.path(), cause.errno()),
        (Operation::Flush, &*first_path, libc::EIO)
    );
    // The disk works again, and a flush by the kernel would succeed.
    assert_eq!(first_cause(second.sync_data()), cause);
    for file in [&first, &second] {
        assert_eq!(first_cause(file.sync_data()), cause);
        assert_eq!(first_cause(append(file, 3, 0, 1)), cause);
        assert_eq!(first_cause(file.write_at(&record(3, 0, 1), 0)), cause);
        assert_eq!(first_cause(file.set_len(0)), cause);
    }
    let text = second.sync_data().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("first"), "it does not name the file whose flush failed: {text}");
    let mut into = dioxide::Buffer::zeroed(BLOCK);
    // XFS has shut itself down; ext4 still reads.
    let read = first.read_at(&mut into, 0).map_err(|error| error.kind().clone());
    assert!(matches!(read, Ok(BLOCK) | Err(ErrorKind::Os(libc::EIO))), "{read:?}");
    assert_eq!(first_cause(first.close()), cause);
    drop(second);
    Ok(())
}

fn a_wedged_file_system_is_refused_until_it_is_mounted_anew(fs: Fs) -> TrialResult {
    let Wedged { mut volume, first, second, first_path, second_path, durable, cause } = wedge(fs)?;
    drop(first);
    assert!(second.close().is_err(), "closing says that it could not be done");
    for path in [&first_path, &second_path] {
        assert_refused(OpenOptions::new().write(true).open(path), &cause);
        assert_refused(dioxide::recover(path, dioxide::Recover::Truncate), &cause);
    }
    volume.remount()?;
    for path in [&first_path, &second_path] {
        let file = OpenOptions::new().write(true).open(path)?;
        assert!(file.len()? >= end_of(&durable), "what was durable was cut");
        assert_all_there(&fs::read(path)?, &durable);
        // Lost records may look written; only the owner of the records can detect that.
        file.set_len(end_of(&durable))?;
        let next = append(&file, 4, 0, 2)?;
        file.sync_data()?;
        file.close()?;
        assert_tidy(path, next.end())?;
        assert_all_there(&fs::read(path)?, &[next]);
    }
    volume.repair()?;
    // After a failed flush, btrfs itself is damaged at times: its files hold, its free space tree
    // does not.
    if !matches!(fs, Fs::Btrfs | Fs::BtrfsNocow) {
        volume.fsck()?;
    }
    Ok(())
}

/// The child of a fork shares the page cache with its parent. The state of the parent's locks must
/// not matter.
fn a_forked_child_inherits_a_wedge_until_it_is_mounted_anew(fs: Fs) -> TrialResult {
    let Wedged { mut volume, first, second, first_path, durable, cause, .. } = wedge(fs)?;
    let is_refused = |path: &Path| {
        assert_refused(OpenOptions::new().write(true).open(path), &cause);
        true
    };
    let new_path = volume.path().join("new");
    let in_a_child = || is_refused(&first_path) && writable().open(&new_path).is_err();
    assert!(holds_in_a_fork(|| in_a_child() && holds_in_a_fork(in_a_child)), "a child forgot it");
    drop((first, second));
    assert!(holds_in_a_fork(in_a_child), "a child forgot it once its parent had closed all files");
    volume.remount()?;
    let end = end_of(&durable);
    let writes_and_syncs = || {
        let file = OpenOptions::new().write(true).open(&first_path)?;
        file.set_len(end)?;
        append(&file, 4, 0, 2)?;
        file.sync_data()?;
        file.close()
    };
    assert!(holds_in_a_fork(|| writes_and_syncs().is_ok()), "a child remembers it for ever");
    writes_and_syncs()?;
    assert!(
        holds_in_a_fork(|| writes_and_syncs().is_ok()),
        "a child remembers what its parent has forgotten"
    );
    Ok(())
}

/// A second mount of a volume, unmounted on drop at the latest.
struct OtherMount(lab::TestDir);

impl OtherMount {
    fn of(volume: &Volume) -> Result<Self, dioxide_testkit::trials::Failed> {
        let mount = Self(lab::fresh_dir(Fs::Ext4, "other_mount")?);
        let status = Command::new("mount").args([volume.device(), &mount.0]).status()?;
        if status.success() { Ok(mount) } else { Err(format!("mount: {status}").into()) }
    }

    /// The kernel ends copies of the mount in other namespaces when the directory is removed.
    fn unmount(&self) -> io::Result<bool> {
        let status = Command::new("umount").arg(&*self.0).stderr(Stdio::null()).status()?;
        Ok(status.success() && fs::remove_dir(&*self.0).is_ok())
    }
}

impl Drop for OtherMount {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

/// The second mount keeps the file system, and with it the effects of its failed flush.
fn a_wedged_file_system_is_refused_as_long_as_any_mount_of_it_is_left(fs: Fs) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let other = OtherMount::of(&volume)?;
    let path = volume.path().join("log");
    let (file, records) = durable_file(&path)?;
    volume.sync()?;
    file.write_at(&record(5, 0, 1), 0)?;
    disk(&volume).fail_flush(1, libc::EIO)?;
    let cause = first_cause(file.sync_data());
    drop(file);
    volume.unmount()?;
    assert_refused(OpenOptions::new().write(true).open(other.0.join("log")), &cause);
    assert_eq!(first_cause(writable().open(other.0.join("new"))), cause);
    // btrfs refuses a second mount after it turned itself read-only.
    let mounted_twice = volume.mount().is_ok();
    assert_eq!(mounted_twice, !matches!(fs, Fs::Btrfs | Fs::BtrfsNocow));
    // The library remembers the refusal.
    assert_refused(OpenOptions::new().write(true).open(other.0.join("log")), &cause);
    assert!(other.unmount()?);
    if mounted_twice {
        // It was always mounted.
        assert_refused(OpenOptions::new().write(true).open(&path), &cause);
    }
    volume.remount()?;
    let file = OpenOptions::new().write(true).open(&path)?;
    assert!(file.len()? >= end_of(&records));
    file.close()?;
    Ok(())
}

/// A flush without a journal commit fails, so the file system itself notices nothing.
fn a_wedged_file_system_takes_no_new_files(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let (file, _) = durable_file(&volume.path().join("log"))?;
    volume.sync()?;
    file.write_at(&record(5, 0, 1), 0)?;
    disk(&volume).fail_flush(1, libc::EIO)?;
    let cause = first_cause(file.sync_data());
    let third = volume.path().join("third");
    assert_refused(writable().open(&third), &cause);
    assert_refused(OpenOptions::new().open_temporary(volume.path()), &cause);
    assert!(!third.try_exists().unwrap_or(false), "a file was created");
    Ok(())
}

/// Refused by the library, or by a file system that has shut itself down.
fn assert_refused<T>(result: dioxide::Result<T>, cause: &Arc<Error>) {
    match refusal(result) {
        ErrorKind::Wedged(found) => assert_eq!(found, *cause),
        ErrorKind::Os(libc::EIO | libc::EROFS) => {}
        other => panic!("{other:?}"),
    }
}

/// One failure wedges the file system, with any kind of flush.
fn assert_wedges(fs: Fs, flush: fn(&Path) -> dioxide::Result<()>) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let (file, _) = durable_file(&volume.path().join("log"))?;
    fs::write(volume.path().join("plain"), &record(1, 1, 1)[..])?;
    append(&file, 2, 0, 1)?;
    disk(&volume).fail_flush(1, libc::EIO)?;
    let error = flush(volume.path()).expect_err("its flush failed");
    assert_eq!((error.errno(), disk(&volume).stats()?.failed_flushes), (libc::EIO, 1), "{error}");
    assert_eq!(first_cause(file.sync_data()).errno(), libc::EIO);
    assert_eq!(first_cause(append(&file, 3, 0, 1)).errno(), libc::EIO);
    Ok(())
}

fn a_flush_that_fails_while_a_file_is_created_wedges(fs: Fs) -> TrialResult {
    assert_wedges(fs, |dir| writable().open(dir.join("new")).map(drop))
}

fn a_flush_that_fails_while_a_file_is_opened_wedges(fs: Fs) -> TrialResult {
    assert_wedges(fs, |dir| writable().open(dir.join("plain")).map(drop))
}

fn a_flush_that_fails_in_recover_wedges(fs: Fs) -> TrialResult {
    assert_wedges(fs, |dir| {
        dioxide::recover(dir.join("plain"), dioxide::Recover::Truncate).map(drop)
    })
}

fn a_flush_that_fails_in_set_len_wedges(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let (file, _) = durable_file(&volume.path().join("log"))?;
    let (other, _) = durable_file(&volume.path().join("other"))?;
    append(&file, 2, 0, 1)?;
    disk(&volume).fail_flush(1, libc::EIO)?;
    assert_eq!(first_cause(other.set_len(BLOCK_BYTES)).errno(), libc::EIO);
    assert_eq!(first_cause(file.sync_data()).errno(), libc::EIO);
    Ok(())
}

fn end_of(placed: &[Placed]) -> u64 {
    placed.iter().map(Placed::end).max().unwrap_or(0)
}

fn other_file_systems_are_not_wedged(fs: Fs) -> TrialResult {
    let wedged = wedge(fs)?;
    let dir = lab::fresh_dir(fs, "beside_a_wedge")?;
    let file = writable().durability(Durability::EveryWrite).open(dir.join("log"))?;
    append(&file, 1, 0, 1)?;
    file.sync_data()?;
    file.close()?;
    assert!(wedged.first.sync_data().is_err());
    Ok(())
}

fn a_durable_append_whose_flush_fails_is_not_acknowledged(fs: Fs) -> TrialResult {
    for threads in [1, 16] {
        let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
        let path = volume.path().join("log");
        let file = writable().durability(Durability::EveryWrite).open(&path)?;
        let before = append_many(&file, 1, 5);
        disk(&volume).fail_flush(1, libc::EIO)?;
        let results = together(threads, |writer| append(&file, 2 + writer, 0, 1));
        assert!(results.iter().any(Result::is_err), "all acknowledged, though a flush failed");
        assert_eq!(disk(&volume).stats()?.failed_flushes, 1);
        let cause = first_cause(file.sync_data());
        // ext4 may have reported it to another thread first, and be read-only by then.
        assert!([libc::EIO, libc::EROFS].contains(&cause.errno()), "{cause}");
        drop(file);
        check_after_remount(volume, &path, before, results)?;
    }
    Ok(())
}

/// Checks that all acknowledged data survives a remount.
fn check_after_remount(
    mut volume: Volume,
    path: &Path,
    mut acknowledged: Vec<Placed>,
    results: Vec<dioxide::Result<Placed>>,
) -> TrialResult {
    acknowledged.extend(results.into_iter().filter_map(Result::ok));
    volume.remount()?;
    let file = OpenOptions::new().write(true).open(path)?;
    assert!(file.len()? >= end_of(&acknowledged), "acknowledged records were cut");
    assert_all_there(&fs::read(path)?, &acknowledged);
    file.close()?;
    Ok(())
}

/// Returns the acknowledged results of 16 writers, each called with its number and that of the
/// call. A flush fails once all of them are at work.
fn until_a_flush_fails<T: Send>(
    volume: &Volume,
    append: impl Fn(u64, u64) -> dioxide::Result<T> + Sync,
) -> Vec<Vec<T>> {
    let at_work = AtomicU64::new(0);
    thread::scope(|scope| {
        let writers = scope.spawn(|| {
            together(16, |writer| {
                let acknowledged = (0..).map_while(|number| {
                    at_work.fetch_add(u64::from(number == 3), Relaxed);
                    append(writer, number).ok()
                });
                acknowledged.collect()
            })
        });
        let all = soon(|| at_work.load(Relaxed) == 16);
        disk(volume).fail_flush(1, libc::EIO).expect("the disk obeys");
        assert!(all, "not every writer is served");
        writers.join().expect("writers end")
    })
}

/// Durable appends to several files while flushes fail: each acknowledged append is on disk after a
/// remount.
fn nothing_acknowledged_beside_a_failing_flush_is_lost(fs: Fs) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let paths: Vec<_> = (0..4).map(|n| volume.path().join(format!("log-{n}"))).collect();
    let mut options = writable();
    options.durability(Durability::EveryWrite);
    let files = paths.iter().map(|path| options.open(path)).collect::<Result<Vec<_>, _>>()?;
    let acknowledged = until_a_flush_fails(&volume, |writer, number| {
        append(&files[writer as usize % 4], writer, number, 1)
    });
    drop(files);
    volume.remount()?;
    for (n, path) in paths.iter().enumerate() {
        let here: Vec<_> = acknowledged.iter().skip(n).step_by(4).flatten().copied().collect();
        let file = OpenOptions::new().write(true).open(path)?;
        assert!(file.len()? >= end_of(&here));
        assert_all_there(&fs::read(path)?, &here);
        file.close()?;
    }
    Ok(())
}

/// The same with short records in one file, which share blocks, requests and flushes.
fn no_short_record_beside_a_failing_flush_is_lost(fs: Fs) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    for tail in TAILS {
        let path = volume.path().join(format!("{tail:?}"));
        let file = writable().tail(tail).durability(Durability::EveryWrite).open(&path)?;
        let frame = |writer, number| Frame { writer, number, len: 20 + number % 90 };
        let laid = until_a_flush_fails(&volume, |writer, number| {
            append_frame(&file, frame(writer, number))
        })
        .concat();
        drop(file);
        volume.remount()?;
        let file = OpenOptions::new().write(true).open(&path)?;
        let content = fs::read(&path)?;
        assert_all_laid(&content, &laid);
        let found = Frame::find_all(&content, file.alignment().append);
        assert!(laid.iter().all(|laid| found.binary_search(&(laid.offset, laid.frame)).is_ok()));
        file.close()?;
    }
    Ok(())
}

// --- failed writes -------------------------------------------------------------------------------

/// A file whose last append failed at the disk, with the acknowledged records before it.
fn fail_an_append(
    volume: &Volume,
    growth: Growth,
) -> Result<(File, PathBuf, Vec<Placed>), dioxide_testkit::trials::Failed> {
    let path = volume.path().join(format!("{growth:?}"));
    let file = writable().growth(growth).growth_cap(4 * MIB).open(&path)?;
    let records = append_many(&file, 1, 10);
    file.sync_data()?;
    wait_until_grown(&path)?;
    volume.sync()?;
    let failed_before = disk(volume).stats()?.failed_writes;
    disk(volume).fail_write_range(WHOLE_DISK, 1, libc::EIO)?;
    let error = append(&file, 2, 0, 1).expect_err("its write failed");
    assert_eq!(error.kind(), &ErrorKind::Os(libc::EIO), "{error}");
    assert_eq!(disk(volume).stats()?.failed_writes, failed_before + 1);
    disk(volume).heal()?;
    Ok((file, path, records))
}

fn a_failed_append_ends_appending_until_it_is_given_up(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        give_up_a_failed_append(&volume, growth)?;
    }
    Ok(())
}

fn give_up_a_failed_append(volume: &Volume, growth: Growth) -> TrialResult {
    let (file, path, mut records) = fail_an_append(volume, growth)?;
    let end = end_of(&records);
    assert_eq!(file.len()?, end);
    for _ in 0..2 {
        match refusal(append(&file, 3, 0, 1)) {
            ErrorKind::AppendEnded(cause) => {
                assert_eq!((cause.errno(), cause.offset()), (libc::EIO, Some(end)))
            }
            other => panic!("{other:?}"),
        }
    }
    file.sync_data()?;
    assert_eq!(file.len()?, end, "a flush acknowledged what had failed");
    file.write_at(&record(1, 0, 1), 0)?;
    file.set_len(file.len()?)?;
    let next = append(&file, 4, 0, 3)?;
    assert_eq!(next.offset, end);
    records.push(next);
    file.close()?;
    assert_tidy(&path, next.end())?;
    assert_all_there(&fs::read(&path)?, &records[1..]);
    Ok(())
}

/// The data already in the last block is unchanged, in the file and in memory.
fn a_failed_rewrite_of_the_last_block_harms_no_record(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    for (growth, len) in
        GROWTHS.into_iter().flat_map(|growth| [50, 10_000].map(|len| (growth, len)))
    {
        let path = volume.path().join(format!("{growth:?}-{len}"));
        let file = writable().growth(growth).growth_cap(4 * MIB).open(&path)?;
        let frame = |number, len| Frame { writer: 1, number, len };
        let mut laid: Vec<_> = (0..30)
            .map(|number| append_frame(&file, frame(number, 33)))
            .collect::<Result<_, _>>()?;
        file.sync_data()?;
        wait_until_grown(&path)?;
        volume.sync()?;
        disk(&volume).fail_write_range(WHOLE_DISK, 1, libc::EIO)?;
        assert_eq!(refusal(append_frame(&file, frame(30, len))), ErrorKind::Os(libc::EIO));
        disk(&volume).heal()?;
        assert!(matches!(refusal(append_frame(&file, frame(31, 1))), ErrorKind::AppendEnded(_)));
        let end = 30 * 33;
        assert_eq!(file.len()?, end);
        file.set_len(end)?;
        for number in 32..40 {
            laid.push(append_frame(&file, frame(number, len + number))?);
        }
        assert_eq!(laid[30].offset, end);
        file.close()?;
        assert_laid_out(&fs::read(&path)?, 0, &laid, false);
    }
    Ok(())
}

fn closing_after_a_failed_append_truncates_at_the_gap(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        let (file, path, records) = fail_an_append(&volume, growth)?;
        assert!(matches!(refusal(append(&file, 3, 0, 1)), ErrorKind::AppendEnded(_)));
        file.close()?;
        assert_tidy(&path, end_of(&records))?;
        let file = OpenOptions::new().write(true).open(&path)?;
        assert_eq!(file.recovery(), None);
        assert_eq!(append(&file, 4, 0, 1)?.offset, end_of(&records));
        file.close()?;
        assert_all_there(&fs::read(&path)?, &records);
    }
    Ok(())
}

fn appends_in_flight_beside_a_failed_one_leave_no_gap(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    for round in 0..5 {
        let path = volume.path().join(format!("log-{round}"));
        let (file, mut records) = durable_file(&path)?;
        let results = thread::scope(|scope| {
            let appends =
                scope.spawn(|| together(16, |writer| append_until_error(&file, 10 + writer)));
            thread::sleep(Duration::from_millis(10));
            // Not a block of the journal, whose failure counts as that of a flush.
            let data = files::longest_piece(&path).expect("the file has grown");
            disk(&volume).fail_write_range(data, 1, libc::EIO).expect("the disk obeys");
            appends.join().expect("appenders end")
        });
        disk(&volume).heal()?;
        for (placed, error) in results {
            let ended =
                matches!(error.kind(), ErrorKind::Os(libc::EIO) | ErrorKind::AppendEnded(_));
            assert!(ended, "{error}");
            records.extend(placed);
        }
        let end = assert_gapless(&records, 0);
        assert_eq!(file.len()?, end, "the length is not the end of what was acknowledged");
        file.sync_data()?;
        file.close()?;
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &records);
    }
    Ok(())
}

/// Whether FIEMAP shows the location of future appends on the disk.
fn tells_where_data_goes(fs: Fs) -> Applies {
    match fs {
        Fs::BtrfsNocow => Err("btrfs tells addresses of its own"),
        other => other.writes_directly().and(other.grows_unwritten()),
    }
}

fn append_until_error(file: &File, writer: u64) -> (Vec<Placed>, Error) {
    let mut placed = Vec::new();
    for number in 0.. {
        match append(file, writer, number, 1 + number % 2) {
            Ok(record) => placed.push(record),
            Err(error) => return (placed, error),
        }
    }
    unreachable!("numbers do not end before the disk fails")
}

fn a_failed_overwrite_fails_its_caller_only(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = volume.path().join(format!("{durability:?}"));
        let (file, records) = durable_file(&path)?;
        let strict = writable().durability(durability).open(&path)?;
        volume.sync()?;
        disk(&volume).fail_write_range(WHOLE_DISK, 1, libc::EIO)?;
        assert_eq!(refusal(file.write_at(&record(5, 0, 1), 0)), ErrorKind::Os(libc::EIO));
        disk(&volume).heal()?;
        file.sync_data()?;
        strict.write_at(&record(6, 0, 1), 0)?;
        let next = append(&strict, 7, 0, 1)?;
        assert_eq!(next.offset, end_of(&records));
        drop(file);
        strict.close()?;
        assert_tidy(&path, next.end())?;
        assert_all_there(&fs::read(&path)?, &records[1..]);
    }
    Ok(())
}

// --- btrfs ---------------------------------------------------------------------------------------

/// btrfs writes files with checksums through its cache. An error there also fails the next flush.
/// That wedges like any failed flush.
fn a_failed_write_through_the_cache_wedges() -> TrialResult {
    let mut volume = Volume::on_fuse_disk(Fs::Btrfs, SIZE_MIN)?;
    let (file, path, records) = fail_an_append(&volume, Growth::Unwritten)?;
    assert_eq!(file.len()?, end_of(&records));
    let cause = first_cause(file.sync_data());
    assert_refused(writable().open(volume.path().join("other")), &cause);
    drop(file);
    volume.remount()?;
    let file = OpenOptions::new().write(true).open(&path)?;
    assert_eq!(file.len()?, end_of(&records));
    assert_eq!(append(&file, 4, 0, 1)?.offset, end_of(&records));
    file.close()?;
    assert_all_there(&fs::read(&path)?, &records);
    volume.fsck()?;
    Ok(())
}

/// Each subvolume has its own device number, but all share one disk and one journal.
fn a_failed_flush_wedges_all_subvolumes() -> TrialResult {
    let volume = Volume::on_fuse_disk(Fs::Btrfs, SIZE_MIN)?;
    let subvolume = volume.path().join("subvolume");
    btrfs(&["subvolume", "create"], &subvolume)?;
    let (outside, _) = durable_file(&volume.path().join("log"))?;
    let (inside, _) = durable_file(&subvolume.join("log"))?;
    append(&outside, 2, 0, 1)?;
    append(&inside, 2, 0, 1)?;
    disk(&volume).fail_flush(1, libc::EIO)?;
    let cause = first_cause(outside.sync_data());
    assert_eq!(first_cause(inside.sync_data()), cause);
    assert_eq!(first_cause(writable().open(subvolume.join("new"))), cause);
    Ok(())
}

// --- stalls --------------------------------------------------------------------------------------

fn a_stalled_disk_stops_only_its_own_files(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    let (stuck, records) = durable_file(&path)?;
    let dir = lab::fresh_dir(fs, "beside_a_stall")?;
    let (open_path, new_path) = (dir.join("open"), dir.join("new"));
    let (other, _) = durable_file(&open_path)?;
    disk(&volume).stall()?;
    let (stuck_done, stuck_result) = mpsc::channel();
    let (other_done, other_result) = mpsc::channel();
    let stuck_thread = thread::spawn(move || {
        let result = append(&stuck, 2, 0, 1).and_then(|placed| stuck.sync_data().map(|()| placed));
        let _ = stuck_done.send(());
        (stuck, result)
    });
    let other_thread = thread::spawn(move || {
        let result = work_beside(&other, &new_path);
        let _ = other_done.send(());
        result
    });
    // The stall ends by itself, but later.
    let went_on = other_result.recv_timeout(STALL_MAX - Duration::from_secs(10));
    let was_stuck = stuck_result.try_recv().is_err();
    disk(&volume).go_on()?;
    other_thread.join().expect("no panic beside the stall")?;
    let (stuck, result) = stuck_thread.join().expect("no panic in the stall");
    assert!(went_on.is_ok(), "a file on another file system waited for the stalled disk");
    assert!(was_stuck, "the disk did not stall: nothing was tested");
    assert_eq!(result?.offset, end_of(&records));
    stuck.close()?;
    Ok(())
}

/// The bug: the flushes of several disks came one after the other.
fn sync_all_flushes_every_disk_beside_a_stalled_one(fs: Fs) -> TrialResult {
    let volumes = [Volume::on_fuse_disk(fs, SIZE_MIN)?, Volume::on_fuse_disk(fs, SIZE_MIN)?];
    let (stuck, _) = durable_file(&volumes[0].path().join("log"))?;
    let (other, _) = durable_file(&volumes[1].path().join("log"))?;
    for file in [&stuck, &other] {
        append(file, 2, 0, 1)?;
    }
    // So no journal commits by itself.
    volumes.iter().try_for_each(Volume::sync)?;
    let before = disk(&volumes[1]).stats()?.flushes;
    disk(&volumes[0]).stall()?;
    let flushes = || disk(&volumes[1]).stats().map_or(0, |stats| stats.flushes);
    let until = Instant::now() + STALL_MAX - Duration::from_secs(10);
    let came = thread::scope(|scope| {
        let goes_on = GoesOn(disk(&volumes[0]));
        let syncing = scope.spawn(|| dioxide::sync_all(&[&stuck, &other]));
        while flushes() == before && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let came = flushes() > before && !syncing.is_finished();
        drop(goes_on);
        syncing.join().expect("no panic beside the stall")?;
        Ok::<_, Failed>(came)
    })?;
    // Without io_uring they come one after the other.
    assert!(came || !Queue::new(1).uses_io_uring(), "the second disk waited for the first one");
    for file in [stuck, other] {
        file.close()?;
    }
    Ok(())
}

/// Appends, flushes, opens, truncates and closes on a file system that does not stall.
fn work_beside(open: &File, new_path: &Path) -> dioxide::Result<()> {
    append_many(open, 2, 20);
    open.sync_data()?;
    let new = writable().durability(Durability::EveryWrite).open(new_path)?;
    append_many(&new, 3, 20);
    new.set_len(0)?;
    new.close()
}

/// Returns whether two calls fail beside an fdatasync that returned EIO. One reads the error of the
/// file, from an earlier descriptor, and never flushes. The other is syncfs, which reads the error
/// of the whole file system.
fn seen_by_a_witness(witness: &fs::File) -> (bool, bool) {
    // SAFETY: the descriptor is open; no memory is passed.
    let result = unsafe {
        libc::sync_file_range(witness.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
    };
    (result != 0, rustix::fs::syncfs(witness).is_err())
}

/// Keeps the pages of a file dirty through a mapping, until it is dropped.
struct Dirtied {
    stops: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Dirtied {
    fn pages_of(path: &Path) -> io::Result<Self> {
        let file = fs::File::options().read(true).write(true).open(path)?;
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = stops.clone();
        let thread = thread::spawn(move || {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping of whole pages within the file.
            let map = unsafe {
                libc::mmap(std::ptr::null_mut(), DIRTY_BYTES, prot, flags, file.as_raw_fd(), 0)
            };
            assert_ne!(map, libc::MAP_FAILED);
            while !stopped.load(Relaxed) {
                for page in (0..DIRTY_BYTES).step_by(BLOCK) {
                    // SAFETY: inside the mapping, which only this thread uses.
                    unsafe { map.cast::<u8>().add(page).write_volatile(7) };
                }
            }
            // SAFETY: the mapping is no longer in use.
            unsafe { libc::munmap(map, DIRTY_BYTES) };
        });
        Ok(Self { stops, thread: Some(thread) })
    }
}

impl Drop for Dirtied {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

const DIRTY_BYTES: usize = 64 * BLOCK;

/// The facts of docs/reliability.md. With a failed flush, a stale page looks the same as without
/// one. So every EIO of a flush wedges.
fn a_stale_page_cache_and_a_failed_flush_differ_for_a_witness(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let path = volume.path().join("file");
    fs::write(&path, vec![0; DIRTY_BYTES])?;
    volume.sync()?;
    let direct = fs::File::options().write(true).custom_flags(libc::O_DIRECT).open(&path)?;
    let witness = fs::File::open(&path)?;
    let block = record(1, 0, (DIRTY_BYTES / BLOCK) as u64);
    let dirtied = Dirtied::pages_of(&path)?;
    // The kernel reports the error once.
    let reported = AtomicBool::new(false);
    let stale = soon(|| {
        if !reported.load(Relaxed) {
            direct.write_all_at(&block, 0).expect("it writes");
            reported.store(direct.sync_data().is_err(), Relaxed);
        }
        reported.load(Relaxed)
    });
    drop(dirtied);
    assert!(stale, "no page was stale in time");
    assert_eq!(seen_by_a_witness(&witness), (true, false), "a stale page");
    assert_eq!(disk(&volume).stats()?.failed_flushes, 0);
    // Dirty pages of the mapping are written back.
    witness.sync_all()?;
    let _ = direct.sync_data();
    direct.write_all_at(&block, 0)?;
    disk(&volume).fail_flush(1, libc::EIO)?;
    direct.sync_data().expect_err("its flush failed");
    assert_eq!(disk(&volume).stats()?.failed_flushes, 1);
    assert!(!seen_by_a_witness(&witness).0, "a failed flush");
    Ok(())
}

/// Whether the flush of a file whose last transaction is committed reaches the disk.
fn flushes_for_committed_files(fs: Fs) -> Applies {
    match fs {
        Fs::Btrfs | Fs::BtrfsNocow => Err("btrfs flushes no disk for a file that is committed"),
        other => other.has_disk(),
    }
}

fn reports_errors_by_file(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs => Ok(()),
        _ => Err("the order of the checks was read for ext4 and XFS"),
    }
}

fn trials() -> Vec<Trial> {
    let all: &[VolumeTest] = named![
        a_wedged_file_system_takes_no_new_files,
        a_flush_that_fails_while_a_file_is_created_wedges,
        a_flush_that_fails_while_a_file_is_opened_wedges,
        a_flush_that_fails_in_recover_wedges,
        a_flush_that_fails_in_set_len_wedges,
        a_failed_flush_wedges_every_file_of_its_file_system,
        a_wedged_file_system_is_refused_until_it_is_mounted_anew,
        a_forked_child_inherits_a_wedge_until_it_is_mounted_anew,
        a_wedged_file_system_is_refused_as_long_as_any_mount_of_it_is_left,
        other_file_systems_are_not_wedged,
        a_durable_append_whose_flush_fails_is_not_acknowledged,
        nothing_acknowledged_beside_a_failing_flush_is_lost,
        no_short_record_beside_a_failing_flush_is_lost,
        a_stalled_disk_stops_only_its_own_files,
    ];
    let where_writes_are_direct: &[VolumeTest] = named![
        a_failed_append_ends_appending_until_it_is_given_up,
        a_failed_rewrite_of_the_last_block_harms_no_record,
        closing_after_a_failed_append_truncates_at_the_gap,
        a_failed_overwrite_fails_its_caller_only,
    ];
    let mut trials: Vec<_> = all.iter().flat_map(|&(name, test)| fuse_trials(name, test)).collect();
    let direct = where_writes_are_direct.iter();
    trials.extend(
        direct.flat_map(|&(name, test)| fuse_trials_where(name, Fs::writes_fail_alone, test)),
    );
    trials.extend(fuse_trials_where(
        "sync_all_flushes_every_disk_beside_a_stalled_one",
        flushes_for_committed_files,
        sync_all_flushes_every_disk_beside_a_stalled_one,
    ));
    trials.extend(fuse_trials_where(
        "appends_in_flight_beside_a_failed_one_leave_no_gap",
        tells_where_data_goes,
        appends_in_flight_beside_a_failed_one_leave_no_gap,
    ));
    trials.extend(fuse_trials_where(
        "a_stale_page_cache_and_a_failed_flush_differ_for_a_witness",
        reports_errors_by_file,
        a_stale_page_cache_and_a_failed_flush_differ_for_a_witness,
    ));
    trials.extend([
        fuse_trial(
            "btrfs::a_failed_write_through_the_cache_wedges",
            a_failed_write_through_the_cache_wedges,
        ),
        fuse_trial(
            "btrfs::a_failed_flush_wedges_all_subvolumes",
            a_failed_flush_wedges_all_subvolumes,
        ),
    ]);
    trials
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
