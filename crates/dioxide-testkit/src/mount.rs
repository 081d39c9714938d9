//! A mounted file system, unmounted on drop. Every wait is bounded.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command;
use crate::wait::{PATIENCE, retry};

pub(crate) struct Mount {
    dir: PathBuf,
}

/// Whether a mount failed because its device is in use.
pub(crate) fn is_in_use(error: &io::Error) -> bool {
    error.to_string().contains("busy")
}

impl Mount {
    /// Makes the directory. Waits for a device that is in use.
    pub(crate) fn new(
        fs_type: &str,
        source: &Path,
        dir: &Path,
        options: &str,
    ) -> io::Result<Mount> {
        // A child of a fork may have the descriptor of `await_end` until it executes a program.
        retry(PATIENCE, || match Mount::at_once(fs_type, source, dir, options) {
            Err(error) if is_in_use(&error) => Err(error),
            result => Ok(result),
        })?
    }

    /// Like [`Mount::new`], but a device that is in use is an error ([`is_in_use`]).
    pub(crate) fn at_once(
        fs_type: &str,
        source: &Path,
        dir: &Path,
        options: &str,
    ) -> io::Result<Mount> {
        fs::create_dir_all(dir)?;
        let args =
            [Path::new("-t"), Path::new(fs_type), Path::new("-o"), Path::new(options), source, dir];
        command::run(PATIENCE, "mount", args)?;
        Ok(Mount { dir: dir.to_owned() })
    }

    /// Takes over an existing mount, made by a FUSE server.
    pub(crate) fn adopt(dir: &Path) -> Mount {
        Mount { dir: dir.to_owned() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts it and removes the directory, unless it is unmounted already.
    ///
    /// Another mount namespace may have a copy of the mount, which keeps the file system. The
    /// kernel unmounts all copies when their directory is removed.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        self.unmount_within(PATIENCE)
    }

    pub(crate) fn unmount_within(&self, limit: Duration) -> io::Result<()> {
        retry(limit, || {
            if !is_mounted(&self.dir)? {
                return Ok(());
            }
            command::run(limit, "umount", [&self.dir])?;
            command::run(limit, "rmdir", [&self.dir]).map(drop)
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(e) = self.unmount() {
            eprintln!("testkit: {} stays mounted: {e}", self.dir.display());
        }
    }
}

/// Reads the kernel's table, not the directory: a dead server does not answer for that.
fn is_mounted(dir: &Path) -> io::Result<bool> {
    let escaped = dir.to_string_lossy().replace(' ', "\\040");
    let table = fs::read_to_string("/proc/self/mounts")?;
    Ok(table.lines().any(|line| line.split(' ').nth(1) == Some(&escaped)))
}

/// Waits until the file system on `device` has ended. After an unmount, another program may still
/// have a copy of the mount. Then tools refuse the device, and the next mount shows the old state,
/// for example that of a shutdown.
pub(crate) fn await_end(device: &Path) -> io::Result<()> {
    let unused = || File::options().read(true).custom_flags(libc::O_EXCL).open(device).map(drop);
    retry(PATIENCE, unused)
}
