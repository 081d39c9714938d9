//! A site: the directory of one throw-away disk, `volumes/PID-N` in the lab.
//!
//! `scripts/lab down` sweeps what a killed test leaves there. It knows these names:
//!
//! - `mnt`: the file system
//! - `disk.loop`: the loop device's record
//! - `disk`: the FUSE mount
//! - `server.pid`: its server
//! - `ctl`: the FUSE control file system, while a disk is being aborted

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lab;

pub(crate) struct Site {
    dir: PathBuf,
}

impl Site {
    pub(crate) fn new() -> io::Result<Site> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = lab::dir()?.join("volumes").join(format!("{}-{number}", process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Site { dir })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn make_dir(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Site {
    /// Not `remove_dir_all`: it would delete the files of a volume that could not be unmounted.
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            remove_file_or_empty_dir(&entry.path());
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

fn remove_file_or_empty_dir(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
}
