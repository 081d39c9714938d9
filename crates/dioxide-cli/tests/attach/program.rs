//! A program to observe, and the verdict on it.

use crate::common::*;
use dioxide_testkit::trials::TrialResult;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Verdicts that are no bottlenecks.
const NO_WALLS: [&str; 4] = ["nothing", "device", "page_cache", "processor"];
pub const THREADS: usize = 16;
/// Time limit for a program to end by itself.
const END_MAX: Duration = Duration::from_secs(10);

/// One program at a time, because other programs on the machine affect the verdict.
pub struct Alone {
    _guard: MutexGuard<'static, ()>,
}

impl Alone {
    /// Waits until no other program of this test runs.
    pub fn wait() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        Self { _guard: ALONE.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// A program, ended by this signal on drop.
pub struct Program {
    pub child: Child,
    end: Signal,
    _alone: Alone,
}

impl Program {
    pub fn spawn(command: &mut Command, end: Signal) -> Self {
        Self::spawn_alone(Alone::wait(), command, end)
    }

    /// The same, where no other program runs already.
    pub fn spawn_alone(alone: Alone, command: &mut Command, end: Signal) -> Self {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child =
            quiet.spawn().unwrap_or_else(|why| panic!("{:?}: {why}", command.get_program()));
        Self { child, end, _alone: alone }
    }

    /// Runs the words of `line` in this directory. The program may run for ever.
    pub fn start(line: &str, dir: &Path) -> Self {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        Self::spawn(command.args(words).current_dir(dir), Signal::KILL)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait_for_threads(mut self, count: usize) -> Self {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        wait_until("the program has its threads", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it has ended: {status}");
            }
            fs::read_dir(&tasks).map_or(0, Iterator::count) >= count
        });
        self
    }

    /// Waits until this number of its threads are in uninterruptible sleep.
    pub fn wait_for_stuck_threads(&self, count: usize) {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        let is_stuck = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") D "))
        };
        wait_until("the threads of the program are stuck", || {
            fs::read_dir(&tasks).map_or(0, |tasks| tasks.flatten().filter(is_stuck).count())
                >= count
        });
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

pub fn findings_of(document: &Value) -> Vec<Value> {
    document["diagnoses"][0]["findings"].as_array().expect("findings").clone()
}

pub fn findings(output: &Output) -> Vec<Value> {
    findings_of(&document(output))
}

/// The findings of two seconds.
pub fn diagnose(program: &Program) -> Vec<Value> {
    findings(&run(&format!("diagnose --pid {} --seconds 2s --json -", program.pid())))
}

pub fn walls(findings: &[Value]) -> Vec<&str> {
    let walls = findings.iter().map(|finding| finding["wall"].as_str().expect("a wall"));
    walls.filter(|wall| !NO_WALLS.contains(wall)).collect()
}

/// The findings of the first observation that is enough, or of the longest one.
pub fn observe_until(program: &Program, is_enough: impl Fn(&Value) -> bool) -> Vec<Value> {
    findings_of(&document_until(program, is_enough))
}

/// The document of the same.
pub fn document_until(program: &Program, is_enough: impl Fn(&Value) -> bool) -> Value {
    let line = |seconds| format!("diagnose --pid {} --seconds {seconds}s --json -", program.pid());
    observe_by(|seconds| run(&line(seconds)), is_enough)
}

/// Whether the first finding is this wall.
pub fn is_led_by(document: &Value, wall: &str) -> bool {
    walls(&findings_of(document)).first() == Some(&wall)
}

/// The findings on a program, of which this wall must become the first.
pub fn find_wall(program: &Program, wall: &str) -> Vec<Value> {
    let findings = observe_until(program, |document| is_led_by(document, wall));
    assert_eq!(walls(&findings).first(), Some(&wall), "{findings:#?}");
    findings
}

pub fn expect_wall(program: &Program, wall: &str) -> TrialResult {
    find_wall(program, wall);
    Ok(())
}

pub fn expect_no_wall(program: &Program) -> TrialResult {
    let findings = diagnose(program);
    assert!(walls(&findings).is_empty() && !findings.is_empty(), "{findings:#?}");
    Ok(())
}

/// A file of this size: written, allocated only, or a hole.
pub enum Space {
    Written,
    Unwritten,
    Hole,
}

pub const SIZE: u64 = 256 << 20;

pub fn file_of(dir: &Path, space: &Space) {
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
