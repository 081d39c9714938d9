//! The file system of a file, and its properties that affect direct I/O.

use super::mount::{Mount, mount_of};
use rustix::fs::{IFlags, ioctl_getflags};
use std::fs::File;

/// FS_EXTENT_FL: the file is mapped by extents.
const EXTENT: IFlags = IFlags::from_bits_retain(0x0008_0000);

/// A file system.
#[derive(Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The name for mount(8).
    pub name: String,
    /// A property of its files that is unusual for this file system.
    pub remark: Option<&'static str>,
}

impl FileSystem {
    /// That of `file`. None without /proc.
    pub fn of(file: &File) -> Option<Self> {
        let Mount { fs: name, options, .. } = mount_of(file).ok()??;
        let remark = ioctl_getflags(file).ok().and_then(|flags| remark(&name, &options, flags));
        Some(Self { name, remark })
    }
}

fn remark(name: &str, options: &str, flags: IFlags) -> Option<&'static str> {
    // Files without copy-on-write have no checksums either.
    let has_no_checksums = || {
        let off = |option| ["nodatasum", "nodatacow"].contains(&option);
        flags.contains(IFlags::NOCOW) || options.split(',').any(off)
    };
    match name {
        "ext2" | "ext3" | "ext4" if !flags.contains(EXTENT) => {
            Some("mapped block by block, without extents")
        }
        "btrfs" if !has_no_checksums() => Some(
            "with checksums, for which recent kernels buffer O_DIRECT; not so after chattr +C of \
             the directory",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext_without_extents() {
        assert_eq!(remark("ext4", "rw", EXTENT), None);
        assert!(remark("ext4", "rw", IFlags::empty()).unwrap().contains("without extents"));
        assert!(remark("ext3", "rw", IFlags::NOATIME).unwrap().contains("without extents"));
    }

    #[test]
    fn btrfs_with_checksums() {
        assert_eq!(remark("btrfs", "rw", IFlags::NOCOW), None);
        for options in ["rw,nodatasum,ssd", "rw,nodatasum,nodatacow"] {
            assert_eq!(remark("btrfs", options, IFlags::empty()), None, "{options}");
        }
        assert!(remark("btrfs", "rw,ssd", IFlags::empty()).unwrap().contains("chattr +C"));
        assert_eq!(remark("tmpfs", "rw", IFlags::empty()), None);
    }
}
