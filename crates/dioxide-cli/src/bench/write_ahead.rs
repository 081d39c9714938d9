//! A log of `dioxide-log` in segments without names, as the other scratch files of a bench, and a
//! set of logs in a directory.

use super::place::RunFile;
use super::queued::Finished;
use crate::interrupt;
use crate::sizes::Sizes;
use anyhow::{Context, Result};
use dioxide::{Buffer, OpenOptions};
use dioxide_log::storage::file::FileSegment;
use dioxide_log::storage::{Segment, Storage};
use dioxide_log::{Log, LogOptions, LogSet, LogView, Lsn};
use futures::future::BoxFuture;
use std::io::{self, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The default of the library. Long batches need more.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
/// The limit of the library.
pub const SEGMENT_BYTES_LIMIT: u64 = 1 << 30;
/// The part of a segment without frames.
const OVERHEAD_BYTES: u64 = 8 << 10;
/// A frame without its payload, and the padding behind it.
const FRAME_BYTES_MAX: u64 = 24 + 7;
/// The log is also filled in records of this part of a segment.
const FILL_PARTS: u64 = 4;
const COPY_BYTES: usize = 1 << 20;
/// The threads that open and fill the logs of a set.
const OPENERS_MAX: usize = 32;

/// The files of a run.
#[derive(Debug)]
struct SegmentFiles {
    path: PathBuf,
    state: Mutex<FilesState>,
}

#[derive(Default)]
struct FilesState {
    /// Files that are not yet segments.
    empty: Vec<RunFile>,
    /// Segments, and their files, which vanish later.
    used: Vec<(Arc<dyn Segment>, RunFile)>,
}

impl std::fmt::Debug for FilesState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.used.iter().map(|(segment, _)| segment.path())).finish()
    }
}

impl SegmentFiles {
    fn state(&self) -> MutexGuard<'_, FilesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: impl Into<anyhow::Error>) -> dioxide_log::Error {
    let error = Arc::new(io::Error::other(format!("{:#}", error.into())));
    dioxide_log::Error::System { action: "create", path: "a segment".into(), error }
}

impl Storage for SegmentFiles {
    fn path(&self) -> &Path {
        &self.path
    }

    fn segments(&self) -> dioxide_log::Result<Vec<Arc<dyn Segment>>> {
        Ok(self.state().used.iter().map(|(segment, _)| segment.clone()).collect())
    }

    fn create(&self, bytes: u64) -> dioxide_log::Result<Arc<dyn Segment>> {
        let ground = self.state().empty.pop();
        let ground = ground.ok_or_else(|| failed(io::Error::from(io::ErrorKind::StorageFull)))?;
        let mut options = OpenOptions::new();
        options.write(true).capacity(bytes);
        let file = ground.open_with(&options)?;
        let path = format!("segment {}", self.state().used.len());
        let segment: Arc<dyn Segment> =
            Arc::new(FileSegment::fill(&file, Path::new(&path), bytes)?);
        self.state().used.push((segment.clone(), ground));
        Ok(segment)
    }

    fn remove(&self, segment: &dyn Segment) -> dioxide_log::Result<()> {
        self.state().used.retain(|(used, _)| used.path() != segment.path());
        Ok(())
    }
}

/// The size of segments, and how many a log needs for records of these sizes. `batch` records are
/// appended at once, which must fit into a segment.
pub fn segments(log_bytes: u64, sizes: Sizes, batch: usize) -> (u64, usize) {
    let batch_bytes = batch as u64 * (sizes.max_bytes + FRAME_BYTES_MAX);
    // Of two, or more than half of a segment could be lost at its end.
    let least_bytes = (2 * batch_bytes + OVERHEAD_BYTES).next_power_of_two().max(SEGMENT_BYTES_MIN);
    let most_bytes = SEGMENT_BYTES_MAX.max(least_bytes);
    let segment_bytes = (log_bytes / 8).next_power_of_two().clamp(least_bytes, most_bytes);
    let with_frames = log_bytes + log_bytes.div_ceil(sizes.min_bytes) * FRAME_BYTES_MAX;
    // The end of each is lost, and one is ahead.
    (segment_bytes, (with_frames / (segment_bytes / 2)) as usize + 2)
}

/// A log on the files of a run.
pub struct WriteAhead {
    files: Arc<SegmentFiles>,
    log: Log,
    /// The first record of the run.
    first: Lsn,
}

impl WriteAhead {
    /// A log in these empty files. With `is_recycled` all of them have been used before.
    pub fn open(empty: Vec<RunFile>, segment_bytes: u64, is_recycled: bool) -> Result<Self> {
        let count = empty.len();
        let state = Mutex::new(FilesState { empty, ..FilesState::default() });
        let files = Arc::new(SegmentFiles { path: "the log".into(), state });
        let options = LogOptions::new().segment_bytes(segment_bytes).spare_segments(count);
        let log = options.open_storage(files.clone())?;
        if is_recycled {
            fill(&log, segment_bytes, count)?;
        }
        Ok(Self { files, first: log.next_lsn(), log })
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Appends a record, and returns its offset if each had the length `unit`.
    pub fn append(&self, record: &[u8], unit: u64) -> Result<u64> {
        Ok((self.log.append(record)?.0 - self.first.0) * unit)
    }

    /// As [`append`](Self::append), as a future.
    pub fn append_async(
        &self,
        block: Buffer,
        len: usize,
        unit: u64,
        tag: u64,
    ) -> BoxFuture<'static, Finished> {
        let (append, first) = (self.log.append_async(&block[..len]), self.first);
        Box::pin(async move {
            let result = append.await.map(|lsn| (lsn.0 - first.0) * unit).map_err(Into::into);
            Finished { tag, result, buffer: block, is_append: true }
        })
    }

    /// Closes the log, and copies the records of the run to a file, each padded to a multiple of
    /// `unit` bytes.
    pub fn copy_to(self, ground: &RunFile, unit: u64) -> Result<()> {
        let Self { files, log, first } = self;
        log.close()?;
        // Its files vanish with `files`.
        let view = LogView::of(files.clone()).context("read the log back")?;
        copy(&view, first, ground, unit)
    }
}

/// Uses this many segments, and frees all but one.
fn fill(log: &Log, segment_bytes: u64, count: usize) -> Result<()> {
    let record = vec![0xA5; (segment_bytes / FILL_PARTS) as usize];
    while log.stats().segments < count as u64 {
        interrupt::check()?;
        log.append(&record)?;
    }
    Ok(log.truncate_front(log.next_lsn())?)
}

/// Copies the records from `first` on to a file, each padded to a multiple of `unit` bytes.
fn copy(view: &LogView, first: Lsn, ground: &RunFile, unit: u64) -> Result<()> {
    let file = ground.open_cached()?;
    let mut out = io::BufWriter::with_capacity(COPY_BYTES, &file);
    let mut gap = 0;
    for record in view.iter_from(first) {
        interrupt::check()?;
        let (_, record) = record?;
        out.write_all(&vec![0; gap])?;
        out.write_all(&record)?;
        gap = (record.len() as u64).next_multiple_of(unit) as usize - record.len();
    }
    out.flush()?;
    drop(out);
    Ok(file.sync_all()?)
}

/// Logs of one set, in a directory of their own.
pub struct WriteAheadSet {
    path: PathBuf,
    set: LogSet,
    /// Each log, and the first record of the run.
    logs: Vec<(Log, Lsn)>,
}

impl WriteAheadSet {
    /// Makes logs. With `is_recycled` each has used this many segments before.
    pub fn open(
        options: &LogOptions,
        path: &Path,
        (logs, segments): (usize, usize),
        segment_bytes: u64,
        is_recycled: bool,
    ) -> Result<Self> {
        let set = options.open_set(path)?;
        let open = |nth: &usize| {
            let log = set.log(&nth.to_string())?;
            if is_recycled {
                fill(&log, segment_bytes, segments)?;
            }
            let first = log.next_lsn();
            Ok((log, first))
        };
        // In threads, because each waits for the syncs of directories.
        let numbers: Vec<usize> = (0..logs).collect();
        let open_all = |share: &[usize]| share.iter().map(&open).collect::<Result<Vec<_>>>();
        let open_all = &open_all;
        let logs = thread::scope(|scope| {
            let shares = numbers.chunks(logs.div_ceil(OPENERS_MAX).max(1));
            let threads: Vec<_> =
                shares.map(|share| scope.spawn(move || open_all(share))).collect();
            let opened = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            opened.collect::<Result<Vec<_>>>()
        })?;
        Ok(Self { path: path.into(), set, logs: logs.into_iter().flatten().collect() })
    }

    /// As [`WriteAhead::append`], to the nth log.
    pub fn append(&self, nth: usize, record: &[u8], unit: u64) -> Result<u64> {
        let (log, first) = &self.logs[nth];
        Ok((log.append(record)?.0 - first.0) * unit)
    }

    /// As [`WriteAhead::copy_to`], each log to a file.
    pub fn copy_to(self, grounds: &[RunFile], unit: u64) -> Result<()> {
        let Self { path, set, logs } = self;
        set.close()?;
        for (nth, ((_, first), ground)) in logs.iter().zip(grounds).enumerate() {
            let view = LogView::open(path.join(nth.to_string())).context("read the log back")?;
            copy(&view, *first, ground, unit)?;
        }
        Ok(())
    }
}

/// Records that one thread appends at once.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Batch {
    pub fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }

    /// Appends the batch, and empties it.
    pub fn append_to(&mut self, log: &Log) -> Result<()> {
        let starts = iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        let records: Vec<&[u8]> = ranges.map(|(start, end)| &self.bytes[start..*end]).collect();
        log.append_all(&records)?;
        self.bytes.clear();
        self.ends.clear();
        Ok(())
    }
}
