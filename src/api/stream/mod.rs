//! The public [`Reader`] and [`Writer`]: a file as a stream of bytes.
//!
//! Both keep a window of large aligned transfers in flight. [`reading`] and [`writing`] have the
//! windows, as functions to be polled. The traits of std wait for them in the calling thread; the
//! traits of tokio and futures-io pass them on.

#[cfg(feature = "futures-io")]
mod futures_io;
mod reading;
#[cfg(feature = "tokio")]
mod tokio;
mod writing;

use crate::api::file::File;
use crate::api::future::AsyncFile;
use crate::buffer::Buffer;
use crate::engine::queue::settle_own;
use crate::error::Result;
use crate::sync::{Condvar, Mutex};
use reading::ReaderState;
use std::future::poll_fn;
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use writing::Writing;

/// The length of a transfer, in bytes. Transfers end at its multiples.
const CHUNK_BYTES: usize = 1 << 20;

/// The largest number of transfers in flight.
const WINDOW: usize = 8;

/// Reads a file from front to back: [`Read`], [`BufRead`] and [`Seek`].
///
/// It reads ahead, by direct transfers of up to 1 MiB. After a start or a seek, one is in flight.
/// The window grows by one for each transfer that is consumed, up to eight. So the reader uses at
/// most 10 MiB of memory, and none of the page cache. Reads that a seek abandons keep their memory
/// until they end.
///
/// ```no_run
/// use std::io::BufRead;
///
/// let reader = dioxide::Reader::new(dioxide::File::open("records.log")?);
/// for line in reader.lines() {
///     println!("{}", line?);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// It shows the file as [`File::read_at`] does. Bytes that are written after they were read ahead
/// are not seen. A seek by more than 1 MiB forgets what was read ahead. At the end of the file it
/// looks for more with each call, so it can follow a log that grows.
///
/// With the feature `tokio` or `futures-io` it has the traits of that crate as well: `AsyncRead`,
/// `AsyncBufRead` and `AsyncSeek`. Near the end of the file, a poll makes the short system calls of
/// [`File::len`]. The traits of std block, so do not use them in an async task. They fail instead
/// of waiting for a [`LocalReactor`](crate::LocalReactor), and in a waker.
///
/// # Errors
///
/// Those of [`File::read_at`] and [`File::len`], as [`io::Error`] with the [`Error`](crate::Error)
/// inside. The position stays, and the next call tries again.
#[derive(Debug)]
pub struct Reader(ReaderState);

/// Writes a file from front to back: [`Write`] and [`Seek`].
///
/// It collects bytes in chunks of 1 MiB, and writes them behind the caller's back, up to eight at a
/// time, by direct I/O. So it uses at most 10 MiB of memory, and none of the page cache. Offsets
/// and lengths are arbitrary. The file ends with the last byte that was written.
///
/// ```no_run
/// use std::io::Write;
///
/// let mut writer = dioxide::Writer::new(dioxide::File::create("export.csv")?);
/// for row in 0..1_000_000 {
///     writeln!(writer, "{row},{}", row * row)?;
/// }
/// writer.finish()?.close()?; // stable, and exactly as long as what was written
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// It writes as [`File::write_at`] does, from offset 0, or from the position of the last seek.
/// [`flush`](Write::flush) waits until everything is written, and readers see it.
/// [`finish`](Self::finish) makes it stable as well. With
/// [`Durability::EveryWrite`](crate::Durability::EveryWrite) each chunk is stable when it is
/// written.
///
/// Dropping the writer flushes it, waits for that, and logs an error. The file closes with the
/// writer, see [`File::close`].
///
/// With the feature `tokio` or `futures-io` it has the traits of that crate as well: `AsyncWrite`
/// and `AsyncSeek`. The traits of std block, and so do [`finish`](Self::finish) and a drop before a
/// flush. They fail instead of waiting for a [`LocalReactor`](crate::LocalReactor), and in a waker.
/// [`position`](Self::position) then shows what was taken. A drop does not flush there: it logs
/// that bytes are missing.
///
/// # Errors
///
/// Those of [`File::write_at`], as [`io::Error`] with the [`Error`](crate::Error) inside. An error
/// may belong to bytes of an earlier call. After a failed write, every later call fails with its
/// error: bytes of the stream are missing.
#[derive(Debug)]
pub struct Writer(Option<Writing>);

/// The memory of a transfer. A part of the buffer is used.
#[derive(Debug)]
struct Chunk {
    buffer: Buffer,
    len: usize,
}

impl Chunk {
    fn new() -> Self {
        Self { buffer: Buffer::zeroed(CHUNK_BYTES), len: 0 }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl AsMut<[u8]> for Chunk {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
}

/// The number of bytes from `offset` to the end of its chunk.
fn room_at(offset: u64) -> usize {
    CHUNK_BYTES - (offset % CHUNK_BYTES as u64) as usize
}

/// The position after a seek.
fn sought(to: SeekFrom, position: u64, len: impl FnOnce() -> Result<u64>) -> io::Result<u64> {
    let moved = match to {
        SeekFrom::Start(offset) => Some(offset),
        SeekFrom::Current(by) => position.checked_add_signed(by),
        SeekFrom::End(by) => len()?.checked_add_signed(by),
    };
    let out_of_range = || io::Error::new(io::ErrorKind::InvalidInput, "a seek out of range");
    moved.ok_or_else(out_of_range)
}

// --- waiting -------------------------------------------------------------------------------------

/// Wakes a thread that waits for a transfer.
#[derive(Default)]
struct Sleeper {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.woken.notify_all();
    }
}

/// Polls until it is ready, and sleeps meanwhile. Fails instead of sleeping if `can_wait` is false.
fn wait<R>(
    can_wait: bool,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<R>>,
) -> io::Result<R> {
    let sleeper = Arc::new(Sleeper::default());
    let waker = Waker::from(sleeper.clone());
    loop {
        if let Poll::Ready(result) = poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        if !can_wait {
            return Err(io::Error::other("this thread cannot wait for the reactor"));
        }
        // The reactor may wait for an operation of this thread's queues.
        settle_own();
        let mut is_woken = sleeper.is_woken.lock();
        while !*is_woken {
            is_woken = sleeper.woken.wait(is_woken);
        }
        *is_woken = false;
    }
}

// --- reading -------------------------------------------------------------------------------------

impl Reader {
    /// A reader at offset 0. Takes a [`File`] or an [`AsyncFile`].
    pub fn new(file: impl Into<AsyncFile>) -> Self {
        Self(ReaderState::new(file.into()))
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.0.position()
    }

    /// Returns the file.
    pub fn get_ref(&self) -> &File {
        self.0.file().file()
    }

    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let bytes = ready!(self.0.poll_fill(context))?;
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        self.0.consume(count);
        Poll::Ready(Ok(count))
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        wait(self.0.can_be_awaited(), |context| self.poll_read(context, into))
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        wait(self.0.can_be_awaited(), |context| self.0.poll_fill(context).map_ok(drop))?;
        Ok(self.0.filled())
    }

    /// Panics if there are fewer bytes at hand.
    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl Seek for Reader {
    /// Forgets what was read ahead, unless the position stays within the bytes at hand.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

// --- writing -------------------------------------------------------------------------------------

impl Writer {
    /// A writer at offset 0. Takes a [`File`] or an [`AsyncFile`].
    pub fn new(file: impl Into<AsyncFile>) -> Self {
        Self(Some(Writing::new(file.into())))
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.writing().position()
    }

    /// Returns the file. It lacks the bytes that are not written yet.
    pub fn get_ref(&self) -> &File {
        self.writing().file().file()
    }

    /// Writes everything, makes it stable, and returns the file. Blocks.
    ///
    /// # Errors
    ///
    /// As the writer, and those of [`File::sync_data`].
    pub fn finish(mut self) -> io::Result<File> {
        self.flush()?;
        self.get_ref().sync_data()?;
        Ok(self.into_file().into_inner())
    }

    /// As [`finish`](Self::finish), for an async task. Dropped before it is ready, it drops the
    /// writer.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub async fn finish_async(mut self) -> io::Result<AsyncFile> {
        poll_fn(|context| self.writing_mut().poll_flush(context)).await?;
        let file = self.into_file();
        file.sync_data().await?;
        Ok(file)
    }

    /// Nothing is in flight.
    fn into_file(mut self) -> AsyncFile {
        self.0.take().expect("taken once").into_file()
    }

    fn writing(&self) -> &Writing {
        self.0.as_ref().expect("only finish takes it")
    }

    fn writing_mut(&mut self) -> &mut Writing {
        self.0.as_mut().expect("only finish takes it")
    }
}

impl Write for Writer {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let writing = self.writing_mut();
        wait(writing.can_be_awaited(), |context| writing.poll_write(context, data))
    }

    /// Waits until everything is written. Makes nothing stable.
    fn flush(&mut self) -> io::Result<()> {
        let writing = self.writing_mut();
        wait(writing.can_be_awaited(), |context| writing.poll_flush(context))
    }
}

impl Seek for Writer {
    /// Moves the position. A position below bytes that were written first flushes.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let writing = self.writing_mut();
        writing.start_seek(to)?;
        let sought = wait(writing.can_be_awaited(), |context| writing.poll_seek(context));
        sought.inspect_err(|_| writing.cancel_seek())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some(writing) = &mut self.0 else { return };
        if writing.is_flushed() {
            return;
        }
        let flushed = wait(writing.can_be_awaited(), |context| writing.poll_flush(context));
        if let Err(error) = flushed {
            log::error!("dioxide: a writer was dropped, and bytes of it are missing: {error}");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
