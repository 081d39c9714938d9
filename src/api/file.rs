//! The public [`File`]: handles of what the engine runs, and readers beside it.

use crate::api::options::OpenOptions;
use crate::engine::Engine;
use crate::engine::handle::FileHandle;
use crate::error::{ErrorKind, Operation, Result};
use crate::open;
use crate::rules::policy::Durability;
use crate::rules::policy::Growth;
use crate::rules::recovery::Recovery;
use crate::stats::Stats;
use crate::sys::probe::Alignment;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// A regular file or block device, open O_DIRECT. Shared by threads through `&self`; a file may
/// have several handles, which all see the same length and order.
///
/// What is written must be aligned: memory, offsets and lengths, see
/// [`alignment`](Self::alignment); [`Buffer`](crate::Buffer) is aligned memory. Reads take any
/// range, into any memory.
///
/// Close it with [`close`](Self::close) to learn whether that succeeded. Dropping the last handle
/// does the same, and logs what failed.
///
/// After a fork every operation of the child on a handle that writes fails with
/// [`ErrorKind::Forked`], and its exit changes nothing. A read-only handle goes on in the child, as
/// a reader beside another process.
///
/// # Locks
///
/// A writer process holds a lock of one byte near the largest offset (an OFD lock of byte 2⁶³ - 2),
/// which keeps other writers out. It conflicts with POSIX and OFD locks of the same process as
/// well, if they reach so far: one that the program itself takes to the end of the file and beyond
/// (`l_len` 0) is refused with `EAGAIN`. Lock a range that ends below, such as 2⁶² bytes.
///
/// Closing any descriptor of a file ends all POSIX locks that the process has on it; that is how
/// POSIX has it, and holds for the descriptors of this crate too: for the last writing handle, for
/// each read-only one, and for [`recover`](crate::recover). More writing handles share one
/// descriptor, and so do clones of a read-only one. OFD locks and `flock` are not concerned.
#[derive(Debug)]
pub struct File(Option<FileHandle>);

impl File {
    /// Opens a file read-only, with a descriptor of its own: it does not keep a file that this
    /// process writes from being put away, see [`close`](Self::close).
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().open(path)
    }

    /// Opens a file for writing, creating it if it is missing; an existing one is cut to length 0.
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

    /// Appends `data`, of any length and anywhere in memory, and returns the offset in bytes at
    /// which it stands.
    ///
    /// Concurrent appends get disjoint, gapless offsets in the order in which they are taken (with
    /// [`Tail::Pad`](crate::Tail::Pad), gaps of zeros up to the next block). An empty append writes
    /// nothing and returns the length.
    ///
    /// What fills blocks of the [append unit](crate::Alignment::append) by itself, and is aligned
    /// in memory, goes out without a copy. The rest is packed into blocks together with what others
    /// append at the same time, so an append that ends inside a block writes that block, and the
    /// next one [writes it again or leaves it](crate::Tail). Many small appends by one thread cost
    /// a write of a block each: durable ones gain by being many at a time, from threads, a
    /// [`Queue`](crate::Queue) or tasks.
    ///
    /// On return every byte below the end of `data` is written; with [`Durability::EveryWrite`] it
    /// is stable as well, and every crash from now on leaves it in the file. Without, a crash may
    /// take any part of what no [`sync_data`](Self::sync_data) covered, from some point to the end.
    /// What recovery finds ends where a block does: behind the last record there may be zeros, or
    /// what was being written.
    ///
    /// # Errors
    ///
    /// [`NoSpace`](ErrorKind::NoSpace): nothing was written, and the same call works once there is
    /// space. [`AppendEnded`](ErrorKind::AppendEnded): an append below this one failed after it had
    /// its offset, so this one is not part of the file. After any other error `data` may be on disk
    /// in part, beyond the end of the file.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        let (engine, durable) = self.writer(Operation::Append, None)?;
        engine.append(data, durable)
    }

    /// Writes `data` at `offset`: all of it or an error, never short.
    ///
    /// Beyond the end it extends the file, and what it leaves out is a hole that reads as zeros;
    /// over [recycled](Self::recycle) space that would show old content, so nothing can be left out
    /// there. With [`Durability::EveryWrite`] it is stable on return. Concurrent writes of the same
    /// bytes have no order.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); [`Misaligned`](ErrorKind::Misaligned): `offset`, the length or
    /// the address of `data` is not what [`alignment`](Self::alignment) asks for;
    /// [`Unsupported`](ErrorKind::Unsupported) for a gap over recycled space. After an error any
    /// part of the range may hold old or new bytes.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let (engine, durable) = self.writer(Operation::Write, Some(offset))?;
        engine.write_at(data, offset, durable)
    }

    /// Reads at `offset` into `into`, and returns the number of bytes read: all of `into`, or what
    /// there is up to the end of the file. Bytes of `into` beyond that number may have been set to
    /// zero.
    ///
    /// Any memory, offset and length will do. What is [aligned](Self::alignment) goes straight into
    /// `into`, in one transfer. Of other reads a long middle does, if the memory is aligned there;
    /// the rest is read as whole blocks into other memory, up to 1 MiB at a time, and copied.
    ///
    /// Sees every write that was acknowledged before the call (a reader beside another process: up
    /// to the end that [`len`](Self::len) can tell it); never space that was only grown. Where
    /// another process truncates the file meanwhile, what is read does not mix content from before
    /// and after that.
    ///
    /// # Errors
    ///
    /// What the kernel answers; `into` may then hold part of what was asked for. For a reader
    /// beside another process as [`len`](Self::len), and `EAGAIN` if that process truncates the
    /// file again and again while it is read: try again.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        match self.inner() {
            FileHandle::Shared { engine, .. } => engine.read_at(into, offset),
            FileHandle::Reader(reader) => reader.read_at(into, offset),
        }
    }

    /// Makes everything stable that was acknowledged before the call, through whatever handle.
    ///
    /// # Errors
    ///
    /// A failed flush is final: it [wedges](ErrorKind::Wedged) every file of the process on the
    /// same file system (or device), because the kernel may have dropped what it could not write
    /// and report success the next time.
    pub fn sync_data(&self) -> Result<()> {
        self.writer(Operation::Flush, None)?.0.sync_data()
    }

    /// Cuts the file to `len` bytes, or extends it by a hole. Waits for operations in flight.
    /// Durable on return, as is everything written before. Space grown ahead is given back, and so
    /// is [recycled](Self::recycle) space.
    ///
    /// # Errors
    ///
    /// What the kernel answers; the length is then the old or the new one. While space is grown
    /// ahead, nothing that another program wrote there is destroyed: [`Busy`](ErrorKind::Busy)
    /// while another process has the file open for writing,
    /// [`ModifiedExternally`](ErrorKind::ModifiedExternally) when another program has written above
    /// the end. The length is then the old one.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.writer(Operation::SetLen, None)?.0.set_len(len)
    }

    /// Makes an empty file of this one that has all its space: as `set_len(0)`, but what the file
    /// holds becomes space ahead of the next appends. Written space is the fastest to append to
    /// durably, since a write into it needs no journal commit; so a log made of segments gives each
    /// new one the space of an old one, under a new name.
    ///
    /// Waits for operations in flight. On return the length is 0, and this file never shows what it
    /// held: an append or a positional write must begin at the end or below it, until the space is
    /// used up. What was above the old length, grown ahead, stays as well. Growth ahead begins only
    /// when an append needs more than there is.
    ///
    /// Nothing is erased. Other programs read the old content in the file until it is overwritten.
    /// [`close`](Self::close) and [`set_len`](Self::set_len) give back what lies above the end, as
    /// always: a segment that is to be used again is closed when it is full.
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
    /// On return nothing of the old content is promised any more. Until the file is closed, a crash
    /// leaves it [undecided](crate::Verdict::EndUnknown): [`recovery`](Self::recovery) reports a
    /// floor (0, until the file grows beyond the space that it had) and a ceiling, and what is
    /// durable lies between, followed by the old content. **Old records look as valid there as new
    /// ones, whatever checksum they carry**; so each record must tell in which life of the segment
    /// it was written, by a log sequence number or a number of the segment. The caller finds the
    /// last record of this life and cuts there with [`set_len`](Self::set_len). A crash during the
    /// call leaves the file as it was, or undecided with all its content.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) where the file does not [grow](Self::growth) ahead:
    /// its marker is what tells after a crash that the end is not known; and where blocks are not
    /// written over where they lie (btrfs without `chattr +C`), since there is nothing to reuse
    /// then. A snapshot or reflink copy that shares the space has the same effect, which no one can
    /// see in advance: an append may then meet a full disk.
    /// [`ModifiedExternally`](ErrorKind::ModifiedExternally): another program changed the size. And
    /// what the kernel answers; the file is then as it was.
    pub fn recycle(&self) -> Result<()> {
        self.writer(Operation::Recycle, None)?.0.recycle()
    }

    /// The length in bytes: the end of what is written, without space that was only grown.
    ///
    /// Exact in the process that writes the file, for read-only handles too. In another process a
    /// read-only handle goes by the marker and the extents of the file: to the block for
    /// [`Growth::Unwritten`] and [`Growth::None`], and it may include appends not yet acknowledged;
    /// for [`Growth::Zeroed`] and in [recycled](Self::recycle) space it is the last durable end
    /// that the writer noted, which it does at each step of growth.
    ///
    /// # Errors
    ///
    /// Only for a reader beside another process: what the kernel answers, and `EAGAIN` if the file
    /// changes so fast that no two looks agree.
    pub fn len(&self) -> Result<u64> {
        match self.inner() {
            FileHandle::Shared { engine, .. } => Ok(engine.len()),
            FileHandle::Reader(reader) => reader.len(),
        }
    }

    /// Whether [`len`](Self::len) is 0.
    ///
    /// # Errors
    ///
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// One more handle of the file, with the same rights.
    ///
    /// # Errors
    ///
    /// What the kernel answers.
    pub fn try_clone(&self) -> Result<Self> {
        self.try_clone_as(self.durability())
    }

    /// The same, with another durability. Opens no descriptor.
    ///
    /// # Errors
    ///
    /// As [`try_clone`](Self::try_clone).
    #[doc(hidden)]
    pub fn try_clone_as(&self, durability: Durability) -> Result<Self> {
        match self.inner() {
            FileHandle::Shared { engine, key, process, .. } => {
                if !process.is_current() {
                    return Err(engine.error(Operation::Open, None, ErrorKind::Forked));
                }
                let engine = process.registry.join(*key).expect("open as long as this handle is");
                let durable = durability == Durability::EveryWrite;
                Ok(Self(Some(FileHandle::Shared { engine, key: *key, process, durable })))
            }
            FileHandle::Reader(reader) => Ok(Self(Some(FileHandle::Reader(reader.another())))),
        }
    }

    /// Gives up this handle. With the last one that may write, the file is brought into the state
    /// in which any other program would leave it, durably: its size is its length, without space
    /// grown ahead or a marker. Read-only handles may still be open then, and go on.
    ///
    /// # Errors
    ///
    /// What the kernel answers; the file is closed all the same, and the next open recovers it.
    /// [`Busy`](ErrorKind::Busy): another process has the file open for writing. The file stays
    /// grown, with a marker by which the next open, without that writer, keeps everything up to the
    /// last written extent. A file that does not [grow](Self::growth) ahead has no marker, and
    /// keeps the zeros behind its last record, up to the end of that block. With [`Growth::Zeroed`]
    /// and in recycled space the file is [undecided](crate::Verdict::EndUnknown) then, from the
    /// length on. [`ModifiedExternally`](ErrorKind::ModifiedExternally): another program changed
    /// its size, so it was not truncated; or wrote into the space ahead, so it was truncated behind
    /// that. What lies between reads as zeros, but for what failed appends may have left there.
    /// Writes of another program into [recycled](Self::recycle) space are not seen.
    ///
    /// # Other programs
    ///
    /// A write lease keeps them out while the file is truncated: an `open` of theirs waits for
    /// that. A lease needs the owner of the file or CAP_LEASE, and no reader that has the file
    /// open. Where it cannot be had, a write of another program is lost that goes out in the
    /// microseconds between the last look at the file and the truncate.
    pub fn close(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), leave)
    }

    /// What was done on the file since its first writing handle was opened. All zero for a reader.
    pub fn stats(&self) -> Stats {
        match self.inner() {
            FileHandle::Shared { engine, .. } => engine.stats(),
            FileHandle::Reader(_) => Stats::default(),
        }
    }

    /// What memory, offsets and lengths of writes must be multiples of. Reads need not be aligned,
    /// but cost least if they are.
    pub fn alignment(&self) -> Alignment {
        match self.inner() {
            FileHandle::Shared { engine, .. } => engine.alignment,
            FileHandle::Reader(reader) => reader.alignment(),
        }
    }

    /// What a crash had left of the file when it was opened for writing, and what was made of it.
    /// Nothing if it was in order.
    ///
    /// With [`Verdict::EndUnknown`](crate::Verdict::EndUnknown) the length is the ceiling: read
    /// from the floor on, find the last of your records, and cut there with
    /// [`set_len`](Self::set_len). Until then the marker stays, so that the question comes again
    /// with the next open.
    pub fn recovery(&self) -> Option<&Recovery> {
        match self.inner() {
            FileHandle::Shared { engine, .. } => {
                engine.recovery.needs_attention().then_some(&engine.recovery)
            }
            FileHandle::Reader(_) => None,
        }
    }

    /// How space is really prepared ahead: [`Growth::None`] where the file system cannot undo it
    /// after a crash (the log says why, once), for a reader, and in the child of a fork. It becomes
    /// [`Growth::None`] when the kernel refuses the space or the marker for good; appends go on.
    /// What was grown before is given up first: while another process has the file open for
    /// writing, or after another program wrote above the end, appends that need space fail by
    /// [`Busy`](ErrorKind::Busy) or [`ModifiedExternally`](ErrorKind::ModifiedExternally). A file
    /// that was found [undecided](crate::Verdict::EndUnknown) goes on as it had begun, whatever was
    /// asked for.
    pub fn growth(&self) -> Growth {
        match self.inner() {
            // The child of a fork must not wait for a lock that one of its parent's threads may
            // have held.
            FileHandle::Shared { engine, process, .. } if process.is_current() => engine.growth(),
            FileHandle::Shared { .. } | FileHandle::Reader(_) => Growth::None,
        }
    }

    /// When writes through this handle are stable.
    pub fn durability(&self) -> Durability {
        match self.inner() {
            FileHandle::Shared { durable: true, .. } => Durability::EveryWrite,
            _ => Durability::OnSync,
        }
    }

    pub(crate) fn inner(&self) -> &FileHandle {
        self.0.as_ref().expect("only close and drop take it")
    }

    fn writer(&self, operation: Operation, offset: Option<u64>) -> Result<(&Arc<Engine>, bool)> {
        match self.inner() {
            FileHandle::Shared { engine, durable, .. } => Ok((engine, *durable)),
            reader => Err(reader.error(operation, offset, ErrorKind::ReadOnly)),
        }
    }
}

fn leave(inner: FileHandle) -> Result<()> {
    match inner {
        FileHandle::Shared { engine, process, key, .. } => {
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

impl AsFd for File {
    /// The descriptor, to inspect the file with. Changing the file through it behind the engine's
    /// back breaks what the engine promises.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.inner() {
            FileHandle::Shared { engine, .. } => engine.backend.descriptor(),
            FileHandle::Reader(reader) => reader.as_fd(),
        }
    }
}
