//! A simulated disk with the segments of a log, for tests. It shows the log after a power cut in
//! any call, behind a disk that lies about flushes, after failed writes, or without space.

use super::{Mark, Segment, Storage};
use crate::error::{Error, Result};
use crate::locked::locked;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR_BYTES: usize = 512;

/// A disk in memory. Clones are the same disk.
///
/// A power cut keeps any subset of the sectors (512 bytes) of each write that was not stable.
#[derive(Clone)]
pub struct Memory {
    state: Arc<Mutex<MemoryState>>,
}

#[derive(Default)]
struct MemoryState {
    segments: BTreeMap<u64, SegmentContent>,
    next: u64,
    faults: Faults,
    calls: u64,
    dead: bool,
    mark: Option<Mark>,
}

#[derive(Clone, Default)]
struct SegmentContent {
    /// What a power cut certainly keeps.
    stable: Vec<u8>,
    /// Writes that were not stable, in their order.
    unstable: Vec<(usize, Vec<u8>)>,
    /// What reads return.
    seen: Vec<u8>,
}

/// The faults of a [`Memory`].
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The power fails during this write, sync or create, counted from 1. That call and all later
    /// ones fail.
    pub power_cut: Option<u64>,
    /// This write, counted as above, fails after any part of it.
    pub failed_call: Option<u64>,
    /// Stable writes and syncs make nothing stable.
    pub lies: bool,
    /// The largest number of segments.
    pub segments_max: Option<usize>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(Faults::default())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Memory {
    /// An empty disk.
    pub fn new(faults: Faults) -> Self {
        Self { state: Arc::new(Mutex::new(MemoryState { faults, ..MemoryState::default() })) }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        locked(&self.state)
    }

    /// Replaces the faults. Calls count on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The number of writes, syncs and creates so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The disk after a power cut now, without faults. The seed decides which sectors survive.
    pub fn after_power_cut(&self, seed: u64) -> Self {
        let mut draws = Draws(seed);
        let state = self.state();
        let mut segments = state.segments.clone();
        for content in segments.values_mut() {
            for (offset, data) in std::mem::take(&mut content.unstable) {
                // Some writes survive whole, or are lost whole.
                let share = [0, 0, 1, 2, 3, 4, 4][draws.below(7)];
                for (number, sector) in data.chunks(SECTOR_BYTES).enumerate() {
                    if draws.below(4) < share {
                        let at = offset + number * SECTOR_BYTES;
                        content.stable[at..at + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            content.seen = content.stable.clone();
        }
        let next = state.next;
        Self {
            state: Arc::new(Mutex::new(MemoryState { segments, next, ..MemoryState::default() })),
        }
    }

    /// The disk after the process was killed: what was written is there, and not yet stable.
    pub fn after_kill(&self) -> Self {
        let state = self.state();
        let (segments, next) = (state.segments.clone(), state.next);
        Self {
            state: Arc::new(Mutex::new(MemoryState { segments, next, ..MemoryState::default() })),
        }
    }

    /// The names of the segments, which [`edit`](Self::edit) and [`copy`](Self::copy) take.
    pub fn names(&self) -> Vec<u64> {
        self.state().segments.keys().copied().collect()
    }

    /// Changes the content of a segment from outside.
    ///
    /// # Panics
    ///
    /// If there is no such segment.
    pub fn edit<R>(&self, name: u64, edit: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let mut state = self.state();
        let content = state.segments.get_mut(&name).expect("a segment of this name");
        let result = edit(&mut content.seen);
        content.stable = content.seen.clone();
        content.unstable.clear();
        result
    }

    /// Removes a segment from outside.
    pub fn take(&self, name: u64) -> Option<Vec<u8>> {
        self.state().segments.remove(&name).map(|content| content.seen)
    }

    /// Adds a segment from outside, and returns its name.
    pub fn put(&self, bytes: Vec<u8>) -> u64 {
        let mut state = self.state();
        let name = state.next;
        state.next += 1;
        let content = SegmentContent { stable: bytes.clone(), unstable: Vec::new(), seen: bytes };
        state.segments.insert(name, content);
        name
    }

    /// An equal disk of its own.
    pub fn copy(&self) -> Self {
        let copy = self.after_kill();
        for content in copy.state().segments.values_mut() {
            content.stable = content.seen.clone();
            content.unstable.clear();
        }
        copy
    }
}

/// What is to happen to a call.
enum CallFate {
    Works,
    /// It ends with an error. Its data may reach the disk.
    Fails(io::Error),
}

impl MemoryState {
    fn call(&mut self) -> Result<CallFate> {
        if self.dead {
            return Err(failed(io::Error::other("the power has failed")));
        }
        self.calls += 1;
        if self.faults.power_cut == Some(self.calls) {
            self.dead = true;
            return Ok(CallFate::Fails(io::Error::other("the power fails")));
        }
        if self.faults.failed_call == Some(self.calls) {
            return Ok(CallFate::Fails(io::Error::other("a planted error")));
        }
        Ok(CallFate::Works)
    }
}

fn failed(error: io::Error) -> Error {
    Error::system("write", Path::new("memory"), error)
}

impl Storage for Memory {
    fn path(&self) -> &Path {
        Path::new("memory")
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        let state = self.state();
        let segment = |(name, content): (&u64, &SegmentContent)| {
            Arc::new(MemorySegment::new(self, *name, content.seen.len() as u64)) as Arc<dyn Segment>
        };
        Ok(state.segments.iter().map(segment).collect())
    }

    fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>> {
        let mut state = self.state();
        if let CallFate::Fails(error) = state.call()? {
            return Err(failed(error));
        }
        if state.faults.segments_max.is_some_and(|max| state.segments.len() >= max) {
            return Err(failed(io::ErrorKind::StorageFull.into()));
        }
        drop(state);
        let name = self.put(vec![0; bytes as usize]);
        Ok(Arc::new(MemorySegment::new(self, name, bytes)))
    }

    fn publish(&self, mark: Mark) {
        self.state().mark = Some(mark);
    }

    fn mark(&self) -> Result<Option<Mark>> {
        Ok(self.state().mark)
    }

    fn remove(&self, segment: &dyn Segment) -> Result<()> {
        let mut state = self.state();
        state.segments.retain(|name, _| MemorySegment::path_of(*name) != segment.path());
        Ok(())
    }
}

/// A segment of the disk.
#[derive(Debug)]
struct MemorySegment {
    disk: Memory,
    name: u64,
    path: PathBuf,
    bytes: u64,
}

impl MemorySegment {
    fn new(disk: &Memory, name: u64, bytes: u64) -> Self {
        Self { disk: disk.clone(), name, path: Self::path_of(name), bytes }
    }

    fn path_of(name: u64) -> PathBuf {
        format!("memory/{name}").into()
    }

    fn with<R>(&self, with: impl FnOnce(&mut MemoryState, u64) -> Result<R>) -> Result<R> {
        let mut state = self.disk.state();
        if !state.segments.contains_key(&self.name) {
            return Err(Error::system("open", &self.path, io::ErrorKind::NotFound));
        }
        with(&mut state, self.name)
    }
}

impl Segment for MemorySegment {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        self.with(|state, name| {
            let fate = state.call()?;
            let lies = state.faults.lies;
            let content = state.segments.get_mut(&name).expect("it is there");
            let at = offset as usize..offset as usize + data.len();
            content.seen[at.clone()].copy_from_slice(data);
            content.unstable.push((at.start, data.into()));
            if let CallFate::Fails(error) = fate {
                return Err(failed(error));
            }
            if durable && !lies {
                content.unstable.pop();
                content.stable[at.clone()].copy_from_slice(data);
                // An older write of the same bytes cannot come back.
                for (start, older) in &mut content.unstable {
                    let both = at.start.max(*start)..at.end.min(*start + older.len());
                    if !both.is_empty() {
                        older[both.start - *start..both.end - *start]
                            .copy_from_slice(&data[both.start - at.start..both.end - at.start]);
                    }
                }
            }
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        self.with(|state, name| {
            if let CallFate::Fails(error) = state.call()? {
                return Err(failed(error));
            }
            let lies = state.faults.lies;
            let content = state.segments.get_mut(&name).expect("it is there");
            if !lies {
                content.stable = content.seen.clone();
                content.unstable.clear();
            }
            Ok(())
        })
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.with(|state, name| {
            let at = offset as usize..offset as usize + into.len();
            into.copy_from_slice(&state.segments[&name].seen[at]);
            Ok(())
        })
    }
}

/// Pseudorandom numbers: the same for a seed for ever.
struct Draws(u64);

impl Draws {
    /// A number below `end`, by splitmix64.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}
