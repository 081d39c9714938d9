//! Checks that a block device may be overwritten: it must be unused and have no recognisable
//! content.

pub mod signature;

use crate::meter::mount::mounts;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open, stat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A device until it is detached. Its path and its number may be those of another one afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub number: u64,
    /// Of the disk, counted since boot. None before Linux 5.15.
    sequence: Option<u64>,
}

impl Identity {
    /// Of an open device, which stays the same one.
    pub fn of(device: &File) -> Result<Self> {
        let number = fstat(device).context("fstat")?.st_rdev;
        let sequence =
            |dir: PathBuf| fs::read_to_string(dir.join("diskseq")).ok()?.trim().parse().ok();
        // A partition has that of its disk.
        let sysfs = sysfs(number);
        let sequence = sequence(sysfs.clone()).or_else(|| sequence(sysfs.join("..")));
        Ok(Self { number, sequence })
    }
}

/// The device at `path`, if it is a block device that may be overwritten; otherwise the reason.
pub fn check_free(path: &Path) -> Result<Identity> {
    let name = path.display();
    let status = stat(path).with_context(|| name.to_string())?;
    ensure!(
        FileType::from_raw_mode(status.st_mode).is_block_device(),
        "{name} is not a block device"
    );
    let number = status.st_rdev;
    if let Some(user) = user_of(number)? {
        bail!("{name} is in use: {user}; nothing was touched");
    }
    let mut device = open_alone(path)?;
    let identity = Identity::of(&device)?;
    ensure!(identity.number == number, "{name} is another device now; nothing was touched");
    let size = device.seek(SeekFrom::End(0)).with_context(|| name.to_string())?;
    let content = signature::find(&device, size).with_context(|| format!("read {name}"))?;
    if let Some(content) = content {
        bail!(
            "{name} holds {content}; nothing was touched. If that is not needed, wipe it first \
             (`wipefs`; what dioxide wrote, by zeros over its first MiB)"
        );
    }
    Ok(identity)
}

/// Its size.
pub fn size_bytes(path: &Path) -> Result<u64> {
    let mut device = File::open(path).with_context(|| format!("open {}", path.display()))?;
    Ok(device.seek(SeekFrom::End(0))?)
}

/// O_EXCL on a device fails while the kernel uses it: mounts in any namespace, swap, RAID, device
/// mapper, partitions of the same disk.
fn open_alone(path: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    match open(path, flags, Mode::empty()) {
        Ok(file) => Ok(file.into()),
        Err(Errno::BUSY) => {
            bail!("{} is in use by the kernel; nothing was touched", path.display())
        }
        Err(errno) => Err(errno).with_context(|| format!("open {}", path.display())),
    }
}

/// The user of the device, of a part of it, or of its disk; in words.
fn user_of(number: u64) -> Result<Option<String>> {
    for relative in relatives(number) {
        let user = mounted_at(relative)?
            .or(swapped_to(relative))
            .or(held_by(relative))
            .or(looped_by(relative));
        if user.is_some() {
            return Ok(user);
        }
    }
    Ok(None)
}

/// The device, its partitions, and the disk that it is a partition of.
fn relatives(number: u64) -> Vec<u64> {
    let sysfs = sysfs(number);
    let mut relatives = vec![number];
    if sysfs.join("partition").exists() {
        relatives.extend(number_in(&sysfs.join("..")));
    }
    for entry in fs::read_dir(&sysfs).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            relatives.extend(number_in(&entry.path()));
        }
    }
    relatives
}

fn sysfs(number: u64) -> PathBuf {
    let link = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    fs::canonicalize(&link).unwrap_or(link.into())
}

fn number_in(sysfs: &Path) -> Option<u64> {
    let text = fs::read_to_string(sysfs.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// By number, and by source for file systems with device numbers of their own (btrfs).
fn mounted_at(number: u64) -> Result<Option<String>> {
    let mounts = mounts().context("read the table of mounts")?;
    let mount =
        mounts.into_iter().find(|mount| mount.device == number || is_device(&mount.source, number));
    Ok(mount.map(|mount| format!("mounted at {}", mount.point)))
}

fn swapped_to(number: u64) -> Option<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut names = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.any(|name| is_device(name, number)).then(|| "swap space".to_owned())
}

fn held_by(number: u64) -> Option<String> {
    let holder = fs::read_dir(sysfs(number).join("holders")).ok()?.flatten().next()?;
    Some(format!("part of {}", holder.file_name().to_string_lossy()))
}

/// A loop device does not claim the device below it, so O_EXCL does not detect it.
fn looped_by(number: u64) -> Option<String> {
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let mut backing = String::new();
        let file = File::open(entry.path().join("loop/backing_file"));
        let is_loop = file.and_then(|mut file| file.read_to_string(&mut backing)).is_ok();
        if is_loop && is_device(backing.trim_end(), number) {
            return Some(format!("behind {}", entry.file_name().to_string_lossy()));
        }
    }
    None
}

fn is_device(path: &str, number: u64) -> bool {
    let is_block =
        |status: &rustix::fs::Stat| FileType::from_raw_mode(status.st_mode).is_block_device();
    path.starts_with("/dev/")
        && stat(path).is_ok_and(|status| is_block(&status) && status.st_rdev == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        format!("{:#}", check_free(path).unwrap_err())
    }

    #[test]
    fn only_block_devices() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(refusal(file.path()).ends_with("is not a block device"));
        assert!(refusal(Path::new("/dev/null")).ends_with("is not a block device"));
        assert!(refusal(Path::new("/no/such/device")).contains("No such file"));
    }

    #[test]
    fn mounted_devices_are_in_use() {
        let mounted =
            mounts().unwrap().into_iter().find(|mount| is_device(&mount.source, mount.device));
        let Some(mount) = mounted else { return };
        assert!(user_of(mount.device).unwrap().unwrap().starts_with("mounted at"));
    }
}
