//! The file system that a file is on, and what of it bears on direct I/O.

use super::mount::mount_of;
use rustix::fs::{IFlags, ioctl_getflags};
use std::fs::File;

/// FS_EXTENT_FL: the file is mapped by extents.
const EXTENT: IFlags = IFlags::from_bits_retain(0x0008_0000);

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// As mount(8) calls it.
    pub name: String,
    /// What makes its files different from those that one expects there.
    pub remark: Option<&'static str>,
}

impl FileSystem {
    /// That of `file`. None if /proc does not tell.
    pub fn of(file: &File) -> Option<Self> {
        let name = mount_of(file).ok()??.fs;
        let remark = ioctl_getflags(file).ok().and_then(|flags| remark(&name, flags));
        Some(Self { name, remark })
    }
}

fn remark(name: &str, flags: IFlags) -> Option<&'static str> {
    match name {
        "ext2" | "ext3" | "ext4" if !flags.contains(EXTENT) => Some("mapped block by block, without extents"),
        "btrfs" if !flags.contains(IFlags::NOCOW) => Some(
            "with checksums, for which recent kernels buffer O_DIRECT; not so after chattr +C of the directory",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext_without_extents() {
        assert_eq!(remark("ext4", EXTENT), None);
        assert!(remark("ext4", IFlags::empty()).unwrap().contains("without extents"));
        assert!(remark("ext3", IFlags::NOATIME).unwrap().contains("without extents"));
    }

    #[test]
    fn btrfs_with_checksums() {
        assert_eq!(remark("btrfs", IFlags::NOCOW), None);
        assert!(remark("btrfs", IFlags::empty()).unwrap().contains("chattr +C"));
        assert_eq!(remark("tmpfs", IFlags::empty()), None);
    }
}
