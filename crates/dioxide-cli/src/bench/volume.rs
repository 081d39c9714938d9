//! An ext3 volume in a scratch file, with one file in it, and its mount by the kernel.
//!
//! None of it has a name, so all of it vanishes with the process, however that ends. The image is a
//! nameless file. Its loop device detaches with its last user, except in the instant between the
//! two calls of losetup. The mount is attached nowhere.

use super::ledger::Written;
use super::place::BenchTarget;
use super::stamp::fill_as_old;
use crate::meter::disk::Disk;
use crate::tools::Tool;
use anyhow::{Context, Result, ensure};
use dioxide::{Buffer, OpenOptions};
use dioxide_ext::OpenInImage;
use rustix::fs::{Advice, Mode, OFlags, fadvise, openat, stat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes in blocks that ext3 maps without an indirect block: the initial content of the file.
pub const HEAD_BYTES: u64 = 48 << 10;
pub const BLOCK_BYTES: u64 = 4096;
/// Enough for a journal, and for the file in one piece.
pub const VOLUME_BYTES: u64 = 64 << 20;
/// In the root of the volume.
const FILE_NAME: &str = "file";
/// An unused mount is gone in far less time.
const UNMOUNT_MAX: Duration = Duration::from_secs(30);

const MKE2FS: Tool = Tool { name: "mke2fs", package: "e2fsprogs" };
const DEBUGFS: Tool = Tool { name: "debugfs", package: "e2fsprogs" };
const LOSETUP: Tool = Tool { name: "losetup", package: "mount" };

/// A volume in an image.
pub struct Volume {
    image: File,
    scratch: File,
}

impl Volume {
    /// Makes one, with a file of [`HEAD_BYTES`] in it. The image is fully written, so that its own
    /// file system has nothing to allocate later. All of it is stable on return.
    pub fn make(place: &BenchTarget) -> Result<Self> {
        let volume = Self { image: place.scratch()?, scratch: place.scratch()? };
        let zeros = Buffer::zeroed(1 << 20);
        for offset in (0..VOLUME_BYTES).step_by(zeros.len()) {
            volume.image.write_all_at(&zeros, offset).context("write the image")?;
        }
        let (block, image) = (BLOCK_BYTES.to_string(), path_of(&volume.image));
        // Discarding would punch holes again.
        MKE2FS.run(["-q", "-F", "-t", "ext3", "-b", &block, "-E", "nodiscard", &image])?;
        (&volume.scratch).write_all(&head())?;
        volume.debug(&["-w", "-R", &format!("write {} {FILE_NAME}", path_of(&volume.scratch))])?;
        volume.image.sync_all()?;
        // Otherwise direct writes would first have to drop it from the page cache.
        fadvise(&volume.image, 0, None, Advice::DontNeed)?;
        Ok(volume)
    }

    /// Opens the file in it with dioxide.
    pub fn open_with(&self, options: &OpenOptions) -> dioxide::Result<dioxide::File> {
        options.open_in_image(path_of(&self.image), FILE_NAME)
    }

    /// The content of the file after its head, read by a third program. The head must be unchanged.
    pub fn read_back(&self) -> Result<FileAfterHead> {
        self.debug(&["-R", &format!("dump {FILE_NAME} {}", path_of(&self.scratch))])?;
        let mut found = vec![0; HEAD_BYTES as usize];
        self.scratch.read_exact_at(&mut found, 0).context("read the file back")?;
        ensure!(found == head(), "verification failed: the file does not begin as it did");
        Ok(FileAfterHead(self.scratch.try_clone()?))
    }

    fn debug(&self, arguments: &[&str]) -> Result<()> {
        let image = path_of(&self.image);
        DEBUGFS.run(arguments.iter().copied().chain([&*image])).map(drop)
    }

    /// Mounts it through a loop device with direct I/O. Only for root.
    pub fn mount(&self) -> Result<Mounted> {
        let printed = LOSETUP.run(["--find", "--show", "--direct-io=on", &path_of(&self.image)])?;
        let path = printed.trim();
        let held = File::open(path);
        // While the device is open, this only marks it for detaching at the last close.
        LOSETUP.run(["--detach", path])?;
        let held = held.with_context(|| format!("open {path}"))?;
        let root = mount(path).with_context(|| format!("mount {path}"))?;
        drop(held);
        let disk =
            Disk::find(stat(path)?.st_rdev).with_context(|| format!("{path}: not in sysfs"))?;
        let name = Path::new(path).file_name().unwrap_or_default();
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        Ok(Mounted { root, disk, backing })
    }
}

/// The file after its head.
pub struct FileAfterHead(File);

impl FileExt for FileAfterHead {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(into, HEAD_BYTES + offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, HEAD_BYTES + offset)
    }
}

impl Written for FileAfterHead {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len()?.saturating_sub(HEAD_BYTES))
    }
}

/// A volume mounted by the kernel, detached from the directory tree. Its file must be closed before
/// the unmount.
pub struct Mounted {
    root: OwnedFd,
    /// The loop device.
    pub disk: Disk,
    /// Exists as long as the loop device has the image.
    backing: PathBuf,
}

impl Mounted {
    /// Opens the file in it for direct writes.
    pub fn open(&self) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        Ok(openat(&self.root, FILE_NAME, flags, Mode::empty())
            .context("open the file in the volume")?
            .into())
    }

    /// Unmounts it, and waits until everything is in the image.
    pub fn unmount(self) -> Result<()> {
        drop(self.root);
        let begun = Instant::now();
        while self.backing.exists() {
            ensure!(begun.elapsed() < UNMOUNT_MAX, "{} is still there", self.disk.name());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

fn mount(device: &str) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen("ext3", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", device)?;
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Valid in other processes as well.
fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn head() -> Vec<u8> {
    let mut head = vec![0; HEAD_BYTES as usize];
    fill_as_old(&mut head);
    head
}
