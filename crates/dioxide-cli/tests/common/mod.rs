//! Runs the command line and checks its output.
#![allow(dead_code)]

use dioxide_testkit::lab::{Applies, Fs};
use dioxide_testkit::with_default_signals;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Seconds of the observations of a program, until one of them is enough.
const SECONDS: [u32; 5] = [2, 4, 8, 16, 32];

/// `dioxide` with the words of `line` as arguments.
pub fn dioxide(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dioxide"));
    // It would narrow the tables.
    command.args(line.split_whitespace()).stdin(Stdio::null()).env_remove("COLUMNS");
    with_default_signals(&mut command);
    command
}

pub fn run(line: &str) -> Output {
    dioxide(line).output().unwrap()
}

pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Fails unless the command ended with `code`; shows its output.
pub fn expect_code(output: &Output, code: i32) {
    let said = format!("{}\n{}", stdout(output), stderr(output));
    assert_eq!(output.status.code(), Some(code), "{said}");
}

/// Fails unless the signal ended the command. A shell ends its loop only then.
pub fn expect_signal(output: &Output, signal: Signal) {
    let said = format!("{}\n{}", stdout(output), stderr(output));
    assert_eq!(output.status.signal(), Some(signal.as_raw()), "{said}");
}

/// Fails unless the command ended with 1 and one sentence with `words`.
pub fn expect_refusal(output: &Output, words: &str) {
    expect_code(output, 1);
    let text = stderr(output);
    assert!(text.starts_with("dioxide: ") && text.contains(words), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(stdout(output), "");
}

/// The document that a command has printed.
pub fn document(output: &Output) -> Value {
    expect_code(output, 0);
    serde_json::from_slice(&output.stdout).expect("stdout is JSON and nothing else")
}

/// The document of the first observation that is enough, or of the longest one. `observe` gets the
/// seconds. A busy machine gives the program too few turns for a short one.
pub fn observe_by(observe: impl Fn(u32) -> Output, is_enough: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for seconds in SECONDS {
        last = document(&observe(seconds));
        if is_enough(&last) {
            break;
        }
    }
    last
}

/// A short bench in `dir`: the minimum that still runs every route.
pub fn short_append(dir: &Path, more: &str) -> Output {
    let dir = dir.display();
    run(&format!(
        "bench append --dir {dir} --numjobs 1,4 --iodepth 4 --runtime 50ms --rounds 2 --size 16m \
         {more}"
    ))
}

/// Starts a long bench, and waits until its threads are at work.
pub fn long_append(dir: &Path) -> Child {
    let line = format!("bench append --dir {} --numjobs 8 --runtime 1h --rounds 1", dir.display());
    let child = dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the bench is at work", || threads(&child) > 8);
    child
}

pub fn threads(child: &Child) -> usize {
    fs::read_dir(format!("/proc/{}/task", child.id())).map_or(0, Iterator::count)
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An overlayfs in a directory, unmounted on drop.
pub struct Overlay {
    merged: PathBuf,
}

impl Overlay {
    pub fn on(dir: &Path) -> io::Result<Self> {
        let [lower, upper, work, merged] =
            ["lower", "upper", "work", "merged"].map(|name| dir.join(name));
        for dir in [&lower, &upper, &work, &merged] {
            fs::create_dir(dir)?;
        }
        let [low, up, work] = [&lower, &upper, &work].map(|dir| dir.display());
        let options = format!("lowerdir={low},upperdir={up},workdir={work}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged);
        let status = mount.status()?;
        status.success().then_some(Self { merged }).ok_or_else(|| io::Error::other("no overlay"))
    }

    pub fn path(&self) -> &Path {
        &self.merged
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.merged).status();
    }
}

/// Where the devices below are found by the device number of the file.
pub fn is_on_one_device(fs: Fs) -> Applies {
    match fs {
        Fs::Btrfs | Fs::BtrfsNocow => Err("its files have a device number of no device"),
        other => other.has_disk(),
    }
}

/// Every key of a result, applicable or not.
pub const KEYS: [&str; 57] = [
    "scenario",
    "path",
    "backend",
    "fs",
    "fs_remark",
    "bs_bytes",
    "bs_min_bytes",
    "bs_max_bytes",
    "numjobs",
    "iodepth",
    "rate_iops",
    "rwmixread",
    "durability",
    "growth",
    "tail",
    "files",
    "space",
    "asked",
    "rounds",
    "rounds_iops",
    "rounds_p99_ns",
    "rounds_cpu_us_per_op",
    "rounds_ratio_to_kernel",
    "runtime_ms",
    "iops",
    "bw_bytes",
    "clat_ns",
    "lat_ns",
    "read",
    "write",
    "growths",
    "growing_clat_max_ns",
    "cpu_us_per_op",
    "cpu_us_per_mib",
    "machine_cpu_us_per_mib",
    "usr_cpu",
    "sys_cpu",
    "requests",
    "flushes",
    "extents",
    "refused_gap",
    "refused_bytes",
    "refused_segments",
    "refused_member",
    "refused_order",
    "inflight",
    "blocked",
    "machine_cpu",
    "machine_memory",
    "rss_bytes",
    "ratio_to_kernel",
    "ratio_to_preallocated",
    "ratio_to_buffered_group",
    "ratio_to_serialised",
    "ratio_to_one_thread",
    "ratio_to_kernel_uring",
    "ratio_to_syncfs",
];
