//! The choices of the program about a file: durability, growth and the last block. Plain values.

/// When the bytes of a write are on stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// After the next [`File::sync_data`](crate::File::sync_data) that begins after the write
    /// returned.
    #[default]
    OnSync,
    /// Before the write itself returns, as with O_DSYNC. The engine picks `RWF_DSYNC` on the
    /// request or one flush shared by several writes.
    EveryWrite,
}

/// How the space ahead of the end of a file is prepared, so that an append finds it ready.
///
/// On ext4, XFS and btrfs a write that moves the end of file is serialised against every other
/// write of that file; a write into space prepared ahead is not (except to a btrfs file with
/// checksums).
///
/// Where a kind of growth is not possible, nothing is prepared ahead, never space of another kind,
/// and the log says why: see [`File::growth`](crate::File::growth).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Growth {
    /// Allocated but not written (`fallocate`). After a crash the file system itself tells which
    /// blocks were written, so recovery finds the end without help. On XFS, on ext4 with extents
    /// and a journal, and on btrfs; not where mounted without barriers.
    #[default]
    Unwritten,
    /// Allocated and filled with zeros. A durable write then needs no journal commit: in space that
    /// is zeroed already, about twice the rate of [`Growth::Unwritten`]. The zeros are a second
    /// write of every byte, in the background, to the same device: appends may wait for it, and
    /// with many writers the gain is less. After a crash the end is not known to the file system:
    /// [`File::recovery`](crate::File::recovery) reports a range and the caller, who knows its
    /// records, cuts with [`File::set_len`](crate::File::set_len). On XFS, on ext4 and ext3 of any
    /// form, and on btrfs files with `chattr +C`; not where mounted without barriers.
    Zeroed,
    /// Nothing is prepared: every append moves the end of file in the kernel.
    None,
}

/// What becomes of the last block of a file when appends end inside it, since direct I/O writes
/// whole blocks ([`Alignment::append`](crate::Alignment::append)). What it holds behind the last
/// append is zeros, on disk, either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tail {
    /// The next append writes it again, with more in it: records stand side by side, byte to byte.
    ///
    /// It goes out when the write before it has finished, alone, and holds the bytes of earlier
    /// records as they are on disk. So a crash in the middle of it, sector by sector in any order,
    /// leaves those as they are: each sector has them before and after. Only a device that loses a
    /// sector when the power fails while it writes that one can harm them; those that promise to
    /// write sectors whole (all that name a logical block size should) do not.
    #[default]
    Rewrite,
    /// The next append begins at the next block: no block that holds an acknowledged record is ever
    /// written again, at the price of space. Appends that go out together still share blocks. The
    /// zeros between are part of the file. (Where a block of a [recycled](crate::File::recycle)
    /// file was begun by a positional write, and so ends with old content, the next append does
    /// write it again.)
    Pad,
}

/// The largest step by which a file grows ahead unless
/// [`OpenOptions::growth_cap`](crate::OpenOptions::growth_cap) says otherwise: 64 MiB. A step ends
/// with a sync, which on many devices holds up writes for as long as it takes to store what was
/// written since the last.
pub const GROWTH_CAP_DEFAULT_BYTES: u64 = 64 << 20;
