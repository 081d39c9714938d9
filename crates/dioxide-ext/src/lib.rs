//! Files inside unmounted volumes of ext2 and ext3, read and written with [dioxide].
//!
//! ```no_run
//! use dioxide::OpenOptions;
//! use dioxide_ext::OpenInImage;
//!
//! let data = OpenOptions::new().write(true).open_in_image("rootfs.img", "/var/lib/data")?;
//! data.append(b"a record")?;
//! data.close()?;
//! # Ok::<(), dioxide::Error>(())
//! ```
//!
//! `format`, `features`, `directory`, `allocation`, `blocks` and `indirect` are values: the
//! structures of a volume, and their changes. A `volume::Volume` is an open image or device, a
//! `node::Node` an open file of it, and `file::ExtFile` the interface of the file to dioxide's
//! engine.
//!
//! # The life of a write
//!
//! A durable `data.write_at(&bytes, offset)` goes past the end of a file inside an image.
//!
//! 1. The engine of the file works over `file::ExtFile`, without growth. It submits one extending
//!    write at a time. If the write fails, the engine restores the size.
//! 2. `node::Node` looks up the blocks in the map (`indirect`). The map returns runs, or the table
//!    (indirect block) that it lacks. The node reads this table, has the volume check its pointers
//!    (`Volume::check`), and retries. Adjacent blocks are one run and one request.
//! 3. Holes need blocks, all or none. The map counts the missing tables. The volume allocates
//!    tables and data blocks at once, near the last block of the file, contiguous if possible. The
//!    first blocks become tables, so that the data stays contiguous.
//! 4. The node writes the data while no pointer refers to it. Afterwards it changes map, size and
//!    sectors, in memory. So no read returns the former content of a block. A failed write only
//!    has to free its blocks.
//! 5. The write is durable, so the node passes its changes to `Volume::sync`. It writes them in
//!    two steps with a flush after each: bitmaps and new tables, then the inode and the tables that
//!    refer to them.
//!
//! Reads and overwrites end after step 2. They read the map under its lock, and transfer without
//! it. Syncs of a volume are serialized: the newest state of a bitmap must be written last. The
//! first file open for writing marks the volume as in use, and the last removes the mark (dioxide
//! calls `mark_in_use` and `put_away`).
//!
//! The parser of each structure checks all its data. The map keeps a set of blocks (`blocks`),
//! which detects a block that is named twice. So an indirect block that refers to itself is an
//! error, and no loop.
//!
//! # Locks
//!
//! A thread takes them in this order, and may hold each during I/O: `Node::filling`, `reading` or
//! `syncing`; `Node::state`; `Volume::syncing` or `nodes`; `Volume::metadata`. A sync that frees
//! blocks waits for reads (`Node::reading`) under `Node::syncing`. A read takes no `syncing`.

#![deny(unsafe_code)]

mod allocation;
mod blocks;
mod bytes;
mod directory;
mod features;
mod file;
mod format;
mod indirect;
mod lookup;
mod node;
mod volume;

use dioxide::image::{self, OpenVolume};
use dioxide::{File, OpenOptions, Result};
use std::path::Path;
use volume::Volume;

/// 16 MiB of cache.
const OPEN_VOLUME: OpenVolume = |image, write| Ok(Volume::open(image, write, 16 << 20)?);

/// Opens files inside volumes, with the options of dioxide.
pub trait OpenInImage {
    /// Opens the regular file `path` inside an unmounted ext2 or ext3 volume, which is an image
    /// file or a block device. `path` begins at the root of the volume, with or without a slash.
    /// Symbolic links are resolved within the volume. The caller needs permissions for the volume
    /// only; those of the file are ignored.
    ///
    /// The file supports the calls of any [`File`]: `append`, `write_at`, `read_at`, `set_len`,
    /// `sync_data`. After close its size is exact to the byte for every program that mounts the
    /// volume, and `e2fsck` finds no fault. It does not grow ahead ([`File::growth`] is
    /// [`Growth::None`](dioxide::Growth::None)): writes allocate their blocks. Only root and the
    /// user that the superblock names get reserved blocks.
    ///
    /// One process may have several files of a volume open. While one is open for writing, the call
    /// fails in other processes. While all files of an image are read-only, other processes may
    /// read, but not write. A device has one process, even if that only reads: the call fails in
    /// others with [`Busy`](dioxide::ErrorKind::Busy).
    ///
    /// The call refuses a volume that the kernel has mounted, and the image behind a loop device.
    /// It does not detect an image that fuse2fs has mounted read-only. The library cannot prevent a
    /// later mount of an image.
    ///
    /// In the child of a fork, reads of a read-only file fail with EBADF. A thread that the child
    /// lacks may hold a lock of the volume.
    ///
    /// # After a crash
    ///
    /// Before the first write, the volume is durably marked as not cleanly unmounted. The close of
    /// the last file marks it clean. After a crash, `open_in_image` refuses the volume until
    /// `e2fsck -p` has checked it. Durable data survives the check: no inode ever refers to a block
    /// that is not durable.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`], for the volume, and:
    ///
    /// - [`Unsupported`](dioxide::ErrorKind::Unsupported): the volume is not ext2 or ext3, or has a
    ///   feature beyond these (named).
    /// - [`Unsupported`](dioxide::ErrorKind::Unsupported): the volume needs a check, or its journal
    ///   needs recovery.
    /// - [`Unsupported`](dioxide::ErrorKind::Unsupported): the path names no regular file; or
    ///   [`create`](OpenOptions::create) is set. To create a file, mount the volume, or use
    ///   `debugfs -w -R 'write …'`.
    /// - [`Corrupt`](dioxide::ErrorKind::Corrupt): the volume is inconsistent; `e2fsck` may help.
    fn open_in_image(&self, volume: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<File>;
}

impl OpenInImage for OpenOptions {
    fn open_in_image(&self, volume: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<File> {
        image::open(self, volume.as_ref(), path.as_ref(), OPEN_VOLUME)
    }
}

/// Opens files inside volumes whose image is a file of a simulated disk.
#[cfg(feature = "sim")]
pub trait OpenInSimulatedImage {
    /// As [`OpenInImage::open_in_image`].
    ///
    /// # Errors
    ///
    /// As [`OpenInImage::open_in_image`].
    fn open_in_image(
        &self,
        options: &OpenOptions,
        image: &str,
        path: impl AsRef<Path>,
    ) -> Result<File>;
}

#[cfg(feature = "sim")]
impl OpenInSimulatedImage for dioxide::sim::Disk {
    fn open_in_image(
        &self,
        options: &OpenOptions,
        image: &str,
        path: impl AsRef<Path>,
    ) -> Result<File> {
        // A small cache, so that it evicts.
        let open: OpenVolume = |image, write| Ok(Volume::open(image, write, 8 << 10)?);
        image::open_simulated(self, options, image, path.as_ref(), open)
    }
}
