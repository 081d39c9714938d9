//! Runs system tools (mount, losetup, mkfs) with a time limit. They run as separate processes,
//! because a call stuck in the kernel would keep this process from ending.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Gives these signals their default action in the program: a test under `nohup`, or in the
/// background of a script, ignores some of them.
pub fn with_default_signals(command: &mut Command) -> &mut Command {
    let default = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: the default action is valid for each of them.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: `signal` is async-signal-safe.
    unsafe { command.pre_exec(default) }
}

/// Time limit of a tool that makes, checks or repairs a file system. On a FUSE disk and busy cores
/// it needs over a minute.
pub(crate) const TOOL_LIMIT: Duration = Duration::from_secs(240);

/// Runs the tool and returns its standard output. An error contains all its output.
pub(crate) fn run<A: AsRef<OsStr>>(
    limit: Duration,
    program: &str,
    args: impl IntoIterator<Item = A>,
) -> io::Result<String> {
    judge(program, output(limit, program, args)?)
}

/// Runs the tool, whatever its exit code.
pub(crate) fn output<A: AsRef<OsStr>>(
    limit: Duration,
    program: &str,
    args: impl IntoIterator<Item = A>,
) -> io::Result<Output> {
    let child = Command::new(program)
        .args(args)
        .env("PATH", path_with_sbin())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{program}: {e}")))?;
    let pid = Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(output) => output,
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{program}: not done after {limit:?}"),
            ))
        }
    }
}

fn judge(program: &str, output: Output) -> io::Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program}: {}: {stdout}{}", output.status, stderr.trim_end())))
}

/// A root shell made with su often lacks the directories of mkfs and losetup in PATH.
fn path_with_sbin() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}
