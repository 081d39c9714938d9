//! The one error type: what was attempted, on which file, where, and what stood in the way.

use crate::text::shown;
use std::{fmt, io, path::Path, sync::Arc};

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was being done when an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening, locking or inspecting a file.
    Open,
    /// Bringing a file into order after a crash.
    Recover,
    /// [`File::append`](crate::File::append).
    Append,
    /// [`File::write_at`](crate::File::write_at).
    Write,
    /// [`File::read_at`](crate::File::read_at).
    Read,
    /// [`File::sync_data`](crate::File::sync_data), or the flush behind a durable write.
    Flush,
    /// [`File::set_len`](crate::File::set_len).
    SetLen,
    /// [`File::recycle`](crate::File::recycle).
    Recycle,
    /// [`File::len`](crate::File::len).
    Len,
    /// Preparing space ahead of the end.
    Grow,
    /// [`File::close`](crate::File::close).
    Close,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Recover => "recover",
            Self::Append => "append",
            Self::Write => "write",
            Self::Read => "read",
            Self::Flush => "flush",
            Self::SetLen => "set_len",
            Self::Recycle => "recycle",
            Self::Len => "len",
            Self::Grow => "grow",
            Self::Close => "close",
        })
    }
}

/// What stood in the way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Memory, offset or length of a write does not have the alignment that direct I/O needs on
    /// this file.
    #[error("{what} {value:#x} is not a multiple of {required} bytes")]
    Misaligned {
        /// "memory address", "offset" or "length".
        what: &'static str,
        /// The value given.
        value: u64,
        /// The alignment wanted, in bytes.
        required: u64,
    },
    /// The kernel refused with this errno.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// No space (ENOSPC, EDQUOT or EFBIG, the errno is given), found before any offset was handed
    /// out: the file is as before, and the same call works once there is space.
    #[error("no space: {}; free some and try again", io::Error::from_raw_os_error(*.0))]
    NoSpace(i32),
    /// Another process has the file open for writing.
    #[error("another process has it open for writing; one writer process per file")]
    Locked,
    /// The block device is in use; or another process has the file open for writing, so that a
    /// truncate could destroy what it wrote. The reason names what holds it.
    #[error("in use: {0}")]
    Busy(String),
    /// A flush failed on this file system or device, so nothing on it can be trusted to be stable
    /// until it is mounted (or the device opened) anew. Mounts in other mount namespaces are not
    /// seen: unmount it there as well. The children of a fork inherit this. Before Linux 6.8 mounts
    /// cannot be told apart, and only a process that is no child may open it again; so with a
    /// device in a child, whose parent may have it open.
    #[error(
        "a flush failed here before ({0}); mount the file system (or open the device) anew, then \
         recover"
    )]
    Wedged(Arc<Error>),
    /// An earlier write past the end failed after its offset was handed out, so the file ends at
    /// that gap. `set_len(len())` gives up what lies beyond and allows appending again.
    #[error("appending ended with an earlier failure ({0}); set_len(len()) to go on from there")]
    AppendEnded(Arc<Error>),
    /// This process is a fork of the one that opened the file.
    #[error("opened by the parent process; open it again in this one")]
    Forked,
    /// The handle was opened read-only.
    #[error("opened read-only")]
    ReadOnly,
    /// Not possible on this kind of file; the reason is given.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A crash left the file grown ahead, but it is no longer as it was left, so cutting it could
    /// destroy data. It can be opened read-only, or recovered by force.
    #[error(
        "changed by another program while it was grown ahead, or since a crash left it so ({0}); \
         open read-only to look; where it is still marked, `dioxide recover --force` cuts it"
    )]
    ModifiedExternally(String),
    /// These paths are not the members of one striped volume, in this order; or not those that it
    /// was closed with.
    #[error("not this striped volume: {0}")]
    Members(String),
    /// The volume that holds the file contradicts itself; the contradiction is given.
    #[error("the volume is corrupt: {0}; run e2fsck on it")]
    Corrupt(String),
}

/// An operation, its file and offset, and what stood in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    operation: Operation,
    path: Arc<Path>,
    offset: Option<u64>,
    kind: ErrorKind,
}

impl Error {
    pub(crate) fn new(
        operation: Operation,
        path: &Arc<Path>,
        offset: Option<u64>,
        kind: ErrorKind,
    ) -> Self {
        Self(Box::new(Inner { operation, path: path.clone(), offset, kind }))
    }

    /// What was attempted.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// The file, as it was named when opened.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The file offset in bytes, where there is one.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// What stood in the way.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The kernel's error number, where the kernel had a say, or the one that fits best.
    pub fn errno(&self) -> i32 {
        match &self.0.kind {
            ErrorKind::Os(errno) | ErrorKind::NoSpace(errno) => *errno,
            ErrorKind::Misaligned { .. } => libc::EINVAL,
            ErrorKind::Locked => libc::EAGAIN,
            ErrorKind::Busy(_) => libc::EBUSY,
            ErrorKind::Wedged(_) | ErrorKind::AppendEnded(_) => libc::EIO,
            ErrorKind::Forked | ErrorKind::ReadOnly => libc::EBADF,
            ErrorKind::Unsupported(_) => libc::EOPNOTSUPP,
            ErrorKind::ModifiedExternally(_) | ErrorKind::Members(_) | ErrorKind::Corrupt(_) => {
                libc::EUCLEAN
            }
        }
    }
}

/// The path is [shown](crate::text::shown): it does nothing to a terminal or a log.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, path, offset, kind } = &*self.0;
        write!(f, "{operation} {}", shown(&**path))?;
        if let Some(offset) = offset {
            write!(f, " at {offset}")?;
        }
        write!(f, ": {kind}")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            ErrorKind::Wedged(cause) | ErrorKind::AppendEnded(cause) => Some(&**cause),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = io::Error::from_raw_os_error(error.errno()).kind();
        io::Error::new(kind, error)
    }
}
