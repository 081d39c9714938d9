//! The program's options for a file: durability, growth and the last block. Plain values.

/// When the bytes of a write are on stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// After the next [`File::sync_data`](crate::File::sync_data) that begins after the write
    /// returned.
    #[default]
    OnSync,
    /// Before the write itself returns, as with O_DSYNC. The engine uses `RWF_DSYNC` on the
    /// request, or one flush shared by several writes.
    EveryWrite,
}

/// How space ahead of the end of a file is prepared, so that appends do not wait for it.
///
/// On ext4, XFS and btrfs a write that moves EOF is serialized against every other write of that
/// file. A write into space prepared ahead is not (except to a btrfs file with checksums).
///
/// If a kind of growth is not possible, the file does not grow ahead; no other kind replaces it.
/// A warning (crate `log`) has the reason: see [`File::growth`](crate::File::growth).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Growth {
    /// Allocated but not written (`fallocate`). After a crash the file system itself knows the
    /// written blocks, so recovery finds the end without help. On XFS, on ext4 with extents and a
    /// journal, and on btrfs; not on a mount without barriers.
    #[default]
    Unwritten,
    /// Allocated and filled with zeros. A durable write then needs no journal commit: into zeroed
    /// space it has about twice the rate of [`Growth::Unwritten`]. The zeros are a second write of
    /// every byte, in the background, to the same device. Appends may wait for it, and many writers
    /// gain less.
    ///
    /// After a crash the file system does not know the end.
    /// [`File::recovery`](crate::File::recovery) reports a range. The caller knows its records, and
    /// truncates with [`File::set_len`](crate::File::set_len). On XFS, on ext4 and ext3 of any
    /// form, and on btrfs files with `chattr +C`; not on a mount without barriers.
    Zeroed,
    /// No growth: every append moves EOF in the kernel.
    None,
}

/// How appends treat a partial last block, since direct I/O writes whole blocks
/// ([`Alignment::append`](crate::Alignment::append)). On disk, zeros follow the last append in its
/// block either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tail {
    /// The next append rewrites the block with more content: records are contiguous, byte to byte.
    ///
    /// The rewrite starts when the write before it has finished. It is alone, and holds the bytes
    /// of earlier records as they are on disk. So a crash during the rewrite keeps earlier records:
    /// each sector has their bytes before and after, in any order of sectors. Only a device that
    /// loses a sector on a power failure during its write can harm them. Devices with atomic
    /// sector writes do not; that should be every device that reports a logical block size.
    #[default]
    Rewrite,
    /// The next append begins at the next block: a block that holds an acknowledged record is never
    /// rewritten, at the price of space. Concurrent appends still share blocks. The zeros between
    /// are part of the file.
    ///
    /// One exception is a block of a [recycled](crate::File::recycle) file that a positional write
    /// began. It ends with old content, and the next append rewrites it.
    Pad,
}

/// The default of [`OpenOptions::growth_cap`](crate::OpenOptions::growth_cap), the largest step of
/// growth: 64 MiB. Where the journal does not order a step, it ends with a sync. On many devices
/// that delays writes for as long as it takes to store everything written since the last one.
pub const GROWTH_CAP_DEFAULT_BYTES: u64 = 64 << 20;
