//! A path that was looked up once. Its kind, its key, the caller's rights and the opened descriptor
//! all belong to one inode, even if the name changes meanwhile.
//!
//! The look-up uses an O_PATH descriptor, which opens nothing: a FIFO does not block, a device does
//! nothing, and no lease breaks. Its close leaves the POSIX locks of the program alone.

use crate::engine::registry::Key;
use crate::error::ErrorKind;
use crate::sys;
use crate::sys::probe::Part;
use rustix::fs::{FileType, Mode, OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// The inode that a path named when it was looked up.
#[derive(Debug)]
pub(crate) struct FoundInode {
    /// O_PATH.
    fd: OwnedFd,
    path: Arc<Path>,
    stat: Stat,
}

impl FoundInode {
    /// Looks `path` up, and follows symbolic links.
    pub fn at(path: &Arc<Path>) -> rustix::io::Result<Self> {
        let fd = rustix::fs::open(&**path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&fd)?;
        Ok(Self { fd, path: path.clone(), stat })
    }

    pub fn key(&self) -> Key {
        key_of_stat(&self.stat)
    }

    pub fn is_device(&self) -> bool {
        self.kind() == FileType::BlockDevice
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Refuses kinds that must not even be opened: a FIFO would block, and a character device may
    /// act. The kernel itself refuses to open a directory for writing.
    pub fn check_kind(&self) -> Result<(), ErrorKind> {
        let kind = match self.kind() {
            FileType::Fifo => "a FIFO",
            FileType::CharacterDevice => "a character device",
            FileType::Socket => "a socket",
            _ => return Ok(()),
        };
        Err(ErrorKind::Unsupported(format!(
            "it is {kind}, and neither a regular file nor a block device"
        )))
    }

    /// Checks whether the kernel would let the calling thread open this for reading, and for
    /// writing as well if `write`. For handles that share an open descriptor: opening and closing
    /// another one would end the POSIX locks of the program.
    pub fn admit(&self, write: bool) -> rustix::io::Result<()> {
        sys::access::may_open(self.fd.as_fd(), write)
    }

    /// Opens it.
    pub fn open(&self, flags: OFlags, descriptor_min: u32) -> rustix::io::Result<OwnedFd> {
        // The thread's own directory: threads may have separate descriptor tables.
        let name = format!("/proc/thread-self/fd/{}", self.fd.as_raw_fd());
        match sys::open(Path::new(&name), flags, Mode::empty(), descriptor_min) {
            Ok(fd) if self.is(&fd)? => Ok(fd),
            // No usable /proc. The second attempt repeats a refusal by the file itself.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {
                self.open_by_name(flags, descriptor_min)
            }
            refused => refused,
        }
    }

    /// The name may belong to another file now. A FIFO must not block then. A side effect of
    /// opening a device cannot be prevented.
    fn open_by_name(&self, flags: OFlags, descriptor_min: u32) -> rustix::io::Result<OwnedFd> {
        let fd = sys::open(&self.path, flags | OFlags::NONBLOCK, Mode::empty(), descriptor_min)?;
        if !self.is(&fd)? {
            return Err(Errno::STALE);
        }
        fcntl_setfl(&fd, fcntl_getfl(&fd)?.difference(OFlags::NONBLOCK))?;
        Ok(fd)
    }

    fn is(&self, fd: &OwnedFd) -> rustix::io::Result<bool> {
        let same =
            |one: &Stat, other: &Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
        fstat(fd).map(|stat| same(&stat, &self.stat))
    }
}

/// The file to open: an existing one, or a descriptor that was just created.
#[derive(Debug)]
pub(crate) enum There {
    Found(FoundInode),
    Created(OwnedFd),
}

impl There {
    pub fn key(&self) -> rustix::io::Result<Key> {
        match self {
            Self::Found(found) => Ok(found.key()),
            Self::Created(fd) => fstat(fd).map(|stat| key_of_stat(&stat)),
        }
    }

    /// As [`FoundInode::admit`]. The creator of a file may write it.
    pub fn admit(&self) -> rustix::io::Result<()> {
        match self {
            Self::Found(found) => found.admit(true),
            Self::Created(_) => Ok(()),
        }
    }
}

pub(crate) fn key_of_stat(stat: &Stat) -> Key {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => Key { dev: stat.st_rdev, inode: None, part: Part::Whole },
        _ => Key { dev: stat.st_dev, inode: Some(stat.st_ino), part: Part::Whole },
    }
}
