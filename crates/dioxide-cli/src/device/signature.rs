//! Recognises the content of a device by the magic numbers of file systems, volume managers and
//! partition tables. Only reads. When in doubt it refuses.

use std::io;
use std::os::unix::fs::FileExt;

/// Bytes at a fixed offset of a device.
struct Magic {
    name: &'static str,
    offset: u64,
    bytes: &'static [u8],
}

const fn magic(name: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, offset, bytes }
}

const MAGICS: &[Magic] = &[
    magic("a member of a striped volume of dioxide", 0, b"dioxide stripe"),
    magic("a log of dioxide", 0, b"DIOXLOG\0"),
    magic("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    magic("an XFS file system", 0, b"XFSB"),
    magic("a btrfs file system", 0x10040, b"_BHRfS_M"),
    magic("an F2FS file system", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    magic("a bcachefs file system or bcache", 0x1018, &[0xc6, 0x85, 0x73, 0xf6]),
    magic("an EROFS file system", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    magic("a SquashFS file system", 0, b"hsqs"),
    magic("a JFS file system", 0x8000, b"JFS1"),
    magic("a ReiserFS file system", 0x10034, b"ReIsEr"),
    magic("a Reiser4 file system", 0x10000, b"ReIsEr4"),
    magic("an ISO 9660 file system", 0x8001, b"CD001"),
    magic("a UDF file system", 0x8001, b"BEA01"),
    magic("a NILFS2 file system", 0x406, &[0x34, 0x34]),
    magic("an HFS+ file system", 0x400, b"H+"),
    magic("an HFSX file system", 0x400, b"HX"),
    magic("an APFS container", 32, b"NXSB"),
    magic("an OCFS2 file system", 4096, b"OCFSV2"),
    magic("a GFS2 file system", 65536, &[0x01, 0x16, 0x19, 0x70]),
    magic("a Ceph BlueStore device", 0, b"bluestore block device"),
    magic("an Oracle ASM disk", 32, b"ORCLDISK"),
    magic("a VDO volume", 0, b"dmvdo001"),
    magic("a Stratis pool", 512, b"!Stra0tis"),
    magic("a LUKS container", 0, b"LUKS\xba\xbe"),
    // Its second header.
    magic("a LUKS container", 0x4000, b"SKUL\xba\xbe"),
    magic("an LVM physical volume", 0, b"LABELONE"),
    magic("an LVM physical volume", 512, b"LABELONE"),
    magic("an LVM physical volume", 1024, b"LABELONE"),
    magic("an LVM physical volume", 1536, b"LABELONE"),
    magic("swap space", 4086, b"SWAPSPACE2"),
    magic("swap space", 4086, b"SWAP-SPACE"),
    magic("swap space", 65526, b"SWAPSPACE2"),
    magic("a software RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    magic("a software RAID member", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    magic("a GPT partition table", 512, b"EFI PART"),
    magic("a GPT partition table", 4096, b"EFI PART"),
    // Also of FAT, exFAT and NTFS.
    magic("a partition table or boot sector", 510, &[0x55, 0xaa]),
];

/// At distances from the end of the device: they survive when its beginning is wiped.
const MAGICS_FROM_END: &[Magic] = &[
    magic("the backup of a GPT partition table", 512, b"EFI PART"),
    magic("the backup of a GPT partition table", 4096, b"EFI PART"),
    RAID_1_0,
    RAID_0_90,
];

/// Its superblock begins at a multiple of 4 KiB.
const RAID_1_0: Magic = magic("a software RAID member", 8192, &[0xfc, 0x4e, 0x2b, 0xa9]);
/// Its superblock begins at a multiple of 64 KiB.
const RAID_0_90: Magic = magic("a software RAID member", 65536, &[0xfc, 0x4e, 0x2b, 0xa9]);

/// ZFS keeps an array of uberblocks in the upper half of each label of 256 KiB.
const ZFS_UBERBLOCKS: std::ops::Range<u64> = 128 << 10..256 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// The content of a device of `size` bytes, in words. None if it is not recognised.
pub fn find(device: &impl FileExt, size: u64) -> io::Result<Option<&'static str>> {
    for magic in MAGICS {
        if matches(device, size, magic.offset, magic.bytes)? {
            return Ok(Some(magic.name));
        }
    }
    for magic in MAGICS_FROM_END {
        let Some(offset) = size.checked_sub(magic.offset) else { continue };
        // As md rounds: 0.90 before it subtracts, 1.0 after.
        for offset in [offset, offset & !0xfff, offset & !0xffff] {
            if matches(device, size, offset, magic.bytes)? {
                return Ok(Some(magic.name));
            }
        }
    }
    if has_zfs_label(device, size)? {
        return Ok(Some("a ZFS pool"));
    }
    Ok(None)
}

fn matches(device: &impl FileExt, size: u64, offset: u64, bytes: &[u8]) -> io::Result<bool> {
    if offset + bytes.len() as u64 > size {
        return Ok(false);
    }
    let mut found = vec![0; bytes.len()];
    device.read_exact_at(&mut found, offset)?;
    Ok(found == bytes)
}

fn has_zfs_label(device: &impl FileExt, size: u64) -> io::Result<bool> {
    for offset in ZFS_UBERBLOCKS.step_by(1024) {
        let [little, big] = [ZFS_MAGIC.to_le_bytes(), ZFS_MAGIC.to_be_bytes()];
        if matches(device, size, offset, &little)? || matches(device, size, offset, &big)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const SIZE: u64 = 1 << 20;

    fn disk() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        file
    }

    #[test]
    fn an_empty_disk_holds_nothing() {
        assert_eq!(find(&disk(), SIZE).unwrap(), None);
    }

    #[test]
    fn every_magic_is_found() {
        for magic in MAGICS {
            let disk = disk();
            disk.write_all_at(magic.bytes, magic.offset).unwrap();
            assert!(find(&disk, SIZE).unwrap().is_some(), "{}", magic.name);
        }
        for magic in MAGICS_FROM_END {
            let disk = disk();
            disk.write_all_at(magic.bytes, SIZE - magic.offset).unwrap();
            assert_eq!(find(&disk, SIZE).unwrap(), Some(magic.name));
        }
    }

    /// A disk of 500 GB is no multiple of 64 KiB.
    #[test]
    fn raid_members_of_odd_sizes_were_not_found() {
        let size = SIZE + 0xb000 + 512;
        for (magic, offset) in
            [(RAID_0_90, (size & !0xffff) - 0x1_0000), (RAID_1_0, (size - 8192) & !0xfff)]
        {
            let disk = disk();
            disk.set_len(size).unwrap();
            disk.write_all_at(magic.bytes, offset).unwrap();
            assert_eq!(find(&disk, size).unwrap(), Some(magic.name), "{offset}");
        }
    }

    /// The defect: a device with one of these was overwritten.
    #[test]
    fn less_known_file_systems_were_not_found() {
        for (name, offset, bytes) in [
            ("a NILFS2 file system", 1024 + 6, &b"\x34\x34"[..]),
            ("an HFS+ file system", 1024, b"H+"),
            ("an HFSX file system", 1024, b"HX"),
            ("an APFS container", 32, b"NXSB"),
            ("a UDF file system", (32 << 10) + 1, b"BEA01"),
            ("a Reiser4 file system", 64 << 10, b"ReIsEr4"),
            ("a LUKS container", 16 << 10, b"SKUL\xba\xbe"),
        ] {
            let disk = disk();
            disk.write_all_at(bytes, offset).unwrap();
            assert_eq!(find(&disk, SIZE).unwrap(), Some(name));
        }
    }

    #[test]
    fn well_known_places() {
        for (name, offset, bytes) in [
            ("an ext2, ext3 or ext4 file system", 1080, &b"\x53\xef"[..]),
            ("a btrfs file system", 65600, b"_BHRfS_M"),
            ("swap space", 4086, b"SWAPSPACE2"),
            ("a ZFS pool", (128 << 10) + 4096, b"\x0c\xb1\xba\0\0\0\0\0"),
        ] {
            let disk = disk();
            disk.write_all_at(bytes, offset).unwrap();
            assert_eq!(find(&disk, SIZE).unwrap(), Some(name));
        }
    }

    #[test]
    fn a_tiny_disk_is_no_trouble() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(512).unwrap();
        assert_eq!(find(&file, 512).unwrap(), None);
        assert_eq!(find(&tempfile::tempfile().unwrap(), 0).unwrap(), None);
    }

    #[test]
    fn the_stamps_of_an_earlier_bench_are_no_signature() {
        use crate::bench::stamp::{Stamp, fill_as_job};
        let disk = disk();
        let mut block = vec![0; 65536];
        fill_as_job(0, &mut block);
        Stamp { job: 0, sequence: 1 }.put(5, &mut block);
        disk.write_all_at(&block, 0).unwrap();
        assert_eq!(find(&disk, SIZE).unwrap(), None);
    }
}
