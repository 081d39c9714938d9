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
//! - At most [`WAITING_BYTES_MAX`] bytes wait in memory, or one write that is larger.
//! - All writes of a file pass through one `WriteBehind`.

#![forbid(unsafe_code)]

mod waiting;

use dioxide::{Buffer, Durability, Error, File, Growth, OpenOptions, Queue, Result};
use std::io;
use std::mem;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use waiting::Waiting;

/// Beyond this, a write first writes out the others.
pub const WAITING_BYTES_MAX: usize = 8 << 20;

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
        self.write_out(self.lock(), Until::Written)?;
        Ok(self.file().set_len(len)?)
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

    fn write_out(&self, mut state: MutexGuard<'_, State>, until: Until) -> io::Result<()> {
        while state.in_flight.is_some() {
            state = self.wait(state);
        }
        let batch = mem::take(&mut state.waiting);
        if batch.is_empty() && (until == Until::Written || !state.is_dirty) {
            return Ok(());
        }
        let was_dirty = mem::replace(&mut state.is_dirty, true);
        let mut runs = batch.runs();
        state.in_flight = Some(batch);
        drop(state);

        // A durable append needs no flush behind it. Into space ahead only: a durable write that
        // finds no space counts as a failed flush.
        let Files { plain, durable } = self.files();
        let appends = plain.len().map(|len| matches!(&runs[..], [(at, _)] if *at == len));
        let alone = until == Until::Stable && !was_dirty && plain.growth() != Growth::None;
        let outcome = appends.and_then(|appends| {
            let is_stable = alone && appends;
            perform(if is_stable { durable } else { plain }, &mut runs)?;
            if until == Until::Stable && !is_stable { plain.sync_data() } else { Ok(()) }
        });

        let mut state = self.lock();
        state.in_flight = None;
        match &outcome {
            Ok(()) => state.is_dirty = until == Until::Written,
            // Those that were not written.
            Err(_) => runs.into_iter().for_each(|(at, run)| state.waiting.add(at, run.to_vec())),
        }
        self.changed.notify_all();
        Ok(outcome?)
    }

    /// Waits until no write of the range is in flight.
    fn not_in_flight(&self, offset: u64, len: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while state.in_flight.as_ref().is_some_and(|runs| runs.overlaps(offset, len)) {
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

/// Writes runs, by offset. Leaves those that failed.
fn perform(file: &File, runs: &mut Vec<(u64, Buffer)>) -> Result<()> {
    let len = file.len()?;
    let mut beyond = runs.iter().filter(|(at, run)| at + run.len() as u64 > len);
    // Space ahead makes an append cheaper. Only one: if the first of two failed, the second would
    // get its offset.
    let appends = matches!((beyond.next(), beyond.next()), (Some((at, _)), None) if *at == len);
    if let [(at, run)] = &**runs {
        let written = if appends { file.append(run).map(drop) } else { file.write_at(run, *at) };
        written?;
        runs.clear();
        return Ok(());
    }
    let mut through = |queue: &Queue| {
        let mut failure = None;
        let mut failed = Vec::new();
        let mut left = mem::take(runs).into_iter().peekable();
        while left.peek().is_some() || queue.outstanding() > 0 {
            while queue.outstanding() < DEPTH
                && let Some((at, run)) = left.next()
            {
                match appends && at == len {
                    true => queue.append(file, run, at),
                    false => queue.write_at(file, run, at, at),
                }
                .expect("there is room");
            }
            for done in queue.reap(1) {
                if let Err(error) = done.result {
                    failure.get_or_insert(error);
                    failed.extend(done.buffer.map(|run| (done.tag, run)));
                }
            }
        }
        *runs = failed;
        failure.map_or(Ok(()), Err)
    };
    thread_local!(static QUEUE: Queue = Queue::new(DEPTH));
    // A file that a thread drops at its end needs a queue of its own.
    QUEUE.try_with(|queue| through(queue)).unwrap_or_else(|_| through(&Queue::new(DEPTH)))
}
