//! What the kernel tells as text: the table of mounts, the counters of a disk and of the machine. Their names come
//! from whoever mounts.
#![no_main]

#[path = "../../crates/dioxide-cli/src/meter/disk.rs"]
#[allow(dead_code)]
mod disk;
#[path = "../../crates/dioxide-cli/src/meter/mount.rs"]
#[allow(dead_code)]
mod mount;
#[path = "../../crates/dioxide-cli/src/meter/vmstat.rs"]
#[allow(dead_code)]
mod vmstat;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = disk::parse_stat(text);
    let _ = vmstat::parse(text);
    let known = text.lines().filter_map(mount::parse_line);
    known.for_each(|mount| assert!(!mount.fs.contains(' ') && !mount.options.contains(' ')));
});
