//! The errors of SlateDB's interface.

use dioxide_log::Error;
use slatedb::wal::WalError;
use std::io;
use std::sync::Arc;
use tokio::task::JoinError;

/// What an error of the log means to SlateDB.
pub fn of_log(error: Error) -> WalError {
    match error {
        Error::Closed => WalError::Closed,
        Error::OutOfRange { lsn, .. } => WalError::WalTruncated(lsn.0),
        Error::Corrupt { .. } | Error::Version { .. } => WalError::DataError(Arc::new(error)),
        other => WalError::Unavailable(Arc::new(other)),
    }
}

/// The log and the database contradict each other.
pub fn data(reason: String) -> WalError {
    WalError::DataError(Arc::new(io::Error::new(io::ErrorKind::InvalidData, reason)))
}

/// Runs what may wait for a disk, beside the tasks.
pub async fn blocking<R: Send + 'static>(
    call: impl FnOnce() -> Result<R, WalError> + Send + 'static,
) -> Result<R, WalError> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(error) => Err(of_task(error)),
    }
}

/// What the end of a task without a result means to SlateDB.
pub fn of_task(error: JoinError) -> WalError {
    WalError::InternalError(Arc::new(error))
}
