//! The files of a run with several: nameless, of equal length, with blocks in turn.
//!
//! Block b of n files is block b / n of file b % n, so adjacent blocks are on different files.

use super::ledger::{End, Ledger};
use super::members::Members;
use super::place::{BenchTarget, old_bytes, write_in_parts};
use super::task::Task;
use super::work::Space;
use crate::interrupt;
use anyhow::{Context, Result, bail};
use dioxide::{OpenOptions, Stats};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, syncfs};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// The files of a run, open for direct reads and writes.
pub struct Set {
    members: Members,
    /// Of each file.
    rows: u64,
    block_bytes: u64,
}

/// As for one file, truncation frees the space before it returns, so that it does not disturb the
/// next run.
impl Drop for Set {
    fn drop(&mut self) {
        self.files().iter().for_each(|file| drop(file.set_len(0)));
    }
}

impl Set {
    /// Makes the files for a run. Their space is durable on return, by one flush for all.
    pub fn make(task: &Task<'_>) -> Result<Self> {
        let (count, block_bytes) = (task.point.files.unwrap_or(1), task.point.sizes.max_bytes);
        let files = (0..count).map(|_| direct(task.place)).collect::<Result<Vec<_>>>()?;
        let rows = task.size_bytes / block_bytes / count as u64;
        let set = Self { members: Members::in_turn(files, block_bytes), rows, block_bytes };
        match task.point.space {
            Some(Space::Unwritten) => set.allocate()?,
            _ => set.fill()?,
        }
        set.sync_file_system()?;
        Ok(set)
    }

    pub fn files(&self) -> &[File] {
        self.members.files()
    }

    /// The number of blocks of each file.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The number of blocks of all files.
    pub fn blocks(&self) -> u64 {
        self.rows * self.files().len() as u64
    }

    /// The file with the block at `offset` of all blocks, by number, and the offset in that file.
    pub fn position(&self, offset: u64) -> (usize, u64) {
        self.members.position(offset)
    }

    /// Writes the block at `offset` of all blocks. Returns its file.
    pub fn write(&self, block: &[u8], offset: u64) -> Result<&File> {
        let (nth, position) = self.position(offset);
        let file = &self.files()[nth];
        file.write_all_at(block, position)
            .with_context(|| format!("pwrite at {position} of file {nth}"))?;
        Ok(file)
    }

    /// One flush for all files.
    pub fn sync_file_system(&self) -> Result<()> {
        self.files().first().map_or(Ok(()), |file| syncfs(file).context("syncfs"))
    }

    /// Opens every file with dioxide.
    pub fn open_with(&self, options: &OpenOptions) -> Result<Vec<dioxide::File>> {
        let open = |file: &File| {
            interrupt::check()?;
            Ok(options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
        };
        self.files().iter().map(open).collect()
    }

    /// Reads back what was acknowledged, and compares.
    pub fn verify(&self, ledger: &Ledger) -> Result<()> {
        ledger.verify(&self.members, End::Anywhere)
    }

    fn bytes_of_each(&self) -> u64 {
        self.rows * self.block_bytes
    }

    fn allocate(&self) -> Result<()> {
        for file in self.files() {
            interrupt::check()?;
            fallocate(file, FallocateFlags::empty(), 0, self.bytes_of_each())
                .context("fallocate")?;
        }
        Ok(())
    }

    fn fill(&self) -> Result<()> {
        let bytes = self.bytes_of_each();
        let old = old_bytes(bytes);
        let fill = |file| write_in_parts(file, &old, bytes).context("write the blocks beforehand");
        self.files().iter().try_for_each(fill)
    }
}

/// A scratch file, open for direct reads and writes.
fn direct(place: &BenchTarget) -> Result<File> {
    interrupt::check()?;
    let file = place.scratch()?;
    let flags = fcntl_getfl(&file).context("fcntl")?;
    match fcntl_setfl(&file, flags | OFlags::DIRECT) {
        Ok(()) => Ok(file),
        Err(Errno::INVAL) => bail!("O_DIRECT is not supported here"),
        Err(errno) => Err(errno).context("fcntl"),
    }
}

/// The refused merges of these files together. The report has no other counter of several files.
pub fn refusals(files: &[dioxide::File]) -> Stats {
    let mut sum = Stats::default();
    for stats in files.iter().map(dioxide::File::stats) {
        sum.refused_gap += stats.refused_gap;
        sum.refused_bytes += stats.refused_bytes;
        sum.refused_segments += stats.refused_segments;
        sum.refused_member += stats.refused_member;
        sum.refused_order += stats.refused_order;
    }
    sum
}

/// Closes all files.
pub fn close(files: Vec<dioxide::File>) -> Result<()> {
    for file in files {
        interrupt::check()?;
        file.close()?;
    }
    Ok(())
}

#[cfg(test)]
pub mod examples {
    use super::super::work::{Pace, Point, Route, Units, Work};
    use super::*;
    use std::time::Duration;

    /// A run of 50 ms over 64 KiB, in blocks of 4 KiB.
    pub fn task(place: &BenchTarget, point: Point, route: Route) -> Task<'_> {
        let pace = Pace { runtime: Duration::from_millis(50), rounds: 1 };
        let units = Units { write_bytes: 4096, append_bytes: 4096 };
        Task::new(place, &Work::new(vec![(point, route)], pace, 64 << 10, units), point, route)
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::examples::files_point;
    use super::super::work::{Point, Route};
    use super::*;
    use dioxide::Growth;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    /// The descriptors of this process for files of a directory, nameless ones too.
    fn descriptors(directory: &Path) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        targets.filter(|target| target.parent() == Some(directory)).count()
    }

    #[test]
    fn files_are_nameless_and_of_equal_length() {
        let directory = tempfile::tempdir().unwrap();
        let place = BenchTarget::directory(directory.path()).unwrap();
        for space in [Space::Written, Space::Unwritten] {
            let point = Point { space: Some(space), ..files_point(3, 1) };
            let set = Set::make(&examples::task(&place, point, Route::Kernel)).unwrap();
            assert_eq!((set.rows(), set.blocks()), (5, 15), "16 blocks are not a multiple of 3");
            for file in set.files() {
                let metadata = file.metadata().unwrap();
                assert_eq!((metadata.len(), metadata.nlink()), (5 * 4096, 0));
                assert!(metadata.blocks() * 512 >= 5 * 4096, "{metadata:?}");
            }
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }

    /// As the limit of open files assumes.
    #[test]
    fn a_file_takes_two_descriptors() {
        const COUNT: usize = 200;
        let directory = tempfile::tempdir().unwrap();
        let place = BenchTarget::directory(directory.path()).unwrap();
        let task = Task {
            size_bytes: 1 << 20,
            ..examples::task(&place, files_point(COUNT, 1), Route::Dioxide)
        };
        let set = Set::make(&task).unwrap();
        let files = set.open_with(OpenOptions::new().write(true).growth(Growth::None)).unwrap();
        assert_eq!(descriptors(&directory.path().canonicalize().unwrap()), 2 * COUNT);
        assert_eq!(refusals(&files), Stats::default());
        close(files).unwrap();
    }
}
