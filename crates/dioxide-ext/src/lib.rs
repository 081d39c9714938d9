//! Files inside unmounted volumes of ext2 and ext3, read and written with [dioxide](dioxide).
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
//! `node::Node` an open file of it, and `file::ExtFile` what the engine of dioxide sees of the
//! file.
//!
//! # The life of a write
//!
//! A durable `data.write_at(&bytes, offset)` goes past the end of a file inside an image.
//!
//! 1. To the core the file does not grow ahead. One extending write goes out at a time. If it
//!    fails, the engine takes the size back. The engine of the file works over `file::ExtFile`.
//! 2. `node::Node` asks the map (`indirect`) for the blocks. The map returns runs,
//!    or the table (indirect block) that it lacks. The node reads this table, has the volume check
//!    its pointers (`Volume::check`), and asks again. Adjacent blocks are one run and one
//!    request.
//! 3. Holes need blocks, all or none. The map counts the missing tables. The volume takes tables
//!    and data blocks at once, near the last block of the file, in one piece if there is one. The
//!    first blocks become tables, so that the data stays in one piece.
//! 4. The data is written while no pointer leads to it. Only then map, size and sectors change, in
//!    memory. So no read returns the former content of a block. After a failed write there are only
//!    blocks to give back.
//! 5. The write is durable, so the node passes its changes to `Volume::sync`. It writes them in
//!    two steps with a flush after each: bitmaps and new tables, then the inode and tables that
//!    lead to them.
//!
//! Reads and overwrites end after step 2. They read the map under its lock, and transfer without
//! it. Syncs of a volume run one after the other: the newest state of a bitmap must be written
//! last. The first file open for writing marks the volume as in use, and the last removes the mark
//! (dioxide calls `mark_in_use` and `put_away`).
//!
//! All data of the volume is checked where it is parsed. The map keeps a set of blocks
//! (`blocks`), which finds a block that is named twice. So an indirect block that
//! leads to itself is an error, and no loop.

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

const OPEN_VOLUME: OpenVolume = |image, write| Ok(Volume::open(image, write)?);

/// Opens files inside of volumes, by the options of dioxide.
pub trait OpenInImage {
    /// Opens the regular file `path` inside of a volume of ext2 or ext3, which is not mounted: an
    /// image file, or a block device. `path` begins at the root of the volume, with a slash or
    /// without; symbolic links are followed within it. No rights but those on the volume are
    /// needed, and none of the file are looked at.
    ///
    /// The file is a [`File`] as any other: `append`, `write_at`, `read_at`, `set_len`,
    /// `sync_data`. It is exact to the byte when it is closed, and every program that mounts the
    /// volume then finds it so; `e2fsck` finds nothing. It does not grow ahead ([`File::growth`] is
    /// [`Growth::None`](dioxide::Growth::None)), and the space of its blocks is taken as it is written. Blocks that the
    /// volume keeps for root are left alone, unless this process is root's. Offsets and lengths of
    /// [`write_at`](File::write_at) are multiples of the volume's block.
    ///
    /// Files of one volume may be open at the same time in one process. Another process is refused
    /// while one has any open for writing, and while others read none may write. A volume that is
    /// mounted is refused, and so is an image that a loop device is made of; that somebody mounts
    /// an image later cannot be prevented.
    ///
    /// # After a crash
    ///
    /// The volume is marked as not cleanly unmounted, durably, before the first write, and as clean
    /// when its last file is closed. Until `e2fsck -p` has been there, it is refused, and what was
    /// durable is there afterwards: no inode ever refers to a block that is not stable.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`], for the volume. [`Unsupported`](dioxide::ErrorKind::Unsupported): no
    /// ext2 or ext3, a feature beyond these (named), a volume that must be checked or whose journal
    /// must be recovered, a path that names no regular file, and [`create`](OpenOptions::create) (files
    /// are not made, but mount the volume, or `debugfs -w -R 'write …'`).
    /// [`Corrupt`](dioxide::ErrorKind::Corrupt): the volume contradicts itself; `e2fsck` may help.
    fn open_in_image(&self, volume: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<File>;
}

impl OpenInImage for OpenOptions {
    fn open_in_image(&self, volume: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<File> {
        image::open(self, volume.as_ref(), path.as_ref(), OPEN_VOLUME)
    }
}

/// Opens files inside of volumes whose image is a file of a simulated disk.
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
        image::open_simulated(self, options, image, path.as_ref(), OPEN_VOLUME)
    }
}
