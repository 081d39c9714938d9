//! The mount table: the file system of a file, and which devices are mounted.

use rustix::fs::{Mode, OFlags, makedev, open};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The fields of a line of /proc/self/mountinfo that we need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount ID, as in `/proc/PID/fdinfo`.
    pub id: u64,
    /// Of the whole file system. Files of btrfs have other numbers.
    pub device: u64,
    /// The mount point.
    pub point: String,
    /// The name for mount(8).
    pub fs: String,
    /// The device, for most file systems.
    pub source: String,
    /// Options of the whole file system, the same for all its mounts.
    pub options: String,
}

/// The mounts that this process sees.
pub fn mounts() -> io::Result<Vec<Mount>> {
    mounts_of(std::process::id())
}

/// The mounts that a process sees.
pub fn mounts_of(pid: u32) -> io::Result<Vec<Mount>> {
    let table = fs::read(format!("/proc/{pid}/mountinfo"))?;
    // Names that are not UTF-8 are converted lossily.
    Ok(String::from_utf8_lossy(&table).lines().filter_map(parse_line).collect())
}

/// The mount that `file` was opened on.
pub fn mount_of(file: &File) -> io::Result<Option<Mount>> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    Ok(mounts()?.into_iter().find(|mount| Some(mount.id) == id))
}

/// The mount of a path. None without /proc.
pub fn mount_of_path(path: &Path) -> Option<Mount> {
    let file: File = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?.into();
    mount_of(&file).ok()?
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: the number of optional fields
/// before the dash varies.
pub fn parse_line(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let front: Vec<&str> = front.split(' ').collect();
    let (major, minor) = front.get(2)?.split_once(':')?;
    let mut back = back.split(' ');
    Some(Mount {
        id: front.first()?.parse().ok()?,
        device: makedev(major.parse().ok()?, minor.parse().ok()?),
        point: unescape(front.get(4)?),
        fs: back.next()?.to_owned(),
        source: unescape(back.next()?),
        options: back.next()?.to_owned(),
    })
}

/// mountinfo writes space, tab, newline, backslash, and the number sign in sources, as three octal
/// digits.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_with_and_without_optional_fields() {
        let mount = parse_line(
            "36 35 98:1 / /my\\040disk rw,noatime master:1 - ext3 /dev/root rw,nobarrier",
        )
        .unwrap();
        let expected = Mount {
            id: 36,
            device: makedev(98, 1),
            point: "/my disk".into(),
            fs: "ext3".into(),
            source: "/dev/root".into(),
            options: "rw,nobarrier".into(),
        };
        assert_eq!(mount, expected);
        assert_eq!(parse_line("1 0 0:2 / / rw - tmpfs none rw").unwrap().fs, "tmpfs");
        assert_eq!(parse_line("nonsense"), None);
    }

    #[test]
    fn own_temporary_file_has_a_mount() {
        let file = tempfile::tempfile().unwrap();
        assert!(mount_of(&file).unwrap().is_some());
    }
}
