//! The public builder of what a file is opened with.

use crate::api::file::File;
use crate::error::Result;
use crate::open::request::OpenRequest;
use crate::rules::policy::{Durability, Growth, Tail};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Opens a [`File`], in the manner of [`std::fs::OpenOptions`].
///
/// ```no_run
/// use dioxide::{Buffer, Durability, OpenOptions};
///
/// let log = OpenOptions::new()
///     .write(true)
///     .create(true)
///     .durability(Durability::EveryWrite)
///     .open("records.log")?;
/// let block = Buffer::zeroed(4096);
/// let offset = log.append(&block)?; // durable when this returns
/// log.close()?;
/// # Ok::<(), dioxide::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions(OpenRequest);

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Read-only, nothing created; [`Durability::OnSync`], [`Growth::Unwritten`] and
    /// [`Tail::Rewrite`].
    pub fn new() -> Self {
        Self(OpenRequest::default())
    }

    /// Allow writing (and reading: recovery must read). One process at a time can hold a file so.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.0.write = write;
        self
    }

    /// Create the file if it is missing. The new name is durable when `open` returns.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.0.create = create;
        self
    }

    /// Create the file; an existing one is an error.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.0.create_new = create_new;
        self
    }

    /// Cut an existing file to length 0, once the file is locked against other writers.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.0.truncate = truncate;
        self
    }

    /// Permission bits of a created file, before the umask. 0o666 by default.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.0.mode = mode;
        self
    }

    /// When writes through this handle are stable. Handles of one file may differ.
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.0.durability = durability;
        self
    }

    /// How space is prepared ahead of the end. The first writing handle of a file decides.
    pub fn growth(&mut self, growth: Growth) -> &mut Self {
        self.0.growth = growth;
        self
    }

    /// The largest step of growth, in bytes; 64 MiB by default. A step is never more than an eighth
    /// of the free space either, unless an append needs more, and one of [`Growth::Zeroed`] never
    /// more than 8 MiB. Larger steps are fewer, smaller ones hold up writers less.
    pub fn growth_cap(&mut self, bytes: u64) -> &mut Self {
        self.0.growth_cap_bytes = bytes;
        self
    }

    /// The length that the file is expected to reach, in bytes: the first step of growth goes there
    /// at once, beyond the cap too, and the next begins only when more is needed. A hint, never a
    /// limit.
    pub fn capacity(&mut self, bytes: u64) -> &mut Self {
        self.0.capacity_bytes = Some(bytes);
        self
    }

    /// What becomes of a last block that is not full. The first writing handle of a file decides.
    pub fn tail(&mut self, tail: Tail) -> &mut Self {
        self.0.tail = tail;
        self
    }

    /// The descriptors that a file is opened with get numbers of at least this; 0 by default. For
    /// libraries inside of a program that expects the lowest free number for what it opens itself,
    /// or that closes numbers it does not know.
    ///
    /// A lower number is taken for a moment nevertheless, while the file is being opened, and given
    /// back: which ends POSIX locks (`F_SETLK`) that this process has on the file, as each close
    /// does. Handles that join a file that is open already open nothing, and the rings of a
    /// [`Queue`](crate::Queue) are no descriptors of files. Opening fails with `EMFILE` where the
    /// process may have no number this high (`RLIMIT_NOFILE`).
    pub fn descriptor_min(&mut self, number: u32) -> &mut Self {
        self.0.descriptor_min = number;
        self
    }

    pub(crate) fn request(&self) -> &OpenRequest {
        &self.0
    }

    /// Opens `path`: a regular file or a block device. Anything else is refused and not opened.
    ///
    /// A file that this process has open for writing already is shared, by threads that the kernel
    /// would let open it: it decides by the user, groups and capabilities of the calling thread,
    /// and by mounts and flags of the file. Landlock rules are not asked then. Sharing opens no
    /// further descriptor, so the program keeps its POSIX locks.
    ///
    /// Opening for writing takes a lock against other writers, recovers what a crash left behind
    /// (see [`File::recovery`]) and makes what it found durable. Where O_DIRECT is not direct
    /// (btrfs with checksums, tmpfs) the log says so.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) when another process has the file open for
    /// writing, [`Busy`](crate::ErrorKind::Busy) for a block device in use, or a file that a crash
    /// left grown and another process has open for writing,
    /// [`ModifiedExternally`](crate::ErrorKind::ModifiedExternally) when another program changed
    /// the length of a file that a crash left grown, [`Wedged`](crate::ErrorKind::Wedged) after a
    /// failed flush on that file system, [`Unsupported`](crate::ErrorKind::Unsupported) where there
    /// is no O_DIRECT and for a FIFO, a character device or a socket, and whatever the kernel
    /// answers (`EACCES` also where the file would be shared).
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        File::open_with(self, path.as_ref())
    }

    /// Makes a file of `fd`, a copy of a descriptor that the caller has open O_DIRECT for reading
    /// and writing, or only for writing. For the preload library. `path` is for messages only.
    ///
    /// The caller holds a write lease on the description of a regular file until the last handle is
    /// closed. So the file has no other opener. If the lease is lost, the file is not truncated any
    /// more. O_APPEND is not set.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub fn open_descriptor(&self, fd: OwnedFd, path: impl AsRef<Path>) -> Result<File> {
        File::open_descriptor(self, fd, path.as_ref())
    }

    /// Opens a striped volume: several files, or several block devices, as one. Chunks of
    /// `chunk_bytes` bytes of it lie on the members in turn, so that all of them work at the same
    /// time. The paths are given in the same order each time.
    ///
    /// The volume is a [`File`] as any other. Of files it grows, with [`Growth`] on each member,
    /// and [`File::append`] extends it; of devices it has the size of as many chunks as the
    /// smallest of them has room for, times their number. A flush is one of all members, and if it
    /// fails on one of them it has failed for all, and for every file of this process beside any of
    /// them. Several files of one file system may be members as well: on ext4 and XFS each has
    /// locks of its own. Requests are divided at chunks, and what is adjacent on a member goes out
    /// as one request.
    ///
    /// With [`create`](Self::create), files that do not exist or are empty become a volume, and
    /// devices whose first 4096 bytes are zeros; what holds anything else is refused. Each member
    /// begins with a chunk of its own that holds a header, by which members that are missing, in
    /// the wrong place, of another volume or of another time are found. `chunk_bytes` is a multiple
    /// of 4096 and of the file systems' blocks; 64 KiB to 1 MiB are usual.
    ///
    /// The members are not for other programs to change, nor to be opened as files of their own for
    /// writing.
    ///
    /// # After a crash
    ///
    /// As for a single file: every durable byte is there, and [`File::recovery`] tells what was
    /// found. A volume in which a member lacks what was there when it was opened last is refused.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open) for each member, and [`Members`](crate::ErrorKind::Members): what is
    /// given is not one volume in its order; which of the members is wrong, and why.
    /// [`Unsupported`](crate::ErrorKind::Unsupported): files and devices mixed, a chunk that does
    /// not fit, or more than 64 members.
    pub fn open_striped(&self, paths: &[impl AsRef<Path>], chunk_bytes: u64) -> Result<File> {
        File::open_striped(
            self,
            paths.iter().map(|path| path.as_ref().into()).collect(),
            chunk_bytes,
        )
    }

    /// Opens a new file without a name in the directory `dir` (O_TMPFILE): it vanishes with its
    /// last handle, however the process ends. Always writable.
    pub fn open_temporary(&self, dir: impl AsRef<Path>) -> Result<File> {
        File::open_temporary(self, dir.as_ref())
    }
}
