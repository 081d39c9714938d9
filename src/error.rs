//! The error type of the crate: the operation, its file and offset, and the reason.

use crate::text::shown;
use std::{fmt, io, path::Path, sync::Arc};

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening, locking or inspecting a file.
    Open,
    /// Recovering a file after a crash.
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
    /// Growing the file ahead of its end.
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

/// The reason of an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The chunk of a striped volume does not have the alignment that direct I/O needs on its
    /// members.
    #[error("{what} {value:#x} is not a multiple of {required} bytes")]
    Misaligned {
        /// "chunk".
        what: &'static str,
        /// The value given.
        value: u64,
        /// The required alignment, in bytes.
        required: u64,
    },
    /// The kernel refused with this errno.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// No space (ENOSPC, EDQUOT or EFBIG, the errno is given), detected before an offset was
    /// assigned. The file is unchanged, and the same call succeeds once there is space.
    #[error("no space: {}; {} and try again", io::Error::from_raw_os_error(*.0), more_space(*.0))]
    NoSpace(i32),
    /// Another process has the file open for writing.
    #[error("another process has it open for writing; one writer process per file")]
    Locked,
    /// The block device is in use. Or another process has the file open for writing, so that a
    /// truncate could destroy its data. The message names the holder.
    #[error("in use: {0}")]
    Busy(String),
    /// A flush failed on this file system or device. None of its data counts as durable until it is
    /// mounted (or the device opened) anew. The check does not see mounts in other mount
    /// namespaces: unmount it there as well. The children of a fork inherit this.
    ///
    /// Before Linux 6.8, this process and its children cannot open it again. Start a new process.
    /// The same holds for a device in a child, whose parent may have it open.
    #[error(
        "a flush failed here before ({0}); mount the file system (or open the device) anew, then \
         recover"
    )]
    Wedged(Arc<Error>),
    /// An earlier write past EOF failed after its offset was assigned, so the file ends at that
    /// gap. `set_len(len())` discards the data beyond and allows appends again.
    #[error("appending ended after a failure ({0}); call set_len(len()) to continue")]
    AppendEnded(Arc<Error>),
    /// A fork of the process that opened the file made the call.
    #[error("opened by the parent process; open it again in this one")]
    Forked,
    /// The handle was opened read-only.
    #[error("opened read-only")]
    ReadOnly,
    /// Not possible on this kind of file; the message gives the reason.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A crash left the file grown ahead, and it changed since, so a truncate could destroy data.
    /// It can be opened read-only, or recovered by force.
    #[error(
        "changed by another program while it was grown ahead, or since a crash left it so ({0}); \
         open read-only to look. If it is still marked, `dioxide recover --force` truncates it, or \
         leaves the end to its program"
    )]
    ModifiedExternally(String),
    /// The paths are not the members of one striped volume in this order, or not those of its last
    /// close.
    #[error("not this striped volume: {0}")]
    Members(String),
    /// The volume that holds the file contradicts itself; the message gives the contradiction.
    #[error("the volume is corrupt: {0}; run e2fsck on it")]
    Corrupt(String),
}

fn more_space(errno: i32) -> &'static str {
    match errno {
        libc::EFBIG => "raise the limit of the file's length (ulimit -f)",
        _ => "free some",
    }
}

/// An operation, its file and offset, and the reason of its failure.
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

    /// Returns the operation that failed.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// Returns the path of the file, as given at open.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the file offset in bytes, if the operation has one.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Returns the reason.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns the kernel's errno, or the closest one for an error of this library.
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

/// The path is [escaped](crate::text::shown) for terminals and logs.
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
