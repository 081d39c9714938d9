//! The errors of a log store.

use std::io;

/// The result of opening and closing.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a log store failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The log failed.
    Log(dioxide_log::Error),
    /// A record of the group is not one of these types.
    Decode(rmp_serde::decode::Error),
    /// The types refuse to be encoded.
    Encode(rmp_serde::encode::Error),
    /// The group contradicts itself.
    Corrupt(String),
    /// A number of a group above [`GROUP_MAX`](crate::GROUP_MAX).
    Group(u64),
    /// The group has log stores of other types, or was to be removed while it has some.
    InUse(u64),
    /// The snapshot for which a purge waits cannot be made durable.
    Snapshot,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Log(error) => error.fmt(f),
            Self::Decode(error) => {
                write!(f, "a record of the group has other types ({error}); open it with its own")
            }
            Self::Encode(error) => write!(f, "an entry cannot be encoded: {error}"),
            Self::Corrupt(reason) => write!(f, "{reason}; restore the log from a copy"),
            Self::Group(group) => {
                write!(f, "group {group}; use numbers up to {}", crate::GROUP_MAX)
            }
            Self::Snapshot => {
                write!(f, "the snapshot is not durable, so the log is not purged; start raft again")
            }
            Self::InUse(group) => {
                write!(f, "group {group} is in use; end its raft, and drop its log stores")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Log(error) => Some(error),
            Self::Decode(error) => Some(error),
            Self::Encode(error) => Some(error),
            Self::Corrupt(_) | Self::Group(_) | Self::InUse(_) | Self::Snapshot => None,
        }
    }
}

impl From<dioxide_log::Error> for Error {
    fn from(error: dioxide_log::Error) -> Self {
        Self::Log(error)
    }
}

impl From<rmp_serde::decode::Error> for Error {
    fn from(error: rmp_serde::decode::Error) -> Self {
        Self::Decode(error)
    }
}

impl From<rmp_serde::encode::Error> for Error {
    fn from(error: rmp_serde::encode::Error) -> Self {
        Self::Encode(error)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Log(error) => error.into(),
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}
