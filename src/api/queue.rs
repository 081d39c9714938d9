//! The public [`Queue`]: many operations at a time by one thread.

use crate::api::file::File;
use crate::buffer::{Buffer, Memory, Segment};
use crate::engine::process::Process;
use crate::engine::queue::{Completion, Driver, OpKind, QueueSettings};
use crate::error::Result;
use std::borrow;
use std::cell::RefCell;
use std::iter::FusedIterator;
use std::rc::Rc;

/// Operations of one thread on any number of files, many in flight at a time, on io_uring.
///
/// Queue operations, [`submit`](Self::submit) them, and [`reap`](Self::reap) the finished ones. The
/// queue takes ownership of buffers, and returns them with the [`Completion`], also after an error.
/// Adjacent operations that are submitted together are merged, and durable ones share a flush. A
/// finished operation gives the same guarantees as the call of the same name of [`File`] on return.
///
/// ```no_run
/// use dioxide::{Buffer, Durability, OpenOptions, Queue};
///
/// let log = OpenOptions::new()
///     .write(true)
///     .create(true)
///     .durability(Durability::EveryWrite)
///     .open("records.log")?;
/// let queue = Queue::new(64);
/// for tag in 0..64 {
///     queue.append(&log, Buffer::zeroed(4096), tag).expect("there is room for 64");
/// }
/// while queue.outstanding() > 0 {
///     for done in queue.reap(1) {
///         println!("record {} is durable at {}", done.tag, done.result?);
///         // More can be queued here, for instance in `done.buffer`.
///     }
/// }
/// log.close()?;
/// # Ok::<(), dioxide::Error>(())
/// ```
///
/// # Other queues and threads
///
/// Several queues and blocking threads may use one file at the same time. An append is finished
/// only when all bytes below its end are written, by any thread. A flush counts only when the
/// flushes beside it on the same file system have ended. So other threads may wait for operations
/// in flight of a queue, also on other files. Call `submit` or `reap` regularly while operations
/// are in flight. A file system that does not respond may hold up a call of the queue when a flush
/// begins.
///
/// Before some blocking calls, a thread finishes the submitted operations of all its queues,
/// because the call may wait for other threads. These calls are append, `sync_data`, `set_len`,
/// `recycle`, close, opening for writing, and recovery. So are writes that are durable, past the
/// end or of a part of a block. It skips
/// operations that themselves wait for a `set_len` or `recycle` of another thread.
///
/// The appends of a queue to one file get offsets in the order in which they were queued.
///
/// A thread needs only one queue. If several queues of a thread wait at the same time, none can
/// sleep until an event: they take turns, with naps of 50 microseconds.
///
/// A file may be closed while operations on it are in flight. Closing waits for the submitted ones
/// (not a read-only handle of a device), and those only queued fail with `EBADF`. A queue of
/// another thread keeps the descriptor of a closed file until the queue is used again or dropped.
///
/// # Without io_uring
///
/// If the kernel has no io_uring, or denies it to the process (`kernel.io_uring_disabled`,
/// seccomp), a queue makes plain calls. It makes one call at a time, with the same results, and
/// logs a warning once. Linux 6.1 and later have all features that make it fast.
///
/// # Dropping
///
/// Dropping a queue waits until its submitted operations are finished, since the kernel uses the
/// buffers until then. Operations that are only queued never happen. A leaked queue (`mem::forget`)
/// leaks its buffers, and every thread that waits for its operations waits for ever. After a fork
/// the child's operations fail with [`Forked`](crate::ErrorKind::Forked).
#[derive(Debug)]
pub struct Queue(Rc<RefCell<Driver>>);

/// The queue is full: `depth` operations are queued, in flight, or finished and not reaped. Reap
/// some of them. The buffer is returned.
#[derive(Debug, thiserror::Error)]
#[error("the queue is full: reap some of its operations first")]
pub struct Full {
    /// The buffer of the operation; none for flushes.
    pub buffer: Option<Buffer>,
}

/// The options that a [`Queue`] is made with.
#[derive(Clone, Debug)]
pub struct QueueOptions(QueueSettings);

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueOptions {
    /// 64 operations, no registered buffers, on io_uring where available.
    pub fn new() -> Self {
        Self(QueueSettings::default())
    }

    /// Sets the number of operations that may be queued, in flight, or finished and not reaped; at
    /// least 1.
    pub fn depth(&mut self, depth: usize) -> &mut Self {
        self.0.depth = depth.max(1);
        self
    }

    /// Sets the number of buffers that [`Queue::buffer`] hands out, and their length in bytes. The
    /// kernel maps their memory once instead of for every operation (registered buffers). They
    /// count against the limit of locked memory (RLIMIT_MEMLOCK). Beyond it they are ordinary
    /// buffers, and a warning says so.
    pub fn buffers(&mut self, count: usize, len: usize) -> &mut Self {
        (self.0.buffers, self.0.buffer_bytes) = (count, len);
        self
    }

    /// Sets whether io_uring may be used; it is by default.
    pub fn io_uring(&mut self, may_be_used: bool) -> &mut Self {
        self.0.io_uring = may_be_used;
        self
    }

    /// Makes a queue for the calling thread.
    ///
    /// # Panics
    ///
    /// If the length of all buffers overflows. Out of memory aborts, as in `Vec`.
    pub fn open(&self) -> Queue {
        Queue(Driver::new(Process::current(), &self.0, self.0.pool()))
    }

    pub(crate) fn settings(&self) -> &QueueSettings {
        &self.0
    }
}

impl Queue {
    /// Makes a queue for `depth` operations, for the calling thread.
    pub fn new(depth: usize) -> Self {
        QueueOptions::new().depth(depth).open()
    }

    /// Takes a free buffer of the queue, with arbitrary content. None if all are in use, or if the
    /// queue has none (see [`QueueOptions::buffers`]). The buffer returns to the queue when it is
    /// dropped.
    pub fn buffer(&self) -> Option<Buffer> {
        self.0.borrow().buffer()
    }

    /// Queues an append of `data`, as [`File::append`].
    ///
    /// # Errors
    ///
    /// [`Full`], with the buffer. Any other error comes with the completion.
    pub fn append(&self, file: &File, data: Buffer, tag: u64) -> Result<(), Full> {
        self.queue(file, OpKind::Append, Some(data.into()), tag)
    }

    /// Queues a write of `data` at `offset`, as [`File::write_at`]. The first write of a part of a
    /// block of a file waits here for the operations in flight, also for those of other queues.
    ///
    /// # Errors
    ///
    /// [`Full`], with the buffer. Any other error comes with the completion.
    pub fn write_at(&self, file: &File, data: Buffer, offset: u64, tag: u64) -> Result<(), Full> {
        self.queue(file, OpKind::Write(offset), Some(data.into()), tag)
    }

    /// Queues a read at `offset` into `into`, as [`File::read_at`]. An unaligned read may take
    /// several transfers, one after the other. Buffers start aligned, so an aligned
    /// `offset` and a length of whole blocks need one transfer.
    ///
    /// # Errors
    ///
    /// [`Full`], with the buffer. Any other error comes with the completion.
    pub fn read_at(&self, file: &File, into: Buffer, offset: u64, tag: u64) -> Result<(), Full> {
        self.queue(file, OpKind::Read(offset), Some(into.into()), tag)
    }

    /// Queues an append of memory that the caller keeps, as [`append`](Self::append): no buffer
    /// comes back with [`Full`] or the completion. For bindings to languages whose programs keep
    /// their memory.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    ///
    /// # Safety
    ///
    /// The bytes of `data` stay at their address, and unchanged, until the completion is reaped or
    /// dropping the queue has returned. If the queue is leaked, they stay for ever.
    #[allow(unsafe_code)]
    pub unsafe fn append_lent(&self, file: &File, data: *const [u8], tag: u64) -> Result<(), Full> {
        self.queue(file, OpKind::Append, Some(Memory::Lent(Segment::lent(data))), tag)
    }

    /// Queues a write of memory that the caller keeps, as [`write_at`](Self::write_at): no buffer
    /// comes back with [`Full`] or the completion.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at).
    ///
    /// # Safety
    ///
    /// As [`append_lent`](Self::append_lent).
    #[allow(unsafe_code)]
    pub unsafe fn write_lent_at(
        &self,
        file: &File,
        data: *const [u8],
        offset: u64,
        tag: u64,
    ) -> Result<(), Full> {
        self.queue(file, OpKind::Write(offset), Some(Memory::Lent(Segment::lent(data))), tag)
    }

    /// Queues a read into memory that the caller keeps, as [`read_at`](Self::read_at): no buffer
    /// comes back with [`Full`] or the completion.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    ///
    /// # Safety
    ///
    /// The bytes of `into` stay at their address until the completion is reaped or dropping the
    /// queue has returned. If the queue is leaked, they stay for ever. Until then no other code
    /// reads or writes them.
    #[allow(unsafe_code)]
    pub unsafe fn read_lent_at(
        &self,
        file: &File,
        into: *mut [u8],
        offset: u64,
        tag: u64,
    ) -> Result<(), Full> {
        self.queue(file, OpKind::Read(offset), Some(Memory::Lent(Segment::lent(into))), tag)
    }

    /// Queues a flush, as [`File::sync_data`]. It covers the writes that had finished when it was
    /// submitted, and no write that is in flight with it. Flushes of many files of one file system
    /// that are submitted together become one, as in [`sync_all`](crate::sync_all).
    ///
    /// # Errors
    ///
    /// [`Full`]. Any other error comes with the completion.
    pub fn sync_data(&self, file: &File, tag: u64) -> Result<(), Full> {
        self.queue(file, OpKind::Sync, None, tag)
    }

    /// Queues a flush of many files with one completion, as [`sync_all`](crate::sync_all). It
    /// covers what [`sync_data`](Self::sync_data) of each would cover. Towards the depth, it counts
    /// as one operation for each file. The error is that of the first file that failed.
    ///
    /// # Errors
    ///
    /// [`Full`] without room for all of them, so always with more files than the depth. Any other
    /// error comes with the completion.
    pub fn sync_all<F: borrow::Borrow<File>>(&self, files: &[F], tag: u64) -> Result<(), Full> {
        let handles = files.iter().map(|file| file.borrow().inner());
        self.0.borrow_mut().queue_flushes(handles, tag).map_err(|()| Full { buffer: None })
    }

    fn queue(
        &self,
        file: &File,
        what: OpKind,
        memory: Option<Memory>,
        tag: u64,
    ) -> Result<(), Full> {
        if let (OpKind::Write(offset), Some(data)) = (what, &memory)
            && self.outstanding() < self.depth()
        {
            file.inner().prepare_write(data.len() as u64, offset);
        }
        let queued = self.0.borrow_mut().queue(file.inner(), what, memory, tag);
        queued.map_err(|memory| Full { buffer: memory.and_then(Memory::into_buffer) })
    }

    /// Submits all queued operations. Does not wait for them, except without io_uring. Threads that
    /// wait for operations that have finished go on.
    pub fn submit(&self) {
        self.0.borrow_mut().submit();
    }

    /// Submits all queued operations, and waits until at least `min` operations have finished, or
    /// all outstanding ones if those are fewer. Returns the finished ones. It sleeps while it
    /// waits; with 0 it does not wait.
    ///
    /// Operations left in the iterator when it is dropped come with the next one.
    pub fn reap(&self, min: usize) -> Reaped<'_> {
        let mut driver = self.0.borrow_mut();
        driver.reap(min);
        Reaped { queue: self, end: driver.taken() + driver.finished() as u64 }
    }

    /// Returns the number of operations that are queued, in flight, or finished and not reaped.
    pub fn outstanding(&self) -> usize {
        self.0.borrow().outstanding()
    }

    /// Returns the largest number of outstanding operations.
    pub fn depth(&self) -> usize {
        self.0.borrow().depth()
    }

    /// Returns whether the queue uses io_uring. When the kernel accepts no more requests, the queue
    /// changes to plain calls.
    pub fn uses_io_uring(&self) -> bool {
        self.0.borrow().uses_io_uring()
    }
}

/// The finished operations of a queue, oldest first. It holds those that had finished at the
/// [reap](Queue::reap); operations queued meanwhile come with the next one.
#[derive(Debug)]
pub struct Reaped<'a> {
    queue: &'a Queue,
    /// The number of operations taken from the queue, with its last one.
    end: u64,
}

impl Iterator for Reaped<'_> {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        let mut driver = self.queue.0.borrow_mut();
        // Another reap may have taken the rest.
        if driver.taken() < self.end { driver.next() } else { None }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end.saturating_sub(self.queue.0.borrow().taken()) as usize;
        (0, Some(left))
    }
}

impl FusedIterator for Reaped<'_> {}

#[cfg(test)]
mod tests;
