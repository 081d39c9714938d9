//! A small disk in memory, with a volatile cache and a crash: for tests, without threads or time of its own.
//!
//! What it keeps of a crash is what a file system keeps: metadata (size, allocation, marker) old or new as one, and of
//! the blocks not yet flushed any subset.

use super::{Backend, Job};
use crate::buffer::Segment;
use crate::recovery::Extent;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The block of the simulated file system, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// What a test can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A write.
    Write,
    /// A flush or sync.
    Flush,
    /// An allocation.
    Allocate,
    /// Setting or removing the marker.
    Marker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    content: u64,
    allocated: bool,
    written: bool,
}

const HOLE: Block = Block { content: 0, allocated: false, written: false };

/// One state of the file. Of every block only its first eight bytes are kept.
#[derive(Clone, Debug, Default)]
struct Image {
    blocks: Vec<Block>,
    size: u64,
    marker: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    live: Image,
    stable: Image,
    calls: u64,
    dies_after: Option<u64>,
    faults: Vec<(Call, u64, i32)>,
    short_writes: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Sim {
    state: Mutex<State>,
    capacity_blocks: usize,
    allocates: bool,
}

impl Sim {
    /// An empty file on a disk of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        let capacity_blocks = (capacity_bytes / BLOCK_BYTES) as usize;
        Self { state: Mutex::default(), capacity_blocks, allocates: true }
    }

    /// One where space is only taken by writing, as where files are mapped by indirect blocks.
    pub fn without_allocation(capacity_bytes: u64) -> Self {
        Self { allocates: false, ..Self::new(capacity_bytes) }
    }

    /// The `nth` next call of this kind (from 0) fails with `errno`.
    pub fn fail(&self, call: Call, nth: u64, errno: i32) {
        self.state().faults.push((call, nth, errno));
    }

    /// Writes are cut short in the middle from now on.
    pub fn shorten_writes(&self) {
        self.state().short_writes = true;
    }

    /// After `calls` more calls that change something, every call fails: the process is gone.
    pub fn die_after(&self, calls: u64) {
        let mut state = self.state();
        state.dies_after = Some(state.calls + calls);
    }

    /// How many calls changed something so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The disk after a power cut now: `keep` says for the metadata (block number None), and for each block that was not
    /// flushed, whether its new state made it.
    pub fn crash(&self, mut keep: impl FnMut(Option<usize>) -> bool) -> Self {
        let state = self.state();
        let (live, stable) = (&state.live, &state.stable);
        let mut image = if keep(None) {
            let blocks = live.blocks.iter().enumerate().map(|(n, block)| {
                let before = stable.blocks.get(n).copied().unwrap_or(HOLE);
                let allocated = block.allocated || before.allocated;
                Block { allocated, ..before }
            });
            Image { blocks: blocks.collect(), size: live.size, marker: live.marker.clone() }
        } else {
            stable.clone()
        };
        for (n, block) in image.blocks.iter_mut().enumerate() {
            let new = live.blocks.get(n).copied().unwrap_or(HOLE);
            if new.written && block.allocated && *block != new && keep(Some(n)) {
                *block = new;
            }
        }
        let state = State { live: image.clone(), stable: image, ..State::default() };
        Self { state: Mutex::new(state), ..*self }
    }

    /// The first eight bytes of a block, as a number; nothing beyond the size.
    pub fn content(&self, block: u64) -> Option<u64> {
        let state = self.state();
        let exists = (block + 1) * BLOCK_BYTES <= state.live.size;
        exists.then(|| state.live.blocks.get(block as usize).map_or(0, |block| block.content))
    }

    /// Whether the file carries a marker.
    pub fn is_marked(&self) -> bool {
        self.state().live.marker.is_some()
    }

    /// Another program writes `blocks` blocks at the end.
    pub fn append_behind_our_back(&self, blocks: u64) {
        let mut state = self.state();
        let start = state.live.size / BLOCK_BYTES;
        let written = Block { content: u64::MAX, allocated: true, written: true };
        state.live.reach(start + blocks);
        state.live.blocks[start as usize..(start + blocks) as usize].fill(written);
        state.live.size += blocks * BLOCK_BYTES;
        state.stable = state.live.clone();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call that changes something, and fails it if it is to fail.
    fn change(&self, call: Call) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.calls += 1;
        if state.dies_after.is_some_and(|last| state.calls > last) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let mut failure = None;
        state.faults.retain_mut(|(kind, nth, errno)| {
            if *kind != call || failure.is_some() {
                return true;
            }
            if *nth == 0 {
                failure = Some(*errno);
                return false;
            }
            *nth -= 1;
            true
        });
        failure.map_or(Ok(state), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}

impl Image {
    fn reach(&mut self, blocks: u64) {
        if self.blocks.len() < blocks as usize {
            self.blocks.resize(blocks as usize, HOLE);
        }
    }

    fn allocated(&self) -> usize {
        self.blocks.iter().filter(|block| block.allocated).count()
    }

    fn truncate(&mut self, len: u64) {
        self.blocks.truncate(len.div_ceil(BLOCK_BYTES) as usize);
        self.size = len;
    }
}

impl Backend for Sim {
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64> {
        let mut state = self.change(Call::Write)?;
        let mut bytes = Vec::new();
        segments.iter().for_each(|segment| segment.copy_to(&mut bytes));
        if state.short_writes && bytes.len() > BLOCK_BYTES as usize {
            bytes.truncate(bytes.len() / 2);
        }
        let first = (offset / BLOCK_BYTES) as usize;
        bytes.truncate((bytes.len() / BLOCK_BYTES as usize).max(1) * BLOCK_BYTES as usize);
        let whole = &bytes[..bytes.len() / BLOCK_BYTES as usize * BLOCK_BYTES as usize];
        let image = &mut state.live;
        image.reach((first + whole.len() / BLOCK_BYTES as usize) as u64);
        for (n, block) in whole.chunks(BLOCK_BYTES as usize).enumerate() {
            let content = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
            image.blocks[first + n] = Block { content, allocated: true, written: true };
        }
        image.size = image.size.max(offset + whole.len() as u64);
        if image.allocated() > self.capacity_blocks {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if dsync {
            let State { live, stable, .. } = &mut *state;
            stable.reach((first + whole.len() / BLOCK_BYTES as usize) as u64);
            let range = first..first + whole.len() / BLOCK_BYTES as usize;
            stable.blocks[range.clone()].copy_from_slice(&live.blocks[range]);
            stable.size = stable.size.max(offset + whole.len() as u64);
        }
        Ok(bytes.len() as u64)
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<u64> {
        let state = self.state();
        let read = (into.len() as u64).min(state.live.size.saturating_sub(offset));
        let first = (offset / BLOCK_BYTES) as usize;
        for (n, chunk) in into[..read as usize].chunks_mut(BLOCK_BYTES as usize).enumerate() {
            chunk.fill(0);
            let content = state.live.blocks.get(first + n).map_or(0, |block| block.content);
            chunk[..8].copy_from_slice(&content.to_le_bytes());
        }
        Ok(read)
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.change(Call::Flush)?;
        state.stable = state.live.clone();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.flush()
    }

    fn physical_size(&self) -> io::Result<u64> {
        Ok(self.state().live.size)
    }

    fn allocate(&self, start: u64, end: u64) -> io::Result<()> {
        if !self.allocates {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mut state = self.change(Call::Allocate)?;
        let (first, last) = ((start / BLOCK_BYTES) as usize, end.div_ceil(BLOCK_BYTES) as usize);
        let known = state.live.blocks.len();
        let new = (first..last).filter(|&n| n >= known || !state.live.blocks[n].allocated).count();
        let left = self.capacity_blocks - state.live.allocated();
        // As real file systems do, what there is is taken, and the size moved, before there is no more.
        let (last, end) =
            if new > left { (first + left, (first + left) as u64 * BLOCK_BYTES) } else { (last, end) };
        state.live.reach(last as u64);
        state.live.blocks[first..last].iter_mut().for_each(|block| block.allocated = true);
        state.live.size = state.live.size.max(end);
        if new > left { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    }

    fn write_zeroes(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut state = self.change(Call::Allocate)?;
        state.live.truncate(len);
        Ok(())
    }

    fn extents(&self) -> io::Result<Vec<Extent>> {
        let state = self.state();
        let allocated = state.live.blocks.iter().enumerate().filter(|(_, block)| block.allocated);
        Ok(allocated
            .map(|(n, block)| {
                let start = n as u64 * BLOCK_BYTES;
                Extent { start, end: start + BLOCK_BYTES, written: block.written }
            })
            .collect())
    }

    fn read_marker(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.state().live.marker.clone())
    }

    fn write_marker(&self, bytes: &[u8]) -> io::Result<()> {
        self.change(Call::Marker)?.live.marker = Some(bytes.to_vec());
        Ok(())
    }

    fn remove_marker(&self) -> io::Result<()> {
        self.change(Call::Marker)?.live.marker = None;
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let free = self.capacity_blocks - self.state().live.allocated();
        Ok(free as u64 * BLOCK_BYTES)
    }

    fn size_max(&self) -> u64 {
        u64::MAX
    }

    fn spawn(&self, job: Job) -> io::Result<Option<crate::sync::JoinHandle>> {
        job();
        Ok(None)
    }

    fn unlock(&self) {}
}
