//! Files inside volumes that lie on an image file or on a device, opened without mounting.
//!
//! The format of the volume is not known here: another crate implements [`Volume`] and
//! [`VolumeFile`]. This module finds, opens and locks the image ([`Image`]), shares one open volume
//! between all its files ([`volumes`]), and gives each file an engine ([`file`]).

pub(crate) mod file;
pub(crate) mod volumes;

use super::build::{self, Build, SpaceAhead};
use super::found::FoundInode;
use super::request::OpenRequest;
use crate::backend::Backend;
use crate::backend::syscall::Syscall;
use crate::buffer::Segment;
use crate::engine::handle::FileHandle;
use crate::engine::process::{FileSystems, Process};
use crate::engine::queue::settle_own;
use crate::engine::registry::Key;
use crate::engine::{Engine, RequestIo, part_of, read_fully, write_fully};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::os_error::{self, flushed};
use crate::rules::marker::Identity;
use crate::rules::merge::{self, Span};
use crate::rules::recovery::Recovery;
use crate::sys;
use crate::sys::probe::{Alignment, Facts, Part};
use file::InVolume;
use rustix::fs::OFlags;
use smallvec::SmallVec;
use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use volumes::{HeldVolume, Volumes};

/// An open volume, shared by all its files that are open in this process.
///
/// A counter that a method takes counts the requests of the method.
pub trait Volume: Debug + Send + Sync + 'static {
    /// The image that the volume was opened with.
    fn image(&self) -> &Image;

    /// Bytes of a block. A file is read and written in multiples of it.
    fn block_bytes(&self) -> u64;

    /// The largest size that a write may give a file, in bytes: whole blocks.
    fn file_bytes_max(&self) -> u64;

    /// Free bytes, for this user.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Finds the file of this path, which may be opened for writing if `write`. Returns the same
    /// file while one is open.
    ///
    /// # Errors
    ///
    /// An [`ErrorKind`] inside of the error is the reason that the user sees.
    fn file(self: Arc<Self>, path: &[u8], write: bool) -> io::Result<Arc<dyn VolumeFile>>;

    /// Marks the volume as not cleanly unmounted, durably, unless it is marked. Comes before the
    /// first write.
    fn mark_in_use(&self) -> io::Result<()>;

    /// Writes all that has changed, then marks the volume as clean, both durably. The last writer
    /// has closed its file.
    fn put_away(&self, requests: &AtomicU64) -> io::Result<()>;

    /// Refuses every later write, and keeps the mark. `why` completes "since …".
    fn give_up(&self, why: String);
}

/// An open file of a volume. Several threads may call all methods at once.
///
/// A counter that a method takes counts the requests of the method.
pub trait VolumeFile: Debug + Send + Sync + 'static {
    /// Identifies the file in its volume.
    fn number(&self) -> u32;

    /// The size in bytes.
    fn size(&self) -> u64;

    /// Reads whole blocks below the end of the last block. The caller has checked that they are.
    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes whole blocks, all or none of the space that they need. Not durable. The caller has
    /// checked that they end within the largest size of a file.
    fn write(&self, data: &Data<'_>, offset: u64, requests: &AtomicU64) -> io::Result<()>;

    /// Makes durable all data that was written before, and the metadata that leads to it; with the
    /// timestamps if `times`.
    fn sync(&self, times: bool, requests: &AtomicU64) -> io::Result<()>;

    /// Sets the size. Reads return zeros where the file grew.
    fn truncate(&self, len: u64) -> io::Result<()>;

    /// The allocated byte ranges, in order.
    fn allocated(&self) -> io::Result<Vec<Range<u64>>>;
}

/// Bytes to write, in one or several pieces of memory.
#[derive(Debug)]
pub struct Data<'a> {
    segments: SmallVec<[Segment; 1]>,
    lent: PhantomData<&'a [u8]>,
}

impl<'a> Data<'a> {
    /// The bytes of all pieces, in order.
    pub fn of(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self { segments: pieces.into_iter().map(Segment::of).collect(), lent: PhantomData }
    }

    /// The bytes of segments that their owner lends for the lifetime.
    fn lent(segments: &'a [Segment]) -> Self {
        Self { segments: segments.into(), lent: PhantomData }
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no operation takes empty data")]
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    /// A range of the bytes.
    pub fn part(&self, part: &Range<u64>) -> Self {
        Self { segments: part_of(&self.segments, part), lent: PhantomData }
    }
}

/// Reads a volume from its image, for writing if the flag is set. Writes nothing.
pub type OpenVolume = fn(Image, write: bool) -> io::Result<Arc<dyn Volume>>;

/// An open image file or device, locked by this process.
#[derive(Debug)]
pub struct Image {
    backend: Arc<dyn Backend>,
    facts: Facts,
    fs: FileSystems,
    /// The unit of transfers, in bytes.
    unit: u64,
}

impl Image {
    pub(crate) fn new(backend: Arc<dyn Backend>, facts: Facts, fs: FileSystems) -> Self {
        let unit = facts.alignment.offset;
        Self { backend, facts, fs, unit }
    }

    /// The size in bytes.
    pub fn bytes(&self) -> io::Result<u64> {
        self.backend.physical_size()
    }

    /// The largest size in bytes that the resource limit of the process permits.
    pub fn bytes_max(&self) -> u64 {
        self.backend.size_max()
    }

    /// From now on transfers are multiples of `block_bytes`. An image file goes through the page
    /// cache if direct I/O needs larger multiples.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`]: a device that needs larger multiples.
    pub fn set_block(&mut self, block_bytes: u64) -> io::Result<()> {
        if block_bytes.is_multiple_of(self.unit) {
            return Ok(());
        }
        let unit = self.unit;
        let why =
            format!("blocks of {block_bytes} bytes, where direct I/O takes multiples of {unit}");
        if self.facts.is_device {
            let kind = ErrorKind::Unsupported(why);
            return Err(io::Error::new(io::ErrorKind::InvalidData, kind));
        }
        log::warn!("dioxide: a volume has {why}: it goes through the page cache");
        let fd = self.backend.descriptor();
        rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? - OFlags::DIRECT)?;
        self.unit = block_bytes;
        Ok(())
    }

    /// Reads, and returns how many bytes there were before the end.
    pub fn read(&self, into: &mut [u8], offset: u64) -> io::Result<u64> {
        read_fully(&*self.backend, into, offset, self.unit)
    }

    /// Writes all bytes. Not durable.
    pub fn write(&self, data: &Data<'_>, offset: u64) -> io::Result<()> {
        let transfer = RequestIo::of_write(data.len(), self.unit);
        write_fully(&*self.backend, &data.segments, offset, transfer)
    }

    /// Makes durable all data that was written before.
    pub fn flush(&self) -> io::Result<()> {
        flushed(|| self.backend.flush())
    }

    /// Splits byte ranges, sorted by their start, into runs that one request can write. Returns the
    /// length of each run.
    pub fn runs(&self, ranges: &[Range<u64>]) -> Vec<usize> {
        let spans: Vec<_> =
            ranges.iter().map(|range| Span::at(range.start, range.end - range.start)).collect();
        merge::runs(&spans, self.facts.limits).into_iter().map(|(run, _)| run).collect()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The facts of one of its files.
    fn facts_of(&self, file: &dyn VolumeFile, block_bytes: u64) -> Facts {
        let Facts { identity, alignment, is_device, .. } = self.facts;
        Facts {
            identity: Identity { inode: if is_device { 0 } else { identity.inode }, ..identity },
            is_device: false,
            alignment: Alignment { offset: block_bytes, append: block_bytes, ..alignment },
            len: file.size(),
            part: Part::Within(file.number()),
            ..self.facts.clone()
        }
    }
}

/// Opens the file `path` of the volume in the image or device `image`.
pub(crate) fn open(
    request: &OpenRequest,
    image: &Path,
    path: &Path,
    volume: OpenVolume,
) -> Result<FileHandle> {
    let opening = OpeningFile::new(request, image, path, volume);
    let found = super::find(&image.into()).map_err(|kind| opening.error(kind))?;
    let admit = || found.admit(request.write).map_err(|errno| opening.error(super::refusal(errno)));
    opening.open(path, found.key(), admit, || opening.image(&found))
}

/// Opens the file `path` of the volume in an image on the simulated disk.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn open_simulated(
    request: &OpenRequest,
    name: &Path,
    path: &Path,
    image: Image,
    volume: OpenVolume,
) -> Result<FileHandle> {
    let opening = OpeningFile::new(request, name, path, volume);
    opening.open(path, Key::of(&image.facts), || Ok(()), || Ok(image))
}

/// A file that is being opened.
struct OpeningFile<'a> {
    request: &'a OpenRequest,
    process: &'static Process,
    /// The name in errors: the image, and the path inside.
    name: Arc<Path>,
    open_volume: OpenVolume,
}

impl<'a> OpeningFile<'a> {
    fn new(request: &'a OpenRequest, image: &Path, path: &Path, open_volume: OpenVolume) -> Self {
        let name = image.join(path.strip_prefix("/").unwrap_or(path)).into();
        settle_own();
        Self { request, process: Process::current(), name, open_volume }
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(Operation::Open, &self.name, None, kind)
    }

    fn os_error(&self, error: &io::Error) -> Error {
        self.error(os_error::kind(error))
    }

    /// `admit` checks that the caller may use the volume, if that is open already.
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
        let held = Volumes::of(self.process).hold(self.process, key, write, admit, volume);
        let held = held.map_err(|stopped| match stopped {
            Stopped::Kind(kind) => self.error(kind),
            Stopped::Error(error) => error,
        })?;
        let file = held.volume.clone().file(path.as_os_str().as_bytes(), write);
        let file = file.map_err(|error| self.os_error(&error))?;
        let facts = held.volume.image().facts_of(&*file, held.volume.block_bytes());
        let key = Key::of(&facts);
        if !write {
            let (backend, name) = (Arc::new(InVolume::new(file, held)), self.name.clone());
            return Ok(FileHandle::Reader(build::reader(backend, name, facts, key, self.process)));
        }
        let engine = self.process.registry.open(key, || self.engine(file, held, facts))?;
        super::shared(self.request, self.process, key, engine)
    }

    fn engine(&self, file: Arc<dyn VolumeFile>, held: HeldVolume, facts: Facts) -> Result<Engine> {
        let volume = held.volume.clone();
        let fs = &volume.image().fs;
        super::flushing(fs, &self.name, Operation::Open, || volume.mark_in_use())?;
        let recovery = Recovery::clean(file.size());
        let build = Build {
            request: self.request,
            process: self.process,
            path: &self.name,
            fs: fs.clone(),
            facts: &facts,
            ahead: SpaceAhead::NONE,
            journal: Err("it lies within a volume".into()),
            order: None,
            epoch: 0,
            recovery,
            held: None,
        };
        Ok(build.engine(Arc::new(InVolume::new(file, held))))
    }

    fn volume(&self, image: Image) -> std::result::Result<Arc<dyn Volume>, Stopped> {
        let backend = image.backend.clone();
        (self.open_volume)(image, self.request.write).map_err(|error| {
            backend.unlock();
            Stopped::Error(self.os_error(&error))
        })
    }

    /// Opens and locks the image file or device.
    fn image(&self, found: &FoundInode) -> Result<Image> {
        let access = if self.request.write { OFlags::RDWR } else { OFlags::RDONLY };
        let fd = super::open_alone(found, access, self.request.descriptor_min);
        let fd = fd.map_err(|errno| self.error(super::refusal(errno)))?;
        let facts = super::facts(&self.name, &fd)?;
        let fs =
            super::file_system(self.process, &self.name, Operation::Open, facts.fs, facts.through)?;
        let try_lock = if self.request.write { sys::try_lock } else { sys::try_lock_shared };
        super::claim(fd.as_fd(), facts.is_device, try_lock).map_err(|kind| self.error(kind))?;
        Ok(Image::new(Arc::new(Syscall::new(fd)), facts, fs))
    }
}

/// The reason for which a volume was not opened.
enum Stopped {
    Kind(ErrorKind),
    Error(Error),
}

impl From<ErrorKind> for Stopped {
    fn from(kind: ErrorKind) -> Self {
        Self::Kind(kind)
    }
}
