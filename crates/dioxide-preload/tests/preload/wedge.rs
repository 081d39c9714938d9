//! A flush that fails, in the engine or in a sync of the kernel. Until a new mount, no call on the
//! file system acknowledges data, also after a hand-back and in children.

use super::rig::*;
use dioxide_testkit::fuse_disk::FuseDisk;
use dioxide_testkit::lab::{self, Fs};
use dioxide_testkit::trials::{Failed, Trial, TrialResult, fuse_trial};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The first failure, or the reason of a hand-back after it. The kernel performs all flushes of a
/// watched file.
const ON_A_FILE_SYSTEM: [&str; 11] = [
    "fdatasync",
    "fsync",
    "syncfs",
    "syncfs_beside",
    "sync",
    "dsync",
    "mmap",
    "lock",
    "ioctl",
    // A file without O_DIRECT has the descriptor number of a former file with it.
    "number_used_before",
    "number_used_before_fdatasync",
];
/// `sync` and `syncfs` do not flush a device without a file system.
const ON_A_DEVICE: [&str; 5] = ["fdatasync", "fsync", "dsync", "lock", "ioctl"];

/// Runs `c/wedge.c`. Calls `told` with each line after which the program waits.
fn run_wedge(
    how: &str,
    with: With,
    [file, beside]: [&Path; 2],
    mut told: impl FnMut(&str) -> TrialResult,
) -> TrialResult {
    let other = lab::fresh_dir(Fs::Tmpfs, "beside_a_wedge")?;
    let mut command = Command::new("timeout");
    // A hang. The program also waits for mkfs on the FUSE disk.
    let limit = LIMIT.as_secs().to_string();
    command.args(["--signal=KILL", &limit]).arg(c_program("wedge", COMPILED[0]));
    command.args([how.as_ref(), file, beside, &other.join("other")]);
    with.set(&mut command);
    let mut program =
        command.env("DIOXIDE_DEVICES", "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (stdin, stdout) = (program.stdin.take(), program.stdout.take());
    let (mut stdin, stdout) = (stdin.expect("piped"), BufReader::new(stdout.expect("piped")));
    let mut answered = String::new();
    let mut result = Ok(());
    for line in stdout.lines() {
        let line = line?;
        match &*line {
            "ready" | "unused" if result.is_ok() => {
                result = told(&line).and_then(|()| Ok(stdin.write_all(b"\n")?));
            }
            _ => answered += &format!("{line}\n"),
        }
        if result.is_err() {
            break;
        }
    }
    drop(stdin);
    let status = program.wait()?;
    result?;
    match status.success() && answered.is_empty() {
        true => Ok(()),
        false => Err(failed(format!("{with:?}: {}\n{answered}", ending(status)))),
    }
}

fn fail_flush(disk: &FuseDisk) -> Result<(), Failed> {
    disk.fail_flush(1, libc::EIO)?;
    Ok(())
}

fn after_a_failed_flush_every_sync_fails(how: &str, with: With) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(Fs::Ext4, SIZE_MIN)?;
    let (file, beside) = (volume.path().join("file"), volume.path().join("beside"));
    run_wedge(how, with, [&file, &beside], |line| match line {
        "ready" => fail_flush(volume.disk().expect("on a FUSE disk")),
        // The lost data may be in any structure of the old file system.
        _ => Ok(volume.renew()?),
    })
}

fn after_a_failed_flush_every_sync_of_a_device_fails(how: &str, with: With) -> TrialResult {
    let mut disk = FuseDisk::start(64 << 20)?;
    let device = disk.loop_device()?.to_owned();
    run_wedge(how, with, [&device, &device], |_| fail_flush(&disk))
}

/// Makes a trial of each case, for each way to use the library.
fn each_way<const N: usize>(
    name: &'static str,
    cases: [&'static str; N],
    test: fn(&str, With) -> TrialResult,
) -> impl Iterator<Item = Trial> {
    cases.into_iter().flat_map(move |how| {
        With::LIBRARY.map(|with| {
            let name = format!("{name}_{how}_{with:?}").to_lowercase();
            fuse_trial(&name, move || test(how, with))
        })
    })
}

pub fn trials() -> Vec<Trial> {
    let files = each_way(
        "after_a_failed_flush_every_sync_fails",
        ON_A_FILE_SYSTEM,
        after_a_failed_flush_every_sync_fails,
    );
    let devices = each_way(
        "after_a_failed_flush_every_sync_of_a_device_fails",
        ON_A_DEVICE,
        after_a_failed_flush_every_sync_of_a_device_fails,
    );
    files.chain(devices).collect()
}
