//! The transfers that the kernel is known to accept, by their alignment. The engine serves these,
//! and the kernel decides about all others: it may accept more, and only it knows the errno.
//!
//! The alignment of the engine is that of whole blocks, for which STATX_DIOALIGN is the least. For
//! a file that shares extents XFS states its blocks there, because it copies them, and the sectors
//! of the device as alignment of reads. It accepts writes of sectors too. Where direct I/O is not
//! possible, btrfs and tmpfs write into the page cache, and so accept everything.

use libc::iovec;
use rustix::fs::{AtFlags, StatxFlags};
use std::os::fd::AsFd;
use std::slice;

/// From linux/stat.h. rustix has no name for it yet.
const STATX_DIO_READ_ALIGN: u32 = 0x2_0000;

/// The alignment from which the kernel accepts a transfer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Of the offset, and of the length of each segment. Not of their sum alone: kernels before
    /// 6.18 look at each.
    unit: u64,
    /// Of the addresses.
    memory: u64,
    /// Below these the engine copies: it writes the rest of a block too.
    block: u64,
    block_memory: u64,
}

impl Accepted {
    /// For a file of the engine.
    pub fn of(file: &dioxide::File, is_device: bool) -> Self {
        let alignment = file.alignment();
        // The nodes of devices are on a tmpfs.
        let file_system = rustix::fs::fstatfs(file).ok().filter(|_| !is_device);
        let read_unit = read_alignment(file).filter(|_| !is_device);
        let kind = file_system.map(|found| found.f_type);
        Self::on(kind, read_unit, alignment.offset, alignment.memory)
    }

    /// On a file system of this type. `read_unit` is the alignment of reads, if it is another one
    /// than `block`.
    fn on(kind: Option<libc::c_long>, read_unit: Option<u64>, block: u64, memory: u64) -> Self {
        let (unit, at) = match kind {
            Some(libc::BTRFS_SUPER_MAGIC | libc::TMPFS_MAGIC) => (1, 1),
            Some(libc::XFS_SUPER_MAGIC) => (read_unit.unwrap_or(block), memory),
            _ => (block, memory),
        };
        Self { unit, memory: at, block, block_memory: memory }
    }

    /// Whether the kernel is known to accept the transfer.
    pub fn includes(self, pieces: &[iovec], offset: u64) -> bool {
        are_aligned(pieces, offset, self.unit, self.memory)
    }

    /// Whether the engine passes a transfer that is [included](Self::includes) to the kernel as it
    /// is, and copies nothing.
    pub fn is_whole(self, piece: &iovec, offset: u64) -> bool {
        are_aligned(slice::from_ref(piece), offset, self.block, self.block_memory)
    }

    /// Whether the engine serves writes of parts of blocks. It then writes the rest of the block
    /// too, as it was.
    pub fn has_parts(self) -> bool {
        self.unit < self.block
    }
}

fn are_aligned(pieces: &[iovec], offset: u64, unit: u64, memory: u64) -> bool {
    let fits = |piece: &iovec| {
        (piece.iov_len as u64).is_multiple_of(unit)
            && (piece.iov_base as u64).is_multiple_of(memory)
    };
    offset.is_multiple_of(unit) && pieces.iter().all(fits)
}

/// The alignment of offsets of reads, if it is another one than that of writes.
fn read_alignment(file: impl AsFd) -> Option<u64> {
    let wanted = StatxFlags::from_bits_retain(STATX_DIO_READ_ALIGN);
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
    let is_known = stat.stx_mask & STATX_DIO_READ_ALIGN != 0 && stat.stx_dio_read_offset_align > 0;
    is_known.then_some(stat.stx_dio_read_offset_align.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: usize, iov_len: usize) -> iovec {
        iovec { iov_base: address as *mut libc::c_void, iov_len }
    }

    #[test]
    fn whole_blocks_are_accepted_everywhere_and_parts_by_some() {
        let part = [piece(4096, 512)];
        for (kind, read_unit, accepts_parts) in [
            (libc::EXT4_SUPER_MAGIC, None, false),
            (libc::EXT4_SUPER_MAGIC, Some(512), false),
            (libc::XFS_SUPER_MAGIC, None, false),
            (libc::XFS_SUPER_MAGIC, Some(512), true),
            (libc::BTRFS_SUPER_MAGIC, None, true),
            (libc::TMPFS_MAGIC, None, true),
        ] {
            let accepted = Accepted::on(Some(kind), read_unit, 4096, 512);
            assert!(accepted.includes(&[piece(512, 4096)], 4096), "{kind:#x}");
            assert_eq!(accepted.includes(&part, 4096), accepts_parts, "{kind:#x} {read_unit:?}");
            assert_eq!(accepted.has_parts(), accepts_parts, "{kind:#x} {read_unit:?}");
            assert!(accepted.is_whole(&piece(512, 4096), 4096), "{kind:#x}");
            for (part, offset) in [(piece(512, 512), 0), (piece(512, 4096), 512)] {
                assert!(!accepted.is_whole(&part, offset), "{kind:#x} {offset}");
            }
            assert!(!accepted.is_whole(&piece(256, 4096), 0), "{kind:#x}");
        }
        let device = Accepted::on(None, None, 512, 512);
        assert!(device.includes(&part, 512) && !device.has_parts());
    }

    #[test]
    fn each_piece_must_be_aligned() {
        let accepted = Accepted::on(Some(libc::EXT4_SUPER_MAGIC), None, 512, 4);
        let nothing = piece(0, 0);
        assert!(accepted.includes(&[piece(4, 512), nothing, piece(8, 1024)], 512));
        for (pieces, offset) in [
            ([piece(4, 512), nothing], 100),
            ([piece(4, 256), piece(4, 256)], 512),
            ([piece(4, 512), piece(2, 512)], 512),
        ] {
            assert!(!accepted.includes(&pieces, offset), "{pieces:?} at {offset}");
        }
        let anything = Accepted::on(Some(libc::BTRFS_SUPER_MAGIC), None, 4096, 4096);
        assert!(anything.includes(&[piece(1, 1)], 7));
    }
}
