//! Text of the kernel: the table of mounts, the counters of a disk and of the machine, thread
//! states, and traces. The names in it come from mount paths and from programs.
#![no_main]

#[path = "../../crates/dioxide-diagnose/src/host/cached.rs"]
#[allow(dead_code)]
mod cached;
#[path = "../../crates/dioxide-diagnose/src/host/disk.rs"]
#[allow(dead_code)]
mod disk;
#[path = "../../crates/dioxide-diagnose/src/host/mount.rs"]
#[allow(dead_code)]
mod mount;
#[path = "../../crates/dioxide-cli/src/meter/vmstat.rs"]
#[allow(dead_code)]
mod vmstat;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    dioxide_diagnose::fuzzing::kernel_text(text.as_bytes());
    let _ = disk::parse_stat(text);
    let _ = vmstat::parse(text);
    let known = text.lines().filter_map(mount::parse_line);
    known.for_each(|mount| assert!(!mount.fs.contains(' ') && !mount.options.contains(' ')));
});
