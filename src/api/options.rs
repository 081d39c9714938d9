//! The public builder of the options that a file is opened with.

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
    /// Read-only, creates nothing, with [`Durability::OnSync`], [`Growth::Unwritten`] and
    /// [`Tail::Rewrite`].
    pub fn new() -> Self {
        Self(OpenRequest::default())
    }

    /// Allows writing, and reading: recovery must read. Only one process at a time can open a file
    /// for writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.0.write = write;
        self
    }

    /// Creates the file if it is missing. The new name is durable when `open` returns.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.0.create = create;
        self
    }

    /// Creates the file; fails if it exists.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.0.create_new = create_new;
        self
    }

    /// Truncates an existing file to length 0, once the file is locked against other writers.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.0.truncate = truncate;
        self
    }

    /// Sets the permission bits of a created file, before the umask. 0o666 by default.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.0.mode = mode;
        self
    }

    /// Sets when writes through this handle are durable. Handles of one file may differ.
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.0.durability = durability;
        self
    }

    /// Sets how space is prepared ahead of the end. The first writing handle of a file decides.
    pub fn growth(&mut self, growth: Growth) -> &mut Self {
        self.0.growth = growth;
        self
    }

    /// Sets the largest step of growth, in bytes; 64 MiB by default. A step is at most an eighth of
    /// the free space, unless an append needs more. With [`Growth::Zeroed`] it is at most 8 MiB,
    /// except for [`capacity`](Self::capacity). Larger steps are fewer, and smaller ones delay
    /// writers less.
    pub fn growth_cap(&mut self, bytes: u64) -> &mut Self {
        self.0.growth_cap_bytes = bytes;
        self
    }

    /// Sets the expected length of the file, in bytes. The first step of growth allocates up to it,
    /// even beyond the cap. It has at most an eighth of the free space and a quarter of the
    /// [budget](crate::set_growth_budget) left. The first append waits for it, with
    /// [`Growth::Zeroed`] for all of its zeros. The next step begins only when more is needed. A
    /// hint, never a limit.
    pub fn capacity(&mut self, bytes: u64) -> &mut Self {
        self.0.capacity_bytes = Some(bytes);
        self
    }

    /// Sets how appends treat a partial last block. The first writing handle of a file decides.
    pub fn tail(&mut self, tail: Tail) -> &mut Self {
        self.0.tail = tail;
        self
    }

    /// Sets the smallest number of the file's descriptors; 0 by default. For libraries inside a
    /// program that expects the lowest free number for its own opens, or that closes numbers it
    /// does not know.
    ///
    /// Opening briefly uses a lower number nevertheless, and closes it. This ends the POSIX locks
    /// (`F_SETLK`) that the process has on the file, as each close does. A handle that joins an
    /// open file opens nothing. The rings of a [`Queue`](crate::Queue) are not descriptors of
    /// files. Opening fails with `EMFILE` where the process may have no number this high
    /// (`RLIMIT_NOFILE`).
    pub fn descriptor_min(&mut self, number: u32) -> &mut Self {
        self.0.descriptor_min = number;
        self
    }

    /// A created file gets its final name by a rename, whose caller makes that one durable.
    pub(crate) fn temporary(&mut self) -> &mut Self {
        self.0.is_temporary = true;
        self
    }

    pub(crate) fn request(&self) -> &OpenRequest {
        &self.0
    }

    /// Opens `path`, a regular file or a block device. Refuses anything else without opening it.
    ///
    /// If this process has the file open for writing already, the handles share it. The calling
    /// thread needs the rights to open the file: its user, groups and capabilities, and the mounts
    /// and flags of the file decide. Landlock rules are not checked then. Sharing opens no
    /// descriptor, so the program keeps its POSIX locks.
    ///
    /// Opening for writing takes a lock against other writers, recovers the file after a crash (see
    /// [`File::recovery`]) and makes the recovered data durable. Where O_DIRECT is not direct
    /// (btrfs with checksums, tmpfs), it logs a warning (crate `log`).
    ///
    /// # Errors
    ///
    /// - [`Locked`](crate::ErrorKind::Locked): another process has the file open for writing.
    /// - [`Busy`](crate::ErrorKind::Busy): the block device is in use, or the file is the image
    ///   behind a loop device. Or a crash left the file grown, and another process has it open for
    ///   writing.
    /// - [`ModifiedExternally`](crate::ErrorKind::ModifiedExternally): another program changed the
    ///   length of a file that a crash left grown.
    /// - [`Wedged`](crate::ErrorKind::Wedged): a flush failed on that file system.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): no O_DIRECT; a FIFO, a character device or
    ///   a socket; or a request to create or truncate without one to write.
    ///
    /// Or the kernel's error (`EACCES` also where the file would be shared).
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        File::open_with(self, path.as_ref())
    }

    /// Makes a file of `fd`, a copy of the caller's descriptor, which is open O_DIRECT for reading
    /// and writing, or only for writing. For the preload library. `path` is for messages only.
    ///
    /// For a regular file, the caller holds a write lease on the description until the last handle
    /// is closed. So the file has no other opener. If the lease is lost, the file is no longer
    /// truncated. O_APPEND is not set.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub fn open_descriptor(&self, fd: OwnedFd, path: impl AsRef<Path>) -> Result<File> {
        File::open_descriptor(self, fd, path.as_ref())
    }

    /// Opens a striped volume: several files, or several block devices, as one. Its chunks of
    /// `chunk_bytes` bytes lie on the members in turn, so that all members work in parallel. The
    /// order of the paths is the same at each open.
    ///
    /// The volume supports the calls of any [`File`]. A volume of files grows, with [`Growth`] on
    /// each member, and [`File::append`] extends it. A volume of devices has a fixed size: the
    /// chunks that fit on the smallest device, times the number of devices.
    ///
    /// A flush covers all members. If it fails on one member, it fails for all, and for every file
    /// of this process on the file system of any of them. Several files of one file system may be
    /// members: on ext4 and XFS each has its own locks. Requests are split at chunks, and the
    /// adjacent pieces on a member are one request.
    ///
    /// [`create`](Self::create) makes a volume of missing or empty files, or of devices whose first
    /// 4096 bytes are zeros, and refuses other content. Each member begins with one chunk for its
    /// header. The headers identify members that are missing, in the wrong order, of another volume
    /// or of another time. `chunk_bytes` is a multiple of 4096 and of the file systems' block
    /// sizes; 64 KiB to 1 MiB are usual.
    ///
    /// Other programs must not change the members. No program may open them for writing as single
    /// files.
    ///
    /// # After a crash
    ///
    /// As for a single file: every durable byte is there, and [`File::recovery`] reports the state.
    /// A volume is refused if a member lacks data that it had at the last open.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open) for each member, and:
    ///
    /// - [`Members`](crate::ErrorKind::Members): the paths are not one volume in its order. The
    ///   error names the wrong member, and the reason.
    /// - [`Misaligned`](crate::ErrorKind::Misaligned): a chunk that is no such multiple.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): files mixed with devices, a chunk above
    ///   1 TiB, no member, or more than 64.
    pub fn open_striped(&self, paths: &[impl AsRef<Path>], chunk_bytes: u64) -> Result<File> {
        File::open_striped(
            self,
            paths.iter().map(|path| path.as_ref().into()).collect(),
            chunk_bytes,
        )
    }

    /// Opens a new file without a name in the directory `dir` (O_TMPFILE). It is always writable,
    /// and vanishes with its last handle, even if the process is killed.
    pub fn open_temporary(&self, dir: impl AsRef<Path>) -> Result<File> {
        File::open_temporary(self, dir.as_ref())
    }
}
