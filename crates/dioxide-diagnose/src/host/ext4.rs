//! Features of a mounted ext4.

use super::mount::Mount;
use rustix::fs::{FileType, major, minor, stat};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// EXT4_FEATURE_COMPAT_FAST_COMMIT.
const COMPAT_FAST_COMMIT: u32 = 0x400;

/// The consequence of fast commits for a program that syncs.
pub const FAST_COMMIT_WARNING: &str = "This ext4 makes fast commits: fdatasync may return before \
    its data is safe from a power cut. `tune2fs -O ^fast_commit` turns them off on an unmounted \
    file system.";

/// Whether the journal makes fast commits, and the source. It is a feature of the superblock, which
/// only root can read. Some kernels list it among the options.
pub fn fast_commit<'a>(
    mount: &Mount,
    mut options: impl Iterator<Item = &'a str>,
) -> (io::Result<bool>, &'static str) {
    if options.any(|option| option == "fc_debug_force") {
        return (Ok(true), "/proc/fs/ext4, fc_debug_force");
    }
    let is_on = compat_features(mount).map(|features| features & COMPAT_FAST_COMMIT != 0);
    (is_on, "the superblock")
}

/// The compatible features of a mounted ext4.
fn compat_features(mount: &Mount) -> io::Result<u32> {
    let number = block_device(mount).ok_or(io::ErrorKind::NotFound)?;
    let device = File::open(format!("/dev/block/{}:{}", major(number), minor(number)))
        .or_else(|_| File::open(&mount.source))?;
    let mut superblock = [0; 96];
    device.read_exact_at(&mut superblock, 1024)?;
    parse(&superblock)
}

fn parse(superblock: &[u8; 96]) -> io::Result<u32> {
    if superblock[56..58] != [0x53, 0xef] {
        return Err(io::Error::other("the device has no superblock of ext4"));
    }
    Ok(u32::from_le_bytes(superblock[92..].try_into().expect("four bytes")))
}

/// The device number of a mount. File systems with a number that no device has (btrfs) use that of
/// the mounted device.
pub fn block_device(mount: &Mount) -> Option<u64> {
    let number = (major(mount.device), minor(mount.device));
    if Path::new(&format!("/sys/dev/block/{}:{}", number.0, number.1)).exists() {
        return Some(mount.device);
    }
    let source = stat(&*mount.source).ok()?;
    FileType::from_raw_mode(source.st_mode).is_block_device().then_some(source.st_rdev)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_a_superblock() {
        let mut superblock = [0; 96];
        assert!(parse(&superblock).is_err());
        superblock[56..58].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(parse(&superblock).unwrap() & COMPAT_FAST_COMMIT, 0);
        superblock[92..].copy_from_slice(&0x43c_u32.to_le_bytes());
        assert_ne!(parse(&superblock).unwrap() & COMPAT_FAST_COMMIT, 0);
    }
}
