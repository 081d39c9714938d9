//! The process that serves a disk until its standard input, the control socket, ends.

use std::env;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use fuser::{Config, MountOption, Session};
use rustix::mm::MlockAllFlags;

use super::disk::DiskState;
use super::file_system::DiskFiles;
use super::protocol::{Command, Stats, USAGE};
use super::shared::SharedDisk;

pub(super) const SERVER: &str = "DIOXIDE_FUSE_DISK";
/// Upper bound of concurrent requests; each occupies a thread while the disk delays it.
const THREADS: usize = 24;

pub(super) const READY: &str = "ready";

/// Serves as a disk if the environment asks for it; the arguments are those of [`main`].
pub(crate) fn serve_if_asked() -> Option<ExitCode> {
    env::var_os(SERVER).map(|_| main())
}

/// Serves a disk. Arguments: DIR and SIZE in bytes. Reads commands from standard input and answers
/// on standard output.
///
/// The end of the input ends the disk as a broken cable would: DIR stays mounted and dead.
pub fn main() -> ExitCode {
    match arguments().and_then(|(dir, size)| serve(&dir, size)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("dioxide-fuse-disk: {e}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> io::Result<(PathBuf, usize)> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [dir, size] = &args[..]
        && let Ok(size) = size.parse()
    {
        return Ok((dir.into(), size));
    }
    Err(io::Error::other(format!("usage: dioxide-fuse-disk DIR SIZE; {USAGE}")))
}

fn serve(dir: &Path, size: usize) -> io::Result<()> {
    let disk = Arc::new(SharedDisk::new(DiskState::new(size)));
    stay_out_of_reclaim();
    let session = Session::new(DiskFiles::new(disk.clone()), dir, &config())?;
    thread::spawn(move || session.run());
    say(READY)?;
    for line in io::stdin().lock().lines() {
        say(&answer(&disk, &line?))?;
    }
    Ok(())
}

fn config() -> Config {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("dioxide-fuse-disk".to_owned())];
    config.n_threads = Some(THREADS);
    config
}

fn answer(disk: &SharedDisk, line: &str) -> String {
    match Command::from_line(line) {
        Some(command) => disk.obey(command).map_or_else(|e| e.to_string(), Stats::to_line),
        None => USAGE.to_owned(),
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// The kernel may write back to this disk to reclaim memory. A server that waits for memory then
/// would deadlock with itself. Without privileges both calls fail, which leaves a small risk.
fn stay_out_of_reclaim() {
    // From linux/prctl.h; the libc crate lacks it.
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    let _ = rustix::mm::mlockall(
        MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT,
    );
    // SAFETY: sets a flag of this process and touches no memory.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}
