//! Failures around a file: refused attributes, read-only file systems, other programs, signals, and
//! limits of the process. Each error names its cause, and no acknowledged data is lost.

mod common;

use common::*;
use dioxide::{
    Buffer, Durability, Error, ErrorKind, File, Growth, OpenOptions, Operation, QueueOptions,
};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::lab::{Applies, Disk, Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{
    Failed, Trial, TrialResult, disk_trial, lab_trials, lab_trials_where, volume_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use rustix::fs::XattrFlags;
use rustix::process::{Resource, Rlimit};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Runs a scenario in a child that must survive it. Returns its acknowledgements.
fn played(scenario: &str, path: &Path, more: &[&str]) -> Result<Vec<[u64; 3]>, Failed> {
    let path = path.to_string_lossy();
    let args: Vec<&str> = [&*path].into_iter().chain(more.iter().copied()).collect();
    let (status, acks) = child::spawn(scenario, &args)?.wait(PATIENCE)?;
    if status.success() { Ok(acks) } else { Err(format!("{scenario}: {status}, {acks:?}").into()) }
}

fn placed(acks: &[[u64; 3]]) -> Vec<Placed> {
    acks.iter().copied().map(Placed::from_ack).collect()
}

fn end_of(placed: &[Placed]) -> u64 {
    placed.iter().map(Placed::end).max().unwrap_or(0)
}

fn run(program: &str, args: &[&str], path: &Path) -> TrialResult {
    let status = Command::new(program).args(args).arg(path).status()?;
    if status.success() { Ok(()) } else { Err(format!("{program} {args:?}: {status}").into()) }
}

fn assert_is_of(error: &Error, operation: Operation, path: &Path, errno: i32) {
    assert_eq!(
        (error.operation(), error.path(), error.errno()),
        (operation, path, errno),
        "{error}"
    );
}

// --- the log -------------------------------------------------------------------------------------

/// All log messages of this process.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        SAID.lock().expect("listeners do not panic").push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Counts the log messages about `path` that contain `text`.
fn times_said(path: &Path, text: &str) -> usize {
    let path = path.to_string_lossy();
    let said = SAID.lock().expect("listeners do not panic");
    said.iter().filter(|line| line.contains(&*path) && line.contains(text)).count()
}

// --- attributes ----------------------------------------------------------------------------------

/// Works on a file that cannot keep a marker: it does not grow, logs that once, and keeps all
/// records.
fn works_without_growth(path: &Path, options: &OpenOptions) -> Result<Vec<Placed>, Failed> {
    let file = options.open(path)?;
    let placed = use_without_growth(&file);
    let end = assert_gapless(&placed, 0);
    assert_eq!(fs::metadata(path)?.len(), end, "it grew");
    file.close()?;
    assert_tidy(path, end)?;
    assert_all_there(&fs::read(path)?, &placed);
    assert_eq!(times_said(path, "no growth ahead"), 1, "said once");
    Ok(placed)
}

fn use_without_growth(file: &File) -> Vec<Placed> {
    let placed = together(4, |writer| append_many(file, writer, 20)).concat();
    assert_eq!(file.growth(), Growth::None);
    file.sync_data().expect("it syncs");
    placed
}

/// Makes this system call fail with `errno` in this thread, and in threads that it starts.
/// Permanent.
fn refuse(system_call: libc::c_long, errno: i32) {
    filter(&mut [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, system_call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
    ]);
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Installs a filter for the system calls of this thread, and of threads that it starts.
fn filter(steps: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter outlives the call, and only changes results of system calls in this
    // thread.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(result, 0, "root may do that: {}", io::Error::last_os_error());
}

/// A child on a file system without attributes.
fn append_without_attributes(acks: &Acks, args: &[String]) {
    refuse(libc::SYS_fsetxattr, libc::EOPNOTSUPP);
    let path = Path::new(&args[0]);
    let placed =
        works_without_growth(path, writable().growth(growth_named(&args[1]))).expect("it works");
    placed.into_iter().for_each(|placed| acks.send(placed.to_ack()));
}

/// No current kernel mounts a file system with growth but without attributes, so a filter refuses
/// them.
fn without_attributes_nothing_grows(dir: TestDir) -> TrialResult {
    for growth in ["unwritten", "zeroed"] {
        if growth_on(dir.fs(), growth_named(growth)) != Growth::None {
            let path = dir.join(growth);
            let placed = placed(&played("append_without_attributes", &path, &[growth])?);
            assert_tidy(&path, assert_gapless(&placed, 0))?;
            assert_all_there(&fs::read(&path)?, &placed);
        }
    }
    Ok(())
}

/// A child that may never allocate.
fn append_without_fallocate(acks: &Acks, args: &[String]) {
    refuse(libc::SYS_fallocate, args[2].parse().expect("a number"));
    let path = Path::new(&args[0]);
    let placed =
        works_without_growth(path, writable().growth(growth_named(&args[1]))).expect("it works");
    placed.into_iter().for_each(|placed| acks.send(placed.to_ack()));
}

/// Without a call that allocates zeros, the engine writes them.
fn refusals_of_fallocate(fs: Fs) -> Vec<(&'static str, i32)> {
    let unwritten = [libc::EOPNOTSUPP, libc::ENOSYS, libc::EPERM].map(|errno| ("unwritten", errno));
    let all = unwritten.into_iter().chain([("zeroed", libc::EPERM)]);
    all.filter(|(growth, _)| growth_on(fs, growth_named(growth)) != Growth::None).collect()
}

fn where_fallocate_is_refused_appends_go_on(dir: TestDir) -> TrialResult {
    for (growth, errno) in refusals_of_fallocate(dir.fs()) {
        let path = dir.join(format!("{growth}-{errno}"));
        let placed =
            placed(&played("append_without_fallocate", &path, &[growth, &errno.to_string()])?);
        assert_tidy(&path, assert_gapless(&placed, 0))?;
        assert_all_there(&fs::read(&path)?, &placed);
    }
    Ok(())
}

/// A child that may no longer allocate, or set its marker, once its file has grown. It ends as in a
/// crash.
fn append_beyond_the_last_growth(acks: &Acks, args: &[String]) {
    let (path, errno) = (Path::new(&args[0]), args[2].parse().expect("a number"));
    let mut options = writable();
    options.growth(growth_named(&args[1])).growth_cap(MIB).durability(Durability::EveryWrite);
    let file = options.open(path).expect("it opens");
    acks.send(append(&file, 0, 0, 1).expect("there is space").to_ack());
    assert_ne!(file.growth(), Growth::None);
    refuse(if args[3] == "fallocate" { libc::SYS_fallocate } else { libc::SYS_fsetxattr }, errno);
    let placed = together(4, |writer| {
        let append =
            |number| append(&file, 1 + writer, number, 1 + number % 3).expect("no call needs it");
        (0..200).map(append).collect::<Vec<_>>()
    });
    placed.into_iter().flatten().for_each(|placed| acks.send(placed.to_ack()));
    assert_eq!(file.growth(), Growth::None);
    assert_eq!(times_said(path, "no growth ahead"), 1, "said once");
    std::mem::forget(file);
}

/// The marker of a growth is removed before the kernel moves EOF, so the end is known after a
/// crash.
fn where_fallocate_is_refused_after_a_growth_appends_go_on(dir: TestDir) -> TrialResult {
    for (growth, errno) in refusals_of_fallocate(dir.fs()) {
        appends_go_on_beyond_the_last_growth(&dir, growth, errno, "fallocate")?;
    }
    Ok(())
}

/// As in a sandbox. Regression: every append failed forever, and so did close.
fn where_the_marker_is_refused_after_a_growth_appends_go_on(dir: TestDir) -> TrialResult {
    for errno in [libc::EPERM, libc::EACCES, libc::EOPNOTSUPP] {
        appends_go_on_beyond_the_last_growth(&dir, some_growth(dir.fs()), errno, "fsetxattr")?;
    }
    Ok(())
}

fn appends_go_on_beyond_the_last_growth(
    dir: &TestDir,
    growth: &str,
    errno: i32,
    refused: &str,
) -> TrialResult {
    let path = dir.join(format!("{growth}-{errno}"));
    let args = [growth, &errno.to_string(), refused];
    let placed = placed(&played("append_beyond_the_last_growth", &path, &args)?);
    let end = assert_gapless(&placed, 0);
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    let file = reopen(&path)?;
    assert_eq!(file.len()?, end);
    file.close()?;
    Ok(())
}

/// A child whose writes fail once another program has appended.
fn fail_beside_an_appender(acks: &Acks, args: &[String]) {
    let path = Path::new(&args[0]);
    let file = writable().growth(Growth::None).open(path).expect("it opens");
    let ours = append(&file, 1, 0, 1).expect("there is space");
    let theirs = Placed { offset: BLOCK_BYTES, writer: 9, number: 0, blocks: 1 };
    let other = other_handle(path).expect("it opens");
    std::os::unix::fs::FileExt::write_all_at(&other, &record(9, 0, 1), BLOCK_BYTES)
        .expect("it writes");
    other.sync_all().expect("it syncs");
    drop(other);
    let error = in_a_sandbox(|| {
        refuse(libc::SYS_pwrite64, libc::EIO);
        refuse(libc::SYS_pwritev2, libc::EIO);
        file.write_at(&record(1, 1, 64), MIB).expect_err("it may not")
    });
    assert_eq!(error.errno(), libc::EIO);
    [ours, theirs].into_iter().for_each(|placed| acks.send(placed.to_ack()));
    drop(file);
}

/// Regression: all data up to the intended end of the failed write counted as its own, and was
/// truncated.
fn a_failed_write_destroys_nothing_that_another_program_appended(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let placed = placed(&played("fail_beside_an_appender", &path, &[])?);
    assert_eq!(fs::metadata(&path)?.len(), 2 * BLOCK_BYTES);
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// Fills the space that a file has for attributes.
fn fill_attributes(path: &Path) -> io::Result<()> {
    let mut len = 3900;
    for number in 0.. {
        let value = vec![b'x'; len];
        match rustix::fs::setxattr(path, format!("user.{number}"), &value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(rustix::io::Errno::NOSPC) if len > 0 => len /= 2,
            Err(rustix::io::Errno::NOSPC) => break,
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

/// The attribute alone finds no space, on a disk with much free space.
fn a_file_without_place_for_an_attribute_is_appended_to_without_growth(
    dir: TestDir,
) -> TrialResult {
    for growth in ["unwritten", "zeroed"] {
        if growth_on(dir.fs(), growth_named(growth)) != Growth::None {
            let path = dir.join(growth);
            fs::write(&path, b"")?;
            fill_attributes(&path)?;
            works_without_growth(&path, writable().growth(growth_named(growth)))?;
        }
    }
    Ok(())
}

fn has_little_place_for_attributes(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Ext3 => Ok(()),
        _ => Err("attributes get as much place as they need"),
    }
}

/// A child with a thread whose writes always fail with EAGAIN. Only that thread fails, after
/// retries.
fn append_beside_a_write_put_off(acks: &Acks, args: &[String]) {
    let path = Path::new(&args[0]);
    let file =
        writable().growth_cap(MIB).durability(Durability::EveryWrite).open(path).expect("it opens");
    let before = append_many(&file, 1, 10);
    let end = end_of(&before);
    let error = thread::scope(|scope| {
        let put_off = scope.spawn(|| {
            refuse(libc::SYS_pwritev2, libc::EAGAIN);
            refuse(libc::SYS_pwrite64, libc::EAGAIN);
            file.write_at(&record(9, 0, 1), end - BLOCK_BYTES).expect_err("put off for ever");
            append(&file, 9, 1, 1).expect_err("put off for ever")
        });
        put_off.join().expect("it is told so")
    });
    assert_is_of(&error, Operation::Append, path, libc::EAGAIN);
    assert!(matches!(
        refusal(append(&file, 2, 0, 1)),
        ErrorKind::AppendEnded(cause) if cause.errno() == libc::EAGAIN
    ));
    file.sync_data().expect("no flush failed");
    assert_eq!(file.len().expect("a writer knows"), end);
    file.set_len(end).expect("it gives up what failed");
    before.into_iter().for_each(|placed| acks.send(placed.to_ack()));
    append_many(&file, 3, 100).into_iter().for_each(|placed| acks.send(placed.to_ack()));
    file.close().expect("it closes");
}

fn a_write_that_is_put_off_for_ever_fails_alone(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let placed = placed(&played("append_beside_a_write_put_off", &path, &[])?);
    assert_tidy(&path, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

fn grows_somehow(fs: Fs) -> Applies {
    fs.grows_unwritten().or(fs.grows_zeroed())
}

/// A growth that works on `fs`.
fn some_growth(fs: Fs) -> &'static str {
    if fs.grows_unwritten().is_ok() { "unwritten" } else { "zeroed" }
}

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

fn give_up_rights() {
    // SAFETY: changes the ids of this process, which is a child process.
    let changed = unsafe {
        libc::setresgid(NOBODY, NOBODY, NOBODY) == 0 && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
    };
    assert!(changed, "root may do that");
}

/// A child that opens as root and works as `nobody`. The permission to set an attribute depends on
/// the file's mode and owner, even with a descriptor that is open for writing.
fn open_then_give_up_rights(acks: &Acks, args: &[String]) {
    let path = Path::new(&args[0]);
    let file = writable().growth(growth_named(&args[1])).mode(0o644).open(path).expect("it opens");
    give_up_rights();
    for placed in use_without_growth(&file) {
        acks.send(placed.to_ack());
    }
    file.close().expect("it closes");
    assert_eq!(times_said(path, "no growth ahead"), 1);
}

fn a_program_that_gives_up_its_rights_appends_without_growth(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let placed = placed(&played("open_then_give_up_rights", &path, &[some_growth(dir.fs())])?);
    let end = assert_gapless(&placed, 0);
    assert!(end > 0);
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// A child whose file has grown, and can no longer grow or be truncated.
fn grow_then_give_up_rights(acks: &Acks, args: &[String]) {
    let path = Path::new(&args[0]);
    let mut options = writable();
    options
        .growth(growth_named(&args[1]))
        .growth_cap(MIB)
        .durability(Durability::EveryWrite)
        .mode(0o644);
    let file = options.open(path).expect("it opens");
    acks.send(append(&file, 1, 0, 1).expect("there is space").to_ack());
    give_up_rights();
    let refused = (1..100_000).find_map(|number| match append(&file, 1, number, 16) {
        Ok(placed) => {
            acks.send(placed.to_ack());
            None
        }
        Err(error) => Some(error),
    });
    let error = refused.expect("it does not grow for ever");
    assert_is_of(&error, Operation::Append, path, libc::EACCES);
    file.sync_data().expect("what is written is");
    file.read_at(&mut Buffer::zeroed(BLOCK), 0).expect("it reads");
    assert_is_of(
        &file.close().expect_err("it cannot be cut"),
        Operation::Close,
        path,
        libc::EACCES,
    );
}

fn a_program_that_gives_up_its_rights_after_growth_loses_nothing(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let placed = placed(&played("grow_then_give_up_rights", &path, &[some_growth(dir.fs())])?);
    let end = assert_gapless(&placed, 0);
    assert!(end >= MIB / 2, "too little was acknowledged to test anything: {end}");
    let file = reopen(&path)?;
    assert!(file.len()? >= end);
    file.set_len(end)?;
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// The flags of chattr also forbid changes by open descriptors. Which changes depends on the file
/// system.
fn a_flag_set_meanwhile_loses_nothing(dir: &Path, flag: &str) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        let path = dir.join(format!("{growth:?}"));
        let mut options = writable();
        let file = options
            .growth(growth)
            .growth_cap(MIB)
            .durability(Durability::EveryWrite)
            .open(&path)?;
        let mut placed = append_many(&file, 1, 10);
        run("chattr", &[&format!("+{flag}")], &path)?;
        let worked = work_while_forbidden(&file, &path, &mut placed);
        run("chattr", &[&format!("-{flag}")], &path)?;
        worked?;
        file.set_len(file.len()?)?;
        placed.extend(append_many(&file, 3, 100));
        let end = assert_gapless(&placed, 0);
        assert_eq!(file.len()?, end);
        file.close()?;
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &placed);
    }
    Ok(())
}

fn work_while_forbidden(file: &File, path: &Path, placed: &mut Vec<Placed>) -> TrialResult {
    for number in 0..200 {
        match append(file, 2, number, 8) {
            Ok(record) => placed.push(record),
            Err(error) => {
                assert_eq!((error.operation(), error.path()), (Operation::Append, path));
                let ended = match error.kind() {
                    ErrorKind::AppendEnded(cause) => cause.errno(),
                    _ => error.errno(),
                };
                assert_eq!(ended, libc::EPERM, "{error}");
            }
        }
    }
    assert_eq!(file.len()?, end_of(placed));
    let mut into = Buffer::zeroed(BLOCK);
    assert_eq!(file.read_at(&mut into, 0)?, BLOCK);
    // Other operations may be forbidden, but no flush failed.
    file.sync_data()?;
    Ok(())
}

fn a_file_made_immutable_meanwhile_loses_nothing(dir: TestDir) -> TrialResult {
    a_flag_set_meanwhile_loses_nothing(&dir, "i")
}

fn a_file_made_append_only_meanwhile_loses_nothing(dir: TestDir) -> TrialResult {
    a_flag_set_meanwhile_loses_nothing(&dir, "a")
}

fn immutable_and_append_only_files_are_refused(dir: TestDir) -> TrialResult {
    for flag in ["i", "a"] {
        let path = dir.join(flag);
        fs::write(&path, &record(1, 0, 2)[..])?;
        run("chattr", &[&format!("+{flag}")], &path)?;
        let opened = reopen(&path);
        let read =
            File::open(&path).and_then(|reader| reader.read_at(&mut Buffer::zeroed(BLOCK), 0));
        run("chattr", &[&format!("-{flag}")], &path)?;
        assert_is_of(
            &opened.expect_err("nothing may be changed"),
            Operation::Open,
            &path,
            libc::EPERM,
        );
        assert_eq!(read?, BLOCK);
        reopen(&path)?.close()?;
        assert_tidy(&path, 2 * BLOCK_BYTES)?;
    }
    Ok(())
}

// --- read-only file systems ----------------------------------------------------------------------

fn a_read_only_file_system_is_refused_until_it_is_writable(fs: Fs) -> TrialResult {
    let volume = Volume::new(fs, SIZE_MIN)?;
    let (path, missing) = (volume.path().join("log"), volume.path().join("missing"));
    let file = writable().open(&path)?;
    let mut placed = append_many(&file, 1, 10);
    file.close()?;
    // A program that another test has just started has copies of descriptors for a moment.
    let start = Instant::now();
    while let Err(failed) = run("mount", &["-o", "remount,ro"], volume.path()) {
        if start.elapsed() > PATIENCE {
            return Err(failed);
        }
        thread::sleep(Duration::from_millis(20));
    }
    let refused = reopen(&path).expect_err("it is read-only");
    assert_is_of(&refused, Operation::Open, &path, libc::EROFS);
    let refused = writable().open(&missing).expect_err("nothing can be created");
    assert_is_of(&refused, Operation::Open, &missing, libc::EROFS);
    let refused =
        dioxide::recover(&path, dioxide::Recover::Truncate).expect_err("nothing can be cut");
    assert_is_of(&refused, Operation::Recover, &path, libc::EROFS);
    assert_eq!(dioxide::recover(&path, dioxide::Recover::Inspect)?.ceiling, end_of(&placed));
    assert_eq!(File::open(&path)?.len()?, end_of(&placed));
    run("mount", &["-o", "remount,rw"], volume.path())?;
    let file = reopen(&path)?;
    placed.push(append(&file, 2, 0, 1)?);
    file.close()?;
    assert_tidy(&path, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

fn turns_read_only(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Ext3 | Fs::Ext4NoJournal => Ok(()),
        _ => Err("only ext4 can be told to find an error"),
    }
}

/// The effect of `errors=remount-ro` when the file system finds itself damaged.
fn a_file_system_that_turns_read_only_meanwhile_wedges(fs: Fs) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        let mut volume = Volume::new(fs, SIZE_MIN)?;
        run("mount", &["-o", "remount,errors=remount-ro"], volume.path())?;
        let paths = [volume.path().join("log"), volume.path().join("other")];
        let mut options = writable();
        options.growth(growth).growth_cap(MIB).durability(Durability::EveryWrite);
        let (file, other) = (options.open(&paths[0])?, options.open(&paths[1])?);
        let acknowledged = append_until_read_only(&volume, &file)?;
        append(&other, 1, 0, 1).expect_err("it is as read-only");
        for operation in [
            file.sync_data(),
            other.sync_data(),
            file.set_len(0),
            file.write_at(&record(9, 0, 1), 0),
        ] {
            let error = operation.expect_err("nothing is written any more");
            assert!(matches!(error.kind(), ErrorKind::Wedged(cause) if is_end(cause)), "{error}");
        }
        assert_eq!(file.read_at(&mut Buffer::zeroed(BLOCK), 0)?, BLOCK, "reading goes on");
        assert!(matches!(refusal(file.close()), ErrorKind::Wedged(_)));
        drop(other);
        assert!(matches!(
            refusal(reopen(&paths[0])),
            ErrorKind::Wedged(_) | ErrorKind::Os(libc::EROFS)
        ));
        volume.remount()?;
        let file = reopen(&paths[0])?;
        assert!(file.len()? >= end_of(&acknowledged), "acknowledged records were cut");
        assert_all_there(&fs::read(&paths[0])?, &acknowledged);
        file.close()?;
    }
    Ok(())
}

/// Eight threads append while the file system finds its error. Returns the records that were
/// acknowledged before that. Later ones may be lost: fdatasync may return success beside the abort
/// of the journal, also to a plain program (docs/reliability.md).
fn append_until_read_only(volume: &Volume, file: &File) -> Result<Vec<Placed>, Failed> {
    let device = volume.device().file_name().expect("a device has a name");
    let trigger = Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error");
    let before = append_many(file, 90, 10);
    let (triggered, ended) = thread::scope(|scope| {
        let writers = scope.spawn(|| {
            together(8, |writer| {
                let mut placed = Vec::new();
                for number in 0.. {
                    match append(file, writer, number, 2) {
                        Ok(record) => placed.push((record, Instant::now())),
                        Err(error) => return (placed, error),
                    }
                }
                unreachable!("numbers do not end before the file system does")
            })
        });
        thread::sleep(Duration::from_millis(100));
        let triggered = Instant::now();
        fs::write(trigger, "a fault on purpose").expect("ext4 can be told to find an error");
        (triggered, writers.join().expect("writers end"))
    });
    for (_, error) in &ended {
        let wedged = matches!(error.kind(), ErrorKind::Wedged(cause) if is_end(cause));
        assert!(wedged || is_end(error), "{error}");
    }
    let (early, late): (Vec<_>, Vec<_>) =
        ended.into_iter().flat_map(|(placed, _)| placed).partition(|(_, at)| *at < triggered);
    let early: Vec<_> = early.into_iter().map(|(record, _)| record).chain(before).collect();
    let all = late.into_iter().map(|(record, _)| record).chain(early.iter().cloned());
    assert_gapless(&all.collect::<Vec<_>>(), 0);
    Ok(early)
}

/// Errors of a file system that has turned read-only, or of its journal, which aborts first.
fn is_end(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Os(libc::EROFS | libc::EIO))
}

/// Sets or clears the write protection of a block device.
fn protect(disk: &Disk, protected: bool) -> io::Result<()> {
    const BLKROSET: libc::c_ulong = 0x125D;
    let device = fs::File::open(&**disk)?;
    let value = libc::c_int::from(protected);
    // SAFETY: the ioctl only reads an int.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), BLKROSET, &value) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn a_device_that_is_write_protected_meanwhile_takes_no_writes(disk: Disk) -> TrialResult {
    let lazy = OpenOptions::new().write(true).open(&*disk)?;
    let strict = OpenOptions::new().write(true).durability(Durability::EveryWrite).open(&*disk)?;
    lazy.write_at(&record(1, 0, 4), 0)?;
    lazy.sync_data()?;
    protect(&disk, true)?;
    let refused = [&lazy, &strict].map(|file| file.write_at(&record(2, 0, 1), 0));
    let mut into = Buffer::zeroed(4 * BLOCK);
    let read = lazy.read_at(&mut into, 0);
    let opened = reopen(&disk).and_then(File::close);
    protect(&disk, false)?;
    let [lazily, strictly] = refused.map(|result| result.expect_err("it is protected"));
    assert_is_of(&lazily, Operation::Write, &disk, libc::EPERM);
    assert_eq!(lazily.offset(), Some(0));
    assert_is_of(&strictly, Operation::Write, &disk, libc::EPERM);
    assert_eq!((read?, end_of_records(&into, 0)), (4 * BLOCK, 4 * BLOCK_BYTES));
    opened?;
    strict.write_at(&record(3, 0, 1), 0)?;
    strict.sync_data()?;
    Ok(())
}

// --- other programs ------------------------------------------------------------------------------

fn a_removed_file_works_to_its_end(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().durability(Durability::EveryWrite).growth_cap(MIB).open(&path)?;
    let mut placed = append_many(&file, 1, 10);
    fs::remove_file(&path)?;
    // A new file of this name is independent.
    let other = writable().open(&path)?;
    let elsewhere = append_many(&other, 7, 5);
    placed.extend(together(4, |writer| append_many(&file, 2 + writer, 200)).concat());
    let end = assert_gapless(&placed, 0);
    let mut content = Buffer::zeroed(end as usize);
    assert_eq!(file.read_at(&mut content, 0)?, content.len());
    assert_all_there(&content, &placed);
    file.set_len(BLOCK_BYTES)?;
    file.close()?;
    other.close()?;
    assert_tidy(&path, assert_gapless(&elsewhere, 0))?;
    assert_all_there(&fs::read(&path)?, &elsewhere);
    Ok(())
}

fn a_renamed_file_goes_on_under_both_names(dir: TestDir) -> TrialResult {
    let (old, new) = (dir.join("old"), dir.join("new"));
    let file = writable().growth_cap(MIB).open(&old)?;
    let mut placed = append_many(&file, 1, 10);
    fs::rename(&old, &new)?;
    placed.extend(append_many(&file, 2, 10));
    let twin = reopen(&new)?;
    assert_eq!(twin.len()?, file.len()?);
    placed.extend(
        together(4, |writer| append_many(if writer < 2 { &file } else { &twin }, 3 + writer, 50))
            .concat(),
    );
    let error = file.write_at(&record(1, 1, 1), u64::MAX - 1).expect_err("no file is so long");
    assert_eq!(error.path(), old, "as it was named when it was opened");
    file.close()?;
    twin.close()?;
    assert_tidy(&new, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&new)?, &placed);
    assert!(!old.exists());
    Ok(())
}

fn other_handle(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(path)
}

/// A truncate of written data: nothing restores it, but no other record is lost, and none is
/// invented.
fn a_file_truncated_by_another_program_is_said_to_be_so(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().growth_cap(MIB).open(&path)?;
    let placed: Vec<_> =
        (0..8).map(|number| append(&file, 1, number, 2)).collect::<Result<_, _>>()?;
    let len = file.len()?;
    other_handle(&path)?.set_len(6 * BLOCK_BYTES)?;
    let mut into = Buffer::zeroed(4 * BLOCK);
    assert_eq!(file.read_at(&mut into, 0)?, 4 * BLOCK);
    let error =
        file.read_at(&mut into, 8 * BLOCK_BYTES).expect_err("neither zeros nor a short read");
    assert_is_of(&error, Operation::Read, &path, libc::EIO);
    assert_eq!((error.offset(), file.len()?), (Some(8 * BLOCK_BYTES), len));
    let grew = grows_somehow(dir.fs()).is_ok() && file.growth() != Growth::None;
    let closed = file.close();
    if grew {
        assert!(
            matches!(refusal(closed), ErrorKind::ModifiedExternally(_)),
            "it was cut by somebody else"
        );
    }
    assert_eq!(fs::metadata(&path)?.len(), 6 * BLOCK_BYTES, "what is left is left alone");
    assert_all_there(&fs::read(&path)?, &placed[..3]);
    Ok(())
}

fn what_another_program_appends_meanwhile_is_kept(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().growth_cap(MIB).open(&path)?;
    let placed = append_many(&file, 1, 10);
    let size = fs::metadata(&path)?.len();
    let theirs = vec![0x5A; 3 * BLOCK];
    std::os::unix::fs::FileExt::write_all_at(&other_handle(&path)?, &theirs, size)?;
    let error = file.close().expect_err("it would be cut");
    assert_eq!((error.operation(), error.path()), (Operation::Close, &*path));
    assert!(matches!(error.kind(), ErrorKind::ModifiedExternally(_)), "{error}");
    let content = fs::read(&path)?;
    assert_all_there(&content, &placed);
    assert_eq!(content[size as usize..], theirs);
    assert!(matches!(refusal(reopen(&path)), ErrorKind::ModifiedExternally(_)));
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

fn what_another_program_writes_into_the_space_ahead_is_kept(dir: TestDir) -> TrialResult {
    let theirs = vec![0x5A; 3 * BLOCK];
    for (name, is_closed) in [("closed", true), ("dropped", false)] {
        let path = dir.join(name);
        let file = writable().growth_cap(MIB).open(&path)?;
        let placed = append_many(&file, 1, 10);
        let (len, size) = (file.len()?, fs::metadata(&path)?.len());
        let at = len + 16 * BLOCK_BYTES;
        assert!(at + 4 * BLOCK_BYTES < size, "{at} is not below {size}");
        std::os::unix::fs::FileExt::write_all_at(&other_handle(&path)?, &theirs, at)?;
        if is_closed {
            let error = file.close().expect_err("not all of it is ours");
            assert_eq!((error.operation(), error.path()), (Operation::Close, &*path));
            assert!(matches!(error.kind(), ErrorKind::ModifiedExternally(_)), "{error}");
        } else {
            drop(file);
        }
        let content = fs::read(&path)?;
        assert_all_there(&content, &placed);
        assert!(content[len as usize..at as usize].iter().all(|byte| *byte == 0), "stale");
        assert_eq!(content[at as usize..], theirs);
        let file = reopen(&path)?;
        assert_eq!(file.recovery(), None);
        file.close()?;
        assert_eq!(fs::read(&path)?, content);
    }
    Ok(())
}

// --- short writes --------------------------------------------------------------------------------

#[cfg(target_arch = "x86_64")]
mod short {
    use super::{BLOCK, filter, step};
    use std::io;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

    /// Marks a call that must pass, in an argument that the call ignores.
    const PASS: u32 = 0x5_0A55;

    /// Counts the writes that may be short.
    pub static COUNT: AtomicU64 = AtomicU64::new(0);

    /// The unit of short writes.
    pub static UNIT: AtomicUsize = AtomicUsize::new(BLOCK);

    /// Makes most writes of this thread, and of threads that it starts, short by whole units.
    /// Permanent.
    pub fn write_short() {
        // SAFETY: the handler has the signature that SA_SIGINFO requires.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = cut_short as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
        let is = |jt, jf, k| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k);
        let answer = |k| step(libc::BPF_RET | libc::BPF_K, 0, 0, k);
        filter(&mut [
            load(0),
            is(0, 2, libc::SYS_pwrite64 as u32),
            // The sixth argument of a call with four.
            load(56),
            step(libc::BPF_JMP | libc::BPF_JA, 0, 0, 2),
            is(0, 3, libc::SYS_pwritev2 as u32),
            // The fifth, the upper half of the offset, which 64-bit systems ignore.
            load(48),
            is(1, 0, PASS),
            answer(libc::SECCOMP_RET_TRAP),
            answer(libc::SECCOMP_RET_ALLOW),
        ]);
    }

    fn some_of(len: usize) -> usize {
        let unit = UNIT.load(SeqCst);
        let units = len / unit;
        if units < 2 { len } else { (1 + COUNT.fetch_add(1, SeqCst) as usize * 7 % units) * unit }
    }

    /// Makes the trapped call with a shorter length.
    extern "C" fn cut_short(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes the thread's context to the handler, with the call and its
        // arguments in registers. The handler passes the arguments on, with shorter lengths.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let [call, fd, data, len, offset, flags] = [
                libc::REG_RAX,
                libc::REG_RDI,
                libc::REG_RSI,
                libc::REG_RDX,
                libc::REG_R10,
                libc::REG_R9,
            ]
            .map(|register| registers[register as usize]);
            let result = if call == libc::SYS_pwrite64 {
                libc::syscall(libc::SYS_pwrite64, fd, data, some_of(len as usize), offset, 0, PASS)
            } else {
                let mut first = *(data as *const libc::iovec);
                first.iov_len = some_of(first.iov_len);
                libc::syscall(libc::SYS_pwritev2, fd, &first, 1, offset, PASS, flags)
            };
            let errno = *libc::__errno_location();
            registers[libc::REG_RAX as usize] = if result < 0 { -i64::from(errno) } else { result };
        }
    }
}

/// A child whose writes are short. The memory of each record is overwritten as soon as its call has
/// returned.
#[cfg(target_arch = "x86_64")]
fn append_frames_in_short_writes(acks: &Acks, args: &[String]) {
    short::write_short();
    let mut options = writable();
    options.growth(growth_named(&args[1])).tail(tail_named(&args[2])).growth_cap(MIB);
    let [lazy, strict] = [Durability::OnSync, Durability::EveryWrite]
        .map(|durability| options.durability(durability).open(&args[0]).expect("it opens"));
    short::UNIT.store(lazy.alignment().offset as usize, SeqCst);
    let laid = together(8, |writer| {
        let way = if writer % 4 == 3 { Way::QueueOfCalls } else { Way::Calls };
        let file = if writer % 2 == 0 { &lazy } else { &strict };
        append_frames(&way.to(file.try_clone().expect("one more handle")), writer, 20)
    });
    lazy.close().expect("one of two handles");
    strict.close().expect("it closes");
    acks.send([short::COUNT.load(SeqCst), 0, 0]);
    laid.concat().into_iter().for_each(|laid| acks.send(laid.to_ack()));
}

#[cfg(target_arch = "x86_64")]
fn records_that_are_written_bit_by_bit_are_as_they_were_given(dir: TestDir) -> TrialResult {
    for (growth, tail) in
        [("unwritten", "rewrite"), ("unwritten", "pad"), ("zeroed", "rewrite"), ("none", "rewrite")]
    {
        let path = dir.join(format!("{growth}-{tail}"));
        let acks = played("append_frames_in_short_writes", &path, &[growth, tail])?;
        assert!(acks[0][0] > 40, "too few writes were short: {}", acks[0][0]);
        let laid: Vec<_> = acks[1..].iter().copied().map(Laid::from_ack).collect();
        assert_laid_out(&fs::read(&path)?, 0, &laid, tail == "pad");
    }
    Ok(())
}

// --- signals -------------------------------------------------------------------------------------

extern "C" fn ignore_signal(_: libc::c_int) {}

/// Interrupts every thread of this process at full speed until `done`. Returns the number of
/// signals.
fn storm(done: &AtomicBool) -> u64 {
    // SAFETY: an all-zero sigaction is valid, without SA_RESTART. The handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore_signal as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let mut sent = 0;
    while !done.load(SeqCst) {
        for thread in fs::read_dir("/proc/self/task").expect("there is /proc").flatten() {
            let id: i32 = thread.file_name().to_string_lossy().parse().expect("a number");
            // SAFETY: the call fails for a thread that has ended, which is harmless.
            let result =
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR1) };
            sent += u64::from(result == 0);
        }
        thread::sleep(Duration::from_micros(50));
    }
    sent
}

/// A child that performs all operations in a storm of signals.
fn work_in_a_storm(acks: &Acks, args: &[String]) {
    let dir = Path::new(&args[0]);
    let done = AtomicBool::new(false);
    let (sent, placed) = thread::scope(|scope| {
        let storm = scope.spawn(|| storm(&done));
        let over = Over(&done);
        let placed = append_in_a_storm(dir, growth_named(&args[1]));
        open_and_close_in_a_storm(dir);
        drop(over);
        (storm.join().expect("the storm ends"), placed)
    });
    acks.send([sent, 0, 0]);
    placed.into_iter().for_each(|placed| acks.send(placed.to_ack()));
}

fn append_in_a_storm(dir: &Path, growth: Growth) -> Vec<Placed> {
    let mut options = writable();
    let file = options.growth(growth).growth_cap(MIB).durability(Durability::EveryWrite);
    let file = file.open(dir.join("log")).expect("it opens");
    let placed = together(8, |writer| append_many(&file, writer, 60)).concat();
    let mut into = Buffer::zeroed(16 * BLOCK);
    for record in &placed {
        let part = &mut into[..record.blocks as usize * BLOCK];
        assert_eq!(file.read_at(part, record.offset).expect("it reads"), part.len());
    }
    file.close().expect("it closes");
    placed
}

fn open_and_close_in_a_storm(dir: &Path) {
    let path = dir.join("other");
    for number in 0..30 {
        let file = writable().growth_cap(MIB).open(&path).expect("it opens");
        append(&file, 1, number, 2).expect("there is space");
        file.sync_data().expect("it syncs");
        file.set_len(BLOCK_BYTES).expect("it cuts");
        if file.growth() != Growth::None {
            // Refused without overwrites in place.
            let _ = file.recycle();
            file.set_len(BLOCK_BYTES).expect("it extends");
        }
        assert_eq!(
            File::open(&path).and_then(|reader| reader.len()).expect("it reads"),
            BLOCK_BYTES
        );
        file.close().expect("it closes");
        dioxide::recover(&path, dioxide::Recover::Truncate).expect("it is in order");
    }
}

fn a_storm_of_signals_is_not_noticed(dir: TestDir) -> TrialResult {
    for growth in ["unwritten", "zeroed", "none"] {
        let part = dir.join(growth);
        fs::create_dir(&part)?;
        let acks = played("work_in_a_storm", &part, &[growth])?;
        assert!(acks[0][0] > 500, "too few signals to test anything: {}", acks[0][0]);
        let placed = placed(&acks[1..]);
        assert_tidy(&part.join("log"), assert_gapless(&placed, 0))?;
        assert_all_there(&fs::read(part.join("log"))?, &placed);
        assert_tidy(&part.join("other"), BLOCK_BYTES)?;
    }
    Ok(())
}

// --- limits of the process -----------------------------------------------------------------------

/// Sets a limit; without a value, to the maximum.
fn limit(resource: Resource, value: Option<u64>) {
    let maximum = rustix::process::getrlimit(resource).maximum;
    let limit = Rlimit { current: value.or(maximum), maximum };
    rustix::process::setrlimit(resource, limit).expect("lowering is allowed");
}

/// The number of the next descriptor.
fn next_descriptor() -> u64 {
    let probe = fs::File::open("/dev/null").expect("there is a descriptor left");
    probe.as_raw_fd() as u64
}

/// A child that opens args[0] with few descriptors left, one more each time. Reports each result.
fn open_with_few_descriptors(acks: &Acks, args: &[String]) {
    let path = Path::new(&args[0]);
    for left in 0..6 {
        limit(Resource::Nofile, Some(next_descriptor() + left));
        let opened = writable().open(path);
        limit(Resource::Nofile, None);
        match opened {
            Err(error) => {
                assert_eq!((error.operation(), error.path()), (Operation::Open, path), "{error}");
                acks.send([left, error.errno() as u64, 0]);
            }
            Ok(file) => {
                append(&file, 1, left, 1).expect("there is space");
                file.close().expect("it closes");
                acks.send([left, 0, 0]);
            }
        }
    }
}

fn a_process_without_descriptors_is_told_so(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let acks = played("open_with_few_descriptors", &path, &[])?;
    assert_eq!(acks.len(), 6);
    assert_eq!(acks[0][1], libc::EMFILE as u64);
    assert_eq!(acks[5][1], 0, "five descriptors are enough: {acks:?}");
    assert!(acks.iter().all(|ack| [0, libc::EMFILE as u64].contains(&ack[1])), "{acks:?}");
    let opened = acks.iter().filter(|ack| ack[1] == 0).count() as u64;
    assert_tidy(&path, opened * BLOCK_BYTES)?;
    assert_eq!(end_of_records(&fs::read(&path)?, 0), opened * BLOCK_BYTES);
    Ok(())
}

fn an_image_is_refused_with_however_few_descriptors(dir: TestDir) -> TrialResult {
    let image = dir.join("image");
    fs::File::create(&image)?.set_len(MIB)?;
    let _attached = AttachedFile::new(&image)?;
    let acks = played("open_with_few_descriptors", &image, &[])?;
    assert_eq!(acks[5][1], libc::EBUSY as u64, "{acks:?}");
    assert!(acks.iter().all(|ack| ack[1] != 0), "an image in use was opened: {acks:?}");
    Ok(())
}

/// The numbers of the open descriptors of files below a directory, under any name.
fn descriptors_in(dir: &Path) -> Vec<u32> {
    let open = fs::read_dir("/proc/self/fd").expect("it is there").flatten();
    let numbers = open
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(dir)));
    numbers.map(|entry| entry.file_name().to_string_lossy().parse().expect("a number")).collect()
}

/// A child that opens files in every way in args[0], with high descriptor numbers.
fn open_by_high_descriptors(_: &Acks, args: &[String]) {
    const MIN: u32 = 600;
    let dir = Path::new(&args[0]);
    let paths = ["log", "one", "other"].map(|name| dir.join(name));
    limit(Resource::Nofile, Some(700));
    let options = writable().descriptor_min(MIN).clone();
    let log = options.open(&paths[0]).expect("it opens");
    let temporary = options.open_temporary(dir);
    let reader = OpenOptions::new().descriptor_min(MIN).open(&paths[0]).expect("it opens");
    let volume = options.open_striped(&paths[1..], 64 << 10).expect("it opens");
    append(&log, 1, 0, 1).expect("there is space");
    append(&volume, 1, 0, 1).expect("there is space");
    let open = descriptors_in(dir);
    // Where files share flushes, a nameless file takes part in the journal.
    let files = 4 + usize::from(temporary.is_ok());
    assert!((files..=files + 1).contains(&open.len()), "{open:?}");
    assert!(open.iter().all(|&number| number >= MIN), "{open:?}");
    drop((temporary, reader));
    volume.close().expect("it closes");
    log.close().expect("it closes");
    for beyond in [700, u32::MAX] {
        let error =
            writable().descriptor_min(beyond).open(&paths[0]).expect_err("there is no such number");
        assert_is_of(&error, Operation::Open, &paths[0], libc::EMFILE);
    }
    assert_eq!(descriptors_in(dir), []);
}

fn low_descriptors_stay_the_programs(dir: TestDir) -> TrialResult {
    played("open_by_high_descriptors", &dir, &[]).map(drop)
}

/// A child that may start only a few threads.
fn append_without_threads(acks: &Acks, args: &[String]) {
    let path = Path::new(&args[0]);
    let mut options = writable();
    let options = options.growth(growth_named(&args[1])).growth_cap(MIB).mode(0o666);
    // `nobody` must be able to write markers.
    fs::File::create(path).expect("it is created");
    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root may do that");
    let file = options.open(path).expect("it opens");
    let ready = Barrier::new(5);
    let placed = thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (ready, file) = (&ready, &file);
                scope.spawn(move || {
                    ready.wait();
                    append_many(file, writer, 200)
                })
            })
            .collect();
        give_up_rights();
        limit(Resource::Nproc, Some(0));
        let refused = thread::Builder::new().spawn(|| ());
        assert_eq!(refused.err().and_then(|error| error.raw_os_error()), Some(libc::EAGAIN));
        ready.wait();
        writers
            .into_iter()
            .flat_map(|writer| writer.join().expect("it appends"))
            .collect::<Vec<_>>()
    });
    assert_eq!(file.growth(), growth_named(&args[1]));
    let stats = file.stats();
    assert!(stats.growths > 1, "{stats:?}");
    assert!(times_said(path, "no thread to grow") > 0);
    file.sync_data().expect("it syncs");
    file.close().expect("it closes");
    limit(Resource::Nproc, None);
    placed.into_iter().for_each(|placed| acks.send(placed.to_ack()));
}

fn without_threads_a_writer_grows_the_file(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let placed = placed(&played("append_without_threads", &path, &[some_growth(dir.fs())])?);
    let end = assert_gapless(&placed, 0);
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

// --- queues --------------------------------------------------------------------------------------

/// Counts the log messages with `text` that name no file.
fn times_said_of_none(text: &str) -> usize {
    times_said(Path::new(""), text)
}

/// A child whose kernel refuses io_uring with this errno.
fn append_without_io_uring(acks: &Acks, args: &[String]) {
    let errno = args[1].parse().expect("a number");
    refuse(libc::SYS_io_uring_setup, errno);
    let file = writable()
        .durability(Durability::EveryWrite)
        .growth_cap(MIB)
        .open(&args[0])
        .expect("it opens");
    for writer in 0..3 {
        let queue = QueueOptions::new().depth(8).buffers(4, BLOCK).open();
        assert!(!queue.uses_io_uring(), "errno {errno}");
        for number in 0..4 {
            let mut buffer = queue.buffer().expect("one of four");
            buffer.copy_from_slice(&record(writer, 2 * number, 1));
            queue.append(&file, buffer, 2 * number).expect("there is room");
            queue
                .append(&file, record(writer, 2 * number + 1, 3), 2 * number + 1)
                .expect("there is room");
        }
        for done in queue.reap(8) {
            let blocks = done.buffer.expect("it comes back").len() as u64 / BLOCK_BYTES;
            let offset = done.result.expect("there is space");
            acks.send(Placed { offset, writer, number: done.tag, blocks }.to_ack());
        }
    }
    assert_eq!(times_said_of_none("no io_uring here"), 1, "said once");
    file.close().expect("it closes");
}

fn without_io_uring_queues_make_plain_calls(dir: TestDir) -> TrialResult {
    for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
        let path = dir.join(errno.to_string());
        let placed = placed(&played("append_without_io_uring", &path, &[&errno.to_string()])?);
        assert_eq!(placed.len(), 24);
        assert_tidy(&path, assert_gapless(&placed, 0))?;
        assert_all_there(&fs::read(&path)?, &placed);
    }
    Ok(())
}

/// Makes each submission of more than `count` requests fail with `errno` in this thread.
fn refuse_to_submit_more_than(count: u32, errno: i32) {
    filter(&mut [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::SYS_io_uring_enter as u32),
        // `to_submit`: the second argument of `struct seccomp_data`.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + 8),
        step(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 0, 1, count),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
}

/// A child whose kernel lacks memory for submissions, from the second round on. It refuses more
/// than one request at a time, or all.
fn queue_where_requests_are_refused(acks: &Acks, args: &[String]) {
    let (count, errno) = (args[1].parse().expect("a number"), args[2].parse().expect("a number"));
    let file = writable()
        .durability(Durability::EveryWrite)
        .growth_cap(MIB)
        .open(&args[0])
        .expect("it opens");
    let works = |writer: u64| {
        let queue = QueueOptions::new().depth(16).open();
        for round in 0..8 {
            (0..16).for_each(|n| {
                queue
                    .append(&file, record(writer, 16 * round + n, 1), 16 * round + n)
                    .expect("room")
            });
            let mut tags: Vec<_> = queue
                .reap(16)
                .map(|done| {
                    let offset = done.result.expect("there is space");
                    acks.send(Placed { offset, writer, number: done.tag, blocks: 1 }.to_ack());
                    done.tag
                })
                .collect();
            tags.sort_unstable();
            assert!(tags.into_iter().eq(16 * round..16 * round + 16), "lost or doubled");
            if round == 0 && queue.uses_io_uring() {
                refuse_to_submit_more_than(count, errno);
            }
        }
        // With one at a time the ring goes on; with none the queue uses plain calls.
        assert!(count > 0 || !queue.uses_io_uring());
    };
    thread::scope(|scope| (0..3).for_each(|writer| drop(scope.spawn(move || works(writer)))));
    file.close().expect("it closes");
}

fn a_ring_that_the_kernel_has_no_memory_for_loses_and_doubles_nothing(dir: TestDir) -> TrialResult {
    for (count, errno) in [
        (1, libc::ENOMEM),
        (1, libc::EAGAIN),
        (1, libc::EBUSY),
        (0, libc::ENOMEM),
        (0, libc::EPERM),
    ] {
        let path = dir.join(format!("{count}-{errno}"));
        let (count, errno) = (count.to_string(), errno.to_string());
        let placed = placed(&played("queue_where_requests_are_refused", &path, &[&count, &errno])?);
        assert_eq!(placed.len(), 3 * 8 * 16);
        assert_tidy(&path, assert_gapless(&placed, 0))?;
        assert_all_there(&fs::read(&path)?, &placed);
    }
    Ok(())
}

/// A child that may lock less memory than the buffers of its queue need.
fn append_with_little_locked_memory(acks: &Acks, args: &[String]) {
    let file = writable().growth(Growth::None).open(&args[0]).expect("it opens");
    limit(Resource::Memlock, Some(64 << 10));
    give_up_rights();
    let queue = QueueOptions::new().depth(16).buffers(16, 16 * BLOCK).open();
    assert!(queue.uses_io_uring(), "only the memory is refused");
    assert!(times_said_of_none("the kernel takes no buffers") == 1);
    for number in 0..16 {
        let mut buffer = queue.buffer().expect("one of 16");
        buffer.copy_from_slice(&record(1, number, 16));
        queue.append(&file, buffer, number).expect("there is room");
    }
    for done in queue.reap(16) {
        let offset = done.result.expect("there is space");
        acks.send(Placed { offset, writer: 1, number: done.tag, blocks: 16 }.to_ack());
    }
    file.close().expect("it closes");
}

fn buffers_that_may_not_be_locked_are_ordinary_ones(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let placed = placed(&played("append_with_little_locked_memory", &path, &[])?);
    assert_eq!(placed.len(), 16);
    assert_tidy(&path, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// A child whose queues are interrupted again and again, also while they sleep.
fn queue_in_a_storm(acks: &Acks, args: &[String]) {
    let way = Way::of_arg(&args[1]);
    let mut options = writable();
    let file = options
        .durability(Durability::EveryWrite)
        .growth_cap(MIB)
        .open(&args[0])
        .expect("it opens");
    let done = AtomicBool::new(false);
    let (sent, placed) = thread::scope(|scope| {
        let storm = scope.spawn(|| storm(&done));
        let placed = together(4, |writer| {
            append_many(&way.to(file.try_clone().expect("a handle")), writer, 100)
        });
        done.store(true, SeqCst);
        (storm.join().expect("the storm ends"), placed.concat())
    });
    acks.send([sent, 0, 0]);
    placed.into_iter().for_each(|placed| acks.send(placed.to_ack()));
    file.close().expect("it closes");
}

fn a_storm_of_signals_is_not_noticed_by_queues(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let acks = played("queue_in_a_storm", &path, &[&way.arg()])?;
    assert!(acks[0][0] > 100, "too few signals to test anything: {}", acks[0][0]);
    let placed = placed(&acks[1..]);
    assert_eq!(placed.len(), 400);
    assert_tidy(&path, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

// --- odd calls -----------------------------------------------------------------------------------

fn operations_of_length_zero_do_nothing(dir: TestDir) -> TrialResult {
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = dir.join(format!("{durability:?}"));
        let file = writable().durability(durability).open(&path)?;
        file.sync_data()?;
        assert_eq!((file.append(&[])?, file.read_at(&mut [], 0)?, file.len()?), (0, 0, 0));
        let end = append(&file, 1, 0, 2)?.end();
        let stats = file.stats();
        assert_eq!((file.append(&[])?, file.append(&Buffer::zeroed(0))?), (end, end));
        for offset in [0, end, end + 64 * BLOCK_BYTES] {
            file.write_at(&[], offset)?;
            assert_eq!(file.read_at(&mut [], offset)?, 0);
        }
        assert_eq!(
            file.read_at(&mut Buffer::zeroed(BLOCK), end)?,
            0,
            "at the end there is nothing"
        );
        assert_eq!(file.read_at(&mut Buffer::zeroed(BLOCK), 1 << 62)?, 0);
        assert_eq!((file.len()?, file.stats()), (end, stats), "an empty operation did something");
        file.set_len(end)?;
        let reader = File::open(&path)?;
        assert_eq!(
            (reader.read_at(&mut [], 0)?, reader.read_at(&mut Buffer::zeroed(BLOCK), end)?),
            (0, 0)
        );
        file.close()?;
        assert_tidy(&path, end)?;
    }
    Ok(())
}

/// Threads write parts of the same blocks.
fn parts_of_blocks_are_written_on_a_device(disk: Disk) -> TrialResult {
    const WRITERS: u64 = 8;
    let file = reopen(&disk)?;
    let blank = Buffer::zeroed(16 * BLOCK);
    file.write_at(&blank, 0)?;
    let cell_bytes = blank.len() as u64 / 80;
    let written = together(WRITERS, |writer| -> Result<(), dioxide::Error> {
        for number in 0..40 {
            let cell = number % 10 * WRITERS + writer;
            file.write_at(&[(writer + number) as u8; 100], cell * cell_bytes + number)?;
        }
        Ok(())
    });
    written.into_iter().collect::<Result<(), _>>()?;
    let mut expected = vec![0; blank.len()];
    for (writer, number) in (0..WRITERS).flat_map(|writer| (0..40).map(move |n| (writer, n))) {
        let start = (number % 10 * WRITERS + writer) * cell_bytes + number;
        expected[start as usize..][..100].fill((writer + number) as u8);
    }
    let mut found = blank;
    file.read_at(&mut found, 0)?;
    assert!(found[..] == expected);
    let end = file.len()?;
    assert_eq!(refusal(file.write_at(&[1; 9], end - 8)), ErrorKind::Os(libc::ENOSPC));
    file.write_at(&[1; 9], end - 9)?;
    file.close()?;
    Ok(())
}

// --- threads -------------------------------------------------------------------------------------

/// A panic drops the handle with its thread, and continues unchanged.
fn a_file_dropped_by_a_panic_is_put_away(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().growth_cap(MIB).open(&path)?;
    let placed = append_many(&file, 1, 20);
    let panicked = thread::spawn(move || {
        let _file = file;
        panic!("a panic of the program's own, on purpose");
    });
    let payload = panicked.join().expect_err("it panicked");
    assert_eq!(payload.downcast_ref(), Some(&"a panic of the program's own, on purpose"));
    assert_tidy(&path, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&path)?, &placed);
    let file = reopen(&path)?;
    assert_eq!(file.recovery(), None);
    file.close()?;
    Ok(())
}

/// The other threads go on.
fn a_thread_that_panics_between_appends_harms_no_other(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = writable().durability(Durability::EveryWrite).growth_cap(MIB).open(&path)?;
    let (kept, noted) = (Mutex::new(Vec::new()), &file);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let kept = &kept;
                scope.spawn(move || {
                    let handle = noted.try_clone().expect("one more handle");
                    let placed = append_many(&handle, writer, 25);
                    kept.lock().expect("nobody panics here").extend(placed);
                    assert!(writer % 2 == 0, "a panic of the program's own, on purpose");
                })
            })
            .collect();
        let panicked = writers.into_iter().filter_map(|writer| writer.join().err()).count();
        assert_eq!(panicked, 4);
    });
    let mut placed = kept.into_inner().expect("nobody panics here");
    placed.extend(append_many(&file, 9, 5));
    file.close()?;
    assert_tidy(&path, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

fn a_thousand_threads_share_a_file(dir: TestDir) -> TrialResult {
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = dir.join(format!("{durability:?}"));
        let file = writable().durability(durability).open(&path)?;
        let placed = together(1000, |writer| append_many(&file, writer, 3)).concat();
        let end = assert_gapless(&placed, 0);
        let stats = file.stats();
        assert_eq!((stats.appends, stats.append_bytes), (3000, end));
        assert!(stats.requests < 3000, "nothing was merged: {stats:?}");
        file.close()?;
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &placed);
    }
    Ok(())
}

/// Every thread opens the file itself, so opens, shared use and closes occur in any order.
fn many_threads_open_and_close_a_file_at_once(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let placed = together(16, |writer| {
        (0..25)
            .map(|number| {
                let file = writable().growth_cap(MIB).open(&path).expect("it opens");
                assert_eq!(file.recovery(), None, "it was closed in order");
                let placed = append(&file, writer, number, 1 + number % 3).expect("there is space");
                if number % 5 == 4 {
                    drop(file)
                } else {
                    file.close().expect("it closes")
                }
                placed
            })
            .collect::<Vec<_>>()
    })
    .concat();
    assert_tidy(&path, assert_gapless(&placed, 0))?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

// --- the cause of a failed flush -----------------------------------------------------------------

/// Makes pwritev2 with RWF_DSYNC fail with `errno` in this thread.
fn refuse_durable_writes(errno: i32) {
    filter(&mut [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::SYS_pwritev2 as u32),
        // The flags: the sixth argument of `struct seccomp_data`.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + 5 * 8),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, libc::RWF_DSYNC as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
}

/// Two files of one file system, each with a durable record.
fn two_durable_files(dir: &Path) -> [File; 2] {
    ["one", "other"].map(|name| {
        let file =
            writable().durability(Durability::EveryWrite).open(dir.join(name)).expect("it opens");
        append(&file, 1, 0, 1).expect("there is space");
        file
    })
}

/// Runs `act` in its own thread, whose system calls it may restrict permanently.
fn in_a_sandbox<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(act).join().expect("it ends"))
}

/// A child in which one thread may not write with RWF_DSYNC.
fn write_where_dsync_is_refused(acks: &Acks, args: &[String]) {
    let (dir, errno) = (Path::new(&args[0]), args[1].parse().expect("a number"));
    let [one, other] = two_durable_files(dir);
    let result = in_a_sandbox(|| {
        refuse_durable_writes(errno);
        one.write_at(&record(2, 0, 1), 0)
    });
    let is_missing = [libc::ENOSYS, libc::EOPNOTSUPP].contains(&errno);
    match result {
        Ok(()) => assert!(is_missing, "it was refused"),
        Err(error) => assert!(!is_missing && error.errno() == errno, "{error}"),
    }
    // These threads have no restriction.
    for file in [one, other] {
        acks.send(append(&file, 3, 0, 1).expect("nothing was flushed").to_ack());
        file.sync_data().expect("nothing failed");
        file.close().expect("it closes");
    }
    let first = fs::read(dir.join("one")).expect("it is there");
    assert_eq!(
        Stamp::of(&first[..BLOCK]).map(|stamp| stamp.writer),
        Some(if is_missing { 2 } else { 1 })
    );
}

fn a_durable_write_refused_before_any_io_wedges_nothing(dir: TestDir) -> TrialResult {
    for errno in [libc::EPERM, libc::EACCES, libc::ENOMEM, libc::EOPNOTSUPP, libc::ENOSYS] {
        let acks = played("write_where_dsync_is_refused", &dir, &[&errno.to_string()])?;
        assert_eq!(acks.len(), 2, "{errno}");
    }
    Ok(())
}

/// A child whose durable writes have no RWF_DSYNC, and whose flushes fail.
fn write_where_dsync_is_missing_and_flushes_fail(_: &Acks, args: &[String]) {
    let [one, other] = two_durable_files(Path::new(&args[0]));
    let error = in_a_sandbox(|| {
        refuse_durable_writes(libc::ENOSYS);
        refuse(libc::SYS_fdatasync, libc::EIO);
        one.write_at(&record(2, 0, 1), 0).expect_err("its flush failed")
    });
    assert_eq!(error.errno(), libc::EIO);
    assert_wedged(&other, libc::EIO);
}

/// The flush after the write is part of it.
fn a_failed_flush_behind_a_write_without_dsync_wedges(dir: TestDir) -> TrialResult {
    played("write_where_dsync_is_missing_and_flushes_fail", &dir, &[]).map(drop)
}

fn assert_wedged(file: &File, errno: i32) {
    match refusal(append(file, 9, 0, 1)) {
        ErrorKind::Wedged(cause) => {
            assert_eq!((cause.errno(), cause.kind()), (errno, &ErrorKind::Os(errno)), "{cause}");
        }
        other => panic!("not wedged: {other:?}"),
    }
}

/// A child in which a flush fails for lack of space in one thread.
fn flush_where_there_is_no_space(_: &Acks, args: &[String]) {
    let (dir, errno) = (Path::new(&args[0]), args[1].parse().expect("a number"));
    let [one, other] = two_durable_files(dir);
    let error = in_a_sandbox(|| {
        refuse(libc::SYS_fdatasync, errno);
        one.sync_data().expect_err("it says so")
    });
    assert!(!matches!(error.kind(), ErrorKind::NoSpace(_)), "nothing to be tried again: {error}");
    assert_wedged(&other, errno);
    assert!(matches!(refusal(one.close()), ErrorKind::Wedged(_)));
}

/// As with a thin pool that has no block for acknowledged data.
fn no_space_of_a_flush_wedges(dir: TestDir) -> TrialResult {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        played("flush_where_there_is_no_space", &dir, &[&errno.to_string()])?;
    }
    Ok(())
}

/// A child that leaves a file as a crash does.
fn leave_a_file_grown(acks: &Acks, args: &[String]) {
    let file =
        writable().durability(Durability::EveryWrite).open(Path::new(&args[0])).expect("it opens");
    append(&file, 1, 0, 1).expect("there is space");
    acks.send([file.growth() as u64, 0, 0]);
    std::mem::forget(file);
}

/// A child in which a system call fails at the open of a file, while other files are in use.
fn open_what_cannot_be_looked_at(_: &Acks, args: &[String]) {
    let path = Path::new(&args[0]);
    let number = |nth: usize| args[nth].parse::<i32>().expect("a number");
    let dir = path.parent().expect("it has one");
    let [one, other] = two_durable_files(dir);
    let error = in_a_sandbox(|| {
        refuse(number(1).into(), number(2));
        reopen(path).map(drop).expect_err("it cannot be looked at")
    });
    assert_eq!(error.errno(), number(2), "{error}");
    for file in [one, other] {
        append(&file, 2, 0, 1).expect("no flush failed");
        file.close().expect("it closes");
    }
    reopen(path).and_then(File::close).expect("nothing is wrong with it");
}

/// The bug: without rights to read attributes, a grown file was opened as one of its full size.
fn a_marker_that_a_sandbox_hides(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    played("leave_a_file_grown", &path, &[])?;
    let arguments = [libc::SYS_fgetxattr, libc::EPERM.into()].map(|number| number.to_string());
    played("open_what_cannot_be_looked_at", &path, &arguments.each_ref().map(String::as_str))?;
    assert_eq!(fs::metadata(&path)?.len(), BLOCK as u64);
    Ok(())
}

/// Only calls that flush can mean a failed flush.
fn eio_of_an_attribute_or_of_extents_at_open_wedges_nothing(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    for (call, errno) in [(libc::SYS_fgetxattr, libc::EIO), (libc::SYS_ioctl, libc::EUCLEAN)] {
        played("leave_a_file_grown", &path, &[])?;
        played("open_what_cannot_be_looked_at", &path, &[&call.to_string(), &errno.to_string()])?;
    }
    Ok(())
}

// --- the list ------------------------------------------------------------------------------------

/// The file systems on which a test applies.
type Where = fn(Fs) -> Applies;

fn trials() -> Vec<Trial> {
    let everywhere: &[LabTest] = named![
        a_removed_file_works_to_its_end,
        a_renamed_file_goes_on_under_both_names,
        a_file_truncated_by_another_program_is_said_to_be_so,
        a_write_that_is_put_off_for_ever_fails_alone,
        a_failed_flush_behind_a_write_without_dsync_wedges,
        no_space_of_a_flush_wedges,
        a_storm_of_signals_is_not_noticed,
        without_io_uring_queues_make_plain_calls,
        a_ring_that_the_kernel_has_no_memory_for_loses_and_doubles_nothing,
        buffers_that_may_not_be_locked_are_ordinary_ones,
        a_process_without_descriptors_is_told_so,
        low_descriptors_stay_the_programs,
        operations_of_length_zero_do_nothing,
        a_file_dropped_by_a_panic_is_put_away,
        a_thread_that_panics_between_appends_harms_no_other,
        a_thousand_threads_share_a_file,
        many_threads_open_and_close_a_file_at_once,
    ];
    let where_files_grow: &[LabTest] = named![
        where_fallocate_is_refused_appends_go_on,
        where_fallocate_is_refused_after_a_growth_appends_go_on,
        where_the_marker_is_refused_after_a_growth_appends_go_on,
        a_failed_write_destroys_nothing_that_another_program_appended,
        without_attributes_nothing_grows,
        a_program_that_gives_up_its_rights_appends_without_growth,
        a_program_that_gives_up_its_rights_after_growth_loses_nothing,
        without_threads_a_writer_grows_the_file,
    ];
    let where_files_grow_unwritten: &[LabTest] = named![
        a_durable_write_refused_before_any_io_wedges_nothing,
        eio_of_an_attribute_or_of_extents_at_open_wedges_nothing,
        a_marker_that_a_sandbox_hides,
        what_another_program_appends_meanwhile_is_kept,
        what_another_program_writes_into_the_space_ahead_is_kept,
    ];
    let with_a_disk: &[LabTest] = named![
        a_file_made_immutable_meanwhile_loses_nothing,
        a_file_made_append_only_meanwhile_loses_nothing,
        immutable_and_append_only_files_are_refused,
        an_image_is_refused_with_however_few_descriptors,
    ];
    let with_little_place_for_attributes: &[LabTest] =
        named![a_file_without_place_for_an_attribute_is_appended_to_without_growth];
    let lists: [(&[LabTest], Where); 4] = [
        (with_little_place_for_attributes, has_little_place_for_attributes),
        (where_files_grow, grows_somehow),
        (where_files_grow_unwritten, Fs::grows_unwritten),
        (with_a_disk, Fs::has_disk),
    ];
    let volumes: [(VolumeTest, Where); 2] = [
        (
            (
                "a_read_only_file_system_is_refused_until_it_is_writable",
                a_read_only_file_system_is_refused_until_it_is_writable,
            ),
            |_| Ok(()),
        ),
        (
            (
                "a_file_system_that_turns_read_only_meanwhile_wedges",
                a_file_system_that_turns_read_only_meanwhile_wedges,
            ),
            turns_read_only,
        ),
    ];
    let on_the_disk: &[DiskTest] = named![
        a_device_that_is_write_protected_meanwhile_takes_no_writes,
        parts_of_blocks_are_written_on_a_device,
    ];
    let mut all: Vec<_> =
        everywhere.iter().flat_map(|&(name, test)| lab_trials(name, test)).collect();
    #[cfg(target_arch = "x86_64")]
    all.extend(lab_trials(
        "records_that_are_written_bit_by_bit_are_as_they_were_given",
        records_that_are_written_bit_by_bit_are_as_they_were_given,
    ));
    all.extend(lab_trials_in(
        Way::QUEUES,
        "a_storm_of_signals_is_not_noticed_by_queues",
        |_| Ok(()),
        a_storm_of_signals_is_not_noticed_by_queues,
    ));
    for (list, applies) in lists {
        all.extend(list.iter().flat_map(|&(name, test)| lab_trials_where(name, applies, test)));
    }
    all.extend(
        volumes
            .into_iter()
            .flat_map(|((name, test), applies)| volume_trials_where(name, applies, test)),
    );
    all.extend(on_the_disk.iter().map(|&(name, test)| disk_trial(name, test)));
    all
}

fn main() -> ExitCode {
    log::set_logger(&Listener).expect("nobody listens yet");
    log::set_max_level(log::LevelFilter::Warn);
    let scenarios: &[child::Scenario] = &[
        ("append_without_attributes", append_without_attributes),
        ("append_without_fallocate", append_without_fallocate),
        ("append_beyond_the_last_growth", append_beyond_the_last_growth),
        ("fail_beside_an_appender", fail_beside_an_appender),
        ("write_where_dsync_is_refused", write_where_dsync_is_refused),
        (
            "write_where_dsync_is_missing_and_flushes_fail",
            write_where_dsync_is_missing_and_flushes_fail,
        ),
        ("flush_where_there_is_no_space", flush_where_there_is_no_space),
        ("leave_a_file_grown", leave_a_file_grown),
        ("open_what_cannot_be_looked_at", open_what_cannot_be_looked_at),
        ("append_beside_a_write_put_off", append_beside_a_write_put_off),
        ("open_then_give_up_rights", open_then_give_up_rights),
        ("grow_then_give_up_rights", grow_then_give_up_rights),
        ("work_in_a_storm", work_in_a_storm),
        ("open_with_few_descriptors", open_with_few_descriptors),
        ("open_by_high_descriptors", open_by_high_descriptors),
        ("append_without_threads", append_without_threads),
        ("append_without_io_uring", append_without_io_uring),
        ("queue_where_requests_are_refused", queue_where_requests_are_refused),
        ("append_with_little_locked_memory", append_with_little_locked_memory),
        ("queue_in_a_storm", queue_in_a_storm),
        #[cfg(target_arch = "x86_64")]
        ("append_frames_in_short_writes", append_frames_in_short_writes),
    ];
    dioxide_testkit::run(scenarios, trials)
}
