//! Other processes that open a taken file (`c/neighbours.c`). They keep the data that they write,
//! and find the file as without the library. The program does not notice them.

use super::rig::*;
use dioxide_testkit::files;
use dioxide_testkit::lab::{self, Applies, Fs, TestDir};
use dioxide_testkit::trials::{Failed, Trial, TrialResult, lab_trials_where, volume_trial};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// An open waits at most 45 s, until the kernel removes the lease.
/// Modes of `c/neighbours.c`, beside another process and alone.
const MODES: [(&str, &str); 11] = [
    ("truncate", "ftruncate_destroys_what_another_process_synced"),
    ("append", "an_append_lands_over_what_another_process_wrote"),
    ("close", "a_close_destroys_what_another_process_synced"),
    ("no_signal", "a_signal_of_a_lease_reaches_the_program"),
    ("no_queue", "a_signal_that_is_lost_leaves_the_other_process_waiting"),
    ("no_numbers", "a_program_without_a_free_number_leaves_its_file_grown"),
    ("child", "an_open_waits_for_a_child_that_has_no_keeper"),
    ("opens_again", "an_open_by_the_program_waits_for_its_own_lease"),
    ("close_range_by_number", "a_close_range_by_number_ends_the_wakes_of_the_keeper"),
    ("strange_name", "a_mapped_file_whose_name_is_no_text_keeps_all_files_from_the_engine"),
    ("flags", "the_flags_of_the_description_act_on_the_engine"),
];

fn neighbours(dir: &Path, arguments: &[&str], with: With) -> Command {
    // By its whole path, because other tests compile programs meanwhile.
    let mut command = Command::new(c_program("neighbours", COMPILED[0]));
    command.args(arguments).current_dir(dir);
    with.set(&mut command);
    command
}

fn is_exact(file: &Path) -> TrialResult {
    assert_eq!(files::marker(file)?, None, "the marker is still there");
    let size = fs::metadata(file)?.len();
    match files::extents(file)?.last() {
        Some(last) if last.start >= size => {
            Err(failed(format!("{size} bytes, and space behind: {last:?}")))
        }
        _ => Ok(()),
    }
}

fn others_lose_nothing(dir: &Path, mode: &str) -> TrialResult {
    for with in With::ALL {
        let dir = empty(dir, &format!("{with:?}"))?;
        let mut command = neighbours(&dir, &[mode, "file"], with);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        let is_taken = with == With::Eager;
        assert!(!is_taken || finished.stderr.contains(HANDED_BACK), "{}", finished.stderr);
        is_exact(&dir.join("file"))?;
    }
    Ok(())
}

/// The kernel keeps a file that another process has open for writing. The summary says why.
fn a_take_over_beside_another_writer(dir: TestDir) -> TrialResult {
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let mut command = neighbours(&dir, &["beside", "file"], with);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        let why = "0 of them taken over\ndioxide: 1 not taken over: it is open elsewhere too";
        assert!(with != With::Eager || finished.stderr.contains(why), "{}", finished.stderr);
        is_exact(&dir.join("file"))?;
    }
    Ok(())
}

/// Without a lease the kernel keeps the file. The summary says why.
fn a_file_of_another_owner_is_taken_without_a_lease(dir: TestDir) -> TrialResult {
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let mut command = neighbours(&dir, &["not_the_owner", "file"], with);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        let why =
            "0 of them taken over\ndioxide: 1 not taken over: no write lease: it has another owner";
        assert!(with != With::Eager || finished.stderr.contains(why), "{}", finished.stderr);
        is_exact(&dir.join("file"))?;
    }
    Ok(())
}

/// The kernel refuses to release the lease. The library reports it once.
fn a_lease_that_cannot_be_released_is_not_mentioned(dir: TestDir) -> TrialResult {
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let finished = run(&mut neighbours(&dir, &["rights_lost", "file"], with))?.well()?;
        let said =
            finished.stderr.matches("the process has lost the right to end its lease").count();
        assert_eq!(said, usize::from(with == With::Eager), "{with:?}: {}", finished.stderr);
    }
    Ok(())
}

/// The bug: the library tried the lock of a file 50 times, 5 ms apart, so 600 opens took 150 s.
fn a_refused_take_over_stalls_the_open(dir: TestDir) -> TrialResult {
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        run(&mut neighbours(&dir, &["refused", "file"], with))?.well()?;
        is_exact(&dir.join("file"))?;
    }
    Ok(())
}

const HANDED_BACK: &str = "handed back to the kernel: ";
const ELSEWHERE: &str = "it was opened elsewhere too";

/// The program's line about a lease, after it has opened its file.
fn note_lease_break(with: With) -> &'static str {
    if with == With::Eager { "leased\n" } else { "" }
}

/// A process is killed after another one wrote. Recovery truncates nothing.
fn a_crash_destroys_what_another_process_synced(dir: TestDir) -> TrialResult {
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let finished = run(&mut neighbours(&dir, &["crash", "file"], with))?;
        assert_eq!(finished.status.signal(), Some(libc::SIGKILL), "{}", finished.stderr);
        assert_eq!(finished.stdout, note_lease_break(with));
        dioxide::recover(dir.join("file"), dioxide::Recover::Truncate)?;
        run(&mut neighbours(&dir, &["check", "file"], With::Nothing))?.well()?;
        is_exact(&dir.join("file"))?;
    }
    Ok(())
}

/// The kernel performs the calls for which the engine must read an O_WRONLY description.
fn a_file_opened_for_writing_only(dir: TestDir) -> TrialResult {
    let lengths = With::ALL.map(|with| -> Result<u64, Failed> {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let mut command = neighbours(&dir, &["write_only", "file"], with);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        let is_taken =
            finished.stderr.contains("4 files opened O_DIRECT for writing, 4 of them taken over");
        assert!(with != With::Eager || is_taken, "{}", finished.stderr);
        is_exact(&dir.join("file"))?;
        Ok(fs::metadata(dir.join("file"))?.len())
    });
    let [control, lazily, eagerly] = lengths;
    let control = control?;
    assert_eq!((lazily?, eagerly?), (control, control));
    Ok(())
}

/// Breaks the lease of a file while threads write to it. The take-over came at open or by writes
/// that met.
fn a_break_beside_writers_loses_what_the_other_process_synced(dir: TestDir) -> TrialResult {
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let mut command = neighbours(&dir, &["beside_writers", "file"], with);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        assert!(
            with == With::Nothing || finished.stderr.contains(HANDED_BACK),
            "{}",
            finished.stderr
        );
        is_exact(&dir.join("file"))?;
    }
    Ok(())
}

/// In at least `rounds` rounds, the library takes the file over and hands it back for `why`. In a
/// few others, the other process has it open, or the last close comes first. The rounds run on a
/// fast file system only.
fn others_lose_nothing_in_rounds(dir: TestDir, mode: &str, rounds: u64, why: &str) -> TrialResult {
    for with in [With::Nothing, With::Eager] {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let mut command = neighbours(&dir, &[mode, "file"], with);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        let said = |before: &str, after: &str| -> u64 {
            let counts = finished
                .stderr
                .lines()
                .filter_map(|line| line.split_once(after)?.0.split_once(before));
            counts.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
        };
        let counts = [
            said("writing, ", " of them taken over"),
            said("dioxide: ", &format!(" {HANDED_BACK}{why}")),
        ];
        let is_taken = counts.iter().all(|count| *count >= rounds);
        assert!(with != With::Eager || is_taken, "{counts:?} of {rounds}: {}", finished.stderr);
        is_exact(&dir.join("file"))?;
    }
    Ok(())
}

/// A file system that is frozen until the drop.
struct Frozen(File);

impl Frozen {
    const FREEZE: libc::c_ulong = 0xc004_5877;
    const THAW: libc::c_ulong = 0xc004_5878;

    fn begin(path: &Path) -> std::io::Result<Self> {
        let root = File::open(path)?;
        // SAFETY: the request takes no address.
        match unsafe { libc::ioctl(root.as_raw_fd(), Self::FREEZE, 0) } {
            0 => Ok(Self(root)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: the request takes no address.
        unsafe { libc::ioctl(self.0.as_raw_fd(), Self::THAW, 0) };
    }
}

/// The library cannot hand back a file of a frozen file system, but another file.
fn a_stuck_file_delays_the_break_of_another_one() -> TrialResult {
    let volume = Volume::new(Fs::Ext4, SIZE_MIN)?;
    let dir = lab::fresh_dir(Fs::Ext4, "a_stuck_file_delays_the_break_of_another_one")?;
    let stuck = volume.path().join("stuck");
    let mut command = neighbours(&dir, &["stuck", "file"], With::Eager);
    let spawned = command.arg(&stuck).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut ours = Stopped(spawned);
    let (stdin, stdout) = (ours.0.stdin.take(), ours.0.stdout.take());
    let (mut stdin, mut lines) =
        (stdin.expect("piped"), BufReader::new(stdout.expect("piped")).lines());
    let mut line = || lines.next().transpose().map(Option::unwrap_or_default);
    assert_eq!(line()?, "ready");
    let frozen = Frozen::begin(volume.path())?;
    let path = stuck.clone();
    let reader = thread::spawn(move || File::open(path).map(drop));
    // The library has noticed the break, but can neither remove the marker nor truncate the file.
    let is_breaking = || -> std::io::Result<bool> {
        let infos = fs::read_dir(format!("/proc/{}/fdinfo", ours.0.id()))?;
        let texts = infos.map(|info| fs::read_to_string(info?.path()));
        Ok(texts.into_iter().filter_map(Result::ok).any(|text| text.contains("BREAKING")))
    };
    let deadline = Instant::now() + LIMIT;
    while !is_breaking()? {
        assert!(Instant::now() < deadline, "the break of the stuck file was not noticed");
        thread::sleep(Duration::from_millis(1));
    }
    run(&mut neighbours(&dir, &["theirs", "file", "8"], With::Nothing))?.well()?;
    assert!(!reader.is_finished(), "the stuck file was handed back");
    stdin.write_all(b"\n")?;
    assert_eq!(line()?, "done");
    drop(frozen);
    stdin.write_all(b"\n")?;
    let ended = ours.0.wait()?;
    assert!(ended.success(), "{ended}");
    reader.join().expect("it does not panic")?;
    is_exact(&stuck)?;
    is_exact(&dir.join("file"))
}

/// The bug: the thread that loads a library holds the loader's lock, and waited for a keeper, which
/// needs the lock to begin.
fn an_open_in_a_constructor_of_a_loaded_library_hangs(dir: TestDir) -> TrialResult {
    let library = c_program("plugin", ("so", &["-shared", "-fPIC"]));
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let mut command = neighbours(&dir, &["plugin", "file"], with);
        let finished = run(command.arg(&library).env("DIOXIDE_STATS", "1"))?.well()?;
        let why = "not taken over: no thread could be started";
        assert!(with != With::Eager || finished.stderr.contains(why), "{}", finished.stderr);
        is_exact(&dir.join("file"))?;
        is_exact(&dir.join("file.loaded"))?;
    }
    Ok(())
}

/// The lease-break time of the machine, in seconds. The drop restores it. If the tests are killed,
/// `scripts/with-lab` restores it.
struct BreakTime {
    before: String,
}

impl BreakTime {
    const PATH: &str = "/proc/sys/fs/lease-break-time";

    fn set(seconds: u32) -> std::io::Result<Self> {
        let before = fs::read_to_string(Self::PATH)?;
        fs::write(Self::PATH, seconds.to_string())?;
        Ok(Self { before })
    }
}

impl Drop for BreakTime {
    fn drop(&mut self) {
        let _ = fs::write(Self::PATH, &self.before);
    }
}

/// A stopped child. The drop kills it, unless it has ended.
struct Stopped(Child);

impl Stopped {
    /// Starts a program that stops itself.
    fn begin(command: &mut Command) -> Result<Self, Failed> {
        let child = Self(command.stdin(Stdio::null()).spawn()?);
        let mut status = 0;
        // SAFETY: the call waits for a child of this process and writes the status.
        let waited = unsafe { libc::waitpid(child.0.id() as i32, &mut status, libc::WUNTRACED) };
        assert!(waited > 0 && libc::WIFSTOPPED(status), "it did not stop: {status:#x}");
        Ok(child)
    }

    fn go_on(mut self) -> Result<std::process::ExitStatus, Failed> {
        // SAFETY: before `wait`, the number is still that of the child.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGCONT) };
        Ok(self.0.wait()?)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A stopped process loses its lease after the break time. Then the other one opens the grown file.
fn a_stopped_process_destroys_what_another_one_synced(dir: TestDir) -> TrialResult {
    let _short = BreakTime::set(2)?;
    let grows = dir.fs().grows_unwritten().is_ok();
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let (told, said) = (dir.join("told"), dir.join("said"));
        let mut command = neighbours(&dir, &["stopped", "file"], with);
        command.stdout(File::create(&told)?).stderr(File::create(&said)?);
        let ours = Stopped::begin(&mut command)?;
        assert_eq!(fs::read_to_string(&told)?, note_lease_break(with));
        run(&mut neighbours(&dir, &["theirs-late", "file", "8"], With::Nothing))?.well()?;
        let ended = ours.go_on()?;
        let said = fs::read_to_string(&said)?;
        assert!(ended.success(), "{with:?}: {ended}: {said}");
        // A stream reports it too.
        let fails = fs::read_to_string(&told)?.contains("not closed");
        let is_advised = said.contains("run `dioxide recover`");
        let is_grown = with == With::Eager && grows;
        assert_eq!((fails, is_advised), (is_grown, is_grown), "{with:?}: {said}");
        // Recovery finds the marker, and keeps the data of the other process.
        dioxide::recover(dir.join("file"), dioxide::Recover::Truncate)?;
        run(&mut neighbours(&dir, &["check", "file"], With::Nothing))?.well()?;
    }
    Ok(())
}

/// The stack that the library adds to one call of the program.
const STACK_MAX_BYTES: i64 = 8 << 10;

fn a_call_needs_more_stack_than_a_small_thread_has(dir: TestDir) -> TrialResult {
    let depths = |with: With| -> Result<Vec<(String, i64)>, Failed> {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let mut command = Command::new(c_program("stack", COMPILED[1]));
        // A symbol that is found at the first call would take more stack, in the control too.
        command.arg("file").current_dir(&dir).env("LD_BIND_NOW", "1");
        with.set_optimised(&mut command);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        assert!(
            with == With::Nothing || finished.stderr.contains(" write request"),
            "{}",
            finished.stderr
        );
        is_exact(&dir.join("file"))?;
        let depth = |line: &str| {
            let (call, bytes) = line.rsplit_once(": ")?;
            Some((call.to_owned(), bytes.parse().ok()?))
        };
        Ok(finished.stdout.lines().filter_map(depth).collect())
    };
    let without = depths(With::Nothing)?;
    assert!(without.len() > 10);
    for with in With::LIBRARY {
        let depths = depths(with)?;
        assert_eq!(depths.len(), without.len());
        for ((call, bytes), (_, control)) in depths.iter().zip(&without) {
            assert!(
                bytes - control < STACK_MAX_BYTES,
                "{with:?}: {call} takes {bytes} bytes, and {control} without"
            );
        }
    }
    Ok(())
}

fn everywhere(_: Fs) -> Applies {
    Ok(())
}

fn where_writes_meet(fs: Fs) -> Applies {
    if fs == Fs::Tmpfs { Err("writes seldom meet where none waits for a device") } else { Ok(()) }
}

/// Trials that change settings of the machine. They run alone.
pub fn alone() -> Vec<Trial> {
    lab_trials_where(
        "a_stopped_process_destroys_what_another_one_synced",
        everywhere,
        a_stopped_process_destroys_what_another_one_synced,
    )
}

pub fn trials() -> Vec<Trial> {
    let each = |(mode, name): (&'static str, &'static str)| {
        lab_trials_where(name, everywhere, move |dir: TestDir| others_lose_nothing(&dir, mode))
    };
    let mut trials: Vec<_> = MODES.into_iter().flat_map(each).collect();
    trials.extend(
        [
            lab_trials_where(
                "a_crash_destroys_what_another_process_synced",
                everywhere,
                a_crash_destroys_what_another_process_synced,
            ),
            lab_trials_where(
                "a_refused_take_over_stalls_the_open",
                Fs::on_ext4,
                a_refused_take_over_stalls_the_open,
            ),
            lab_trials_where(
                "a_file_of_another_owner_is_taken_without_a_lease",
                Fs::on_ext4,
                a_file_of_another_owner_is_taken_without_a_lease,
            ),
            lab_trials_where(
                "a_lease_that_cannot_be_released_is_not_mentioned",
                Fs::on_ext4,
                a_lease_that_cannot_be_released_is_not_mentioned,
            ),
            lab_trials_where(
                "a_take_over_beside_another_writer",
                everywhere,
                a_take_over_beside_another_writer,
            ),
            lab_trials_where(
                "a_break_beside_writers_loses_what_the_other_process_synced",
                where_writes_meet,
                a_break_beside_writers_loses_what_the_other_process_synced,
            ),
            lab_trials_where(
                "locks_of_others_hide_a_lease_that_breaks",
                Fs::on_ext4,
                |dir: TestDir| others_lose_nothing_in_rounds(dir, "among_locks", 40, ELSEWHERE),
            ),
            lab_trials_where(
                "an_open_in_a_handler_waits_for_its_own_thread",
                Fs::on_ext4,
                |dir: TestDir| {
                    others_lose_nothing_in_rounds(dir, "open_in_a_handler", 400, "it was opened")
                },
            ),
            lab_trials_where(
                "an_open_during_a_take_over_waits_for_the_next_look",
                Fs::on_ext4,
                |dir: TestDir| {
                    others_lose_nothing_in_rounds(dir, "open_during_a_take_over", 20, ELSEWHERE)
                },
            ),
            lab_trials_where(
                "a_break_during_a_close_ends_the_keeper",
                Fs::on_ext4,
                |dir: TestDir| {
                    others_lose_nothing_in_rounds(dir, "close_meanwhile", 200, ELSEWHERE)
                },
            ),
            lab_trials_where(
                "an_open_in_a_constructor_of_a_loaded_library_hangs",
                Fs::on_ext4,
                an_open_in_a_constructor_of_a_loaded_library_hangs,
            ),
            vec![volume_trial(
                "ext4::a_stuck_file_delays_the_break_of_another_one",
                a_stuck_file_delays_the_break_of_another_one,
            )],
            lab_trials_where(
                "a_file_opened_for_writing_only",
                everywhere,
                a_file_opened_for_writing_only,
            ),
            lab_trials_where(
                "a_call_needs_more_stack_than_a_small_thread_has",
                Fs::on_ext4,
                a_call_needs_more_stack_than_a_small_thread_has,
            ),
        ]
        .into_iter()
        .flatten(),
    );
    trials
}
