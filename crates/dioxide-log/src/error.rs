//! The errors of a log.

use crate::lsn::Lsn;
use dioxide::ErrorKind;
use dioxide::text::shown;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of every operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation on a log failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A write, read or flush of a segment failed.
    #[error(transparent)]
    File(#[from] dioxide::Error),
    /// A system call failed on a file or directory of the log.
    #[error("{action} {}: {error}", shown(path))]
    System {
        /// The action, for example "rename".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        error: Arc<io::Error>,
    },
    /// The log contradicts itself. Nothing was changed.
    #[error("{} at {offset}: {reason}; restore the log from a copy", shown(path))]
    Corrupt {
        /// The segment.
        path: PathBuf,
        /// The offset in bytes.
        offset: u64,
        /// The contradiction.
        reason: String,
    },
    /// A writer changed the log while it was read. A later look finds what is there.
    #[error("{}: a writer changes the log too fast to read it; try again", shown(path))]
    Changing {
        /// The directory or device.
        path: PathBuf,
    },
    /// A later version of this crate wrote the log.
    #[error("{}: {reason}; use a later version of dioxide-log", shown(path))]
    Version {
        /// The segment.
        path: PathBuf,
        /// What this version does not know.
        reason: String,
    },
    /// Another process, or another [`Log`](crate::Log) or [`LogSet`](crate::LogSet) of this one,
    /// has the log or set open for writing.
    #[error("{}: another writer has it open; one writer per log or set", shown(path))]
    Locked {
        /// The directory or device.
        path: PathBuf,
    },
    /// There is no log, and it was not to be created.
    #[error("{}: no log", shown(path))]
    Missing {
        /// The directory or device.
        path: PathBuf,
    },
    /// The options do not fit.
    #[error("{0}")]
    Options(String),
    /// The record, or the batch of `append_all`, does not fit into one segment.
    #[error("a record or batch of {bytes} bytes with its frames; at most {max} fit into a segment")]
    TooLong {
        /// The bytes of the frames.
        bytes: u64,
        /// The largest number of bytes.
        max: u64,
    },
    /// There is no free segment and none could be made. Nothing was appended. The same call
    /// succeeds after [`truncate_front`](crate::Log::truncate_front) or once there is space.
    #[error("no free segment ({0}); truncate the front of the log, or free space, and try again")]
    Full(Arc<Error>),
    /// There is no free segment, and none could be made for another reason than space. Nothing was
    /// appended. The same call succeeds once the cause is gone.
    #[error("no free segment, and none could be made: {0}")]
    NoSegment(Arc<Error>),
    /// The log has no free segment, and its device has a fixed number of them. As
    /// [`Full`](Self::Full).
    #[error("all {0} segments of the device are in use")]
    DeviceFull(usize),
    /// An earlier write or flush failed. The records that it covered are not acknowledged, and the
    /// log takes no more. Open it again to continue; after a failed flush, mount the file system
    /// (or open the device) anew first.
    #[error("the log failed before ({0}); open it again, after a failed flush on a new mount")]
    Failed(Arc<Error>),
    /// The LSN lies outside of the log or the stream.
    #[error("LSN {lsn} is out of range: {}", records(*first, *next))]
    OutOfRange {
        /// The LSN.
        lsn: Lsn,
        /// The first LSN of the log.
        first: Lsn,
        /// The LSN of the next record.
        next: Lsn,
    },
    /// The log, or the set, was closed.
    #[error("the log is closed")]
    Closed,
}

/// Says which records there are.
fn records(first: Lsn, next: Lsn) -> String {
    match first < next {
        true => format!("there are records {first} to {}", next.0 - 1),
        false => format!("there are no records, and the next is {next}"),
    }
}

impl Error {
    /// Makes an error of a system call.
    pub(crate) fn system(action: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        Self::System { action, path: path.into(), error: Arc::new(error.into()) }
    }

    pub(crate) fn corrupt(path: &Path, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { path: path.into(), offset, reason: reason.into() }
    }

    /// Whether the error means that there is no space.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Full(_) | Self::DeviceFull(_) => true,
            Self::File(error) => matches!(error.kind(), ErrorKind::NoSpace(_)),
            Self::System { error, .. } => {
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::File(error) => io::Error::from(error.clone()).kind(),
            Error::System { error, .. } => error.kind(),
            Error::NoSegment(cause) => io::Error::from(Error::clone(cause)).kind(),
            Error::Corrupt { .. } | Error::Version { .. } => io::ErrorKind::InvalidData,
            Error::Locked { .. } | Error::Changing { .. } => io::ErrorKind::ResourceBusy,
            Error::Missing { .. } => io::ErrorKind::NotFound,
            Error::Options(_) | Error::TooLong { .. } | Error::OutOfRange { .. } => {
                io::ErrorKind::InvalidInput
            }
            Error::Full(_) | Error::DeviceFull(_) => io::ErrorKind::StorageFull,
            Error::Failed(_) | Error::Closed => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Up to, not including" made readers of a message compute.
    #[test]
    fn a_message_named_a_record_that_is_not_there() {
        let message = |first, next| {
            Error::OutOfRange { lsn: Lsn(9), first: Lsn(first), next: Lsn(next) }.to_string()
        };
        assert_eq!(message(3, 6), "LSN 9 is out of range: there are records 3 to 5");
        let none = "LSN 9 is out of range: there are no records, and the next is 6";
        assert_eq!(message(6, 6), none);
    }

    /// A message of the C interface is one line.
    #[test]
    fn a_path_made_another_line_of_a_message() {
        let error = Error::Missing { path: "log\nERROR: forged".into() };
        assert_eq!(error.to_string().lines().count(), 1);
    }
}
