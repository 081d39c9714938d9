//! Files inside volumes of ext2 and ext3, opened without mounting.

use crate::error::{Error, ErrorKind, Operation, Result};
use crate::file::Inner;
use crate::options::OpenOptions;
use std::path::Path;
use std::sync::Arc;

/// Opens the file `path` of the volume `volume`.
pub(crate) fn open_within(_options: &OpenOptions, volume: &Path, path: &Path) -> Result<Inner> {
    let path: Arc<Path> = volume.join(path.strip_prefix("/").unwrap_or(path)).into();
    let kind = ErrorKind::Unsupported("files inside volumes".into());
    Err(Error::new(Operation::Open, &path, None, kind))
}
