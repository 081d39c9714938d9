//! `dioxide diagnose --pid` on unmodified programs. Each program hits a known bottleneck of the
//! kernel, which the verdict must name, or none, and the verdict must say so.

mod common;

use common::*;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{
    Trial, TrialResult, fuse_trials_where, lab_trials_where, trials_with,
};
use dioxide_testkit::volume::Volume;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Verdicts that are no bottlenecks.
const NO_WALLS: [&str; 3] = ["nothing", "device", "processor"];
const THREADS: usize = 16;
/// Maximum duration of a flush on the slow disk.
const FLUSH_MAX: Duration = Duration::from_millis(20);
const NOBODY: u32 = 65534;
/// Time limit for a program to end by itself.
const END_MAX: Duration = Duration::from_secs(10);

/// A program, ended by this signal on drop.
struct Program {
    child: Child,
    end: Signal,
    /// One at a time, because other programs on the machine affect the verdict.
    _alone: MutexGuard<'static, ()>,
}

impl Program {
    fn spawn(command: &mut Command, end: Signal) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child =
            quiet.spawn().unwrap_or_else(|why| panic!("{:?}: {why}", command.get_program()));
        Self { child, end, _alone: alone }
    }

    /// Runs the words of `line` in this directory. The program may run for ever.
    fn start(line: &str, dir: &Path) -> Self {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        Self::spawn(command.args(words).current_dir(dir), Signal::KILL)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_for_threads(mut self, count: usize) -> Self {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        wait_until("the program has its threads", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it has ended: {status}");
            }
            fs::read_dir(&tasks).map_or(0, Iterator::count) >= count
        });
        self
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        let _ = kill_process(pid, self.end);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < END_MAX {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn findings(output: &Output) -> Vec<Value> {
    expect_code(output, 0);
    let document: Value =
        serde_json::from_slice(&output.stdout).expect("stdout is JSON and nothing else");
    document["diagnoses"][0]["findings"].as_array().expect("findings").clone()
}

/// The findings of two seconds.
fn diagnose(program: &Program) -> Vec<Value> {
    findings(&run(&format!("diagnose --pid {} --seconds 2s --json -", program.pid())))
}

fn walls(findings: &[Value]) -> Vec<&str> {
    let walls = findings.iter().map(|finding| finding["wall"].as_str().expect("a wall"));
    walls.filter(|wall| !NO_WALLS.contains(wall)).collect()
}

/// The first finding must be this wall.
fn expect_wall(program: &Program, wall: &str) -> TrialResult {
    let findings = diagnose(program);
    assert_eq!(walls(&findings).first(), Some(&wall), "{findings:#?}");
    Ok(())
}

fn expect_no_wall(program: &Program) -> TrialResult {
    let findings = diagnose(program);
    assert!(walls(&findings).is_empty() && !findings.is_empty(), "{findings:#?}");
    Ok(())
}

/// fio, with this many threads on one file, for ever.
fn fio(dir: &Path, threads: usize, more: &str) -> Program {
    let line = format!(
        "fio --name=attach --filename=file --thread --time_based --runtime=1h --fallocate=none \
         --direct=1 --numjobs={threads} {more}"
    );
    // Its own thread, and one that it generates data from.
    Program::start(&line, dir).wait_for_threads(threads + 2)
}

fn psync(dir: &Path, more: &str) -> Program {
    fio(dir, THREADS, &format!("--ioengine=psync --bs=4k {more}"))
}

/// A file of this size: written, allocated only, or a hole.
enum Space {
    Written,
    Unwritten,
    Hole,
}

const SIZE: u64 = 256 << 20;

fn file_of(dir: &Path, space: &Space) {
    let file = File::create(dir.join("file")).unwrap();
    match space {
        Space::Written => {
            let block = vec![7; 1 << 20];
            for _ in 0..SIZE >> 20 {
                (&file).write_all(&block).unwrap();
            }
            file.sync_all().unwrap();
        }
        Space::Unwritten => {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, SIZE).unwrap();
        }
        Space::Hole => file.set_len(SIZE).unwrap(),
    }
}

const RANDOM_WRITES: &str = "--rw=randwrite --size=256m";
/// Each thread has its own blocks, which are interleaved.
const INTERLEAVED: &str = "--create_on_open=1 --size=600m --offset_increment=4k";

fn appends_of_sysbench_wait_for_each_other(dir: TestDir) -> TrialResult {
    let line = format!(
        "sysbench fileio --file-num=1 --file-total-size=600M --file-test-mode=seqwr \
         --file-extra-flags=direct --file-block-size=4096 --file-fsync-freq=0 --threads={THREADS} \
         --time=0 run"
    );
    expect_wall(&Program::start(&line, &dir).wait_for_threads(THREADS), "extending_writes")
}

fn appends_of_fio_wait_for_each_other(dir: TestDir) -> TrialResult {
    expect_wall(&psync(&dir, &format!("--rw=write:60k {INTERLEAVED}")), "extending_writes")
}

fn writes_into_holes_wait_for_each_other(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Hole);
    expect_wall(&psync(&dir, RANDOM_WRITES), "holes")
}

fn parts_of_blocks_wait_for_each_other(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Unwritten);
    expect_wall(&psync(&dir, &format!("{RANDOM_WRITES} --bs=512")), "unaligned_writes")
}

fn buffered_writes_wait_for_each_other(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Written);
    expect_wall(&psync(&dir, &format!("{RANDOM_WRITES} --direct=0")), "buffered_writes")
}

fn durable_overwrites_wait_for_flushes(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Written);
    expect_wall(&psync(&dir, &format!("{RANDOM_WRITES} --fdatasync=1")), "flush")
}

fn durable_writes_of_unwritten_space_wait_for_commits(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Unwritten);
    expect_wall(&psync(&dir, &format!("{RANDOM_WRITES} --sync=dsync")), "journal_commit")
}

/// The workers wait for the lock that threads would wait for: the verdict names both.
fn appends_on_rings_go_to_workers(dir: TestDir) -> TrialResult {
    let appends = format!("--ioengine=io_uring --iodepth=16 --bs=4k --rw=write:4k {INTERLEAVED}");
    let findings = diagnose(&fio(&dir, 2, &appends));
    let walls = walls(&findings);
    assert!(
        walls.contains(&"ring_workers") && walls.contains(&"extending_writes"),
        "{findings:#?}"
    );
    Ok(())
}

fn random_overwrites_are_well(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Written);
    expect_no_wall(&psync(&dir, RANDOM_WRITES))
}

fn random_reads_are_well(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Written);
    expect_no_wall(&psync(&dir, "--rw=randread --size=256m"))
}

fn a_sleeper_is_well() -> TrialResult {
    let sleeper = Program::start("sleep 3600", Path::new("/"));
    expect_no_wall(&sleeper)
}

fn who_only_computes_is_well() -> TrialResult {
    let mut command = Command::new("sh");
    expect_no_wall(&Program::spawn(command.args(["-c", "while :; do :; done"]), Signal::KILL))
}

/// D4 of the review: a stopped program was reported healthy, with exit code 0.
fn a_stopped_program_is_not_healthy() -> TrialResult {
    let sleeper = Program::start("sleep 3600", Path::new("/"));
    kill_process(Pid::from_child(&sleeper.child), Signal::STOP)?;
    let stat = PathBuf::from(format!("/proc/{}/stat", sleeper.pid()));
    wait_until("it is stopped", || fs::read_to_string(&stat).is_ok_and(|it| it.contains(") T ")));
    let output = run(&format!("diagnose --pid {} --seconds 200ms", sleeper.pid()));
    expect_code(&output, 4);
    assert!(stdout(&output).contains("The program was stopped"), "{}", stdout(&output));
    assert!(stdout(&output).contains(&format!("kill -CONT {}", sleeper.pid())));
    assert!(stderr(&output).contains("was stopped"), "{}", stderr(&output));
    Ok(())
}

/// Ctrl-C ends the observation with a verdict, and leaves nothing in tracefs.
fn ctrl_c_leaves_nothing_behind() -> TrialResult {
    let sleeper = Program::start("sleep 3600", Path::new("/"));
    let line = format!("diagnose --pid {} --seconds 1h --json -", sleeper.pid());
    let watching = dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let instance =
        Path::new("/sys/kernel/tracing/instances").join(format!("dioxide-{}-0", watching.id()));
    if rustix::process::geteuid().is_root() && instance.parent().is_some_and(Path::is_dir) {
        wait_until("it traces", || instance.is_dir());
    }
    wait_until("it watches", || {
        fs::read_dir(format!("/proc/{}/task", watching.id()))
            .is_ok_and(|threads| threads.count() > 1)
    });
    kill_process(Pid::from_child(&watching), Signal::INT)?;
    let output = watching.wait_with_output()?;
    assert!(walls(&findings(&output)).is_empty());
    assert!(!instance.exists());
    Ok(())
}

/// A private server, run by a user other than root, with 16 clients that commit.
struct Postgres {
    clients: Child,
    server: Program,
}

/// Where Debian keeps the programs of each version.
fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    versions.map(|version| version.path().join("bin")).find(|bin| bin.join("postgres").exists())
}

fn as_nobody(program: &Path, line: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(line.split_whitespace()).current_dir(dir).uid(NOBODY).gid(NOBODY);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Postgres {
    /// With data, and with clients at work after `before_work`.
    fn start(
        dir: &Path,
        sockets: &Path,
        before_work: impl FnOnce() -> io::Result<()>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let programs = postgres_programs().ok_or("no postgres")?;
        let home = dir.join("server");
        fs::create_dir(&home)?;
        for owned in [home.as_path(), sockets] {
            chown(owned, Some(NOBODY), Some(NOBODY))?;
        }
        let sockets = sockets.display();
        let nobody = |name: &str, line: &str| as_nobody(&programs.join(name), line, &home);
        let initialised =
            nobody("initdb", "--pgdata=data --auth=trust --username=attach --no-sync").status()?;
        assert!(initialised.success(), "initdb: {initialised}");
        let mut postgres =
            nobody("postgres", &format!("-D data -k {sockets} -c listen_addresses="));
        let server = Program::spawn(&mut postgres, Signal::QUIT);
        let ready = || {
            nobody("pg_isready", &format!("-h {sockets}"))
                .status()
                .is_ok_and(|status| status.success())
        };
        wait_until("the server is ready", ready);
        let client = format!("-h {sockets} -U attach");
        let filled =
            nobody("pgbench", &format!("{client} --initialize --quiet postgres")).status()?;
        assert!(filled.success(), "pgbench: {filled}");
        before_work()?;
        let work = format!(
            "{client} --no-vacuum --client={THREADS} --jobs=4 --time=3600 --file=commit.sql \
             postgres"
        );
        fs::write(
            home.join("commit.sql"),
            "SELECT pg_logical_emit_message(true, 'attach', 'a record')\n",
        )?;
        Ok(Self { clients: nobody("pgbench", &work).spawn()?, server })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.clients.kill().and_then(|()| self.clients.wait());
    }
}

/// On a disk with slow flushes. Otherwise commits mostly wait for processors on a busy machine.
fn commits_of_postgres_wait_for_flushes(kind: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(kind, 512 << 20)?;
    // Socket paths have a maximum length.
    let sockets = tempfile::tempdir_in("/tmp")?;
    let slow_down = || volume.disk().expect("a FUSE disk").delay(FLUSH_MAX, 1).map(drop);
    let postgres = Postgres::start(volume.path(), sockets.path(), slow_down)?;
    let pid = postgres.server.pid();
    let is_client = |child: &str| {
        fs::read(format!("/proc/{child}/cmdline"))
            .is_ok_and(|title| title.starts_with(b"postgres: attach"))
    };
    let children =
        || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    wait_until("there is one for each client", || {
        children().split_whitespace().filter(|child| is_client(child)).count() == THREADS
    });
    let findings = diagnose(&postgres.server);
    // The backend that flushes, or those that wait for it: two seconds may have too few flushes.
    let is_one = |wall: &&str| matches!(*wall, "flush" | "program_queue");
    assert!(walls(&findings).iter().any(is_one), "{findings:#?}");
    Ok(())
}

/// Most threads wait for the one that flushes, and the advice is not what the program does already.
fn expect_queue(findings: &[Value]) -> TrialResult {
    let queue = findings.iter().find(|finding| finding["wall"] == "program_queue");
    let queue = queue.unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(queue["share"].as_f64().unwrap() > 0.5, "{findings:#?}");
    assert!(queue["verdict"].as_str().unwrap().contains("fdatasync"), "{findings:#?}");
    assert!(!format!("{findings:?}").contains("group commit"), "{findings:#?}");
    Ok(())
}

/// The argument that makes this program the one to observe: `group-commit FILE`.
const GROUP_COMMIT: &str = "group-commit";

/// Threads that commit for ever. The first to come writes and syncs for all that wait by then. Each
/// waits on a condition variable of its own.
fn commit_in_groups(path: &str) -> ! {
    #[derive(Default)]
    struct Group {
        waiting: Vec<usize>,
        is_done: [bool; THREADS],
        is_busy: bool,
    }
    let file = File::options().write(true).open(path).expect("the file");
    let (group, conditions) =
        (Mutex::new(Group::default()), [(); THREADS].map(|()| Condvar::new()));
    let commit = |me: usize| {
        let mut all = group.lock().unwrap();
        all.waiting.push(me);
        all.is_done[me] = false;
        let is_mine = |all: &mut Group| !all.is_done[me] && all.is_busy;
        all = conditions[me].wait_while(all, is_mine).unwrap();
        if all.is_done[me] {
            return;
        }
        all.is_busy = true;
        let members = std::mem::take(&mut all.waiting);
        drop(all);
        file.write_all_at(&[7; 4096], 0).and_then(|()| file.sync_data()).expect("a commit");
        let mut all = group.lock().unwrap();
        all.is_busy = false;
        for member in &members {
            all.is_done[*member] = true;
        }
        let next = all.waiting.first().copied();
        drop(all);
        members.into_iter().chain(next).for_each(|thread| conditions[thread].notify_one());
    };
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            scope.spawn(move || {
                loop {
                    commit(me)
                }
            });
        }
    });
    unreachable!("they commit for ever")
}

/// D1 of the review: 14.9 of 16 threads were hidden.
fn followers_of_a_group_commit_wait_for_its_flush(kind: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(kind, 512 << 20)?;
    file_of(volume.path(), &Space::Written);
    volume.disk().expect("a FUSE disk").delay(FLUSH_MAX, 1)?;
    let own = std::env::current_exe()?;
    let line = format!("{} {GROUP_COMMIT} file", own.display());
    expect_queue(&diagnose(&Program::start(&line, volume.path()).wait_for_threads(THREADS + 1)))
}

/// A cgroup of its own with a limit on writes to a device. Removed on drop.
struct Limited {
    directory: PathBuf,
}

const LIMIT: u32 = 100;

impl Limited {
    /// By cgroup v1 if its blkio controller is mounted, else by v2.
    fn new(device: (u32, u32)) -> io::Result<Self> {
        let v1 = Path::new("/sys/fs/cgroup/blkio");
        let name = format!("dioxide-attach-{}", std::process::id());
        let number = format!("{}:{}", device.0, device.1);
        let (root, file, limit) = if v1.is_dir() {
            (v1, "blkio.throttle.write_iops_device", format!("{number} {LIMIT}"))
        } else {
            (Path::new("/sys/fs/cgroup"), "io.max", format!("{number} wiops={LIMIT}"))
        };
        let limited = Self { directory: root.join(name) };
        fs::create_dir(&limited.directory)?;
        fs::write(limited.directory.join(file), limit)?;
        Ok(limited)
    }

    fn add(&self, program: &Program) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), program.pid().to_string())
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        wait_until("the cgroup is gone", || {
            fs::remove_dir(&self.directory).is_ok() || !self.directory.exists()
        });
    }
}

/// Whether this machine lets root limit I/O by a cgroup.
fn may_limit() -> bool {
    let v2 = fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    Path::new("/sys/fs/cgroup/blkio").is_dir() || v2.split_whitespace().any(|name| name == "io")
}

fn a_limit_of_the_cgroup_is_named(dir: TestDir) -> TrialResult {
    file_of(&dir, &Space::Written);
    let number = rustix::fs::stat(&*dir)?.st_dev;
    let limited = Limited::new((rustix::fs::major(number), rustix::fs::minor(number)))?;
    let program = psync(&dir, RANDOM_WRITES);
    limited.add(&program)?;
    let findings = diagnose(&program);
    drop(program);
    drop(limited);
    assert_eq!(walls(&findings).first(), Some(&"cgroup_limit"), "{findings:#?}");
    let verdict = findings[0]["verdict"].as_str().unwrap();
    assert!(verdict.contains(&format!(" at {LIMIT}/s, and ")), "{verdict}");
    Ok(())
}

fn on_ext4_with_limits(fs: Fs) -> Applies {
    if !may_limit() {
        return Err("no cgroup limits I/O here");
    }
    on_ext4(fs)
}

fn on_ext4(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 => Ok(()),
        _ => Err("ext4 stands for all"),
    }
}

fn on_ext4_and_xfs(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs => Ok(()),
        _ => Err("ext4 and XFS stand for all"),
    }
}

fn on_one_of_each(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs | Fs::BtrfsNocow => Ok(()),
        _ => Err("ext4, XFS and btrfs stand for all"),
    }
}

fn trials() -> Vec<Trial> {
    let fio = [
        lab_trials_where(
            "appends_of_fio_wait_for_each_other",
            on_one_of_each,
            appends_of_fio_wait_for_each_other,
        ),
        lab_trials_where(
            "writes_into_holes_wait_for_each_other",
            on_ext4,
            writes_into_holes_wait_for_each_other,
        ),
        lab_trials_where(
            "parts_of_blocks_wait_for_each_other",
            on_ext4_and_xfs,
            parts_of_blocks_wait_for_each_other,
        ),
        lab_trials_where(
            "buffered_writes_wait_for_each_other",
            on_ext4_and_xfs,
            buffered_writes_wait_for_each_other,
        ),
        lab_trials_where(
            "durable_overwrites_wait_for_flushes",
            on_ext4_and_xfs,
            durable_overwrites_wait_for_flushes,
        ),
        lab_trials_where(
            "durable_writes_of_unwritten_space_wait_for_commits",
            on_ext4_and_xfs,
            durable_writes_of_unwritten_space_wait_for_commits,
        ),
        lab_trials_where(
            "appends_on_rings_go_to_workers",
            on_ext4_and_xfs,
            appends_on_rings_go_to_workers,
        ),
        lab_trials_where(
            "a_limit_of_the_cgroup_is_named",
            on_ext4_with_limits,
            a_limit_of_the_cgroup_is_named,
        ),
        lab_trials_where("random_overwrites_are_well", on_one_of_each, random_overwrites_are_well),
        lab_trials_where("random_reads_are_well", on_ext4_and_xfs, random_reads_are_well),
    ];
    let sysbench = [lab_trials_where(
        "appends_of_sysbench_wait_for_each_other",
        on_ext4_and_xfs,
        appends_of_sysbench_wait_for_each_other,
    )];
    let group_commit = [fuse_trials_where(
        "followers_of_a_group_commit_wait_for_its_flush",
        on_ext4,
        followers_of_a_group_commit_wait_for_its_flush,
    )];
    let postgres = [fuse_trials_where(
        "commits_of_postgres_wait_for_flushes",
        on_ext4,
        commits_of_postgres_wait_for_flushes,
    )];
    let anywhere = [
        Trial::test("a_sleeper_is_well", a_sleeper_is_well),
        Trial::test("who_only_computes_is_well", who_only_computes_is_well),
        Trial::test("a_stopped_program_is_not_healthy", a_stopped_program_is_not_healthy),
        Trial::test("ctrl_c_leaves_nothing_behind", ctrl_c_leaves_nothing_behind),
    ];
    let mut trials: Vec<Trial> = anywhere.into();
    trials.extend(group_commit.into_iter().flatten());
    trials.extend(trials_with("fio", fio));
    trials.extend(trials_with("sysbench", sysbench));
    trials.extend(trials_with("pg_ctlcluster", postgres));
    trials
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(GROUP_COMMIT) {
        commit_in_groups(&arguments.next().expect("a file"));
    }
    dioxide_testkit::run(&[], trials)
}
