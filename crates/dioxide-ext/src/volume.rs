//! An open volume: its superblock, group descriptors, bitmaps and inode tables, on an image file or
//! a device. Shared by all open files of the volume.
//!
//! Metadata changes stay in memory until a sync of a file. The order of writes lets `e2fsck -p`
//! find all durable data after a crash at any point:
//! 1. The mark "not cleanly unmounted", before any other write. Then a flush.
//! 2. Data; then bitmaps, and the tables (indirect blocks) to which nothing on disk refers yet.
//!    Then a flush.
//! 3. The inode, the changed tables of the file, and the counts of free blocks. Then a flush. So
//!    no pointer on disk refers to a block that is not durable.
//! 4. In memory: the blocks that the file has removed become free. So no file gets a block to
//!    which a pointer on disk still refers.
//! 5. At the close of the last file open for writing: all remaining changes, a flush, the removal
//!    of the mark, and a flush.
//!
//! After a failure in one of these steps, memory and disk may differ. Then the volume refuses all
//! writes, and the mark stays.

use crate::allocation::{self, Bitmap};
use crate::blocks::Blocks;
use crate::bytes::u32_at;
use crate::file::ExtFile;
use crate::format::{
    Descriptor, Geometry, Inode, Kind, Refusal, SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock,
};
use crate::indirect::Tables;
use crate::lookup;
use crate::node::Node;
use dioxide::image::{self, Data, Image, Mutex, MutexGuard, VolumeFile, clock, count};
use dioxide::{Buffer, ErrorKind};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};

/// Enough for the superblock. A multiple of the alignment of direct I/O on devices with logical
/// blocks of up to 4 KiB, as blocks of a volume have. Elsewhere the read fails with EINVAL.
const FIRST_READ_BYTES: usize = 4096;

/// An open volume of ext2 or ext3.
#[derive(Debug)]
pub(crate) struct Volume {
    image: Image,
    pub geometry: Geometry,
    write: bool,
    /// The size of the cache at which unchanged blocks are evicted.
    cache_bytes: usize,
    /// Whether this process may use the reserved blocks.
    may_use_reserved: bool,
    metadata: Mutex<Metadata>,
    /// Serializes syncs: the newest state of shared blocks must be written last.
    syncing: Mutex<()>,
    /// The reason why the volume refuses writes.
    broken: OnceLock<String>,
    nodes: Mutex<BTreeMap<u32, Weak<Node>>>,
    /// The blocks of the journal. Set only if the volume is open for writing.
    journal: OnceLock<Blocks>,
}

/// The step of a sync that writes a changed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The first, after the data: bitmaps.
    Before,
    /// The second: inodes, descriptors and the superblock.
    After,
}

#[derive(Debug)]
struct Kept {
    bytes: Buffer,
    changed: Option<Step>,
}

/// The metadata cache, which all files share.
#[derive(Debug, Default)]
struct Metadata {
    blocks: BTreeMap<u64, Kept>,
    /// Blocks that count as written are in flight. Their content on disk is stale, so none is
    /// evicted.
    in_flight: bool,
    /// The mark "not cleanly unmounted" is on disk.
    in_use: bool,
}

/// The changes of a file that a sync makes durable.
#[derive(Debug)]
pub(crate) struct Batch {
    pub number: u32,
    pub inode: Inode,
    /// Whether the file has blocks to which nothing on disk refers yet.
    pub has_more_blocks: bool,
    pub new: Tables,
    pub changed: Tables,
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::Unsupported(why) => ErrorKind::Unsupported(why),
            Refusal::Corrupt(why) => ErrorKind::Corrupt(why),
        };
        io::Error::new(io::ErrorKind::InvalidData, kind)
    }
}

/// Returns the error of an inconsistent volume.
pub(super) fn corrupt(why: impl Into<String>) -> io::Error {
    Refusal::Corrupt(why.into()).into()
}

impl Volume {
    /// Reads the volume on an image. Writes nothing.
    pub fn open(mut image: Image, write: bool, cache_bytes: usize) -> io::Result<Arc<Self>> {
        let mut first = Buffer::zeroed(FIRST_READ_BYTES);
        let read = image.read(&mut first, 0)?;
        if read < SUPERBLOCK_AT + SUPERBLOCK_BYTES as u64 {
            return Err(Refusal::Unsupported("too short to be a volume".into()).into());
        }
        let superblock = &mut first[SUPERBLOCK_AT as usize..][..SUPERBLOCK_BYTES];
        let geometry = Geometry::parse(superblock, image.bytes()?)?;
        Superblock(superblock).check_state()?;
        if write && image.bytes_max() < geometry.blocks * geometry.block_bytes {
            // The kernel would end the process by SIGXFSZ.
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        image.set_block(geometry.block_bytes)?;
        let user = rustix::process::geteuid().as_raw();
        let volume = Arc::new(Self {
            image,
            write,
            cache_bytes,
            may_use_reserved: user == 0 || user == u32::from(geometry.reserved_for),
            geometry,
            metadata: Mutex::default(),
            syncing: Mutex::default(),
            broken: OnceLock::default(),
            nodes: Mutex::default(),
            journal: OnceLock::default(),
        });
        if let Some(number) = volume.geometry.journal.filter(|_| write) {
            let blocks = Node::open(volume.clone(), number)?.owned()?;
            volume.journal.set(blocks).expect("just made");
        }
        Ok(volume)
    }

    /// Fails if the volume refuses writes.
    pub fn check_usable(&self) -> io::Result<()> {
        match self.broken.get() {
            None => Ok(()),
            Some(why) => Err(corrupt(format!("nothing is written to it any more since {why}"))),
        }
    }

    /// Refuses every later write, and keeps the mark on disk.
    pub fn give_up(&self, why: impl Into<String>) {
        let why = why.into();
        log::error!(
            "dioxide: nothing is written to a volume any more since {why}; run e2fsck on it"
        );
        let _ = self.broken.set(why);
    }

    /// Returns the open file of an inode, which all handles share.
    pub fn node(self: &Arc<Self>, number: u32) -> io::Result<Arc<Node>> {
        let mut nodes = self.nodes.lock();
        nodes.retain(|_, node| node.strong_count() > 0);
        if let Some(node) = nodes.get(&number).and_then(Weak::upgrade) {
            return Ok(node);
        }
        let node = Arc::new(Node::open(self.clone(), number)?);
        nodes.insert(number, Arc::downgrade(&node));
        Ok(node)
    }

    // --- transfers -------------------------------------------------------------------------------

    /// Reads whole blocks, from `block` on.
    pub fn read(&self, into: &mut [u8], block: u64) -> io::Result<()> {
        let len = into.len() as u64;
        match self.image.read(into, block * self.geometry.block_bytes)? {
            read if read < len => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Writes whole blocks, from `block` on.
    pub fn write(&self, data: &Data<'_>, block: u64) -> io::Result<()> {
        self.image.write(data, block * self.geometry.block_bytes)
    }

    pub fn flush(&self) -> io::Result<()> {
        self.image.flush()
    }

    /// Reads the pointers of a table.
    pub fn table(&self, block: u32) -> io::Result<Vec<u32>> {
        let mut bytes = Buffer::zeroed(self.geometry.block_bytes as usize);
        self.read(&mut bytes, block.into())?;
        Ok((0..bytes.len()).step_by(4).map(|at| u32_at(&bytes, at)).collect())
    }

    // --- metadata --------------------------------------------------------------------------------

    fn metadata(&self) -> MutexGuard<'_, Metadata> {
        self.metadata.lock()
    }

    /// Returns the inode of this number.
    pub fn inode(&self, number: u32) -> io::Result<Inode> {
        let mut metadata = self.metadata();
        let (block, at) = self.place_of(&mut metadata, number)?;
        let bytes = &metadata.block(self, block)?.bytes[at..][..self.geometry.inode_bytes as usize];
        Ok(Inode::parse(bytes, number, &self.geometry)?)
    }

    /// Returns the block of an inode, and the offset in it, in bytes.
    fn place_of(&self, metadata: &mut Metadata, number: u32) -> io::Result<(u64, usize)> {
        let (group, at) = self.geometry.inode(number)?;
        let table = metadata.descriptor(self, group)?.inode_table;
        let block_bytes = self.geometry.block_bytes;
        Ok((table.start + at / block_bytes, (at % block_bytes) as usize))
    }

    /// Fails unless inode `number` may own the blocks: they are on the volume, and no metadata. If
    /// the volume is open for writing, they must also be marked as used, and not the journal's.
    pub fn check(&self, range: Range<u64>, number: u32) -> io::Result<()> {
        let Geometry { first_data_block, blocks, .. } = self.geometry;
        let names = |what: &str| corrupt(format!("inode {number} names {what} ({range:?})"));
        if range.start < first_data_block || range.end > blocks {
            return Err(names("blocks that are not there"));
        }
        if self.journal.get().is_some_and(|journal| journal.first_in(&range).is_some()) {
            return Err(names("blocks of the journal"));
        }
        let mut metadata = self.metadata();
        let mut start = range.start;
        while start < range.end {
            let group = self.geometry.group_of(start);
            let all = self.geometry.group(group);
            let part = start..range.end.min(all.end);
            let descriptor = metadata.descriptor(self, group)?;
            if descriptor.own().iter().any(|own| part.start < own.end && own.start < part.end) {
                return Err(names("blocks of the volume's own"));
            }
            if self.write && !metadata.bitmap(self, group)?.are_all(within(&part, &all), true) {
                return Err(names("blocks that are marked as free"));
            }
            start = part.end;
        }
        Ok(())
    }

    fn reserved(&self) -> u64 {
        if self.may_use_reserved { 0 } else { self.geometry.reserved_blocks }
    }

    /// Returns the first block of the inode's group, the preferred position of its data.
    pub fn home_of(&self, number: u32) -> io::Result<u64> {
        let (group, _) = self.geometry.inode(number)?;
        Ok(self.geometry.group(group).start)
    }

    // --- allocation ------------------------------------------------------------------------------

    /// Allocates `wanted` blocks, all or none, near `goal` and contiguous if possible. Returns them
    /// in the order in which a file should use them.
    pub fn allocate(&self, wanted: u64, goal: u64) -> io::Result<Vec<Range<u64>>> {
        let mut metadata = self.metadata();
        let free = metadata.superblock(self, |superblock| superblock.free_blocks())?;
        if free.saturating_sub(self.reserved()) < wanted {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let mut taken = Vec::new();
        if let Err(error) = metadata.take(self, wanted, goal, &mut taken) {
            metadata.give_back(self, &taken).inspect_err(|error| self.lost(error))?;
            return Err(error);
        }
        Ok(taken)
    }

    /// Frees blocks to which nothing refers.
    pub fn release(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        self.metadata().give_back(self, ranges).inspect_err(|error| self.lost(error))
    }

    fn lost(&self, error: &io::Error) {
        self.give_up(format!("blocks could not be given back: {error}"));
    }

    /// Sets the feature `large_file`, for a file beyond 2 GiB.
    pub fn allow_large_files(&self) -> io::Result<()> {
        let mut metadata = self.metadata();
        if metadata.superblock(self, |superblock| superblock.has_large_files())? {
            return Ok(());
        }
        metadata.change_superblock(self, |superblock| superblock.allow_large_files())
    }

    // --- durability ------------------------------------------------------------------------------

    /// Makes the changes of a file durable, with all changed metadata of the volume. Without a
    /// batch, only that metadata. Counts the requests.
    pub fn sync(&self, batch: Option<Batch>, requests: &AtomicU64) -> io::Result<()> {
        let _alone = self.syncing.lock();
        // A sync that failed meanwhile took changes that this one would rely on.
        self.check_usable()?;
        let result = self.write_changes(batch, requests);
        result.inspect_err(|error| {
            self.give_up(format!("changes of it could not be made stable: {error}"))
        })
    }

    fn write_changes(&self, batch: Option<Batch>, requests: &AtomicU64) -> io::Result<()> {
        let (new, changed, inode, has_more_blocks) = match batch {
            Some(Batch { number, inode, has_more_blocks, new, changed }) => {
                (new, changed, Some((number, inode)), has_more_blocks)
            }
            None => (Vec::new(), Vec::new(), None, false),
        };
        let mut before = self.metadata().changed(Step::Before);
        before.extend(new.into_iter().map(as_bytes));
        // Another sync may have written the bitmaps while the data was still in flight.
        if has_more_blocks || !before.is_empty() {
            self.write_all(before, requests)?;
            self.flush()?;
        }
        let mut after = {
            let mut metadata = self.metadata();
            if let Some((number, inode)) = inode {
                self.store(&mut metadata, number, &inode)?;
            }
            metadata.changed(Step::After)
        };
        after.extend(changed.into_iter().map(as_bytes));
        self.write_all(after, requests)?;
        self.metadata().in_flight = false;
        self.flush()
    }

    fn store(&self, metadata: &mut Metadata, number: u32, inode: &Inode) -> io::Result<()> {
        let (block, at) = self.place_of(metadata, number)?;
        let bytes = metadata.change(self, block, Step::After)?;
        inode.store(&mut bytes[at..][..self.geometry.inode_bytes as usize], clock());
        Ok(())
    }

    /// Writes blocks. Adjacent ones are one request.
    fn write_all(&self, mut blocks: Vec<(u64, Buffer)>, requests: &AtomicU64) -> io::Result<()> {
        blocks.sort_by_key(|(block, _)| *block);
        let block_bytes = self.geometry.block_bytes;
        let range = |block: u64| block * block_bytes..(block + 1) * block_bytes;
        let ranges: Vec<_> = blocks.iter().map(|(block, _)| range(*block)).collect();
        let mut rest = &blocks[..];
        for run in self.image.runs(&ranges) {
            let (now, later) = rest.split_at(run);
            count(requests, 1);
            self.write(&Data::of(now.iter().map(|(_, bytes)| &bytes[..])), now[0].0)?;
            rest = later;
        }
        Ok(())
    }

    fn mark(&self, metadata: &mut Metadata, clean: bool) -> io::Result<()> {
        metadata.change_superblock(self, |superblock| superblock.mark(clean, clock()))?;
        let (block, _) = self.geometry.superblock();
        let kept = metadata.block(self, block)?;
        self.write(&Data::of([&kept.bytes[..]]), block)?;
        kept.changed = None;
        self.flush()
    }
}

impl image::Volume for Volume {
    fn image(&self) -> &Image {
        &self.image
    }

    fn block_bytes(&self) -> u64 {
        self.geometry.block_bytes
    }

    fn file_bytes_max(&self) -> u64 {
        self.geometry.file_bytes_max()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let free = self.metadata().superblock(self, |superblock| superblock.free_blocks())?;
        Ok(free.saturating_sub(self.reserved()) * self.geometry.block_bytes)
    }

    fn file(self: Arc<Self>, path: &[u8], write: bool) -> io::Result<Arc<dyn VolumeFile>> {
        let node = self.node(lookup::find(&self, path)?)?;
        let inode = node.inode();
        let kind = match inode.kind {
            Kind::Regular => {
                inode.refusal(write)?;
                return Ok(Arc::new(ExtFile(node)));
            }
            Kind::Directory => "a directory",
            Kind::Link => "a symbolic link",
            Kind::Other(kind) => kind,
        };
        Err(Refusal::Unsupported(format!("it is {kind}, and no regular file")).into())
    }

    fn mark_in_use(&self) -> io::Result<()> {
        let mut metadata = self.metadata();
        if metadata.in_use {
            return Ok(());
        }
        self.mark(&mut metadata, false)?;
        metadata.in_use = true;
        Ok(())
    }

    fn put_away(&self, requests: &AtomicU64) -> io::Result<()> {
        if !self.metadata().in_use {
            return Ok(());
        }
        self.sync(None, requests)?;
        let mut metadata = self.metadata();
        count(requests, 1);
        self.mark(&mut metadata, true)
            .inspect_err(|error| self.give_up(format!("its mark failed: {error}")))?;
        metadata.in_use = false;
        Ok(())
    }

    fn give_up(&self, why: String) {
        self.give_up(why);
    }
}

impl Metadata {
    /// Returns a block, from the cache or from disk.
    fn block(&mut self, volume: &Volume, block: u64) -> io::Result<&mut Kept> {
        if !self.blocks.contains_key(&block) {
            let mut bytes = Buffer::zeroed(volume.geometry.block_bytes as usize);
            if self.blocks.len() * bytes.len() >= volume.cache_bytes && !self.in_flight {
                self.blocks.retain(|_, kept| kept.changed.is_some());
            }
            volume.read(&mut bytes, block)?;
            self.blocks.insert(block, Kept { bytes, changed: None });
        }
        Ok(self.blocks.get_mut(&block).expect("it is there by now"))
    }

    /// Returns the bytes of a block for a change, which `step` writes.
    fn change(&mut self, volume: &Volume, block: u64, step: Step) -> io::Result<&mut [u8]> {
        let kept = self.block(volume, block)?;
        kept.changed = Some(step);
        Ok(&mut kept.bytes)
    }

    /// Returns copies of the changed blocks that `step` writes. They count as written.
    fn changed(&mut self, step: Step) -> Vec<(u64, Buffer)> {
        self.in_flight = true;
        let changed = self.blocks.iter_mut().filter(|(_, kept)| kept.changed == Some(step));
        let copy = |(block, kept): (&u64, &mut Kept)| {
            kept.changed = None;
            (*block, kept.bytes.clone())
        };
        changed.map(copy).collect()
    }

    fn superblock<R>(
        &mut self,
        volume: &Volume,
        look: impl FnOnce(&Superblock<'_>) -> R,
    ) -> io::Result<R> {
        let (block, at) = volume.geometry.superblock();
        let bytes = &mut self.block(volume, block)?.bytes;
        Ok(look(&Superblock(&mut bytes[at..][..SUPERBLOCK_BYTES])))
    }

    fn change_superblock(
        &mut self,
        volume: &Volume,
        change: impl FnOnce(&mut Superblock<'_>),
    ) -> io::Result<()> {
        let (block, at) = volume.geometry.superblock();
        let bytes = self.change(volume, block, Step::After)?;
        change(&mut Superblock(&mut bytes[at..][..SUPERBLOCK_BYTES]));
        Ok(())
    }

    fn descriptor(&mut self, volume: &Volume, group: u64) -> io::Result<Descriptor> {
        let (block, at) = volume.geometry.descriptor(group);
        let kept = self.block(volume, block)?;
        Ok(Descriptor::parse(&kept.bytes[at..], group, &volume.geometry)?)
    }

    /// Returns the bitmap of a group. Compares it with the descriptor when it is read.
    fn bitmap(&mut self, volume: &Volume, group: u64) -> io::Result<Bitmap<'_>> {
        let descriptor = self.descriptor(volume, group)?;
        let all = volume.geometry.group(group);
        let block = descriptor.block_bitmap;
        let blocks = (all.end - all.start) as usize;
        let is_read_now = !self.blocks.contains_key(&block);
        let bits = &mut self.block(volume, block)?.bytes[..];
        let bitmap = Bitmap { bits, blocks };
        if is_read_now {
            let free = bitmap.free() as u64;
            let own = descriptor.own();
            let wrong = match own.iter().find(|own| !bitmap.are_all(within(own, &all), true)) {
                Some(own) => Some(format!("blocks {own:?} of group {group} are marked as free")),
                None if free != descriptor.free_blocks => Some(format!(
                    "group {group} has {} free blocks, and {free} marked",
                    descriptor.free_blocks
                )),
                None => None,
            };
            if let Some(wrong) = wrong {
                self.blocks.remove(&block);
                return Err(corrupt(wrong));
            }
        }
        let bits = &mut self.block(volume, block)?.bytes[..];
        Ok(Bitmap { bits, blocks })
    }

    /// Allocates blocks, and adds them to `taken`, also before an error.
    fn take(
        &mut self,
        volume: &Volume,
        wanted: u64,
        goal: u64,
        taken: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let geometry = &volume.geometry;
        let goal = goal.clamp(geometry.first_data_block, geometry.blocks - 1);
        let bounds = |group| geometry.group(group);
        let mut left = wanted;
        for least in allocation::lengths(wanted) {
            for (group, mut part) in
                allocation::order(goal, geometry.group_of(goal), geometry.groups(), bounds)
            {
                let least = least.min(left);
                while self.descriptor(volume, group)?.free_blocks >= least {
                    let all = geometry.group(group);
                    let bitmap = self.bitmap(volume, group)?;
                    let run = bitmap.find(within(&part, &all), least as usize, left as usize);
                    let Some(run) = run else { break };
                    let run = all.start + run.start as u64..all.start + run.end as u64;
                    self.set(volume, group, &run, true)?;
                    left -= run.end - run.start;
                    part.start = run.end;
                    taken.push(run);
                    if left == 0 {
                        return Ok(());
                    }
                }
            }
        }
        Err(corrupt(format!("it has {left} free blocks less than it says")))
    }

    fn give_back(&mut self, volume: &Volume, ranges: &[Range<u64>]) -> io::Result<()> {
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let group = volume.geometry.group_of(start);
                let end = range.end.min(volume.geometry.group(group).end);
                self.set(volume, group, &(start..end), false)?;
                start = end;
            }
        }
        Ok(())
    }

    /// Marks blocks of a group as used or free, and updates the counts. Fails unless all blocks are
    /// in the other state.
    fn set(
        &mut self,
        volume: &Volume,
        group: u64,
        range: &Range<u64>,
        used: bool,
    ) -> io::Result<()> {
        let all = volume.geometry.group(group);
        let len = range.end - range.start;
        let bits = within(range, &all);
        let free = self.superblock(volume, |superblock| superblock.free_blocks())?;
        let descriptor = self.descriptor(volume, group)?;
        if !self.bitmap(volume, group)?.are_all(bits.clone(), !used) {
            return Err(corrupt(format!(
                "of the blocks {range:?} some are marked as free already"
            )));
        }
        let counted = |free: u64| if used { free.checked_sub(len) } else { Some(free + len) };
        let (Some(free), Some(free_in_group)) = (counted(free), counted(descriptor.free_blocks))
        else {
            return Err(corrupt("it has more free blocks than it says"));
        };
        // A block that is to change stays in memory. So each read that may fail comes before the
        // first change.
        let (block, at) = volume.geometry.descriptor(group);
        self.change(volume, descriptor.block_bitmap, Step::Before)?;
        self.change(volume, block, Step::After)?;
        self.change(volume, volume.geometry.superblock().0, Step::After)?;
        self.bitmap(volume, group)?.set(bits, used);
        Descriptor::set_free_blocks(
            &mut self.change(volume, block, Step::After)?[at..],
            free_in_group,
        );
        self.change_superblock(volume, |superblock| superblock.set_free_blocks(free))
    }
}

/// Converts blocks to indices in their group.
fn within(range: &Range<u64>, group: &Range<u64>) -> Range<usize> {
    (range.start - group.start) as usize..(range.end - group.start) as usize
}

fn as_bytes((block, pointers): (u32, Vec<u32>)) -> (u64, Buffer) {
    let bytes: Vec<_> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    (block.into(), Buffer::from(&bytes[..]))
}
