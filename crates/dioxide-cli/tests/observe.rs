//! `dioxide diagnose` of running programs: their calls, their timeline, other processes on their
//! files, the selection of processes, and the change between two observations.

mod common;

use common::*;
use dioxide_testkit::files::install_program;
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials_where, trials_with};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A program that is killed on drop.
struct Program(Child);

impl Program {
    fn spawn(command: &mut Command) -> Self {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(quiet.spawn().unwrap_or_else(|why| panic!("{:?}: {why}", command.get_program())))
    }

    /// This program, as one that writes and syncs for ever.
    fn writer(dir: &Path) -> Self {
        let own = std::env::current_exe().expect("this program");
        let writer = Self::spawn(Command::new(own).args([WRITER, "log"]).current_dir(dir));
        wait_until("it writes", || writer.written() > 0);
        writer
    }

    fn fio(dir: &Path, file: &str, more: &str) -> Self {
        let line = format!(
            "--name=observe --filename={file} --thread --time_based --runtime=1h --fallocate=none \
             --direct=1 --ioengine=psync --bs=4k {more}"
        );
        Self::spawn(Command::new("fio").args(line.split_whitespace()).current_dir(dir))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its write calls so far.
    fn written(&self) -> u64 {
        let io = fs::read_to_string(format!("/proc/{}/io", self.pid())).unwrap_or_default();
        let calls = io.lines().find_map(|line| line.strip_prefix("syscw: ")?.parse().ok());
        calls.unwrap_or(0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// The argument that makes this program a writer: `writer FILE`.
const WRITER: &str = "writer";
/// Its writes for each sync, and their length.
const WRITES: u64 = 8;
const LENGTH: u64 = 4096;

/// Writes and syncs for ever. It pauses while FILE.pause exists, and creates FILE.paused.
fn write_for_ever(path: &str) -> ! {
    let file = File::create(path).expect("the file");
    let (pause, paused) = (format!("{path}.pause"), format!("{path}.paused"));
    loop {
        for block in 0..WRITES {
            file.write_all_at(&[7; LENGTH as usize], block * LENGTH).expect("a write");
        }
        file.sync_data().expect("a sync");
        while Path::new(&pause).exists() {
            File::create(&paused).expect("the other file");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A running observation, without an end of its own.
struct Observation(Child);

impl Observation {
    fn start(selection: &str) -> Self {
        let line = format!("diagnose {selection} --seconds 1h --json -");
        let child = dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(child.expect("dioxide"))
    }

    /// Whether it has files of this process open.
    fn samples(&self, pid: u32) -> bool {
        let its = format!("/proc/{pid}");
        let links = fs::read_dir(format!("/proc/{}/fd", self.0.id())).into_iter().flatten();
        links
            .flatten()
            .any(|link| fs::read_link(link.path()).is_ok_and(|target| target.starts_with(&its)))
    }

    /// Ends it by Ctrl-C, and returns its document.
    fn end(self) -> Value {
        kill_process(Pid::from_child(&self.0), Signal::INT).expect("it runs");
        document(&self.0.wait_with_output().expect("its output"))
    }
}

fn observe(selection: &str) -> Value {
    document(&run(&format!("diagnose {selection} --seconds 2s --json -")))
}

fn evidence(document: &Value) -> &Value {
    &document["diagnoses"][0]["evidence"]
}

/// Whether this machine lets this user trace.
fn may_trace() -> bool {
    geteuid().is_root() && Path::new("/sys/kernel/tracing/events/raw_syscalls").is_dir()
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// The traced calls of this name on the file of the writer, if any.
fn find_calls<'a>(document: &'a Value, name: &str) -> Option<&'a Value> {
    let evidence = evidence(document);
    let is_it = |call: &&Value| {
        let file = call["file"].as_u64().map(|file| &evidence["files"][file as usize]["path"]);
        call["name"] == name && file.and_then(Value::as_str).is_some_and(|it| it.ends_with("/log"))
    };
    let calls = evidence["activity"]["calls"].as_array();
    let calls = calls.unwrap_or_else(|| panic!("{:#}", evidence["activity"]));
    calls.iter().find(is_it)
}

fn calls_of<'a>(document: &'a Value, name: &str) -> &'a Value {
    let calls = find_calls(document, name);
    calls.unwrap_or_else(|| panic!("{name} in {:#}", evidence(document)["activity"]))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

/// The traced writes for each sync, and for each counted write.
fn ratios(document: &Value) -> Option<[f64; 2]> {
    let count = |name| Some(number(&find_calls(document, name)?["count"]));
    let (writes, syncs) = (count("pwrite64")?, count("fdatasync")?);
    // Another count of the same calls: an estimate from slices must be near it.
    let counted = number(&evidence(document)["activity"]["counters"]["write_calls"]);
    Some([writes / syncs, writes / counted])
}

/// The program decides the ratios, not the speed of the machine. Counts may be estimates.
fn are_near([per_sync, per_counted]: [f64; 2]) -> bool {
    (WRITES as f64 / 3.0..WRITES as f64 * 3.0).contains(&per_sync)
        && (0.25..4.0).contains(&per_counted)
}

fn calls_have_rates_and_latencies() -> TrialResult {
    let dir = scratch();
    let writer = Program::writer(dir.path());
    let line = |seconds| format!("diagnose --pid {} --seconds {seconds}s --json -", writer.pid());
    let document = observe_by(|seconds| run(&line(seconds)), |it| ratios(it).is_some_and(are_near));
    let (writes, syncs) = (calls_of(&document, "pwrite64"), calls_of(&document, "fdatasync"));
    for calls in [writes, syncs] {
        let [p50, p99, max] = ["p50", "p99", "max"].map(|name| number(&calls[name]["ns"]));
        assert!(number(&calls["traced"]) > 0.0 && p50 <= p99 && p99 <= max, "{calls:#}");
        assert_eq!(calls["errors"], 0);
    }
    let ratios = ratios(&document).expect("both are seen");
    assert!(are_near(ratios), "{ratios:?}: {:#}", evidence(&document)["activity"]);
    let length = number(&writes["bytes"]) / number(&writes["count"]);
    assert!((length / LENGTH as f64 - 1.0).abs() < 0.05, "{length}");
    assert_eq!(syncs["bytes"], 0);
    let text = run(&format!("diagnose --pid {} --seconds 1", writer.pid()));
    assert!(stdout(&text).contains("Latency is the time of a call"), "{}", stdout(&text));
    assert!(stdout(&text).contains("calls/s"), "{}", stdout(&text));
    Ok(())
}

/// The control of the trial above: without the trace there are no latencies, and the text says so.
fn without_the_trace_there_are_counters() -> TrialResult {
    let dir = scratch();
    let writer = Program::writer(dir.path());
    let document = observe(&format!("--pid {} --no-trace", writer.pid()));
    let activity = &evidence(&document)["activity"];
    assert!(activity["calls"].is_null() && activity["coverage"].is_null(), "{activity:#}");
    assert!(number(&activity["counters"]["write_calls"]) > 0.0, "{activity:#}");
    assert_eq!(activity["timeline"]["calls_from"], "counters");
    let text = run(&format!("diagnose --pid {} --seconds 1 --no-trace", writer.pid()));
    assert!(stdout(&text).contains("By /proc/PID/io: "), "{}", stdout(&text));
    assert!(!stdout(&text).contains("Latency is"), "{}", stdout(&text));
    Ok(())
}

/// The calls in each interval of the observation of a writer that pauses at the end. It works for
/// these seconds before.
fn calls_before_and_in_a_pause(seconds: u64) -> io::Result<Vec<f64>> {
    let dir = scratch();
    let writer = Program::writer(dir.path());
    let observation = Observation::start(&format!("--pid {}", writer.pid()));
    let begun = Instant::now();
    wait_until("it is observed", || observation.samples(writer.pid()));
    std::thread::sleep(Duration::from_secs(seconds));
    let before = writer.written();
    wait_until("it goes on", || writer.written() > before + WRITES);
    File::create(dir.path().join("log.pause"))?;
    wait_until("it pauses", || dir.path().join("log.paused").exists());
    // Intervals grow with the time of the observation. Most of them belong to the pause.
    std::thread::sleep(2 * begun.elapsed());
    let document = observation.end();
    let intervals = evidence(&document)["activity"]["timeline"]["intervals"].as_array();
    Ok(intervals.expect("intervals").iter().map(|one| number(&one["calls"])).collect())
}

/// The intervals with calls, and those without. On a busy machine the trace may miss a short work.
fn a_pause_shows_in_the_timeline() -> TrialResult {
    let is_seen = |calls: &[f64]| {
        let work = calls.iter().rposition(|calls| *calls >= 1.0).map_or(0, |last| last + 1);
        calls.len() > work + 3 && calls[..work].iter().sum::<f64>() > WRITES as f64
    };
    let mut calls = Vec::new();
    for seconds in [1, 2, 4, 8, 16] {
        calls = calls_before_and_in_a_pause(seconds)?;
        if is_seen(&calls) {
            break;
        }
    }
    assert!(is_seen(&calls), "it wrote, and paused at the end: {calls:?}");
    Ok(())
}

/// Overwrites by the observed program wait for appends by another one.
fn observe_beside_a_rival(dir: &Path, rivals_file: &str) -> (Value, u32) {
    for name in ["file", "other"] {
        let file = File::create(dir.join(name)).expect("a file");
        file.write_all_at(&vec![7; 16 << 20], 0).and_then(|()| file.sync_all()).expect("written");
    }
    let rival = "--numjobs=8 --rw=write:28k --offset=16m --size=500m --offset_increment=4k \
                 --create_on_open=1 --fallocate=none";
    let rival = Program::fio(dir, rivals_file, rival);
    let observed = Program::fio(dir, "file", "--numjobs=4 --rw=randwrite --size=16m");
    for program in [&rival, &observed] {
        wait_until("fio writes", || program.written() > 100);
    }
    (observe(&format!("--pid {}", observed.pid())), rival.pid())
}

fn named(document: &Value, pid: u32) -> Vec<Value> {
    let threads = evidence(document)["contenders"]["threads"].as_array().cloned();
    threads.unwrap_or_default().into_iter().filter(|thread| thread["pid"] == pid).collect()
}

fn another_process_on_the_file_is_named(dir: TestDir) -> TrialResult {
    let (document, rival) = observe_beside_a_rival(&dir, "file");
    let threads = named(&document, rival);
    assert!(threads.iter().any(|thread| thread["call"] == "pwrite64"), "{threads:#?}");
    assert!(threads.iter().all(|thread| thread["process"] == "fio"), "{threads:#?}");
    let text = document["diagnoses"][0]["findings"].to_string();
    assert!(text.contains(&format!("Another process, {rival} (fio), is in ")), "{text}");
    Ok(())
}

/// The control of the trial above.
fn a_process_on_another_file_is_not_named(dir: TestDir) -> TrialResult {
    let (document, rival) = observe_beside_a_rival(&dir, "other");
    assert_eq!(named(&document, rival), Vec::<Value>::new());
    assert!(!document["diagnoses"][0]["findings"].to_string().contains("Another process"));
    Ok(())
}

/// Copies of `sleep` with a name that no other trial uses.
fn sleepers(dir: &Path, name: &str, count: usize) -> (String, Vec<Program>) {
    let name = format!("{name}-{}", std::process::id());
    let program = dir.join(&name);
    let sleep = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find(|it| Path::new(it).exists());
    install_program(sleep.expect("sleep"), &program).expect("a copy");
    let all: Vec<Program> =
        (0..count).map(|_| Program::spawn(Command::new(&program).arg("3600"))).collect();
    for one in &all {
        let comm = format!("/proc/{}/comm", one.pid());
        wait_until("it has its name", || {
            fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == name)
        });
    }
    (name, all)
}

fn processes_are_selected_by_name() -> TrialResult {
    let dir = scratch();
    let (name, programs) = sleepers(dir.path(), "name", 2);
    let document = observe(&format!("--name {name}"));
    let program = &evidence(&document)["subject"]["program"];
    assert_eq!((&program["processes"], programs.len()), (&2.into(), 2), "{program}");
    assert_eq!(program["selected"], format!("name {name} (2 processes)"));
    let one = observe(&format!("--pid {}", programs[1].pid()));
    assert_eq!(evidence(&one)["subject"]["program"]["processes"], 1, "the control");
    drop(programs);
    let refused = run(&format!("diagnose --name {name}"));
    expect_refusal(&refused, &format!("no process has the name {name}"));
    Ok(())
}

/// A cgroup without limits, removed on drop.
struct Cgroup(PathBuf);

/// The hierarchy that is searched for units.
fn hierarchy() -> Option<&'static Path> {
    let all = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/systemd"];
    let is_one = |path: &&Path| path.join("cgroup.procs").is_file();
    all.into_iter().map(Path::new).find(is_one).filter(|_| geteuid().is_root())
}

impl Cgroup {
    fn new(hierarchy: &Path) -> io::Result<Self> {
        let name = format!("dioxide-observe-{}.service", std::process::id());
        let cgroup = Self(hierarchy.join(name));
        fs::create_dir(&cgroup.0)?;
        Ok(cgroup)
    }

    fn add(&self, program: &Program) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), program.pid().to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        wait_until("the cgroup is gone", || fs::remove_dir(&self.0).is_ok() || !self.0.exists());
    }
}

/// Also a process that joins later, and is no child of the others.
fn processes_are_selected_by_cgroup_and_unit() -> TrialResult {
    let cgroup = Cgroup::new(hierarchy().expect("a hierarchy"))?;
    let path = cgroup.0.display().to_string();
    expect_refusal(&run(&format!("diagnose --cgroup {path}")), "has no processes");
    expect_refusal(&run("diagnose --cgroup /no/such"), "there is no cgroup /no/such");
    let unit = cgroup.0.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let nothing = run("diagnose --unit dioxide-no-such");
    expect_refusal(&nothing, "no unit dioxide-no-such.service has a cgroup");
    let dir = scratch();
    let (_, programs) = sleepers(dir.path(), "unit", 2);
    cgroup.add(&programs[0])?;
    for selection in [format!("--cgroup {path}"), format!("--unit {unit}")] {
        let document = observe(&selection);
        let program = &evidence(&document)["subject"]["program"];
        assert_eq!(program["pid"], programs[0].pid(), "{program}");
        assert_eq!(program["processes"], 1, "{program}");
    }
    let observation = Observation::start(&format!("--unit {unit}"));
    wait_until("it is observed", || observation.samples(programs[0].pid()));
    cgroup.add(&programs[1])?;
    wait_until("the other one is too", || observation.samples(programs[1].pid()));
    let document = observation.end();
    assert_eq!(evidence(&document)["subject"]["program"]["processes"], 2);
    drop(programs);
    Ok(())
}

fn two_observations_are_compared() -> TrialResult {
    let dir = scratch();
    let writer = Program::writer(dir.path());
    let (pid, before) = (writer.pid(), dir.path().join("before.json"));
    let before = before.display();
    expect_code(&run(&format!("diagnose --pid {pid} --seconds 1 --json {before}")), 0);
    let text = run(&format!("diagnose --pid {pid} --seconds 1 --compare {before}"));
    expect_code(&text, 0);
    assert!(stdout(&text).contains("Change since the observation of 2"), "{}", stdout(&text));
    assert!(stdout(&text).contains("one observation of each"), "{}", stdout(&text));
    let document = observe(&format!("--pid {pid} --compare {before}"));
    let change = &document["change"];
    assert!(change["waits"].is_array() && change["rates"].is_array(), "{change:#}");
    assert!(observe(&format!("--pid {pid}"))["change"].is_null(), "the control");
    let other = dir.path().join("other.json");
    fs::write(&other, r#"{"kind": "probe"}"#)?;
    let refused = run(&format!("diagnose --pid {pid} --compare {}", other.display()));
    expect_refusal(&refused, "is of `dioxide probe`");
    Ok(())
}

fn trials() -> Vec<Trial> {
    let untraced = !may_trace();
    let mut trials = vec![
        Trial::test("calls_have_rates_and_latencies", calls_have_rates_and_latencies)
            .with_ignored_flag(untraced),
        Trial::test("without_the_trace_there_are_counters", without_the_trace_there_are_counters),
        Trial::test("a_pause_shows_in_the_timeline", a_pause_shows_in_the_timeline)
            .with_ignored_flag(untraced),
        Trial::test("processes_are_selected_by_name", processes_are_selected_by_name),
        Trial::test(
            "processes_are_selected_by_cgroup_and_unit",
            processes_are_selected_by_cgroup_and_unit,
        )
        .with_ignored_flag(hierarchy().is_none()),
        Trial::test("two_observations_are_compared", two_observations_are_compared),
    ];
    let rivals = [
        lab_trials_where(
            "another_process_on_the_file_is_named",
            Fs::on_ext4,
            another_process_on_the_file_is_named,
        ),
        lab_trials_where(
            "a_process_on_another_file_is_not_named",
            Fs::on_ext4,
            a_process_on_another_file_is_not_named,
        ),
    ];
    trials.extend(trials_with("fio", rivals));
    trials
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(WRITER) {
        write_for_ever(&arguments.next().expect("a file"));
    }
    dioxide_testkit::run(&[], trials)
}
