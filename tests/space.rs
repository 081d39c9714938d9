//! Full disks, quotas and size limits: appends fail cleanly, leave no hole, and work again once
//! space is free.

mod common;

use common::*;
use dioxide::{Durability, ErrorKind, File, Growth, OpenOptions, Operation};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::files;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{
    Trial, TrialResult, lab_trials, volume_trial, volume_trials, volume_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use rustix::fs::FallocateFlags;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

/// Takes all free space but `rest` bytes. Removing the file frees it.
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
        // A failed call may have allocated a part.
        len = len.max(filler.metadata()?.len());
    }
    while rest == 0 && take(&filler, len, BLOCK_BYTES).is_ok() {
        len += BLOCK_BYTES;
    }
    filler.sync_all()?;
    Ok(path)
}

/// Allocates a range of a file, by writes where there is no other way.
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

/// Appends until the kernel reports no space by one of `errnos`. Any other error fails the test.
fn append_until_full(file: &File, writer: u64, errnos: &[i32]) -> Vec<Placed> {
    let mut placed = Vec::new();
    for number in 0.. {
        match append(file, writer, number, 1 + number % 4) {
            Ok(record) => placed.push(record),
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::NoSpace(errno) if errnos.contains(errno)),
                    "{error}"
                );
                assert_eq!(error.operation(), Operation::Append);
                break;
            }
        }
    }
    placed
}

/// Checks a file after appends until space ran out, and again after space is free.
fn check_full(
    file: File,
    path: &Path,
    free: impl FnOnce() -> io::Result<()>,
    mut placed: Vec<Placed>,
) -> TrialResult {
    let end = assert_gapless(&placed, 0);
    assert!(end > 0, "nothing fitted");
    assert_eq!(file.len()?, end, "a failed append changed the length");
    assert_all_there(&fs::read(path)?[..end as usize], &placed);
    free()?;
    let after = once_there_is_space(|| append(&file, 90, 0, 4))?;
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
    let placed =
        together(threads, |writer| append_until_full(&file, writer, &[libc::ENOSPC])).concat();
    check_full(file, &path, || fs::remove_file(filler), placed)?;
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

/// Failed appends leave the last block unchanged. Without overwrites in place, a rewrite of the
/// last block may find no space after its append has an offset: that ends appending.
fn a_full_disk_fails_records_of_any_length_cleanly(fs: Fs) -> TrialResult {
    let mut volume = Volume::new(fs, SIZE_MIN)?;
    for growth in [Growth::Unwritten, Growth::None] {
        let path = volume.path().join(format!("{growth:?}"));
        let file = writable().growth(growth).open(&path)?;
        let filler = fill_up(&volume, 12 * MIB)?;
        let mut laid = together(4, |writer| {
            let mut laid = Vec::new();
            let len = |number| Some(if number % 4 == 0 { 150_000 + number } else { 10 + number });
            append_frames_while(&file, writer, len, |result| {
                let is_full = |error: &dioxide::Error| match error.kind() {
                    ErrorKind::AppendEnded(_) => fs == Fs::Btrfs,
                    kind => *kind == ErrorKind::NoSpace(libc::ENOSPC),
                };
                assert!(result.as_ref().err().is_none_or(is_full), "{result:?}");
                laid.extend(result.as_ref().ok().copied());
                result.is_ok()
            });
            laid
        })
        .concat();
        let end = laid.iter().map(Laid::end).max().unwrap_or(0);
        assert_eq!(file.len()?, end, "a failed append changed the length");
        assert_laid_out(&fs::read(&path)?[..end as usize], 0, &laid, false);
        fs::remove_file(filler)?;
        if fs == Fs::Btrfs {
            file.set_len(end)?;
        }
        laid.extend(append_frames(&file, 9, 30));
        file.close()?;
        assert_laid_out(&fs::read(&path)?, 0, &laid, false);
        fs::remove_file(path)?;
    }
    volume.fsck()?;
    Ok(())
}

fn a_file_opened_on_a_full_disk_waits_for_space(fs: Fs) -> TrialResult {
    let volume = Volume::new(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    fs::write(&path, &record(1, 0, 2)[..])?;
    let filler = fill_up(&volume, 0)?;
    let file = writable().open(&path)?;
    let first = assert_full(&file)?;
    fs::remove_file(filler)?;
    let after = once_there_is_space(|| append(&file, 1, 1, 64))?;
    assert_eq!(after.offset, first, "a failed append left a gap");
    file.close()?;
    assert_tidy(&path, after.end())?;
    assert_all_there(&fs::read(&path)?, &[after]);
    Ok(())
}

/// The space of a removed file is free after the close of its last descriptor and a journal commit.
/// A starting program may have a copy of that descriptor.
fn once_there_is_space<R>(attempt: impl Fn() -> dioxide::Result<R>) -> dioxide::Result<R> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(error) if error.errno() == libc::ENOSPC && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

/// Checks that neither appends nor positional writes extend the file. Returns its length.
fn assert_full(file: &File) -> dioxide::Result<u64> {
    // The file system's own reserve may still have a few blocks.
    let full = (0..1000).map(|_| file.append(&record(9, 9, 64))).find_map(Result::err);
    let full = full.expect("1000 records of 64 blocks do not fit");
    assert_eq!(full.kind(), &ErrorKind::NoSpace(libc::ENOSPC), "{full}");
    let len = file.len()?;
    for offset in [len, len + 16 * MIB] {
        assert_eq!(
            refusal(file.write_at(&record(9, 8, 64), offset)),
            ErrorKind::NoSpace(libc::ENOSPC)
        );
        assert_eq!(file.len()?, len);
    }
    Ok(len)
}

/// One write that starts well and then fills the disk: the kernel first returns a short count.
fn an_append_that_finds_space_for_a_part_is_taken_back(fs: Fs) -> TrialResult {
    let mut volume = Volume::new(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    let file = writable().growth(Growth::None).open(&path)?;
    let first = append(&file, 1, 0, 3)?;
    let filler = fill_up(&volume, 16 * MIB)?;
    let large = record(2, 0, 64 * MIB / BLOCK_BYTES);
    let error = file.append(&large).expect_err("a quarter of it fits");
    assert_eq!(
        (error.kind(), error.operation()),
        (&ErrorKind::NoSpace(libc::ENOSPC), Operation::Append)
    );
    assert_eq!((file.len()?, fs::metadata(&path)?.len()), (first.end(), first.end()));
    let small = append(&file, 1, 1, 16)?;
    assert_eq!(small.offset, first.end(), "what was written of it stays in the way");
    fs::remove_file(filler)?;
    assert_eq!(once_there_is_space(|| file.append(&large))?, small.end());
    file.close()?;
    let all = Placed { offset: small.end(), writer: 2, number: 0, blocks: 64 * MIB / BLOCK_BYTES };
    assert_tidy(&path, all.end())?;
    assert_all_there(&fs::read(&path)?, &[first, small, all]);
    volume.fsck()?;
    Ok(())
}

fn a_file_created_on_a_full_disk_is_made_or_refused(fs: Fs) -> TrialResult {
    let volume = Volume::new(fs, SIZE_MIN)?;
    let filler = fill_up(&volume, 0)?;
    let path = volume.path().join("log");
    let early = match writable().open(&path) {
        Ok(file) => file,
        Err(error) => {
            assert_eq!(
                (error.errno(), error.operation(), error.path()),
                (libc::ENOSPC, Operation::Open, &*path)
            );
            fs::remove_file(&filler)?;
            once_there_is_space(|| writable().open(&path))?
        }
    };
    let _ = fs::remove_file(filler);
    let mut placed = vec![once_there_is_space(|| append(&early, 2, 0, 1))?];
    placed.extend(append_many(&early, 1, 20));
    early.close()?;
    assert_tidy(&path, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// A close frees space, and must not need any.
fn a_full_disk_does_not_keep_a_file_from_being_closed(fs: Fs) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        let mut volume = Volume::new(fs, SIZE_MIN)?;
        let path = volume.path().join("log");
        let file = writable().growth(growth).growth_cap(4 * MIB).open(&path)?;
        let placed = append_many(&file, 1, 50);
        fill_up(&volume, 0)?;
        file.close().map_err(|error| format!("{growth:?}: {error}"))?;
        assert_tidy(&path, assert_gapless(&placed, 0))?;
        assert_all_there(&fs::read(&path)?, &placed);
        volume.fsck()?;
    }
    Ok(())
}

/// A child that appends durably forever.
fn append_for_ever(acks: &Acks, args: &[String]) {
    let mut options = writable();
    options.durability(Durability::EveryWrite).growth(growth_named(&args[1])).growth_cap(4 * MIB);
    let file = options.open(&args[0]).expect("it opens");
    for number in 0.. {
        acks.send(append(&file, 1, number, 1).expect("there is space").to_ack());
    }
}

fn a_full_disk_does_not_keep_a_file_from_being_recovered(fs: Fs) -> TrialResult {
    for growth in ["unwritten", "zeroed", "none"] {
        let mut volume = Volume::new(fs, SIZE_MIN)?;
        let path = volume.path().join("log");
        let mut child = child::spawn("append_for_ever", &[&*path.to_string_lossy(), growth])?;
        child.wait_for_acks(100, PATIENCE)?;
        let placed: Vec<_> = child.kill_9()?.into_iter().map(Placed::from_ack).collect();
        fill_up(&volume, 0)?;
        let file = OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(|error| format!("{growth}: {error}"))?;
        assert!(file.len()? >= assert_gapless(&placed, 0));
        let end = end_of_records(&fs::read(&path)?, 0);
        file.set_len(end)?;
        file.close()?;
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &placed);
        volume.fsck()?;
    }
    Ok(())
}

/// The marker fits into the inode, unless a program's own attribute takes that space.
fn a_marker_that_finds_no_space_leaves_the_file_as_it_was() -> TrialResult {
    let mut volume = Volume::new(Fs::Ext4, SIZE_MIN)?;
    let path = volume.path().join("log");
    let file = writable().open(&path)?;
    let mut placed = append_many(&file, 1, 20);
    file.close()?;
    rustix::fs::setxattr(&path, "user.own", &[1; 64], rustix::fs::XattrFlags::empty())?;
    let filler = fill_up(&volume, 0)?;
    let file = writable().open(&path)?;
    let end = file.len()?;
    let error = file.recycle().expect_err("it cannot be announced");
    assert_eq!(
        (error.kind(), error.operation()),
        (&ErrorKind::NoSpace(libc::ENOSPC), Operation::Recycle)
    );
    assert_eq!(refusal(append(&file, 2, 0, 1)), ErrorKind::NoSpace(libc::ENOSPC));
    assert_eq!((file.len()?, files::marker(&path)?), (end, None));
    file.write_at(&record(3, 0, 1), 0)?;
    fs::remove_file(filler)?;
    placed[0] = once_there_is_space(|| append(&file, 2, 0, 1))?;
    assert_eq!(placed[0].offset, end);
    file.close()?;
    assert_tidy(&path, end + BLOCK_BYTES)?;
    assert_all_there(&fs::read(&path)?, &placed);
    volume.fsck()?;
    Ok(())
}

// --- unwritten space on a full disk --------------------------------------------------------------

fn set_ext4(volume: &Volume, name: &str, value: &str) -> io::Result<()> {
    let device = volume.device().file_name().expect("a device has a name");
    fs::write(Path::new("/sys/fs/ext4").join(device).join(name), value)
}

/// ext4 may need a block for its tree to split an extent. It keeps a reserve for that.
fn a_full_disk_keeps_nothing_that_was_acknowledged_from_being_converted(
    prepare: impl Fn(&Volume) -> io::Result<()>,
    write: impl Fn(&File, &Path) -> Vec<Placed>,
) -> TrialResult {
    let mut volume = Volume::new(Fs::Ext4, SIZE_MIN)?;
    prepare(&volume)?;
    let path = volume.path().join("log");
    let file = writable().durability(Durability::EveryWrite).growth_cap(4 * MIB).open(&path)?;
    let first = append_many(&file, 1, 300);
    fill_up(&volume, 0)?;
    assert!(volume_is_full(&volume)?);
    let placed = write(&file, &path);
    assert!(placed.len() > 50, "too little was written to test anything: {}", placed.len());
    volume.shutdown()?;
    drop(file);
    volume.remount()?;
    let file = OpenOptions::new().write(true).open(&path)?;
    let len = file.len()?;
    assert!(
        len >= placed.iter().map(Placed::end).max().unwrap_or(0),
        "acknowledged records were cut"
    );
    let content = fs::read(&path)?;
    assert_all_there(&content, &placed);
    assert_all_there(&content, &first);
    for block in content.chunks_exact(BLOCK) {
        assert!(
            Stamp::of(block).is_some() || block.iter().all(|byte| *byte == 0),
            "old content of the disk"
        );
    }
    drop(file);
    volume.fsck()?;
    Ok(())
}

fn volume_is_full(volume: &Volume) -> io::Result<bool> {
    let probe = fs::File::create(volume.path().join("probe"))?;
    let result = rustix::fs::fallocate(&probe, FallocateFlags::empty(), 0, BLOCK_BYTES);
    drop(probe);
    fs::remove_file(volume.path().join("probe"))?;
    Ok(result.is_err())
}

/// Leaves 32 MiB free, in pieces of two blocks, and removes ext4's reserve. Then ext4 fills extents
/// that it cannot split with zeros.
fn fragment(volume: &Volume) -> io::Result<()> {
    let comb = volume.path().join("comb");
    fs::rename(fill_up(volume, 0)?, &comb)?;
    let file = fs::OpenOptions::new().write(true).open(&comb)?;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for piece in (0..64 * MIB).step_by(4 * BLOCK) {
        rustix::fs::fallocate(&file, punch, piece, 2 * BLOCK_BYTES)?;
    }
    file.sync_all()?;
    set_ext4(volume, "reserved_clusters", "0")
}

/// The number of extents of a file, not merged.
fn pieces(path: &Path) -> Result<u64, dioxide_testkit::trials::Failed> {
    let output = Command::new("/usr/sbin/filefrag").arg(path).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = text.rsplit(": ").next().and_then(|tail| tail.split(' ').next()?.parse().ok());
    count.ok_or_else(|| format!("filefrag: {text}").into())
}

/// Single blocks with unwritten ones between.
fn scattered_writes_on_a_full_disk_are_kept_or_refused() -> TrialResult {
    a_full_disk_keeps_nothing_that_was_acknowledged_from_being_converted(
        |_| Ok(()),
        |file, path| {
            let end = fs::metadata(path).expect("it is there").len();
            let start = file.len().expect("a writer knows") + BLOCK_BYTES;
            let offsets = (start..end).step_by(2 * BLOCK).zip(0..).take(300);
            let write = |(offset, number)| {
                let placed = Placed { offset, writer: 2, number, blocks: 1 };
                match file.write_at(&record(2, number, 1), offset) {
                    Ok(()) => Some(placed),
                    Err(error) => {
                        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
                        None
                    }
                }
            };
            offsets.filter_map(write).collect()
        },
    )
}

/// A file of small extents, whose tree is full.
fn appends_into_a_fragmented_file_on_a_full_disk_are_kept_or_refused() -> TrialResult {
    a_full_disk_keeps_nothing_that_was_acknowledged_from_being_converted(fragment, |file, path| {
        let end = fs::metadata(path).expect("it is there").len();
        assert!(pieces(path).expect("filefrag tells") > 400, "one block of the tree holds it");
        let blocks = (end - file.len().expect("a writer knows")) / BLOCK_BYTES;
        (0..blocks).map_while(|number| append(file, 2, number, 1).ok()).collect()
    })
}

// --- quotas --------------------------------------------------------------------------------------

/// The group of the subvolume that is mounted.
const QUOTA_GROUP: &str = "0/5";
/// A subvolume of its own, without a limit.
const UNLIMITED: &str = "unlimited";

/// Sets the quota of btrfs; not every kernel has the other quotas. The change itself needs quota of
/// the subvolume in its path.
fn limit_volume(volume: &Volume, limit: &str) -> io::Result<()> {
    let through = volume.path().join(UNLIMITED);
    btrfs(&["qgroup", "limit", limit, QUOTA_GROUP], &through)
}

/// On overwrites in place btrfs reports an exhausted quota as a full disk.
const NO_QUOTA: &[i32] = &[libc::EDQUOT, libc::ENOSPC];

fn limited(fs: Fs, limit: &str) -> Result<Volume, dioxide_testkit::trials::Failed> {
    let volume = Volume::new(fs, SIZE_MIN)?;
    btrfs(&["subvolume", "create"], &volume.path().join(UNLIMITED))?;
    btrfs(&["quota", "enable"], volume.path())?;
    limit_volume(&volume, limit)?;
    Ok(volume)
}

fn has_a_quota(fs: Fs) -> Applies {
    match fs {
        Fs::Btrfs | Fs::BtrfsNocow => Ok(()),
        _ => Err("its quotas are not in every kernel; those of btrfs are"),
    }
}

fn an_exhausted_quota_fails_appends_cleanly(fs: Fs) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        let mut volume = limited(fs, "24M")?;
        let path = volume.path().join("log");
        let file = writable().growth(growth).growth_cap(4 * MIB).open(&path)?;
        let placed = together(4, |writer| append_until_full(&file, writer, NO_QUOTA)).concat();
        check_full(file, &path, || limit_volume(&volume, "none"), placed)?;
        volume.fsck()?;
    }
    Ok(())
}

/// btrfs then refuses even a truncate. The close reports its failure, and no acknowledged data is
/// lost.
fn a_file_that_an_exhausted_quota_keeps_from_being_closed_loses_nothing(fs: Fs) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        let volume = limited(fs, "24M")?;
        let path = volume.path().join("log");
        let file = writable().growth(growth).growth_cap(4 * MIB).open(&path)?;
        let placed = append_until_full(&file, 1, NO_QUOTA);
        let end = assert_gapless(&placed, 0);
        match file.close() {
            Ok(()) => assert_tidy(&path, end)?,
            Err(error) => {
                let expected = (&ErrorKind::NoSpace(libc::EDQUOT), Operation::Close);
                assert_eq!((error.kind(), error.operation()), expected, "{error}");
                limit_volume(&volume, "none")?;
                let file = OpenOptions::new().write(true).open(&path)?;
                assert!(file.len()? >= end);
                // Without a marker the rest of a failed append is undetected.
                file.set_len(end)?;
                file.close()?;
            }
        }
        assert_all_there(&fs::read(&path)?, &placed);
    }
    Ok(())
}

// --- size limits ---------------------------------------------------------------------------------

fn limit_size(bytes: &str) {
    let bytes = bytes.parse().expect("a number");
    let limit = rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit)
        .expect("lowering is allowed");
}

/// A child that may not write past args[2]. It appends until that fails, then appends one block
/// that fits, and closes.
fn append_to_the_limit(acks: &Acks, args: &[String]) {
    let file = writable().growth(growth_named(&args[1])).open(&args[0]).expect("it opens");
    limit_size(&args[2]);
    let failed = (0..1000).map(|number| append(&file, 1, number, 3)).find(Result::is_err);
    tell(acks, &failed.expect("12 MiB do not fit"));
    acks.send([file.len().expect("a writer knows"), 0, 0]);
    tell(acks, &append(&file, 1, 1000, 1));
    tell(acks, &file.close());
}

/// A child that may not write past args[1]: a write beyond it, then an append that fits.
fn write_past_the_limit(acks: &Acks, args: &[String]) {
    let file = writable().open(&args[0]).expect("it opens");
    limit_size(&args[1]);
    append(&file, 1, 0, 1).expect("there is space");
    tell(acks, &file.write_at(&record(1, 1, 1), 2 * MIB));
    tell(acks, &append(&file, 1, 1, 1));
    tell(acks, &file.close());
}

/// A child that may not write past args[1], and sets a length beyond it.
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

/// The acknowledgements of a child that must survive: signal 25 is SIGXFSZ.
fn outcome(scenario: &str, args: &[&str]) -> io::Result<Vec<[u64; 3]>> {
    let (status, acks) = child::spawn(scenario, args)?.wait(PATIENCE)?;
    assert!(status.success(), "the child did not survive: {status}, {acks:?}");
    Ok(acks)
}

fn stays_below_the_limit(path: &Path, growth: &str, limit: u64) -> TrialResult {
    let acks =
        outcome("append_to_the_limit", &[&*path.to_string_lossy(), growth, &limit.to_string()])?;
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

type Ext4Test = (&'static str, fn() -> TrialResult);

fn trials() -> Vec<Trial> {
    let on_volumes: &[VolumeTest] = named![
        a_full_disk_fails_appends_cleanly,
        a_full_disk_fails_16_durable_writers_cleanly,
        a_full_disk_fails_zeroed_growth_cleanly,
        a_full_disk_fails_appends_without_growth_cleanly,
        a_full_disk_fails_records_of_any_length_cleanly,
        a_file_opened_on_a_full_disk_waits_for_space,
        an_append_that_finds_space_for_a_part_is_taken_back,
        a_file_created_on_a_full_disk_is_made_or_refused,
        a_full_disk_does_not_keep_a_file_from_being_closed,
        a_full_disk_does_not_keep_a_file_from_being_recovered,
    ];
    let where_there_is_a_quota: &[VolumeTest] = named![
        an_exhausted_quota_fails_appends_cleanly,
        a_file_that_an_exhausted_quota_keeps_from_being_closed_loses_nothing
    ];
    let on_ext4: &[Ext4Test] = named![
        a_marker_that_finds_no_space_leaves_the_file_as_it_was,
        scattered_writes_on_a_full_disk_are_kept_or_refused,
        appends_into_a_fragmented_file_on_a_full_disk_are_kept_or_refused,
    ];
    let in_the_lab: &[LabTest] = named![
        a_refused_write_leaves_the_space_there_is_usable,
        a_size_limit_fails_appends_cleanly,
        a_size_limit_fails_appends_to_zeroed_space_cleanly,
        an_aligned_size_limit_fails_appends_without_growth_cleanly,
        an_odd_size_limit_fails_appends_without_growth_cleanly,
        a_size_limit_fails_set_len_cleanly,
    ];
    let mut all: Vec<_> =
        on_volumes.iter().flat_map(|&(name, test)| volume_trials(name, test)).collect();
    let quota = where_there_is_a_quota.iter();
    all.extend(quota.flat_map(|&(name, test)| volume_trials_where(name, has_a_quota, test)));
    all.extend(on_ext4.iter().map(|&(name, test)| volume_trial(&format!("ext4::{name}"), test)));
    all.extend(in_the_lab.iter().flat_map(|&(name, test)| lab_trials(name, test)));
    all
}

fn main() -> ExitCode {
    let scenarios: &[child::Scenario] = &[
        ("append_for_ever", append_for_ever),
        ("append_to_the_limit", append_to_the_limit),
        ("write_past_the_limit", write_past_the_limit),
        ("set_len_past_the_limit", set_len_past_the_limit),
    ];
    dioxide_testkit::run(scenarios, trials)
}
