//! Files inside volumes of ext2 and ext3, opened without mounting.
//!
//! `format`, `features`, `directory` and `allocation` are values: what stands on a volume, and what
//! is to be changed. A [`volume::Volume`] is an open image or device, a [`node::Node`] an open file
//! of it, and [`file::Within`] the backend by which an engine uses that as any other file.
//!
//! # The life of a write
//!
//! A durable `data.write_at(&bytes, offset)` goes past the end of a file inside an image.
//!
//! 1. To the core the file does not grow ahead. One extending write goes out at a time. If it
//!    fails, the engine takes the size back. [`file::Within`] works over the backend of the image:
//!    the simulated disk, or plain calls.
//! 2. [`node::Node`] asks the map (`rules/map/indirect.rs`) for the blocks. The map returns runs,
//!    or the table (indirect block) that it lacks. The node reads this table, has the volume check
//!    its pointers ([`Volume::check`]), and asks again. Adjacent blocks are one run and one
//!    request.
//! 3. Holes need blocks, all or none. The map counts the missing tables. The volume takes tables
//!    and data blocks at once, near the last block of the file, in one piece if there is one. The
//!    first blocks become tables, so that the data stays in one piece.
//! 4. The data is written while no pointer leads to it. Only then map, size and sectors change, in
//!    memory. So no read returns the former content of a block. After a failed write there are only
//!    blocks to give back.
//! 5. The write is durable, so the node passes its changes to [`Volume::sync`]. It writes them in
//!    two steps with a flush after each: bitmaps and new tables, then the inode and tables that
//!    lead to them.
//!
//! Reads and overwrites end after step 2. They read the map under its lock, and transfer without
//! it. Syncs of a volume run one after the other: the newest state of a bitmap must be written
//! last. The first file open for writing marks the volume as in use, and the last removes the mark
//! ([`volumes::Volumes`]).
//!
//! All data of the volume is checked where it is parsed. The map keeps a set of blocks
//! (`rules/map/blocks.rs`), which finds a block that is named twice. So an indirect block that
//! leads to itself is an error, and no loop.

mod allocation;
mod bytes;
mod directory;
mod features;
mod file;
mod format;
mod lookup;
mod node;
#[cfg(all(test, not(loom)))]
mod tests;
mod volume;
pub(crate) mod volumes;

use crate::backend::Backend;
use crate::backend::syscall::Syscall;
use crate::engine::Engine;
use crate::engine::handle::FileHandle;
use crate::engine::process::{FileSystems, Process};
use crate::engine::queue::settle_own;
use crate::engine::reader::Reader;
use crate::engine::registry::Key;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::open;
use crate::open::build::{Ahead, Build};
use crate::open::found::Found;
use crate::open::request::OpenRequest;
use crate::os_error;
use crate::rules::recovery::Recovery;
use crate::sys;
use crate::sys::probe::Facts;
use file::Within;
use format::Kind;
use node::Node;
use rustix::fs::OFlags;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use volume::Volume;
use volumes::{Held, Volumes};

/// What a volume lies on: an image file or a device, locked.
pub(crate) struct Image {
    pub backend: Arc<dyn Backend>,
    pub facts: Facts,
    pub fs: FileSystems,
}

/// A file that is being opened.
struct Opening<'a> {
    request: &'a OpenRequest,
    process: &'static Process,
    /// As it is named in errors: the volume, and the path inside.
    name: Arc<Path>,
}

/// Opens the file `path` of the volume `volume`.
pub(crate) fn open_in_image(
    request: &OpenRequest,
    volume: &Path,
    path: &Path,
) -> Result<FileHandle> {
    let opening = Opening::new(request, volume, path);
    let found = open::find(&volume.into()).map_err(|kind| opening.error(kind))?;
    let admit = || found.admit(request.write).map_err(|errno| opening.error(open::refusal(errno)));
    opening.open(path, found.key(), admit, || opening.image(&found))
}

/// The same in a volume that lies on an image of a simulation.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn open_within_image(
    request: &OpenRequest,
    name: &Path,
    path: &Path,
    image: Image,
) -> Result<FileHandle> {
    Opening::new(request, name, path).open(path, Key::of(&image.facts), || Ok(()), || Ok(image))
}

impl<'a> Opening<'a> {
    fn new(request: &'a OpenRequest, volume: &Path, path: &Path) -> Self {
        let name = volume.join(path.strip_prefix("/").unwrap_or(path)).into();
        settle_own();
        Self { request, process: Process::current(), name }
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(Operation::Open, &self.name, None, kind)
    }

    fn os_error(&self, error: &io::Error) -> Error {
        self.error(os_error::kind(error))
    }

    /// `admit`: whether the caller may use the volume, if that is open already.
    fn open(
        &self,
        path: &Path,
        key: Key,
        admit: impl FnOnce() -> Result<()>,
        image: impl FnOnce() -> Result<Image>,
    ) -> Result<FileHandle> {
        let OpenRequest { write, create, create_new, truncate, .. } = *self.request;
        if create || create_new {
            let why =
                "files are not created in a volume; mount it, or use `debugfs -w -R 'write …'`";
            return Err(self.error(ErrorKind::Unsupported(why.into())));
        }
        if truncate && !write {
            return Err(self.error(ErrorKind::Unsupported("truncate needs write(true)".into())));
        }
        let admit = || admit().map_err(Stopped::Error);
        let volume = || self.volume(image().map_err(Stopped::Error)?);
        let held =
            Volumes::of(self.process).hold(key, write, admit, volume).map_err(|stopped| {
                match stopped {
                    Stopped::Kind(kind) => self.error(kind),
                    Stopped::Error(error) => error,
                }
            })?;
        let node = self.node(&held, path)?;
        let facts = held.volume.facts_of(&node);
        let key = Key::of(&facts);
        if !write {
            let backend = Arc::new(Within::new(node, held));
            return Ok(FileHandle::Reader(Reader::new(
                backend,
                self.name.clone(),
                facts,
                key,
                self.process,
            )));
        }
        let engine = self.process.registry.open(key, || self.engine(node, held, facts))?;
        open::shared(self.request, self.process, key, engine)
    }

    /// Finds the file, and says why it cannot be opened.
    fn node(&self, held: &Held, path: &Path) -> Result<Arc<Node>> {
        let found = lookup::find(&held.volume, path.as_os_str().as_bytes());
        let node = found
            .and_then(|number| held.volume.node(number))
            .map_err(|error| self.os_error(&error))?;
        let inode = node.inode();
        let what = match inode.kind {
            Kind::Regular => {
                return match inode.refusal(self.request.write) {
                    Ok(()) => Ok(node),
                    Err(refusal) => Err(self.os_error(&refusal.into())),
                };
            }
            Kind::Directory => "a directory",
            Kind::Link => "a symbolic link",
            Kind::Other(what) => what,
        };
        Err(self.error(ErrorKind::Unsupported(format!("it is {what}, and no regular file"))))
    }

    fn engine(&self, node: Arc<Node>, held: Held, facts: Facts) -> Result<Engine> {
        let volume = held.volume.clone();
        open::flushing(&volume.fs, &self.name, Operation::Open, || volume.mark_in_use())?;
        let recovery = Recovery::clean(node.size());
        let build = Build {
            request: self.request,
            process: self.process,
            path: &self.name,
            fs: volume.fs.clone(),
            facts: &facts,
            ahead: Ahead::NONE,
            epoch: 0,
            recovery,
            held: None,
        };
        Ok(build.engine(Arc::new(Within::new(node, held))))
    }

    // --- the volume ------------------------------------------------------------------------------

    fn volume(&self, image: Image) -> std::result::Result<Arc<Volume>, Stopped> {
        let backend = image.backend.clone();
        Volume::open(image, self.process, self.request.write).map_err(|error| {
            backend.unlock();
            Stopped::Error(self.os_error(&error))
        })
    }

    /// Opens the image file or device, and sees to it that nobody else has it.
    fn image(&self, found: &Found) -> Result<Image> {
        let access = if self.request.write { OFlags::RDWR } else { OFlags::RDONLY };
        let fd = open::open_alone(found, access, self.request.descriptor_min);
        let fd = fd.map_err(|errno| self.error(open::refusal(errno)))?;
        let facts = open::facts(&self.name, &fd)?;
        let fs =
            open::file_system(self.process, &self.name, Operation::Open, facts.fs, facts.through)?;
        let try_lock = if self.request.write { sys::try_lock } else { sys::try_lock_shared };
        open::claim(fd.as_fd(), facts.is_device, try_lock).map_err(|kind| self.error(kind))?;
        Ok(Image { backend: Arc::new(Syscall::new(fd)), facts, fs })
    }
}

/// Why a volume was not opened.
enum Stopped {
    Kind(ErrorKind),
    Error(Error),
}

impl From<ErrorKind> for Stopped {
    fn from(kind: ErrorKind) -> Self {
        Self::Kind(kind)
    }
}
