//! Where a bench runs, and the ground that it makes there for each run: a file without a name, or a device.

use super::stamp::fill_as_old;
use crate::device;
use crate::interrupt;
use crate::meter::disk::Disk;
use crate::meter::filesystem::FileSystem;
use crate::sys::count_extents;
use anyhow::{Context, Result, bail};
use dioxide::{Buffer, OpenOptions};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatvfs, open, syncfs, unlink};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A directory or a block device, and what is known of it.
pub struct Place {
    path: PathBuf,
    kind: Kind,
    /// None for a device.
    pub fs: Option<FileSystem>,
    /// The device below. None where there is no single one, or none that can be seen.
    pub disk: Option<Disk>,
}

enum Kind {
    /// Open, so that it stays the same one.
    Directory(File),
    Device,
    Nothing,
}

impl Place {
    pub fn directory(path: &Path) -> Result<Self> {
        let name = || format!("{}", path.display());
        let directory = File::open(path).with_context(name)?;
        let metadata = directory.metadata().with_context(name)?;
        if !metadata.is_dir() {
            bail!("{} is not a directory", path.display());
        }
        let disk = Disk::find(metadata.dev());
        let place = Self { path: path.to_owned(), kind: Kind::Directory(directory), fs: None, disk };
        let fs = FileSystem::of(&place.scratch()?);
        Ok(Self { fs, ..place })
    }

    /// A device that nothing else uses and that holds nothing recognisable.
    pub fn device(path: &Path) -> Result<Self> {
        let number = device::check_free(path)?;
        Ok(Self { path: path.to_owned(), kind: Kind::Device, fs: None, disk: Disk::find(number) })
    }

    /// Where files take no time and keep nothing.
    pub fn nothing() -> Self {
        Self { path: "a file that keeps nothing".into(), kind: Kind::Nothing, fs: None, disk: None }
    }

    pub fn keeps_nothing(&self) -> bool {
        matches!(self.kind, Kind::Nothing)
    }

    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Bytes that a bench could fill: free space, or the size of the device.
    pub fn room_bytes(&self) -> Result<u64> {
        match &self.kind {
            Kind::Device => device::size_bytes(&self.path),
            Kind::Nothing => Ok(NOTHING_MAX_BYTES),
            Kind::Directory(directory) => {
                let space = fstatvfs(directory).with_context(|| self.name())?;
                Ok(space.f_bavail * space.f_frsize)
            }
        }
    }

    /// Makes fresh ground for one run. Whatever earlier runs left to be written is written first, so
    /// that it does not disturb this one.
    pub fn prepare(&self) -> Result<Ground> {
        match &self.kind {
            Kind::Device => Ok(Ground { path: self.path.clone(), flags: OFlags::EXCL, below: Below::Device }),
            Kind::Nothing => {
                Ok(Ground { path: self.path.clone(), flags: OFlags::empty(), below: Below::Nothing })
            }
            Kind::Directory(directory) => {
                let scratch = self.scratch()?;
                syncfs(directory).with_context(|| self.name())?;
                let path = format!("/proc/self/fd/{}", scratch.as_raw_fd()).into();
                Ok(Ground { path, flags: OFlags::empty(), below: Below::Scratch(scratch) })
            }
        }
    }

    /// A file without a name: it vanishes with the process, however that ends.
    ///
    /// On ext4 such a file is on the list of orphans from the start, which a plain append puts it on and
    /// off for each write. Measured, that makes no difference that shows: the median ratio to a named file
    /// was 0.98 to 1.02 over 40 interleaved rounds, with 1 and 64 threads, with and without O_DSYNC, while
    /// single rounds scattered by 10 % and more.
    fn scratch(&self) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = match open(&self.path, flags | OFlags::TMPFILE, mode) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => self.unlinked(flags, mode),
            outcome => outcome,
        };
        match file {
            Ok(file) => Ok(file.into()),
            // The directory is there, so it is the file that has no place (/proc).
            Err(Errno::NOENT) => bail!("{}: this file system stores no files", self.name()),
            Err(errno) => Err(errno).with_context(|| format!("create a scratch file in {}", self.name())),
        }
    }

    /// For file systems without O_TMPFILE: a name that exists for an instant only.
    fn unlinked(&self, flags: OFlags, mode: Mode) -> rustix::io::Result<rustix::fd::OwnedFd> {
        let path = self.path.join(format!(".dioxide-bench-{}", std::process::id()));
        let file = open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
        unlink(&path)?;
        Ok(file)
    }
}

const FILL_BYTES: usize = 1 << 20;
/// More than any run writes to nothing.
const NOTHING_MAX_BYTES: u64 = 1 << 60;

/// What one run works on. Every opener gets a description of its own.
pub struct Ground {
    path: PathBuf,
    /// Needed by everyone who writes here.
    flags: OFlags,
    below: Below,
}

enum Below {
    /// Keeps the file alive.
    Scratch(File),
    Device,
    Nothing,
}

/// XFS takes a file apart in the background once nobody has it, which for one of many extents takes long, and would
/// fall into the run that follows. What is cut is gone on return.
impl Drop for Ground {
    fn drop(&mut self) {
        if let Below::Scratch(scratch) = &self.below {
            let _ = scratch.set_len(0);
        }
    }
}

impl Ground {
    /// Opens it with dioxide.
    pub fn open_with(&self, options: &OpenOptions) -> dioxide::Result<dioxide::File> {
        match self.below {
            Below::Nothing => dioxide::sim::null(options),
            _ => options.open(&self.path),
        }
    }

    fn scratch(&self) -> Option<&File> {
        match &self.below {
            Below::Scratch(file) => Some(file),
            _ => None,
        }
    }

    /// Opens it for direct reads and writes.
    pub fn open(&self, flags: OFlags) -> Result<File> {
        self.open_direct(OFlags::RDWR | self.flags | flags)
    }

    /// Opens it for writes through the page cache.
    pub fn open_cached(&self) -> Result<File> {
        self.open_as(OFlags::RDWR | self.flags)
    }

    /// Opens it for reading back.
    pub fn open_to_verify(&self) -> Result<File> {
        self.open_direct(OFlags::RDONLY)
    }

    fn open_direct(&self, flags: OFlags) -> Result<File> {
        self.open_as(flags | OFlags::DIRECT)
    }

    fn open_as(&self, flags: OFlags) -> Result<File> {
        match open(&self.path, flags | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Ok(file.into()),
            Err(Errno::INVAL) => bail!("O_DIRECT is not supported here"),
            Err(errno) => Err(errno).with_context(|| format!("open {}", self.path.display())),
        }
    }

    /// Allocates space without writing it, as a program does that knows how large its file will be.
    pub fn preallocate(&self, bytes: u64) -> rustix::io::Result<()> {
        match self.scratch() {
            Some(file) => {
                fallocate(file, FallocateFlags::empty(), 0, bytes)?;
                rustix::fs::fsync(file)
            }
            None => Err(Errno::OPNOTSUPP),
        }
    }

    /// Writes so many bytes of it, in whole blocks, as a program did that is done with it. They are stable on return.
    pub fn fill(&self, bytes: u64) -> Result<()> {
        if matches!(self.below, Below::Nothing) {
            return Ok(());
        }
        let mut old = Buffer::zeroed(FILL_BYTES);
        fill_as_old(&mut old);
        let file = self.open(OFlags::empty())?;
        for offset in (0..bytes).step_by(FILL_BYTES) {
            interrupt::check()?;
            let count = (bytes - offset).min(FILL_BYTES as u64);
            file.write_all_at(&old[..count as usize], offset)?;
        }
        Ok(file.sync_all()?)
    }

    pub fn size_bytes(&self) -> Result<u64> {
        let size = |file: &File| Ok(file.metadata().context("fstat")?.len());
        self.scratch().map_or(Ok(0), size)
    }

    /// None on a device, and on file systems that do not tell.
    pub fn extents(&self) -> Option<u64> {
        self.scratch().and_then(|file| count_extents(file).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_files_have_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::directory(directory.path()).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let _scratch = place.prepare().unwrap();
        let _unlinked = place.unlinked(flags, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_directories() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refusal = Place::directory(file.path()).err().unwrap().to_string();
        assert!(refusal.ends_with("is not a directory"), "{refusal}");
        assert!(Place::directory(&file.path().with_extension("missing")).is_err());
    }

    #[test]
    fn no_files_can_be_stored() {
        let refusal = Place::directory(Path::new("/proc")).err().unwrap().to_string();
        assert_eq!(refusal, "/proc: this file system stores no files");
    }

    #[test]
    fn a_place_tells_its_room_and_file_system() {
        let place = Place::directory(&std::env::temp_dir()).unwrap();
        assert!(place.fs.is_some());
        assert!(place.room_bytes().unwrap() > 0);
    }
}
