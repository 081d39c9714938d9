//! A [`File`] of dioxide whose writes wait in memory until a flush.
//!
//! The storage traits of many projects have a positional write that page caches make cheap, and a
//! flush. With O_DIRECT each of those writes would wait for the disk. A [`WriteBehind`] keeps them,
//! and writes them at the flush: neighbours as one request, many requests in flight.
//!
//! ```no_run
//! use dioxide::OpenOptions;
//! use dioxide_write_behind::WriteBehind;
//!
//! let file = WriteBehind::open(OpenOptions::new().write(true).create(true), "data")?;
//! file.write_at(b"some bytes", 0)?; // in memory
//! file.write_at(b" and more", 10)?;
//! file.sync_data()?; // stable: one durable append
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//!
//! - Every call sees the writes that returned before it.
//! - A flush that succeeds covers all of them. A write that failed waits again, so no flush
//!   succeeds without it.
//! - Close and drop write what waits. A kill of the program loses the writes that no flush covered,
//!   as a power cut does.
//! - At most [`WAITING_BYTES_MAX`] bytes wait in memory, or one write that is larger. A small write
//!   apart from others counts as 4096 bytes.
//! - All writes of a file pass through one `WriteBehind`.

#![forbid(unsafe_code)]

mod waiting;

use dioxide::{Durability, Error, File, Growth, OpenOptions, Queue, Result};
use std::io;
use std::mem;
use std::ops::Range;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use waiting::{Request, Waiting};

/// Beyond this, a write first writes out the others.
pub const WAITING_BYTES_MAX: usize = 8 << 20;

/// Requests cover whole blocks of at least this size. dioxide also writes parts of blocks, but then
/// the writes of the file take turns.
const BLOCK_BYTES_MIN: u64 = 4096;

/// Requests in flight.
const DEPTH: usize = 64;

/// A file whose writes wait in memory until a flush. Threads share it by reference.
#[derive(Debug)]
pub struct WriteBehind {
    /// None once it is closed.
    files: Option<Files>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct Files {
    plain: File,
    /// The same file, with durable writes.
    durable: File,
}

#[derive(Debug, Default)]
struct State {
    waiting: Waiting,
    /// The pieces that a thread writes out. One thread at a time does.
    in_flight: Option<Waiting>,
    /// Whether the file has writes that no flush covered.
    is_dirty: bool,
    edge: Option<Edge>,
    /// Number of calls that need the file without waiting writes. New writes wait for them.
    settlers: usize,
}

/// The content of a block of the file that was written in part.
#[derive(Debug)]
struct Edge {
    offset: u64,
    bytes: Vec<u8>,
}

impl Edge {
    /// The bytes of a range within the block.
    fn part(&self, range: &Range<u64>) -> Option<&[u8]> {
        let begin = range.start.checked_sub(self.offset)? as usize;
        self.bytes.get(begin..begin + (range.end - range.start) as usize)
    }
}

/// How a batch of writes reaches the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Written,
    Stable,
}

impl TryFrom<File> for WriteBehind {
    type Error = Error;

    fn try_from(file: File) -> Result<Self> {
        let durable = file.try_clone_as(Durability::EveryWrite)?;
        let files = Some(Files { plain: file, durable });
        Ok(Self { files, state: Mutex::default(), changed: Condvar::new() })
    }
}

impl WriteBehind {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn open(options: &OpenOptions, path: impl AsRef<Path>) -> Result<Self> {
        options.open(path)?.try_into()
    }

    /// The file, without the writes that wait.
    pub fn file(&self) -> &File {
        &self.files().plain
    }

    fn files(&self) -> &Files {
        self.files.as_ref().expect("open until it is closed or dropped")
    }

    /// Takes a write of any range. It is part of the file for every later call.
    ///
    /// # Errors
    ///
    /// The error of an earlier write that made room for this one. This one is then not taken.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        loop {
            let mut state = self.not_in_flight(offset, data.len());
            if state.waiting.patch(offset, data) {
                return Ok(());
            }
            let bytes = state.waiting.bytes();
            let fits = bytes == 0 || bytes + data.len() <= WAITING_BYTES_MAX;
            if fits && !state.waiting.overlaps(offset, data.len()) {
                state.waiting.add(offset, data.to_vec());
                return Ok(());
            }
            self.write_out(state, Until::Written)?;
        }
    }

    /// Writes behind all that waits, without waiting itself. So an error is that of this write, and
    /// the write is then not taken.
    ///
    /// # Errors
    ///
    /// As [`File::append`] at the end, as [`File::write_at`] elsewhere. Or the error of a write
    /// that waited.
    pub fn write_through(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_out(self.lock(), Until::Written)?;
        // A flush in flight does not cover this write. The lock is held, so that no flush and no
        // `trim` begins meanwhile.
        let mut state = self.lock();
        while state.in_flight.is_some() {
            state = self.wait(state);
        }
        (state.is_dirty, state.edge) = (true, None);
        let file = self.file();
        match offset == file.len()? {
            true => drop(file.append(data)?),
            false => file.write_at(data, offset)?,
        }
        Ok(())
    }

    /// Reads, as [`File::read_at`].
    ///
    /// # Errors
    ///
    /// As [`File::read_at`]. The error of an earlier write in the range.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = offset.saturating_add(into.len() as u64);
        loop {
            let state = self.lock();
            let in_flight = state.in_flight.as_ref();
            if state.waiting.read(offset, into)
                || in_flight.is_some_and(|pieces| pieces.read(offset, into))
            {
                return Ok(into.len());
            }
            let touches = |pieces: &Waiting| pieces.overlaps(offset, into.len());
            let file = self.file();
            // Beyond the end of the file, and below the end of a write that it does not have.
            let is_between = end > file.len()? && state.end() > offset;
            if !is_between && !touches(&state.waiting) && !in_flight.is_some_and(touches) {
                drop(state);
                return Ok(file.read_at(into, offset)?);
            }
            self.write_out(state, Until::Written)?;
        }
    }

    /// The length in bytes, with the writes that wait.
    ///
    /// # Errors
    ///
    /// As [`File::len`].
    pub fn len(&self) -> io::Result<u64> {
        let state = self.lock();
        Ok(self.file().len()?.max(state.end()))
    }

    /// Whether the length is 0.
    ///
    /// # Errors
    ///
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Sets the length, as [`File::set_len`]. It and all earlier writes are stable on return.
    ///
    /// # Errors
    ///
    /// As [`File::set_len`], and the error of an earlier write.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.settled()?;
        state.edge = None;
        Ok(self.file().set_len(len)?)
    }

    /// Writes what waits, and frees the space ahead: other programs find the exact length. Both are
    /// stable on return. Writes of other threads wait meanwhile, and none is lost.
    ///
    /// # Errors
    ///
    /// As [`set_len`](Self::set_len).
    pub fn trim(&self) -> io::Result<()> {
        let _settled = self.settled()?;
        let file = self.file();
        Ok(file.set_len(file.len()?)?)
    }

    /// Makes every write stable that returned before the call.
    ///
    /// # Errors
    ///
    /// The error of a write, which then waits again; or as [`File::sync_data`].
    pub fn sync_data(&self) -> io::Result<()> {
        self.write_out(self.lock(), Until::Stable)
    }

    /// Writes what waits, without a flush.
    ///
    /// # Errors
    ///
    /// The error of a write, which then waits again.
    pub fn write_waiting(&self) -> io::Result<()> {
        self.write_out(self.lock(), Until::Written)
    }

    /// Writes what waits, and closes the file, as [`File::close`].
    ///
    /// # Errors
    ///
    /// The error of a write, which is then lost; or as [`File::close`]. It is closed nevertheless.
    pub fn close(mut self) -> io::Result<()> {
        self.put_away()
    }

    fn put_away(&mut self) -> io::Result<()> {
        if self.files.is_none() {
            return Ok(());
        }
        let written = self.write_waiting();
        let closed = self
            .files
            .take()
            .map_or(Ok(()), |Files { plain, durable }| durable.close().and(plain.close()));
        written.and(closed.map_err(Into::into))
    }

    /// The state with all writes in the file. With its lock held, no write begins.
    fn settled(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        state.settlers += 1;
        let mut written = Ok(());
        while written.is_ok() {
            while state.in_flight.is_some() {
                state = self.wait(state);
            }
            if state.waiting.is_empty() {
                break;
            }
            written = self.write_out(state, Until::Written);
            state = self.lock();
        }
        state.settlers -= 1;
        self.changed.notify_all();
        written.map(|()| state)
    }

    fn write_out(&self, mut state: MutexGuard<'_, State>, until: Until) -> io::Result<()> {
        while state.in_flight.is_some() {
            state = self.wait(state);
        }
        let block_bytes = self.block_bytes();
        let whole_end = self.file().len()? / block_bytes * block_bytes;
        let batch = mem::take(&mut state.waiting);
        if batch.is_empty() && (until == Until::Written || !state.is_dirty) {
            return Ok(());
        }
        let was_dirty = mem::replace(&mut state.is_dirty, true);
        let mut left = batch.requests(block_bytes, whole_end);
        state.in_flight = Some(batch);
        let edge = state.edge.take();
        drop(state);

        let outcome = self.fill(&mut left, edge).and_then(|edge| {
            // A durable append needs no flush behind it. Into space ahead only: a durable write
            // that finds no space counts as a failed flush.
            let Files { plain, durable } = self.files();
            let len = plain.len()?;
            let appends = matches!(&left[..], [request] if request.offset == len);
            let alone = until == Until::Stable && !was_dirty && plain.growth() != Growth::None;
            let is_stable = alone && appends;
            perform(if is_stable { durable } else { plain }, &mut left)?;
            if until == Until::Stable && !is_stable {
                plain.sync_data()?;
            }
            Ok(edge)
        });

        let mut state = self.lock();
        let batch = state.in_flight.take();
        let outcome = outcome.map(|edge| {
            state.is_dirty = until == Until::Written;
            state.edge = edge;
        });
        if outcome.is_err()
            && let Some(mut failed) = batch
        {
            let ranges: Vec<_> = left.iter().map(Request::range).collect();
            failed.retain(&ranges);
            state.waiting.append(failed);
        }
        self.changed.notify_all();
        Ok(outcome?)
    }

    fn block_bytes(&self) -> u64 {
        self.file().alignment().offset.max(BLOCK_BYTES_MIN)
    }

    /// Reads the rest of the blocks that are written in part. Returns the first such block, for the
    /// next time: many files have a header that each flush changes.
    fn fill(&self, requests: &mut [Request], edge: Option<Edge>) -> Result<Option<Edge>> {
        let block_bytes = self.block_bytes();
        let mut next: Option<Range<u64>> = None;
        for request in &mut *requests {
            for range in request.missing.clone() {
                let begin = range.start / block_bytes * block_bytes;
                next.get_or_insert(begin..begin + block_bytes);
                let bytes = request.bytes_mut(&range);
                match edge.as_ref().and_then(|edge| edge.part(&range)) {
                    Some(known) => bytes.copy_from_slice(known),
                    None => drop(self.file().read_at(bytes, range.start)?),
                }
            }
        }
        let mut covers = |range: &Range<u64>| {
            let is_in = |request: &&mut Request| {
                request.range().start <= range.start && range.end <= request.range().end
            };
            let request = requests.iter_mut().find(is_in)?;
            Some(Edge { offset: range.start, bytes: request.bytes_mut(range).to_vec() })
        };
        if let Some(range) = next {
            return Ok(covers(&range));
        }
        // The block of the last time, if it stays as it was.
        Ok(edge.filter(|edge| {
            let range = edge.offset..edge.offset + edge.bytes.len() as u64;
            requests.iter().all(|r| r.range().end <= range.start || range.end <= r.range().start)
        }))
    }

    /// Waits until no write of the range is in flight, and no call needs the file without writes.
    fn not_in_flight(&self, offset: u64, len: usize) -> MutexGuard<'_, State> {
        let is_in_flight = |runs: &Waiting| runs.overlaps(offset, len);
        let mut state = self.lock();
        while state.settlers > 0 || state.in_flight.as_ref().is_some_and(is_in_flight) {
            state = self.wait(state);
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The end of the highest write that the file may not have.
    fn end(&self) -> u64 {
        self.waiting.end().max(self.in_flight.as_ref().map_or(0, Waiting::end))
    }
}

/// Writes what waits; an error is logged. The file closes as a [`File`] does.
impl Drop for WriteBehind {
    fn drop(&mut self) {
        if let Err(error) = self.put_away() {
            log::error!("dioxide: {error}");
        }
    }
}

/// Performs requests, by offset. Leaves those that failed.
fn perform(file: &File, requests: &mut Vec<Request>) -> Result<()> {
    let len = file.len()?;
    let mut beyond = requests.iter().filter(|request| request.range().end > len);
    // Space ahead makes an append cheaper. Only one: if the first of two failed, the second would
    // get its offset.
    let appends = matches!((beyond.next(), beyond.next()), (Some(r), None) if r.offset == len);
    if let [Request { offset, data, .. }] = &**requests {
        match appends {
            true => drop(file.append(data)?),
            false => file.write_at(data, *offset)?,
        }
        requests.clear();
        return Ok(());
    }
    let mut through = |queue: &Queue| {
        let mut failure = None;
        let mut failed = Vec::new();
        let mut left = mem::take(requests).into_iter().peekable();
        while left.peek().is_some() || queue.outstanding() > 0 {
            while queue.outstanding() < DEPTH
                && let Some(Request { offset, data, .. }) = left.next()
            {
                match appends && offset == len {
                    true => queue.append(file, data, offset),
                    false => queue.write_at(file, data, offset, offset),
                }
                .expect("there is room");
            }
            // Few wake-ups: a batch that fits into the queue needs one.
            let enough = if left.peek().is_some() { DEPTH / 2 } else { DEPTH };
            for done in queue.reap(enough) {
                if let (Err(error), Some(data)) = (done.result, done.buffer) {
                    failure.get_or_insert(error);
                    failed.push(Request { offset: done.tag, data, missing: Vec::new() });
                }
            }
        }
        *requests = failed;
        failure.map_or(Ok(()), Err)
    };
    thread_local!(static QUEUE: Queue = Queue::new(DEPTH));
    // A file that a thread drops at its end needs a queue of its own.
    QUEUE.try_with(|queue| through(queue)).unwrap_or_else(|_| through(&Queue::new(DEPTH)))
}
