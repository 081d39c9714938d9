//! The facts that a figure needs beside it to be worth anything: kernel, CPUs, device, command, date.

use super::disk::Disk;
use serde::Serialize;
use std::time::SystemTime;

/// Where and how the bench ran.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub dioxide_version: &'static str,
    pub kernel_release: String,
    pub cpus: usize,
    /// The directory or device that was measured.
    pub target: String,
    /// The kernel's name of the device below it.
    pub device: Option<String>,
    /// `write back` means that a flush costs something.
    pub device_write_cache: Option<String>,
    pub command_line: String,
    /// When the bench began, UTC.
    pub date: String,
}

impl Machine {
    pub fn describe(target: String, disk: Option<&Disk>) -> Self {
        Self {
            dioxide_version: env!("CARGO_PKG_VERSION"),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            target,
            device: disk.map(Disk::name),
            device_write_cache: disk.and_then(Disk::write_cache),
            command_line: command_line(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }
}

fn command_line() -> String {
    let arguments: Vec<_> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    arguments.join(" ")
}
