//! The public [`File`]: a handle of an engine, or a reader of a file that this process does not
//! write.

use crate::api::options::OpenOptions;
use crate::buffer::Buffer;
use crate::engine::Engine;
use crate::engine::handle::FileHandle;
use crate::error::{ErrorKind, Operation, Result};
use crate::open;
use crate::rules::policy::Durability;
use crate::rules::policy::Growth;
use crate::rules::recovery::Recovery;
use crate::stats::Stats;
use crate::sys::probe::Alignment;
use std::borrow::Cow;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A regular file or block device, open O_DIRECT. Threads share it through `&self`. A file may have
/// several handles, which all see the same length and order.
///
/// Operations take any range and any memory. [Aligned](Self::alignment) ones cost least;
/// [`Buffer`](crate::Buffer) is aligned memory.
///
/// [`close`](Self::close) reports whether closing succeeded. Dropping the last handle does the
/// same, and logs an error.
///
/// After a fork, every operation of the child on a handle that writes fails with
/// [`ErrorKind::Forked`], and the exit of the child changes nothing. A read-only handle continues
/// in the child, as a reader beside another process. That of a file within a volume fails there
/// with EBADF.
///
/// An extension beyond RLIMIT_FSIZE fails with EFBIG. A write beyond it and below the length ends
/// the process by SIGXFSZ, as the kernel's `pwrite` does. A process that ignores the signal gets
/// EFBIG.
///
/// # Locks
///
/// A writer process holds a lock of one byte near the largest offset (an OFD lock of byte 2⁶³ - 2),
/// which keeps other writers out. It conflicts with POSIX and OFD locks of the same process that
/// reach this byte. A lock of the program to the end of the file and beyond (`l_len` 0) fails with
/// `EAGAIN`. Lock a range that ends below, such as 2⁶² bytes.
///
/// The children of a fork have the lock as well. After the process is killed, no other opens the
/// file for writing until its children have ended or executed another program.
///
/// As in POSIX, closing any descriptor of a file ends all POSIX locks that the process has on it.
/// This holds for the last writing handle, for each read-only one, and for
/// [`recover`](crate::recover). Writing handles of a file share one descriptor, and so do clones of
/// a read-only one. OFD locks and `flock` are not affected.
#[derive(Debug)]
pub struct File(Option<FileHandle>);

impl File {
    /// Opens a file read-only, with its own descriptor. It does not delay the truncate when the
    /// last writing handle of this process closes, see [`close`](Self::close).
    ///
    /// A read-only handle recovers nothing. After a crash of zeroed or recycled space it shows the
    /// file up to the floor only: durable data may follow. Open the file for writing to find it.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().open(path)
    }

    /// Opens a file for writing, creates it if it is missing, and truncates an existing one to
    /// length 0.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    pub(crate) fn of(inner: FileHandle) -> Self {
        Self(Some(inner))
    }

    /// The handle, without a close.
    #[cfg(test)]
    pub(crate) fn into_handle(mut self) -> FileHandle {
        self.0.take().expect("only a close takes it")
    }

    pub(crate) fn open_with(options: &OpenOptions, path: &Path) -> Result<Self> {
        open::open(options.request(), path).map(|inner| Self(Some(inner)))
    }

    pub(crate) fn open_descriptor(options: &OpenOptions, fd: OwnedFd, path: &Path) -> Result<Self> {
        open::descriptor(options.request(), fd, path).map(|inner| Self(Some(inner)))
    }

    pub(crate) fn open_striped(
        options: &OpenOptions,
        paths: Vec<Arc<Path>>,
        chunk_bytes: u64,
    ) -> Result<Self> {
        open::striped::open(options.request(), paths, chunk_bytes).map(|inner| Self(Some(inner)))
    }

    pub(crate) fn open_temporary(options: &OpenOptions, dir: &Path) -> Result<Self> {
        open::temporary(options.request(), dir).map(|inner| Self(Some(inner)))
    }

    /// Appends `data`, of any length and anywhere in memory, and returns its offset in bytes.
    ///
    /// Concurrent appends get disjoint, gapless offsets in the order in which the engine takes
    /// them. With [`Tail::Pad`](crate::Tail::Pad), zeros fill the gaps up to the next block. An
    /// empty append writes nothing and returns the length.
    ///
    /// The parts of `data` that fill blocks of the [append unit](crate::Alignment::append), and are
    /// aligned in memory, are written without a copy. The rest is packed into blocks together with
    /// concurrent appends. An append that ends inside a block writes that block, and the next one
    /// [rewrites it or begins at the next block](crate::Tail). Many small appends by one thread
    /// cost one block write each. Durable appends gain from concurrency: threads, a
    /// [`Queue`](crate::Queue) or tasks.
    ///
    /// On return every byte below the end of `data` is written. With [`Durability::EveryWrite`] it
    /// is also durable: no later crash removes it from the file. Without, a crash may lose any part
    /// of the data that no [`sync_data`](Self::sync_data) covered, from some offset to the end.
    /// Recovery finds an end at a block boundary: zeros, or parts of writes that were in flight,
    /// may follow the last record.
    ///
    /// # Errors
    ///
    /// - [`NoSpace`](ErrorKind::NoSpace): nothing was written, and the same call succeeds once
    ///   there is space.
    /// - [`AppendEnded`](ErrorKind::AppendEnded): an append below this one failed after it had its
    ///   offset, so this one is not part of the file.
    /// - [`Unsupported`](ErrorKind::Unsupported): a block device has no end.
    ///
    /// After any other error parts of `data` may be on disk beyond EOF.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        let (engine, durable) = self.writer(Operation::Append, None)?;
        engine.append(data, durable)
    }

    /// Writes `data` at `offset`: all of it or an error, never short.
    ///
    /// A write beyond EOF extends the file, and a gap before it is a hole that reads as zeros. Over
    /// [recycled](Self::recycle) space a gap would show old content, and is refused. With
    /// [`Durability::EveryWrite`] the data is durable on return. Concurrent writes of the same
    /// bytes have no order.
    ///
    /// Memory, offset and length are arbitrary. If the write begins or ends inside a block of
    /// [`alignment`](Self::alignment)`.offset` bytes, the call reads the rest of that block and
    /// writes it back. Writes of one block take turns, so none loses bytes of another. A crash
    /// leaves the old or the new bytes of each sector. Unaligned data is copied as a whole. The
    /// first such write of a file waits for the operations in flight, as
    /// [`set_len`](Self::set_len). From then on every write takes the lock of the file.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append), and:
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): a gap over recycled space.
    /// - `ENOSPC` ([`Os`](ErrorKind::Os)): the end of a block device.
    ///
    /// After an error any part of the range may hold old or new bytes.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let (engine, durable) = self.writer(Operation::Write, Some(offset))?;
        engine.write_at(data, offset, durable)
    }

    /// Reads at `offset` into `into`, and returns the number of bytes read: all of `into`, or the
    /// bytes up to EOF. The read may set bytes of `into` beyond that number to zero.
    ///
    /// Memory, offset and length are arbitrary. An [aligned](Self::alignment) read goes directly
    /// into `into`, in one transfer. So does the long middle of another read, if the memory is
    /// aligned there. The rest is read as whole blocks into a bounce buffer, up to 1 MiB at a time,
    /// and copied.
    ///
    /// A read sees every write that was acknowledged before the call, and never space that is only
    /// grown. A reader beside another process sees writes up to the end that [`len`](Self::len)
    /// reports to it. If that process truncates the file meanwhile, a read does not mix content
    /// from before and after the truncate.
    ///
    /// # Errors
    ///
    /// The kernel's error; `into` may then hold a part of the data. A reader beside another process
    /// fails as [`len`](Self::len) does. It fails with `EAGAIN` if that process truncates the file
    /// repeatedly during the read; retry then.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        match self.inner() {
            FileHandle::Writer { engine, .. } => engine.read_at(into, offset),
            FileHandle::Reader(reader) => reader.read_at(into, offset),
        }
    }

    /// Appends the bytes of all slices, one behind the other, as one [`append`](Self::append).
    ///
    /// So a batch of records is appended as a whole, and none of other threads comes between them.
    /// Several slices are first copied together.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub fn append_vectored(&self, slices: &[IoSlice<'_>]) -> Result<u64> {
        self.append(&gathered(slices))
    }

    /// Writes the bytes of all slices, one behind the other, as one [`write_at`](Self::write_at).
    /// Several slices are first copied together.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at).
    pub fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.write_at(&gathered(slices), offset)
    }

    /// Fills the slices one after the other, as one [`read_at`](Self::read_at). Returns the number
    /// of bytes read. Several slices are filled by a copy.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn read_vectored_at(&self, slices: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        if let [into] = slices {
            return self.read_at(into, offset);
        }
        let mut bytes = Buffer::zeroed(slices.iter().map(|slice| slice.len()).sum());
        let read = self.read_at(&mut bytes, offset)?;
        let mut left = &bytes[..read];
        for slice in slices {
            let (here, rest) = left.split_at(left.len().min(slice.len()));
            slice[..here.len()].copy_from_slice(here);
            left = rest;
        }
        Ok(read)
    }

    /// Makes everything durable that was acknowledged before the call, through any handle of the
    /// file. For many files see [`sync_all`](crate::sync_all).
    ///
    /// # Errors
    ///
    /// A failed flush is final: it [wedges](ErrorKind::Wedged) every file of the process on the
    /// same file system (or device). The kernel may have dropped dirty data, and may report success
    /// the next time.
    pub fn sync_data(&self) -> Result<()> {
        self.writer(Operation::Flush, None)?.0.sync_data()
    }

    /// Truncates the file to `len` bytes, or extends it by a hole. Waits for operations in flight.
    /// The new length and everything written before are durable on return. Frees the space grown
    /// ahead and [recycled](Self::recycle) space.
    ///
    /// # Errors
    ///
    /// The kernel's error; the length is then the old or the new one. While space is grown ahead,
    /// the call does not destroy data of another program. These errors leave the old length:
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): a block device.
    /// - [`Busy`](ErrorKind::Busy): another process has the file open for writing.
    /// - [`ModifiedExternally`](ErrorKind::ModifiedExternally): another program has written above
    ///   the end.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.writer(Operation::SetLen, None)?.0.set_len(len)
    }

    /// Resets the length to 0 and keeps the allocated blocks for reuse, as space ahead of the next
    /// appends. Durable appends are fastest in written space, since they need no journal commit. A
    /// segmented log reuses the space of an old segment under a new name.
    ///
    /// Waits for operations in flight. On return the length is 0, and reads through this library
    /// never show the old content. An append or a positional write must begin at or below the end
    /// until the space is used up. Space grown ahead of the old length stays as well. Growth starts
    /// again only when an append needs more space than there is.
    ///
    /// The call erases nothing: other programs read the old content until it is overwritten.
    /// [`close`](Self::close) and [`set_len`](Self::set_len) free the space above the end, as
    /// always. So close a segment that is to be recycled only when it is full.
    ///
    /// ```no_run
    /// # use dioxide::OpenOptions;
    /// std::fs::rename("log.17", "log.42")?;
    /// std::fs::File::open(".")?.sync_all()?; // the new life must not be found under the old name
    /// let log = OpenOptions::new().write(true).open("log.42")?;
    /// log.recycle()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # After a crash
    ///
    /// On return the old content is no longer guaranteed. Until the file is closed, a crash leaves
    /// the [end unknown](crate::Verdict::EndUnknown). [`recovery`](Self::recovery) then reports a
    /// floor and a ceiling. The floor is 0 until the file grows beyond the space that it had. The
    /// durable data ends between them, followed by the old content.
    ///
    /// **Old records look as valid there as new ones, whatever checksum they carry.** So each
    /// record must identify the life of the segment, by a log sequence number or a segment number.
    /// The caller finds the last record of this life and truncates behind it with
    /// [`set_len`](Self::set_len). A crash during the call leaves the file as it was, or with its
    /// end unknown and all its content.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](ErrorKind::Unsupported): the file does not [grow](Self::growth) ahead, so
    ///   no marker would record that the end is unknown.
    /// - [`Unsupported`](ErrorKind::Unsupported): the file system does not overwrite blocks in
    ///   place (btrfs without `chattr +C`), so there is nothing to reuse. The call cannot detect a
    ///   snapshot or reflink copy that shares the space: an append may then find no space.
    /// - [`ModifiedExternally`](ErrorKind::ModifiedExternally): another program changed the size.
    ///
    /// Or the kernel's error. The file is then as it was.
    pub fn recycle(&self) -> Result<()> {
        self.writer(Operation::Recycle, None)?.0.recycle()
    }

    /// Returns the length in bytes: the end of the written data, without space that is only grown.
    ///
    /// It is exact in the process that writes the file, for read-only handles too. In another
    /// process a read-only handle derives it from the marker and the extents of the file:
    ///
    /// - [`Growth::Unwritten`] and [`Growth::None`]: exact to the block. It may include appends
    ///   that are not yet acknowledged.
    /// - [`Growth::Zeroed`] and [recycled](Self::recycle) space: the last durable end that the
    ///   writer recorded, which it does at each step of growth.
    ///
    /// # Errors
    ///
    /// Only for a read-only handle: the kernel's error, or `EAGAIN` if the file changes so fast
    /// that no two looks agree.
    pub fn len(&self) -> Result<u64> {
        match self.inner() {
            FileHandle::Writer { engine, .. } => Ok(engine.len()),
            FileHandle::Reader(reader) => reader.len(),
        }
    }

    /// Returns whether [`len`](Self::len) is 0.
    ///
    /// # Errors
    ///
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Returns another handle of the file, with the same rights.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn try_clone(&self) -> Result<Self> {
        self.try_clone_as(self.durability())
    }

    /// Returns all descriptors of the file. For the preload library.
    #[doc(hidden)]
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let statistics = match self.inner() {
            FileHandle::Writer { engine, .. } => engine.descriptor_of_order(),
            FileHandle::Reader(_) => None,
        };
        statistics.into_iter().chain([self.as_fd()])
    }

    /// As [`try_clone`](Self::try_clone), with another durability. Opens no descriptor.
    ///
    /// # Errors
    ///
    /// As [`try_clone`](Self::try_clone).
    #[doc(hidden)]
    pub fn try_clone_as(&self, durability: Durability) -> Result<Self> {
        match self.inner() {
            FileHandle::Writer { engine, key, process, .. } => {
                if !process.is_current() {
                    return Err(engine.error(Operation::Open, None, ErrorKind::Forked));
                }
                let engine = process.registry.join(*key).expect("open as long as this handle is");
                let durable = durability == Durability::EveryWrite;
                Ok(Self(Some(FileHandle::Writer { engine, key: *key, process, durable })))
            }
            FileHandle::Reader(reader) => Ok(Self(Some(FileHandle::Reader(reader.clone())))),
        }
    }

    /// Closes this handle. The last writing handle makes it an ordinary file for other programs,
    /// durably: its size is its length, without space grown ahead or a marker. Read-only handles
    /// may still be open then, and continue.
    ///
    /// # Errors
    ///
    /// The kernel's error; the file is closed nevertheless, and the next open recovers it.
    ///
    /// - [`Busy`](ErrorKind::Busy): another process has the file open for writing. The file stays
    ///   grown, with a marker. The next open without that writer keeps everything up to the last
    ///   written extent. A file that does not [grow](Self::growth) ahead has no marker, and keeps
    ///   the zeros behind its last record, up to the end of that block. With [`Growth::Zeroed`] and
    ///   in recycled space the [end is unknown](crate::Verdict::EndUnknown) then, from the length
    ///   on.
    /// - [`ModifiedExternally`](ErrorKind::ModifiedExternally): another program changed the size,
    ///   so the file was not truncated; or wrote into the space ahead, so it was truncated behind
    ///   that. The range between reads as zeros, except for data that failed appends left there.
    ///   Writes of another program into [recycled](Self::recycle) space are not detected.
    ///
    /// # Other programs
    ///
    /// A write lease keeps other programs out during the truncate: their `open` waits for it. A
    /// lease needs the owner of the file or CAP_LEASE, and no reader that has the file open.
    /// Without a lease there is a window of microseconds between the last check of the file and the
    /// truncate. A write of another program in this window is lost.
    pub fn close(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), leave)
    }

    /// Returns the counters of the file since its first writing handle was opened. All zero for a
    /// reader.
    pub fn stats(&self) -> Stats {
        match self.inner() {
            FileHandle::Writer { engine, .. } => engine.stats(),
            FileHandle::Reader(_) => Stats::default(),
        }
    }

    /// Returns the alignment of memory, offsets and lengths of writes, in bytes. Reads need no
    /// alignment, but cost least with it.
    pub fn alignment(&self) -> Alignment {
        match self.inner() {
            FileHandle::Writer { engine, .. } => engine.alignment,
            FileHandle::Reader(reader) => reader.alignment(),
        }
    }

    /// Returns the state in which a crash left the file, as recovery found it at open, and the
    /// recovered length. None if there was nothing to recover.
    ///
    /// With [`Verdict::EndUnknown`](crate::Verdict::EndUnknown) the length is the ceiling. Read
    /// from the floor on, find the end of the last record, and truncate there with
    /// [`set_len`](Self::set_len). The marker stays until then, and the next open reports the same
    /// again.
    ///
    /// **Truncate before the first append.** An append lands at the length, behind zeros or old
    /// records. A later search for the end stops before it, and the next truncate destroys it.
    pub fn recovery(&self) -> Option<&Recovery> {
        match self.inner() {
            FileHandle::Writer { engine, .. } => {
                engine.recovery.needs_attention().then_some(&engine.recovery)
            }
            FileHandle::Reader(_) => None,
        }
    }

    /// Returns the kind of growth in use. It is [`Growth::None`] for a reader, in the child of a
    /// fork, and where the file system cannot undo growth after a crash. A warning (crate `log`)
    /// has the reason, once.
    ///
    /// It becomes [`Growth::None`] when the kernel permanently refuses the space or the marker;
    /// appends continue. The engine first gives up the space grown before. This fails while another
    /// process has the file open for writing, or after another program wrote above the end. Appends
    /// that need space then fail with [`Busy`](ErrorKind::Busy) or
    /// [`ModifiedExternally`](ErrorKind::ModifiedExternally). A file found with its [end
    /// unknown](crate::Verdict::EndUnknown) keeps its kind of growth, whatever the options ask for.
    pub fn growth(&self) -> Growth {
        match self.inner() {
            // The child of a fork must not wait for a lock that a thread of its parent may have
            // held.
            FileHandle::Writer { engine, process, .. } if process.is_current() => engine.growth(),
            FileHandle::Writer { .. } | FileHandle::Reader(_) => Growth::None,
        }
    }

    /// Whether durable operations may share flushes with other files of the file system. If not,
    /// the error is the reason in words. [`Stats::flushes_shared`] counts shared flushes.
    ///
    /// # Errors
    ///
    /// The file flushes for itself: on its file system or device, a commit is not known to cover
    /// other files, or was a fast one. Or the file is a reader.
    pub fn shares_flushes(&self) -> std::result::Result<(), &str> {
        match self.inner() {
            FileHandle::Writer { engine, .. } => engine.why_no_shared_flush().map_or(Ok(()), Err),
            FileHandle::Reader(_) => Err("it is open for reading"),
        }
    }

    /// When writes through this handle are durable.
    pub fn durability(&self) -> Durability {
        match self.inner() {
            FileHandle::Writer { durable: true, .. } => Durability::EveryWrite,
            _ => Durability::OnSync,
        }
    }

    pub(crate) fn inner(&self) -> &FileHandle {
        self.0.as_ref().expect("only close and drop take it")
    }

    fn writer(&self, operation: Operation, offset: Option<u64>) -> Result<(&Arc<Engine>, bool)> {
        match self.inner() {
            FileHandle::Writer { engine, durable, .. } => Ok((engine, *durable)),
            reader => Err(reader.error(operation, offset, ErrorKind::ReadOnly)),
        }
    }
}

/// The bytes of all slices in one piece.
fn gathered<'a>(slices: &'a [IoSlice<'_>]) -> Cow<'a, [u8]> {
    match slices {
        [] => Cow::Borrowed(&[]),
        [one] => Cow::Borrowed(one),
        _ => {
            let mut bytes = Vec::with_capacity(slices.iter().map(|slice| slice.len()).sum());
            slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
            Cow::Owned(bytes)
        }
    }
}

fn leave(inner: FileHandle) -> Result<()> {
    match inner {
        FileHandle::Writer { engine, process, key, .. } => {
            if process.is_current() {
                drop(engine);
                process.registry.leave(key)
            } else {
                engine.finish()
            }
        }
        FileHandle::Reader(_) => Ok(()),
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let Some(inner) = self.0.take() else { return };
        match leave(inner) {
            Err(error) if *error.kind() != ErrorKind::Forked => log::error!("dioxide: {error}"),
            _ => {}
        }
    }
}

/// For generic code: `read_exact_at` and `write_all_at` among others. A write is never short.
impl FileExt for File {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(File::read_at(self, into, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        File::write_at(self, data, offset)?;
        Ok(data.len())
    }
}

impl AsFd for File {
    /// Returns the descriptor, for inspection. A change of the file through it voids the promises
    /// of the engine.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.inner() {
            FileHandle::Writer { engine, .. } => engine.backend.descriptor(),
            FileHandle::Reader(reader) => reader.as_fd(),
        }
    }
}
