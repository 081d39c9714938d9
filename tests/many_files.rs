//! Many files of one file system, which share flushes.

mod common;

use common::*;
use dioxide::{AsyncFile, Buffer, Durability, File, Growth, LocalReactor, OpenOptions, Queue};
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials_where, volume_trials_where};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

const FILES: u64 = 32;
const RECORDS: u64 = 20;

/// Where one flush can be that of many files.
fn shares_flushes(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs => Ok(()),
        _ => Err("each file has flushes of its own"),
    }
}

fn on(wanted: Fs, fs: Fs) -> Applies {
    if fs == wanted { Ok(()) } else { Err("another file system does not do that") }
}

/// Opens files that leave space for each other.
fn open_many(dir: &Path, options: &OpenOptions) -> dioxide::Result<Vec<File>> {
    let options = options.clone().growth_cap(MIB).clone();
    (0..FILES).map(|nth| options.open(dir.join(format!("log-{nth}")))).collect()
}

fn durable() -> OpenOptions {
    writable().durability(Durability::EveryWrite).clone()
}

/// The flushes that these files sent, and those that another file made for them.
fn flushes_of(files: &[File]) -> (u64, u64) {
    let stats = files.iter().map(File::stats);
    stats.fold((0, 0), |(own, shared), stats| {
        (own + stats.flushes + stats.dsync_requests, shared + stats.flushes_shared)
    })
}

fn check_records(dir: &Path, files: Vec<File>, placed: &[Vec<Placed>]) -> TrialResult {
    for ((nth, file), placed) in files.into_iter().enumerate().zip(placed) {
        file.close()?;
        assert_all_there(&fs::read(dir.join(format!("log-{nth}")))?, placed);
    }
    Ok(())
}

// --- trials --------------------------------------------------------------------------------------

fn writers_of_many_files_share_flushes(dir: TestDir) -> TrialResult {
    let files = open_many(&dir, &durable())?;
    let placed = together(FILES, |writer| append_many(&files[writer as usize], writer, RECORDS));
    let (own, shared) = flushes_of(&files);
    assert!(own + shared >= FILES * RECORDS, "{own} and {shared}");
    if shares_flushes(dir.fs()).is_ok() {
        assert!(shared > FILES, "{own} of their own, {shared} shared");
    } else {
        assert_eq!(shared, 0);
    }
    check_records(&dir, files, &placed)
}

fn a_checkpoint_of_many_files_is_one_flush(dir: TestDir) -> TrialResult {
    let files = open_many(&dir, &writable())?;
    let shares = shares_flushes(dir.fs()).is_ok();
    let placed: Vec<_> =
        files.iter().enumerate().map(|(nth, file)| append_many(file, nth as u64, 3)).collect();
    dioxide::sync_all(&files)?;
    let (own, shared) = flushes_of(&files);
    assert_eq!((own, shared), if shares { (1, FILES - 1) } else { (FILES, 0) });
    let queue = Queue::new(FILES as usize);
    (0..).zip(&files).for_each(|(tag, file)| queue.sync_data(file, tag).expect("there is room"));
    for done in queue.reap(FILES as usize) {
        done.result?;
    }
    queue.sync_all(&files, 0).expect("there is room");
    queue.reap(1).next().expect("one completion").result?;
    drop(queue);
    let reactor = LocalReactor::new(&dioxide::QueueOptions::new());
    let shared_files: Vec<_> = files
        .iter()
        .map(|file| Ok(reactor.attach(file.try_clone()?)))
        .collect::<dioxide::Result<_>>()?;
    reactor.block_on(AsyncFile::sync_all(&shared_files))?;
    drop((shared_files, reactor));
    let (own, shared) = flushes_of(&files);
    // A queue may begin one flush before the others have asked.
    assert!(own <= if shares { 6 } else { 4 * FILES }, "{own} and {shared}");
    assert_eq!(own + shared, 4 * FILES);
    check_records(&dir, files, &placed)
}

/// The defect: the file that flushed for all got new times.
fn a_shared_flush_leaves_the_times_of_files_alone(dir: TestDir) -> TrialResult {
    let files = open_many(&dir, writable().growth(Growth::None))?;
    files.iter().try_for_each(|file| file.append(&record(1, 1, 1)).map(drop))?;
    dioxide::sync_all(&files)?;
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let times = fs::FileTimes::new().set_modified(long_ago);
    for file in &files {
        fs::File::from(file.as_fd().try_clone_to_owned()?).set_times(times)?;
    }
    dioxide::sync_all(&files)?;
    together(FILES, |nth| files[nth as usize].sync_data().expect("nothing fails"));
    for nth in 0..FILES {
        let found = fs::metadata(dir.join(format!("log-{nth}")))?.modified()?;
        assert_eq!(found, long_ago, "log-{nth}");
    }
    files.into_iter().try_for_each(|file| Ok(file.close()?))
}

/// Pages of a file that are dirty or in writeback.
fn dirty_pages(file: &File) -> io::Result<u64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    // `struct cachestat_range`: offset and length, where 0 means all.
    let range = [0_u64; 2];
    // `struct cachestat`: cached, dirty, writeback, evicted, recently evicted.
    let mut found = [0_u64; 5];
    // SAFETY: both have the layout of the kernel's structures, and outlive the call.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_fd().as_raw_fd(),
            range.as_ptr(),
            found.as_mut_ptr(),
            0,
        )
    };
    if result == 0 { Ok(found[1] + found[2]) } else { Err(io::Error::last_os_error()) }
}

/// The defect: XFS puts a short direct write into a shared extent into the page cache. The flush of
/// another file does not write it back.
fn a_durable_write_into_a_shared_extent_stayed_in_the_page_cache(dir: TestDir) -> TrialResult {
    const SHORT: usize = 512;
    let files = open_many(&dir, durable().growth(Growth::None))?;
    for (nth, file) in files.iter().enumerate() {
        assert_eq!(file.alignment().offset, SHORT as u64, "a file system with short sectors");
        file.append(&Buffer::zeroed(16 * BLOCK_BYTES as usize))?;
        let copy = fs::File::create(dir.join(format!("copy-{nth}")))?;
        rustix::fs::ioctl_ficlone(&copy, file.as_fd())?;
    }
    let short = |writer: u64| {
        // Later visits find blocks that are not shared any more.
        for number in 1..4 * RECORDS {
            let file = &files[writer as usize];
            let mut sector = Buffer::zeroed(SHORT);
            sector.fill(number as u8);
            file.write_at(&sector, number % 8 * BLOCK_BYTES + SHORT as u64).expect("written");
            assert_eq!(dirty_pages(file).expect("Linux 6.5"), 0, "writer {writer}, {number}");
        }
    };
    together(FILES, short);
    let (_, shared) = flushes_of(&files);
    assert!(shared > FILES, "{shared}: nothing was tried");
    files.into_iter().try_for_each(|file| Ok(file.close()?))
}

/// A file of the library's own takes part in the journal.
fn a_file_system_can_be_unmounted_once_its_files_are_closed(fs: Fs) -> TrialResult {
    let mut volume = Volume::new(fs, SIZE_MIN)?;
    let files = open_many(volume.path(), durable().growth(Growth::None))?;
    let queue = Queue::new(FILES as usize);
    for (tag, file) in (0..).zip(&files) {
        queue.append(file, record(tag, 1, 1), tag).expect("there is room");
    }
    queue.reap(FILES as usize).try_for_each(|done| done.result.map(drop))?;
    files.into_iter().try_for_each(File::close)?;
    volume.unmount()?;
    drop(queue);
    volume.fsck()?;
    Ok(())
}

/// A commit of ext4 with fast commits is one of some files only.
fn a_file_system_with_fast_commits_shares_no_flush(fs: Fs) -> TrialResult {
    let volume = Volume::recorded(fs, SIZE_MIN, &["-O", "fast_commit"])?;
    let files = open_many(volume.path(), durable().growth(Growth::None))?;
    let placed = together(FILES, |writer| append_many(&files[writer as usize], writer, 3));
    assert_eq!(flushes_of(&files).1, 0);
    // The defect: it said that they do, as they did at their open.
    assert!(files.iter().all(|file| file.shares_flushes().is_err()));
    check_records(volume.path(), files, &placed)
}

fn trials() -> Vec<Trial> {
    let everywhere: &[LabTest] =
        named![writers_of_many_files_share_flushes, a_checkpoint_of_many_files_is_one_flush];
    let where_they_share: &[LabTest] = named![a_shared_flush_leaves_the_times_of_files_alone];
    let on_xfs: &[LabTest] = named![a_durable_write_into_a_shared_extent_stayed_in_the_page_cache];
    let lab = |tests: &'static [LabTest], applies: fn(Fs) -> Applies| {
        tests.iter().flat_map(move |&(name, test)| lab_trials_where(name, applies, test))
    };
    let mut all: Vec<Trial> = lab(everywhere, |_| Ok(())).collect();
    all.extend(lab(where_they_share, shares_flushes));
    all.extend(lab(on_xfs, |fs| on(Fs::Xfs, fs)));
    all.extend(volume_trials_where(
        "a_file_system_can_be_unmounted_once_its_files_are_closed",
        shares_flushes,
        a_file_system_can_be_unmounted_once_its_files_are_closed,
    ));
    all.extend(volume_trials_where(
        "a_file_system_with_fast_commits_shares_no_flush",
        |fs| on(Fs::Ext4, fs),
        a_file_system_with_fast_commits_shares_no_flush,
    ));
    all
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
