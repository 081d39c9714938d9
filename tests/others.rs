//! Programs without dioxide that write the same file: none of their data is destroyed without an
//! error.

mod common;

use common::*;
use dioxide::{Durability, ErrorKind, File, Growth, OpenOptions, Recover, recover};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::files;
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials_where};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

/// The user and group `nobody`, who owns no file of the lab and may not take leases.
const NOBODY: u32 = 65534;

/// The offset of the other program's writes: above all appends of this one, within the first growth
/// step.
const THEIRS: u64 = 512 << 10;
const THEIR_WRITER: u64 = 99;

// --- children ------------------------------------------------------------------------------------

fn open_as_others_do(path: &str, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("it opens")
}

/// Writes one record there, durably.
fn write_theirs(fd: &OwnedFd, number: u64) -> Placed {
    let offset = THEIRS + number * BLOCK_BYTES;
    let written =
        rustix::io::pwrite(fd, &record(THEIR_WRITER, number, 1), offset).expect("it writes");
    assert_eq!(written, BLOCK);
    rustix::fs::fdatasync(fd).expect("it syncs");
    Placed { offset, writer: THEIR_WRITER, number, blocks: 1 }
}

/// A child that writes args[1] records above this program's end, or until it is killed. It keeps
/// the file open.
fn write_and_stay(acks: &Acks, args: &[String]) {
    let fd = open_as_others_do(&args[0], OFlags::RDWR | OFlags::DIRECT);
    let count: u64 = args[1].parse().expect("a number");
    (0..count).for_each(|number| acks.send(write_theirs(&fd, number).to_ack()));
    acks.send([u64::MAX; 3]);
    std::thread::park();
}

/// Like `write_and_stay`, but it ends.
fn write_and_end(acks: &Acks, args: &[String]) {
    let fd = open_as_others_do(&args[0], OFlags::RDWR | OFlags::DIRECT);
    acks.send(write_theirs(&fd, args[1].parse().expect("a number")).to_ack());
}

fn stay_as_reader(acks: &Acks, args: &[String]) {
    let _fd = open_as_others_do(&args[0], OFlags::RDONLY);
    acks.send([0; 3]);
    std::thread::park();
}

/// A child that dies with the file grown.
fn append_and_die(acks: &Acks, args: &[String]) {
    let file = writable().durability(Durability::EveryWrite).open(&args[0]).expect("it opens");
    (0..10).for_each(|number| {
        acks.send(append(&file, 1, number, 1).expect("there is space").to_ack())
    });
    std::process::abort();
}

/// A child that may not take leases of the file. It appends, lets args[2] records be written behind
/// its back, and reports its close.
fn close_without_leases(acks: &Acks, args: &[String]) {
    let file = growing(growth_named(&args[1])).mode(0o666).open(&args[0]).expect("it opens");
    // The umask must not change the mode.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666)).expect("the owner may");
    append_many(&file, 1, 10).into_iter().for_each(|placed| acks.send(placed.to_ack()));
    wait_until_grown(Path::new(&args[0])).expect("it can be looked at");
    let other = open_as_others_do(&args[0], OFlags::RDWR | OFlags::DIRECT);
    // SAFETY: changes the ids of this process, which is a child process.
    let changed = unsafe {
        libc::setresgid(NOBODY, NOBODY, NOBODY) == 0 && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
    };
    assert!(changed, "root may do that");
    if args[2] == "theirs" {
        acks.send(write_theirs(&other, 5).to_ack());
    }
    tell(acks, &file.close());
}

/// A child whose first thread has ended: its directory /proc/PID/fd is empty. Another thread writes
/// a record, and stays.
fn write_and_stay_without_first_thread(acks: &Acks, args: &[String]) {
    without_first_thread(|| write_and_stay(acks, args));
}

/// Runs `rest` in another thread. The values of this thread stay in place.
fn without_first_thread(rest: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rest();
            std::process::exit(0);
        });
        // SAFETY: ends only this thread, without unwinding.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
}

/// A child that truncates the file while a fork of it has copies of its descriptors, and reports
/// the result.
fn truncate_beside_a_fork(acks: &Acks, args: &[String]) {
    let (file, _other) = open_twice(&args[0]);
    truncate_and_tell(acks, &file);
}

/// A file with records, and a second description of it, which prevents a lease.
fn open_twice(path: &str) -> (File, OwnedFd) {
    let file = writable().open(path).expect("it opens");
    append_many(&file, 1, 3);
    (file, open_as_others_do(path, OFlags::RDWR | OFlags::DIRECT))
}

fn truncate_and_tell(acks: &Acks, file: &File) {
    // SAFETY: the fork only sleeps.
    let fork = unsafe { libc::fork() };
    if fork == 0 {
        loop {
            // SAFETY: sleeps.
            unsafe { libc::pause() };
        }
    }
    let result = file.set_len(0);
    // SAFETY: ends the fork, which is a child of this process.
    unsafe {
        libc::kill(fork, libc::SIGKILL);
        libc::waitpid(fork, std::ptr::null_mut(), 0);
    }
    tell(acks, &result);
}

/// `open` finds the mount in /proc/self, which is empty once the first thread has ended.
fn truncate_beside_a_fork_without_first_thread(acks: &Acks, args: &[String]) {
    let (file, _other) = open_twice(&args[0]);
    without_first_thread(|| truncate_and_tell(acks, &file));
}

/// The same in a sandbox without kcmp.
fn truncate_beside_a_fork_without_kcmp(acks: &Acks, args: &[String]) {
    let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_kcmp as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter outlives the call, and only changes results of system calls in this
    // process.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(result, 0, "root may do that");
    truncate_beside_a_fork(acks, args);
}

/// The same in a new PID namespace with the /proc of another one.
fn truncate_beside_a_fork_with_a_foreign_proc(acks: &Acks, args: &[String]) {
    // SAFETY: affects only children of this process.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0, "root may do that");
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            truncate_beside_a_fork(acks, args);
            std::process::exit(0);
        }
        // SAFETY: waits for a child of this process.
        fork => unsafe { libc::waitpid(fork, std::ptr::null_mut(), 0) },
    };
}

// --- this program --------------------------------------------------------------------------------

fn reopen(path: &Path) -> dioxide::Result<File> {
    OpenOptions::new().write(true).open(path)
}

fn growing(growth: Growth) -> OpenOptions {
    writable().growth(growth).growth_cap(4 * MIB).clone()
}

fn opened(
    path: &Path,
    growth: Growth,
) -> Result<(File, Vec<Placed>), dioxide_testkit::trials::Failed> {
    let file = growing(growth).open(path)?;
    let ours = append_many(&file, 1, 10);
    wait_until_grown(path)?;
    assert!(file.len()? < THEIRS && THEIRS + 64 * BLOCK_BYTES < fs::metadata(path)?.len());
    Ok((file, ours))
}

fn growths(fs: Fs) -> impl Iterator<Item = (&'static str, Growth)> {
    let both = [("unwritten", Growth::Unwritten), ("zeroed", Growth::Zeroed)];
    both.into_iter().filter(move |(_, growth)| growth_on(fs, *growth) == *growth)
}

fn theirs_is_there(path: &Path, theirs: &[Placed]) -> TrialResult {
    assert_all_there(&fs::read(path)?, theirs);
    Ok(())
}

fn wrote_once(path: &Path, number: u64) -> Result<Placed, dioxide_testkit::trials::Failed> {
    let args = [path.to_string_lossy().into_owned(), number.to_string()];
    let (status, acks) = child::spawn("write_and_end", &args)?.wait(PATIENCE)?;
    assert!(status.success(), "{status}");
    Ok(Placed::from_ack(acks[0]))
}

/// A child that has written `count` records, and keeps the file open.
fn staying(
    path: &Path,
    count: u64,
) -> Result<(child::Child, Vec<Placed>), dioxide_testkit::trials::Failed> {
    let args = [path.to_string_lossy().into_owned(), count.to_string()];
    let mut child = child::spawn("write_and_stay", &args)?;
    let acks = child.wait_for_acks(count as usize + 1, PATIENCE)?;
    let theirs = acks[..count as usize].iter().copied().map(Placed::from_ack).collect();
    Ok((child, theirs))
}

fn assert_names(kind: &ErrorKind, child: &child::Child) {
    match kind {
        ErrorKind::Busy(why) => assert!(why.contains(&child.pid().to_string()), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Regression: `set_len` first truncated to the engine's end, also for a larger length.
fn set_len_destroys_nothing_of_another_process(dir: TestDir) -> TrialResult {
    for (name, growth) in growths(dir.fs()) {
        for len in [0, 8 * MIB] {
            let path = dir.join(format!("{name}-{len}"));
            let (file, ours) = opened(&path, growth)?;
            let (child, theirs) = staying(&path, 1)?;
            assert_names(&refusal(file.set_len(len)), &child);
            theirs_is_there(&path, &theirs)?;
            drop(child);
            assert!(
                matches!(refusal(file.set_len(len)), ErrorKind::ModifiedExternally(_)),
                "what it wrote is still there"
            );
            theirs_is_there(&path, &theirs)?;
            let more = append(&file, 2, 0, 1)?;
            assert!(matches!(refusal(file.close()), ErrorKind::ModifiedExternally(_)));
            theirs_is_there(&path, &theirs)?;
            assert_all_there(&fs::read(&path)?, &[&ours[..], &[more]].concat());
            assert_tidy(&path, theirs[0].end())?;
        }
    }
    Ok(())
}

/// Regression: `close` checked, then flushed and truncated. Data that another process wrote in
/// between was lost in 198 of 200 closes.
fn close_beside_a_steady_writer_loses_nothing(dir: TestDir) -> TrialResult {
    for (name, growth) in growths(dir.fs()) {
        let path = dir.join(name);
        let (file, ours) = opened(&path, growth)?;
        // Not to the end of the grown space: then there would be no truncate.
        let args = [path.to_string_lossy().into_owned(), "700".into()];
        let mut child = child::spawn("write_and_stay", &args)?;
        child.wait_for_acks(5, PATIENCE)?;
        let closed = refusal(file.close());
        assert_names(&closed, &child);
        assert!(
            files::marker(&path)?.is_some(),
            "the next open has to know that the file was left grown"
        );
        if growth == Growth::Unwritten {
            assert_names(&refusal(recover(&path, Recover::Truncate)), &child);
        }
        let acks = child.kill_9()?.into_iter().filter(|ack| *ack != [u64::MAX; 3]);
        let theirs: Vec<_> = acks.map(Placed::from_ack).collect();
        theirs_is_there(&path, &theirs)?;
        let file = reopen(&path)?;
        theirs_is_there(&path, &theirs)?;
        assert_all_there(&fs::read(&path)?, &ours);
        if growth == Growth::Unwritten {
            file.close()?;
            theirs_is_there(&path, &theirs)?;
            assert_eq!(files::marker(&path)?, None);
        }
    }
    Ok(())
}

/// Regression: the end was unknown after the other writer had extended the file. With zeroed space
/// the known end was lost.
fn a_file_left_grown_beside_an_appender_is_opened_again(dir: TestDir) -> TrialResult {
    for (name, growth) in growths(dir.fs()) {
        let path = dir.join(name);
        let (file, ours) = opened(&path, growth)?;
        let grown_to = fs::metadata(&path)?.len();
        let count = (grown_to - THEIRS) / BLOCK_BYTES + 8;
        let args = [path.to_string_lossy().into_owned(), count.to_string()];
        let mut child = child::spawn("write_and_stay", &args)?;
        child.wait_for_acks(1, PATIENCE)?;
        assert_names(&refusal(file.close()), &child);
        let acks = child.wait_for_acks(count as usize + 1, PATIENCE)?;
        let theirs: Vec<_> = acks[..count as usize].iter().copied().map(Placed::from_ack).collect();
        assert!(fs::metadata(&path)?.len() > grown_to, "it did not pass the end");
        child.kill_9()?;
        let file = reopen(&path)?;
        if growth == Growth::Zeroed {
            assert_eq!(file.recovery().expect("it was left grown").floor, end_of(&ours));
        }
        drop(file);
        let content = fs::read(&path)?;
        assert_all_there(&content, &ours);
        assert_all_there(&content, &theirs);
    }
    Ok(())
}

fn end_of(placed: &[Placed]) -> u64 {
    placed.iter().map(Placed::end).max().expect("some")
}

/// Regression: zeroed growth was not checked.
fn zeroed_space_that_another_program_wrote_is_kept(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let (file, ours) = opened(&path, Growth::Zeroed)?;
    let theirs = wrote_once(&path, 3)?;
    assert!(matches!(refusal(file.close()), ErrorKind::ModifiedExternally(_)));
    assert_tidy(&path, theirs.end())?;
    theirs_is_there(&path, &[theirs])?;
    assert_all_there(&fs::read(&path)?, &ours);
    Ok(())
}

fn recovery_beside_another_writer_truncates_nothing(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let (_, acks) = child::spawn("append_and_die", &[path.to_string_lossy()])?.wait(PATIENCE)?;
    let ours: Vec<_> = acks.into_iter().map(Placed::from_ack).collect();
    let grown_to = fs::metadata(&path)?.len();
    assert!(grown_to > THEIRS, "it did not grow");
    let (child, _) = staying(&path, 0)?;
    assert_names(&refusal(recover(&path, Recover::Truncate)), &child);
    assert_names(&refusal(OpenOptions::new().write(true).open(&path)), &child);
    assert_eq!(fs::metadata(&path)?.len(), grown_to);
    drop(child);
    recover(&path, Recover::Truncate)?;
    assert_tidy(&path, assert_gapless(&ours, 0))?;
    assert_all_there(&fs::read(&path)?, &ours);
    Ok(())
}

/// Regression: it seemed to have no descriptors.
fn a_writer_whose_first_thread_has_ended_is_named(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let (file, _) = opened(&path, Growth::Unwritten)?;
    let args = [path.to_string_lossy().into_owned(), "1".into()];
    let mut child = child::spawn("write_and_stay_without_first_thread", &args)?;
    let theirs = Placed::from_ack(child.wait_for_acks(2, PATIENCE)?[0]);
    assert_names(&refusal(file.set_len(0)), &child);
    theirs_is_there(&path, &[theirs])
}

/// Regression: where our own descriptors were not visible, the copies in our child counted as
/// another writer.
fn a_fork_is_no_other_writer_however_little_can_be_seen(dir: TestDir) -> TrialResult {
    for scenario in [
        "truncate_beside_a_fork",
        "truncate_beside_a_fork_without_first_thread",
        "truncate_beside_a_fork_without_kcmp",
        "truncate_beside_a_fork_with_a_foreign_proc",
    ] {
        let path = dir.join(scenario);
        let (_, acks) = child::spawn(scenario, &[path.to_string_lossy()])?.wait(PATIENCE)?;
        assert_eq!(acks, [[0; 3]], "{scenario}");
    }
    Ok(())
}

/// Regression: each descriptor of another process counted as a copy of ours.
fn without_kcmp_another_writer_is_named(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    fs::File::create(&path)?;
    let (_other, _) = staying(&path, 0)?;
    let spawned = child::spawn("truncate_beside_a_fork_without_kcmp", &[path.to_string_lossy()])?;
    let (_, acks) = spawned.wait(PATIENCE)?;
    assert_eq!(acks.iter().map(|ack| ack[0]).collect::<Vec<_>>(), [BUSY]);
    Ok(())
}

/// A reader does no harm, so it blocks nothing.
fn a_file_is_truncated_beside_a_reader(dir: TestDir) -> TrialResult {
    for (name, growth) in growths(dir.fs()) {
        let path = dir.join(name);
        let (file, _) = opened(&path, growth)?;
        let mut child = child::spawn("stay_as_reader", &[path.to_string_lossy()])?;
        child.wait_for_acks(1, PATIENCE)?;
        file.set_len(BLOCK_BYTES)?;
        append(&file, 2, 0, 1)?;
        file.close()?;
        assert_tidy(&path, 2 * BLOCK_BYTES)?;
    }
    Ok(())
}

/// Without a lease the check follows the marker, immediately before the truncate.
fn without_leases_what_another_program_wrote_is_kept(dir: TestDir) -> TrialResult {
    for (name, growth) in growths(dir.fs()) {
        for theirs in ["theirs", "none"] {
            let path = dir.join(format!("{growth:?}-{theirs}"));
            let args = [path.to_string_lossy().into_owned(), name.into(), theirs.into()];
            let (status, mut acks) = child::spawn("close_without_leases", &args)?.wait(PATIENCE)?;
            assert!(status.success(), "{status}");
            let [code, errno, _] = acks.pop().expect("it closed");
            let placed: Vec<_> = acks.into_iter().map(Placed::from_ack).collect();
            assert_eq!(errno, if theirs == "theirs" { libc::EUCLEAN as u64 } else { 0 }, "{code}");
            assert_tidy(&path, placed.iter().map(Placed::end).max().expect("some"))?;
            assert_all_there(&fs::read(&path)?, &placed);
        }
    }
    Ok(())
}

/// Regression: growth between positional writes stayed allocated forever.
fn holes_that_the_program_left_are_holes_after_close(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    fs::File::create(&path)?;
    let kept = open_as_others_do(&path.to_string_lossy(), OFlags::RDWR);
    rustix::fs::fallocate(&kept, rustix::fs::FallocateFlags::empty(), 0, 4 * BLOCK_BYTES)?;
    drop(kept);
    let file = growing(Growth::Unwritten).open(&path)?;
    append(&file, 1, 0, 1)?;
    for number in 1..10 {
        file.write_at(&record(1, number, 1), number * 16 * BLOCK_BYTES)?;
    }
    file.close()?;
    let end = 9 * 16 * BLOCK_BYTES + BLOCK_BYTES;
    assert_tidy(&path, end)?;
    let allocated: u64 = files::extents(&path)?.iter().map(|extent| extent.len).sum();
    assert!(
        (5 + 9) * BLOCK_BYTES >= allocated,
        "{allocated} bytes for 10 blocks and 4 that were there"
    );
    let before: u64 = files::extents(&path)?
        .iter()
        .filter(|at| at.start < 4 * BLOCK_BYTES)
        .map(|at| at.len)
        .sum();
    assert!(before >= 4 * BLOCK_BYTES, "what the program had allocated itself is still there");
    let content = fs::read(&path)?;
    for number in 1..10 {
        let placed = Placed { offset: number * 16 * BLOCK_BYTES, writer: 1, number, blocks: 1 };
        assert_all_there(&content, &[placed]);
    }
    Ok(())
}

// --- the list ------------------------------------------------------------------------------------

fn grows(fs: Fs) -> dioxide_testkit::lab::Applies {
    fs.grows_unwritten().or(fs.grows_zeroed())
}

fn trials() -> Vec<Trial> {
    let growing: &[LabTest] = named![
        set_len_destroys_nothing_of_another_process,
        close_beside_a_steady_writer_loses_nothing,
        a_file_left_grown_beside_an_appender_is_opened_again,
        a_file_is_truncated_beside_a_reader,
        without_leases_what_another_program_wrote_is_kept,
        a_fork_is_no_other_writer_however_little_can_be_seen,
    ];
    let unwritten: &[LabTest] = named![
        recovery_beside_another_writer_truncates_nothing,
        holes_that_the_program_left_are_holes_after_close,
        a_writer_whose_first_thread_has_ended_is_named,
        without_kcmp_another_writer_is_named,
    ];
    let mut all: Vec<_> =
        growing.iter().flat_map(|&(name, test)| lab_trials_where(name, grows, test)).collect();
    all.extend(
        unwritten
            .iter()
            .flat_map(|&(name, test)| lab_trials_where(name, Fs::grows_unwritten, test)),
    );
    all.extend(lab_trials_where(
        "zeroed_space_that_another_program_wrote_is_kept",
        Fs::grows_zeroed,
        zeroed_space_that_another_program_wrote_is_kept,
    ));
    all
}

fn main() -> ExitCode {
    let scenarios: &[child::Scenario] = &[
        ("write_and_stay", write_and_stay),
        ("write_and_end", write_and_end),
        ("stay_as_reader", stay_as_reader),
        ("append_and_die", append_and_die),
        ("close_without_leases", close_without_leases),
        ("write_and_stay_without_first_thread", write_and_stay_without_first_thread),
        ("truncate_beside_a_fork", truncate_beside_a_fork),
        (
            "truncate_beside_a_fork_without_first_thread",
            truncate_beside_a_fork_without_first_thread,
        ),
        ("truncate_beside_a_fork_without_kcmp", truncate_beside_a_fork_without_kcmp),
        ("truncate_beside_a_fork_with_a_foreign_proc", truncate_beside_a_fork_with_a_foreign_proc),
    ];
    dioxide_testkit::run(scenarios, trials)
}
