//! A given file, which is only inspected.

use super::facts::{Facts, Topic};
use crate::sys::count_extents;
use rustix::fs::{IFlags, fgetxattr, ioctl_getflags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// FS_EXTENT_FL: the file is mapped by extents.
const EXTENT: IFlags = IFlags::from_bits_retain(0x0008_0000);

/// Does not read its content, and changes nothing.
pub fn look(file: &File, facts: &mut Facts) {
    let topic = Topic::File;
    let metadata = file.metadata();
    let told = |of: fn(&std::fs::Metadata) -> u64| metadata.as_ref().map(of);
    facts.tell(topic, "file_bytes", "length", told(|it| it.size()), "fstat");
    facts.tell(topic, "file_allocated_bytes", "allocated", told(|it| it.blocks() * 512), "fstat");
    facts.tell(topic, "file_extents", "extents", count_extents(file), "FS_IOC_FIEMAP");
    let flags = ioctl_getflags(file);
    let has = |flag: IFlags| flags.as_ref().map(|flags| flags.contains(flag));
    facts.tell(
        topic,
        "file_has_extents",
        "mapped by extents",
        has(EXTENT),
        "FS_IOC_GETFLAGS, FS_EXTENT_FL",
    );
    facts.tell(
        topic,
        "file_is_nocow",
        "no copy on write",
        has(IFlags::NOCOW),
        "FS_IOC_GETFLAGS, FS_NOCOW_FL",
    );
    let marked = match fgetxattr(file, dioxide::MARKER_NAME, &mut [0u8; 4096][..]) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    };
    facts.tell(topic, "file_is_grown", "grown by dioxide", marked, "fgetxattr of user.dioxide");
}
