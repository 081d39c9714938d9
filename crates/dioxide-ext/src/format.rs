//! The on-disk structures of ext2 and ext3: superblock, group descriptors and inodes. Values only.
//! Parsing fails with the reason if a number is beyond the bounds of the volume. The volume checks
//! the pointers of inodes.

use crate::bytes::{set_u16, set_u32, u16_at, u32_at};
use crate::features::{Features, HAS_JOURNAL, RESIZE_INODE, SPARSE_SUPER};
use crate::indirect::{Map, ROOTS};
use std::ops::Range;
use std::time::Duration;

/// The offset of the superblock on the volume, in bytes.
pub const SUPERBLOCK_AT: u64 = 1024;
pub const SUPERBLOCK_BYTES: usize = 1024;
pub const DESCRIPTOR_BYTES: u64 = 32;
pub const ROOT_INODE: u32 = 2;

const MAGIC: u16 = 0xEF53;
const BLOCK_LOG_MAX: u32 = 6;
const INODE_BYTES_MIN: u64 = 128;
/// A descriptor counts free blocks in 16 bits, and a group has a multiple of 8 blocks.
const GROUP_BLOCKS_MAX: u64 = (1 << 16) - 8;
const STATE_VALID: u16 = 1;
const STATE_ERRORS: u16 = 2;
const OS_HURD: u32 = 1;

// Offsets of the superblock's fields that change, in bytes.
const FREE_BLOCKS: usize = 12;
const WRITTEN_TIME: usize = 48;
const STATE: usize = 58;
const RO_COMPAT: usize = 100;

/// The reason to refuse a volume or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It may be valid, but this crate does not support it.
    Unsupported(String),
    /// It is inconsistent.
    Corrupt(String),
}

fn corrupt<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Corrupt(why.into()))
}

fn unsupported<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Unsupported(why.into()))
}

/// The fields of the superblock that never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub block_bytes: u64,
    pub blocks: u64,
    pub first_data_block: u64,
    pub blocks_per_group: u64,
    pub inodes: u32,
    pub inodes_per_group: u32,
    pub inode_bytes: u64,
    first_inode: u32,
    /// The inode of an internal journal.
    pub journal: Option<u32>,
    pub reserved_blocks: u64,
    pub reserved_for: u16,
    pub revision: u32,
    pub features: Features,
    reserved_descriptor_blocks: u64,
}

impl Geometry {
    /// Parses the superblock of a volume of `volume_bytes`.
    pub fn parse(bytes: &[u8], volume_bytes: u64) -> Result<Self, Refusal> {
        let word = |at| u32_at(bytes, at);
        if u16_at(bytes, 56) != MAGIC {
            return unsupported("it is no volume of ext2 or ext3 (no superblock is there)");
        }
        let revision = word(76);
        if revision > 1 {
            return unsupported(format!("revision {revision} of the format is not known"));
        }
        if word(72) == OS_HURD {
            return unsupported("the volume was made for the Hurd");
        }
        let dynamic = revision > 0;
        let features = match dynamic {
            true => Features { compat: word(92), incompat: word(96), ro_compat: word(RO_COMPAT) },
            false => Features::default(),
        };
        features.refusal().or_else(unsupported)?;
        if word(24) > BLOCK_LOG_MAX {
            return corrupt(format!("blocks of 2^{} KiB", word(24)));
        }
        let block_bytes = 1024 << word(24);
        if word(28) != word(24) {
            return unsupported("blocks are divided into fragments");
        }
        let geometry = Self {
            block_bytes,
            blocks: word(4).into(),
            first_data_block: word(20).into(),
            blocks_per_group: word(32).into(),
            inodes: word(0),
            inodes_per_group: word(40),
            inode_bytes: if dynamic { u16_at(bytes, 88).into() } else { INODE_BYTES_MIN },
            first_inode: if dynamic { word(84) } else { 11 },
            journal: Some(word(224))
                .filter(|inode| features.compat & HAS_JOURNAL != 0 && *inode != 0),
            reserved_blocks: word(8).into(),
            reserved_for: u16_at(bytes, 80),
            revision,
            features,
            reserved_descriptor_blocks: match features.compat & RESIZE_INODE != 0 {
                true => u16_at(bytes, 206).into(),
                false => 0,
            },
        };
        geometry.check(volume_bytes)?;
        Ok(geometry)
    }

    fn check(&self, volume_bytes: u64) -> Result<(), Refusal> {
        let Self { block_bytes, blocks, first_data_block, inodes, inode_bytes, .. } = *self;
        let bits = 8 * block_bytes;
        if first_data_block != u64::from(block_bytes == 1024) || blocks <= first_data_block {
            return corrupt(format!(
                "{blocks} blocks of {block_bytes} bytes begin with block {first_data_block}"
            ));
        }
        if blocks * block_bytes > volume_bytes {
            return corrupt(format!(
                "{blocks} blocks of {block_bytes} bytes in a volume of {volume_bytes} bytes"
            ));
        }
        if !(8..=bits.min(GROUP_BLOCKS_MAX)).contains(&self.blocks_per_group)
            || !self.blocks_per_group.is_multiple_of(8)
        {
            return corrupt(format!("groups of {} blocks", self.blocks_per_group));
        }
        if !inode_bytes.is_power_of_two() || !(INODE_BYTES_MIN..=block_bytes).contains(&inode_bytes)
        {
            return corrupt(format!("inodes of {inode_bytes} bytes"));
        }
        let per_group = u64::from(self.inodes_per_group);
        if !(1..=bits).contains(&per_group) || u64::from(inodes) != per_group * self.groups() {
            return corrupt(format!(
                "{inodes} inodes, {per_group} in each of {} groups",
                self.groups()
            ));
        }
        if self.first_inode <= ROOT_INODE {
            return corrupt(format!("the first inode is {}", self.first_inode));
        }
        if self.reserved_descriptor_blocks > block_bytes / 4 {
            return corrupt(format!(
                "{} blocks kept for descriptors",
                self.reserved_descriptor_blocks
            ));
        }
        let (descriptors, first) = (self.copies(0), self.group(0));
        if descriptors.end > first.end {
            return corrupt(format!("the descriptors of {} groups in {first:?}", self.groups()));
        }
        Ok(())
    }

    pub fn groups(&self) -> u64 {
        (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group)
    }

    /// Returns the blocks of a group.
    pub fn group(&self, group: u64) -> Range<u64> {
        let start = self.first_data_block + group * self.blocks_per_group;
        start..(start + self.blocks_per_group).min(self.blocks)
    }

    /// Returns the group of a block, which is on the volume.
    pub fn group_of(&self, block: u64) -> u64 {
        (block - self.first_data_block) / self.blocks_per_group
    }

    /// Returns the number of pointers in a block.
    pub fn fanout(&self) -> u64 {
        self.block_bytes / 4
    }

    /// Returns the block of the superblock, and the offset in it, in bytes.
    pub fn superblock(&self) -> (u64, usize) {
        (SUPERBLOCK_AT / self.block_bytes, (SUPERBLOCK_AT % self.block_bytes) as usize)
    }

    /// Returns the block of a group descriptor, and the offset in it, in bytes.
    pub fn descriptor(&self, group: u64) -> (u64, usize) {
        let at = group * DESCRIPTOR_BYTES;
        (self.first_data_block + 1 + at / self.block_bytes, (at % self.block_bytes) as usize)
    }

    /// Returns the first blocks of a group, which hold copies of the superblock and of the
    /// descriptors. May be empty.
    pub fn copies(&self, group: u64) -> Range<u64> {
        let start = self.group(group).start;
        let descriptors = (self.groups() * DESCRIPTOR_BYTES).div_ceil(self.block_bytes);
        let blocks = match self.has_copies(group) {
            true => 1 + descriptors + self.reserved_descriptor_blocks,
            false => 0,
        };
        start..start + blocks
    }

    fn has_copies(&self, group: u64) -> bool {
        let is_power_of = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        let sparse = self.features.ro_compat & SPARSE_SUPER != 0;
        !sparse || group <= 1 || [3, 5, 7].into_iter().any(is_power_of)
    }

    /// Returns the number of blocks in the inode table of a group.
    pub fn inode_table_blocks(&self) -> u64 {
        (u64::from(self.inodes_per_group) * self.inode_bytes).div_ceil(self.block_bytes)
    }

    /// Returns the group of an inode, and its offset in the inode table of the group, in bytes.
    pub fn inode(&self, number: u32) -> Result<(u64, u64), Refusal> {
        if !(1..=self.inodes).contains(&number) {
            return corrupt(format!("inode {number} of {}", self.inodes));
        }
        let index = number - 1;
        let group = index / self.inodes_per_group;
        Ok((group.into(), u64::from(index % self.inodes_per_group) * self.inode_bytes))
    }

    /// Returns whether a directory may name the inode. Inodes below the first one are reserved,
    /// except the root.
    pub fn may_have_names(&self, number: u32) -> bool {
        number >= self.first_inode || number == ROOT_INODE
    }

    /// Returns the largest size that a write may give a file, in bytes: whole blocks. Pointers must
    /// reach all blocks, and the inode counts sectors of data and tables in 32 bits. The kernel has
    /// the same limit, except for revision 0.
    pub fn file_bytes_max(&self) -> u64 {
        let fanout = self.fanout();
        let mapped = Map::blocks_max(fanout);
        let counted = u64::from(u32::MAX) / self.sectors_per_block();
        // A few tables too many, because this is the number for `counted` blocks.
        let dense = counted - Map::tables_of(counted, fanout);
        let blocks = match self.revision {
            // It has no features, so it lacks `large_file`. The kernel raises the revision instead.
            0 => i32::MAX as u64 / self.block_bytes,
            _ => dense.min(mapped),
        };
        blocks * self.block_bytes
    }

    /// Returns the number of sectors in a block. Inodes count sectors of 512 bytes.
    pub fn sectors_per_block(&self) -> u64 {
        self.block_bytes / 512
    }
}

/// The bytes of the superblock, with access to the fields that change.
pub struct Superblock<'a>(pub &'a mut [u8]);

impl Superblock<'_> {
    pub fn free_blocks(&self) -> u64 {
        u32_at(self.0, FREE_BLOCKS).into()
    }

    pub fn set_free_blocks(&mut self, blocks: u64) {
        set_u32(self.0, FREE_BLOCKS, blocks as u32);
    }

    /// Fails with advice unless the volume is clean and has no known error.
    pub fn check_state(&self) -> Result<(), Refusal> {
        let state = u16_at(self.0, STATE);
        let advice = "run `e2fsck -p` on it";
        match () {
            () if state & STATE_ERRORS != 0 => {
                unsupported(format!("the volume has known errors: {advice}"))
            }
            () if state & STATE_VALID == 0 => {
                unsupported(format!("the volume was not cleanly unmounted: {advice}"))
            }
            () if u32_at(self.0, 232) != 0 => {
                unsupported(format!("the volume has files that were being deleted: {advice}"))
            }
            () => Ok(()),
        }
    }

    /// Marks the volume as clean or in use, with the time of the write.
    pub fn mark(&mut self, clean: bool, now: Duration) {
        let state = u16_at(self.0, STATE) & !STATE_VALID;
        set_u16(self.0, STATE, if clean { state | STATE_VALID } else { state });
        set_u32(self.0, WRITTEN_TIME, now.as_secs() as u32);
    }

    pub fn has_large_files(&self) -> bool {
        u32_at(self.0, RO_COMPAT) & crate::features::LARGE_FILE != 0
    }

    pub fn allow_large_files(&mut self) {
        let features = u32_at(self.0, RO_COMPAT) | crate::features::LARGE_FILE;
        set_u32(self.0, RO_COMPAT, features);
    }
}

/// A group descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub block_bitmap: u64,
    pub inode_table: Range<u64>,
    pub free_blocks: u64,
    inode_bitmap: u64,
    copies: Range<u64>,
}

const DESCRIPTOR_FREE_BLOCKS: usize = 12;

impl Descriptor {
    /// Parses the descriptor of a group.
    pub fn parse(bytes: &[u8], group: u64, geometry: &Geometry) -> Result<Self, Refusal> {
        let all = geometry.group(group);
        let start = u64::from(u32_at(bytes, 8));
        let descriptor = Self {
            block_bitmap: u32_at(bytes, 0).into(),
            inode_bitmap: u32_at(bytes, 4).into(),
            inode_table: start..start + geometry.inode_table_blocks(),
            free_blocks: u16_at(bytes, DESCRIPTOR_FREE_BLOCKS).into(),
            copies: geometry.copies(group),
        };
        let own = descriptor.own();
        let inside = own.iter().all(|part| all.start <= part.start && part.end <= all.end);
        let apart = |(index, part): (usize, &Range<u64>)| {
            own[..index].iter().all(|other| part.end <= other.start || other.end <= part.start)
        };
        if !inside
            || !own.iter().enumerate().all(apart)
            || descriptor.free_blocks > all.end - all.start
        {
            return corrupt(format!("the descriptor of group {group} cannot be: {descriptor:?}"));
        }
        Ok(descriptor)
    }

    /// Returns the metadata blocks of the group, which no file may own.
    pub fn own(&self) -> [Range<u64>; 4] {
        let one = |block: u64| block..block + 1;
        [
            self.copies.clone(),
            one(self.block_bitmap),
            one(self.inode_bitmap),
            self.inode_table.clone(),
        ]
    }

    /// Sets the number of free blocks in the bytes of a descriptor.
    pub fn set_free_blocks(bytes: &mut [u8], blocks: u64) {
        set_u16(bytes, DESCRIPTOR_FREE_BLOCKS, blocks as u16);
    }
}

/// The file type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Regular,
    Directory,
    Link,
    /// Another type, in words.
    Other(&'static str),
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub kind: Kind,
    pub size: u64,
    /// Sectors of 512 bytes, including tables and extended attributes.
    pub sectors: u32,
    pub flags: u32,
    /// A short symbolic link has its target here.
    pub pointers: [u32; ROOTS],
    /// The block of extended attributes, or 0.
    pub attributes: u32,
    links: u16,
    deleted: u32,
}

const SIZE: usize = 4;
const CHANGED_TIME: usize = 12;
const MODIFIED_TIME: usize = 16;
const SECTORS: usize = 28;
const POINTERS: usize = 40;
const SIZE_HIGH: usize = 108;
const EXTRA_BYTES: usize = 128;
const CHANGED_EXTRA: usize = 132;
const MODIFIED_EXTRA: usize = 136;

const IMMUTABLE: u32 = 0x10;
const APPEND_ONLY: u32 = 0x20;
const JOURNALED: u32 = 0x4000;
/// Flags of ext4, and of features that ext2 never got. The pointers do not lead to plain data.
const FOREIGN: &[(u32, &str)] = &[
    (0x200, "compressed"),
    (0x800, "encrypted"),
    (0x80000, "mapped by extents"),
    (0x100000, "protected by verity"),
    (0x200000, "of a large extended attribute"),
    (0x1000_0000, "kept inside of its inode (inline_data)"),
];

impl Inode {
    /// Parses an inode. `number` is for errors.
    pub fn parse(bytes: &[u8], number: u32, geometry: &Geometry) -> Result<Self, Refusal> {
        let word = |at| u32_at(bytes, at);
        let kind = match u16_at(bytes, 0) & 0xF000 {
            0x8000 => Kind::Regular,
            0x4000 => Kind::Directory,
            0xA000 => Kind::Link,
            0xC000 => Kind::Other("a socket"),
            0x6000 => Kind::Other("a block device"),
            0x2000 => Kind::Other("a character device"),
            0x1000 => Kind::Other("a fifo"),
            _ => return corrupt(format!("inode {number} is of no known kind")),
        };
        let high = if kind == Kind::Regular && geometry.revision > 0 { word(SIZE_HIGH) } else { 0 };
        let mut pointers = [0; ROOTS];
        for (n, pointer) in pointers.iter_mut().enumerate() {
            *pointer = word(POINTERS + 4 * n);
        }
        let inode = Self {
            kind,
            size: u64::from(high) << 32 | u64::from(word(SIZE)),
            sectors: word(SECTORS),
            flags: word(32),
            pointers,
            attributes: word(104),
            links: u16_at(bytes, 26),
            deleted: word(20),
        };
        if inode.links == 0 || inode.deleted != 0 {
            return corrupt(format!("inode {number} has a name, but was deleted"));
        }
        if inode.size > Map::blocks_max(geometry.fanout()) * geometry.block_bytes {
            return corrupt(format!(
                "inode {number} has {} bytes, more than a file can have",
                inode.size
            ));
        }
        Ok(inode)
    }

    /// Fails if the file is not readable as plain blocks; with `write`, also if not writable.
    pub fn refusal(&self, write: bool) -> Result<(), Refusal> {
        if let Some((_, name)) = FOREIGN.iter().find(|(flag, _)| self.flags & flag != 0) {
            return unsupported(format!("the file is {name}"));
        }
        let kept = [
            (IMMUTABLE, "immutable (`chattr -i` lifts that)"),
            (APPEND_ONLY, "append-only (`chattr -a` lifts that)"),
            (JOURNALED, "written by way of the journal (`chattr -j` lifts that)"),
        ];
        match kept.iter().find(|(flag, _)| write && self.flags & flag != 0) {
            Some((_, name)) => unsupported(format!("the file is {name}")),
            None => Ok(()),
        }
    }

    /// Returns the target of a symbolic link if the inode itself holds it.
    pub fn short_target(&self, geometry: &Geometry) -> Option<Vec<u8>> {
        let attributes = if self.attributes == 0 { 0 } else { geometry.sectors_per_block() };
        let short = self.kind == Kind::Link && u64::from(self.sectors) == attributes;
        let bytes: Vec<_> = self.pointers.iter().flat_map(|word| word.to_le_bytes()).collect();
        let size = usize::try_from(self.size).ok().filter(|size| *size < bytes.len());
        size.filter(|_| short).map(|size| bytes[..size].to_vec())
    }

    /// Stores size, sectors and pointers in the bytes of the inode, and `now` as ctime and mtime.
    pub fn store(&self, bytes: &mut [u8], now: Duration) {
        set_u32(bytes, SIZE, self.size as u32);
        if self.size >> 32 != 0 || u32_at(bytes, SIZE_HIGH) != 0 {
            set_u32(bytes, SIZE_HIGH, (self.size >> 32) as u32);
        }
        set_u32(bytes, SECTORS, self.sectors);
        for (n, pointer) in self.pointers.iter().enumerate() {
            set_u32(bytes, POINTERS + 4 * n, *pointer);
        }
        for at in [CHANGED_TIME, MODIFIED_TIME] {
            set_u32(bytes, at, now.as_secs() as u32);
        }
        // Nanoseconds, and the bits of the seconds beyond 32, if the inode has the extra fields.
        let extra = now.subsec_nanos() << 2 | ((now.as_secs() + (1 << 31)) >> 32) as u32 & 3;
        for at in [CHANGED_EXTRA, MODIFIED_EXTRA] {
            if bytes.len() > EXTRA_BYTES
                && EXTRA_BYTES + usize::from(u16_at(bytes, EXTRA_BYTES)) >= at + 4
            {
                set_u32(bytes, at, extra);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IMAGE_BYTES: u64 = 32 << 20;

    /// Makes the superblock of a volume of `blocks` blocks of 1 KiB, in groups of 8192.
    fn superblock(blocks: u32) -> Vec<u8> {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let groups = (blocks - 1).div_ceil(8192);
        for (at, value) in
            [(0, groups * 64), (4, blocks), (20, 1), (32, 8192), (40, 64), (76, 1), (84, 11)]
        {
            set_u32(&mut bytes, at, value);
        }
        set_u32(&mut bytes, RO_COMPAT, SPARSE_SUPER);
        set_u16(&mut bytes, 56, MAGIC);
        set_u16(&mut bytes, STATE, STATE_VALID);
        set_u16(&mut bytes, 88, 128);
        bytes
    }

    fn geometry(blocks: u32) -> Geometry {
        Geometry::parse(&superblock(blocks), IMAGE_BYTES).unwrap()
    }

    #[test]
    fn groups_cover_the_volume() {
        let geometry = geometry(20_000);
        assert_eq!(geometry.groups(), 3);
        assert_eq!(geometry.group(2), 16_385..20_000);
        assert_eq!((geometry.group_of(8192), geometry.group_of(8193)), (0, 1));
        assert_eq!(geometry.inode(1), Ok((0, 0)));
        assert_eq!(geometry.inode(66), Ok((1, 128)));
        assert!(geometry.inode(0).is_err() && geometry.inode(193).is_err());
        assert_eq!(geometry.descriptor(2), (2, 64));
    }

    /// With blocks of 32 KiB and more, the limit was 0: an inode cannot count the sectors of all
    /// tables.
    #[test]
    fn every_block_size_has_a_largest_file() {
        // The blocks by `ext2_max_size` of the kernel.
        let blocks = [
            16_843_020,
            134_480_396,
            536_346_110,
            268_304_318,
            134_184_950,
            67_100_670,
            33_552_382,
        ];
        let geometry = geometry(20_000);
        for (log, blocks) in blocks.into_iter().enumerate() {
            let geometry = Geometry { block_bytes: 1024 << log, ..geometry.clone() };
            assert_eq!(geometry.file_bytes_max(), blocks * geometry.block_bytes);
            let tables = Map::tables_of(blocks, geometry.fanout());
            let sectors = (blocks + tables) * geometry.sectors_per_block();
            assert!(sectors <= u32::MAX.into(), "{sectors} sectors, {} KiB", 1 << log);
        }
    }

    /// A write of a part of the last block was refused, as its block ends at 2 GiB.
    #[test]
    fn on_revision_0_the_largest_file_is_of_whole_blocks() {
        let mut bytes = superblock(20_000);
        set_u32(&mut bytes, 76, 0);
        set_u32(&mut bytes, RO_COMPAT, 0);
        let geometry = Geometry::parse(&bytes, IMAGE_BYTES).unwrap();
        assert_eq!(geometry.file_bytes_max(), (2 << 30) - 1024);
    }

    #[test]
    fn copies_of_the_superblock_are_where_mke2fs_puts_them() {
        let geometry = Geometry { blocks_per_group: 8, blocks: 8 * 400, ..geometry(20_000) };
        let with: Vec<_> = (0..400).filter(|group| geometry.has_copies(*group)).collect();
        assert_eq!(with, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]);
        let everywhere = Geometry { features: Features::default(), ..geometry };
        assert!((0..400).all(|group| everywhere.has_copies(group)));
    }

    #[test]
    fn a_volume_that_ends_before_its_last_block_is_refused() {
        let bytes = superblock(20_000);
        assert!(Geometry::parse(&bytes, 20_000 * 1024).is_ok());
        assert!(matches!(Geometry::parse(&bytes, 20_000 * 1024 - 1), Err(Refusal::Corrupt(_))));
    }

    #[test]
    fn only_what_was_put_away_is_used() {
        let mut bytes = superblock(20_000);
        let mut superblock = Superblock(&mut bytes);
        superblock.check_state().unwrap();
        superblock.mark(false, Duration::ZERO);
        assert!(superblock.check_state().is_err());
        superblock.mark(true, Duration::ZERO);
        superblock.check_state().unwrap();
        set_u16(superblock.0, STATE, STATE_VALID | STATE_ERRORS);
        assert!(superblock.check_state().is_err());
    }

    #[test]
    fn a_group_whose_parts_overlap_is_refused() {
        let geometry = geometry(20_000);
        let parsed = |bitmap: u32, inodes: u32, table: u32| {
            let mut bytes = [0; 32];
            [bitmap, inodes, table]
                .iter()
                .enumerate()
                .for_each(|(n, block)| set_u32(&mut bytes, 4 * n, *block));
            Descriptor::parse(&bytes, 0, &geometry)
        };
        assert!(parsed(3, 4, 5).is_ok());
        for (bitmap, inodes, table) in
            [(3, 3, 5), (2, 4, 5), (3, 5, 5), (3, 4, 8190), (3, 4, 8193), (0, 4, 5)]
        {
            assert!(parsed(bitmap, inodes, table).is_err(), "{bitmap} {inodes} {table}");
        }
    }

    #[test]
    fn times_beyond_2038_are_kept_where_there_is_room() {
        let mut bytes = vec![0; 256];
        for (at, value) in [(0, 0x8000), (26, 1), (EXTRA_BYTES, 32)] {
            set_u16(&mut bytes, at, value);
        }
        let inode = Inode::parse(&bytes, 12, &geometry(20_000)).unwrap();
        inode.store(&mut bytes, Duration::new((1 << 32) - 1, 5));
        assert_eq!(u32_at(&bytes, MODIFIED_TIME), u32::MAX);
        assert_eq!(u32_at(&bytes, MODIFIED_EXTRA), 5 << 2 | 1, "read as -1, it is one epoch less");
        inode.store(&mut bytes[..128], Duration::new(7, 5));
        assert_eq!(u32_at(&bytes, CHANGED_TIME), 7);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(
            changes in proptest::collection::vec((0usize..64, any::<u32>(), 0u32..32), 0..4),
            inode in proptest::collection::vec(any::<u8>(), 128), number: u32, group in 0u64..3
        ) {
            let mut bytes = superblock(20_000);
            for (word, value, shift) in changes {
                set_u32(&mut bytes, 4 * word, value >> shift);
            }
            if let Ok(geometry) = Geometry::parse(&bytes, IMAGE_BYTES) {
                prop_assert!(geometry.group(geometry.groups() - 1).end == geometry.blocks);
                if let Ok((group, at)) =
                    geometry.inode(number % geometry.inodes.saturating_add(2))
                {
                    prop_assert!(group < geometry.groups());
                    prop_assert!(at / geometry.block_bytes < geometry.inode_table_blocks());
                }
                let group = group % geometry.groups();
                let _ = Descriptor::parse(&inode, group, &geometry);
                if let Ok(inode) = Inode::parse(&inode, number, &geometry) {
                    let _ = (inode.refusal(true), inode.short_target(&geometry));
                }
                prop_assert!(geometry.file_bytes_max() > 0);
            }
        }
    }
}
