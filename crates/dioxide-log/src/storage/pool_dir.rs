//! The directory of the free segments that the logs of a set share.
//!
//! The first block of a free segment is zeros, so no log takes it for a segment of another one. Its
//! frames are those of the log that had it last. They are invalid in another log, whose id is
//! another, and in a later segment of the same log, whose life is another.
//!
//! A log gives a segment back:
//!
//! 1. Its first block is overwritten with zeros, durably. It is free in the log's directory, too.
//! 2. It is renamed into this directory.
//! 3. This directory is synced, then that of the log. Only then another log may take it.
//!
//! A log takes a segment:
//!
//! 1. If it is the first one of a new log, its first block becomes the header, durably. Without any
//!    header in the directory, old frames would look like those of a damaged log.
//! 2. It is renamed into the directory of the log.
//! 3. That directory is synced, then this one. Only then the log writes to it.
//!
//! After a crash a segment is in one of the two directories. A segment here may have the header of
//! a log that was not created. [`PoolDir::open`] overwrites it. A free segment in the directory of
//! a log is given back once that log is open.

use super::dir::{segment_name, segment_names};
use super::steps::{Steps, StorageStep};
use crate::error::{Error, Result};
use crate::format::header::{Found, Header};
use crate::format::{BLOCK_BYTES, is_segment_size};
use crate::locked::locked;
use crate::stats::PoolCounters;
use dioxide::{Buffer, File};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// A directory of free segments.
#[derive(Debug)]
pub struct PoolDir {
    path: PathBuf,
    /// More are removed.
    segments_max: usize,
    steps: Arc<dyn Steps>,
    /// From the oldest.
    free: Mutex<VecDeque<Free>>,
    /// The number in the next new name.
    next_name: AtomicU64,
    counters: PoolCounters,
}

#[derive(Debug)]
struct Free {
    path: PathBuf,
    bytes: u64,
}

impl PoolDir {
    /// Opens a directory, creates it if it is missing, and overwrites headers that a crash left.
    pub fn open(path: &Path, segments_max: usize, steps: Arc<dyn Steps>) -> Result<Self> {
        // The set makes its name stable.
        steps.take(StorageStep::Create(path))?;
        // A process that was killed may not have synced its last names.
        steps.take(StorageStep::Sync(path))?;
        let segments = segments_of(path)?;
        let next_name = segments.last().map_or(0, |(number, _)| number + 1);
        let mut free = VecDeque::new();
        for (_, segment) in segments {
            match erase_header(&segment.path, steps.as_ref()) {
                Ok(()) => free.push_back(segment),
                Err(error) => {
                    // The set does not need it.
                    log::warn!("{error}");
                    steps.take(StorageStep::Remove(&segment.path))?;
                }
            }
        }
        let (path, free, next_name) = (path.into(), Mutex::new(free), AtomicU64::new(next_name));
        let pool = Self { path, segments_max, steps, free, next_name, counters: <_>::default() };
        pool.make_room(segments_max)?;
        Ok(pool)
    }

    pub fn steps(&self) -> &dyn Steps {
        self.steps.as_ref()
    }

    fn free(&self) -> MutexGuard<'_, VecDeque<Free>> {
        locked(&self.free)
    }

    /// The number of free segments.
    pub fn len(&self) -> usize {
        self.free().len()
    }

    pub fn counters(&self) -> &PoolCounters {
        &self.counters
    }

    /// Moves a segment of this size to a path in the directory of a log. `head` is its first block
    /// if it is not zeros. False if there is none.
    pub fn take(&self, bytes: u64, head: Option<&[u8]>, dir: &Path, to: &Path) -> Result<bool> {
        let taken = {
            let mut free = self.free();
            let fits = free.iter().position(|free| free.bytes == bytes);
            fits.and_then(|at| free.remove(at))
        };
        let Some(taken) = taken else { return Ok(false) };
        let from = taken.path.as_path();
        let moved = head
            .map_or(Ok(()), |block| self.steps.take(StorageStep::Head { path: from, block }))
            .and_then(|()| self.steps.take(StorageStep::Rename { from, to }))
            .and_then(|()| {
                self.steps.take_all(&[StorageStep::Sync(dir), StorageStep::Sync(&self.path)])
            });
        if let Err(error) = moved {
            self.drop_both(from, to);
            return Err(error);
        }
        self.counters.on_taken();
        Ok(true)
    }

    /// Removes a segment that was not moved from one path to the other. No thread knows it any
    /// more, and its space is needed. The error of the first failure counts.
    fn drop_both(&self, from: &Path, to: &Path) {
        self.counters.on_removed();
        for path in [from, to] {
            let _ = self.steps.take(StorageStep::Remove(path));
        }
    }

    /// Moves a segment here that no thread uses, from the directory of its log. It is removed if
    /// there is no room, or if a step fails.
    pub fn give(&self, segment: &Path, bytes: u64, dir: &Path) -> Result<()> {
        if self.segments_max == 0 {
            self.counters.on_removed();
            return self.steps.take(StorageStep::Remove(segment));
        }
        let number = self.next_name.fetch_add(1, Relaxed);
        let to = self.path.join(segment_name(number));
        let zeros = Buffer::zeroed(BLOCK_BYTES as usize);
        let steps = [
            StorageStep::Head { path: segment, block: &zeros },
            StorageStep::Rename { from: segment, to: &to },
            StorageStep::Sync(&self.path),
            StorageStep::Sync(dir),
        ];
        // Those of another size may not be needed any more, and are the oldest then.
        let room = self.make_room(self.segments_max - 1);
        if let Err(error) = room.and_then(|()| self.steps.take_all(&steps)) {
            self.drop_both(segment, &to);
            return Err(error);
        }
        self.free().push_back(Free { path: to, bytes });
        self.counters.on_given();
        Ok(())
    }

    /// Takes the segments of a directory that there is room for, and removes the directory. It is
    /// that of a log that was removed: no thread uses it.
    pub fn dissolve(&self, dir: &Path) -> Result<()> {
        for Free { path, bytes } in segments_of(dir)?.into_iter().map(|(_, free)| free) {
            if self.len() < self.segments_max
                && let Err(error) = self.give(&path, bytes, dir)
            {
                // The pool does not need it.
                log::warn!("{error}");
            }
        }
        self.steps.take(StorageStep::RemoveAll(dir))
    }

    /// Removes the oldest segments beyond this number.
    fn make_room(&self, segments_max: usize) -> Result<()> {
        loop {
            let mut free = self.free();
            if free.len() <= segments_max {
                return Ok(());
            }
            let oldest = free.pop_front().expect("one more");
            drop(free);
            self.counters.on_removed();
            self.steps.take(StorageStep::Remove(&oldest.path))?;
        }
    }
}

/// The segments of a directory, and the numbers in their names.
fn segments_of(dir: &Path) -> Result<Vec<(u64, Free)>> {
    let mut segments = Vec::new();
    for (number, path) in segment_names(dir)? {
        let metadata = fs::metadata(&path);
        let bytes = metadata.map_err(|error| Error::system("open", &path, error))?.len();
        if is_segment_size(bytes) {
            segments.push((number, Free { path, bytes }));
        }
    }
    Ok(segments)
}

fn erase_header(path: &Path, steps: &dyn Steps) -> Result<()> {
    let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
    let file = File::open(path)?;
    file.read_at(&mut block, 0)?;
    file.close()?;
    match Header::parse(&block) {
        Found::Blank => Ok(()),
        _ => {
            block.fill(0);
            steps.take(StorageStep::Head { path, block: &block })
        }
    }
}
