//! A loop device on a file, detached on drop. Its record file, for `scripts/lab down`, has the
//! backing file, written before it is attached, and the device, added after.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::command;
use crate::site::Site;
use crate::wait::{PATIENCE, retry};

/// The kernel adds this to the name of a backing file that was removed.
const DELETED: &[u8] = b" (deleted)";

/// Detaches the device $1 if its image is $3, by $2 in sysfs. The look and the detach are about one
/// image only while the device is open. By its number alone, this detached the image of another
/// trial. A process of its own, because the last close may wait for a dead disk.
const DETACH: &str = r#"{ image=$(cat "$2" 2>/dev/null)
    [ "${image% (deleted)}" != "$3" ] || losetup -d "$1"; } 3<"$1""#;

/// A loop device on a test's own file, detached on drop.
pub struct AttachedFile {
    // The device before the site of its record.
    device: LoopDevice,
    _site: Site,
}

impl AttachedFile {
    /// Attaches `file`.
    pub fn new(file: &Path) -> io::Result<AttachedFile> {
        let site = Site::new()?;
        Ok(AttachedFile {
            device: LoopDevice::attach(file, &site.path("disk.loop"), Io::Cached)?,
            _site: site,
        })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// Whether it still has the file.
    pub fn is_attached(&self) -> bool {
        self.device.is_attached()
    }

    /// The number of flushes the device has done.
    pub fn flushes(&self) -> io::Result<u64> {
        // Index in the kernel's block device statistics.
        const FLUSHES: usize = 15;
        let name = self.path().file_name().unwrap_or_default();
        let stat = fs::read_to_string(Path::new("/sys/block").join(name).join("stat"))?;
        let flushes = stat.split_whitespace().nth(FLUSHES).and_then(|number| number.parse().ok());
        flushes.ok_or_else(|| io::Error::other(format!("no number of flushes in {stat:?}")))
    }
}

/// How a loop device uses its backing file.
#[derive(Clone, Copy)]
pub(crate) enum Io {
    /// One request at a time, with sectors of 512 bytes.
    Cached,
    /// One request at a time, with sectors of 4096 bytes.
    CachedInPages,
    /// Concurrent requests, with sectors of 512 bytes.
    Direct,
    /// Concurrent requests, with sectors of 4096 bytes.
    DirectInPages,
}

impl Io {
    fn options(self) -> [&'static str; 2] {
        match self {
            Io::Cached => ["--direct-io=off", "--sector-size=512"],
            Io::CachedInPages => ["--direct-io=off", "--sector-size=4096"],
            Io::Direct => ["--direct-io=on", "--sector-size=512"],
            Io::DirectInPages => ["--direct-io=on", "--sector-size=4096"],
        }
    }
}

pub(crate) struct LoopDevice {
    device: PathBuf,
    backing: PathBuf,
    record: PathBuf,
}

impl LoopDevice {
    pub(crate) fn attach(backing: &Path, record: &Path, io: Io) -> io::Result<LoopDevice> {
        let mut file = fs::File::create(record)?;
        writeln!(file, "{}", backing.display())?;
        // Another process may take or remove the device that losetup finds.
        let printed = retry(PATIENCE, || {
            let options = ["--find", "--show"].into_iter().chain(io.options()).map(Path::new);
            command::run(PATIENCE, "losetup", options.chain([backing]))
        })?;
        write!(file, "{printed}")?;
        let device = PathBuf::from(printed.trim_end());
        Ok(LoopDevice { device, backing: backing.to_owned(), record: record.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.device
    }

    fn backing_file(&self) -> PathBuf {
        let name = self.device.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join("loop/backing_file")
    }

    /// The number may belong to another image already; the backing file identifies ours.
    pub(crate) fn is_attached(&self) -> bool {
        let is_ours = |line: Vec<u8>| {
            let name = line.strip_suffix(b"\n").unwrap_or(&line);
            name.strip_suffix(DELETED).unwrap_or(name) == self.backing.as_os_str().as_bytes()
        };
        fs::read(self.backing_file()).is_ok_and(is_ours)
    }

    /// `losetup -d` succeeds before the device is free if another process has it open.
    fn detach(&self) -> io::Result<()> {
        retry(PATIENCE, || {
            if !self.is_attached() {
                return Ok(());
            }
            let shell = ["-c", DETACH, "sh"].map(PathBuf::from);
            let names = [self.device.clone(), self.backing_file(), self.backing.clone()];
            command::run(PATIENCE, "sh", shell.into_iter().chain(names))?;
            Err(io::Error::from(io::ErrorKind::ResourceBusy))
        })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        match self.detach() {
            Ok(()) => drop(fs::remove_file(&self.record)),
            Err(e) => eprintln!("testkit: {} stays attached: {e}", self.device.display()),
        }
    }
}
