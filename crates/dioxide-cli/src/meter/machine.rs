//! The conditions of a measurement: kernel, CPUs, device, command, date.

use super::disk::Disk;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::SystemTime;

/// Where and how something was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    pub dioxide_version: String,
    /// `release` or `debug`.
    pub build: String,
    pub kernel_release: String,
    pub cpus: usize,
    /// The kernel's name. None if it has none.
    pub cpu_model: Option<String>,
    /// The measured directory, device or process.
    pub target: String,
    /// The kernel's name of the device below it.
    pub device: Option<String>,
    /// `write back`: flushes have a cost.
    pub device_write_cache: Option<String>,
    pub command_line: String,
    /// The start, UTC.
    pub date: String,
}

impl Machine {
    pub fn describe(target: String, disk: Option<&Disk>) -> Self {
        Self {
            dioxide_version: env!("CARGO_PKG_VERSION").into(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: cpu_model(),
            target,
            device: disk.map(Disk::name),
            device_write_cache: disk.and_then(Disk::write_cache),
            command_line: command_line(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }
}

/// `2026-11-22 21:15:03` for people, still in UTC, from the date of a machine.
pub fn when(date: &str) -> String {
    date.trim_end_matches('Z').replace('T', " ")
}

/// Of the first CPU.
fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let (_, model) = text.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(model.trim().to_owned())
}

fn command_line() -> String {
    let arguments: Vec<_> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    arguments.join(" ")
}
