//! One state of a simulated file system: names, sizes, markers, and blocks with their content.

use crate::backend::{EXTENTS_PER_LOOK, Places};
use crate::rules::committed::MappedExtent;
use crate::rules::recovery::Extent;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// The block size of the simulated file system, in bytes.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The sector size in bytes. The device writes sectors atomically.
pub(crate) const SECTOR_BYTES: usize = 512;

pub(super) type Page = Arc<[u8; BLOCK_BYTES as usize]>;

/// An allocated block. A block that is freed and allocated again has another `life`.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub life: u64,
    /// None while unwritten: the block reads as zeros.
    pub page: Option<Page>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub size: u64,
    pub marker: Option<Vec<u8>>,
    pub blocks: BTreeMap<u64, Block>,
}

/// The state of a file system.
#[derive(Clone, Debug, Default)]
pub(super) struct FsImage {
    pub names: BTreeMap<String, u64>,
    pub inodes: BTreeMap<u64, Inode>,
}

/// A journal entry. Entries apply in order, each whole or not at all.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Create {
        name: String,
        inode: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
    Size {
        inode: u64,
        size: u64,
    },
    /// Allocates the blocks of the range that are not allocated.
    Allocate {
        inode: u64,
        first: u64,
        end: u64,
        life: u64,
    },
    Truncate {
        inode: u64,
        len: u64,
    },
    Marker {
        inode: u64,
        marker: Option<Vec<u8>>,
    },
    /// Sets the times.
    Touch {
        inode: u64,
    },
}

impl Change {
    /// Returns whether fdatasync must commit it, because data could not be found without it.
    pub fn finds_data(&self) -> bool {
        !matches!(self, Self::Marker { .. } | Self::Touch { .. })
    }

    /// Returns whether a sync of the file commits it. Each sync commits changes of names.
    pub fn is_of(&self, of: u64) -> bool {
        match self {
            Self::Create { inode, .. }
            | Self::Size { inode, .. }
            | Self::Allocate { inode, .. }
            | Self::Truncate { inode, .. }
            | Self::Marker { inode, .. }
            | Self::Touch { inode } => *inode == of,
            Self::Rename { .. } | Self::Remove { .. } => true,
        }
    }
}

impl FsImage {
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Create { name, inode } => {
                self.names.insert(name.clone(), *inode);
                self.inodes.entry(*inode).or_default();
            }
            Change::Rename { from, to } => {
                if let Some(inode) = self.names.remove(from) {
                    self.names.insert(to.clone(), inode);
                }
            }
            Change::Remove { name } => {
                self.names.remove(name);
            }
            Change::Size { inode, size } => self.inode(*inode).size = *size,
            Change::Allocate { inode, first, end, life } => {
                let inode = self.inode(*inode);
                for number in *first..*end {
                    inode.blocks.entry(number).or_insert(Block { life: *life, page: None });
                }
            }
            Change::Truncate { inode, len } => self.inode(*inode).truncate(*len),
            Change::Marker { inode, marker } => self.inode(*inode).marker.clone_from(marker),
            Change::Touch { .. } => {}
        }
    }

    pub fn inode(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("an inode is created before it is used")
    }

    /// Counts the blocks of files that have a name or are open.
    pub fn allocated_blocks(&self, is_open: impl Fn(u64) -> bool) -> u64 {
        let named: BTreeSet<_> = self.names.values().copied().collect();
        let kept =
            self.inodes.iter().filter(|(number, _)| named.contains(number) || is_open(**number));
        kept.map(|(_, inode)| inode.blocks.len() as u64).sum()
    }
}

impl Inode {
    pub fn truncate(&mut self, len: u64) {
        self.blocks.split_off(&len.div_ceil(BLOCK_BYTES));
        if let Some(tail) = self.zeroed_tail(len)
            && let Some(block) = self.blocks.get_mut(&(len / BLOCK_BYTES))
        {
            block.page = Some(tail);
        }
        self.size = len;
    }

    /// The last block of a file of `len` bytes, with zeros beyond EOF. None if there is nothing to
    /// zero.
    pub fn zeroed_tail(&self, len: u64) -> Option<Page> {
        let keep = (len % BLOCK_BYTES) as usize;
        let page = self.blocks.get(&(len / BLOCK_BYTES))?.page.as_ref().filter(|_| keep > 0)?;
        let mut page = **page;
        page[keep..].fill(0);
        Some(Arc::new(page))
    }

    pub fn page(&self, block: u64) -> Option<&Page> {
        self.blocks.get(&block)?.page.as_ref()
    }

    /// Reads at `offset`, up to EOF.
    pub fn read(&self, into: &mut [u8], offset: u64) -> u64 {
        let read = (into.len() as u64).min(self.size.saturating_sub(offset));
        let (mut at, end) = (offset, offset + read);
        while at < end {
            let (block, inside) = (at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize);
            let len = ((end - at) as usize).min(BLOCK_BYTES as usize - inside);
            let piece = &mut into[(at - offset) as usize..][..len];
            match self.page(block) {
                Some(page) => piece.copy_from_slice(&page[inside..][..len]),
                None => piece.fill(0),
            }
            at += len as u64;
        }
        read
    }

    pub fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (number, block) in &self.blocks {
            let (start, written) = (number * BLOCK_BYTES, block.page.is_some());
            match extents.last_mut() {
                Some(last) if last.end == start && last.written == written => {
                    last.end += BLOCK_BYTES
                }
                _ => extents.push(Extent { start, end: start + BLOCK_BYTES, written }),
            }
        }
        extents
    }

    /// The written places of a range. A block that is freed and allocated again is at the same
    /// place of the device.
    pub fn places(&self, range: Range<u64>) -> Places {
        let extents = self.extents();
        let within = extents.iter().filter(|it| it.start < range.end && it.end > range.start);
        let looked: Vec<_> = within.take(EXTENTS_PER_LOOK).collect();
        let last = looked.last().filter(|_| looked.len() == EXTENTS_PER_LOOK);
        let end = last.map_or(range.end, |last| last.end.min(range.end));
        let written = looked.iter().filter(|it| it.written);
        let places =
            written.map(|it| MappedExtent { start: it.start, end: it.end, physical: it.start });
        Places { end, found: places.filter_map(|place| place.part_in(&range)).collect() }
    }
}
