//! Several processes and one file: locks, forks, executed programs, panics, and block devices in
//! use.

mod common;

use common::*;
use dioxide::{Buffer, Durability, ErrorKind, File, OpenOptions, Queue, QueueOptions, Reader};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::files;
use dioxide_testkit::fork;
use dioxide_testkit::lab::{self, Disk, Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{Trial, TrialResult, disk_trial, lab_trials, volume_trials_where};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use rustix::thread::UnshareFlags;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The result of a child that opens `path` for writing.
fn opened_by_another(path: &Path) -> Result<u64, dioxide_testkit::trials::Failed> {
    let (status, acks) = child::spawn("try_to_open", &[path.to_string_lossy()])?.wait(PATIENCE)?;
    assert!(status.success(), "{status}");
    Ok(acks[0][0])
}

// --- locks ---------------------------------------------------------------------------------------

fn a_second_process_is_locked_out_until_the_file_is_closed(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    append(&file, 1, 0, 1)?;
    assert_eq!(opened_by_another(&path)?, LOCKED);
    let clone = file.try_clone()?;
    file.close()?;
    assert_eq!(opened_by_another(&path)?, LOCKED, "one of two handles is left");
    append(&clone, 1, 1, 1)?;
    clone.close()?;
    assert_eq!(opened_by_another(&path)?, 0);
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

fn a_locked_out_process_changes_nothing(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let mut child = child::spawn("append_for_ever", &[&path.to_string_lossy()])?;
    child.wait_for_acks(20, PATIENCE)?;
    assert_eq!(refusal(File::create(&path)), ErrorKind::Locked, "though it would cut");
    assert_eq!(refusal(writable().open(&path)), ErrorKind::Locked);
    let before = child.wait_for_acks(20, PATIENCE)?.len();
    child.wait_for_acks(before + 20, PATIENCE)?;
    let records: Vec<_> = child.kill_9()?.into_iter().map(Placed::from_ack).collect();
    let file = writable().open(&path)?;
    file.close()?;
    assert_all_there(&fs::read(&path)?, &records);
    Ok(())
}

/// A child that appends durably forever.
fn append_for_ever(acks: &Acks, args: &[String]) {
    let file = writable().durability(Durability::EveryWrite).open(&args[0]).expect("it opens");
    for number in 0.. {
        acks.send(append(&file, 1, number, 1).expect("there is space").to_ack());
    }
}

/// Takes a lock of the calling process (not of the description) on `len` bytes from 0; on all if
/// `len` is 0.
fn posix_lock(file: &fs::File, len: i64) -> std::io::Result<()> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: F_SETLK reads one flock structure, which outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// A child that reports whether it can take the lock of `posix_lock`.
fn try_posix_lock(acks: &Acks, args: &[String]) {
    let file = fs::OpenOptions::new().read(true).write(true).open(&args[0]).expect("it opens");
    let result = posix_lock(&file, args[1].parse().expect("a number"));
    acks.send([u64::from(result.is_ok()), 0, 0]);
}

fn locked_for_others(path: &Path, len: i64) -> Result<bool, dioxide_testkit::trials::Failed> {
    let args = [path.to_string_lossy().into_owned(), len.to_string()];
    let (status, acks) = child::spawn("try_posix_lock", &args)?.wait(PATIENCE)?;
    assert!(status.success(), "{status}");
    Ok(acks[0][0] == 0)
}

/// All bytes that can hold data; longer than any file.
const ALL_DATA: i64 = 1 << 62;

fn the_programs_own_lock_works_beside_ours(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    append(&file, 1, 0, 1)?;
    let own = fs::OpenOptions::new().read(true).write(true).open(&path)?;
    posix_lock(&own, ALL_DATA)?;
    assert!(locked_for_others(&path, ALL_DATA)?);
    assert_eq!(opened_by_another(&path)?, LOCKED);
    append(&file, 1, 1, 1)?;
    assert!(locked_for_others(&path, ALL_DATA)?, "an append ended it");
    drop(own);
    assert!(!locked_for_others(&path, ALL_DATA)?, "nobody holds it any more");
    file.close()?;
    Ok(())
}

fn the_programs_own_lock_of_the_whole_file_works_beside_ours(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    let own = fs::OpenOptions::new().read(true).write(true).open(&path)?;
    posix_lock(&own, ALL_DATA)?;
    assert!(locked_for_others(&path, ALL_DATA)?);
    file.close()?;
    Ok(())
}

/// Length 0 means: to the largest offset, at any file length. Our own lock is in that range.
fn the_programs_own_lock_with_length_0_is_refused_with_eagain(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    let own = fs::OpenOptions::new().read(true).write(true).open(&path)?;
    let error = posix_lock(&own, 0).expect_err("it reaches our byte");
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
    file.close()?;
    posix_lock(&own, 0)?;
    assert!(locked_for_others(&path, 0)?);
    Ok(())
}

/// A close of any descriptor of a file ends all POSIX locks of the process on it. Takes one, runs
/// `more`, and returns whether the lock is still held while its result lives.
fn the_programs_own_lock_outlives<T>(
    dir: &Path,
    more: impl FnOnce(&Path) -> dioxide::Result<T>,
) -> Result<bool, dioxide_testkit::trials::Failed> {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    append(&file, 1, 0, 1)?;
    let own = fs::OpenOptions::new().read(true).write(true).open(&path)?;
    posix_lock(&own, ALL_DATA)?;
    let kept = more(&path)?;
    let locked = locked_for_others(&path, ALL_DATA)?;
    drop(kept);
    file.close()?;
    Ok(locked)
}

fn a_second_writing_handle_does_not_end_the_programs_own_lock(dir: TestDir) -> TrialResult {
    assert!(the_programs_own_lock_outlives(&dir, |path| writable().open(path)?.close())?);
    Ok(())
}

/// The permission check uses a descriptor that opens nothing.
fn a_refused_handle_does_not_end_the_programs_own_lock(dir: TestDir) -> TrialResult {
    fs::set_permissions(&*dir, fs::Permissions::from_mode(0o755))?;
    let refused = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("root may");
        let open_as_another = || {
            // SAFETY: affects this thread alone.
            unsafe {
                rustix::thread::unshare_unsafe(UnshareFlags::FS).expect("a thread may");
                rustix::process::chdir(&*dir).expect("root may");
                libc::setfsuid(65534);
            }
            OpenOptions::new()
                .write(true)
                .open(path.file_name().expect("it has one"))
                .map_err(|error| error.errno())
        };
        let opened =
            std::thread::scope(|scope| scope.spawn(open_as_another).join().expect("it ends"));
        assert_eq!(opened.err(), Some(libc::EACCES));
        Ok(())
    };
    assert!(the_programs_own_lock_outlives(&dir, refused)?);
    Ok(())
}

fn an_open_reading_handle_does_not_end_the_programs_own_lock(dir: TestDir) -> TrialResult {
    let read = |path: &Path| {
        let reader = File::open(path)?;
        reader.read_at(&mut Buffer::zeroed(BLOCK), 0)?;
        Ok(reader)
    };
    assert!(the_programs_own_lock_outlives(&dir, read)?);
    Ok(())
}

/// As in POSIX, and documented at `File`.
fn closing_a_reading_handle_or_looking_ends_the_programs_own_lock(dir: TestDir) -> TrialResult {
    assert!(!the_programs_own_lock_outlives(&dir, |path| File::open(path)?.close())?);
    let look = |path: &Path| dioxide::recover(path, dioxide::Recover::Inspect);
    assert!(!the_programs_own_lock_outlives(&dir, look)?);
    Ok(())
}

// --- forks ---------------------------------------------------------------------------------------

/// A forked child has copies of all descriptors for a moment, even of those that other tests
/// closed.
static NO_FORKS: Mutex<()> = Mutex::new(());

fn without_forks() -> MutexGuard<'static, ()> {
    NO_FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like `fork::holds_in_a_fork`, for one test at a time.
fn holds_in_a_fork(work: impl FnOnce() -> bool) -> bool {
    let _mine = without_forks();
    fork::holds_in_a_fork(work)
}

fn is_forked<T>(result: dioxide::Result<T>) -> bool {
    result.is_err_and(|error| *error.kind() == ErrorKind::Forked)
}

fn every_operation_fails(file: &File) -> bool {
    let mut into = Buffer::zeroed(BLOCK);
    is_forked(file.append(&into))
        && is_forked(file.append(&[]))
        && is_forked(file.write_at(&into, 0))
        && is_forked(file.write_at(&into, 64 * MIB))
        && is_forked(file.read_at(&mut into, 0))
        && is_forked(file.sync_data())
        && is_forked(file.set_len(0))
        && is_forked(file.try_clone())
}

fn a_forked_child_can_do_nothing_with_the_file(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    let mut placed = vec![append(&file, 1, 0, 2)?];
    let size = fs::metadata(&path)?.len();
    assert!(holds_in_a_fork(|| every_operation_fails(&file)));
    assert!(holds_in_a_fork(
        || is_forked(OpenOptions::new().write(true).open(&path)) || locked(&path)
    ));
    assert_eq!(fs::metadata(&path)?.len(), size);
    placed.push(append(&file, 1, 1, 1)?);
    let end = assert_gapless(&placed, 0);
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// The child has a copy of the tail.
fn a_forked_child_writes_nothing_to_the_last_block(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    let frame = |number| Frame { writer: 1, number, len: 90 };
    let mut laid = vec![append_frame(&file, frame(0))?];
    assert!(holds_in_a_fork(|| is_forked(append_frame(&file, Frame { writer: 2, ..frame(0) }))));
    laid.push(append_frame(&file, frame(1))?);
    file.close()?;
    assert_laid_out(&fs::read(&path)?, 0, &laid, false);
    Ok(())
}

fn locked(path: &Path) -> bool {
    refusal(OpenOptions::new().write(true).open(path)) == ErrorKind::Locked
}

/// The ring stays with the parent: the kernel maps it only there.
fn a_forked_child_touches_no_ring_of_its_parent(dir: TestDir) -> TrialResult {
    let file = writable().open(dir.join("log"))?;
    let queue = Queue::new(8);
    for tag in 0..4 {
        queue.append(&file, record(1, tag, 1), tag)?;
    }
    queue.submit();
    queue.append(&file, record(1, 4, 1), 4)?;
    assert!(holds_in_a_fork(|| {
        let all: Vec<_> = queue.reap(0).collect();
        all.len() == 5
            && all.into_iter().all(|done| done.buffer.is_some() && is_forked(done.result))
            && queue.append(&file, record(1, 5, 1), 5).is_ok()
            && queue.reap(1).all(|done| is_forked(done.result))
            && queue.outstanding() == 0
    }));
    assert_eq!(queue.reap(5).filter(|done| done.result.is_ok()).count(), 5);
    Ok(())
}

/// The child's handle reads by the marker, whatever locks the parent's threads held.
fn a_reading_handle_goes_on_in_a_forked_child(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().growth_cap(MIB).open(&path)?;
    let reader = File::open(&path)?;
    let done = AtomicBool::new(false);
    let held = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..).take_while(|_| !done.load(SeqCst)) {
                append(&file, 1, number, 1).expect("there is space");
                reader.len().expect("it is open here");
            }
        });
        let _over = Over(&done);
        (0..20).filter(|_| holds_in_a_fork(|| reads_only_records(&file, &reader))).count()
    });
    assert_eq!(held, 20);
    file.close()?;
    assert!(holds_in_a_fork(|| {
        let len = fs::metadata(&path).unwrap().len();
        assert_eq!(reader.len().unwrap(), len);
        // It returned whole blocks beside a writer of the child.
        let file = writable().open(&path).unwrap();
        file.append(&[1; 100]).unwrap();
        reader.len().unwrap() == len + 100 && reader.read_at(&mut [0; 200], len).unwrap() == 100
    }));
    Ok(())
}

fn reads_only_records(writer: &File, reader: &File) -> bool {
    let len = reader.len().expect("the marker tells");
    let mut into = Buffer::zeroed(len.min(8 * BLOCK_BYTES) as usize);
    let start = len - into.len() as u64;
    reader.read_at(&mut into, start).expect("it reads") == into.len()
        && start + end_of_records(&into, 0) == len
        && reader.try_clone().is_ok_and(|twin| twin.len().is_ok())
        && writer.growth() == dioxide::Growth::None
        && writer.stats().growth_waits == 0
}

/// It failed with `Forked`: the reactor is the parent's, also of the reads ahead.
fn a_stream_of_a_read_only_handle_goes_on_in_a_forked_child(dir: TestDir) -> TrialResult {
    let path = dir.join("data");
    let content: Vec<_> = (0..12 * MIB + 100).map(|at| (at / 512) as u8).collect();
    fs::write(&path, &content)?;
    let mut stream = Reader::new(File::open(&path)?);
    let mut head = vec![0; (3 * MIB) as usize];
    stream.read_exact(&mut head)?;
    assert!(head == content[..head.len()]);
    let mut goes_on = || {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("it reads");
        rest == content[head.len()..]
    };
    assert!(holds_in_a_fork(&mut goes_on));
    assert!(goes_on(), "the parent's stream is as before");
    Ok(())
}

fn a_forked_child_that_opens_the_file_again_is_locked_out(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    append(&file, 1, 0, 1)?;
    assert!(holds_in_a_fork(|| locked(&path)));
    file.close()?;
    assert!(
        holds_in_a_fork(|| writes_a_file_of_its_own(&path)),
        "the file is free, also for a child"
    );
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

fn writes_a_file_of_its_own(path: &Path) -> bool {
    let file = writable().open(path).expect("it is free");
    append(&file, 2, 0, 1).expect("there is space");
    file.close().is_ok()
}

/// Runs `end` with the child's copy of the handle, before the child ends.
fn the_parent_goes_on(dir: &Path, end: fn(File) -> bool) -> TrialResult {
    let path = dir.join("log");
    let file = writable().open(&path)?;
    let mut placed = vec![append(&file, 1, 0, 1)?];
    let (marker, size) = (files::marker(&path)?, fs::metadata(&path)?.len());
    let mut handle = Some(file);
    assert!(holds_in_a_fork(|| end(handle.take().expect("the child's copy"))));
    let file = handle.expect("the parent's is still there");
    assert_eq!(
        (files::marker(&path)?, fs::metadata(&path)?.len()),
        (marker, size),
        "the child changed it"
    );
    assert_eq!(opened_by_another(&path)?, LOCKED, "the child gave up the lock");
    placed.extend(append_many(&file, 2, 50));
    file.sync_data()?;
    let end = assert_gapless(&placed, 0);
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    assert_eq!(opened_by_another(&path)?, 0);
    Ok(())
}

fn a_forked_child_that_ends_changes_nothing(dir: TestDir) -> TrialResult {
    the_parent_goes_on(&dir, |file| {
        std::mem::forget(file);
        true
    })
}

fn a_forked_child_that_drops_the_file_changes_nothing(dir: TestDir) -> TrialResult {
    the_parent_goes_on(&dir, |file| {
        drop(file);
        true
    })
}

fn a_forked_child_that_closes_the_file_changes_nothing(dir: TestDir) -> TrialResult {
    the_parent_goes_on(&dir, |file| is_forked(file.close()))
}

fn a_forked_child_is_not_stuck_by_the_parents_threads(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().growth_cap(MIB).open(&path)?;
    let done = AtomicBool::new(false);
    let placed = std::thread::scope(|scope| {
        let appenders = scope.spawn(|| {
            together(8, |writer| {
                // A limit, so that tmpfs does not fill up while the children are slow.
                let numbers = (0..20_000).take_while(|_| !done.load(SeqCst));
                numbers
                    .map(|number| append(&file, writer, number, 1).expect("there is space"))
                    .collect::<Vec<_>>()
            })
            .concat()
        });
        let over = Over(&done);
        let held = (0..20)
            .filter(|_| holds_in_a_fork(|| every_operation_fails(&file) && locked(&path)))
            .count();
        drop(over);
        let placed = appenders.join().expect("the parent's threads go on");
        assert_eq!(held, 20, "children hung or did something");
        placed
    });
    let end = assert_gapless(&placed, 0);
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// The child has a copy of the queue, whose ring belongs to the parent.
fn a_queue_in_a_forked_child_does_nothing_and_the_parents_goes_on(
    dir: TestDir,
    way: Way,
) -> TrialResult {
    const EACH: u64 = 8;
    let path = dir.join("log");
    let file = writable().durability(Durability::EveryWrite).growth_cap(MIB).open(&path)?;
    let reader = File::open(&path)?;
    let queue = way.queue(QueueOptions::new().depth(4 * EACH as usize).buffers(4, BLOCK));
    let queue_some = |first: u64, count: u64| {
        for number in first..first + count {
            queue.append(&file, record(1, number, 2), number).expect("there is room");
        }
    };
    for round in 0..10 {
        let first = 2 * EACH * round;
        queue_some(first, EACH);
        queue.submit();
        // These are only queued when the child gets its copy.
        queue_some(first + EACH, EACH);
        let held = holds_in_a_fork(|| {
            let more = queue.append(&file, record(9, 9, 1), 9000).is_ok()
                && queue.sync_data(&file, 9001).is_ok()
                && queue.read_at(&file, Buffer::zeroed(BLOCK), 0, 9002).is_ok()
                && queue.append(&reader, record(9, 9, 1), 9000).is_ok();
            queue.submit();
            // The child may reap earlier completions; none of its own operations may succeed.
            let finished_before =
                |done: &dioxide::Completion| done.tag < 9000 && done.result.is_ok();
            let answered =
                queue.reap(usize::MAX).all(|done| finished_before(&done) || is_forked(done.result));
            more && answered && queue.outstanding() == 0
        });
        assert!(held, "round {round}");
        let mut numbers: Vec<_> = Vec::new();
        while queue.outstanding() > 0 {
            for done in queue.reap(1) {
                assert_eq!(done.result?, done.tag * 2 * BLOCK_BYTES);
                numbers.push(done.tag);
            }
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (first..first + 2 * EACH).collect::<Vec<_>>());
    }
    file.close()?;
    let placed = |number| Placed { offset: number * 2 * BLOCK_BYTES, writer: 1, number, blocks: 2 };
    let all: Vec<_> = (0..20 * EACH).map(placed).collect();
    assert_tidy(&path, assert_gapless(&all, 0))?;
    assert_all_there(&fs::read(&path)?, &all);
    Ok(())
}

/// A child that opens the file and leaves an executed program behind.
fn leave_a_program_behind(acks: &Acks, args: &[String]) {
    let file = writable().open(&args[0]).expect("it opens");
    append(&file, 1, 0, 1).expect("there is space");
    let mut sleep = Command::new("sleep");
    let mut program =
        sleep.arg("60").stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("there is sleep");
    acks.send([program.id().into(), 0, 0]);
    program.wait().expect("it ends, if nobody kills us before");
}

/// The kernel closes the close-on-exec descriptors a moment after the program seems to run.
fn open_soon(path: &Path) -> dioxide::Result<File> {
    let begun = Instant::now();
    loop {
        match writable().open(path) {
            Err(error)
                if matches!(error.kind(), ErrorKind::Locked | ErrorKind::Busy(_))
                    && begun.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

fn an_executed_program_does_not_keep_the_lock(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let mut child = child::spawn("leave_a_program_behind", &[path.to_string_lossy()])?;
    let program = child.wait_for_acks(1, PATIENCE)?[0][0];
    assert_eq!(refusal(writable().open(&path)), ErrorKind::Locked);
    child.kill_9()?;
    let opened = open_soon(&path);
    let alive = Path::new(&format!("/proc/{program}")).exists();
    // SAFETY: the program belongs to the child, and was alive just now.
    unsafe { libc::kill(program as i32, libc::SIGKILL) };
    assert!(alive, "the program had ended: nothing was tested");
    opened?.close()?;
    assert_tidy(&path, BLOCK_BYTES)?;
    Ok(())
}

/// A starting program has copies of all descriptors for a moment, so a close does not unlock.
fn a_recovered_file_is_free_while_programs_are_started(dir: TestDir) -> TrialResult {
    let _none = without_forks();
    let path = dir.join("log");
    fs::write(&path, &record(1, 0, 1)[..])?;
    while_programs_are_started(|| Ok((0..150).try_for_each(|_| recover_and_open(&path))?))
}

fn while_programs_are_started(work: impl FnOnce() -> TrialResult) -> TrialResult {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            while !done.load(SeqCst) {
                let program =
                    Command::new("true").stdin(Stdio::null()).stdout(Stdio::null()).status();
                assert!(program.expect("there is true").success());
            }
        });
        let over = Over(&done);
        let result = work();
        drop(over);
        starter.join().expect("programs start");
        result
    })
}

fn recover_and_open(path: &Path) -> dioxide::Result<()> {
    dioxide::recover(path, dioxide::Recover::Truncate)?;
    OpenOptions::new().write(true).open(path)?.close()
}

fn a_refused_file_is_free_while_programs_are_started(dir: TestDir) -> TrialResult {
    let _none = without_forks();
    let path = dir.join("log");
    fs::write(&path, &record(1, 0, 1)[..])?;
    files::set_marker(&path, b"nobody can read this")?;
    while_programs_are_started(|| {
        (0..150).try_for_each(|_| match refusal(OpenOptions::new().write(true).open(&path)) {
            ErrorKind::ModifiedExternally(_) => Ok(()),
            other => Err(format!("{other:?}").into()),
        })
    })
}

// --- panics --------------------------------------------------------------------------------------

/// Appends a last record in its drop, as a log may do.
struct LastWords<'a>(&'a File);

impl Drop for LastWords<'_> {
    fn drop(&mut self) {
        append(self.0, 2, 0, 1).expect("there is space");
    }
}

/// A child that panics, and appends while it unwinds.
fn append_while_unwinding(acks: &Acks, args: &[String]) {
    let file = writable().open(&args[0]).expect("it opens");
    append(&file, 1, 0, 1).expect("there is space");
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _last_words = LastWords(&file);
        panic!("a panic of the program's own, on purpose");
    }));
    assert!(result.is_err());
    file.close().expect("it closes");
    acks.send([1, 0, 0]);
}

fn a_program_that_panics_can_still_append_while_it_unwinds(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let child = child::spawn("append_while_unwinding", &[path.to_string_lossy()])?;
    let (status, acks) = child.wait(PATIENCE)?;
    assert!(status.success() && acks == [[1, 0, 0]], "{status}, {acks:?}");
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

// --- devices -------------------------------------------------------------------------------------

fn a_device_is_read_and_written(disk: Disk) -> TrialResult {
    let file = OpenOptions::new().write(true).open(&*disk)?;
    let size = file.len()?;
    assert!(size >= 64 * MIB);
    file.write_at(&record(1, 1, 4), 4 * MIB)?;
    file.sync_data()?;
    let mut into = Buffer::zeroed(4 * BLOCK);
    assert_eq!(file.read_at(&mut into, 4 * MIB)?, 4 * BLOCK);
    assert!(into[..] == record(1, 1, 4)[..]);
    assert_eq!(file.read_at(&mut into, size - BLOCK_BYTES)?, BLOCK, "reading ends with the device");
    assert!(matches!(refusal(file.append(&record(1, 1, 1))), ErrorKind::Unsupported(_)));
    assert!(matches!(refusal(file.set_len(size)), ErrorKind::Unsupported(_)));
    file.write_at(&record(1, 2, 1), size - BLOCK_BYTES)?;
    for (blocks, offset) in [(1, size), (2, size - BLOCK_BYTES), (1, size + 64 * MIB)] {
        let error = file.write_at(&record(1, 3, blocks), offset).expect_err("it is past the end");
        assert_eq!((error.errno(), error.offset()), (libc::ENOSPC, Some(offset)));
    }
    assert_eq!(file.len()?, size);
    assert_eq!(file.read_at(&mut into, size - BLOCK_BYTES)?, BLOCK);
    assert!(into[..BLOCK] == record(1, 2, 1)[..], "a refused write wrote");
    file.close()?;
    Ok(())
}

fn sixteen_durable_writers_share_a_device(disk: Disk) -> TrialResult {
    const EACH: u64 = 40;
    let file = OpenOptions::new().write(true).durability(Durability::EveryWrite).open(&*disk)?;
    // Adjacent blocks from different threads: writes may merge, but no block may land elsewhere.
    let place = |writer: u64, number: u64| (number * 16 + writer) * 2 * BLOCK_BYTES;
    together(16, |writer| {
        for number in 0..EACH {
            file.write_at(&record(writer, number, 2), place(writer, number))
                .expect("a device takes it");
        }
    });
    assert!(file.stats().flushes <= 16 * EACH, "{:?}", file.stats());
    file.close()?;
    let reader = File::open(&*disk)?;
    let mut into = Buffer::zeroed(2 * BLOCK);
    for (writer, number) in (0..16).flat_map(|writer| (0..EACH).map(move |number| (writer, number)))
    {
        assert_eq!(reader.read_at(&mut into, place(writer, number))?, 2 * BLOCK);
        assert!(into[..] == record(writer, number, 2)[..], "{writer}'s {number} is lost");
    }
    Ok(())
}

fn overlapping_durable_writes_leave_one_of_them_whole(disk: Disk) -> TrialResult {
    let file = OpenOptions::new().write(true).durability(Durability::EveryWrite).open(&*disk)?;
    let mut into = Buffer::zeroed(8 * BLOCK);
    for round in 0..20 {
        together(8, |writer| {
            file.write_at(&record(writer, round, 8), 8 * MIB).expect("a device takes it")
        });
        assert_eq!(file.read_at(&mut into, 8 * MIB)?, 8 * BLOCK);
        let winner = Stamp::of(&into[..BLOCK]).expect("somebody's record").writer;
        assert!(into[..] == record(winner, round, 8)[..], "a mixture");
    }
    file.close()?;
    Ok(())
}

fn a_device_is_shared_within_the_process_only(disk: Disk) -> TrialResult {
    let _none = without_forks();
    let first = OpenOptions::new().write(true).open(&*disk)?;
    let second = OpenOptions::new().write(true).open(&*disk)?;
    first.write_at(&record(1, 1, 1), 0)?;
    first.close()?;
    let code = opened_by_another(&disk)?;
    assert!(code == BUSY || code == LOCKED, "another process may write it: {code}");
    second.write_at(&record(2, 1, 1), BLOCK_BYTES)?;
    let mut into = Buffer::zeroed(2 * BLOCK);
    assert_eq!(second.read_at(&mut into, 0)?, 2 * BLOCK);
    assert_eq!(end_of_records(&into, 0), 2 * BLOCK_BYTES);
    second.close()?;
    assert_eq!(opened_by_another(&disk)?, 0);
    Ok(())
}

fn a_device_with_a_mounted_file_system_is_refused(fs: Fs) -> TrialResult {
    let _none = without_forks();
    let mut volume = Volume::new(fs, SIZE_MIN)?;
    let busy = refusal(OpenOptions::new().write(true).open(volume.device()));
    assert!(matches!(busy, ErrorKind::Busy(_)), "{busy:?}");
    File::open(volume.device())?.close()?;
    volume.unmount()?;
    OpenOptions::new().write(true).open(volume.device())?.close()?;
    volume.mount()?;
    Ok(())
}

fn the_image_behind_a_loop_device_is_refused() -> TrialResult {
    let mounted = rustix::fs::stat(lab::dir()?.join("ext4"))?.st_dev;
    let bare = rustix::fs::stat(lab::disk_path()?)?.st_rdev;
    for device in [mounted, bare] {
        let image = image_behind(device)?;
        let busy = refusal(OpenOptions::new().write(true).open(&image));
        assert!(matches!(busy, ErrorKind::Busy(_)), "{image}: {busy:?}");
    }
    Ok(())
}

/// The path of the image of a loop device.
fn image_behind(device: u64) -> std::io::Result<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/loop/backing_file"))?;
    Ok(path.trim_end().into())
}

/// Even on btrfs and its subvolumes, whose files have device numbers without a mount; and under any
/// name.
fn an_image_is_refused_wherever_it_lies(dir: TestDir) -> TrialResult {
    let name = OsStr::from_bytes(b"im\xFFage ");
    let mut image = dir.join(name);
    if matches!(dir.fs(), Fs::Btrfs | Fs::BtrfsNocow) {
        let subvolume = dir.join("subvolume");
        btrfs(&["subvolume", "create"], &subvolume)?;
        image = subvolume.join(name);
    }
    fs::File::create(&image)?.set_len(MIB)?;
    let attached = AttachedFile::new(&image)?;
    let busy = refusal(OpenOptions::new().write(true).open(&image));
    assert!(matches!(busy, ErrorKind::Busy(_)), "{busy:?}");
    drop(attached);
    OpenOptions::new().write(true).open(&image)?.close()?;
    Ok(())
}

// --- the list ------------------------------------------------------------------------------------

fn trials() -> Vec<Trial> {
    let in_the_lab: &[LabTest] = named![
        a_recovered_file_is_free_while_programs_are_started,
        a_refused_file_is_free_while_programs_are_started,
        a_second_process_is_locked_out_until_the_file_is_closed,
        a_locked_out_process_changes_nothing,
        the_programs_own_lock_works_beside_ours,
        the_programs_own_lock_of_the_whole_file_works_beside_ours,
        the_programs_own_lock_with_length_0_is_refused_with_eagain,
        a_second_writing_handle_does_not_end_the_programs_own_lock,
        a_refused_handle_does_not_end_the_programs_own_lock,
        an_open_reading_handle_does_not_end_the_programs_own_lock,
        closing_a_reading_handle_or_looking_ends_the_programs_own_lock,
        a_reading_handle_goes_on_in_a_forked_child,
        a_forked_child_can_do_nothing_with_the_file,
        a_forked_child_writes_nothing_to_the_last_block,
        a_forked_child_touches_no_ring_of_its_parent,
        a_stream_of_a_read_only_handle_goes_on_in_a_forked_child,
        a_forked_child_that_opens_the_file_again_is_locked_out,
        a_forked_child_that_ends_changes_nothing,
        a_forked_child_that_drops_the_file_changes_nothing,
        a_forked_child_that_closes_the_file_changes_nothing,
        a_forked_child_is_not_stuck_by_the_parents_threads,
        an_executed_program_does_not_keep_the_lock,
        a_program_that_panics_can_still_append_while_it_unwinds,
        an_image_is_refused_wherever_it_lies,
    ];
    let mut all: Vec<_> =
        in_the_lab.iter().flat_map(|&(name, test)| lab_trials(name, test)).collect();
    all.extend(lab_trials_in(
        Way::QUEUES,
        "a_queue_in_a_forked_child_does_nothing_and_the_parents_goes_on",
        |_| Ok(()),
        a_queue_in_a_forked_child_does_nothing_and_the_parents_goes_on,
    ));
    let on_the_disk: &[DiskTest] = named![
        a_device_is_read_and_written,
        sixteen_durable_writers_share_a_device,
        overlapping_durable_writes_leave_one_of_them_whole,
        a_device_is_shared_within_the_process_only,
    ];
    all.extend(on_the_disk.iter().map(|&(name, test)| disk_trial(name, test)));
    // It takes the disk only to be skipped without a lab.
    all.push(disk_trial("the_image_behind_a_loop_device_is_refused", |_disk| {
        the_image_behind_a_loop_device_is_refused()
    }));
    all.extend(volume_trials_where(
        "a_device_with_a_mounted_file_system_is_refused",
        Fs::has_disk,
        a_device_with_a_mounted_file_system_is_refused,
    ));
    all
}

fn main() -> ExitCode {
    let scenarios: &[child::Scenario] = &[
        ("try_to_open", try_to_open),
        ("try_posix_lock", try_posix_lock),
        ("append_for_ever", append_for_ever),
        ("leave_a_program_behind", leave_a_program_behind),
        ("append_while_unwinding", append_while_unwinding),
    ];
    dioxide_testkit::run(scenarios, trials)
}
