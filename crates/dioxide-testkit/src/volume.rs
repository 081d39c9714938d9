//! A file system of a test's own, on a loop device (tmpfs: on none), for shutdowns, power cuts,
//! remounts and checks. It is in the lab's `volumes` directory. Dropping it leaves nothing behind.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{self, TOOL_LIMIT};
use crate::files;
use crate::fuse_disk::{FuseDisk, Keep};
use crate::lab::Fs;
use crate::loop_device::{Io, LoopDevice};
use crate::mount::{Mount, await_end};
use crate::site::Site;
use crate::wait::{PATIENCE, retry};

/// Without it, the btrfs tools fail for the dead disk of another test.
const WITHOUT_VOLUMES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/without-volumes");

/// The smallest size that mkfs.xfs accepts.
pub const SIZE_MIN: u64 = 300 << 20;

/// Time limit of an unmount before the disk below is aborted.
const STUCK: Duration = Duration::from_secs(5);

/// A mounted file system. Close every file on it before it is unmounted, remounted or checked.
pub struct Volume {
    fs: Fs,
    mount: Option<Mount>,
    mount_point: PathBuf,
    below: Below,
}

enum Below {
    Memory { size: u64, _site: Site },
    Image { loop_device: LoopDevice, _site: Site },
    FuseDisk(FuseDisk),
}

impl Volume {
    /// Makes one of `size` bytes on an image file, or in memory.
    pub fn new(fs: Fs, size: u64) -> io::Result<Volume> {
        let site = Site::new()?;
        if fs.has_disk().is_err() {
            let mount_point = site.path("mnt");
            return Volume::format(fs, mount_point, Below::Memory { size, _site: site }, &[]);
        }
        Volume::on_image(fs, size, site, Io::Cached)
    }

    /// Makes one of `size` bytes on a disk with sectors of 4096 bytes.
    pub fn with_large_sectors(fs: Fs, size: u64) -> io::Result<Volume> {
        Volume::on_image(fs, size, Site::new()?, Io::CachedInPages)
    }

    fn on_image(fs: Fs, size: u64, site: Site, io: Io) -> io::Result<Volume> {
        let image = site.path("disk.img");
        File::create_new(&image)?.set_len(size)?;
        let loop_device = LoopDevice::attach(&image, &site.path("disk.loop"), io)?;
        let mount_point = site.path("mnt");
        Volume::format(fs, mount_point, Below::Image { loop_device, _site: site }, &[])
    }

    /// Makes one of `size` bytes on a disk that fails on command.
    pub fn on_fuse_disk(fs: Fs, size: u64) -> io::Result<Volume> {
        Volume::format_disk(fs, FuseDisk::start(size)?, &[])
    }

    /// Makes one of `size` bytes on a disk that records from the start, to be replayed. mkfs gets
    /// the options `mkfs` too.
    pub fn recorded(fs: Fs, size: u64, mkfs: &[&str]) -> io::Result<Volume> {
        let disk = FuseDisk::start(size)?;
        disk.record()?;
        Volume::format_disk(fs, disk, mkfs)
    }

    /// The same on a disk with sectors of 4096 bytes. A power cut may tear these.
    pub fn recorded_with_large_sectors(fs: Fs, size: u64, mkfs: &[&str]) -> io::Result<Volume> {
        let mut disk = FuseDisk::start(size)?;
        disk.loop_device_with_large_sectors()?;
        disk.record()?;
        Volume::format_disk(fs, disk, mkfs)
    }

    fn format_disk(fs: Fs, mut disk: FuseDisk, mkfs: &[&str]) -> io::Result<Volume> {
        disk.loop_device()?;
        let mount_point = disk.site().path("mnt");
        Volume::format(fs, mount_point, Below::FuseDisk(disk), mkfs)
    }

    fn format(fs: Fs, mount_point: PathBuf, below: Below, mkfs: &[&str]) -> io::Result<Volume> {
        let mut volume = Volume { fs, mount: None, mount_point, below };
        make_fs(fs, volume.device(), mkfs)?;
        volume.mount()?;
        if fs == Fs::BtrfsNocow {
            command::run(TOOL_LIMIT, "chattr", ["+C".as_ref(), volume.path()])?;
        }
        Ok(volume)
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Its loop device; a descriptive name if it is in memory.
    pub fn device(&self) -> &Path {
        match &self.below {
            Below::Memory { .. } => Path::new("none"),
            Below::Image { loop_device, .. } => loop_device.path(),
            Below::FuseDisk(disk) => disk.attached().expect("attached before it was formatted"),
        }
    }

    /// The disk below, if it fails on command.
    pub fn disk(&self) -> Option<&FuseDisk> {
        match &self.below {
            Below::Memory { .. } | Below::Image { .. } => None,
            Below::FuseDisk(disk) => Some(disk),
        }
    }

    /// Mounts it, unless it is mounted. Without a journal it is repaired first, as at boot.
    pub fn mount(&mut self) -> io::Result<()> {
        if self.mount.is_none() {
            if !self.fs.recovers_itself() {
                repair_fs(self.device())?;
            }
            let options = match self.below {
                Below::Memory { size, .. } => format!("size={size}"),
                _ => "defaults".into(),
            };
            let mount_type = self.fs.mount_type();
            self.mount = Some(Mount::new(mount_type, self.device(), &self.mount_point, &options)?);
        }
        Ok(())
    }

    /// Unmounts it, if it is mounted. Waits a while for the last file to be closed.
    pub fn unmount(&mut self) -> io::Result<()> {
        if let Some(mount) = &self.mount {
            mount.unmount()?;
        }
        self.mount = None;
        Ok(())
    }

    /// Unmounts and mounts it again. Replays its log if it was not unmounted cleanly.
    pub fn remount(&mut self) -> io::Result<()> {
        self.end()?;
        self.mount()
    }

    /// Replaces it by a new and empty file system on the same device.
    pub fn renew(&mut self) -> io::Result<()> {
        self.end()?;
        make_fs(self.fs, self.device(), &[])?;
        self.mount()
    }

    /// Writes everything that it has in memory, and flushes the disk after that. One syncfs of ext4
    /// flushes the disk before the last blocks of metadata are written.
    pub fn sync(&self) -> io::Result<()> {
        files::sync_file_system(&self.mount_point)?;
        files::sync_file_system(&self.mount_point)
    }

    /// Shuts the file system down as a crash would, without flushing its log. [`Volume::remount`]
    /// brings it back. The disk below loses no written block.
    pub fn shutdown(&self) -> io::Result<()> {
        files::shutdown(&self.mount_point)
    }

    /// Makes a power cut of the FUSE disk below, which loses its cache except what `keep` keeps,
    /// and restores the disk and the file system.
    pub fn power_cut(&mut self, keep: Keep) -> io::Result<()> {
        self.power_cut_unmounted(keep)?;
        self.mount()
    }

    /// As [`Volume::power_cut`], without the mount. If only [`Volume::mount`] fails then, the file
    /// system is lost; any other error is one of the rig.
    pub fn power_cut_unmounted(&mut self, keep: Keep) -> io::Result<()> {
        self.fuse_disk()?.power_cut(keep)?;
        self.end()?;
        self.fuse_disk()?.heal().map(drop)
    }

    /// Restores the state after a power cut at this position of the recording
    /// ([`FuseDisk::replay`]), and leaves it unmounted.
    pub fn replay_unmounted(&mut self, cut: u64, keep: Keep) -> io::Result<()> {
        self.end()?;
        self.fuse_disk()?.replay(cut, keep)?;
        files::forget_cached(self.device())
    }

    /// As [`Volume::replay_unmounted`], and mounts it.
    pub fn replay(&mut self, cut: u64, keep: Keep) -> io::Result<()> {
        self.replay_unmounted(cut, keep)?;
        self.mount()
    }

    /// Restores the state after one more power cut, since the last replay
    /// ([`FuseDisk::replay_again`]), and leaves it unmounted.
    pub fn replay_again_unmounted(&mut self, cut: u64, keep: Keep) -> io::Result<()> {
        self.end()?;
        self.fuse_disk()?.replay_again(cut, keep)?;
        files::forget_cached(self.device())
    }

    /// Unmounts it, and waits until the file system has ended.
    fn end(&mut self) -> io::Result<()> {
        self.unmount()?;
        match self.below {
            Below::Memory { .. } => Ok(()),
            Below::Image { .. } | Below::FuseDisk(_) => await_end(self.device()),
        }
    }

    fn fuse_disk(&self) -> io::Result<&FuseDisk> {
        self.disk().ok_or_else(|| io::Error::other("this volume has no FUSE disk below"))
    }

    /// Repairs an ext file system that has recorded an error. Its mount then leaves files that were
    /// deleted while they were open to e2fsck.
    pub fn repair(&mut self) -> io::Result<()> {
        self.remount()?;
        self.end()?;
        if matches!(self.fs, Fs::Ext4 | Fs::Ext4NoJournal | Fs::Ext3) {
            repair_fs(self.device())?;
        }
        self.mount()
    }

    /// Runs the file system's own checker. An error if it finds anything.
    ///
    /// Remounts it twice: first to replay its log, which a read-only checker cannot do. Does
    /// nothing in memory.
    pub fn fsck(&mut self) -> io::Result<()> {
        if self.fs.has_disk().is_err() {
            return Ok(());
        }
        self.remount()?;
        self.end()?;
        check_fs(self.fs, self.device())?;
        self.mount()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let (Some(mount), Below::FuseDisk(disk)) = (&self.mount, &self.below) else { return };
        let _ = disk.go_on();
        if mount.unmount_within(STUCK).is_err() {
            disk.give_up();
        }
    }
}

/// Without discarding, so that old content stays where the file system does not write.
fn make_fs(fs: Fs, device: &Path, more: &[&str]) -> io::Result<()> {
    const EXT: [&str; 4] = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
    let (tool, options): (_, &[&str]) = match fs {
        Fs::Ext4 | Fs::Ext4NoJournal => ("mkfs.ext4", &EXT),
        Fs::Ext3 => ("mkfs.ext3", &EXT),
        Fs::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"]),
        Fs::Btrfs | Fs::BtrfsNocow => ("mkfs.btrfs", &["-q", "-f", "-K"]),
        Fs::Tmpfs => return Ok(()),
    };
    let features: &[&str] = if fs == Fs::Ext4NoJournal { &["-O", "^has_journal"] } else { &[] };
    let options = [options, features, more].concat();
    match fs {
        Fs::Btrfs | Fs::BtrfsNocow => run_btrfs_on(device, tool, &options),
        _ => run_on(device, tool, &options),
    }
}

fn check_fs(fs: Fs, device: &Path) -> io::Result<()> {
    match fs {
        Fs::Ext4 | Fs::Ext3 | Fs::Ext4NoJournal => run_on(device, "e2fsck", &["-f", "-n"]),
        Fs::Xfs => run_on(device, "xfs_repair", &["-n"]),
        Fs::Btrfs | Fs::BtrfsNocow => run_btrfs_on(device, "btrfs", &["check"]),
        Fs::Tmpfs => Ok(()),
    }
}

/// The first e2fsck fails if it repaired something. The second run shows whether that was all.
fn repair_fs(device: &Path) -> io::Result<()> {
    let _ = run_on(device, "e2fsck", &["-f", "-y"]);
    run_on(device, "e2fsck", &["-f", "-n"])
}

/// The btrfs tools scan the images behind all loop devices, and fail if another test has just
/// broken one.
fn run_btrfs_on(device: &Path, tool: &str, options: &[&str]) -> io::Result<()> {
    let command = [&[tool], options].concat();
    retry(PATIENCE, || run_on(device, WITHOUT_VOLUMES, &command))
}

fn run_on(device: &Path, tool: &str, options: &[&str]) -> io::Result<()> {
    let args = options.iter().map(Path::new).chain([device]);
    command::run(TOOL_LIMIT, tool, args).map(drop)
}
