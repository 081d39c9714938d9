//! A limit on the I/O of a cgroup.

use crate::common::wait_until;
use dioxide_testkit::lab::{Applies, Fs};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A cgroup of its own with a limit on writes to a device. Removed on drop.
pub struct Limited {
    directory: PathBuf,
}

impl Limited {
    /// By cgroup v1 if its blkio controller is mounted, else by v2.
    pub fn new(device: (u32, u32), limit: u32) -> io::Result<Self> {
        let v1 = Path::new("/sys/fs/cgroup/blkio");
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let nth = COUNT.fetch_add(1, Relaxed);
        let name = format!("dioxide-attach-{}-{nth}", std::process::id());
        let number = format!("{}:{}", device.0, device.1);
        let (root, file, line) = if v1.is_dir() {
            (v1, "blkio.throttle.write_iops_device", format!("{number} {limit}"))
        } else {
            (Path::new("/sys/fs/cgroup"), "io.max", format!("{number} wiops={limit}"))
        };
        let limited = Self { directory: root.join(name) };
        fs::create_dir(&limited.directory)?;
        fs::write(limited.directory.join(file), line)?;
        Ok(limited)
    }

    pub fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        wait_until("the cgroup is gone", || {
            fs::remove_dir(&self.directory).is_ok() || !self.directory.exists()
        });
    }
}

/// Whether this machine lets root limit I/O by a cgroup.
pub fn may_limit() -> bool {
    let v2 = fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    Path::new("/sys/fs/cgroup/blkio").is_dir() || v2.split_whitespace().any(|name| name == "io")
}

pub fn on_ext4_with_limits(fs: Fs) -> Applies {
    if !may_limit() {
        return Err("no cgroup limits I/O here");
    }
    fs.on_ext4()
}
