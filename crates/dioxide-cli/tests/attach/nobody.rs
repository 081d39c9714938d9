//! Programs of a user other than root.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// Runs the words of `line` as that user, in a directory of its own.
pub struct AsNobody {
    pub home: PathBuf,
    /// The paths of sockets have a maximum length.
    pub sockets: TempDir,
}

impl AsNobody {
    pub fn new(dir: &Path) -> io::Result<Self> {
        let home = dir.join("server");
        fs::create_dir(&home)?;
        let sockets = tempfile::tempdir_in("/tmp")?;
        for owned in [home.as_path(), sockets.path()] {
            chown(owned, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(Self { home, sockets })
    }

    pub fn command(&self, program: impl AsRef<Path>, line: &str) -> Command {
        let mut command = Command::new(program.as_ref());
        command.args(line.split_whitespace()).current_dir(&self.home).uid(NOBODY).gid(NOBODY);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", &self.home);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub fn run(&self, program: impl AsRef<Path>, line: &str) -> io::Result<()> {
        let status = self.command(&program, line).status()?;
        let is_ok = status.success();
        is_ok
            .then_some(())
            .ok_or_else(|| io::Error::other(format!("{}: {status}", program.as_ref().display())))
    }
}
