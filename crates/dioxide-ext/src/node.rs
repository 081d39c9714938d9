//! An open file of a volume: its inode and its map. Shared by all handles and threads of the file.
//!
//! Reads and overwrites look up their blocks, and run concurrently. `filling` serializes operations
//! that fill holes, extend or truncate the file. A block becomes part of the file only after it is
//! written whole, so no read returns its former content.

use crate::blocks::{Blocks, ranges};
use crate::format::{Inode, Kind};
use crate::indirect::{Found, Map, ROOTS, Run, filled, named, push};
use crate::volume::{Batch, Volume, corrupt};
use dioxide::Buffer;
use dioxide::image::{Data, DrainGate, Mutex, Volume as _, count};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A size beyond this needs the feature `large_file`.
const SMALL_FILE_BYTES_MAX: u64 = i32::MAX as u64;

/// An open file of a volume.
#[derive(Debug)]
pub(crate) struct Node {
    pub volume: Arc<Volume>,
    pub number: u32,
    state: Mutex<NodeState>,
    filling: Mutex<()>,
    syncing: Mutex<()>,
    /// Reads in flight. A read-only handle may still read blocks from before a truncate.
    reading: DrainGate,
}

/// The changes that the inode on disk lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Behind {
    Nothing,
    /// Only timestamps.
    Times,
    /// Metadata that leads to the data: size, sectors or pointers.
    Data,
    /// The same, with blocks to which nothing on disk refers yet. Their data must be durable
    /// first.
    Blocks,
}

#[derive(Debug)]
struct NodeState {
    inode: Inode,
    map: Map,
    behind: Behind,
    /// Removed from the file, and still marked as used.
    freed: Vec<Range<u64>>,
}

impl Node {
    pub fn open(volume: Arc<Volume>, number: u32) -> io::Result<Self> {
        let inode = volume.inode(number)?;
        let is_mapped = matches!(inode.kind, Kind::Regular | Kind::Directory)
            || inode.kind == Kind::Link && inode.short_target(&volume.geometry).is_none();
        let roots = if is_mapped { inode.pointers } else { [0; ROOTS] };
        let others = [inode.attributes];
        for range in ranges(named(&roots)).into_iter().chain(ranges(named(&others))) {
            volume.check(range, number)?;
        }
        let map = Map::new(roots, volume.geometry.fanout(), &others)
            .map_err(|block| twice(number, block))?;
        let state = NodeState { inode, map, behind: Behind::Nothing, freed: Vec::new() };
        Ok(Self {
            volume,
            number,
            state: Mutex::new(state),
            filling: Mutex::default(),
            syncing: Mutex::default(),
            reading: DrainGate::default(),
        })
    }

    /// Returns the inode. Its pointers are those of the open or of the last sync.
    pub fn inode(&self) -> Inode {
        self.state.lock().inode.clone()
    }

    pub fn size(&self) -> u64 {
        self.state.lock().inode.size
    }

    /// Returns all blocks of the file, including tables.
    pub fn owned(&self) -> io::Result<Blocks> {
        let mut state = self.state.lock();
        state.learn_from(self, 0)?;
        Ok(state.map.owned().clone())
    }

    /// Maps the blocks `range` of the file.
    pub fn runs(&self, range: Range<u64>) -> io::Result<Vec<Run>> {
        self.state.lock().runs(self, range)
    }

    /// Reads whole blocks, from `block` on. Holes read as zeros.
    pub fn read(&self, mut into: &mut [u8], block: u64) -> io::Result<()> {
        let block_bytes = self.volume.geometry.block_bytes;
        let _reading = self.reading.enter();
        for run in self.runs(block..block + into.len() as u64 / block_bytes)? {
            let (part, rest) = into.split_at_mut((run.blocks * block_bytes) as usize);
            match run.at {
                Some(at) => self.volume.read(part, at)?,
                None => part.fill(0),
            }
            into = rest;
        }
        Ok(())
    }

    /// Writes the whole blocks `range` of the file. Counts the requests.
    pub fn write(
        &self,
        data: &Data<'_>,
        range: Range<u64>,
        requests: &AtomicU64,
    ) -> io::Result<()> {
        let end = range.end * self.volume.geometry.block_bytes;
        let runs = self.runs(range.clone())?;
        if end > self.size() || has_holes(&runs) {
            return self.fill(data, range, requests);
        }
        self.write_runs(data, &runs, requests)?;
        self.state.lock().mark_behind(Behind::Times);
        Ok(())
    }

    fn write_runs(&self, data: &Data<'_>, runs: &[Run], requests: &AtomicU64) -> io::Result<()> {
        let mut done = 0;
        for run in runs {
            let bytes = run.blocks * self.volume.geometry.block_bytes;
            let at = run.at.expect("no hole is left");
            count(requests, 1);
            match runs.len() {
                1 => self.volume.write(data, at)?,
                _ => self.volume.write(&data.part(&(done..done + bytes)), at)?,
            }
            done += bytes;
        }
        Ok(())
    }

    /// Writes into holes or beyond the end. Allocates the blocks, writes them, and only then adds
    /// them to the file.
    fn fill(&self, data: &Data<'_>, range: Range<u64>, requests: &AtomicU64) -> io::Result<()> {
        let _alone = self.filling.lock();
        let volume = &*self.volume;
        let (block_bytes, size) = (volume.geometry.block_bytes, self.size());
        let end = range.end * block_bytes;
        self.check_size(end)?;
        if range.start * block_bytes > size {
            self.clear_behind(size)?;
        }
        // The lock of `filling` keeps these runs valid until the end.
        let runs = self.runs(range.clone())?;
        let taken = self.take_blocks(&runs, &range)?;
        let written = self.write_runs(data, &filled(&runs, &taken.data), requests);
        if let Err(error) = written {
            self.state.lock().map.give_back(&taken.all);
            volume.release(&taken.all)?;
            return Err(error);
        }
        let mut state = self.state.lock();
        state.map.fill(range.start, range.end, numbers(&taken.tables), numbers(&taken.data));
        state.inode.sectors = taken.sectors;
        state.inode.size = state.inode.size.max(end);
        state.mark_behind(if taken.all.is_empty() { Behind::Data } else { Behind::Blocks });
        Ok(())
    }

    /// Allocates the blocks that a write of `range` lacks. Tables come first, so that the data is
    /// contiguous.
    fn take_blocks(&self, runs: &[Run], range: &Range<u64>) -> io::Result<Taken> {
        let mut state = self.state.lock();
        let holes: u64 = runs.iter().filter(|run| run.at.is_none()).map(|run| run.blocks).sum();
        if holes == 0 {
            return Ok(Taken { sectors: state.inode.sectors, ..Taken::default() });
        }
        let tables = state.map.tables_missing(range.start, range.end);
        let sectors = (tables + holes) * self.volume.geometry.sectors_per_block();
        let Ok(sectors) = u32::try_from(u64::from(state.inode.sectors) + sectors) else {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        };
        let first_hole = range.start
            + runs.iter().take_while(|run| run.at.is_some()).map(|run| run.blocks).sum::<u64>();
        let goal = state.goal(self, first_hole)?;
        let all = self.volume.allocate(tables + holes, goal)?;
        if let Err(block) = state.map.reserve(&all) {
            self.volume.release(&all)?;
            return Err(corrupt(format!(
                "block {block} of inode {} was marked as free",
                self.number
            )));
        }
        let mut blocks = all.iter().cloned().flatten();
        let tables = ranges(blocks.by_ref().take(tables as usize));
        let data = ranges(blocks);
        Ok(Taken { all, tables, data, sectors })
    }

    /// Sets the size, in bytes. Removed blocks are free once the truncate is durable. An extension
    /// is a hole.
    pub fn truncate(&self, len: u64) -> io::Result<()> {
        let _alone = self.filling.lock();
        let block_bytes = self.volume.geometry.block_bytes;
        let size = self.size();
        if len > size {
            self.check_size(len)?;
        }
        let kept = len.div_ceil(block_bytes);
        if len < size {
            // These may fail, so they come before any change.
            let mut state = self.state.lock();
            state.learn_from(self, kept)?;
            state.check_sectors(self, kept)?;
        }
        self.clear_behind(len.min(size))?;
        let mut state = self.state.lock();
        if len < size {
            state.truncate(self, kept);
        }
        state.inode.size = len;
        state.mark_behind(Behind::Data);
        Ok(())
    }

    /// Fails if no file can have this size. Sets the feature `large_file` beyond 2 GiB.
    fn check_size(&self, size: u64) -> io::Result<()> {
        if size > self.volume.file_bytes_max() {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        if size > SMALL_FILE_BYTES_MAX { self.volume.allow_large_files() } else { Ok(()) }
    }

    /// Zeroes the bytes behind `size` in its block. They become part of the file when it grows.
    fn clear_behind(&self, size: u64) -> io::Result<()> {
        let block_bytes = self.volume.geometry.block_bytes;
        let (block, kept) = (size / block_bytes, (size % block_bytes) as usize);
        if kept == 0 {
            return Ok(());
        }
        let Some(at) = self.runs(block..block + 1)?[0].at else { return Ok(()) };
        let mut bytes = Buffer::zeroed(block_bytes as usize);
        self.volume.read(&mut bytes, at)?;
        if bytes[kept..].iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        bytes[kept..].fill(0);
        self.volume.write(&Data::of([&bytes[..]]), at)
    }

    /// Makes written data durable, and the metadata that leads to it; with the timestamps if
    /// `times`. Counts the metadata requests.
    pub fn sync(&self, times: bool, requests: &AtomicU64) -> io::Result<()> {
        let _alone = self.syncing.lock();
        // The changes of a failed sync count as written.
        self.volume.check_usable()?;
        let behind = if times { Behind::Times } else { Behind::Data };
        let Some((batch, freed)) = self.state.lock().take_changes(self.number, behind) else {
            return self.volume.flush();
        };
        self.volume.sync(Some(batch), requests)?;
        if !freed.is_empty() {
            // Waits for reads that mapped the blocks before the truncate.
            drop(self.reading.shut());
        }
        self.volume.release(&freed)
    }
}

/// Blocks allocated for a write, and not yet part of the file.
#[derive(Debug, Default)]
struct Taken {
    all: Vec<Range<u64>>,
    tables: Vec<Range<u64>>,
    data: Vec<Range<u64>>,
    /// The sectors of the inode with these blocks.
    sectors: u32,
}

impl NodeState {
    fn runs(&mut self, node: &Node, range: Range<u64>) -> io::Result<Vec<Run>> {
        let mut runs = Vec::new();
        let mut start = range.start;
        while start < range.end {
            match self.map.run(start, range.end) {
                Found::Needs(table) => self.learn(node, table)?,
                Found::Run(run) => {
                    push(&mut runs, run);
                    start += run.blocks;
                }
            }
        }
        Ok(runs)
    }

    /// Reads a table, and checks its pointers before the map uses them.
    fn learn(&mut self, node: &Node, table: u32) -> io::Result<()> {
        let pointers = node.volume.table(table)?;
        for range in ranges(named(&pointers)) {
            node.volume.check(range, node.number)?;
        }
        self.map.learn(table, pointers).map_err(|block| twice(node.number, block))
    }

    /// Returns the preferred block for `hole`: behind the previous block of the file, or the first
    /// of the inode's group.
    fn goal(&mut self, node: &Node, hole: u64) -> io::Result<u64> {
        let before = match hole {
            0 => None,
            _ => self.runs(node, hole - 1..hole)?[0].at,
        };
        before.map_or_else(|| node.volume.home_of(node.number), |block| Ok(block + 1))
    }

    /// Reads all tables that lead to blocks behind the first `keep`.
    fn learn_from(&mut self, node: &Node, keep: u64) -> io::Result<()> {
        loop {
            let unknown = self.map.unknown_from(keep);
            if unknown.is_empty() {
                return Ok(());
            }
            for table in unknown {
                self.learn(node, table)?;
            }
        }
    }

    /// Fails if the inode has fewer sectors than the blocks that a truncate to `keep` blocks frees.
    /// All tables that lead to them are known.
    fn check_sectors(&self, node: &Node, keep: u64) -> io::Result<()> {
        let freed = self.map.count_from(keep) * node.volume.geometry.sectors_per_block();
        if freed <= u64::from(self.inode.sectors) {
            return Ok(());
        }
        node.volume.give_up(format!("inode {} has fewer sectors than blocks", node.number));
        let sectors = self.inode.sectors;
        Err(corrupt(format!("inode {} has {sectors} sectors, and more blocks", node.number)))
    }

    /// Truncates the file to `keep` blocks, after [`check_sectors`](Self::check_sectors).
    fn truncate(&mut self, node: &Node, keep: u64) {
        let freed = self.map.truncate(keep);
        self.inode.sectors -= (freed.len() * node.volume.geometry.sectors_per_block()) as u32;
        self.freed.extend(freed.iter());
    }

    fn mark_behind(&mut self, behind: Behind) {
        self.behind = self.behind.max(behind);
    }

    /// Takes the changes to make durable, and the blocks that are free then. Returns None if fewer
    /// changes than `least` are pending.
    fn take_changes(&mut self, number: u32, least: Behind) -> Option<(Batch, Vec<Range<u64>>)> {
        if self.behind < least {
            return None;
        }
        let has_more_blocks =
            std::mem::replace(&mut self.behind, Behind::Nothing) == Behind::Blocks;
        self.inode.pointers = *self.map.roots();
        let (new, changed) = self.map.take_changed();
        let batch = Batch { number, inode: self.inode.clone(), has_more_blocks, new, changed };
        Some((batch, std::mem::take(&mut self.freed)))
    }
}

fn has_holes(runs: &[Run]) -> bool {
    runs.iter().any(|run| run.at.is_none())
}

fn numbers(ranges: &[Range<u64>]) -> impl Iterator<Item = u32> {
    ranges.iter().cloned().flatten().map(|block| block as u32)
}

fn twice(number: u32, block: u32) -> io::Error {
    corrupt(format!("inode {number} names block {block} twice"))
}
