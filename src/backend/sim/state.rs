//! The state of the simulated disk: a live image, as programs see it, and a stable one, as a power
//! cut leaves it. Between them are a journal, a volatile cache, and requests in flight.

use super::image::{BLOCK_BYTES, Change, FsImage, Page, SECTOR_BYTES};
use super::{Faults, JOURNAL_INODE};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A choice in a crash, made once for each ambiguous part of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashChoice {
    /// How many changes of the journal survive.
    Metadata,
    /// The content of a block that was unwritten: nothing, or one whole write to it. Of later
    /// writes any sector may survive.
    Block(u64),
    /// The content of a sector: stable, or from a later write.
    Sector(u64),
}

/// The kinds of calls that a test can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// A write.
    Write,
    /// A read.
    Read,
    /// A flush or sync.
    Flush,
    /// An allocation or a truncate.
    Allocate,
    /// Setting or removing the marker.
    Marker,
    /// Joining the journal, before a flush for all files.
    Join,
}

/// A write in flight.
#[derive(Clone, Debug)]
struct WriteInFlight {
    inode: u64,
    offset: u64,
    bytes: Vec<u8>,
    /// As [`Version::changes`].
    changes: u64,
}

/// The content of a block after a write that no flush has covered.
#[derive(Clone, Debug)]
struct Version {
    number: u64,
    life: u64,
    page: Page,
    /// The number of changes before it. If the block was unwritten, the write converts it: a change
    /// of the journal itself, which is committed after those, and with any later one.
    changes: u64,
}

/// The changes that a flush covers: those before it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    inode: u64,
    number: u64,
    changes: u64,
}

/// The state of a simulated disk.
#[derive(Debug, Default)]
pub(super) struct DiskState {
    pub live: FsImage,
    stable: FsImage,
    /// Not committed, oldest first.
    journal: VecDeque<Change>,
    /// The number of committed changes.
    committed: u64,
    /// Unflushed versions by inode and block, oldest first.
    cache: BTreeMap<(u64, u64), Vec<Version>>,
    in_flight: BTreeMap<u64, WriteInFlight>,
    number: u64,
    open: BTreeMap<u64, Weak<()>>,
    pub capacity_blocks: u64,
    pub calls: u64,
    pub dies_after: Option<u64>,
    pub planned: Vec<(Call, u64, i32)>,
    /// No thread starts.
    pub refuses_threads: bool,
    pub faults: Faults,
}

impl DiskState {
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// The number of changes until now.
    fn changes(&self) -> u64 {
        self.committed + self.journal.len() as u64
    }

    /// Changes metadata. The next commit makes it stable.
    pub fn change(&mut self, change: Change) {
        self.live.apply(&change);
        self.journal.push_back(change);
    }

    // --- space -----------------------------------------------------------------------------------

    pub fn free_blocks(&self) -> u64 {
        let is_open = |inode| self.open.get(&inode).is_some_and(|handle| handle.strong_count() > 0);
        self.capacity_blocks.saturating_sub(self.live.allocated_blocks(is_open))
    }

    /// Opens a file. Its space stays while the handle lives, even after its name is removed.
    pub fn open(&mut self, inode: u64) -> Arc<()> {
        let handle = self.open.get(&inode).and_then(Weak::upgrade).unwrap_or_default();
        self.open.insert(inode, Arc::downgrade(&handle));
        handle
    }

    /// Allocates the blocks of the range while space is free, and returns where that ends.
    fn take(&mut self, inode: u64, first: u64, end: u64) -> u64 {
        let mut free = self.free_blocks();
        let blocks = &self.live.inode(inode).blocks;
        let taken_to = (first..end).find(|number| {
            let needs = !blocks.contains_key(number);
            let missing = needs && free == 0;
            free -= u64::from(needs && !missing);
            missing
        });
        let taken_to = taken_to.unwrap_or(end);
        let needed = (first..taken_to).any(|number| !blocks.contains_key(&number));
        if needed {
            let life = self.next_number();
            self.change(Change::Allocate { inode, first, end: taken_to, life });
        }
        taken_to
    }

    /// Allocates space and extends the size. Without enough space it allocates the rest of the
    /// space first, as real file systems do, and then fails.
    pub fn allocate(&mut self, inode: u64, start: u64, end: u64) -> io::Result<()> {
        let wanted = end.div_ceil(BLOCK_BYTES);
        let taken_to = self.take(inode, start / BLOCK_BYTES, wanted);
        let end = end.min(taken_to * BLOCK_BYTES);
        self.extend(inode, end);
        if taken_to < wanted { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    }

    fn extend(&mut self, inode: u64, end: u64) {
        if self.live.inode(inode).size < end {
            self.change(Change::Size { inode, size: end });
        }
    }

    pub fn truncate(&mut self, inode: u64, len: u64) {
        let tail = self.live.inode(inode).zeroed_tail(len);
        self.change(Change::Truncate { inode, len });
        if let Some(page) = tail {
            self.remember(inode, len / BLOCK_BYTES, page);
        }
    }

    // --- writes ----------------------------------------------------------------------------------

    /// Begins a write. From now on a crash may leave any part of it.
    pub fn send(&mut self, inode: u64, offset: u64, bytes: Vec<u8>) -> u64 {
        let ticket = self.next_number();
        let changes = self.changes();
        self.in_flight.insert(ticket, WriteInFlight { inode, offset, bytes, changes });
        ticket
    }

    /// The data of a write in flight.
    pub fn sent(&self, ticket: u64) -> &[u8] {
        &self.in_flight[&ticket].bytes
    }

    /// Ends a write: programs read its bytes. Short if space runs out.
    pub fn land(&mut self, ticket: u64, dsync: bool) -> io::Result<u64> {
        let WriteInFlight { inode, offset, bytes, .. } =
            self.in_flight.remove(&ticket).expect("it was sent");
        let end = offset + bytes.len() as u64;
        let taken_to = self.take(inode, offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        let end = end.min(taken_to * BLOCK_BYTES);
        if end <= offset {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let written = &bytes[..(end - offset) as usize];
        for (block, page) in self.pages(inode, offset, written) {
            self.remember(inode, block, page);
        }
        self.extend(inode, end);
        if dsync {
            let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
            let snapshot = self.snapshot(inode, false);
            self.commit(snapshot.changes);
            blocks.for_each(|block| self.settle((inode, block), snapshot));
        }
        Ok(written.len() as u64)
    }

    /// Ends a write without effect.
    pub fn recall(&mut self, ticket: u64) {
        self.in_flight.remove(&ticket);
    }

    /// Ends a write with an error: any of its allocated blocks may have been written.
    pub fn fail(&mut self, ticket: u64) {
        let WriteInFlight { inode, offset, bytes, .. } =
            self.in_flight.remove(&ticket).expect("it was sent");
        for (block, page) in self.pages(inode, offset, &bytes) {
            if self.live.inode(inode).blocks.contains_key(&block) && self.faults.random.bool() {
                self.remember(inode, block, page);
            }
        }
    }

    /// The blocks that contain `bytes` at `offset`, completed with the old content.
    fn pages(&self, inode: u64, offset: u64, bytes: &[u8]) -> Vec<(u64, Page)> {
        let inode = &self.live.inodes[&inode];
        let mut pages = Vec::new();
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let (block, inside) = (at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize);
            let len = rest.len().min(BLOCK_BYTES as usize - inside);
            let mut page = inode.page(block).map_or([0; BLOCK_BYTES as usize], |page| **page);
            page[inside..][..len].copy_from_slice(&rest[..len]);
            pages.push((block, Arc::new(page)));
            (rest, at) = (&rest[len..], at + len as u64);
        }
        pages
    }

    /// Puts new content of a block into the volatile cache.
    fn remember(&mut self, inode: u64, block: u64, page: Page) {
        let (number, changes) = (self.next_number(), self.changes());
        let known = self.live.inode(inode).blocks.get_mut(&block).expect("it is allocated");
        known.page = Some(page.clone());
        let version = Version { number, life: known.life, page, changes };
        self.cache.entry((inode, block)).or_default().push(version);
    }

    // --- flushes ---------------------------------------------------------------------------------

    /// The changes that a flush of a file would cover now. It ends at the last one of the file, or
    /// at the last one that its data needs.
    pub fn snapshot(&self, inode: u64, all: bool) -> Snapshot {
        let is_one_file = inode == JOURNAL_INODE && self.faults.settings.commits_fast;
        let is_covered =
            |change: &Change| change.is_of(inode) && (all || change.finds_data()) && !is_one_file;
        let covered = self.journal.iter().rposition(is_covered).map_or(0, |last| last + 1);
        let changes = (self.committed + covered as u64).max(self.before_conversions(inode));
        Snapshot { inode, number: self.number, changes }
    }

    /// The number of changes before the last conversion of a file's unwritten blocks that is not
    /// committed.
    fn before_conversions(&self, inode: u64) -> u64 {
        let blocks = self.stable.inodes.get(&inode).map(|inode| &inode.blocks);
        let is_written = |block, life| {
            let stable = blocks.and_then(|blocks| blocks.get(&block));
            stable.is_some_and(|stable| stable.life == life && stable.page.is_some())
        };
        let cached = self.cache.range((inode, 0)..=(inode, u64::MAX));
        let first = cached.filter_map(|((_, block), versions)| Some((*block, versions.first()?)));
        let converts = first.filter(|(block, version)| !is_written(*block, version.life));
        converts.map(|(_, version)| version.changes).max().unwrap_or(0)
    }

    pub fn flush(&mut self, snapshot: Snapshot) {
        self.commit(snapshot.changes);
        let cached: Vec<_> = self.cache.keys().copied().collect();
        cached.into_iter().for_each(|key| self.settle(key, snapshot));
    }

    /// Fails a flush: some of the changes that it covered never become stable, even by a later
    /// flush.
    pub fn lose(&mut self, snapshot: Snapshot) {
        for versions in self.cache.values_mut() {
            if self.faults.random.bool() {
                versions.retain(|version| version.number > snapshot.number);
            }
        }
        self.cache.retain(|_, versions| !versions.is_empty());
    }

    /// Makes metadata stable up to this number of changes.
    fn commit(&mut self, changes: u64) {
        while self.committed < changes {
            let change = self.journal.pop_front().expect("it was counted");
            self.stable.apply(&change);
            self.committed += 1;
        }
    }

    /// Makes a block stable, with its content as of the snapshot. A flush of another file converts
    /// an unwritten block only if it committed a change that came after the write. A truncate that
    /// is not committed will zero the rest of a block, so nothing is stable before.
    fn settle(&mut self, key: (u64, u64), snapshot: Snapshot) {
        let is_cut =
            |change: &Change| matches!(change, Change::Truncate { inode, .. } if *inode == key.0);
        if key.0 != snapshot.inode && self.journal.iter().any(is_cut) {
            return;
        }
        let Some(versions) = self.cache.get_mut(&key) else { return };
        let block =
            self.stable.inodes.get_mut(&key.0).and_then(|inode| inode.blocks.get_mut(&key.1));
        let is_written =
            |life: u64| block.as_ref().is_some_and(|it| it.life == life && it.page.is_some());
        let is_covered = |version: &Version| {
            let converts = key.0 == snapshot.inode || is_written(version.life);
            version.number <= snapshot.number && (converts || version.changes < snapshot.changes)
        };
        let Some(last) = versions.iter().rposition(is_covered) else { return };
        let version = versions.drain(..=last).next_back().expect("at least one");
        if versions.is_empty() {
            self.cache.remove(&key);
        }
        if let Some(block) = block.filter(|block| block.life == version.life) {
            block.page = Some(version.page);
        }
    }

    // --- crashes ---------------------------------------------------------------------------------

    /// The image after a power cut now. `choose` picks one of the possible outcomes, from 0
    /// (stable) to the given number (newest).
    pub fn crash(&self, choose: &mut dyn FnMut(CrashChoice, u64) -> u64) -> FsImage {
        let mut image = self.stable.clone();
        let survive = choose(CrashChoice::Metadata, self.journal.len() as u64);
        self.journal.iter().take(survive as usize).for_each(|change| image.apply(change));
        for ((inode, number), versions) in self.unstable() {
            let block =
                image.inodes.get_mut(&inode).and_then(|inode| inode.blocks.get_mut(&number));
            let Some(block) = block else { continue };
            let versions = versions.into_iter().filter(|version| version.life == block.life);
            let versions: Vec<_> = versions.collect();
            let converts = |version: &Version| version.changes <= self.committed + survive;
            if versions.is_empty() || block.page.is_none() && !versions.iter().any(converts) {
                continue;
            }
            let pages: Vec<_> = versions.into_iter().map(|version| version.page).collect();
            let (mut page, later) = match &block.page {
                Some(stable) => (**stable, &pages[..]),
                None => match choose(CrashChoice::Block(number), pages.len() as u64) as usize {
                    0 => continue,
                    nth => (*pages[nth - 1], &pages[nth..]),
                },
            };
            for (sector, bytes) in
                page.chunks_mut(SECTOR_BYTES).enumerate().filter(|_| !later.is_empty())
            {
                if let Some(n) =
                    choose(CrashChoice::Sector(number), later.len() as u64).checked_sub(1)
                {
                    bytes.copy_from_slice(
                        &later[n as usize][sector * SECTOR_BYTES..][..SECTOR_BYTES],
                    );
                }
            }
            block.page = Some(Arc::new(page));
        }
        // At mount the file system frees blocks of writes whose new size did not survive.
        image.inodes.values_mut().for_each(|inode| inode.truncate(inode.size));
        image
    }

    /// Unstable versions of each block, oldest first. They come from the cache and from writes in
    /// flight.
    fn unstable(&self) -> BTreeMap<(u64, u64), Vec<Version>> {
        let mut unstable = self.cache.clone();
        for (ticket, WriteInFlight { inode, offset, bytes, changes }) in &self.in_flight {
            for (block, page) in self.pages(*inode, *offset, bytes) {
                if let Some(known) = self.live.inodes[inode].blocks.get(&block) {
                    let (number, life, changes) = (*ticket, known.life, *changes);
                    let version = Version { number, life, page, changes };
                    unstable.entry((*inode, block)).or_default().push(version);
                }
            }
        }
        unstable
    }

    /// The state after this process is killed now. Nothing becomes stable by that, and a write in
    /// flight takes effect or not.
    pub fn abandoned(&self) -> Self {
        let mut state = Self {
            live: self.live.clone(),
            stable: self.stable.clone(),
            journal: self.journal.clone(),
            committed: self.committed,
            cache: self.cache.clone(),
            in_flight: self.in_flight.clone(),
            number: self.number,
            capacity_blocks: self.capacity_blocks,
            faults: Faults { stalled_until: Duration::ZERO, ..self.faults.clone() },
            ..Self::default()
        };
        for ticket in self.in_flight.keys() {
            match state.faults.random.bool() {
                // No process gets the result.
                true => drop(state.land(*ticket, false)),
                false => state.recall(*ticket),
            }
        }
        state
    }

    /// A disk that holds exactly this image.
    pub fn with(image: FsImage, capacity_blocks: u64, number: u64, faults: Faults) -> Self {
        Self {
            live: image.clone(),
            stable: image,
            capacity_blocks,
            number,
            faults,
            ..Self::default()
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }
}
